/*
 * log.h - one key=value line per event, on stderr or to syslog. Thread safe; blocks only as stderr
 * does.
 */
#ifndef KVFS_COMMON_LOG_H
#define KVFS_COMMON_LOG_H

enum log_level {
    LOG_LEVEL_ERROR,
    LOG_LEVEL_WARN,
    LOG_LEVEL_INFO,
    LOG_LEVEL_DEBUG,
};

/* program: the name in each line, not copied. Before the first thread. */
void log_open(const char *program, enum log_level most);
void log_to_syslog(void);
/*
 * log_event(LOG_LEVEL_INFO, "listening", "addr=%s", addr): "2026-01-02T03:04:05.678Z kvnode info
 * listening addr=localhost:8081".
 */
void log_event(enum log_level level, const char *event, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/*
 * A key or text as a value of such a line: quoted and escaped where needed. Static buffer per
 * thread, four in turn.
 */
const char *log_quote(const void *data, unsigned long len);

#endif

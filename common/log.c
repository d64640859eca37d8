/* log.c - one line per event, on stderr or to syslog. */
#include "common/log.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <syslog.h>
#include <time.h>
#include <unistd.h>

#include "common/clock.h"

#define LINE_CAP 4096u /* PIPE_BUF: a line written to a pipe is never mixed with another's */
#define QUOTE_SLOTS 4u
#define QUOTE_CAP 512u

static const char cut_mark[] = "...";

/* The process has one log, as it has one stderr: the only globals of this library. */
static const char *program_name = "kvfs";
static enum log_level level_most = LOG_LEVEL_INFO;
static atomic_bool syslog_on;

static const struct {
    const char *name;
    int priority; /* of syslog(3) */
} levels[] = {
    [LOG_LEVEL_ERROR] = {"error", LOG_ERR},
    [LOG_LEVEL_WARN] = {"warn", LOG_WARNING},
    [LOG_LEVEL_INFO] = {"info", LOG_INFO},
    [LOG_LEVEL_DEBUG] = {"debug", LOG_DEBUG},
};

void log_open(const char *program, enum log_level most)
{
    program_name = program;
    level_most = most;
}

void log_to_syslog(void)
{
    openlog(program_name, LOG_PID, LOG_DAEMON);
    atomic_store(&syslog_on, true);
}

/* "2026-01-02T03:04:05.678Z" */
static void timestamp(char *out, size_t cap)
{
    struct clock *c = clock_real();
    uint64_t us = c->wall_us(c);
    time_t seconds = (time_t)(us / 1000000u);
    struct tm tm;
    size_t len;

    (void)gmtime_r(&seconds, &tm);
    len = strftime(out, cap, "%Y-%m-%dT%H:%M:%S", &tm);
    (void)snprintf(out + len, cap - len, ".%03uZ", (unsigned)(us / 1000u % 1000u));
}

static void compose(char *out, size_t cap, const char *event, const char *fmt, va_list ap)
    __attribute__((format(printf, 4, 0)));

/*
 * Event and text into out, marked where they had to be cut. One event is one line whatever a
 * message carries: control bytes in it (a key that nobody quoted, say) become '?'.
 */
static void compose(char *out, size_t cap, const char *event, const char *fmt, va_list ap)
{
    size_t len = strlen(event);
    int n = 0;

    (void)snprintf(out, cap, "%s ", event);
    if (len + 1 < cap && fmt != NULL)
        n = vsnprintf(out + len + 1, cap - len - 1, fmt, ap);
    if (n <= 0)
        out[len < cap ? len : cap - 1] = '\0'; /* no text: no space before it either */
    if (len + 1 + (size_t)(n > 0 ? n : 0) >= cap)
        memcpy(out + cap - sizeof(cut_mark), cut_mark, sizeof(cut_mark));
    for (char *p = out; *p != '\0'; p++) {
        if ((unsigned char)*p < 0x20 || *p == 0x7f)
            *p = '?';
    }
}

static void write_stderr(enum log_level level, const char *text)
{
    char line[LINE_CAP], stamp[64];
    int n;
    ssize_t done;

    timestamp(stamp, sizeof(stamp));
    n = snprintf(line, sizeof(line), "%s %s %s %s\n", stamp, program_name, levels[level].name,
                 text);
    if (n < 0)
        return;
    if ((size_t)n >= sizeof(line)) {
        n = sizeof(line);
        line[n - 1] = '\n';
    }
    do {
        done = write(STDERR_FILENO, line, (size_t)n);
    } while (done < 0 && errno == EINTR);
}

void log_event(enum log_level level, const char *event, const char *fmt, ...)
{
    char text[LINE_CAP - 128];
    int saved_errno = errno; /* logging in the middle of handling an error must not change it */
    va_list ap;

    if (level > level_most)
        return;
    va_start(ap, fmt);
    compose(text, sizeof(text), event, fmt, ap);
    va_end(ap);
    if (atomic_load(&syslog_on))
        syslog(levels[level].priority, "%s", text);
    else
        write_stderr(level, text);
    errno = saved_errno;
}

/* Bytes that would end the quotes, the line, or the reader's trust in it. */
static bool needs_escape(unsigned char c)
{
    return c < 0x20 || c >= 0x7f || c == '"' || c == '\\';
}

const char *log_quote(const void *data, unsigned long len)
{
    static _Thread_local char slots[QUOTE_SLOTS][QUOTE_CAP];
    static _Thread_local unsigned turn;
    char *out = slots[turn++ % QUOTE_SLOTS];
    const unsigned char *in = data;
    bool plain = len > 0;
    size_t n = 0;

    for (unsigned long i = 0; plain && i < len; i++)
        plain = !needs_escape(in[i]) && in[i] != ' ' && in[i] != '=';
    if (!plain)
        out[n++] = '"';
    for (unsigned long i = 0; i < len; i++) {
        size_t width = needs_escape(in[i]) ? 4 : 1;

        /* Room stays for the closing quote, the mark and the NUL. */
        if (n + width + 1 + sizeof(cut_mark) > QUOTE_CAP) {
            memcpy(out + n, plain ? "..." : "\"...", plain ? 4 : 5);
            return out;
        }
        if (width == 4)
            (void)snprintf(out + n, QUOTE_CAP - n, "\\x%02x", in[i]);
        else
            out[n] = (char)in[i];
        n += width;
    }
    if (!plain)
        out[n++] = '"';
    out[n] = '\0';
    return out;
}

/*
 * disk_shim.c - preloaded into a process (LD_PRELOAD): its calls on files below one directory fail
 * as a test wants, or are written down.
 *
 *   DISK_DIR    the directory, absolute, without links in it
 *   DISK_TRACE  where the calls are written down (disk_trace.h)
 *   DISK_FAULT  a file that, while it is there, holds lines "CALL TEXT ERRNO": calls of that kind
 *               (sync, write, rename, truncate, create, open) on a path that contains TEXT fail so;
 *               with ERRNO -1 (of sync, write and read) they wait until it is there no more, for
 *               HOLD_LIMIT_S at most, and then go on
 */
#undef _FILE_OFFSET_BITS /* it would make open() another name of open64(): both are here */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "tests/lib/disk_trace.h"

#define PATH_CAP 1024
#define HOLD (-1)
#define HOLD_LIMIT_S 60

static const char *top, *fault_path;
static size_t top_len;
static int trace_fd = -1;
static uint32_t n_syncs;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* The next function of that name: the library's own. */
static void *next(const char *name)
{
    return dlsym(RTLD_NEXT, name);
}

#define REAL(ret, name, ...)                                                                       \
    static ret (*real)(__VA_ARGS__);                                                               \
    if (real == NULL)                                                                              \
    *(void **)&real = next(#name)

static ssize_t real_write(int fd, const void *data, size_t len)
{
    REAL(ssize_t, write, int, const void *, size_t);

    return real(fd, data, len);
}

static int real_open(const char *path, int flags, mode_t mode)
{
    REAL(int, open, const char *, int, mode_t);

    return real(path, flags, mode);
}

/* --- whose call is it ------------------------------------------------------------------ */

/* The part of an absolute path below the directory, or NULL. "": the directory itself. */
static const char *below(const char *path)
{
    if (top == NULL || strncmp(path, top, top_len) != 0)
        return NULL;
    if (path[top_len] == '\0')
        return path + top_len;
    return path[top_len] == '/' ? path + top_len + 1 : NULL;
}

static const char *path_of_fd(int fd, char out[PATH_CAP])
{
    char link[40];
    ssize_t n;

    snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    n = top == NULL ? -1 : readlink(link, out, PATH_CAP - 1);
    if (n < 0)
        return NULL;
    out[n] = '\0';
    return below(out);
}

static const char *path_at(int dir_fd, const char *path, char out[PATH_CAP])
{
    size_t len;

    if (top == NULL)
        return NULL;
    if (path[0] == '/') {
        snprintf(out, PATH_CAP, "%s", path);
    } else if (dir_fd == AT_FDCWD) {
        if (getcwd(out, PATH_CAP) == NULL)
            return NULL;
        len = strlen(out);
        snprintf(out + len, PATH_CAP - len, "/%s", path);
    } else {
        if (path_of_fd(dir_fd, out) == NULL)
            return NULL;
        len = strlen(out);
        snprintf(out + len, PATH_CAP - len, "/%s", path);
    }
    return below(out);
}

/* --- faults ---------------------------------------------------------------------------- */

/* The errno with which this call is to fail, HOLD, or 0. */
static int look_up(const char *call, const char *path)
{
    char text[1024], *line, *save = NULL;
    int fd, code = 0;
    ssize_t n;

    if (fault_path == NULL || path == NULL)
        return 0;
    fd = real_open(fault_path, O_RDONLY | O_CLOEXEC, 0);
    if (fd < 0)
        return 0;
    n = read(fd, text, sizeof(text) - 1);
    close(fd);
    text[n < 0 ? 0 : n] = '\0';
    for (line = strtok_r(text, "\n", &save); line != NULL && code == 0;
         line = strtok_r(NULL, "\n", &save)) {
        char kind[16], part[200];
        int with;

        if (sscanf(line, "%15s %199s %d", kind, part, &with) == 3 && strcmp(kind, call) == 0 &&
            strstr(path, part) != NULL)
            code = with;
    }
    return code;
}

/* The errno with which this call is to fail, or 0; waits first, where it is to be held up. */
static int fault(const char *call, const char *path)
{
    const struct timespec pause = {.tv_nsec = 10000000};
    int code;

    for (int i = 0; (code = look_up(call, path)) == HOLD && i < HOLD_LIMIT_S * 100; i++)
        nanosleep(&pause, NULL);
    return code == HOLD ? 0 : code;
}

/* --- the trace ------------------------------------------------------------------------- */

static uint64_t inode(int fd)
{
    struct stat st;

    return fstat(fd, &st) < 0 ? 0 : st.st_ino;
}

static void put(struct trace_record *r, const char *name, const char *to, const void *data)
{
    struct timespec ts;
    struct iovec parts[4];
    int err = errno;

    if (trace_fd < 0)
        return;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    r->us = (uint64_t)ts.tv_sec * 1000000 + (uint64_t)ts.tv_nsec / 1000;
    r->name_len = name == NULL ? 0 : (uint32_t)strlen(name) + 1;
    r->to_len = to == NULL ? 0 : (uint32_t)strlen(to) + 1;
    parts[0] = (struct iovec){r, sizeof(*r)};
    parts[1] = (struct iovec){(void *)(uintptr_t)name, r->name_len};
    parts[2] = (struct iovec){(void *)(uintptr_t)to, r->to_len};
    parts[3] = (struct iovec){(void *)(uintptr_t)data, r->len};
    pthread_mutex_lock(&lock);
    for (unsigned i = 0; i < 4; i++)
        if (parts[i].iov_len > 0 && real_write(trace_fd, parts[i].iov_base, parts[i].iov_len) < 0)
            abort(); /* a trace with a hole proves nothing */
    pthread_mutex_unlock(&lock);
    errno = err;
}

static void __attribute__((constructor)) begin(void)
{
    const char *trace = getenv("DISK_TRACE");
    struct trace_record r = {.kind = TRACE_MKDIR};
    struct stat st;

    top = getenv("DISK_DIR");
    top_len = top == NULL ? 0 : strlen(top);
    fault_path = getenv("DISK_FAULT");
    if (trace != NULL && top != NULL)
        trace_fd = real_open(trace, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (trace_fd >= 0 && stat(top, &st) == 0) {
        r.ino = st.st_ino;
        put(&r, "", NULL, NULL);
    }
}

static void trace_write(int fd, const char *path, const void *data, size_t len, off_t at)
{
    struct trace_record r = {
        .kind = TRACE_WRITE, .ino = inode(fd), .offset = at, .len = (uint32_t)len};

    if (path != NULL && len > 0)
        put(&r, NULL, NULL, data);
}

/* --- opening --------------------------------------------------------------------------- */

static int open_any(int dir_fd, const char *name, int flags, mode_t mode)
{
    REAL(int, openat, int, const char *, int, mode_t);
    char buf[PATH_CAP];
    const char *path = path_at(dir_fd, name, buf);
    int code = fault(flags & O_CREAT ? "create" : "open", path), fd;

    if (code != 0) {
        errno = code;
        return -1;
    }
    fd = real(dir_fd, name, flags, mode);
    if (fd >= 0 && path != NULL && (flags & O_CREAT)) {
        struct trace_record r = {.kind = TRACE_CREATE, .ino = inode(fd)};

        put(&r, path, NULL, NULL);
    }
    if (fd >= 0 && path != NULL && (flags & O_TRUNC)) {
        struct trace_record r = {.kind = TRACE_CUT, .ino = inode(fd)};

        put(&r, NULL, NULL, NULL);
    }
    return fd;
}

static mode_t mode_of(int flags, va_list ap)
{
    return flags & (O_CREAT | O_TMPFILE) ? va_arg(ap, mode_t) : 0;
}

#define OPEN(name)                                                                                 \
    int name(const char *path, int flags, ...);                                                    \
    int name(const char *path, int flags, ...)                                                     \
    {                                                                                              \
        va_list ap;                                                                                \
        mode_t mode;                                                                               \
                                                                                                   \
        va_start(ap, flags);                                                                       \
        mode = mode_of(flags, ap);                                                                 \
        va_end(ap);                                                                                \
        return open_any(AT_FDCWD, path, flags, mode);                                              \
    }
#define OPENAT(name)                                                                               \
    int name(int dir_fd, const char *path, int flags, ...);                                        \
    int name(int dir_fd, const char *path, int flags, ...)                                         \
    {                                                                                              \
        va_list ap;                                                                                \
        mode_t mode;                                                                               \
                                                                                                   \
        va_start(ap, flags);                                                                       \
        mode = mode_of(flags, ap);                                                                 \
        va_end(ap);                                                                                \
        return open_any(dir_fd, path, flags, mode);                                                \
    }
OPEN(open)
OPEN(open64)
OPEN(__open_2)
OPEN(__open64_2)
OPENAT(openat)
OPENAT(openat64)

/* --- reading --------------------------------------------------------------------------- */

#define PREAD(name)                                                                                \
    ssize_t name(int fd, void *data, size_t len, off_t at);                                        \
    ssize_t name(int fd, void *data, size_t len, off_t at)                                         \
    {                                                                                              \
        REAL(ssize_t, name, int, void *, size_t, off_t);                                           \
        char buf[PATH_CAP];                                                                        \
        int code = fault("read", path_of_fd(fd, buf));                                             \
                                                                                                   \
        if (code != 0) {                                                                           \
            errno = code;                                                                          \
            return -1;                                                                             \
        }                                                                                          \
        return real(fd, data, len, at);                                                            \
    }
PREAD(pread)
PREAD(pread64)

/* --- writing --------------------------------------------------------------------------- */

ssize_t write(int fd, const void *data, size_t len)
{
    char buf[PATH_CAP];
    const char *path = path_of_fd(fd, buf);
    int code = fault("write", path);
    ssize_t n;

    if (code != 0) {
        errno = code;
        return -1;
    }
    n = real_write(fd, data, len);
    if (n > 0 && path != NULL)
        trace_write(fd, path, data, (size_t)n, lseek(fd, 0, SEEK_CUR) - n);
    return n;
}

#define PWRITE(name)                                                                               \
    ssize_t name(int fd, const void *data, size_t len, off_t at);                                  \
    ssize_t name(int fd, const void *data, size_t len, off_t at)                                   \
    {                                                                                              \
        REAL(ssize_t, name, int, const void *, size_t, off_t);                                     \
        char buf[PATH_CAP];                                                                        \
        const char *path = path_of_fd(fd, buf);                                                    \
        int code = fault("write", path);                                                           \
        ssize_t n;                                                                                 \
                                                                                                   \
        if (code != 0) {                                                                           \
            errno = code;                                                                          \
            return -1;                                                                             \
        }                                                                                          \
        n = real(fd, data, len, at);                                                               \
        if (n > 0)                                                                                 \
            trace_write(fd, path, data, (size_t)n, at);                                            \
        return n;                                                                                  \
    }
PWRITE(pwrite)
PWRITE(pwrite64)

#define TRUNCATE(name)                                                                             \
    int name(int fd, off_t len);                                                                   \
    int name(int fd, off_t len)                                                                    \
    {                                                                                              \
        REAL(int, name, int, off_t);                                                               \
        char buf[PATH_CAP];                                                                        \
        const char *path = path_of_fd(fd, buf);                                                    \
        struct trace_record r = {.kind = TRACE_CUT, .ino = inode(fd), .offset = len};              \
        int code = fault("truncate", path), ret;                                                   \
                                                                                                   \
        if (code != 0) {                                                                           \
            errno = code;                                                                          \
            return -1;                                                                             \
        }                                                                                          \
        ret = real(fd, len);                                                                       \
        if (ret == 0 && path != NULL)                                                              \
            put(&r, NULL, NULL, NULL);                                                             \
        return ret;                                                                                \
    }
TRUNCATE(ftruncate)
TRUNCATE(ftruncate64)

/* --- syncing --------------------------------------------------------------------------- */

static int sync_any(int fd, bool all, int (*real)(int))
{
    char buf[PATH_CAP];
    const char *path = path_of_fd(fd, buf);
    struct trace_record r = {.kind = TRACE_SYNC_BEGIN, .ino = all ? TRACE_INO_ALL : inode(fd)};
    int code = fault("sync", path), ret;

    if (path != NULL) {
        r.number = __atomic_add_fetch(&n_syncs, 1, __ATOMIC_SEQ_CST);
        put(&r, NULL, NULL, NULL);
    }
    if (code != 0) {
        errno = code;
        ret = -1;
    } else {
        ret = real(fd);
    }
    r.kind = ret == 0 ? TRACE_SYNC_END : TRACE_SYNC_FAILED;
    if (path != NULL)
        put(&r, NULL, NULL, NULL);
    return ret;
}

int fsync(int fd)
{
    REAL(int, fsync, int);

    return sync_any(fd, false, real);
}

int fdatasync(int fd)
{
    REAL(int, fdatasync, int);

    return sync_any(fd, false, real);
}

int syncfs(int fd)
{
    REAL(int, syncfs, int);

    return sync_any(fd, true, real);
}

/* A hint to the disk and no promise: only fails. */
int sync_file_range(int fd, off_t at, off_t len, unsigned flags)
{
    REAL(int, sync_file_range, int, off_t, off_t, unsigned);
    char buf[PATH_CAP];
    int code = fault("sync", path_of_fd(fd, buf));

    if (code != 0) {
        errno = code;
        return -1;
    }
    return real(fd, at, len, flags);
}

/* --- names ----------------------------------------------------------------------------- */

static int rename_any(int from_fd, const char *from, int to_fd, const char *to)
{
    REAL(int, renameat, int, const char *, int, const char *);
    char buf[PATH_CAP], to_buf[PATH_CAP];
    const char *path = path_at(from_fd, from, buf), *to_path = path_at(to_fd, to, to_buf);
    struct trace_record r = {.kind = TRACE_RENAME};
    int code = fault("rename", path), ret;

    if (code != 0) {
        errno = code;
        return -1;
    }
    ret = real(from_fd, from, to_fd, to);
    if (ret == 0 && path != NULL && to_path != NULL)
        put(&r, path, to_path, NULL);
    return ret;
}

int rename(const char *from, const char *to)
{
    return rename_any(AT_FDCWD, from, AT_FDCWD, to);
}

int renameat(int from_fd, const char *from, int to_fd, const char *to)
{
    return rename_any(from_fd, from, to_fd, to);
}

int unlinkat(int dir_fd, const char *name, int flags)
{
    REAL(int, unlinkat, int, const char *, int);
    char buf[PATH_CAP];
    const char *path = path_at(dir_fd, name, buf);
    struct trace_record r = {.kind = TRACE_UNLINK};
    int ret = real(dir_fd, name, flags);

    if (ret == 0 && path != NULL)
        put(&r, path, NULL, NULL);
    return ret;
}

int unlink(const char *name)
{
    return unlinkat(AT_FDCWD, name, 0);
}

int mkdirat(int dir_fd, const char *name, mode_t mode)
{
    REAL(int, mkdirat, int, const char *, mode_t);
    char buf[PATH_CAP];
    const char *path = path_at(dir_fd, name, buf);
    struct trace_record r = {.kind = TRACE_MKDIR};
    struct stat st;
    int ret = real(dir_fd, name, mode);

    if (ret == 0 && path != NULL && fstatat(dir_fd, name, &st, 0) == 0) {
        r.ino = st.st_ino;
        put(&r, path, NULL, NULL);
    }
    return ret;
}

int mkdir(const char *name, mode_t mode)
{
    return mkdirat(AT_FDCWD, name, mode);
}

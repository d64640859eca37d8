/*
 * wall_clock.c - LD_PRELOAD: the wall clock is off by as many nanoseconds as the file named by
 * KVTEST_WALL_CLOCK says (an int64), and jumps when that changes. The clocks that only grow stay
 * true, as on a machine whose time is set.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define NS 1000000000ll
/* Deadlines of clocks that start with the machine are below it, those of the wall clock above. */
#define WALL_SECONDS_MIN 1000000000ll

static const int64_t *offset;

__attribute__((constructor)) static void attach(void)
{
    const char *path = getenv("KVTEST_WALL_CLOCK");
    int fd = path != NULL ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    void *map = fd >= 0 ? mmap(NULL, sizeof(*offset), PROT_READ, MAP_SHARED, fd, 0) : MAP_FAILED;

    if (path != NULL && map == MAP_FAILED) {
        fprintf(stderr, "wall_clock: %s cannot be mapped\n", path);
        _exit(126);
    }
    if (fd >= 0)
        close(fd);
    if (map != MAP_FAILED)
        offset = map;
}

static int64_t offset_ns(void)
{
    return offset != NULL ? __atomic_load_n(offset, __ATOMIC_RELAXED) : 0;
}

static struct timespec moved(struct timespec ts, int64_t by_ns)
{
    int64_t ns = ts.tv_sec * NS + ts.tv_nsec + by_ns;

    return (struct timespec){.tv_sec = ns / NS, .tv_nsec = ns % NS};
}

int clock_gettime(clockid_t id, struct timespec *ts)
{
    if (syscall(SYS_clock_gettime, id, ts) != 0)
        return -1;
    if (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)
        *ts = moved(*ts, offset_ns());
    return 0;
}

int gettimeofday(struct timeval *restrict tv, void *restrict tz)
{
    struct timespec ts;

    (void)tz;
    if (clock_gettime(CLOCK_REALTIME, &ts) != 0)
        return -1;
    *tv = (struct timeval){.tv_sec = ts.tv_sec, .tv_usec = ts.tv_nsec / 1000};
    return 0;
}

time_t time(time_t *out)
{
    struct timespec ts;

    if (clock_gettime(CLOCK_REALTIME, &ts) != 0)
        return -1;
    if (out != NULL)
        *out = ts.tv_sec;
    return ts.tv_sec;
}

/* A deadline of the wall clock was made from the false time; the kernel waits by the true one. */
static struct timespec true_deadline(const struct timespec *due)
{
    return due->tv_sec >= WALL_SECONDS_MIN ? moved(*due, -offset_ns()) : *due;
}

static void *next(const char *name)
{
    void *f = dlsym(RTLD_NEXT, name);

    if (f == NULL) {
        fprintf(stderr, "wall_clock: no %s\n", name);
        _exit(126);
    }
    return f;
}

int pthread_cond_timedwait(pthread_cond_t *restrict cond, pthread_mutex_t *restrict lock,
                           const struct timespec *restrict due)
{
    static int (*real)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
    struct timespec until = true_deadline(due);

    if (real == NULL)
        *(void **)&real = next("pthread_cond_timedwait");
    return real(cond, lock, &until);
}

int pthread_cond_clockwait(pthread_cond_t *cond, pthread_mutex_t *lock, clockid_t id,
                           const struct timespec *due)
{
    static int (*real)(pthread_cond_t *, pthread_mutex_t *, clockid_t, const struct timespec *);
    struct timespec until = true_deadline(due);

    if (real == NULL)
        *(void **)&real = next("pthread_cond_clockwait");
    return real(cond, lock, id, &until);
}

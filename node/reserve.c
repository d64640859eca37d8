/* reserve.c - room on the disk that values do not get, so that a full disk can still be emptied. */
#include "node/reserve.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "common/log.h"

#define NAME "reserve"
/*
 * Enough for what the database has in memory and must write out, and some hundred thousand deletes;
 * small disks give a part of what they have.
 */
#define SIZE_MAX_LEN (64u << 20)
#define SIZE_PART 8u

struct reserve {
    int fd;
    uint64_t size;
    atomic_bool held, full;     /* full: told so already */
    _Atomic uint64_t rewriting; /* what that needs, and what came in since that was told */
    pthread_mutex_t lock;       /* around giving up and taking back */
};

/* Free bytes; where that cannot be told, enough. */
static uint64_t room(const struct reserve *r)
{
    struct statvfs fs;

    return fstatvfs(r->fd, &fs) < 0 ? UINT64_MAX : (uint64_t)fs.f_bavail * fs.f_frsize;
}

void reserve_tend(struct reserve *r)
{
    if (atomic_load(&r->held) || room(r) < 2 * r->size + r->size / 2 + atomic_load(&r->rewriting))
        return;
    pthread_mutex_lock(&r->lock);
    atomic_store(&r->held, fallocate(r->fd, 0, 0, (off_t)r->size) == 0);
    if (!atomic_load(&r->held))
        (void)!ftruncate(r->fd, 0); /* some of it may have been allocated */
    pthread_mutex_unlock(&r->lock);
}

static void give_up(struct reserve *r)
{
    if (!atomic_load(&r->held))
        return;
    pthread_mutex_lock(&r->lock);
    if (atomic_load(&r->held)) {
        if (ftruncate(r->fd, 0) == 0)
            atomic_store(&r->held, false);
        log_event(LOG_LEVEL_WARN, "disk-full", "effect=\"the last reserve is used, for deletes\"");
    }
    pthread_mutex_unlock(&r->lock);
}

void reserve_yield(struct reserve *r)
{
    if (atomic_load(&r->held) && room(r) < r->size / 2)
        give_up(r);
}

void reserve_for_rewriting(struct reserve *r, uint64_t len)
{
    atomic_store(&r->rewriting, len);
}

bool reserve_lets_rewrite(const struct reserve *r, bool is_rewriting)
{
    return room(r) >= atomic_load(&r->rewriting) + (is_rewriting ? 0 : r->size / 4);
}

bool reserve_has_room(const struct reserve *r)
{
    return room(r) >= r->size;
}

bool reserve_suffices(struct reserve *r)
{
    bool is_there;

    pthread_mutex_lock(&r->lock);
    is_there = fallocate(r->fd, 0, 0, (off_t)r->size) == 0;
    (void)!ftruncate(r->fd, 0);
    atomic_store(&r->held, false);
    pthread_mutex_unlock(&r->lock);
    return is_there;
}

bool reserve_admits(struct reserve *r, uint64_t len, bool in_tables)
{
    uint64_t kept = r->size + atomic_load(&r->rewriting), free_len = room(r);
    bool fits = free_len >= kept && free_len - kept >= len;

    if (fits && in_tables)
        atomic_fetch_add(&r->rewriting, len);

    if (!fits && !atomic_exchange(&r->full, true))
        log_event(LOG_LEVEL_WARN, "disk-full",
                  "free=%llu effect=\"values are refused; reads and deletes go on\"",
                  (unsigned long long)free_len);
    if (fits && atomic_load(&r->full) && atomic_exchange(&r->full, false))
        log_event(LOG_LEVEL_INFO, "disk-has-room", "free=%llu", (unsigned long long)free_len);
    return fits;
}

bool reserve_is_full(struct reserve *r)
{
    return atomic_load(&r->full);
}

int reserve_open(const char *dir, struct reserve **out, struct err *err)
{
    struct reserve *r = calloc(1, sizeof(*r));
    int dir_fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC), ret = 0;
    struct statvfs fs = {0};

    if (dir_fd < 0)
        ret = -errno;
    else if (r == NULL)
        ret = -ENOMEM;
    if (r != NULL)
        r->fd = -1;
    if (ret == 0) {
        r->fd = openat(dir_fd, NAME, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
        if (r->fd < 0 || fstatvfs(r->fd, &fs) < 0)
            ret = -errno;
    }
    if (dir_fd >= 0)
        close(dir_fd);
    if (ret < 0) {
        if (r != NULL && r->fd >= 0)
            close(r->fd);
        free(r);
        return err_set(err, ret, "%s/" NAME ": %s", dir, strerror(-ret));
    }
    r->size = (uint64_t)fs.f_blocks * fs.f_frsize / SIZE_PART;
    if (r->size > SIZE_MAX_LEN)
        r->size = SIZE_MAX_LEN;
    pthread_mutex_init(&r->lock, NULL);
    (void)!ftruncate(r->fd, 0); /* of a disk of another size, perhaps */
    reserve_tend(r);
    *out = r;
    return 0;
}

void reserve_close(struct reserve *r)
{
    if (r == NULL)
        return;
    close(r->fd);
    pthread_mutex_destroy(&r->lock);
    free(r);
}

/* spill.c - bytes of an open file in a temporary file without a name. */
#include "fs/spill.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

#include "common/limits.h"
#include "common/list.h"
#include "common/log.h"
#include "common/spool.h"

struct loan {
    struct loans *of; /* referenced */
    size_t len;
    struct list link;
};

struct loans {
    pthread_mutex_t lock; /* all below; a leaf */
    pthread_cond_t back;
    unsigned refs;
    struct list out; /* struct loan */
};

struct spill {
    int fd;
    uint64_t size;
    struct loans *loans;
};

/* --- what is lent ----------------------------------------------------------------------------- */

static struct loans *loans_new(void)
{
    struct loans *l = malloc(sizeof(*l));
    pthread_condattr_t attr;

    if (l == NULL)
        return NULL;
    pthread_mutex_init(&l->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&l->back, &attr);
    pthread_condattr_destroy(&attr);
    l->refs = 1;
    list_init(&l->out);
    return l;
}

static void loans_ref(struct loans *l)
{
    pthread_mutex_lock(&l->lock);
    l->refs++;
    pthread_mutex_unlock(&l->lock);
}

void loans_unref(struct loans *l)
{
    bool last;

    if (l == NULL)
        return;
    pthread_mutex_lock(&l->lock);
    last = --l->refs == 0;
    pthread_mutex_unlock(&l->lock);
    if (!last)
        return;
    pthread_cond_destroy(&l->back);
    pthread_mutex_destroy(&l->lock);
    free(l);
}

void loans_wait(struct loans *l, unsigned limit_ms)
{
    struct timespec until;

    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += limit_ms / 1000;
    until.tv_nsec += (long)(limit_ms % 1000) * 1000000;
    if (until.tv_nsec >= 1000000000) {
        until.tv_nsec -= 1000000000;
        until.tv_sec++;
    }
    pthread_mutex_lock(&l->lock);
    if (!list_empty(&l->out))
        pthread_cond_timedwait(&l->back, &l->lock, &until);
    pthread_mutex_unlock(&l->lock);
}

/* A mapping that was lent is back. */
static void take_back(void *arg, void *data, size_t len)
{
    struct loan *loan = arg;
    struct loans *l = loan->of;

    munmap(data, len);
    pthread_mutex_lock(&l->lock);
    list_remove(&loan->link);
    pthread_cond_broadcast(&l->back);
    pthread_mutex_unlock(&l->lock);
    free(loan);
    loans_unref(l);
}

/* --- the file --------------------------------------------------------------------------------- */

/* What the writer of a file can make sense of: nothing is wrong with his path. */
static int told(int err)
{
    switch (err) {
    case -ENOSPC:
    case -EDQUOT:
    case -EMFILE:
    case -ENFILE:
    case -ENOMEM:
        return err;
    default:
        log_event(LOG_LEVEL_ERROR, "no_temporary_file", "error=%s", strerrorname_np(-err));
        return -EIO;
    }
}

int spill_new(struct spill **out)
{
    struct spill *s = malloc(sizeof(*s));
    int fd;

    if (s == NULL)
        return -ENOMEM;
    s->loans = loans_new();
    fd = s->loans == NULL ? -ENOMEM : spool_open();
    if (fd < 0) {
        loans_unref(s->loans);
        free(s);
        return told(fd);
    }
    s->fd = fd;
    s->size = 0;
    *out = s;
    return 0;
}

void spill_free(struct spill *s)
{
    if (s == NULL)
        return;
    loans_unref(s->loans);
    close(s->fd);
    free(s);
}

uint64_t spill_size(const struct spill *s)
{
    return s->size;
}

/* --- its bytes -------------------------------------------------------------------------------- */

int spill_read(const struct spill *s, uint64_t off, size_t len, uint8_t *to)
{
    assert(off <= s->size && len <= s->size - off);
    while (len > 0) {
        ssize_t n = pread(s->fd, to, len, (off_t)off);

        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n < 0 ? -errno : -EIO;
        to += n;
        off += (size_t)n;
        len -= (size_t)n;
    }
    return 0;
}

int spill_write(struct spill *s, uint64_t off, struct span data)
{
    uint64_t at = off;
    int err = 0;

    assert(off >= spill_lent(s));
    while (err == 0 && data.len > 0) {
        ssize_t n = pwrite(s->fd, data.data, data.len, (off_t)at);

        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) {
            err = n < 0 ? -errno : -EIO;
            break;
        }
        data = span_of(data.data + n, data.len - (size_t)n);
        at += (size_t)n;
    }
    if (err == 0 && at > s->size)
        s->size = at;
    else if (at > s->size)
        (void)ftruncate(s->fd, (off_t)s->size); /* or half a write would show once it grows */
    return err;
}

int spill_truncate(struct spill *s, uint64_t size)
{
    assert(size >= spill_lent(s));
    while (ftruncate(s->fd, (off_t)size) < 0) {
        if (errno != EINTR)
            return -errno;
    }
    s->size = size;
    return 0;
}

static int write_zeros(struct spill *s, uint64_t off, uint64_t len)
{
    static const uint8_t zeros[64 << 10];
    int err = 0;

    while (err == 0 && len > 0) {
        size_t n = len < sizeof(zeros) ? (size_t)len : sizeof(zeros);

        err = spill_write(s, off, span_of(zeros, n));
        off += n;
        len -= n;
    }
    return err;
}

int spill_punch(struct spill *s, uint64_t off, uint64_t len)
{
    assert(off >= spill_lent(s) && off <= s->size && len <= s->size - off);
    if (len == 0)
        return 0;
    while (fallocate(s->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)off, (off_t)len) <
           0) {
        if (errno == EOPNOTSUPP)
            return write_zeros(s, off, len);
        if (errno != EINTR)
            return -errno;
    }
    return 0;
}

int spill_seek(const struct spill *s, uint64_t off, bool hole, uint64_t *out)
{
    off_t at = lseek(s->fd, (off_t)off, hole ? SEEK_HOLE : SEEK_DATA);

    if (at < 0)
        return -errno;
    *out = (uint64_t)at < s->size ? (uint64_t)at : s->size;
    return 0;
}

static int copy_range(const struct spill *s, struct spill *to, uint64_t off, uint64_t end,
                      uint8_t *room)
{
    int err = 0;

    while (err == 0 && off < end) {
        size_t n = end - off < CHUNK_SIZE ? (size_t)(end - off) : CHUNK_SIZE;

        err = spill_read(s, off, n, room);
        if (err == 0)
            err = spill_write(to, off, span_of(room, n));
        off += n;
    }
    return err;
}

int spill_copy(const struct spill *s, struct spill **out)
{
    uint8_t *room = malloc(CHUNK_SIZE);
    struct spill *copy = NULL;
    uint64_t at = 0, end;
    int err = room == NULL ? -ENOMEM : spill_new(&copy);

    while (err == 0 && at < s->size) {
        err = spill_seek(s, at, false, &at);
        if (err == 0)
            err = spill_seek(s, at, true, &end);
        if (err == 0)
            err = copy_range(s, copy, at, end, room);
        at = end;
    }
    if (err == -ENXIO)
        err = 0; /* the rest is a hole */
    if (err == 0)
        err = spill_truncate(copy, s->size);
    free(room);
    if (err < 0)
        spill_free(copy);
    else
        *out = copy;
    return err;
}

/* --- lending ---------------------------------------------------------------------------------- */

struct loans *spill_loans(const struct spill *s)
{
    loans_ref(s->loans);
    return s->loans;
}

uint64_t spill_lent(const struct spill *s)
{
    uint64_t end = 0;

    pthread_mutex_lock(&s->loans->lock);
    for (struct list *i = s->loans->out.next; i != &s->loans->out; i = i->next) {
        const struct loan *loan = container_of(i, struct loan, link);

        if (loan->len > end)
            end = loan->len;
    }
    pthread_mutex_unlock(&s->loans->lock);
    return end;
}

/* In a file system that is memory, reading a hole through a mapping takes a page; where there is
 * none left, the reader dies. So they are taken before. */
static int reserve_holes(const struct spill *s)
{
    struct statfs fs;

    if (fstatfs(s->fd, &fs) < 0 || fs.f_type != TMPFS_MAGIC)
        return 0;
    return -posix_fallocate(s->fd, 0, (off_t)s->size);
}

int spill_lend(struct spill *s, struct value *out)
{
    struct loan *loan;
    struct blob *b;
    void *at;
    int err;

    if (s->size == 0) {
        *out = (struct value){0};
        return 0;
    }
    err = reserve_holes(s);
    if (err < 0)
        return err;
    at = mmap(NULL, (size_t)s->size, PROT_READ, MAP_SHARED, s->fd, 0);
    if (at == MAP_FAILED)
        return -errno;
    loan = malloc(sizeof(*loan));
    b = loan != NULL ? blob_borrow(at, (size_t)s->size, take_back, loan) : NULL;
    if (b == NULL) {
        munmap(at, (size_t)s->size);
        free(loan);
        return -ENOMEM;
    }
    b->mapped = true;
    loans_ref(s->loans);
    b->mapped = true;
    *loan = (struct loan){.of = s->loans, .len = b->len};
    pthread_mutex_lock(&s->loans->lock);
    list_insert(&s->loans->out, &loan->link);
    pthread_mutex_unlock(&s->loans->lock);
    *out = (struct value){.blob = b, .data = b->data, .len = b->len};
    return 0;
}

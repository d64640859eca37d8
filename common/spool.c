/* spool.c - blobs too large for memory, each in a temporary file without a name. */
#include "common/spool.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "common/limits.h"

/* What a spool leaves free for others, at most; small disks: a part of what they have. */
#define LEAVE_MAX (128u << 20)
#define LEAVE_PART 8u
#define PASS_ALIGN ((size_t)64 << 10) /* a multiple of any page */

static const char *spool_dir;
static struct workers *spool_workers;

void spool_set_dir(const char *dir)
{
    spool_dir = dir;
}

void spool_set_workers(struct workers *w)
{
    spool_workers = w;
}

static const char *dir_now(void)
{
    const char *dir = spool_dir != NULL ? spool_dir : getenv("TMPDIR");

    return dir != NULL && dir[0] != '\0' ? dir : "/var/tmp";
}

/* --- the file --------------------------------------------------------------------------------- */

int spool_open(void)
{
    char name[4096];
    int fd = open(dir_now(), O_TMPFILE | O_RDWR | O_EXCL | O_CLOEXEC, 0600);

    if (fd >= 0)
        return fd;
    if (errno != EOPNOTSUPP && errno != EISDIR && errno != ENOENT && errno != EINVAL)
        return -errno;
    if (snprintf(name, sizeof(name), "%s/kvfs-XXXXXX", dir_now()) >= (int)sizeof(name))
        return -ENAMETOOLONG;
    fd = mkostemp(name, O_CLOEXEC);
    if (fd < 0)
        return -errno;
    (void)unlink(name);
    return fd;
}

/* Makes the file cap bytes long, all of them its own. */
static int allocate(int fd, size_t cap)
{
    struct statvfs fs;
    int err;

    if (fstatvfs(fd, &fs) == 0) {
        uint64_t room = (uint64_t)fs.f_bavail * fs.f_frsize;
        uint64_t leave = (uint64_t)fs.f_blocks * fs.f_frsize / LEAVE_PART;

        if (leave > LEAVE_MAX)
            leave = LEAVE_MAX;
        if (room < leave || room - leave < cap)
            return -ENOSPC;
    }
    do
        err = posix_fallocate(fd, 0, (off_t)cap);
    while (err == EINTR);
    return -err;
}

/* What a large blob borrows from. */
struct spool {
    int fd;
    size_t room; /* bytes of file and mapping */
    void *data;  /* while it is being given back */
    struct loop_job job;
};

static void on_give_back(struct loop_job *job)
{
    struct spool *s = container_of(job, struct spool, job);

    (void)munmap(s->data, s->room);
    close(s->fd);
    free(s);
}

static void give_back(void *arg, void *data, size_t len)
{
    struct spool *s = arg;

    (void)len;
    s->data = data;
    s->job.fn = on_give_back;
    if (spool_workers != NULL)
        workers_post(spool_workers, &s->job);
    else
        on_give_back(&s->job);
}

/* NULL: it is in memory. */
static struct spool *spool_of(const struct blob *b)
{
    return b->release == give_back ? b->arg : NULL;
}

static int new_spooled(size_t cap, struct blob **out)
{
    struct spool *s = calloc(1, sizeof(*s));
    struct blob *b = NULL;
    void *at = MAP_FAILED;
    int err;

    if (s == NULL)
        return -ENOMEM;
    s->room = cap;
    s->fd = spool_open();
    err = s->fd < 0 ? s->fd : allocate(s->fd, cap);
    if (err == 0) {
        at = mmap(NULL, cap, PROT_READ | PROT_WRITE, MAP_SHARED, s->fd, 0);
        err = at == MAP_FAILED ? -errno : 0;
    }
    if (err == 0) {
        b = blob_borrow(at, cap, give_back, s);
        err = b == NULL ? -ENOMEM : 0;
    }
    if (err == 0) {
        b->mapped = true;
        *out = b;
        return 0;
    }
    if (at != MAP_FAILED)
        (void)munmap(at, cap);
    if (s->fd >= 0)
        close(s->fd);
    free(s);
    return err;
}

static int grow(struct blob *b, struct spool *s, size_t cap)
{
    int err = cap > s->room ? allocate(s->fd, cap) : 0;
    void *at;

    if (err < 0)
        return err;
    if (cap > s->room) {
        at = mremap(b->data, s->room, cap, MREMAP_MAYMOVE);
        if (at == MAP_FAILED)
            return -errno;
        b->data = at;
        s->room = cap;
    }
    b->len = cap;
    return 0;
}

/* --- the blob --------------------------------------------------------------------------------- */

int spool_reserve(struct blob **b, size_t used, size_t cap)
{
    struct blob *old = *b, *fresh = NULL;
    int err = 0;

    assert(old == NULL ? used == 0 : used <= old->len && used <= cap);
    if (old != NULL && spool_of(old) != NULL)
        return grow(old, spool_of(old), cap);
    if (cap > MEMORY_BLOB_MAX)
        err = new_spooled(cap, &fresh);
    else
        fresh = blob_new(cap);
    if (err == 0 && fresh == NULL)
        err = -ENOMEM;
    if (err == 0 && used > 0)
        err = spool_write(fresh, 0, span_of(old->data, used));
    if (err < 0) {
        blob_unref(fresh);
        return err;
    }
    blob_unref(old);
    *b = fresh;
    return 0;
}

int spool_write(struct blob *b, size_t off, struct span part)
{
    const struct spool *s = spool_of(b);

    assert(off <= b->len && part.len <= b->len - off);
    if (s == NULL && part.len > 0)
        memcpy(b->data + off, part.data, part.len);
    while (s != NULL && part.len > 0) {
        /* Cheaper than through the mapping, page by page; and what fails is an error. */
        ssize_t n = pwrite(s->fd, part.data, part.len, (off_t)off);

        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n < 0 ? -errno : -EIO;
        part = span_of(part.data + n, part.len - (size_t)n);
        off += (size_t)n;
    }
    return 0;
}

void spool_pass(struct value v, size_t from, size_t to)
{
    size_t start, end;

    if (v.blob == NULL || !v.blob->mapped)
        return;
    assert(from <= to && to <= v.len);
    start = (size_t)(v.data - v.blob->data) + from;
    end = (size_t)(v.data - v.blob->data) + to;
    /* What lies in a page with bytes of the neighbour goes with whichever passes last. */
    start -= start % PASS_ALIGN;
    end -= end % PASS_ALIGN;
    if (end > start)
        (void)madvise(v.blob->data + start, end - start, MADV_DONTNEED);
}

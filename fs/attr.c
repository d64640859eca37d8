/* attr.c - what a file shows of itself: records and listing entries to struct stat, and changes of
 * them. */
#include "fs/attr.h"

#include <sys/random.h>
#include <time.h>

#include "common/hash.h"

#define NS_PER_S 1000000000ll
#define BLOCK_SIZE 4096u
#define DEVICE_MASK UINT64_C(0xffffffff) /* of rdev: the kernel's device numbers have 32 bits */

static bool is_device(uint32_t mode)
{
    return S_ISCHR(mode) || S_ISBLK(mode);
}

/* Attributes that nobody set are the mount's defaults; those that somebody set keep their type
 * where it fits. */
static struct meta settle(const struct attr_defaults *d, struct meta m, bool dir)
{
    uint32_t type = m.mode & S_IFMT;

    if (m.mode == 0) {
        m.mode = (dir ? 0777u : 0666u) & ~d->umask;
        m.uid = d->uid;
        m.gid = d->gid;
        if (m.ctime_ns == 0)
            m.ctime_ns = m.mtime_ns;
        if (m.atime_ns == 0)
            m.atime_ns = m.mtime_ns;
    }
    if (dir)
        type = S_IFDIR;
    else if (type == 0 || type == S_IFDIR)
        type = S_IFREG;
    m.mode = type | (m.mode & 07777u);
    m.ino = m.rdev;
    if (is_device(m.mode)) {
        m.ino &= ~DEVICE_MASK;
        m.rdev &= DEVICE_MASK;
    } else {
        m.rdev = 0;
    }
    return m;
}

struct meta meta_of_record(const struct attr_defaults *d, const struct record *r, bool dir)
{
    struct meta m = {.mode = r->mode,
                     .uid = r->uid,
                     .gid = r->gid,
                     .rdev = r->rdev,
                     .size = r->size,
                     .mtime_ns = r->mtime_ns,
                     .ctime_ns = r->ctime_ns,
                     .atime_ns = r->atime_ns};

    return settle(d, m, dir);
}

struct meta meta_of_entry(const struct attr_defaults *d, const struct entry *e, bool dir)
{
    struct meta m = {.mode = e->mode,
                     .uid = e->uid,
                     .gid = e->gid,
                     .rdev = e->rdev,
                     .size = e->size,
                     .mtime_ns = e->mtime_ns,
                     .ctime_ns = e->ctime_ns,
                     .atime_ns = e->atime_ns};

    return settle(d, m, dir);
}

struct meta meta_of_implicit_dir(const struct attr_defaults *d, int64_t when_ns)
{
    struct meta m = {.mtime_ns = when_ns};

    return settle(d, m, true);
}

/* Never what attr_st_ino() means by 0 and 1, nor equal for two files but by a chance of 2^-64. */
static uint64_t new_ino(uint32_t mode)
{
    uint64_t ino = 0;

    while ((is_device(mode) ? ino & ~DEVICE_MASK : ino) < 2) {
        if (getrandom(&ino, sizeof(ino), 0) != (ssize_t)sizeof(ino))
            return 0; /* then it is its path's */
    }
    return is_device(mode) ? ino & ~DEVICE_MASK : ino;
}

struct meta meta_new(uint32_t mode, uint64_t rdev, uint32_t uid, uint32_t gid, int64_t now_ns)
{
    return (struct meta){.mode = mode,
                         .rdev = is_device(mode) ? rdev & DEVICE_MASK : 0,
                         .ino = new_ino(mode),
                         .uid = uid,
                         .gid = gid,
                         .mtime_ns = now_ns,
                         .ctime_ns = now_ns,
                         .atime_ns = now_ns};
}

void meta_to_record(const struct meta *m, struct record *r)
{
    r->mode = m->mode;
    r->uid = m->uid;
    r->gid = m->gid;
    r->rdev = m->ino | m->rdev;
    r->mtime_ns = m->mtime_ns;
    r->ctime_ns = m->ctime_ns;
    r->atime_ns = m->atime_ns;
}

/* Rounds down, so that times before 1970 keep nanoseconds in 0..999999999. */
static struct timespec ts_of_ns(int64_t ns)
{
    struct timespec ts = {ns / NS_PER_S, ns % NS_PER_S};

    if (ts.tv_nsec < 0) {
        ts.tv_nsec += NS_PER_S;
        ts.tv_sec--;
    }
    return ts;
}

void meta_to_stat(const struct meta *m, uint64_t path_ino, unsigned nlink, struct stat *out)
{
    *out = (struct stat){
        .st_ino = m->ino != 0 ? m->ino : path_ino,
        .st_mode = m->mode,
        .st_nlink = nlink,
        .st_uid = m->uid,
        .st_gid = m->gid,
        .st_rdev = m->rdev,
        .st_size = S_ISDIR(m->mode) ? (off_t)BLOCK_SIZE : (off_t)m->size,
        .st_blksize = BLOCK_SIZE,
        .st_mtim = ts_of_ns(m->mtime_ns),
        .st_ctim = ts_of_ns(m->ctime_ns),
        .st_atim = ts_of_ns(m->atime_ns),
    };
    out->st_blocks = (out->st_size + 511) / 512;
}

uint32_t attr_drop_privileges(uint32_t mode)
{
    if (S_ISDIR(mode))
        return mode;
    if (mode & S_IXGRP)
        mode &= ~(uint32_t)S_ISGID;
    return mode & ~(uint32_t)S_ISUID;
}

void attr_change_add(struct attr_change *ch, const struct attr_change *next)
{
    if (next->set & CHANGE_MODE)
        ch->mode = next->mode;
    else if (next->set & (CHANGE_UID | CHANGE_GID))
        ch->mode = attr_drop_privileges(ch->mode);
    if (next->set & CHANGE_UID)
        ch->uid = next->uid;
    if (next->set & CHANGE_GID)
        ch->gid = next->gid;
    if (next->set & CHANGE_MTIME)
        ch->mtime_ns = next->mtime_ns;
    if (next->set & CHANGE_ATIME)
        ch->atime_ns = next->atime_ns;
    ch->set |= next->set;
}

void meta_apply(struct meta *m, const struct attr_change *ch, int64_t now_ns)
{
    if (ch->set & CHANGE_MODE)
        m->mode = (m->mode & S_IFMT) | (ch->mode & 07777u);
    else if (ch->set & (CHANGE_UID | CHANGE_GID))
        m->mode = attr_drop_privileges(m->mode);
    if (ch->set & CHANGE_UID)
        m->uid = ch->uid;
    if (ch->set & CHANGE_GID)
        m->gid = ch->gid;
    if (ch->set & CHANGE_MTIME)
        m->mtime_ns = ch->mtime_ns;
    if (ch->set & CHANGE_ATIME)
        m->atime_ns = ch->atime_ns;
    m->ctime_ns = now_ns;
}

/*
 * Where mtime and ctime are equal, both say when something in it changed last. Where they are not,
 * an mtime was asked for, or the mode changed after something in it did. That came after now_ns if
 * it was not there before and ctime says so.
 */
bool meta_touch(struct meta *m, int64_t seen_ns, int64_t now_ns)
{
    bool plain = m->mtime_ns == m->ctime_ns;

    if (m->mtime_ns == now_ns || m->mtime_ns == INT64_MAX ||
        (!plain && m->mtime_ns != seen_ns && m->ctime_ns >= now_ns))
        return false;
    m->mtime_ns = plain && now_ns <= m->mtime_ns ? m->mtime_ns + 1 : now_ns;
    if (m->ctime_ns < m->mtime_ns)
        m->ctime_ns = m->mtime_ns;
    return true;
}

uint64_t attr_st_ino(struct span key)
{
    uint64_t ino;

    if (key.len == 0)
        return 1;
    ino = hash_fmix64(hash_fnv1a(key));
    return ino < 2 ? ino + 2 : ino;
}

int64_t attr_now_ns(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_REALTIME, &ts);
    return (int64_t)ts.tv_sec * NS_PER_S + ts.tv_nsec;
}

int64_t attr_ns_of(struct timespec ts)
{
    int64_t ns;

    if (__builtin_mul_overflow((int64_t)ts.tv_sec, NS_PER_S, &ns) ||
        __builtin_add_overflow(ns, (int64_t)ts.tv_nsec, &ns))
        return ts.tv_sec < 0 ? INT64_MIN : INT64_MAX;
    return ns;
}

/*
 * content.h - bytes of one open file, growing, and lent to whoever stores them: in memory, or, when
 * they are too many for that, in a temporary file (spill.h). Not locked: the file's lock covers it.
 * Calls block on the disk at most.
 */
#ifndef KVFS_FS_CONTENT_H
#define KVFS_FS_CONTENT_H

#include <stdatomic.h>

#include "common/buf.h"
#include "fs/spill.h"

/* How much memory contents may take. {0}: none is set, nothing spills. */
struct content_pool {
    size_t each_max;  /* bytes in memory of one; 0: any number */
    size_t total_max; /* of all together, but for small ones */
    atomic_size_t used;
};

/* {0}, or only with its pool, is empty. */
struct content {
    struct content_pool *pool; /* borrowed; may be NULL */
    uint64_t size;
    struct value v;      /* the bytes, in memory; its blob may have room behind them */
    struct spill *spill; /* or where they are else, behind `front` bytes that were dropped */
    uint64_t front;
    size_t charged; /* to the pool */
};

static inline uint64_t content_size(const struct content *c)
{
    return c->size;
}

/* Takes over v's reference, drops what was there. */
void content_set(struct content *c, struct value v);
/* Empties it. It may be used again. */
void content_fini(struct content *c);
/* to gets all that from has, which is empty then. */
void content_move(struct content *to, struct content *from);

/*
 * Changing it. What lies between the old end and off becomes zeros. The caller has checked off +
 * len against its limit. 0; -ENOMEM, or what the disk of the temporary files said (-ENOSPC, ...):
 * nothing has changed then, or part of what was to be written over.
 */
int content_write(struct content *c, uint64_t off, struct span data);
int content_truncate(struct content *c, uint64_t size);
/* Makes zeros of what lies within its size. */
int content_punch(struct content *c, uint64_t off, uint64_t len);
/* Puts what tail has behind it. */
int content_append(struct content *c, const struct content *tail);
/* Drops the first n bytes; cannot fail. */
void content_drop_front(struct content *c, uint64_t n);

/* *out: a part of it that no later change reaches, owned by the caller; in memory of its own, or
 * shared with it. */
int content_read(const struct content *c, uint64_t off, size_t len, struct value *out);
/*
 * *out: all of it, as it is now, for who stores it. Later changes leave that as it is. Where they
 * would touch bytes of a temporary file that are lent, all of it is copied first: who can wait
 * till they are back looks at content_lent() before.
 */
int content_lend(struct content *c, struct value *out);
/* Up to where changes would have to copy a temporary file; 0: nowhere. */
uint64_t content_lent(const struct content *c);
/* What to wait for (a reference) when content_lent() is not 0. */
struct loans *content_loans(const struct content *c);
/* As lseek(2) with SEEK_DATA, or SEEK_HOLE: 0, -ENXIO. The end counts as a hole. */
int content_seek(const struct content *c, uint64_t off, bool hole, uint64_t *out);

#endif

/*
 * content.h - the bytes of one open file: in memory, growing, and shared with whoever stores or
 * reads them: a write copies first while somebody else still holds a reference. {0} is empty. Not
 * locked: the file's lock covers it.
 */
#ifndef KVFS_FS_CONTENT_H
#define KVFS_FS_CONTENT_H

#include "common/buf.h"

struct content {
    struct value v; /* the bytes; its blob may have room behind them */
};

/* Takes over v's reference, drops what was there. */
void content_set(struct content *c, struct value v);
void content_fini(struct content *c);
/* Puts bytes at off; what lies between the old end and off becomes zeros. The caller has checked
 * off + len against its limit. 0 or -ENOMEM. */
int content_write(struct content *c, size_t off, struct span data);
/* Cuts, or extends with zeros. 0 or -ENOMEM. */
int content_truncate(struct content *c, size_t size);
static inline size_t content_size(const struct content *c)
{
    return c->v.len;
}

#endif

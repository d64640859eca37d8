/*
 * changes.h - the last changes that this node stored, in order, in bounded memory: what GET /watch
 * tells.
 *
 * Each has a number, one above that of the one before; they begin at 1 in each life (the life of
 * this value, so of the process). Any thread.
 */
#ifndef KVFS_NODE_CHANGES_H
#define KVFS_NODE_CHANGES_H

#include <stdbool.h>

#include "common/ballot.h"
#include "common/buf.h"

struct changes;

struct change {
    uint64_t number;
    struct ballot version;
    bool deleted;
    struct span key;
};

#define CHANGES_MAX 65536u           /* of a node: so many are kept at most, */
#define CHANGES_BYTES_MAX (4u << 20) /* in so much memory: 100 of the longest keys at the least */

/* life: unlike that of any other, ever. Memory is touched as it fills. 0 or -ENOMEM. */
int changes_new(uint64_t life, unsigned n_max, size_t bytes_max, struct changes **out);
void changes_free(struct changes *c); /* NULL is allowed */
uint64_t changes_life(const struct changes *c);

/*
 * Adds one and forgets the oldest where there is no room. Wakes nobody but who is in
 * changes_await(): does not block.
 */
void changes_add(struct changes *c, struct span key, struct ballot version, bool deleted);
/* The number of the last one; 0: there was none yet. */
uint64_t changes_latest(struct changes *c);

/*
 * Appends those behind number `after` to out, as many as fit into max bytes and at least one, for
 * changes_next(). 0 with *upto the last one's number, or `after` where there is none; -ENODATA:
 * what comes behind `after` is forgotten already, or `after` never was; -ENOMEM.
 */
int changes_read(struct changes *c, uint64_t after, size_t max, struct buf *out, uint64_t *upto);
/* Steps through what changes_read() appended. False at the end. key borrows. */
bool changes_next(struct cursor *from, struct change *out);

/*
 * For one thread: blocks until one with a number above `seen` was added, changes_kick(), or for_us
 * have passed (UINT64_MAX: for ever). A kick while nobody waits ends the next wait.
 */
void changes_await(struct changes *c, uint64_t seen, uint64_t for_us);
void changes_kick(struct changes *c);

#endif

/*
 * body.h - a request's body, gathered within bounds: in memory, or in a temporary file where it is
 * large (spool.h); and its checksums, as it comes.
 */
#ifndef KVFS_NODE_BODY_H
#define KVFS_NODE_BODY_H

#include "common/buf.h"
#include "common/sums.h"
#include "node/budget.h"

/* What bodies may take in all; both outlive them. */
struct body_room {
    struct budget memory, disk;
};

struct body {
    struct body_room *room;
    struct blob *blob;
    struct budget *budget; /* one of room's, */
    uint64_t taken;        /* and so much of it, until body_fini() */
    uint64_t max;
    size_t len;
    struct sums *sums;
};

/*
 * total: how long it will be, or UINT64_MAX. 0, -EFBIG (over max), -EAGAIN (there is no room for it
 * beside the others), -ENOMEM, -ENOSPC, ...
 */
int body_begin(struct body *b, struct body_room *room, uint64_t total, uint64_t max);
int body_add(struct body *b, struct span part);
/*
 * What came, with a reference of its own. The memory counts against the budget until body_fini().
 */
struct value body_value(const struct body *b);
/* Its checksums, borrowed from b; nothing may be added any more. 0 or -ENOMEM. */
int body_sums(struct body *b, struct span *out);
void body_fini(struct body *b); /* {0} is allowed */

/* Room for an answer or a value made of others; gives back what *taken of *budget says first. */
bool body_room_take(struct body_room *room, uint64_t len, struct budget **budget, uint64_t *taken);

#endif

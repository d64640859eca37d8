/*
 * body.h - a request's body, gathered within bounds: in memory, or in a temporary file where it is
 * large (spool.h); and its checksums, as it comes.
 */
#ifndef KVFS_NODE_BODY_H
#define KVFS_NODE_BODY_H

#include "common/buf.h"
#include "common/sums.h"
#include "node/budget.h"

/* What bodies may take in all; both outlive them, and all that was made of them. */
struct body_room {
    struct budget memory, disk;
};

/*
 * What is taken of the room is given back when the last reference to the bytes is gone, which may
 * be long after body_fini(): a slow replica is still sent what the others have acknowledged.
 */
struct body {
    struct body_room *room;
    struct blob *blob; /* lends the bytes of lot; NULL: none yet */
    struct lot *lot;
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
/* What came, with a reference of its own; nothing may be added any more. */
struct value body_value(const struct body *b);
/* Its checksums, borrowed from b; nothing may be added any more. 0 or -ENOMEM. */
int body_sums(struct body *b, struct span *out);
void body_fini(struct body *b); /* {0} is allowed */

/*
 * *held, {0} at first, becomes v, which is not empty, with a reference of its own, counted as one
 * more body while anybody has that; in the place of what it was. The same bytes count once. 0,
 * -EAGAIN, -ENOMEM: it is {0}.
 */
int body_room_hold(struct body_room *room, struct value v, struct value *held);

#endif

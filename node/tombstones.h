/*
 * tombstones.h - old tombstones that may be dropped: each is seen at all replicas twice, far apart,
 * and then forgotten by each (docs/protocol.md, Repair).
 */
#ifndef KVFS_NODE_TOMBSTONES_H
#define KVFS_NODE_TOMBSTONES_H

#include "node/repair_impl.h"

struct tombstones;

int tombstones_new(const struct repair_part *part, struct tombstones **out);
void tombstones_free(struct tombstones *t); /* NULL is allowed */
void tombstones_stop(struct tombstones *t); /* cancels; the work ends soon */

/*
 * May be dropped; copies. One that is there already is ignored, and so are those for which there is
 * no room: they are found again.
 */
void tombstones_add(struct tombstones *t, struct span key, struct ballot version);

bool tombstones_has_room(const struct tombstones *t); /* any thread */
uint64_t tombstones_n_dropped(const struct tombstones *t);

#endif

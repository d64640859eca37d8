/*
 * placement.h - the ring that a store's data was placed by, kept with the data. Under another ring
 * a key's replicas are other nodes: these would truthfully say that they have nothing, and what was
 * acknowledged would be gone for all who ask. The fingerprint in each request cannot tell where
 * every node was restarted with the same wrong cluster.json; the data can.
 */
#ifndef KVFS_NODE_PLACEMENT_H
#define KVFS_NODE_PLACEMENT_H

#include "common/config.h"
#include "node/store.h"

/*
 * Compares cfg's ring with that of the store, which takes it, durably, when it has none yet or
 * holds no key. *foreign, which the caller finishes: the JSON (config_ring_json()) of the ring that
 * its data was placed by; empty when that is cfg's. Blocks on the disk. 0, -EBADMSG: the store does
 * not make sense; else what it says.
 */
int placement_check(struct store *s, const struct config *cfg, struct buf *foreign,
                    struct err *err);

#endif

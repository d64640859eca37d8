/*
 * incarnations.h - which life each node of the ring is in, as far as this node knows: its own id,
 * made with its store, and the newest of every other that it was ever told, durably. An answer that
 * names them lets a client throw away what a node said before it lost its disk.
 */
#ifndef KVFS_NODE_INCARNATIONS_H
#define KVFS_NODE_INCARNATIONS_H

#include "common/config.h"
#include "node/store.h"

struct incarnations;

/*
 * Reads them from the store; a store without one of its own is new and gets one: born_us (wall
 * clock) and 12 random bits from seed. cfg: ids to keep them under; NULL: the indexes of the ring.
 */
int incarnations_open(struct store *store, const struct config *cfg, unsigned n_nodes,
                      unsigned self, uint64_t born_us, uint64_t seed, struct incarnations **out,
                      struct err *err);
void incarnations_close(struct incarnations *in);

/* Of a node, 0 when unknown. Any thread, never blocks. */
uint64_t incarnations_get(const struct incarnations *in, unsigned node);
/*
 * Remembers one that is newer (numerically greater) than the one known; durable when this returns
 * 0.
 */
int incarnations_learn(struct incarnations *in, unsigned node, uint64_t incarnation);

#endif

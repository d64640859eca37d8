/*
 * ring.h - consistent hashing: which nodes hold a key (Karger et al. 1997; virtual nodes as in
 * Dynamo, 2007).
 *
 * An immutable value without I/O, locks or clock: build it, share it between threads, free it.
 * Nodes are known by their index in the list of ids sorted by bytes, which is the same on every
 * machine whatever the order in the file.
 */
#ifndef KVFS_COMMON_RING_H
#define KVFS_COMMON_RING_H

#include <stdbool.h>

#include "common/buf.h"

enum ring_hash {
    RING_FNV1A,     /* FNV-1a 64 of "ID#I" and of the key */
    RING_FNV1A_MIX, /* the same, each through fmix64: spreads evenly */
};

struct ring;

/*
 * ids: n distinct, non-empty strings, sorted by bytes (asserted); copied. replication_factor >= 1
 * may be larger than n: every key then has n replicas. 0 or -ENOMEM; the caller owns *out.
 */
int ring_new(const char *const *ids, unsigned n, unsigned virtual_nodes, enum ring_hash hash,
             unsigned replication_factor, struct ring **out);
void ring_free(struct ring *r);

/* How many replicas each key has: min(replication_factor, nodes). */
unsigned ring_n_replicas(const struct ring *r);
unsigned ring_majority(const struct ring *r); /* ring_n_replicas / 2 + 1 */
unsigned ring_n_nodes(const struct ring *r);
unsigned ring_n_points(const struct ring *r);

/*
 * Node indexes of the key's replicas, in ring order, ring_n_replicas() of them. Borrowed until
 * ring_free(). Any thread, never blocks, no allocation.
 */
const unsigned *ring_replicas(const struct ring *r, struct span key);
bool ring_is_replica(const struct ring *r, struct span key, unsigned node);

/*
 * Do these nodes (answered[i] true) hold a majority of every replica set there is? A listing is
 * complete only then.
 */
bool ring_covered(const struct ring *r, const bool *answered);

/*
 * The distinct sets of nodes that are the replicas of some key; ring_set() gives one's
 * ring_n_replicas() node indexes in ascending order, borrowed until ring_free().
 */
uint32_t ring_n_sets(const struct ring *r);
const unsigned *ring_set(const struct ring *r, uint32_t i);
/* Is there a set with both? A node is in one with itself, where it has any keys at all. */
bool ring_shares(const struct ring *r, unsigned a, unsigned b);

/*
 * Identity of the placement: ids, virtual_nodes, hash, replication_factor. Equal rings place every
 * key alike.
 */
uint64_t ring_fingerprint(const struct ring *r);

/* The part of the hash space whose first owner is this node, 0..1. */
double ring_share(const struct ring *r, unsigned node);

#endif

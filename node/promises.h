/*
 * promises.h - what this node promised for each key, and the durable floor below which it counts as
 * having promised everything.
 *
 * Promises are in memory, in a table of fixed size; two keys that share a slot share a promise,
 * which only costs a retry. They do not survive a restart, and need not: no counter is promised or
 * accepted before a floor at or above it is durable, and after a start every key counts as promised
 * up to the floor. Lock order: a slot, then the floor inside.
 */
#ifndef KVFS_NODE_PROMISES_H
#define KVFS_NODE_PROMISES_H

#include "common/ballot.h"
#include "common/err.h"
#include "node/store.h"

struct promises;

/* Reads the floor. ahead_us: how many counters are reserved beyond the one that is needed. */
int promises_open(struct store *store, uint64_t ahead_us, struct promises **out, struct err *err);
void promises_close(struct promises *p);

/*
 * Takes the lock of the key's slot: check-then-store of one key happens under it. The slot is a
 * number for the calls below.
 */
unsigned promises_lock(struct promises *p, struct span key);
void promises_unlock(struct promises *p, unsigned slot);
/* All slots at once: nobody checks or stores anything meanwhile. Rare. */
void promises_lock_all(struct promises *p);
void promises_unlock_all(struct promises *p);
/* The highest ballot promised for the slot. It must be locked, as for the next one. */
struct ballot promises_get(const struct promises *p, unsigned slot);
/*
 * Makes the floor cover b, durably, then b the slot's promise where it is higher. b.counter <=
 * BALLOT_COUNTER_MAX. Blocks on the disk once every few seconds.
 */
int promises_raise(struct promises *p, unsigned slot, struct ballot b);

/* Every key counts as promised up to this counter, durably. All slots must be locked. */
int promises_raise_all(struct promises *p, uint64_t counter);

/* At or above every counter that this node promised or accepted. */
uint64_t promises_floor(const struct promises *p);

#endif

/*
 * damage.h - which keys of this node are known to be damaged, record or value, and take no part in
 * anything until they are stored anew.
 *
 * In memory, by the 64-bit hash of the key, and bounded: a store with more damage than that is no
 * store any more. Any thread, never blocks. Additions and removals of a key: under its lock (its
 * slot in promises.h).
 */
#ifndef KVFS_NODE_DAMAGE_H
#define KVFS_NODE_DAMAGE_H

#include "common/buf.h"

struct damage;

#define DAMAGE_MAX (64u << 10) /* keys */

int damage_new(struct damage **out);
void damage_free(struct damage *d);

/* One atomic load where nothing is damaged. */
bool damage_has(struct damage *d, struct span key);
/*
 * 1: it is to be told (it is new, or was last told a while before now_us), 0: it was told just now,
 * -ENOSPC: there are too many, it is not remembered; -ENOMEM.
 */
int damage_add(struct damage *d, struct span key, uint64_t now_us);
/* Whole again. Also for a key that is not there. */
void damage_remove(struct damage *d, struct span key);
uint64_t damage_n(const struct damage *d);

/*
 * Keys, among those that are here, whose damaged record was there already when the digests
 * (digests.h) were counted, which therefore hold nothing of them. recount: they are counted anew.
 */
void damage_uncount(struct damage *d, struct span key);
bool damage_uncounted(struct damage *d, struct span key);
void damage_recount(struct damage *d);

#endif

/*
 * mending.h - a bounded queue of keys whose replicas differ, or of which the own record is damaged,
 * and the pace at which they are mended.
 */
#ifndef KVFS_NODE_MENDING_H
#define KVFS_NODE_MENDING_H

#include "node/repair_impl.h"

struct mending;

struct mending_opts {
    const struct repair_part *part;
    /* After mending_add() said no: there is room again. */
    void (*on_room)(void *arg);
    /* Each replica of the key holds this old tombstone or nothing. */
    void (*on_old_tombstone)(void *arg, struct span key, struct ballot version);
    void *arg;
};

int mending_new(const struct mending_opts *opts, struct mending **out);
void mending_free(struct mending *m); /* NULL is allowed */
void mending_stop(struct mending *m); /* cancels; the work ends soon */
/* This node votes: what came before waits for this. */
void mending_begin(struct mending *m);

/*
 * The replicas of this key differ. size: of its value, as far as is known. False: there is no room.
 * A key that is in the queue counts as added. What fails is not tried again: a later comparison
 * finds it.
 */
bool mending_add(struct mending *m, struct span key, uint64_t size);
/* This node's record of the key is damaged. Tried again until it is healed. */
void mending_heal(struct mending *m, struct span key);

struct mending_counts {
    uint64_t n_behind; /* waiting or under way */
    uint64_t n_mended, n_healed, n_failed;
};
struct mending_counts mending_get(const struct mending *m);

#endif

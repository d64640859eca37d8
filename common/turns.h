/*
 * turns.h - writes of one key through one client take turns: competing they would only refuse one
 * another, and one that loses too often can no longer tell whether it was stored.
 */
#ifndef KVFS_COMMON_TURNS_H
#define KVFS_COMMON_TURNS_H

#include <stdbool.h>

#include "common/buf.h"
#include "common/list.h"

#define TURN_BUCKETS 256u

struct turns {
    struct list buckets[TURN_BUCKETS]; /* by hash of the key, each in order of joining */
};

struct turn {
    struct list link;
    struct span key; /* borrowed until turn_over() */
    bool waiting;    /* its owner clears this when it begins */
};

void turns_init(struct turns *ts);
/* Joins. waiting: there is another of that key, and t is willing to wait for it. */
void turns_join(struct turns *ts, struct turn *t, struct span key, bool willing);
/* Leaves. Whose turn it is now, if that one waits; else NULL. Harmless the second time. */
struct turn *turns_leave(struct turns *ts, struct turn *t);

#endif

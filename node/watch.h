/*
 * watch.h - is the store well? One thread writes and syncs a probe every few seconds, and lets the
 * store do what it does of its own accord.
 */
#ifndef KVFS_NODE_WATCH_H
#define KVFS_NODE_WATCH_H

#include "common/clock.h"
#include "node/store.h"

struct watch;

/*
 * Probes once before it returns. on_unfit(arg): once, from the watch's thread (or from here), when
 * the store is first found damaged or stuck (store.h); must not wait for the watch.
 */
int watch_new(struct store *store, struct clock *clock, void (*on_unfit)(void *arg), void *arg,
              struct watch **out);
void watch_free(struct watch *w); /* joins; waits for a probe that is under way */
/*
 * 0; -EBADMSG: the store is damaged; what the last probe failed with; or -ETIMEDOUT: a probe has
 * been stuck in the disk for long. Does not block on the disk.
 */
int watch_state(struct watch *w);
/* The same, with the reason for people where it is not 0. */
int watch_explain(struct watch *w, struct err *why);
/* Monotonic: since when it is well, or not. */
uint64_t watch_since_us(struct watch *w);

#define WATCH_PERIOD_US 3000000u
#define WATCH_STUCK_US 10000000u

#endif

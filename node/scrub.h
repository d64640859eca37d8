/*
 * scrub.h - the thread that walks over this node's store: once to count the digests, and then again
 * and again, slowly, to read and verify what nobody reads, and to find old tombstones.
 */
#ifndef KVFS_NODE_SCRUB_H
#define KVFS_NODE_SCRUB_H

#include "node/replica.h"

struct scrub;

/* All callbacks come on the thread, must not block for long, and get arg. */
struct scrub_opts {
    struct replica *replica; /* borrowed */
    struct clock *clock;     /* borrowed */
    uint64_t period_us;      /* of one pass */
    void (*on_indexed)(void *arg);
    uint64_t (*old_counter)(void *arg); /* as replica_scrub() wants it, now */
    scrub_tombstone_fn *on_tombstone;
    /* Can more tombstones be taken? Else the pass waits. */
    bool (*has_room)(void *arg);
    void *arg;
};

struct scrub_progress {
    uint64_t n_passes;        /* that ended */
    uint64_t last_us;         /* wall clock: when the last one did; 0: none yet */
    uint64_t n_keys, n_bytes; /* verified since the start */
    uint64_t n_damaged;       /* found since the start */
};

/* Starts the thread. 0 or -errno. */
int scrub_new(const struct scrub_opts *opts, struct scrub **out);
void scrub_stop(struct scrub *s); /* ends and joins the thread */
void scrub_free(struct scrub *s); /* stopped; NULL is allowed */

/* The digests are no longer exact: they are counted anew, soon. Any thread. */
void scrub_reindex(struct scrub *s);
void scrub_get_progress(struct scrub *s, struct scrub_progress *out); /* any thread */

#endif

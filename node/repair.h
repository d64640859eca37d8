/*
 * repair.h - what a node does of its own accord so that all replicas come to hold the same:
 * recovers from a lost disk, compares with its peers and copies what is behind, heals what is
 * damaged, drops old tombstones (docs/protocol.md, Repair).
 *
 * Asynchronous, on one event loop, over a client; all it does to stores, its own included, are
 * messages, so that the simulation runs it as it is. Calls on the loop's thread, but
 * where another is allowed.
 */
#ifndef KVFS_NODE_REPAIR_H
#define KVFS_NODE_REPAIR_H

#include "common/client.h"
#include "node/replica.h"

struct repair;

struct repair_opts {
    const struct ring *ring; /* borrowed, as are the others */
    unsigned self;
    struct client *client;
    struct transport *transport; /* the client's */
    struct clock *clock;
    struct replica *replica; /* its in-memory state; beginning and end of a recovery */
    const char *(*node_name)(void *arg, unsigned node);
    void *node_name_arg;
    /*
     * The digests are no longer exact (a damaged record was healed): replica_index() is to run
     * again. On the loop, must not block. NULL: nobody does it.
     */
    void (*reindex)(void *arg);
    void *reindex_arg;
    uint64_t tombstone_age_us; /* 0: a day */
    /* More than a minority lost their disks: goes on without the records that only they had. */
    bool accept_data_loss;
};

int repair_new(const struct repair_opts *opts, struct repair **out);
/*
 * Starts nothing more and cancels what is under way: repair_idle() soon, told by on_idle(arg),
 * unless it is idle already.
 */
void repair_stop(struct repair *rp, void (*on_idle)(void *arg), void *arg);
bool repair_idle(const struct repair *rp);
void repair_free(struct repair *rp); /* idle and stopped, or its loop never ran */

/* Every result of the prober: who is there, who is back, and how a recovery goes on. */
void repair_on_hello(struct repair *rp, unsigned node, const struct hello_result *res);
/* replica_index() is done for the first time: comparing with the peers begins. */
void repair_indexed(struct repair *rp);
/* This node's record of the key is damaged: it is to be healed. Copies the key. */
void repair_damaged(struct repair *rp, struct span key);
/* An old tombstone, of whose key this node is the first replica: it may be dropped. Copies. */
void repair_tombstone(struct repair *rp, struct span key, struct ballot version);
/* Would more of them be taken now? Any thread. */
bool repair_has_room(const struct repair *rp);
/* Counters below count as old (see mend_args), for replica_scrub(). Any thread. */
uint64_t repair_old_counter(const struct repair *rp);

/* For /status. Any thread. */
struct repair_progress {
    bool recovering;          /* or superseded: it does not vote */
    uint64_t n_found, n_done; /* keys of a recovery under way; later: of the last one */
    char waits_for[200];      /* recovering: whom for, and why (superseded: what to do); or empty */
    uint64_t n_compared;      /* comparisons with peers that ended */
    uint64_t n_behind;        /* keys found to differ, waiting or under way now */
    uint64_t n_mended, n_healed, n_dropped; /* since the start */
    uint64_t n_failed;                      /* that did not succeed, and will be tried again */
    uint64_t last_same_us; /* wall clock: when all peers were last found the same; 0: never */
};
void repair_get_progress(struct repair *rp, struct repair_progress *out);

#endif

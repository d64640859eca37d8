/*
 * upkeep.h - repair.h and scrub.h in a running node: where they are started and stopped, and how
 * what other threads find out reaches the engine's loop.
 */
#ifndef KVFS_NODE_UPKEEP_H
#define KVFS_NODE_UPKEEP_H

#include "common/cluster.h"
#include "node/repair.h"
#include "node/scrub.h"

struct upkeep;

struct upkeep_opts {
    const struct config *cfg; /* borrowed */
    unsigned self;
    struct clock *clock; /* borrowed */
    bool accept_data_loss;
    uint64_t tombstone_age_us, scrub_period_us;
};

/*
 * In this order: upkeep_new(); the replica is opened, with upkeep_damaged() and this as its arg;
 * upkeep_guest() is called, and the cluster opened with what it filled in; upkeep_start(). And at
 * the end: upkeep_stop(), before the cluster is stopped; upkeep_free(), after it is closed.
 */
int upkeep_new(const struct upkeep_opts *opts, struct upkeep **out);
void upkeep_damaged(void *arg, struct span key);
void upkeep_guest(struct upkeep *up, struct replica *replica, struct cluster_opts *out);
int upkeep_start(struct upkeep *up, struct cluster *cluster);
void upkeep_stop(struct upkeep *up); /* NULL is allowed, as below */
void upkeep_free(struct upkeep *up);

/* Any thread, while the cluster is open. */
void upkeep_get(struct upkeep *up, struct repair_progress *repair, struct scrub_progress *scrub);

#endif

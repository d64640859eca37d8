/*
 * live.h - the running client of a cluster (common/cluster.h) and three replicas in this process,
 * behind real sockets.
 */
#ifndef KVFS_TESTS_LIB_LIVE_H
#define KVFS_TESTS_LIB_LIVE_H

#include <semaphore.h>
#include <stdatomic.h>

#include "common/cluster.h"
#include "node/replica.h"
#include "tests/lib/tiny_http.h"

#define LIVE_N_NODES 3
#define LIVE_TIMEOUT_MS 10000u

enum mood { MOOD_WELL, MOOD_SILENT };

struct live_node {
    struct config *cfg; /* its own: it may know another ring */
    struct store *store;
    struct replica *replica;
    struct tiny_http srv;
    uint16_t port;
    bool listens;
    _Atomic int mood;
    sem_t asked; /* one for every request that a silent node keeps */
};

struct live {
    struct config *cfg;
    struct live_node nodes[LIVE_N_NODES];
    struct cluster_opts opts; /* of live_open(); arg is this struct */
    struct cluster *c;
    void *guest; /* the test's */
    /* results of probes, and how often it was asked what to say of itself */
    _Atomic unsigned n_hellos[LIVE_N_NODES], n_failed[LIVE_N_NODES], n_said;
};

/* Recovering, as a node with a new store is; it does not listen yet. */
void live_node_open_new(struct live *w, unsigned i, unsigned replication_factor);
void live_node_open(struct live *w, unsigned i, unsigned replication_factor);
void live_node_close(struct live_node *n);
void live_node_listen(struct live_node *n);
void live_node_die(struct live_node *n);
void live_silence(struct live *w); /* all keep requests, and do not answer */

void live_open(struct live *w);
void live_await_ready(struct live *w);

/* cmocka's: nodes that are there but do not listen, and no cluster yet; or all that. */
int live_setup_dead(void **state);
int live_setup(void **state);
int live_teardown(void **state);

#endif

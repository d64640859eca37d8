/*
 * sim.h - a cluster in one process: the real client and the real replica over a network, clocks and
 * disks that a seed decides about.
 *
 * One queue of events, each at a time in microseconds; sim_step() goes to the next one. Nothing
 * else moves time. Every process (node or client) has clocks of its own, hours apart. A message is
 * bytes: it may be lost, delivered twice, or late by more than any timeout.
 *
 *   sim.c        events and time, making and ending a cluster
 *   sim_net.c    client processes and the packets between them and the nodes
 *   sim_node.c   nodes: a replica that comes and goes over a disk that stays; the lies it may tell
 *   chaos.c      faults at random
 *   workload.c   random operations on a few keys, their histories and the judgement about them
 *
 * Memory that runs out ends the test program: nothing here returns -ENOMEM.
 */
#ifndef KVFS_TESTS_LIB_SIM_H
#define KVFS_TESTS_LIB_SIM_H

#include "common/client.h"
#include "node/replica.h"
#include "tests/lib/rng.h"

struct sim;

/* What the network does to packets. The chances are per mille. */
struct sim_net {
    uint64_t delay_us; /* of most packets: 20 us up to this */
    unsigned lose, duplicate, linger;
    uint64_t linger_us; /* packets that linger, and second copies, are late by up to this */
};

/* Rules broken on purpose, so that the tests can be seen to notice. */
struct sim_lies {
    bool forget_floor; /* a node's floor does not survive a restart */
    bool forget_disk;  /* a crash empties the disk, and the node goes on as if nothing had been */
    unsigned skip_put; /* per mille of puts that are acknowledged and not done */
    bool ignore_settling; /* a write that another client brings in is acknowledged and not done */
    bool hide_own_writes; /* promises do not tell a client of the writes of its own in a record */
};

struct sim_opts {
    uint64_t seed;
    unsigned n_nodes, replication_factor;
    struct sim_net net;
    struct sim_lies lies;
    bool slow_nodes;   /* their clocks nearly stand: no deadline of a message ever passes */
    unsigned fail_put; /* per mille of puts that fail, done or not: an honest fault */
};

struct sim_clock {
    struct clock clock;
    struct sim *sim;
    uint64_t mono_base, wall_base;
    unsigned slow; /* mono runs at the speed 1 / 2^slow */
};

struct sim_client;
struct sim_node;
struct sim_armed;

struct sim {
    struct sim_opts opts;
    struct sim_net net; /* as it is now */
    struct rng rng;
    uint64_t now_us;
    uint64_t trace;         /* two runs are the same when this is */
    struct sim_armed *heap; /* the timer of heap[i] has slot i + 1 */
    size_t n_armed, heap_cap;
    struct ring *ring;
    struct sim_node *nodes; /* opts.n_nodes */
    unsigned n_clients;
    struct sim_client **clients;
    struct sim_writer *writers; /* for the lies: who first sent each write */
    unsigned n_writers;
};

/* --- events (sim.c) -------------------------------------------------------------------------- */

/*
 * Arms or moves a timer; due in the time of the sim. One with an owner waits while that is frozen.
 */
void sim_timer_set(struct sim *s, struct timer *t, uint64_t due_us, struct sim_client *owner);
void sim_timer_clear(struct sim *s, struct timer *t);

int sim_new(const struct sim_opts *opts, struct sim **out);
/* All operations of its clients have called done(). */
void sim_free(struct sim *s);
/* Goes to the next event. Asserts that there is one. */
void sim_step(struct sim *s);
void sim_run(struct sim *s, uint64_t for_us);
void sim_clock_init(struct sim_clock *c, struct sim *s);
/* The wall clock is set to another time of the day; mono is not. */
void sim_clock_jump(struct sim_clock *c);
void *sim_alloc(size_t size); /* zeroed, never NULL */

/* --- clients (sim_net.c) --------------------------------------------------------------------- */

/* A client process: it probes nodes that are down as a real one does. */
struct sim_client {
    struct transport transport;
    struct sim *sim;
    unsigned index;
    struct sim_clock clock;
    struct health *health;
    struct client *client;
    uint64_t thaw_us; /* frozen until then; as all times here of the sim */
    bool was_frozen,
        killed; /* killed: nothing of it reaches the network any more, nor the other way */
    uint64_t *cut_to, *cut_from; /* by node: nothing gets through until then */
    struct list flights;         /* calls that have not ended */
    struct list packets;         /* under way, of it or to it */
    struct timer probe;
};

struct sim_client *sim_client_start(struct sim *s, uint32_t timeout_ms);
void sim_client_free(struct sim_client *cl); /* sim_free() does this */

/* --- nodes (sim_node.c) ---------------------------------------------------------------------- */

struct sim_disk;

struct sim_node {
    struct sim *sim;
    unsigned index, n_starts;
    struct sim_clock clock;
    struct sim_disk *disk;   /* survives crashes */
    struct replica *replica; /* NULL: down */
    uint64_t thaw_us;        /* frozen until then */
    struct timer restart;
};

void sim_node_init(struct sim_node *n, struct sim *s, unsigned index);
void sim_node_fini(struct sim_node *n);
/* Down from now on, and up again after down_us. Harmless when it is down. */
void sim_node_crash(struct sim_node *n, uint64_t down_us);
void sim_node_start(struct sim_node *n); /* harmless when it is up */
/* Did a put fail, so that it must start anew before it can store again? */
bool sim_node_broken(const struct sim_node *n);
/* All its data is gone. Only while it is down. */
void sim_node_wipe(struct sim_node *n);
/*
 * Handles one request of a client. 0 and the bytes of its answer, or -ECONNRESET. It is up and not
 * frozen.
 */
int sim_node_serve(struct sim_node *n, unsigned client, struct span request, struct blob **out);

#endif

/*
 * sim.h - a cluster in one process: the real client, the real replica and the real repair over a
 * network, clocks and disks that a seed decides about.
 *
 * One queue of events, each at a time in microseconds; sim_step() goes to the next one. Nothing
 * else moves time. Every process (node or client) has clocks of its own, hours apart. A message is
 * bytes: it may be lost, delivered twice, or late by more than any timeout.
 *
 *   sim.c        events and time, making and ending a cluster
 *   sim_net.c    client processes and the packets between them and the nodes
 *   sim_disk.c   what a node stores, and how it is lost
 *   sim_node.c   nodes: a replica and the repair beside it, that come and go over a disk that stays
 *   sim_lies.c   what a test may have them do wrong
 *   sim_check.c  whether all replicas hold the same
 *   chaos.c      faults at random
 *   cold.c       keys that are written once
 *   workload.c   random operations on a few keys, their histories and the judgement about them
 *
 * Memory that runs out ends the test program: nothing here returns -ENOMEM.
 */
#ifndef KVFS_TESTS_LIB_SIM_H
#define KVFS_TESTS_LIB_SIM_H

#include <limits.h>

#include "common/client.h"
#include "common/prober.h"
#include "node/repair.h"
#include "node/replica.h"
#include "tests/lib/rng.h"

struct sim;

/* What the network does to packets. The chances are per mille. */
struct sim_net {
    uint64_t delay_us; /* of most packets: 20 us up to this */
    unsigned lose, duplicate, linger;
    uint64_t linger_us; /* packets that linger, and second copies, are late by up to this */
    /*
     * Per mille of the ACCEPTs that linger but for one node, the first that a write reaches; and of
     * the PREPAREs to one node that do. And of the DROPs to one node that are lost.
     */
    unsigned straggle, lose_drop;
};

/* Rules broken on purpose, so that the tests can be seen to notice. */
struct sim_lies {
    bool forget_floor; /* a node's floor does not survive a restart */
    bool forget_disk;  /* a crash empties the disk, and the node goes on as if nothing had been */
    bool vote_while_recovering;
    unsigned skip_put;      /* per mille of puts that are acknowledged and not done */
    bool ignore_settling;   /* a write that another client brings in is acknowledged and not done */
    bool settle_lazily;     /* so it is where a majority has what is settled */
    bool hide_own_writes;   /* promises do not tell a client of the writes of its own in a record */
    bool accept_superseded; /* what is older than what is there is acknowledged, and not stored */
    bool hide_incarnations; /* answers do not tell what is known of the lives of other nodes */
    bool copy_blindly;      /* what a node brings in is stored whatever was promised */
    bool hide_damage;       /* a damaged record is none at all */
    bool drop_some;         /* a tombstone is dropped when a majority holds it */
    bool drop_promises;     /* with a tombstone, a node forgets what it promised */
};

struct sim_opts {
    uint64_t seed;
    unsigned n_nodes, replication_factor;
    struct sim_net net;
    struct sim_lies lies;
    uint64_t clocks_apart_us; /* wall clocks; 0: up to a day */
    bool nodes_ahead;         /* those of nodes before those of clients */
    bool slow_nodes;          /* their clocks nearly stand: no deadline of a message ever passes */
    unsigned fail_put;        /* per mille of puts that fail, done or not: an honest fault */
    uint64_t sync_us;         /* 0: each write is synced before it is acknowledged; else so often */
    bool repair;              /* nodes do of their own accord what node/repair.h says */
    bool new_cluster;  /* with repair: begins with new nodes that have yet to find each other */
    uint64_t scrub_us; /* so often a node reads all it has */
    uint64_t tombstone_age_us;
    uint32_t repair_timeout_ms; /* of the client of a node */
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
    struct list buried; /* nodes' parts that have ended: what they sent may be under way */
    struct span *keys;  /* that the workload uses; what is checked, and may be damaged */
    unsigned n_keys;
    struct sim_rumours *rumours;     /* what the lies have to remember */
    struct repair_progress repaired; /* by processes that have ended */
    unsigned n_superseded;           /* of those */
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
void sim_clock_mend(struct sim_clock *c);         /* mono runs at its usual speed from now on */
void *sim_alloc(size_t size);                     /* zeroed, never NULL */
void sim_use_key(struct sim *s, struct span key); /* copies it */

/* --- clients (sim_net.c) --------------------------------------------------------------------- */

#define SIM_NO_NODE UINT_MAX

/* A client process: it probes nodes that are down as a real one does. Or that part of a node. */
struct sim_client {
    struct transport transport;
    struct sim *sim;
    unsigned index;
    unsigned node; /* whose part it is; SIM_NO_NODE: nobody's */
    uint64_t proposer;
    struct sim_clock clock;
    struct health *health;
    struct client *client;
    uint64_t thaw_us; /* frozen until then; as all times here of the sim */
    bool was_frozen,
        killed; /* killed: nothing of it reaches the network any more, nor the other way */
    uint64_t *cut_to, *cut_from; /* by node: nothing gets through until then */
    struct list flights;         /* calls that have not ended */
    struct list packets;         /* under way, of it or to it */
    struct timer probe;          /* of a client process; nodes have a prober */
    struct list link;            /* when it is buried */
};

struct sim_client *sim_client_start(struct sim *s, uint32_t timeout_ms);
/* That part of a node; not among s->clients. */
struct sim_client *sim_client_of_node(struct sim *s, unsigned node, uint32_t timeout_ms);
#define SIM_STEPS_TO_END 100000u /* a process that is stopped has ended by then */
/*
 * Ends all calls under way; those that come of that fail too. It was killed. What it has asked for
 * still arrives.
 */
void sim_client_hang_up(struct sim_client *cl);
/* Its process has ended; the sim frees it. */
void sim_client_bury(struct sim_client *cl);
void sim_client_free_buried(struct sim *s);
void sim_client_free(struct sim_client *cl); /* sim_free() does this */

/* --- disks (sim_disk.c) ---------------------------------------------------------------------- */

struct sim_disk;

struct sim_disk *sim_disk_new(struct sim *s);
void sim_disk_free(struct sim_disk *d);
/* For a process that starts. Borrowed. */
struct store *sim_disk_open(struct sim_disk *d);
void sim_disk_leave(struct sim_disk *d); /* the process has ended: nothing more is written */
bool sim_disk_dead(const struct sim_disk *d);
/* Did a put fail, so that it must be opened anew before it can store again? */
bool sim_disk_broken(const struct sim_disk *d);
/* In the midst of the next write the process ends: it can write no more, and t is armed. */
void sim_disk_trap(struct sim_disk *d, struct timer *t, bool tears);
bool sim_disk_trap_tears(const struct sim_disk *d);
/* All is gone. Only while nobody uses it, as: */
void sim_disk_wipe(struct sim_disk *d);
void sim_disk_lose_power(struct sim_disk *d);
void sim_disk_forget_floor(struct sim_disk *d);
/* Flips a bit of the record or the value of the key, where there is one. */
void sim_disk_damage(struct sim_disk *d, struct span key);
bool sim_disk_intact(struct sim_disk *d, struct span key);
/* What is there; value may be NULL. false: damaged. The caller finishes both. */
bool sim_disk_get(struct sim_disk *d, struct span key, struct record_copy *rec, struct buf *value);
struct ballot sim_disk_version(struct sim_disk *d, struct span key); /* none: absent, or damaged */
struct store *sim_disk_inside(struct sim_disk *d); /* past all that is counted; for lies */

/* --- nodes (sim_node.c) ---------------------------------------------------------------------- */

struct sim_node {
    struct sim *sim;
    unsigned index, n_starts;
    struct sim_clock clock;
    struct sim_disk *disk;   /* survives crashes */
    struct replica *replica; /* NULL: down */
    uint64_t thaw_us;        /* frozen until then */
    bool power_lost;         /* since it ran last */
    bool accept_data_loss;   /* from its next start on */
    bool outdated;           /* its disk may lack what it acknowledged: not recovered yet */
    bool forgets_once;       /* a lie: at its next start it has promised nothing */
    struct timer restart, trapped;
    /* with sim_opts.repair, while it is up: */
    struct sim_client *agent;
    struct prober *prober;
    struct repair *repair;
    struct timer index_timer, scrub_timer, damage_timer;
    struct buf scrubbed; /* how far */
    struct buf *damaged; /* keys that were found so, to be told to repair */
    unsigned n_damaged;
};

void sim_node_init(struct sim_node *n, struct sim *s, unsigned index);
void sim_node_fini(struct sim_node *n);
/* Down from now on, and up again after down_us. Harmless when it is down. */
void sim_node_crash(struct sim_node *n, uint64_t down_us);
void sim_node_start(struct sim_node *n); /* harmless when it is up */
/* With its client's part. */
void sim_node_freeze(struct sim_node *n, uint64_t until_us);
/* All its data is gone. Only while it is down, as: */
void sim_node_wipe(struct sim_node *n);
void sim_node_lose_power(struct sim_node *n);
bool sim_node_recovering(const struct sim_node *n); /* or yet to begin with it, or superseded */
/*
 * Handles one request of a client. 0 and the bytes of its answer, or -ECONNRESET. It is up and not
 * frozen.
 */
int sim_node_serve(struct sim_node *n, const struct sim_client *from, struct span request,
                   struct blob **out);

/* --- lies (sim_lies.c) ----------------------------------------------------------------------- */

/* Before a node sees a request. true: it does not, *out is what it says. */
bool sim_lies_before(struct sim_node *n, const struct sim_client *from, struct span request,
                     struct blob **out);
/* What the node says instead of `answer`, which it takes. */
struct blob *sim_lies_after(struct sim_node *n, const struct sim_client *from, struct span request,
                            struct blob *answer);
/* A node found an old tombstone. true: that was taken care of. */
bool sim_lies_tombstone(struct sim_node *n, struct span key, struct ballot version);
void sim_lies_free(struct sim *s);

/* --- all replicas (sim_check.c) -------------------------------------------------------------- */

/*
 * Are all nodes up and whole, and does each replica of each key hold the same version and bytes?
 * Then why is empty.
 */
bool sim_converged(struct sim *s, struct err *why);
/* What all nodes repaired since the beginning: sums of the counts. */
void sim_note_repaired(struct sim_node *n); /* before its process ends */
void sim_repaired(const struct sim *s, struct repair_progress *out);
/* Do the digests of all nodes tell what is there? */
bool sim_digests_right(struct sim *s, struct err *why);

#endif

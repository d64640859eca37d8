/*
 * chaos.h - faults at random times: crashes, freezes, cut links, clocks set to another hour; with
 * repair also lost disks, lost power and damage, of no more than a minority of replicas at once.
 */
#ifndef KVFS_TESTS_LIB_CHAOS_H
#define KVFS_TESTS_LIB_CHAOS_H

#include <limits.h>

#include "tests/lib/sim.h"

enum chaos_fault {
    CHAOS_CRASH_NODE = 1,
    CHAOS_FREEZE_NODE = 2,
    CHAOS_FREEZE_CLIENT = 4,
    CHAOS_CUT = 8, /* both ways or one way, between one process and one node */
    CHAOS_SET_CLOCK = 16,
    CHAOS_KILL_CLIENT = 32,   /* for good */
    CHAOS_CRASH_WRITING = 64, /* of a node, in the midst of its next write; which may be torn */
    CHAOS_ISOLATE = 128,      /* a node from all others and all clients, both ways or one way */
    CHAOS_WIPE = 256,         /* a crash, and a new disk */
    CHAOS_LOSE_POWER = 512,   /* a crash, and what was not synced is lost */
    CHAOS_DAMAGE = 1024,      /* a flipped bit in what a node has of a key */
    CHAOS_WITHOUT_LOSS = 255,
    CHAOS_ALL = 2047,
};

#define CHAOS_ANY_NODE UINT_MAX

struct chaos {
    struct sim *sim;
    unsigned faults;    /* those that may happen */
    uint64_t gap_us;    /* mean time between two */
    uint64_t length_us; /* most of them last up to this */
    unsigned burst;     /* per mille of faults that follow within length_us */
    unsigned only_node; /* faults befall this node and none else, or CHAOS_ANY_NODE */
    unsigned loss;      /* per mille of the times when something might be lost that it is */
    unsigned n_kills;   /* how many clients may still be killed */
    unsigned n_faults;  /* how many there were */
    unsigned n_wiped, n_power_lost, n_damaged;               /* of these */
    void (*on_kill)(struct chaos *c, struct sim_client *cl); /* was just killed */
    struct timer tick;
};

/* The fields above tick are filled in. */
void chaos_start(struct chaos *c);
/*
 * No faults from here on, and all that there were are over; the network loses nothing more, but
 * what lingers in it still arrives.
 */
void chaos_end(struct chaos *c);

#endif

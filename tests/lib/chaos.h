/* chaos.h - faults at random times: crashes, freezes, cut links, clocks set to another hour. */
#ifndef KVFS_TESTS_LIB_CHAOS_H
#define KVFS_TESTS_LIB_CHAOS_H

#include <limits.h>

#include "tests/lib/sim.h"

enum chaos_fault {
    CHAOS_CRASH_NODE = 1,
    CHAOS_FREEZE_NODE = 2,
    CHAOS_FREEZE_CLIENT = 4,
    CHAOS_CUT = 8, /* both ways or one way, between one client and one node */
    CHAOS_SET_CLOCK = 16,
    CHAOS_KILL_CLIENT = 32, /* for good */
    CHAOS_ALL = 63,
};

#define CHAOS_ANY_NODE UINT_MAX

struct chaos {
    struct sim *sim;
    unsigned faults;    /* those that may happen */
    uint64_t gap_us;    /* mean time between two */
    uint64_t length_us; /* most of them last up to this */
    unsigned only_node; /* faults befall this node and none else, or CHAOS_ANY_NODE */
    unsigned n_kills;   /* how many clients may still be killed */
    unsigned n_faults;  /* how many there were */
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

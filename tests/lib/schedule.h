/*
 * schedule.h - one run of a simulated cluster, all of it drawn from a seed: size, network, faults,
 * operations; and how it went.
 */
#ifndef KVFS_TESTS_LIB_SCHEDULE_H
#define KVFS_TESTS_LIB_SCHEDULE_H

#include <stdio.h>

#include "tests/lib/chaos.h"
#include "tests/lib/workload.h"

/* Schedules drawn so that one kind of trouble is likely; the same with and without a lie. */
enum schedule_shape {
    SHAPE_ANY,
    /*
     * Messages are late by longer than a node needs to come back, and operations wait for them:
     * what was begun before a restart ends after it.
     */
    SHAPE_LATE,
    /* Deletes and pauses, in which tombstones grow old and are dropped; then late messages. */
    SHAPE_DROPS,
    /* The same, and writers that for a while hear no answers: they try again after the drop. */
    SHAPE_DEAF_WRITERS,
    /* A node loses its disk again and again, clocks are set, others hear of lives that are over. */
    SHAPE_LIVES,
};

/* What is not drawn. */
struct schedule {
    uint64_t seed;
    unsigned n_nodes, replication_factor;
    bool quiet;          /* a network that loses nothing, and no faults; no operation fails */
    unsigned faults;     /* enum chaos_fault; those not set never happen */
    bool one_in_trouble; /* nothing is lost, faults befall node 0 alone: no operation fails */
    bool repair;         /* nodes repair, and must all hold the same in the end */
    bool everysec;       /* stores sync now and then, so that a loss of power loses something */
    enum schedule_shape shape;
    bool drop_early; /* tombstones are dropped while messages that they stop may be under way */
    size_t padding;  /* of values */
    struct sim_lies lies;
};

struct schedule_result {
    bool good;
    unsigned n_broken;      /* keys whose history cannot be explained */
    unsigned n_outcomes[4]; /* of writes, by enum history_outcome */
    unsigned n_reads, n_reads_failed, n_faults, n_wiped, n_power_lost, n_damaged;
    unsigned n_superseded;           /* nodes that stopped voting for a life before theirs */
    struct repair_progress repaired; /* sums over all nodes and their lives */
    uint64_t converge_us;            /* from the end of all faults until all hold the same */
    uint64_t trace;
};

/* Runs it and judges; what is wrong goes to `out`, with the seed. */
void schedule_run(const struct schedule *sc, FILE *out, struct schedule_result *result);

/*
 * The first seed and the number of schedules of a batch: KVFS_SIM_SEED and KVFS_SIM_COUNT, else
 * what is given (less under a sanitizer).
 */
uint64_t schedule_first_seed(uint64_t usual);
unsigned schedule_count(unsigned usual);

#endif

/*
 * schedule.h - one run of a simulated cluster, all of it drawn from a seed: size, network, faults,
 * operations; and how it went.
 */
#ifndef KVFS_TESTS_LIB_SCHEDULE_H
#define KVFS_TESTS_LIB_SCHEDULE_H

#include <stdio.h>

#include "tests/lib/chaos.h"
#include "tests/lib/workload.h"

/* What is not drawn. */
struct schedule {
    uint64_t seed;
    unsigned n_nodes, replication_factor;
    bool quiet;          /* a network that loses nothing, and no faults */
    unsigned faults;     /* enum chaos_fault; those not set never happen */
    bool one_in_trouble; /* nothing is lost, faults befall node 0 alone: everything has to go on */
    size_t padding;      /* of values */
    struct sim_lies lies;
};

struct schedule_result {
    bool good;
    unsigned n_broken;      /* keys whose history cannot be explained */
    unsigned n_outcomes[4]; /* of writes, by enum history_outcome */
    unsigned n_reads, n_reads_failed, n_faults;
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

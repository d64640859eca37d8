/* batch.h - many schedules of one kind, from one seed on: each has to be good. */
#ifndef KVFS_TESTS_LIB_BATCH_H
#define KVFS_TESTS_LIB_BATCH_H

#include "tests/lib/schedule.h"

/* Sums over all of them. */
struct totals {
    unsigned n_outcomes[4], n_reads, n_reads_failed, n_faults, n_wiped, n_power_lost, n_damaged;
    struct repair_progress repaired;
    uint64_t converge_us, converge_most_us;
};

/*
 * Runs `usual` schedules like sc, or as many as the environment asks for (schedule.h). Fails the
 * test at one that is not good, naming its seed; and when all together did nothing.
 */
struct totals batch_run(struct schedule sc, unsigned usual);

#endif

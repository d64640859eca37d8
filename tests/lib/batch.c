/* batch.c - many schedules of one kind. */
#include "tests/lib/batch.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static void add(struct totals *t, const struct schedule_result *r)
{
    for (unsigned i = 0; i < 4; i++)
        t->n_outcomes[i] += r->n_outcomes[i];
    t->n_reads += r->n_reads;
    t->n_reads_failed += r->n_reads_failed;
    t->n_faults += r->n_faults;
    t->n_wiped += r->n_wiped;
    t->n_power_lost += r->n_power_lost;
    t->n_damaged += r->n_damaged;
    t->repaired.n_compared += r->repaired.n_compared;
    t->repaired.n_mended += r->repaired.n_mended;
    t->repaired.n_healed += r->repaired.n_healed;
    t->repaired.n_dropped += r->repaired.n_dropped;
    t->converge_us += r->converge_us;
    if (r->converge_us > t->converge_most_us)
        t->converge_most_us = r->converge_us;
}

static void tell(const struct totals *t, const struct schedule *sc, unsigned count)
{
    print_message(
        "%u schedules with %u faults: %u writes acknowledged, %u refused by their condition, "
        "%u surely not done, %u unknown; %u reads, %u without an answer\n",
        count, t->n_faults, t->n_outcomes[HISTORY_OK], t->n_outcomes[HISTORY_FAILED],
        t->n_outcomes[HISTORY_NONE], t->n_outcomes[HISTORY_UNKNOWN], t->n_reads, t->n_reads_failed);
    if (!sc->repair)
        return;
    print_message("  %u disks lost, %u times power, %u bits flipped; %" PRIu64
                  " comparisons, %" PRIu64 " keys mended, %" PRIu64 " healed, %" PRIu64
                  " tombstones dropped; all the same %" PRIu64 " ms after the last fault, %" PRIu64
                  " ms at most\n",
                  t->n_wiped, t->n_power_lost, t->n_damaged, t->repaired.n_compared,
                  t->repaired.n_mended, t->repaired.n_healed, t->repaired.n_dropped,
                  t->converge_us / 1000 / count, t->converge_most_us / 1000);
}

struct totals batch_run(struct schedule sc, unsigned usual)
{
    unsigned count = schedule_count(usual);
    uint64_t first = schedule_first_seed(1);
    struct totals t = {.n_reads = 0};

    for (sc.seed = first; sc.seed < first + count; sc.seed++) {
        struct schedule_result r = {.good = false};

        schedule_run(&sc, stderr, &r);
        if (!r.good)
            fail_msg("seed %" PRIu64 ": KVFS_SIM_SEED=%" PRIu64 " KVFS_SIM_COUNT=1 runs it again",
                     sc.seed, sc.seed);
        add(&t, &r);
    }
    tell(&t, &sc, count);
    if (count >= usual) { /* a run that did nothing proves nothing */
        assert_true(t.n_outcomes[HISTORY_OK] > 0);
        assert_true(t.n_reads > 0);
    }
    return t;
}

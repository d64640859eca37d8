/*
 * sim_linearizable.c - each key is linearizable, whatever network, clocks, nodes and clients do.
 *
 * sim_linearizable [SEED [COUNT]] runs COUNT schedules of each kind from SEED on, as KVFS_SIM_SEED
 * and KVFS_SIM_COUNT do.
 */
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/lib/schedule.h"

struct totals {
    unsigned n_outcomes[4], n_reads, n_reads_failed, n_faults;
};

/* Runs `usual` schedules like sc; each must be good, and together they must have done something. */
static struct totals run_batch(struct schedule sc, unsigned usual)
{
    unsigned count = schedule_count(usual);
    uint64_t first = schedule_first_seed(1);
    struct totals t = {{0}, 0, 0, 0};

    for (sc.seed = first; sc.seed < first + count; sc.seed++) {
        struct schedule_result r;

        schedule_run(&sc, stderr, &r);
        if (!r.good)
            fail_msg("seed %" PRIu64 ": KVFS_SIM_SEED=%" PRIu64 " KVFS_SIM_COUNT=1 runs it again",
                     sc.seed, sc.seed);
        for (unsigned i = 0; i < 4; i++)
            t.n_outcomes[i] += r.n_outcomes[i];
        t.n_reads += r.n_reads;
        t.n_reads_failed += r.n_reads_failed;
        t.n_faults += r.n_faults;
    }
    print_message(
        "%u schedules with %u faults: %u writes acknowledged, %u refused by their condition, "
        "%u surely not done, %u unknown; %u reads, %u without an answer\n",
        count, t.n_faults, t.n_outcomes[HISTORY_OK], t.n_outcomes[HISTORY_FAILED],
        t.n_outcomes[HISTORY_NONE], t.n_outcomes[HISTORY_UNKNOWN], t.n_reads, t.n_reads_failed);
    assert_true(t.n_outcomes[HISTORY_OK] > 0); /* a run that did nothing proves nothing */
    assert_true(t.n_reads > 0);
    return t;
}

static void assert_all_succeeded(struct totals t)
{
    assert_int_equal(t.n_outcomes[HISTORY_NONE], 0);
    assert_int_equal(t.n_outcomes[HISTORY_UNKNOWN], 0);
    assert_int_equal(t.n_reads_failed, 0);
}

static void the_same_seed_gives_the_same_run(void **state)
{
    struct schedule sc = {.n_nodes = 3, .replication_factor = 3, .faults = CHAOS_ALL};
    uint64_t first = schedule_first_seed(1);

    (void)state;
    for (sc.seed = first; sc.seed < first + 20; sc.seed++) {
        struct schedule_result once, again;

        schedule_run(&sc, stderr, &once);
        schedule_run(&sc, stderr, &again);
        assert_int_equal(once.trace, again.trace);
        assert_memory_equal(once.n_outcomes, again.n_outcomes, sizeof once.n_outcomes);
    }
}

static void three_nodes_in_every_trouble_are_linearizable(void **state)
{
    (void)state;
    run_batch((struct schedule){.n_nodes = 3, .replication_factor = 3, .faults = CHAOS_ALL}, 3000);
}

static void three_copies_on_five_nodes_in_every_trouble_are_linearizable(void **state)
{
    (void)state;
    run_batch((struct schedule){.n_nodes = 5, .replication_factor = 3, .faults = CHAOS_ALL}, 1000);
}

static void five_copies_in_every_trouble_are_linearizable(void **state)
{
    (void)state;
    run_batch((struct schedule){.n_nodes = 5, .replication_factor = 5, .faults = CHAOS_ALL}, 1000);
}

static void four_copies_in_every_trouble_are_linearizable(void **state)
{
    (void)state;
    run_batch((struct schedule){.n_nodes = 4, .replication_factor = 4, .faults = CHAOS_ALL}, 300);
}

static void a_single_node_in_every_trouble_is_linearizable(void **state)
{
    (void)state;
    run_batch((struct schedule){.n_nodes = 1, .replication_factor = 1, .faults = CHAOS_ALL}, 200);
}

static void large_values_in_every_trouble_are_linearizable(void **state)
{
    struct schedule sc = {.n_nodes = 3,
                          .replication_factor = 3,
                          .faults = CHAOS_ALL,
                          .padding = INLINE_VALUE_MAX + 1};

    (void)state;
    run_batch(sc, 200);
}

static void without_trouble_every_operation_succeeds(void **state)
{
    struct totals t =
        run_batch((struct schedule){.n_nodes = 3, .replication_factor = 3, .quiet = true}, 500);

    (void)state;
    assert_all_succeeded(t);
}

static void with_one_node_of_three_in_trouble_every_operation_succeeds(void **state)
{
    struct schedule sc = {
        .n_nodes = 3,
        .replication_factor = 3,
        .one_in_trouble = true,
        .faults = CHAOS_CRASH_NODE | CHAOS_FREEZE_NODE | CHAOS_CUT | CHAOS_SET_CLOCK,
    };
    struct totals t = run_batch(sc, 500);

    (void)state;
    assert_true(t.n_faults > 0);
    assert_all_succeeded(t);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_same_seed_gives_the_same_run),
        cmocka_unit_test(three_nodes_in_every_trouble_are_linearizable),
        cmocka_unit_test(three_copies_on_five_nodes_in_every_trouble_are_linearizable),
        cmocka_unit_test(five_copies_in_every_trouble_are_linearizable),
        cmocka_unit_test(four_copies_in_every_trouble_are_linearizable),
        cmocka_unit_test(a_single_node_in_every_trouble_is_linearizable),
        cmocka_unit_test(large_values_in_every_trouble_are_linearizable),
        cmocka_unit_test(without_trouble_every_operation_succeeds),
        cmocka_unit_test(with_one_node_of_three_in_trouble_every_operation_succeeds),
    };

    if (argc > 1)
        setenv("KVFS_SIM_SEED", argv[1], 1);
    if (argc > 2)
        setenv("KVFS_SIM_COUNT", argv[2], 1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

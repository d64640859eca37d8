/*
 * sim_linearizable.c - each key is linearizable, whatever network, clocks, nodes and clients do.
 *
 * sim_linearizable [SEED [COUNT [CLAIM]]] runs COUNT schedules of each kind (of those that prove
 * CLAIM, a pattern) from SEED on, as KVFS_SIM_SEED and KVFS_SIM_COUNT do.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "tests/lib/batch.h"

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
    batch_run((struct schedule){.n_nodes = 3, .replication_factor = 3, .faults = CHAOS_ALL}, 3000);
}

static void three_copies_on_five_nodes_in_every_trouble_are_linearizable(void **state)
{
    (void)state;
    batch_run((struct schedule){.n_nodes = 5, .replication_factor = 3, .faults = CHAOS_ALL}, 1000);
}

static void five_copies_in_every_trouble_are_linearizable(void **state)
{
    (void)state;
    batch_run((struct schedule){.n_nodes = 5, .replication_factor = 5, .faults = CHAOS_ALL}, 1000);
}

static void four_copies_in_every_trouble_are_linearizable(void **state)
{
    (void)state;
    batch_run((struct schedule){.n_nodes = 4, .replication_factor = 4, .faults = CHAOS_ALL}, 300);
}

static void a_single_node_in_every_trouble_is_linearizable(void **state)
{
    (void)state;
    batch_run((struct schedule){.n_nodes = 1, .replication_factor = 1, .faults = CHAOS_ALL}, 200);
}

static void large_values_in_every_trouble_are_linearizable(void **state)
{
    struct schedule sc = {.n_nodes = 3,
                          .replication_factor = 3,
                          .faults = CHAOS_ALL,
                          .padding = INLINE_VALUE_MAX + 1};

    (void)state;
    batch_run(sc, 200);
}

static void without_trouble_every_operation_succeeds(void **state)
{
    (void)state;
    batch_run((struct schedule){.n_nodes = 3, .replication_factor = 3, .quiet = true}, 500);
}

static void with_one_node_of_three_in_trouble_every_operation_succeeds(void **state)
{
    struct schedule sc = {
        .n_nodes = 3,
        .replication_factor = 3,
        .one_in_trouble = true,
        .faults = CHAOS_CRASH_NODE | CHAOS_FREEZE_NODE | CHAOS_CUT | CHAOS_SET_CLOCK,
    };

    (void)state;
    assert_true(batch_run(sc, 500).n_faults > 0);
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
    if (argc > 3)
        cmocka_set_test_filter(argv[3]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

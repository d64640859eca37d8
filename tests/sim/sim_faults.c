/*
 * sim_faults.c - the tests of the test: with a rule of the protocol broken, a simulated cluster
 * loses or doubles writes, and that is seen.
 *
 * What a replica or a network may do wrong is broken in the sim (struct sim_lies); what a client
 * counts, by a majority that is none.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/lib/schedule.h"

static bool minority_is_enough;

/* The linker puts this in place of the ring's own (--wrap). */
unsigned __real_ring_majority(const struct ring *r);
unsigned __wrap_ring_majority(const struct ring *r);

unsigned __wrap_ring_majority(const struct ring *r)
{
    return minority_is_enough ? 1 : __real_ring_majority(r);
}

/*
 * Runs up to `most` schedules like sc until one is found to be wrong, and returns which, or 0. What
 * is said about it is of no interest here.
 */
static unsigned first_caught(struct schedule sc, unsigned most)
{
    FILE *nowhere = fopen("/dev/null", "w");
    unsigned caught = 0;

    assert_non_null(nowhere);
    for (sc.seed = 1; sc.seed <= most && caught == 0; sc.seed++) {
        struct schedule_result r;

        schedule_run(&sc, nowhere, &r);
        if (r.n_broken > 0)
            caught = (unsigned)sc.seed;
    }
    fclose(nowhere);
    return caught;
}

static void assert_caught(struct sim_lies lies, unsigned faults, unsigned within)
{
    struct schedule sc = {.n_nodes = 3, .replication_factor = 3, .faults = faults, .lies = lies};
    unsigned caught = first_caught(sc, within);

    print_message("schedule %u shows it\n", caught);
    assert_true(caught > 0);
}

static void an_honest_cluster_is_never_accused(void **state)
{
    struct schedule sc = {.n_nodes = 3, .replication_factor = 3, .faults = CHAOS_ALL};

    (void)state;
    assert_int_equal(first_caught(sc, 300), 0);
}

static void promises_forgotten_at_a_restart_are_noticed(void **state)
{
    (void)state;
    assert_caught((struct sim_lies){.forget_floor = true}, CHAOS_CRASH_NODE, 3000);
}

static void acknowledging_without_storing_is_noticed(void **state)
{
    (void)state;
    assert_caught((struct sim_lies){.skip_put = 100}, CHAOS_ALL, 300);
}

static void a_node_that_votes_after_losing_its_disk_is_noticed(void **state)
{
    (void)state;
    assert_caught((struct sim_lies){.forget_disk = true}, CHAOS_ALL, 300);
}

static void reporting_what_was_not_settled_is_noticed(void **state)
{
    (void)state;
    assert_caught((struct sim_lies){.ignore_settling = true}, CHAOS_ALL, 300);
}

static void not_knowing_one_s_own_write_again_is_noticed(void **state)
{
    (void)state;
    assert_caught((struct sim_lies){.hide_own_writes = true}, CHAOS_ALL, 300);
}

static void counting_a_minority_is_noticed(void **state)
{
    (void)state;
    minority_is_enough = true;
    assert_caught((struct sim_lies){0}, CHAOS_ALL, 300);
    minority_is_enough = false;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_honest_cluster_is_never_accused),
        cmocka_unit_test(promises_forgotten_at_a_restart_are_noticed),
        cmocka_unit_test(acknowledging_without_storing_is_noticed),
        cmocka_unit_test(a_node_that_votes_after_losing_its_disk_is_noticed),
        cmocka_unit_test(reporting_what_was_not_settled_is_noticed),
        cmocka_unit_test(not_knowing_one_s_own_write_again_is_noticed),
        cmocka_unit_test(counting_a_minority_is_noticed),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* test_health.c - what calls and probes found out about each node. */
#include "common/health.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#define N_NODES 3

/* --- fixture ---------------------------------------------------------------------------------- */

struct world {
    struct health *h;
    unsigned n_changes, last_changed;
};

static void on_changed(void *arg, unsigned node)
{
    struct world *w = arg;

    w->n_changes++;
    w->last_changed = node;
}

static int setup(void **state)
{
    static struct world w;

    w = (struct world){0};
    if (health_new(N_NODES, &w.h) < 0)
        return -1;
    health_watch(w.h, on_changed, &w);
    *state = &w;
    return 0;
}

static int teardown(void **state)
{
    struct world *w = *state;

    health_free(w->h);
    return 0;
}

/* --- helpers ---------------------------------------------------------------------------------- */

static void answered(struct world *w, unsigned node, uint64_t now_us, uint64_t latency_us)
{
    health_answered(w->h, node, now_us, latency_us, false, 5000, 77);
}

/* --- up and down ------------------------------------------------------------------------------ */

static void nodes_begin_as_up_though_never_seen(void **state)
{
    struct world *w = *state;

    for (unsigned i = 0; i < N_NODES; i++) {
        struct health_info info = health_get(w->h, i);

        assert_true(health_up(w->h, i));
        assert_true(info.up);
        assert_int_equal(info.seen_us, 0);
        assert_int_equal(info.last_err, 0);
    }
}

static void what_has_always_been_up_is_so_since_its_first_answer(void **state)
{
    struct world *w = *state;

    assert_int_equal(health_get(w->h, 1).since_us, 0);
    answered(w, 1, 3000, 100);
    answered(w, 1, 5000, 100);
    assert_int_equal(health_get(w->h, 1).since_us, 3000);
}

static void a_failure_takes_one_node_down_until_it_answers(void **state)
{
    struct world *w = *state;

    health_failed(w->h, 1, 1000, -ECONNREFUSED);
    assert_false(health_up(w->h, 1));
    assert_true(health_up(w->h, 0) && health_up(w->h, 2));
    assert_int_equal(health_get(w->h, 1).since_us, 1000);
    assert_int_equal(health_get(w->h, 1).last_err, -ECONNREFUSED);

    answered(w, 1, 3000, 100);
    assert_true(health_up(w->h, 1));
    assert_int_equal(health_get(w->h, 1).since_us, 3000);
    assert_int_equal(health_get(w->h, 1).seen_us, 3000);
    assert_int_equal(health_get(w->h, 1).last_err, 0);
    assert_int_equal(health_get(w->h, 1).incarnation, 77);
}

static void a_slow_node_is_down_as_if_it_had_timed_out(void **state)
{
    struct world *w = *state;

    health_slow(w->h, 2, 4000);
    assert_false(health_up(w->h, 2));
    assert_int_equal(health_get(w->h, 2).last_err, -ETIMEDOUT);
}

static void a_node_that_answers_other_calls_is_not_down_for_one_that_hangs(void **state)
{
    struct world *w = *state;
    uint64_t now = 1000000;

    answered(w, 2, now, 100);
    health_slow(w->h, 2, now + HEALTH_SLOW_MIN_US - 1);
    health_failed(w->h, 2, now + HEALTH_SLOW_MIN_US - 1, -ETIMEDOUT);
    assert_true(health_up(w->h, 2));
    health_slow(w->h, 2, now + HEALTH_SLOW_MIN_US);
    assert_false(health_up(w->h, 2));

    answered(w, 2, now, 100);
    health_failed(w->h, 2, now + 1, -ECONNRESET);
    assert_false(health_up(w->h, 2));
}

static void each_change_is_told_once(void **state)
{
    struct world *w = *state;

    answered(w, 0, 100, 10);
    assert_int_equal(w->n_changes, 0);
    health_failed(w->h, 2, 1000, -ECONNRESET);
    health_failed(w->h, 2, 1100, -ECONNREFUSED);
    health_slow(w->h, 2, 1200);
    assert_int_equal(w->n_changes, 1);
    assert_int_equal(w->last_changed, 2);
    assert_int_equal(health_get(w->h, 2).since_us, 1000);
    answered(w, 2, 2000, 10);
    answered(w, 2, 2100, 10);
    assert_int_equal(w->n_changes, 2);
}

static void what_hello_tells_is_kept_per_node(void **state)
{
    struct world *w = *state;

    health_hello(w->h, 1, 10, 20, 30, true);
    assert_int_equal(health_get(w->h, 1).disk_free, 10);
    assert_int_equal(health_get(w->h, 1).disk_total, 20);
    assert_int_equal(health_get(w->h, 1).n_keys, 30);
    assert_true(health_get(w->h, 1).recovering);
    assert_int_equal(health_get(w->h, 0).disk_total, 0);
    assert_false(health_get(w->h, 0).recovering);
}

/* --- latency ---------------------------------------------------------------------------------- */

static void latency_starts_at_the_first_call_and_follows_slowly(void **state)
{
    struct world *w = *state;

    answered(w, 0, 1, 800);
    assert_int_equal(health_get(w->h, 0).latency_us, 800);
    answered(w, 0, 2, 1600);
    assert_int_equal(health_get(w->h, 0).latency_us, 900); /* 7/8 of 800 and 1/8 of 1600 */
    for (unsigned i = 0; i < 100; i++)
        answered(w, 0, 3, 4000);
    assert_in_range(health_get(w->h, 0).latency_us, 3990, 4000);
    assert_int_equal(health_get(w->h, 1).latency_us, 0);
}

static void a_large_answer_says_nothing_of_latency(void **state)
{
    struct world *w = *state;

    answered(w, 0, 1, 800);
    health_answered(w->h, 0, 2, 9000000, true, 5000, 77);
    assert_int_equal(health_get(w->h, 0).latency_us, 800);
    assert_int_equal(health_get(w->h, 0).seen_us, 2);
    health_answered(w->h, 1, 2, 9000000, true, 5000, 77);
    assert_int_equal(health_get(w->h, 1).latency_us, 0);
}

static void a_hedge_waits_four_times_the_usual_within_bounds(void **state)
{
    struct world *w = *state;

    assert_int_equal(health_hedge_us(w->h, 0), HEALTH_HEDGE_MAX_US); /* not measured yet */
    answered(w, 0, 1, 100);
    assert_int_equal(health_hedge_us(w->h, 0), HEALTH_HEDGE_MIN_US);
    answered(w, 1, 1, 2500);
    assert_int_equal(health_hedge_us(w->h, 1), 10000);
    answered(w, 2, 1, 1000000);
    assert_int_equal(health_hedge_us(w->h, 2), HEALTH_HEDGE_MAX_US);
}

static void slow_is_eight_times_the_usual_but_never_soon(void **state)
{
    struct world *w = *state;

    assert_int_equal(health_slow_us(w->h, 0), HEALTH_SLOW_MIN_US);
    answered(w, 0, 1, 100);
    assert_int_equal(health_slow_us(w->h, 0), HEALTH_SLOW_MIN_US);
    answered(w, 1, 1, 100000);
    assert_int_equal(health_slow_us(w->h, 1), 800000);
}

/* --- the node's clock ------------------------------------------------------------------------- */

static void a_deadline_counts_in_the_clock_of_its_node(void **state)
{
    struct world *w = *state;

    assert_int_equal(health_node_deadline_ms(w->h, 0, 1000000, 500), 0); /* never heard of */
    answered(w, 0, 1000000, 100);                                        /* its clock: 5000 ms */
    assert_int_equal(health_node_deadline_ms(w->h, 0, 1000000, 500), 5500);
    assert_int_equal(health_node_deadline_ms(w->h, 0, 3000000, 500), 7500);
    /* another thread heard of it after this one looked at the clock */
    assert_int_equal(health_node_deadline_ms(w->h, 0, 999000, 500), 5500);
}

static void a_node_whose_process_ended_has_no_known_clock(void **state)
{
    struct world *w = *state;

    answered(w, 0, 1000000, 100);
    health_failed(w->h, 0, 1500000, -ETIMEDOUT); /* frozen: late messages are to be dropped by it */
    assert_int_equal(health_node_deadline_ms(w->h, 0, 1000000, 500), 5500);
    assert_false(health_up(w->h, 0));
    health_failed(w->h, 0, 1600000, -ECONNREFUSED);
    assert_int_equal(health_node_deadline_ms(w->h, 0, 1000000, 500), 0);
}

/* --- whole or not ----------------------------------------------------------------------------- */

static void a_node_that_recovers_is_up_and_not_fit(void **state)
{
    struct world *w = *state;

    answered(w, 1, 1000, 100);
    health_hello(w->h, 1, 1, 2, 3, true);
    assert_true(health_up(w->h, 1));
    assert_false(health_fit(w->h, 1));
    answered(w, 1, 2000, 100); /* a refusal, say */
    assert_false(health_fit(w->h, 1));
    health_hello(w->h, 1, 1, 2, 3, false);
    assert_true(health_fit(w->h, 1));
    health_failed(w->h, 1, 3000, -ECONNREFUSED);
    assert_false(health_fit(w->h, 1));
}

static void a_node_that_cannot_answer_is_doubtful_until_its_next_hello(void **state)
{
    struct world *w = *state;

    answered(w, 1, 1000, 100);
    health_refused(w->h, 1);
    assert_true(health_fit(w->h, 1)); /* it may only be busy */
    assert_true(health_get(w->h, 1).doubtful);
    answered(w, 1, 2000, 100);
    assert_true(health_get(w->h, 1).doubtful);
    health_hello(w->h, 1, 1, 2, 3, false);
    assert_false(health_get(w->h, 1).doubtful);
}

static void a_node_whose_store_fails_is_up_and_not_alive(void **state)
{
    struct world *w = *state;
    struct health_info info;

    answered(w, 1, 1000, 100);
    health_store(w->h, 1, 2000, 77, span_str("rocksdb"), span_str("I/O\nerror \xff"));
    info = health_get(w->h, 1);
    assert_true(health_up(w->h, 1));
    assert_false(health_alive(&info));
    assert_false(health_fit(w->h, 1));
    assert_int_equal(info.since_us, 2000);
    assert_int_equal(info.n_bytes, 77);
    assert_string_equal(health_get_about(w->h, 1).store, "rocksdb");
    assert_string_equal(health_get_about(w->h, 1).ailment, "I/O?error ?");
    assert_int_equal(w->n_changes, 1);
    answered(w, 1, 3000, 100); /* it answers, and is no better */
    health_failed(w->h, 1, 3000000, -ECONNREFUSED);
    assert_int_equal(health_get(w->h, 1).since_us, 2000); /* of no use since then */
    answered(w, 1, 4000000, 100);
    assert_int_equal(w->n_changes, 1);
    health_store(w->h, 1, 5000000, 77, span_str("rocksdb"), (struct span){0});
    assert_true(health_fit(w->h, 1));
    assert_int_equal(health_get(w->h, 1).since_us, 5000000);
    assert_int_equal(w->n_changes, 2);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(nodes_begin_as_up_though_never_seen),
        T(what_has_always_been_up_is_so_since_its_first_answer),
        T(a_failure_takes_one_node_down_until_it_answers),
        T(a_slow_node_is_down_as_if_it_had_timed_out),
        T(a_node_that_answers_other_calls_is_not_down_for_one_that_hangs),
        T(each_change_is_told_once),
        T(what_hello_tells_is_kept_per_node),
        T(a_node_whose_store_fails_is_up_and_not_alive),
        T(latency_starts_at_the_first_call_and_follows_slowly),
        T(a_large_answer_says_nothing_of_latency),
        T(a_hedge_waits_four_times_the_usual_within_bounds),
        T(slow_is_eight_times_the_usual_but_never_soon),
        T(a_deadline_counts_in_the_clock_of_its_node),
        T(a_node_whose_process_ended_has_no_known_clock),
        cmocka_unit_test_setup_teardown(a_node_that_recovers_is_up_and_not_fit, setup, teardown),
        cmocka_unit_test_setup_teardown(a_node_that_cannot_answer_is_doubtful_until_its_next_hello,
                                        setup, teardown),
    };
#undef T

    return cmocka_run_group_tests(tests, NULL, NULL);
}

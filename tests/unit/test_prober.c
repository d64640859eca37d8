/* test_prober.c - whom the prober asks and when, against answers given by hand. */
#include "common/prober.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "tests/lib/hand.h"

#define N_NODES 3u
#define SELF 2u

struct fixture {
    struct hand h;
    struct prober *p;
    uint64_t incarnation;
    uint8_t state;
    unsigned n_results, n_failures, n_idle;
};

static void self_state(void *arg, uint64_t *incarnation, uint8_t *state)
{
    struct fixture *f = arg;

    *incarnation = f->incarnation;
    *state = f->state;
}

static void on_result(void *arg, unsigned node, const struct hello_result *res)
{
    struct fixture *f = arg;

    (void)node;
    f->n_results++;
    f->n_failures += res->err != 0;
}

static void on_idle(void *arg)
{
    ((struct fixture *)arg)->n_idle++;
}

static int setup(void **state)
{
    struct fixture *f = calloc(1, sizeof *f);
    struct prober_opts opts = {.n_nodes = N_NODES,
                               .self = SELF,
                               .self_state = self_state,
                               .on_result = on_result,
                               .arg = f};

    assert_non_null(f);
    hand_init(&f->h, N_NODES, N_NODES, 1000);
    f->incarnation = 77;
    opts.client = f->h.client;
    opts.transport = &f->h.transport;
    opts.health = f->h.health;
    assert_int_equal(prober_new(&opts, &f->p), 0);
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;

    if (f->n_idle == 0)
        prober_stop(f->p, on_idle, f);
    hand_run(&f->h);
    assert_true(prober_idle(f->p));
    prober_free(f->p);
    hand_fini(&f->h);
    free(f);
    return 0;
}

static void hello(struct fixture *f, unsigned i, uint8_t node_state)
{
    hand_answer(&f->h, i, (struct answer){.kind = ANS_HELLO, .recovering = node_state}, 5);
}

/* Answers the HELLOs that are under way; returns how many there were. */
static unsigned hello_all(struct fixture *f)
{
    unsigned n = 0;

    for (unsigned i = 0; i < f->h.n_calls; i++) {
        if (f->h.calls[i] == NULL)
            continue;
        hello(f, i, NODE_WHOLE);
        n++;
    }
    return n;
}

static void every_node_is_asked_at_once_and_then_each_half_second(void **state)
{
    struct fixture *f = *state;

    hand_run(&f->h);
    assert_int_equal(f->h.n_calls, N_NODES);
    assert_int_equal(hand_message(&f->h, 0).node, SELF);
    assert_int_equal(hand_message(&f->h, 0).incarnation, 77);
    assert_int_equal(hand_message(&f->h, 0).recovering, NODE_WHOLE);
    assert_int_equal(hello_all(f), N_NODES);
    assert_int_equal(f->n_results, N_NODES);
    hand_run_until(&f->h, HAND_START_US + HEALTH_PROBE_US - 1);
    assert_int_equal(f->h.n_calls, N_NODES);
    hand_run_until(&f->h, HAND_START_US + HEALTH_PROBE_US);
    assert_int_equal(f->h.n_calls, 2 * N_NODES);
}

static void a_node_that_was_heard_of_is_left_alone(void **state)
{
    struct fixture *f = *state;

    hand_run(&f->h);
    hello_all(f);
    hand_run_until(&f->h, HAND_START_US + HEALTH_PROBE_US - 1);
    health_answered(f->h.health, 0, f->h.now_us, 100, false, 1000, 5);
    hand_run_until(&f->h, HAND_START_US + HEALTH_PROBE_US);
    assert_int_equal(f->h.n_calls, 2 * N_NODES - 1);
}

/* It refuses all else, which is heard of it: only HELLO tells when it is whole again. */
static void a_node_that_recovers_or_seems_to_is_asked_though_it_was_heard_of(void **state)
{
    struct fixture *f = *state;

    hand_run(&f->h);
    hello(f, 0, NODE_RECOVERING);
    hello_all(f);
    hand_run_until(&f->h, HAND_START_US + HEALTH_PROBE_US - 1);
    for (unsigned i = 0; i < N_NODES; i++)
        health_answered(f->h.health, i, f->h.now_us, 100, false, 1000, 5);
    health_refused(f->h.health, 1);
    hand_run_until(&f->h, HAND_START_US + HEALTH_PROBE_US);
    assert_int_equal(f->h.n_calls, N_NODES + 2);
    hello_all(f);
    for (unsigned i = 0; i < N_NODES; i++)
        assert_true(health_fit(f->h.health, i));
    assert_false(health_get(f->h.health, 1).doubtful);
}

static void a_node_whose_store_fails_is_asked_until_it_is_well(void **state)
{
    struct fixture *f = *state;
    struct answer ill = {.kind = ANS_HELLO, .ailment = span_str("no disk")};

    hand_run(&f->h);
    hand_answer(&f->h, 0, ill, 5);
    hello_all(f);
    hand_run_until(&f->h, HAND_START_US + HEALTH_PROBE_US - 1);
    for (unsigned i = 0; i < N_NODES; i++)
        health_answered(f->h.health, i, f->h.now_us, 100, false, 1000, 5);
    assert_false(health_fit(f->h.health, 0));
    hand_run_until(&f->h, HAND_START_US + HEALTH_PROBE_US);
    assert_int_equal(f->h.n_calls, N_NODES + 1);
    hello_all(f);
    assert_true(health_fit(f->h.health, 0));
}

static void while_it_recovers_itself_it_asks_all_ten_times_a_second(void **state)
{
    struct fixture *f = *state;
    unsigned n;

    f->state = NODE_RECOVERING;
    hand_run(&f->h);
    assert_int_equal(hand_message(&f->h, 0).recovering, NODE_RECOVERING);
    hello_all(f);
    for (unsigned i = 1; i <= 5; i++) {
        f->incarnation++; /* as it is now */
        n = f->h.n_calls;
        hand_run_until(&f->h, HAND_START_US + i * 100000);
        assert_int_equal(f->h.n_calls, n + N_NODES);
        assert_int_equal(hand_message(&f->h, n).incarnation, f->incarnation);
        hello_all(f);
    }
    f->state = NODE_WHOLE;
    hand_run_until(&f->h, HAND_START_US + 500000 + HEALTH_PROBE_US - 1);
    n = f->h.n_calls;
    hello_all(f);
    assert_true(n <= N_NODES * 7);
}

static void a_node_that_fails_is_told_of_and_asked_again(void **state)
{
    struct fixture *f = *state;

    hand_run(&f->h);
    hand_fail(&f->h, 0, -ECONNREFUSED);
    assert_int_equal(f->n_failures, 1);
    hello_all(f);
    hand_run_until(&f->h, HAND_START_US + HEALTH_PROBE_US);
    assert_int_equal(f->h.n_calls, 2 * N_NODES);
}

static void after_the_stop_nothing_is_told_but_that_it_is_idle(void **state)
{
    struct fixture *f = *state;

    hand_run(&f->h);
    hello(f, 0, NODE_WHOLE);
    prober_stop(f->p, on_idle, f);
    assert_false(prober_idle(f->p));
    hand_run(&f->h);
    assert_int_equal(f->n_idle, 1);
    assert_int_equal(f->n_results, 1);
    hand_run_until(&f->h, HAND_START_US + 10 * HEALTH_PROBE_US);
    assert_int_equal(f->h.n_calls, N_NODES);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
        TEST(every_node_is_asked_at_once_and_then_each_half_second),
        TEST(a_node_that_was_heard_of_is_left_alone),
        TEST(a_node_that_recovers_or_seems_to_is_asked_though_it_was_heard_of),
        TEST(a_node_whose_store_fails_is_asked_until_it_is_well),
        TEST(while_it_recovers_itself_it_asks_all_ten_times_a_second),
        TEST(a_node_that_fails_is_told_of_and_asked_again),
        TEST(after_the_stop_nothing_is_told_but_that_it_is_idle),
    };

    return cmocka_run_group_tests_name("prober", tests, NULL, NULL);
}

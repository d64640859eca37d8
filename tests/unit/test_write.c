/*
 * test_write.c - WRITE against answers given by hand: turns of one key, what the report waits for,
 * and how long without a quorum.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/client.h"
#include "common/config.h"

#define CALLS_MAX 64u
#define START_US 1000000u
#define TIMEOUT_MS 1000u
#define REPORT_MS 100u

/* --- fixture ---------------------------------------------------------------------------------- */

/* A client whose calls wait for the test to answer them, and whose time the test moves. */
struct fixture {
    struct transport transport;
    struct clock clock;
    uint64_t now_us;
    struct config *cfg;
    struct health *health;
    struct client *client;
    struct call *calls[CALLS_MAX];
    unsigned n_calls; /* sent so far */
    struct timer *timers[CALLS_MAX];
};

struct outcome {
    bool done, certain;
    int err;
    uint64_t at_us;
    struct fixture *f;
};

static uint64_t now_us(struct clock *c)
{
    return container_of(c, struct fixture, clock)->now_us;
}

static void keep_call(struct transport *t, struct call *call)
{
    struct fixture *f = container_of(t, struct fixture, transport);

    assert_true(f->n_calls < CALLS_MAX);
    f->calls[f->n_calls++] = call;
}

static void timer_set(struct transport *t, struct timer *timer, uint64_t due_us)
{
    struct fixture *f = container_of(t, struct fixture, transport);
    unsigned i = 0;

    while (f->timers[i] != NULL && f->timers[i] != timer)
        assert_true(++i < CALLS_MAX);
    f->timers[i] = timer;
    timer->slot = i + 1;
    timer->due_us = due_us;
}

static void timer_clear(struct transport *t, struct timer *timer)
{
    struct fixture *f = container_of(t, struct fixture, transport);

    if (timer->slot > 0)
        f->timers[timer->slot - 1] = NULL;
    timer->slot = 0;
}

static const struct transport_ops by_hand = {keep_call, timer_set, timer_clear};

static int setup(void **state)
{
    struct fixture *f = calloc(1, sizeof *f);
    struct client_opts opts = {.seed = 1, .proposer = 1, .timeout_ms = TIMEOUT_MS};
    struct err err = {""};

    f->now_us = START_US;
    f->clock = (struct clock){now_us, now_us};
    f->transport = (struct transport){&by_hand, &f->clock};
    assert_int_equal(
        config_parse("test",
                     span_str("{\"nodes\":[{\"id\":\"n0\",\"addr\":\"h0:1\"},{\"id\":\"n1\","
                              "\"addr\":\"h1:1\"},{\"id\":\"n2\",\"addr\":\"h2:1\"}],"
                              "\"replication_factor\":3}"),
                     &f->cfg, &err),
        0);
    assert_int_equal(health_new(3, &f->health), 0);
    opts.ring = f->cfg->ring;
    opts.transport = &f->transport;
    opts.health = f->health;
    assert_int_equal(client_new(&opts, &f->client), 0);
    *state = f;
    return 0;
}

/* Moves time, and fires on the way what is due. */
static void run_until(struct fixture *f, uint64_t until_us)
{
    for (;;) {
        struct timer *next = NULL;

        for (unsigned i = 0; i < CALLS_MAX; i++)
            if (f->timers[i] != NULL && f->timers[i]->due_us <= until_us &&
                (next == NULL || f->timers[i]->due_us < next->due_us))
                next = f->timers[i];
        if (next == NULL)
            break;
        if (next->due_us > f->now_us)
            f->now_us = next->due_us;
        timer_clear(&f->transport, next);
        next->fire(next);
    }
    f->now_us = until_us;
}

/* All operations have ended: so may their calls. */
static int teardown(void **state)
{
    struct fixture *f = *state;

    for (unsigned i = 0; i < f->n_calls; i++)
        if (f->calls[i] != NULL)
            f->calls[i]->done(f->calls[i], -ECANCELED, NULL);
    client_free(f->client);
    health_free(f->health);
    config_free(f->cfg);
    free(f);
    return 0;
}

/* --- helpers ---------------------------------------------------------------------------------- */

/* Answers the i-th call: a PREPARE of a key never written is promised, an ACCEPT accepted. */
static void answer(struct fixture *f, unsigned i, enum answer_kind kind)
{
    struct answer a = {.kind = kind, .clock_ms = 1000, .incarnation = 5};
    struct call *call = f->calls[i];
    struct buf bytes = {0};
    struct blob *blob;

    answer_encode(&bytes, kind == ANS_PROMISE ? span_str("k") : span_of(NULL, 0), &a);
    assert_int_equal(bytes.err, 0);
    blob = blob_new(bytes.len);
    memcpy(blob->data, bytes.data, bytes.len);
    buf_fini(&bytes);
    f->calls[i] = NULL;
    call->done(call, 0, blob);
}

static int edit(void *ctx, const struct record *cur, struct value cur_value, struct draft *next)
{
    (void)ctx;
    (void)cur;
    (void)cur_value;
    (void)next; /* an empty value */
    return 0;
}

static void on_write(void *arg, struct write_result *res)
{
    struct outcome *o = arg;

    assert_false(o->done);
    o->done = true;
    o->err = res->err;
    o->certain = res->certain;
    o->at_us = o->f->now_us;
}

static void start(struct fixture *f, struct outcome *o, const char *key, uint32_t report_ms,
                  uint64_t size)
{
    struct write_args args = {
        .key = span_str(key), .edit = edit, .report_wait_ms = report_ms, .size_hint = size};

    *o = (struct outcome){.f = f};
    assert_non_null(client_write(f->client, &args, on_write, o));
}

static unsigned node_down(struct fixture *f, unsigned place)
{
    unsigned node = ring_replicas(f->cfg->ring, span_str("k"))[place];

    health_answered(f->health, node, START_US, 100, false, 1000, 5);
    health_failed(f->health, node, START_US, -ECONNREFUSED);
    return node;
}

/* --- turns ------------------------------------------------------------------------------------ */

static void writes_of_one_key_begin_when_the_one_before_is_decided(void **state)
{
    struct fixture *f = *state;
    struct outcome first, second, other;

    start(f, &first, "k", 0, 0);
    assert_int_equal(f->n_calls, 3);
    start(f, &second, "k", 0, 0);
    assert_int_equal(f->n_calls, 3);
    start(f, &other, "another", 0, 0);
    assert_int_equal(f->n_calls, 6);
    answer(f, 0, ANS_PROMISE);
    answer(f, 1, ANS_PROMISE);
    assert_int_equal(f->n_calls, 9);
    answer(f, 6, ANS_ACCEPTED);
    run_until(f, f->now_us);
    assert_int_equal(f->n_calls, 9);
    answer(f, 7, ANS_ACCEPTED);
    assert_true(first.done && first.err == 0);
    run_until(f, f->now_us);
    assert_int_equal(f->n_calls, 12);
    assert_false(second.done);
    run_until(f, START_US + 2000 * TIMEOUT_MS);
    assert_true(second.done && second.err == -EHOSTDOWN && other.done);
}

static void the_next_write_does_not_wait_for_the_report_of_the_one_before(void **state)
{
    struct fixture *f = *state;
    struct outcome first, second;

    start(f, &first, "k", REPORT_MS, 0);
    start(f, &second, "k", REPORT_MS, 0);
    answer(f, 0, ANS_PROMISE);
    answer(f, 1, ANS_PROMISE);
    answer(f, 3, ANS_ACCEPTED);
    answer(f, 4, ANS_ACCEPTED);
    run_until(f, f->now_us);
    assert_false(first.done);
    assert_int_equal(f->n_calls, 9);
    run_until(f, START_US + 2000 * TIMEOUT_MS);
    assert_true(first.done && first.err == 0 && second.done);
}

static void a_write_goes_ahead_when_the_one_before_takes_half_its_timeout(void **state)
{
    struct fixture *f = *state;
    struct outcome first, second;

    start(f, &first, "k", 0, 0);
    start(f, &second, "k", 0, 0);
    run_until(f, START_US + 500 * TIMEOUT_MS - 1);
    assert_int_equal(f->n_calls, 3);
    run_until(f, START_US + 500 * TIMEOUT_MS);
    assert_true(f->n_calls > 3);
    run_until(f, START_US + 1000 * TIMEOUT_MS);
    assert_true(first.done && second.done);
    assert_true(first.certain && second.certain);
}

/* --- the report ------------------------------------------------------------------------------- */

static void the_report_waits_for_a_replica_that_is_up(void **state)
{
    struct fixture *f = *state;
    struct outcome o;

    start(f, &o, "k", REPORT_MS, 0);
    answer(f, 0, ANS_PROMISE);
    answer(f, 1, ANS_PROMISE);
    answer(f, 3, ANS_ACCEPTED);
    answer(f, 4, ANS_ACCEPTED);
    assert_false(o.done);
    run_until(f, START_US + 1000 * REPORT_MS);
    assert_true(o.done && o.err == 0);
    assert_int_equal(o.at_us, START_US + 1000 * REPORT_MS);
}

/* It was asked because the others took longer than usual. */
static void the_report_does_not_wait_for_a_replica_that_is_down(void **state)
{
    struct fixture *f = *state;
    struct outcome o;
    unsigned down = node_down(f, 2);

    start(f, &o, "k", REPORT_MS, 0);
    assert_int_equal(f->n_calls, 2);
    answer(f, 0, ANS_PROMISE);
    answer(f, 1, ANS_PROMISE);
    assert_int_equal(f->n_calls, 4);
    run_until(f, START_US + HEALTH_HEDGE_MAX_US);
    assert_int_equal(f->n_calls, 5);
    assert_int_equal(f->calls[4]->node, down);
    answer(f, 2, ANS_ACCEPTED);
    answer(f, 3, ANS_ACCEPTED);
    assert_true(o.done && o.err == 0);
}

/* --- time ------------------------------------------------------------------------------------- */

static void a_large_value_gets_more_time_while_a_quorum_is_up(void **state)
{
    struct fixture *f = *state;
    struct outcome o;

    start(f, &o, "k", 0, 64 << 20);
    run_until(f, START_US + 900 * TIMEOUT_MS);
    for (unsigned i = 0; i < 2; i++)
        health_answered(f->health, f->calls[i]->node, f->now_us, 100, true, 1000, 5);
    run_until(f, START_US + 3500 * TIMEOUT_MS);
    assert_false(o.done);
    run_until(f, START_US + 8000 * TIMEOUT_MS);
    assert_true(o.done && o.err == -EHOSTDOWN);
}

static void a_large_value_gets_no_more_time_where_no_quorum_is_up(void **state)
{
    struct fixture *f = *state;
    struct outcome o;

    (void)node_down(f, 1);
    (void)node_down(f, 2);
    start(f, &o, "k", 0, 64 << 20);
    run_until(f, START_US + 1300 * TIMEOUT_MS);
    assert_true(o.done && o.err == -EHOSTDOWN && o.certain);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(writes_of_one_key_begin_when_the_one_before_is_decided,
                                        setup, teardown),
        cmocka_unit_test_setup_teardown(
            the_next_write_does_not_wait_for_the_report_of_the_one_before, setup, teardown),
        cmocka_unit_test_setup_teardown(
            a_write_goes_ahead_when_the_one_before_takes_half_its_timeout, setup, teardown),
        cmocka_unit_test_setup_teardown(the_report_waits_for_a_replica_that_is_up, setup, teardown),
        cmocka_unit_test_setup_teardown(the_report_does_not_wait_for_a_replica_that_is_down, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(a_large_value_gets_more_time_while_a_quorum_is_up, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(a_large_value_gets_no_more_time_where_no_quorum_is_up,
                                        setup, teardown),
    };

    return cmocka_run_group_tests_name("write", tests, NULL, NULL);
}

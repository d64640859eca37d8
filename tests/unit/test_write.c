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

#include "tests/lib/hand.h"

#define START_US HAND_START_US
#define TIMEOUT_MS 1000u
#define REPORT_MS 100u

struct outcome {
    bool done, certain;
    int err;
    uint64_t at_us;
    struct hand *h;
};

static int setup(void **state)
{
    struct hand *h = malloc(sizeof *h);

    assert_non_null(h);
    hand_init(h, 3, 3, TIMEOUT_MS);
    *state = h;
    return 0;
}

/* All operations have ended. */
static int teardown(void **state)
{
    hand_fini(*state);
    free(*state);
    return 0;
}

/* --- helpers ---------------------------------------------------------------------------------- */

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
    o->at_us = o->h->now_us;
}

static void start(struct hand *h, struct outcome *o, const char *key, uint32_t report_ms,
                  uint64_t size)
{
    struct write_args args = {
        .key = span_str(key), .edit = edit, .report_wait_ms = report_ms, .size_hint = size};

    *o = (struct outcome){.h = h};
    assert_non_null(client_write(h->client, &args, on_write, o));
}

static unsigned node_down(struct hand *h, unsigned place)
{
    unsigned node = ring_replicas(h->cfg->ring, span_str("k"))[place];

    health_answered(h->health, node, START_US, 100, false, 1000, 5);
    health_failed(h->health, node, START_US, -ECONNREFUSED);
    return node;
}

/* --- ballots ---------------------------------------------------------------------------------- */

static void a_counter_that_no_clock_can_reach_is_not_believed(void **state)
{
    struct hand *h = *state;
    struct outcome first;
    uint64_t before, after;

    start(h, &first, "k", 0, 0);
    before = hand_message(h, 0).ballot.counter;
    for (unsigned i = 0; i < 3; i++)
        hand_refuse(h, i, (struct ballot){UINT64_MAX, 1});
    hand_run_until(h, START_US + 1000 * TIMEOUT_MS / 2);
    assert_true(h->n_calls >= 6);
    after = hand_message(h, 3).ballot.counter;
    assert_true(after > before && after < BALLOT_COUNTER_MAX);
    hand_run_out(h);
    assert_true(first.done);
}

/* --- turns ------------------------------------------------------------------------------------ */

static void writes_of_one_key_begin_when_the_one_before_is_decided(void **state)
{
    struct hand *h = *state;
    struct outcome first, second, other;

    start(h, &first, "k", 0, 0);
    assert_int_equal(h->n_calls, 3);
    start(h, &second, "k", 0, 0);
    assert_int_equal(h->n_calls, 3);
    start(h, &other, "another", 0, 0);
    assert_int_equal(h->n_calls, 6);
    hand_say(h, 0, ANS_PROMISE);
    hand_say(h, 1, ANS_PROMISE);
    assert_int_equal(h->n_calls, 9);
    hand_say(h, 6, ANS_ACCEPTED);
    hand_run(h);
    assert_int_equal(h->n_calls, 9);
    hand_say(h, 7, ANS_ACCEPTED);
    assert_true(first.done && first.err == 0);
    hand_run(h);
    assert_int_equal(h->n_calls, 12);
    assert_false(second.done);
    hand_run_until(h, START_US + 2000 * TIMEOUT_MS);
    assert_true(second.done && second.err == -EHOSTDOWN && other.done);
}

static void the_next_write_does_not_wait_for_the_report_of_the_one_before(void **state)
{
    struct hand *h = *state;
    struct outcome first, second;

    start(h, &first, "k", REPORT_MS, 0);
    start(h, &second, "k", REPORT_MS, 0);
    hand_say(h, 0, ANS_PROMISE);
    hand_say(h, 1, ANS_PROMISE);
    hand_say(h, 3, ANS_ACCEPTED);
    hand_say(h, 4, ANS_ACCEPTED);
    hand_run(h);
    assert_false(first.done);
    assert_int_equal(h->n_calls, 9);
    hand_run_until(h, START_US + 2000 * TIMEOUT_MS);
    assert_true(first.done && first.err == 0 && second.done);
}

static void a_write_goes_ahead_when_the_one_before_takes_half_its_timeout(void **state)
{
    struct hand *h = *state;
    struct outcome first, second;

    start(h, &first, "k", 0, 0);
    start(h, &second, "k", 0, 0);
    hand_run_until(h, START_US + 500 * TIMEOUT_MS - 1);
    assert_int_equal(h->n_calls, 3);
    hand_run_until(h, START_US + 500 * TIMEOUT_MS);
    assert_true(h->n_calls > 3);
    hand_run_until(h, START_US + 1000 * TIMEOUT_MS);
    assert_true(first.done && second.done);
    assert_true(first.certain && second.certain);
}

/* --- the report ------------------------------------------------------------------------------- */

static void the_report_waits_for_a_replica_that_is_up(void **state)
{
    struct hand *h = *state;
    struct outcome o;

    start(h, &o, "k", REPORT_MS, 0);
    hand_say(h, 0, ANS_PROMISE);
    hand_say(h, 1, ANS_PROMISE);
    hand_say(h, 3, ANS_ACCEPTED);
    hand_say(h, 4, ANS_ACCEPTED);
    assert_false(o.done);
    hand_run_until(h, START_US + 1000 * REPORT_MS);
    assert_true(o.done && o.err == 0);
    assert_int_equal(o.at_us, START_US + 1000 * REPORT_MS);
}

/* It was asked because the others took longer than usual. */
static void the_report_does_not_wait_for_a_replica_that_is_down(void **state)
{
    struct hand *h = *state;
    struct outcome o;
    unsigned down = node_down(h, 2);

    start(h, &o, "k", REPORT_MS, 0);
    assert_int_equal(h->n_calls, 2);
    hand_say(h, 0, ANS_PROMISE);
    hand_say(h, 1, ANS_PROMISE);
    assert_int_equal(h->n_calls, 4);
    hand_run_until(h, START_US + HEALTH_HEDGE_MAX_US);
    assert_int_equal(h->n_calls, 5);
    assert_int_equal(h->calls[4]->node, down);
    hand_say(h, 2, ANS_ACCEPTED);
    hand_say(h, 3, ANS_ACCEPTED);
    assert_true(o.done && o.err == 0);
}

/* It could only say that it does not vote. */
static void a_replica_that_recovers_is_asked_when_the_others_do_not_suffice(void **state)
{
    struct hand *h = *state;
    unsigned recovering = ring_replicas(h->cfg->ring, span_str("k"))[0];
    struct outcome o;

    health_answered(h->health, recovering, START_US, 100, false, 1000, 5);
    health_hello(h->health, recovering, 0, 0, 0, true);
    start(h, &o, "k", 0, 0);
    assert_int_equal(h->n_calls, 2);
    hand_say(h, 0, ANS_PROMISE);
    hand_fail(h, 1, -ECONNREFUSED);
    assert_int_equal(h->n_calls, 3);
    assert_int_equal(h->calls[2]->node, recovering);
    hand_run_out(h);
    assert_true(o.done && o.certain);
}

/* --- the present value ------------------------------------------------------------------------ */

/* What an append is given of the present value. */
struct seen {
    const uint8_t *data;
    unsigned n;
};

static int edit_append(void *ctx, const struct record *cur, struct value cur_value,
                       struct draft *next)
{
    struct seen *seen = ctx;

    (void)cur;
    assert_true(span_eq(value_span(cur_value), span_str("old")));
    seen->data = cur_value.data;
    seen->n++;
    next->value = value_ref(cur_value);
    return value_copy(span_str("+"), &next->tail);
}

static void what_a_try_was_brought_is_not_fetched_again_by_the_next(void **state)
{
    struct hand *h = *state;
    struct seen seen = {0};
    struct write_args args = {
        .key = span_str("k"), .edit = edit_append, .ctx = &seen, .want_value = true};
    struct answer a = {
        .kind = ANS_PROMISE,
        .record = {.version = {5, 1}, .seq = 1, .n_recent = 1, .recent = {77}, .size = 3}};
    struct outcome o = {.h = h};
    struct buf sums = {0};
    const uint8_t *first;

    record_sums(&sums, span_str("old"));
    a.record.sums = buf_span(&sums);
    assert_non_null(client_write(h->client, &args, on_write, &o));
    hand_answer(h, 1, a, 0);
    a.has_value = true;
    hand_answer_value(h, 0, a, span_str("old"));
    assert_int_equal(seen.n, 1);
    first = seen.data;
    hand_refuse(h, 3, (struct ballot){6, 1});
    hand_refuse(h, 4, (struct ballot){6, 1});
    hand_run_until(h, START_US + 1000 * TIMEOUT_MS / 2);
    a.has_value = false;
    hand_answer(h, 6, a, 0);
    hand_answer(h, 7, a, 0);
    assert_int_equal(seen.n, 2);
    assert_ptr_equal(seen.data, first);
    assert_int_equal(hand_message(h, 9).kind, MSG_ACCEPT);
    hand_run_out(h);
    assert_true(o.done);
    buf_fini(&sums);
}

/* --- time ------------------------------------------------------------------------------------- */

static void a_large_value_gets_more_time_while_a_quorum_is_up(void **state)
{
    struct hand *h = *state;
    struct outcome o;

    start(h, &o, "k", 0, 64 << 20);
    hand_run_until(h, START_US + 900 * TIMEOUT_MS);
    for (unsigned i = 0; i < 2; i++)
        health_answered(h->health, h->calls[i]->node, h->now_us, 100, true, 1000, 5);
    hand_run_until(h, START_US + 3500 * TIMEOUT_MS);
    assert_false(o.done);
    hand_run_until(h, START_US + 8000 * TIMEOUT_MS);
    assert_true(o.done && o.err == -EHOSTDOWN);
}

static void a_large_value_gets_no_more_time_where_no_quorum_is_up(void **state)
{
    struct hand *h = *state;
    struct outcome o;

    (void)node_down(h, 1);
    (void)node_down(h, 2);
    start(h, &o, "k", 0, 64 << 20);
    hand_run_until(h, START_US + 1300 * TIMEOUT_MS);
    assert_true(o.done && o.err == -EHOSTDOWN && o.certain);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_counter_that_no_clock_can_reach_is_not_believed, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(writes_of_one_key_begin_when_the_one_before_is_decided,
                                        setup, teardown),
        cmocka_unit_test_setup_teardown(
            the_next_write_does_not_wait_for_the_report_of_the_one_before, setup, teardown),
        cmocka_unit_test_setup_teardown(
            a_write_goes_ahead_when_the_one_before_takes_half_its_timeout, setup, teardown),
        cmocka_unit_test_setup_teardown(the_report_waits_for_a_replica_that_is_up, setup, teardown),
        cmocka_unit_test_setup_teardown(the_report_does_not_wait_for_a_replica_that_is_down, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(
            a_replica_that_recovers_is_asked_when_the_others_do_not_suffice, setup, teardown),
        cmocka_unit_test_setup_teardown(what_a_try_was_brought_is_not_fetched_again_by_the_next,
                                        setup, teardown),
        cmocka_unit_test_setup_teardown(a_large_value_gets_more_time_while_a_quorum_is_up, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(a_large_value_gets_no_more_time_where_no_quorum_is_up,
                                        setup, teardown),
    };

    return cmocka_run_group_tests_name("write", tests, NULL, NULL);
}

/*
 * test_background.c - read repair: what the client asks and mends of its own accord after a READ,
 * against answers given by hand.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <stdlib.h>

#include "tests/lib/hand.h"

#define TIMEOUT_MS 1000u
#define CHECKS 50u /* a second, and at once */

struct fixture {
    struct hand h;
    unsigned n_done;
    int err;
};

static const struct record newer = {.version = {10, 7}, .flags = RECORD_TOMBSTONE, .seq = 3};
static const struct record none;
static const struct record older = {.version = {5, 7}, .seq = 1};

static int setup(void **state)
{
    struct fixture *f = calloc(1, sizeof *f);

    assert_non_null(f);
    hand_init(&f->h, 3, 3, TIMEOUT_MS);
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;

    hand_run_out(&f->h); /* whatever a test that failed left under way */
    hand_fini(&f->h);
    free(f);
    return 0;
}

static void on_read(void *arg, struct read_result *res)
{
    struct fixture *f = arg;

    f->n_done++;
    f->err = res->err;
}

static void state(struct fixture *f, unsigned i, const struct record *rec)
{
    hand_answer(&f->h, i, (struct answer){.kind = ANS_STATE, .record = *rec}, 5);
}

/* A READ of the key, which its first two replicas answer alike. */
static void read_key(struct fixture *f, const char *key)
{
    struct read_args args = {.key = span_str(key)};
    unsigned at = f->h.n_calls, n_done = f->n_done;

    assert_non_null(client_read(f->h.client, &args, on_read, f));
    assert_int_equal(f->h.n_calls, at + 2);
    state(f, at, &newer);
    state(f, at + 1, &newer);
    assert_int_equal(f->n_done, n_done + 1);
    assert_int_equal(f->err, 0);
}

/* After the moment that a write under way is given, a mending begins with a READ of all three. */
static unsigned await_mending(struct fixture *f)
{
    unsigned at = f->h.n_calls;

    hand_run_until(&f->h, f->h.now_us + 30000);
    assert_int_equal(f->h.n_calls, at + 3);
    for (unsigned i = at; i < at + 3; i++)
        assert_int_equal(hand_message(&f->h, i).kind, MSG_READ);
    return at;
}

static void assert_no_mending(struct fixture *f)
{
    unsigned at = f->h.n_calls;

    hand_run_until(&f->h, f->h.now_us + 200000);
    assert_int_equal(f->h.n_calls, at);
}

/* --- checks ----------------------------------------------------------------------------------- */

static void the_replica_that_a_read_did_not_need_is_asked_for_its_version(void **state_)
{
    struct fixture *f = *state_;
    unsigned at;

    read_key(f, "k");
    assert_int_equal(f->h.n_calls, 3);
    assert_int_equal(hand_message(&f->h, 2).kind, MSG_READ);
    assert_int_equal(hand_message(&f->h, 2).flags, 0);
    assert_int_equal(hand_place(&f->h, 2), 2);
    state(f, 2, &older);
    at = await_mending(f);
    for (unsigned i = at; i < at + 3; i++)
        state(f, i, hand_place(&f->h, i) == 2 ? &older : &newer);
    assert_int_equal(hand_message(&f->h, at + 3).kind, MSG_ACCEPT);
    assert_int_equal(hand_place(&f->h, at + 3), 2);
    hand_say(&f->h, at + 3, ANS_ACCEPTED);
    assert_int_equal(hand_n_open(&f->h), 0);
}

static void a_replica_that_agrees_or_is_ahead_is_left_alone(void **state_)
{
    struct fixture *f = *state_;
    struct record ahead = newer;

    read_key(f, "k");
    state(f, 2, &newer);
    assert_no_mending(f);
    ahead.version.counter++; /* a write under way: it brings the others along itself */
    read_key(f, "k");
    state(f, 5, &ahead);
    assert_no_mending(f);
}

static void a_replica_that_is_down_or_recovering_is_not_asked(void **state_)
{
    struct fixture *f = *state_;
    unsigned last = ring_replicas(f->h.cfg->ring, span_str("k"))[2];

    health_answered(f->h.health, last, HAND_START_US, 100, false, 1000, 5);
    health_hello(f->h.health, last, 0, 0, 0, true);
    read_key(f, "k");
    assert_int_equal(f->h.n_calls, 2);
    health_hello(f->h.health, last, 0, 0, 0, false);
    health_failed(f->h.health, last, HAND_START_US, -ECONNREFUSED);
    read_key(f, "k");
    assert_int_equal(f->h.n_calls, 4);
}

static void many_reads_are_followed_by_a_few_checks_only(void **state_)
{
    struct fixture *f = *state_;
    unsigned n;

    for (unsigned i = 0; i < CHECKS + 10; i++) {
        read_key(f, "k");
        while (hand_n_open(&f->h) > 0)
            state(f, f->h.n_calls - 1, &newer);
    }
    assert_int_equal(f->h.n_calls, 2 * (CHECKS + 10) + CHECKS);
    hand_run_until(&f->h, f->h.now_us + 2 * 1000000 / CHECKS);
    n = f->h.n_calls;
    for (unsigned i = 0; i < 5; i++) {
        read_key(f, "k");
        while (hand_n_open(&f->h) > 0)
            state(f, f->h.n_calls - 1, &newer);
    }
    assert_int_equal(f->h.n_calls, n + 2 * 5 + 2);
}

static void a_read_of_one_version_looks_for_nothing_else(void **state_)
{
    struct fixture *f = *state_;
    struct read_args args = {.key = span_str("k"), .pin = newer.version};

    assert_non_null(client_read(f->h.client, &args, on_read, f));
    assert_int_equal(f->h.n_calls, 1);
    state(f, 0, &newer);
    assert_int_equal(f->n_done, 1);
    assert_int_equal(f->h.n_calls, 1);
}

/* --- what a READ sees itself ------------------------------------------------------------------ */

static void an_answer_that_comes_after_the_result_is_looked_at(void **state_)
{
    struct fixture *f = *state_;
    struct read_args args = {.key = span_str("k")};

    assert_non_null(client_read(f->h.client, &args, on_read, f));
    hand_run_until(&f->h, HAND_START_US + HEALTH_HEDGE_MAX_US);
    assert_int_equal(f->h.n_calls, 3); /* two were slow */
    state(f, 0, &newer);
    state(f, 2, &newer);
    assert_int_equal(f->n_done, 1);
    assert_no_mending(f);
    state(f, 1, &older);
    (void)await_mending(f);
    hand_run_out(&f->h);
}

/* It was asked what is below the key, of which it is no replica. */
static void a_late_answer_of_another_node_says_nothing_of_the_key(void **state_)
{
    struct fixture *f = *state_;
    struct read_args args = {.key = span_str("k"), .peek = true};
    unsigned other = 0;

    hand_fini(&f->h);
    hand_init(&f->h, 4, 3, TIMEOUT_MS);
    while (ring_is_replica(f->h.cfg->ring, span_str("k"), other))
        other++;
    assert_non_null(client_read(f->h.client, &args, on_read, f));
    hand_run_until(&f->h, HAND_START_US + 4 * HEALTH_HEDGE_MAX_US);
    assert_int_equal(f->h.n_calls, 4); /* all are slow */
    for (unsigned i = 0; i < 4; i++)
        if (f->h.calls[i]->node != other)
            state(f, i, &newer);
    assert_int_equal(f->n_done, 1);
    state(f, hand_find(&f->h, MSG_READ, other), &none);
    assert_no_mending(f);
}

static void a_replica_that_found_damage_is_mended(void **state_)
{
    struct fixture *f = *state_;
    struct read_args args = {.key = span_str("k")};

    assert_non_null(client_read(f->h.client, &args, on_read, f));
    hand_damaged(&f->h, 0);
    state(f, 1, &newer);
    state(f, 2, &newer);
    assert_int_equal(f->n_done, 1);
    assert_int_equal(f->err, 0);
    (void)await_mending(f);
    hand_run_out(&f->h);
}

/* Two of three refuse; their own version may be all that they need to be whole again. */
static void damage_that_stands_in_the_way_of_a_read_is_mended_while_it_tries(void **state_)
{
    struct fixture *f = *state_;
    struct read_args args = {.key = span_str("k"), .timeout_ms = 10000};
    unsigned at;

    assert_non_null(client_read(f->h.client, &args, on_read, f));
    hand_damaged(&f->h, 0);
    hand_damaged(&f->h, 1);
    state(f, 2, &newer);
    assert_int_equal(f->n_done, 0);
    hand_run_until(&f->h, HAND_START_US + 30000);
    assert_int_equal(f->h.n_calls, 9); /* its next try, of all three by now, and the mending */
    for (unsigned i = 3; i < f->h.n_calls; i++) {
        if (hand_message(&f->h, i).kind == MSG_ACCEPT)
            hand_say(&f->h, i, ANS_ACCEPTED);
        else if (hand_place(&f->h, i) < 2)
            hand_damaged(&f->h, i);
        else
            state(f, i, &newer);
    }
    assert_int_equal(f->n_done, 0);
    at = f->h.n_calls;
    hand_run_until(&f->h, f->h.now_us + 10000);
    state(f, at, &newer);
    state(f, at + 1, &newer);
    assert_true(f->n_done == 1 && f->err == 0);
    hand_run_out(&f->h);
}

/* --- as many as there may be ------------------------------------------------------------------ */

static void few_keys_are_mended_at_a_time_and_each_once(void **state_)
{
    struct fixture *f = *state_;
    char key[] = "k0";

    for (unsigned i = 0; i < 8; i++, key[1]++) {
        for (unsigned twice = 0; twice < 2; twice++) {
            read_key(f, key);
            state(f, f->h.n_calls - 1, &older);
        }
    }
    assert_int_equal(hand_n_open(&f->h), 0);
    hand_run_until(&f->h, f->h.now_us + 30000);
    assert_int_equal(hand_n_open(&f->h), 4 * 3);
    hand_run_out(&f->h);
}

/* --- the end ---------------------------------------------------------------------------------- */

static void what_is_under_way_ends_when_it_is_told_and_nothing_begins_any_more(void **state_)
{
    struct fixture *f = *state_;
    unsigned at;

    read_key(f, "mended"); /* fetches a value */
    state(f, f->h.n_calls - 1, &older);
    at = await_mending(f);
    for (unsigned i = at; i < at + 3; i++) {
        struct buf sums = {0};
        struct record rec = newer;

        record_sums(&sums, span_str("value"));
        rec.flags = 0;
        rec.size = 5;
        rec.sums = buf_span(&sums);
        state(f, i, i == at ? &rec : &older);
        buf_fini(&sums);
    }
    assert_int_equal(hand_message(&f->h, at + 3).kind, MSG_READ);
    assert_true(hand_message(&f->h, at + 3).flags & MSG_WANT_VALUE);
    read_key(f, "waits to be mended");
    state(f, f->h.n_calls - 1, &older);
    read_key(f, "is checked");
    assert_int_equal(hand_n_open(&f->h), 2);
    client_stop_background(f->h.client);
    at = f->h.n_calls;
    hand_run_out(&f->h);
    read_key(f, "too late");
    assert_int_equal(f->h.n_calls, at + 2);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
        TEST(the_replica_that_a_read_did_not_need_is_asked_for_its_version),
        TEST(a_replica_that_agrees_or_is_ahead_is_left_alone),
        TEST(a_replica_that_is_down_or_recovering_is_not_asked),
        TEST(many_reads_are_followed_by_a_few_checks_only),
        TEST(a_read_of_one_version_looks_for_nothing_else),
        TEST(an_answer_that_comes_after_the_result_is_looked_at),
        TEST(a_late_answer_of_another_node_says_nothing_of_the_key),
        TEST(a_replica_that_found_damage_is_mended),
        TEST(damage_that_stands_in_the_way_of_a_read_is_mended_while_it_tries),
        TEST(few_keys_are_mended_at_a_time_and_each_once),
        TEST(what_is_under_way_ends_when_it_is_told_and_nothing_begins_any_more),
    };

    return cmocka_run_group_tests_name("background", tests, NULL, NULL);
}

/* test_mend.c - all replicas of a key up to the newest record, against answers given by hand. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <stdlib.h>

#include "tests/lib/hand.h"

#define TIMEOUT_MS 1000u

struct fixture {
    struct hand h;
    bool done;
    struct mend_result res; /* why and all; nothing in it is owned */
    struct buf sums;
    struct record newer; /* with a value */
};

static const struct record older = {.version = {5, 7}, .seq = 1};
static const struct record none;
static const struct record tombstone = {.version = {8, 7}, .flags = RECORD_TOMBSTONE, .seq = 2};

static int setup(void **state)
{
    struct fixture *f = calloc(1, sizeof *f);

    assert_non_null(f);
    hand_init(&f->h, 3, 3, TIMEOUT_MS);
    record_sums(&f->sums, span_str("value"));
    f->newer = (struct record){
        .version = {10, 7}, .seq = 3, .size = 5, .sums = buf_span(&f->sums), .mode = 0100644};
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;

    hand_run_out(&f->h); /* whatever a test that failed left under way */
    hand_fini(&f->h);
    buf_fini(&f->sums);
    free(f);
    return 0;
}

static void on_mended(void *arg, struct mend_result *res)
{
    struct fixture *f = arg;

    assert_false(f->done);
    f->done = true;
    f->res = *res;
}

static struct op *mend(struct fixture *f, uint64_t old_counter)
{
    struct mend_args args = {.key = span_str("k"), .old_counter = old_counter};
    struct op *op = client_mend(f->h.client, &args, on_mended, f);

    assert_non_null(op);
    assert_int_equal(f->h.n_calls, 3);
    for (unsigned i = 0; i < 3; i++) {
        assert_int_equal(hand_message(&f->h, i).kind, MSG_READ);
        assert_int_equal(hand_message(&f->h, i).flags, 0); /* no value */
    }
    return op;
}

static void state(struct fixture *f, unsigned i, const struct record *rec)
{
    hand_answer(&f->h, i, (struct answer){.kind = ANS_STATE, .record = *rec}, 5);
}

static void give_value(struct fixture *f, unsigned i)
{
    assert_int_equal(hand_message(&f->h, i).kind, MSG_READ);
    assert_true(ballot_cmp(hand_message(&f->h, i).pin, f->newer.version) == 0);
    hand_answer_value(&f->h, i, (struct answer){.kind = ANS_STATE, .record = f->newer},
                      span_str("value"));
}

static void assert_mended(const struct fixture *f, int err, unsigned n)
{
    assert_true(f->done);
    assert_int_equal(f->res.err, err);
    assert_int_equal(f->res.n_mended, n);
    assert_int_equal(hand_n_open(&f->h), 0);
}

/* --- who is behind ---------------------------------------------------------------------------- */

static void replicas_that_agree_are_left_alone(void **state_)
{
    struct fixture *f = *state_;

    mend(f, 0);
    for (unsigned i = 0; i < 3; i++)
        state(f, i, &f->newer);
    assert_mended(f, 0, 0);
    assert_int_equal(f->res.version.counter, 10);
    assert_int_equal(f->res.size, 5);
    assert_int_equal(f->h.n_calls, 3);
}

static void of_a_key_that_nobody_has_there_is_nothing_to_mend(void **state_)
{
    struct fixture *f = *state_;

    mend(f, 0);
    for (unsigned i = 0; i < 3; i++)
        state(f, i, &none);
    assert_mended(f, 0, 0);
    assert_true(ballot_is_none(f->res.version));
}

static void who_is_behind_gets_the_record_as_it_is_with_its_value(void **state_)
{
    struct fixture *f = *state_;
    unsigned behind;

    mend(f, 0);
    state(f, 0, &f->newer);
    behind = f->h.calls[2]->node;
    state(f, 2, &older);
    assert_int_equal(f->h.n_calls, 3); /* the third answer may name something newer */
    state(f, 1, &f->newer);
    give_value(f, 3);
    assert_int_equal(f->h.n_calls, 5);
    assert_int_equal(f->h.calls[4]->node, behind);
    assert_int_equal(hand_message(&f->h, 4).kind, MSG_ACCEPT);
    assert_true(ballot_cmp(hand_message(&f->h, 4).record.version, f->newer.version) == 0);
    assert_int_equal(hand_message(&f->h, 4).record.mode, 0100644);
    assert_true(span_eq(value_span(f->h.calls[4]->body), span_str("value")));
    hand_say(&f->h, 4, ANS_ACCEPTED);
    assert_mended(f, 0, 1);
}

static void a_record_that_one_replica_alone_has_is_brought_to_the_others(void **state_)
{
    struct fixture *f = *state_;

    mend(f, 0);
    state(f, 0, &none);
    state(f, 1, &tombstone);
    state(f, 2, &older);
    assert_int_equal(f->h.n_calls, 5); /* no value: nothing to fetch */
    hand_say(&f->h, 3, ANS_ACCEPTED);
    hand_say(&f->h, 4, ANS_ACCEPTED);
    assert_mended(f, 0, 2);
    assert_false(f->res.old_tombstone);
}

static void a_value_whose_first_holder_finds_it_damaged_comes_from_the_next(void **state_)
{
    struct fixture *f = *state_;

    mend(f, 0);
    state(f, 0, &f->newer);
    state(f, 1, &f->newer);
    state(f, 2, &none);
    assert_int_equal(f->h.n_calls, 4);
    hand_damaged(&f->h, 3);
    assert_int_equal(f->h.n_calls, 5);
    give_value(f, 4);
    hand_say(&f->h, 5, ANS_ACCEPTED);
    assert_mended(f, 0, 1);
}

/* --- who does not answer ---------------------------------------------------------------------- */

static void those_that_answer_are_mended_when_one_does_not(void **state_)
{
    struct fixture *f = *state_;

    mend(f, 0);
    hand_fail(&f->h, 0, -ECONNREFUSED);
    state(f, 1, &tombstone);
    state(f, 2, &older);
    hand_say(&f->h, 3, ANS_ACCEPTED);
    assert_mended(f, -EHOSTDOWN, 1);
    assert_int_equal(f->res.version.counter, 8);
    assert_true(f->res.why.msg[0] != '\0');
}

static void a_frozen_replica_costs_a_moment_and_no_more(void **state_)
{
    struct fixture *f = *state_;

    mend(f, 0);
    state(f, 1, &tombstone);
    state(f, 2, &older);
    assert_int_equal(f->h.n_calls, 3);
    hand_run_until(&f->h, HAND_START_US + 2 * HEALTH_SLOW_MIN_US);
    assert_int_equal(f->h.n_calls, 4);
    hand_say(&f->h, 3, ANS_ACCEPTED);
    assert_true(f->done);
    assert_int_equal(f->res.err, -EHOSTDOWN);
    assert_int_equal(f->res.n_mended, 1);
}

static void a_cancel_ends_it_while_the_value_is_fetched(void **state_)
{
    struct fixture *f = *state_;
    struct op *op = mend(f, 0);

    state(f, 0, &f->newer);
    state(f, 1, &none);
    state(f, 2, &none);
    assert_int_equal(f->h.n_calls, 4);
    op_cancel(op);
    hand_run(&f->h);
    assert_true(f->done);
    assert_int_equal(f->res.err, -EINTR);
}

/* --- a fresh ballot --------------------------------------------------------------------------- */

/* Answers the settling whose PREPAREs begin at call `at` up to its ACCEPTs; returns their first. */
static unsigned promise_all(struct fixture *f, unsigned at, const struct record *rec)
{
    assert_int_equal(f->h.n_calls, at + 3);
    for (unsigned i = at; i < at + 2; i++) {
        assert_int_equal(hand_message(&f->h, i).kind, MSG_PREPARE);
        hand_answer(&f->h, i, (struct answer){.kind = ANS_PROMISE, .record = *rec}, 5);
    }
    assert_int_equal(f->h.n_calls, at + 6);
    hand_answer(&f->h, at + 2, (struct answer){.kind = ANS_PROMISE, .record = *rec}, 5);
    return at + 3;
}

/* After its restart a node counts all as promised up to its floor. */
static void where_a_promise_stands_above_the_record_it_gets_a_fresh_ballot(void **state_)
{
    struct fixture *f = *state_;
    uint64_t floor = HAND_START_US * 9;
    unsigned at;

    mend(f, 0);
    state(f, 0, &tombstone);
    state(f, 1, &tombstone);
    state(f, 2, &none);
    hand_refuse(&f->h, 3, (struct ballot){floor, BALLOT_PROPOSER_MAX});
    assert_false(f->done);
    assert_true(hand_message(&f->h, 4).ballot.counter > floor);
    at = promise_all(f, 4, &tombstone);
    for (unsigned i = at; i < at + 3; i++)
        hand_say(&f->h, i, ANS_ACCEPTED);
    assert_mended(f, 0, 1);
    assert_true(f->res.version.counter > floor);
    assert_int_equal(f->res.flags, RECORD_TOMBSTONE);
}

/* Where only the value's bytes are bad, a replica takes them again under the version they had. */
static void a_damaged_replica_is_given_the_record_as_it_was(void **state_)
{
    struct fixture *f = *state_;
    unsigned damaged;

    mend(f, 0);
    state(f, 0, &f->newer);
    damaged = f->h.calls[1]->node;
    hand_damaged(&f->h, 1);
    state(f, 2, &f->newer);
    give_value(f, 3);
    assert_int_equal(f->h.calls[4]->node, damaged);
    assert_true(ballot_cmp(hand_message(&f->h, 4).record.version, f->newer.version) == 0);
    hand_say(&f->h, 4, ANS_ACCEPTED);
    assert_mended(f, 0, 1);
}

/* It refuses what is not above all that it can have had, and says what that is. */
static void a_damaged_record_is_replaced_with_as_high_a_ballot_as_it_takes(void **state_)
{
    struct fixture *f = *state_;
    uint64_t high = HAND_START_US * 9, higher = HAND_START_US * 99;
    unsigned at, damaged;

    mend(f, 0);
    state(f, 0, &tombstone);
    state(f, 1, &tombstone);
    damaged = f->h.calls[2]->node;
    hand_damaged(&f->h, 2);
    hand_refuse(&f->h, 3, (struct ballot){high, 9});
    assert_int_equal(f->h.n_calls, 7);
    assert_true(hand_message(&f->h, 4).ballot.counter > high);
    hand_answer(&f->h, 4, (struct answer){.kind = ANS_PROMISE, .record = tombstone}, 5);
    hand_answer(&f->h, 5, (struct answer){.kind = ANS_PROMISE, .record = tombstone}, 5);
    hand_damaged(&f->h, 6);
    hand_say(&f->h, 7, ANS_ACCEPTED);
    hand_say(&f->h, 8, ANS_ACCEPTED);
    assert_int_equal(f->h.calls[9]->node, damaged);
    hand_refuse(&f->h, 9, (struct ballot){higher, 9});
    hand_run(&f->h); /* the turn of the next */
    assert_false(f->done);
    assert_true(hand_message(&f->h, 10).ballot.counter > higher);
    at = promise_all(f, 10, &tombstone);
    for (unsigned i = at; i < at + 3; i++)
        hand_say(&f->h, i, ANS_ACCEPTED);
    assert_mended(f, 0, 1);
}

static void without_a_majority_a_damaged_record_is_not_settled(void **state_)
{
    struct fixture *f = *state_;

    mend(f, 0);
    state(f, 0, &tombstone);
    hand_damaged(&f->h, 1);
    hand_fail(&f->h, 2, -ECONNREFUSED);
    hand_refuse(&f->h, 3, (struct ballot){HAND_START_US * 9, 9});
    assert_mended(f, -EHOSTDOWN, 0);
}

static void of_two_damaged_of_three_each_is_mended_that_can_be(void **state_)
{
    struct fixture *f = *state_;

    mend(f, 0);
    hand_damaged(&f->h, 0);
    hand_damaged(&f->h, 1);
    state(f, 2, &tombstone);
    hand_say(&f->h, 3, ANS_ACCEPTED); /* its value was all that was bad; but the other: */
    hand_refuse(&f->h, 4, (struct ballot){HAND_START_US * 9, 9});
    assert_false(f->done);
    hand_run_out(&f->h);
    assert_true(f->done && f->res.err == -EHOSTDOWN && f->res.n_mended == 1);
}

static void what_two_of_three_find_damaged_cannot_be_settled(void **state_)
{
    struct fixture *f = *state_;

    mend(f, 0);
    hand_damaged(&f->h, 0);
    hand_damaged(&f->h, 1);
    state(f, 2, &tombstone);
    hand_refuse(&f->h, 3, (struct ballot){HAND_START_US * 9, 9});
    hand_refuse(&f->h, 4, (struct ballot){HAND_START_US * 9, 9});
    assert_mended(f, -EBADMSG, 0);
}

/* It is not damaged: no ballot would help, and each costs all replicas a write. */
static void a_replica_that_cannot_store_is_no_reason_for_a_fresh_ballot(void **state_)
{
    struct fixture *f = *state_;

    mend(f, 0);
    state(f, 0, &tombstone);
    state(f, 1, &tombstone);
    state(f, 2, &none);
    hand_answer(&f->h, 3, (struct answer){.kind = ANS_ERROR, .status = 500}, 5);
    assert_mended(f, -EHOSTDOWN, 0);
    assert_int_equal(f->h.n_calls, 4);
}

/* --- old tombstones --------------------------------------------------------------------------- */

static void an_old_tombstone_is_not_brought_to_those_that_have_nothing(void **state_)
{
    struct fixture *f = *state_;

    mend(f, tombstone.version.counter + 1);
    state(f, 0, &tombstone);
    state(f, 1, &none);
    state(f, 2, &tombstone);
    assert_mended(f, 0, 0);
    assert_true(f->res.old_tombstone);
}

static void an_old_tombstone_is_brought_to_those_that_have_something_older(void **state_)
{
    struct fixture *f = *state_;

    mend(f, tombstone.version.counter + 1);
    state(f, 0, &tombstone);
    state(f, 1, &none);
    state(f, 2, &older);
    assert_int_equal(f->h.n_calls, 4);
    hand_say(&f->h, 3, ANS_ACCEPTED);
    assert_mended(f, 0, 1);
    assert_true(f->res.old_tombstone);
}

static void it_is_no_old_tombstone_that_all_have_while_one_does_not_answer(void **state_)
{
    struct fixture *f = *state_;

    mend(f, tombstone.version.counter + 1);
    state(f, 0, &tombstone);
    state(f, 1, &none);
    hand_fail(&f->h, 2, -ECONNREFUSED);
    assert_mended(f, -EHOSTDOWN, 0);
    assert_false(f->res.old_tombstone);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
        TEST(replicas_that_agree_are_left_alone),
        TEST(of_a_key_that_nobody_has_there_is_nothing_to_mend),
        TEST(who_is_behind_gets_the_record_as_it_is_with_its_value),
        TEST(a_record_that_one_replica_alone_has_is_brought_to_the_others),
        TEST(a_value_whose_first_holder_finds_it_damaged_comes_from_the_next),
        TEST(those_that_answer_are_mended_when_one_does_not),
        TEST(a_frozen_replica_costs_a_moment_and_no_more),
        TEST(a_cancel_ends_it_while_the_value_is_fetched),
        TEST(where_a_promise_stands_above_the_record_it_gets_a_fresh_ballot),
        TEST(a_damaged_replica_is_given_the_record_as_it_was),
        TEST(a_damaged_record_is_replaced_with_as_high_a_ballot_as_it_takes),
        TEST(a_replica_that_cannot_store_is_no_reason_for_a_fresh_ballot),
        TEST(without_a_majority_a_damaged_record_is_not_settled),
        TEST(of_two_damaged_of_three_each_is_mended_that_can_be),
        TEST(what_two_of_three_find_damaged_cannot_be_settled),
        TEST(an_old_tombstone_is_not_brought_to_those_that_have_nothing),
        TEST(an_old_tombstone_is_brought_to_those_that_have_something_older),
        TEST(it_is_no_old_tombstone_that_all_have_while_one_does_not_answer),
    };

    return cmocka_run_group_tests_name("mend", tests, NULL, NULL);
}

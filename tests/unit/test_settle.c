/* test_settle.c - the WRITE that changes nothing, against answers given by hand. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "tests/lib/hand.h"

#define TIMEOUT_MS 1000u
#define LARGE (INLINE_VALUE_MAX + 1u)

struct fixture {
    struct hand h;
    bool done;
    int err;
    struct ballot version;
    enum report_state states[3];
    int errs[3];
    uint64_t at_us;
};

static const struct record found = {.version = {10, 7}, .seq = 3, .n_recent = 1, .recent = {3}};

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

static void on_settled(void *arg, struct write_result *res)
{
    struct fixture *f = arg;

    assert_false(f->done);
    f->done = true;
    f->err = res->err;
    f->version = res->rec.rec.version;
    f->at_us = f->h.now_us;
    assert_int_equal(res->n_reports, 3);
    for (unsigned i = 0; i < 3; i++) {
        f->states[i] = res->reports[i].state;
        f->errs[i] = res->reports[i].err;
    }
}

static void settle(struct fixture *f, uint64_t above)
{
    struct settle_args args = {.key = span_str("k"), .above = above};

    assert_non_null(client_settle(f->h.client, &args, on_settled, f));
}

static void promise(struct fixture *f, unsigned i)
{
    hand_answer(&f->h, i, (struct answer){.kind = ANS_PROMISE, .record = found}, 5);
}

/* --- what is sent ----------------------------------------------------------------------------- */

/* That is what it is for: the ballot has to rise, whatever a majority agrees on. */
static void
what_a_majority_agrees_on_is_accepted_anew_under_a_ballot_above_the_one_given(void **state)
{
    struct fixture *f = *state;
    uint64_t above = HAND_START_US + 777;
    struct message m;

    settle(f, above);
    assert_int_equal(f->h.n_calls, 3);
    assert_true(hand_message(&f->h, 0).ballot.counter > above);
    promise(f, 0);
    promise(f, 1);
    assert_int_equal(f->h.n_calls, 6);
    m = hand_message(&f->h, 3);
    assert_int_equal(m.kind, MSG_ACCEPT);
    assert_true(m.record.version.counter > above);
    assert_int_equal(m.record.seq, found.seq);
    assert_int_equal(m.record.n_recent, 1);
    for (unsigned i = 3; i < 6; i++)
        hand_say(&f->h, i, ANS_ACCEPTED);
    assert_true(f->done && f->err == 0);
    assert_true(f->version.counter > above);
}

static void a_key_never_written_becomes_a_tombstone(void **state)
{
    struct fixture *f = *state;

    settle(f, 0);
    hand_say(&f->h, 0, ANS_PROMISE);
    hand_say(&f->h, 1, ANS_PROMISE);
    assert_int_equal(hand_message(&f->h, 3).record.flags, RECORD_TOMBSTONE);
    hand_run_out(&f->h);
}

static void a_refusal_leads_to_a_higher_ballot(void **state)
{
    struct fixture *f = *state;
    uint64_t high = HAND_START_US * 5;

    settle(f, 0);
    hand_refuse(&f->h, 0, (struct ballot){high, 9});
    hand_refuse(&f->h, 1, (struct ballot){high, 9});
    hand_run_until(&f->h, HAND_START_US + 10000);
    assert_int_equal(f->h.n_calls, 6);
    assert_true(hand_message(&f->h, 3).ballot.counter > high);
    hand_run_out(&f->h);
    assert_true(f->done && f->err == -EHOSTDOWN);
}

/* --- whom it waits for ------------------------------------------------------------------------ */

static void it_waits_for_all_that_are_up_and_says_who_stored_it(void **state)
{
    struct fixture *f = *state;

    settle(f, 0);
    promise(f, 0);
    promise(f, 1);
    hand_say(&f->h, 3, ANS_ACCEPTED);
    hand_say(&f->h, 4, ANS_ACCEPTED);
    assert_false(f->done);
    hand_refuse(&f->h, 5, (struct ballot){HAND_START_US * 2, 9});
    assert_true(f->done && f->err == 0);
    assert_int_equal(f->states[0], REPORT_OK);
    assert_int_equal(f->states[1], REPORT_OK);
    assert_int_equal(f->states[2], REPORT_FAILED);
    assert_int_equal(f->errs[2], -ECANCELED);
}

static void a_replica_that_froze_meanwhile_is_not_waited_for(void **state)
{
    struct fixture *f = *state;

    settle(f, 0);
    promise(f, 0);
    promise(f, 1);
    hand_say(&f->h, 3, ANS_ACCEPTED);
    hand_say(&f->h, 4, ANS_ACCEPTED);
    hand_run_until(&f->h, HAND_START_US + 900 * TIMEOUT_MS);
    assert_true(f->done && f->err == 0);
    assert_int_equal(f->states[2], REPORT_PENDING);
    assert_in_range(f->at_us, HAND_START_US + HEALTH_SLOW_MIN_US,
                    HAND_START_US + 2 * HEALTH_SLOW_MIN_US);
}

/* --- values ----------------------------------------------------------------------------------- */

static struct record record_of(struct buf *sums, struct span value)
{
    struct record rec = found;

    record_sums(sums, value);
    rec.size = value.len;
    rec.sums = buf_span(sums);
    return rec;
}

static void a_small_value_goes_along_at_once(void **state)
{
    struct fixture *f = *state;
    struct buf sums = {0};
    struct record rec = record_of(&sums, span_str("small"));

    settle(f, 0);
    hand_answer_value(&f->h, 0, (struct answer){.kind = ANS_PROMISE, .record = rec},
                      span_str("small"));
    hand_answer(&f->h, 1, (struct answer){.kind = ANS_PROMISE, .record = rec}, 5);
    for (unsigned i = 3; i < 6; i++) {
        assert_int_equal(hand_message(&f->h, i).flags & MSG_SAME_VALUE, 0);
        assert_true(span_eq(value_span(f->h.calls[i]->body), span_str("small")));
        hand_say(&f->h, i, ANS_ACCEPTED);
    }
    assert_true(f->done && f->err == 0);
    buf_fini(&sums);
}

/* Two have the large value; the third, which has not, gets it once the two have stored the rest. */
static void a_large_value_travels_only_to_those_that_lack_it(void **state)
{
    struct fixture *f = *state;
    static uint8_t bytes[LARGE];
    struct span value = span_of(bytes, LARGE);
    struct buf sums = {0};
    struct record rec = record_of(&sums, value);
    unsigned lacking, i;

    settle(f, 0);
    for (i = 0; i < 2; i++)
        hand_answer(&f->h, i, (struct answer){.kind = ANS_PROMISE, .record = rec}, 5);
    assert_true(hand_message(&f->h, 3).flags & MSG_SAME_VALUE);
    assert_int_equal(hand_message(&f->h, 3).pin.counter, found.version.counter);
    lacking = f->h.calls[5]->node;
    rec.version = hand_message(&f->h, 3).record.version;
    hand_say(&f->h, 5, ANS_NEED_VALUE);
    hand_say(&f->h, 3, ANS_ACCEPTED);
    hand_say(&f->h, 4, ANS_ACCEPTED);
    assert_false(f->done);

    assert_int_equal(f->h.n_calls, 7);
    assert_int_equal(hand_message(&f->h, 6).kind, MSG_READ);
    assert_int_equal(hand_message(&f->h, 6).pin.counter, rec.version.counter);
    hand_answer_value(&f->h, 6, (struct answer){.kind = ANS_STATE, .record = rec}, value);
    assert_int_equal(f->h.n_calls, 8);
    assert_int_equal(f->h.calls[7]->node, lacking);
    assert_int_equal(hand_message(&f->h, 7).flags & MSG_SAME_VALUE, 0);
    assert_int_equal(hand_message(&f->h, 7).record.version.counter, rec.version.counter);
    assert_int_equal(f->h.calls[7]->body.len, LARGE);
    hand_say(&f->h, 7, ANS_ACCEPTED);
    assert_true(f->done && f->err == 0);
    for (i = 0; i < 3; i++)
        assert_int_equal(f->states[i], REPORT_OK);
    buf_fini(&sums);
}

/* It is stored by a majority: who is left without it is told, and nothing has failed. */
static void a_value_that_cannot_be_brought_leaves_one_out_and_no_error(void **state)
{
    struct fixture *f = *state;
    static uint8_t bytes[LARGE];
    struct buf sums = {0};
    struct record rec = record_of(&sums, span_of(bytes, LARGE));

    settle(f, 0);
    for (unsigned i = 0; i < 2; i++)
        hand_answer(&f->h, i, (struct answer){.kind = ANS_PROMISE, .record = rec}, 5);
    hand_say(&f->h, 5, ANS_NEED_VALUE);
    hand_say(&f->h, 3, ANS_ACCEPTED);
    hand_say(&f->h, 4, ANS_ACCEPTED);
    assert_false(f->done);
    hand_run_out(&f->h);
    assert_true(f->done && f->err == 0);
    assert_int_equal(f->errs[2], -ENODATA);
    buf_fini(&sums);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(
            what_a_majority_agrees_on_is_accepted_anew_under_a_ballot_above_the_one_given, setup,
            teardown),
        cmocka_unit_test_setup_teardown(a_key_never_written_becomes_a_tombstone, setup, teardown),
        cmocka_unit_test_setup_teardown(a_refusal_leads_to_a_higher_ballot, setup, teardown),
        cmocka_unit_test_setup_teardown(it_waits_for_all_that_are_up_and_says_who_stored_it, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(a_replica_that_froze_meanwhile_is_not_waited_for, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(a_small_value_goes_along_at_once, setup, teardown),
        cmocka_unit_test_setup_teardown(a_large_value_travels_only_to_those_that_lack_it, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(a_value_that_cannot_be_brought_leaves_one_out_and_no_error,
                                        setup, teardown),
    };

    return cmocka_run_group_tests_name("settle", tests, NULL, NULL);
}

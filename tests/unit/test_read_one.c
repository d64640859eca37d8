/* test_read_one.c - READs that take one replica's word: whom they ask, what they believe, when a
 * majority decides all the same. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <stdlib.h>

#include "common/op.h" /* for the number of mends under way */
#include "tests/lib/hand.h"

struct fixture {
    struct hand h;
    unsigned n_done;
    int err;
    struct ballot version;
    bool lone, has_child, followed;
};

static int setup_with(void **state, unsigned n_nodes, unsigned n_replicas)
{
    struct fixture *f = calloc(1, sizeof *f);

    assert_non_null(f);
    hand_init(&f->h, n_nodes, n_replicas, 1000);
    *state = f;
    return 0;
}

static int setup(void **state)
{
    return setup_with(state, 3, 3);
}

static int setup_five(void **state)
{
    return setup_with(state, 5, 3);
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
    f->version = res->rec.rec.version;
    f->lone = res->lone;
    f->has_child = res->has_child;
    f->followed = res->followed;
}

static const struct record newer = {.version = {10, 7}, .seq = 1, .n_recent = 1, .recent = {3}};
static const struct record older = {.version = {5, 7}, .seq = 0};
static const struct record nothing = {0};
static const struct record deleted = {.version = {8, 7}, .seq = 1, .flags = RECORD_TOMBSTONE};

static void says(struct fixture *f, unsigned i, const struct record *rec)
{
    hand_answer(&f->h, i, (struct answer){.kind = ANS_STATE, .record = *rec}, 5);
}

static void start(struct fixture *f, const struct read_args *args)
{
    assert_non_null(client_read(f->h.client, args, on_read, f));
}

static const struct read_args of_one = {.key = {(const uint8_t *)"k", 1}, .from = READ_ONE};
static const struct read_args in_need = {.key = {(const uint8_t *)"k", 1},
                                         .from = READ_ONE_IN_NEED};

/* The replica at that place in ring order does not answer any more. */
static void dies(struct fixture *f, unsigned place)
{
    unsigned node = ring_replicas(f->h.cfg->ring, span_str("k"))[place];

    health_failed(f->h.health, node, f->h.now_us, -ECONNREFUSED);
}

/* --- one ------------------------------------------------------------------------------------- */

static void the_first_replica_is_asked_and_believed(void **state)
{
    struct fixture *f = *state;

    start(f, &of_one);
    assert_int_equal(f->h.n_calls, 1);
    assert_int_equal(hand_place(&f->h, 0), 0);
    says(f, 0, &older);
    assert_int_equal(f->n_done, 1);
    assert_int_equal(f->err, 0);
    assert_int_equal(f->version.counter, 5);
    assert_true(f->lone);
    assert_false(f->followed); /* or what is old would be kept for long */
    assert_int_equal(f->h.n_calls, 1);
}

static void one_that_is_down_is_passed_over(void **state)
{
    struct fixture *f = *state;

    dies(f, 0);
    start(f, &of_one);
    assert_int_equal(f->h.n_calls, 1);
    assert_int_equal(hand_place(&f->h, 0), 1);
    says(f, 0, &newer);
    assert_true(f->n_done == 1 && f->lone);
}

static void one_that_fails_or_has_nothing_leads_to_the_next(void **state)
{
    struct fixture *f = *state;

    start(f, &of_one);
    hand_fail(&f->h, 0, -ECONNRESET);
    assert_int_equal(hand_place(&f->h, 1), 1);
    says(f, 1, &nothing);
    assert_int_equal(hand_place(&f->h, 2), 2);
    says(f, 2, &newer);
    assert_true(f->n_done == 1 && f->err == 0 && f->lone);
}

static void one_that_is_slow_leads_to_the_next(void **state)
{
    struct fixture *f = *state;

    start(f, &of_one);
    hand_run_until(&f->h, f->h.now_us + HEALTH_HEDGE_MAX_US);
    assert_int_equal(f->h.n_calls, 2);
    assert_int_equal(hand_place(&f->h, 1), 1);
    says(f, 1, &older);
    assert_int_equal(f->n_done, 1);
    assert_int_equal(f->version.counter, 5);
    hand_fail(&f->h, 0, -ECONNRESET);
}

/* A round trip is cheap beside an error: nobody else could answer in its place. */
static void the_only_one_there_is_waited_for_however_slow(void **state)
{
    struct fixture *f = *state;

    dies(f, 1);
    dies(f, 2);
    start(f, &of_one);
    hand_run_until(&f->h, f->h.now_us + 2 * HEALTH_SLOW_MIN_US);
    assert_int_equal(f->h.n_calls, 1);
    assert_int_equal(f->n_done, 0);
    says(f, 0, &older);
    assert_true(f->n_done == 1 && f->err == 0 && f->lone);

    start(f, &of_one);
    hand_run_out(&f->h);
    assert_int_equal(f->n_done, 2);
    assert_int_equal(f->err, -EHOSTDOWN);
}

static void but_a_majority_that_returns_meanwhile_is_asked(void **state)
{
    struct fixture *f = *state;
    const unsigned *replicas = ring_replicas(f->h.cfg->ring, span_str("k"));

    dies(f, 1);
    dies(f, 2);
    start(f, &of_one);
    hand_run_until(&f->h, f->h.now_us + 2 * HEALTH_SLOW_MIN_US);
    assert_int_equal(f->h.n_calls, 1);
    for (unsigned i = 1; i < 3; i++)
        health_answered(f->h.health, replicas[i], f->h.now_us, 100, false, 0, 5);
    hand_run_until(&f->h, f->h.now_us + HEALTH_SLOW_MIN_US);
    assert_true(f->h.n_calls >= 3);
    says(f, 1, &nothing);
    says(f, 2, &nothing);
    assert_true(f->n_done == 1 && f->err == 0 && !f->lone);
}

/* What it has it may still be able to read. */
static void one_whose_store_is_ill_is_asked_last(void **state)
{
    struct fixture *f = *state;

    dies(f, 1);
    health_store(f->h.health, ring_replicas(f->h.cfg->ring, span_str("k"))[0], f->h.now_us, 0,
                 span_str("rocksdb"), span_str("it cannot be written"));
    start(f, &of_one);
    assert_int_equal(f->h.n_calls, 1);
    assert_int_equal(hand_place(&f->h, 0), 2);
    hand_fail(&f->h, 0, -ECONNREFUSED);
    assert_int_equal(f->h.n_calls, 2);
    assert_int_equal(hand_place(&f->h, 1), 0);
    says(f, 1, &older);
    assert_true(f->n_done == 1 && f->err == 0 && f->lone);
}

/* The one that has it still is behind, and that is known by then. */
static void what_one_says_was_deleted_another_does_not_bring_back(void **state)
{
    struct fixture *f = *state;

    start(f, &of_one);
    says(f, 0, &deleted);
    says(f, 1, &older);
    assert_int_equal(f->n_done, 0);
    says(f, 2, &older);
    assert_int_equal(f->n_done, 0);
    assert_int_equal(f->h.n_calls, 5); /* a majority decides */
    says(f, 3, &deleted);
    says(f, 4, &deleted);
    assert_true(f->n_done == 1 && f->err == 0 && !f->lone);
    assert_int_equal(f->version.counter, 8);
}

static void but_it_may_have_been_made_anew(void **state)
{
    struct fixture *f = *state;

    start(f, &of_one);
    says(f, 0, &deleted);
    says(f, 1, &newer);
    assert_true(f->n_done == 1 && f->err == 0 && f->lone);
    assert_int_equal(f->version.counter, 10);
}

static unsigned n_mending(const struct fixture *f)
{
    return f->h.client->background.n_mends;
}

static void who_is_seen_to_be_behind_is_mended(void **state)
{
    struct fixture *f = *state;

    start(f, &of_one);
    says(f, 0, &older);
    assert_int_equal(n_mending(f), 0);
    start(f, &of_one);
    says(f, 1, &nothing);
    says(f, 2, &newer);
    assert_true(f->n_done == 2 && f->lone);
    assert_int_equal(n_mending(f), 1);
}

static void who_is_seen_to_be_damaged_is_mended(void **state)
{
    struct fixture *f = *state;

    start(f, &of_one);
    hand_damaged(&f->h, 0);
    says(f, 1, &older);
    assert_true(f->n_done == 1 && f->lone);
    assert_int_equal(n_mending(f), 1);
}

static void what_is_older_than_the_caller_knows_is_as_good_as_nothing(void **state)
{
    struct fixture *f = *state;
    struct read_args args = of_one;

    args.at_least = newer.version;
    start(f, &args);
    says(f, 0, &older);
    assert_int_equal(f->n_done, 0);
    says(f, 1, &newer);
    assert_true(f->n_done == 1 && f->lone);
    assert_int_equal(f->version.counter, 10);
}

static void that_nobody_has_it_is_for_a_majority_to_say(void **state)
{
    struct fixture *f = *state;

    start(f, &of_one);
    for (unsigned i = 0; i < 3; i++)
        says(f, i, &nothing);
    assert_int_equal(f->n_done, 0);
    assert_int_equal(f->h.n_calls, 5);
    says(f, 3, &nothing);
    says(f, 4, &nothing);
    assert_true(f->n_done == 1 && f->err == 0 && !f->lone);
    assert_true(ballot_is_none(f->version));
}

static void without_a_majority_that_is_an_error(void **state)
{
    struct fixture *f = *state;

    dies(f, 1);
    dies(f, 2);
    start(f, &of_one);
    assert_int_equal(f->h.n_calls, 1);
    says(f, 0, &nothing);
    hand_run_out(&f->h);
    assert_int_equal(f->n_done, 1);
    assert_int_equal(f->err, -EHOSTDOWN);
}

static void cancelled_it_ends_whatever_it_waits_for(void **state)
{
    struct fixture *f = *state;
    struct op *op = client_read(f->h.client, &of_one, on_read, f);

    op_cancel(op);
    hand_run(&f->h);
    assert_int_equal(f->n_done, 1);
    assert_int_equal(f->err, -EINTR);
    hand_fail(&f->h, 0, -ECONNRESET);
    op = client_read(f->h.client, &of_one, on_read, f);
    for (unsigned i = 1; i < 3; i++)
        says(f, i, &nothing);
    assert_int_equal(f->n_done, 1); /* a majority is asked */
    op_cancel(op);
    hand_run(&f->h);
    assert_int_equal(f->n_done, 2);
    assert_int_equal(f->err, -EINTR);
}

/* --- in need --------------------------------------------------------------------------------- */

static void with_a_majority_at_hand_that_is_asked(void **state)
{
    struct fixture *f = *state;

    dies(f, 0);
    start(f, &in_need);
    assert_int_equal(f->h.n_calls, 2);
    says(f, 0, &newer);
    assert_int_equal(f->n_done, 0);
    says(f, 1, &newer);
    assert_true(f->n_done == 1 && !f->lone);
}

static void without_one_whoever_is_there_is(void **state)
{
    struct fixture *f = *state;

    dies(f, 0);
    dies(f, 2);
    start(f, &in_need);
    assert_int_equal(f->h.n_calls, 1);
    assert_int_equal(hand_place(&f->h, 0), 1);
    says(f, 0, &older);
    assert_true(f->n_done == 1 && f->err == 0 && f->lone);
}

static void when_the_majority_is_lost_on_the_way_too(void **state)
{
    struct fixture *f = *state;

    start(f, &in_need);
    hand_fail(&f->h, 0, -ECONNREFUSED);
    says(f, 1, &older);
    hand_fail(&f->h, 2, -ECONNREFUSED);
    assert_int_equal(f->n_done, 0);
    assert_int_equal(hand_place(&f->h, 3), 1);
    says(f, 3, &older);
    assert_true(f->n_done == 1 && f->err == 0 && f->lone);
}

static void when_it_freezes_too(void **state)
{
    struct fixture *f = *state;
    unsigned answered = 0;

    start(f, &in_need);
    for (unsigned i = 0; i < 3 && f->n_done == 0; i++) {
        hand_run_until(&f->h, f->h.now_us + HEALTH_SLOW_MIN_US);
        for (; answered < f->h.n_calls; answered++)
            if (hand_place(&f->h, answered) == 2)
                says(f, answered, &older);
    }
    assert_true(f->n_done == 1 && f->err == 0 && f->lone);
    for (unsigned i = 0; i < f->h.n_calls; i++)
        if (f->h.calls[i] != NULL)
            hand_fail(&f->h, i, -ECONNRESET);
}

static void and_what_a_majority_said_before_is_forgotten(void **state)
{
    struct fixture *f = *state;
    unsigned mend;

    for (unsigned i = 0; i < 3; i++)
        health_follow(f->h.health, i, f->h.now_us);
    start(f, &in_need);
    says(f, 0, &newer);
    says(f, 1, &older); /* they differ: the third is asked, */
    hand_fail(&f->h, 2, -ECONNREFUSED);
    hand_run_until(&f->h, f->h.now_us + HEALTH_HEDGE_MAX_US);
    mend = f->h.n_calls - 1; /* and then who is behind is mended */
    assert_int_equal(hand_message(&f->h, mend).kind, MSG_ACCEPT);
    hand_fail(&f->h, mend, -ECONNREFUSED);
    assert_int_equal(f->n_done, 0);
    assert_int_equal(hand_place(&f->h, f->h.n_calls - 1), 0);
    says(f, f->h.n_calls - 1, &newer);
    assert_true(f->n_done == 1 && f->err == 0 && f->lone);
    assert_false(f->followed);
}

/* --- what is below --------------------------------------------------------------------------- */

static void what_is_below_is_asked_of_all_who_are_there(void **state)
{
    struct fixture *f = *state;
    struct read_args args = of_one;
    struct answer a = {.kind = ANS_STATE, .record = older, .has_peek = true};
    unsigned stranger = 5;

    args.peek = true;
    start(f, &args);
    assert_int_equal(f->h.n_calls, 5);
    for (unsigned i = 0; i < 5; i++)
        if (!ring_is_replica(f->h.cfg->ring, span_str("k"), f->h.calls[i]->node))
            stranger = i;
    assert_int_not_equal(stranger, 5);
    for (unsigned i = 0; i < 5; i++) {
        assert_int_equal(f->n_done, 0);
        if (i != stranger)
            says(f, i, i == 0 ? &older : &nothing);
    }
    a.record = nothing;
    entry_of_record(&a.peek, span_str("k/child"), &newer);
    hand_answer(&f->h, stranger, a, 5);
    assert_true(f->n_done == 1 && f->err == 0 && f->lone && f->has_child);
    assert_int_equal(f->version.counter, 5);
}

static void of_several_that_answered_the_newest_is_believed(void **state)
{
    struct fixture *f = *state;
    struct read_args args = of_one;

    args.peek = true;
    start(f, &args);
    assert_int_equal(f->h.n_calls, 3);
    says(f, 0, &older);
    says(f, 1, &newer);
    says(f, 2, &older);
    assert_true(f->n_done == 1 && f->err == 0 && f->lone);
    assert_int_equal(f->version.counter, 10);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(the_first_replica_is_asked_and_believed),
        T(one_that_is_down_is_passed_over),
        T(one_that_fails_or_has_nothing_leads_to_the_next),
        T(one_that_is_slow_leads_to_the_next),
        T(the_only_one_there_is_waited_for_however_slow),
        T(but_a_majority_that_returns_meanwhile_is_asked),
        T(one_whose_store_is_ill_is_asked_last),
        T(what_one_says_was_deleted_another_does_not_bring_back),
        T(but_it_may_have_been_made_anew),
        T(who_is_seen_to_be_behind_is_mended),
        T(who_is_seen_to_be_damaged_is_mended),
        T(what_is_older_than_the_caller_knows_is_as_good_as_nothing),
        T(that_nobody_has_it_is_for_a_majority_to_say),
        T(without_a_majority_that_is_an_error),
        T(cancelled_it_ends_whatever_it_waits_for),
        T(with_a_majority_at_hand_that_is_asked),
        T(without_one_whoever_is_there_is),
        T(when_the_majority_is_lost_on_the_way_too),
        T(when_it_freezes_too),
        T(and_what_a_majority_said_before_is_forgotten),
        T(of_several_that_answered_the_newest_is_believed),
        cmocka_unit_test_setup_teardown(what_is_below_is_asked_of_all_who_are_there, setup_five,
                                        teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

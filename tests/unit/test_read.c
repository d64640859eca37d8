/*
 * test_read.c - READ against answers given by hand: what the simulated cluster has no occasion for.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <stdlib.h>

#include "common/limits.h"
#include "tests/lib/hand.h"

struct fixture {
    struct hand h;
    unsigned n_done;
    int err;
    struct ballot version;
    bool got_value, followed;
};

static int setup_with(void **state, unsigned n_nodes)
{
    struct fixture *f = calloc(1, sizeof *f);

    assert_non_null(f);
    hand_init(&f->h, n_nodes, n_nodes, 1000);
    *state = f;
    return 0;
}

static int setup(void **state)
{
    return setup_with(state, 3);
}

static int setup_single(void **state)
{
    return setup_with(state, 1);
}

static int teardown(void **state)
{
    struct fixture *f = *state;

    hand_run_out(&f->h); /* whatever a test that failed left under way */
    hand_fini(&f->h);
    free(f);
    return 0;
}

static void give_up(struct fixture *f, struct op *op)
{
    if (f->n_done == 0)
        op_cancel(op);
    hand_run_out(&f->h);
}

static void on_read(void *arg, struct read_result *res)
{
    struct fixture *f = arg;

    f->n_done++;
    f->err = res->err;
    f->version = res->rec.rec.version;
    f->followed = res->followed;
}

static const struct record newer = {.version = {10, 7}, .seq = 1, .n_recent = 1, .recent = {3}};
static const struct record older = {.version = {5, 7}, .seq = 0};

static void hand_state(struct hand *h, unsigned i, const struct record *rec, uint64_t incarnation)
{
    hand_answer(h, i, (struct answer){.kind = ANS_STATE, .record = *rec}, incarnation);
}

/* One replica has the newer record, another the older one: the third is asked. */
static struct op *read_up_to_the_third(struct fixture *f)
{
    struct read_args args = {.key = span_str("k")};
    struct op *op = client_read(f->h.client, &args, on_read, f);

    assert_int_equal(f->h.n_calls, 2);
    hand_state(&f->h, 0, &newer, 5);
    hand_state(&f->h, 1, &older, 6);
    assert_int_equal(f->h.n_calls, 3);
    assert_int_equal(hand_message(&f->h, 2).kind, MSG_READ);
    assert_int_equal(f->n_done, 0);
    return op;
}

/* The third is behind as well: the second is sent the newer record. */
static struct op *read_up_to_mending(struct fixture *f)
{
    struct op *op = read_up_to_the_third(f);

    hand_state(&f->h, 2, &older, 7);
    assert_int_equal(f->n_done, 0);
    assert_int_equal(f->h.n_calls, 5);
    assert_int_equal(hand_message(&f->h, 3).kind, MSG_ACCEPT);
    assert_int_equal(hand_place(&f->h, 3), 1);
    return op;
}

/* It costs those who are behind a sync to be mended, and the reader none of it. */
static void a_read_that_meets_one_behind_answers_as_soon_as_two_others_agree(void **state)
{
    struct fixture *f = *state;
    struct op *op = read_up_to_the_third(f);

    hand_state(&f->h, 2, &newer, 7);
    assert_int_equal(f->n_done, 1);
    assert_int_equal(f->err, 0);
    assert_int_equal(f->version.counter, 10);
    give_up(f, op);
    assert_int_equal(hand_message(&f->h, 3).kind, MSG_READ); /* afterwards: client_mend() begins */
}

static void a_third_replica_that_does_not_answer_in_its_usual_time_is_not_waited_for(void **state)
{
    struct fixture *f = *state;
    struct op *op = read_up_to_the_third(f);

    hand_run_until(&f->h, f->h.now_us + HEALTH_HEDGE_MAX_US + 1);
    assert_int_equal(f->n_done, 0);
    assert_int_equal(hand_message(&f->h, 3).kind, MSG_ACCEPT);
    assert_int_equal(hand_place(&f->h, 3), 1);
    hand_answer(&f->h, 3, (struct answer){.kind = ANS_ACCEPTED}, 6);
    assert_int_equal(f->n_done, 1);
    assert_int_equal(f->version.counter, 10);
    give_up(f, op);
}

static void a_third_replica_that_is_not_fit_is_not_asked(void **state)
{
    struct fixture *f = *state;
    struct read_args args = {.key = span_str("k")};
    struct op *op;

    health_failed(f->h.health, ring_replicas(f->h.cfg->ring, span_str("k"))[2], f->h.now_us,
                  -ECONNREFUSED);
    op = client_read(f->h.client, &args, on_read, f);
    hand_state(&f->h, 0, &newer, 5);
    hand_state(&f->h, 1, &older, 6);
    assert_int_equal(f->h.n_calls, 3);
    assert_int_equal(hand_message(&f->h, 2).kind, MSG_ACCEPT);
    give_up(f, op);
}

static void a_read_brings_the_newest_record_to_a_majority(void **state)
{
    struct fixture *f = *state;
    struct op *op = read_up_to_mending(f);

    hand_answer(&f->h, 3, (struct answer){.kind = ANS_ACCEPTED}, 6);
    assert_int_equal(f->n_done, 1);
    assert_int_equal(f->err, 0);
    assert_int_equal(f->version.counter, 10);
    give_up(f, op);
}

/*
 * Between its answer and the other's acceptance a node lost its disk: its new life may have begun
 * from replicas that did not have the record yet.
 */
static void who_lost_its_disk_meanwhile_does_not_count_for_the_majority(void **state)
{
    struct fixture *f = *state;
    struct op *op = read_up_to_mending(f);
    struct buf known = {0};

    answer_add_known(&known, ring_replicas(f->h.cfg->ring, span_str("k"))[0], 50);
    hand_answer(&f->h, 3,
                (struct answer){.kind = ANS_ACCEPTED, .n_known = 1, .known = buf_span(&known)}, 6);
    assert_int_equal(f->n_done, 0);
    buf_fini(&known);
    give_up(f, op);
    assert_int_equal(f->err, -EINTR);
}

/* A proxy, a server that has run out of memory, another program at that address: who knows. */
static void bytes_that_are_no_answer_are_not_taken_for_damaged_data(void **state)
{
    struct fixture *f = *state;
    struct read_args args = {.key = span_str("k")};
    struct op *op = client_read(f->h.client, &args, on_read, f);

    hand_answer_bytes(&f->h, 0, span_str("{\"status\":503,\"detail\":\"out of memory\"}"));
    assert_int_equal(f->n_done, 0); /* it tries again, until its time is up */
    give_up(f, op);
    assert_int_equal(f->err, -EINTR);
}

/* Not a quorum out of reach: asking again is in vain, and nobody but a person can help. */
static void a_key_that_every_replica_finds_damaged_is_told_so_at_once(void **state)
{
    struct fixture *f = *state;
    struct read_args args = {.key = span_str("k")};
    struct op *op = client_read(f->h.client, &args, on_read, f);

    for (unsigned i = 0; i < 3; i++) {
        assert_int_equal(f->n_done, 0);
        assert_int_equal(f->h.n_calls, i == 0 ? 2 : 3);
        hand_damaged(&f->h, i);
    }
    assert_int_equal(f->n_done, 1);
    assert_int_equal(f->err, -EBADMSG);
    give_up(f, op);
}

/* --- damaged values --------------------------------------------------------------------------- */

static void on_value(void *arg, struct read_result *res)
{
    struct fixture *f = arg;

    on_read(arg, res);
    f->got_value = span_eq(value_span(res->value), span_str("value"));
}

static struct record valued(struct buf *sums)
{
    struct record rec = newer;

    record_sums(sums, span_str("value"));
    rec.size = 5;
    rec.sums = buf_span(sums);
    return rec;
}

static struct op *read_value(struct fixture *f)
{
    struct read_args args = {.key = span_str("k"), .want_value = true, .length = READ_ALL};
    struct op *op = client_read(f->h.client, &args, on_value, f);

    assert_non_null(op);
    assert_int_equal(f->h.n_calls, 2);
    assert_true(hand_message(&f->h, 0).flags & MSG_WANT_VALUE);
    assert_int_equal(hand_message(&f->h, 1).flags, 0);
    return op;
}

static void a_value_that_its_first_holder_finds_damaged_comes_from_the_next(void **state)
{
    struct fixture *f = *state;
    struct buf sums = {0};
    struct record rec = valued(&sums);
    struct op *op = read_value(f);

    hand_damaged(&f->h, 0);
    assert_int_equal(f->h.n_calls, 3);
    assert_true(hand_message(&f->h, 2).flags & MSG_WANT_VALUE);
    hand_answer(&f->h, 1, (struct answer){.kind = ANS_STATE, .record = rec}, 5);
    hand_answer_value(&f->h, 2, (struct answer){.kind = ANS_STATE, .record = rec},
                      span_str("value"));
    assert_true(f->n_done == 1 && f->err == 0 && f->got_value);
    buf_fini(&sums);
    give_up(f, op);
}

/*
 * The bytes are bad at two of three, their records are not: the three still agree on a version, and
 * the value comes from the only one that has it whole, which was not asked for it at first.
 */
static void a_value_that_two_of_three_find_damaged_comes_from_the_third(void **state)
{
    struct fixture *f = *state;
    struct buf sums = {0};
    struct record rec = valued(&sums);
    struct answer a = {.kind = ANS_STATE, .record = rec};
    struct op *op = read_value(f);

    hand_damaged(&f->h, 0);
    hand_answer(&f->h, 1, a, 5);
    hand_damaged(&f->h, 2);
    assert_int_equal(f->n_done, 0);
    assert_int_equal(f->h.n_calls, 5); /* at once, and the versions alone */
    for (unsigned i = 3; i < 5; i++) {
        assert_int_equal(hand_message(&f->h, i).flags, 0);
        hand_answer(&f->h, i, a, 5);
    }
    assert_int_equal(f->h.n_calls, 6);
    assert_true(ballot_cmp(hand_message(&f->h, 5).pin, rec.version) == 0);
    assert_int_equal(hand_place(&f->h, 5), 0);
    hand_damaged(&f->h, 5);
    assert_int_equal(hand_place(&f->h, 6), 1);
    hand_answer_value(&f->h, 6, a, span_str("value"));
    assert_true(f->n_done == 1 && f->err == 0 && f->got_value);
    buf_fini(&sums);
    give_up(f, op);
}

/* Who was asked for the value is the one that is behind. */
static void a_value_comes_from_the_third_where_its_first_holder_is_behind(void **state)
{
    struct fixture *f = *state;
    struct buf sums = {0}, old_sums = {0};
    struct record rec = valued(&sums), old = older;
    struct op *op = read_value(f);

    record_sums(&old_sums, span_str("old"));
    old.size = 3;
    old.sums = buf_span(&old_sums);
    hand_answer_value(&f->h, 0, (struct answer){.kind = ANS_STATE, .record = old}, span_str("old"));
    hand_answer(&f->h, 1, (struct answer){.kind = ANS_STATE, .record = rec}, 5);
    assert_int_equal(f->h.n_calls, 3);
    assert_true(hand_message(&f->h, 2).flags & MSG_WANT_VALUE);
    hand_answer_value(&f->h, 2, (struct answer){.kind = ANS_STATE, .record = rec},
                      span_str("value"));
    assert_true(f->n_done == 1 && f->err == 0 && f->got_value);
    buf_fini(&sums);
    buf_fini(&old_sums);
    give_up(f, op);
}

static void a_version_whose_value_all_but_the_last_holder_find_damaged_comes_from_that(void **state)
{
    struct fixture *f = *state;
    struct buf sums = {0};
    struct record rec = valued(&sums);
    struct read_args args = {
        .key = span_str("k"), .want_value = true, .length = READ_ALL, .pin = rec.version};
    struct op *op = client_read(f->h.client, &args, on_value, f);

    hand_damaged(&f->h, 0);
    hand_damaged(&f->h, 1);
    assert_int_equal(f->n_done, 0);
    hand_answer_value(&f->h, 2, (struct answer){.kind = ANS_STATE, .record = rec},
                      span_str("value"));
    assert_true(f->n_done == 1 && f->err == 0 && f->got_value);
    buf_fini(&sums);
    give_up(f, op);
}

/* --- long values ------------------------------------------------------------------------------ */

static void on_long_value(void *arg, struct read_result *res)
{
    struct fixture *f = arg;

    on_read(arg, res);
    f->got_value = res->value.len == res->rec.rec.size;
}

/* What was to ask a second replica for the first bytes must not begin it all once more. */
static void a_pinned_read_of_a_long_value_fetches_all_of_it_once(void **state)
{
    struct fixture *f = *state;
    size_t size = MEMORY_BLOB_MAX + CHUNK_SIZE;
    uint8_t *bytes = calloc(1, size);
    struct buf sums = {0};
    struct record rec = newer;
    struct read_args args = {
        .key = span_str("k"), .want_value = true, .length = READ_ALL, .pin = rec.version};
    struct op *op = client_read(f->h.client, &args, on_long_value, f);

    assert_non_null(bytes);
    record_sums(&sums, span_of(bytes, size));
    rec.size = size;
    rec.sums = buf_span(&sums);
    assert_int_equal(hand_message(&f->h, 0).length, MEMORY_BLOB_MAX);
    hand_answer_value(&f->h, 0, (struct answer){.kind = ANS_STATE, .record = rec},
                      span_of(bytes, MEMORY_BLOB_MAX));
    assert_int_equal(f->h.n_calls, 2);
    assert_int_equal(hand_message(&f->h, 1).length, size);
    hand_run_until(&f->h, f->h.now_us + HEALTH_HEDGE_MAX_US + 1);
    assert_int_equal(f->h.n_calls, 3); /* another is asked for all, and nobody for the beginning */
    assert_int_equal(hand_message(&f->h, 2).length, size);
    hand_answer_value(&f->h, 1, (struct answer){.kind = ANS_STATE, .record = rec},
                      span_of(bytes, size));
    assert_true(f->n_done == 1 && f->err == 0 && f->got_value);
    free(bytes);
    buf_fini(&sums);
    give_up(f, op);
    assert_int_equal(f->n_done, 1);
}

/* Without a majority for long, what needs one is refused soon; but one replica will do here. */
static void a_pinned_read_waits_for_the_one_replica_that_is_there(void **state)
{
    struct fixture *f = *state;
    const unsigned *replicas = ring_replicas(f->h.cfg->ring, span_str("k"));
    struct read_args args = {.key = span_str("k"), .pin = newer.version};
    struct op *op;

    for (unsigned i = 1; i < 3; i++)
        health_failed(f->h.health, replicas[i], f->h.now_us, -ECONNREFUSED);
    hand_run_until(&f->h, f->h.now_us + 10000000);
    op = client_read(f->h.client, &args, on_read, f);
    for (unsigned i = 1; i < 3; i++) { /* who is slow is replaced */
        hand_run_until(&f->h, f->h.now_us + HEALTH_HEDGE_MAX_US);
        hand_fail(&f->h, i, -ECONNREFUSED);
    }
    hand_run_until(&f->h, f->h.now_us + HEALTH_SLOW_MIN_US);
    assert_int_equal(f->n_done, 0);
    hand_state(&f->h, 0, &newer, 5);
    assert_int_equal(f->n_done, 1);
    assert_int_equal(f->err, 0);

    op = client_read(f->h.client, &args, on_read,
                     f); /* but it does not wait for what is not there */
    hand_state(&f->h, 3, &older, 5);
    for (unsigned i = 4; i < 6; i++)
        hand_fail(&f->h, i, -ECONNREFUSED);
    hand_run_until(&f->h, f->h.now_us + HEALTH_SLOW_MIN_US);
    assert_int_equal(f->n_done, 2);
    assert_int_equal(f->err, -EHOSTDOWN);
    (void)op;
}

/* --- whom it asks ----------------------------------------------------------------------------- */

static void a_replica_that_recovers_is_asked_last(void **state)
{
    struct fixture *f = *state;
    unsigned first = ring_replicas(f->h.cfg->ring, span_str("k"))[0];
    struct read_args args = {.key = span_str("k")};
    struct op *op;

    health_answered(f->h.health, first, HAND_START_US, 100, false, 1000, 5);
    health_hello(f->h.health, first, 0, 0, 0, true);
    op = client_read(f->h.client, &args, on_read, f);
    assert_int_equal(f->h.n_calls, 2);
    assert_int_equal(hand_place(&f->h, 0), 1);
    assert_int_equal(hand_place(&f->h, 1), 2);
    hand_fail(&f->h, 0, -ECONNREFUSED);
    assert_int_equal(hand_place(&f->h, 2), 0);
    give_up(f, op);
}

/* --- what may be kept (feed.h) ---------------------------------------------------------------- */

static void follow(struct fixture *f, unsigned i, uint64_t since_us)
{
    health_follow(f->h.health, f->h.calls[i]->node, since_us);
}

/* Two of three answer, in agreement; each was followed from that long before it was asked. */
static bool read_followed(struct fixture *f, uint64_t first_us, uint64_t second_us)
{
    struct read_args args = {.key = span_str("k")};

    assert_non_null(client_read(f->h.client, &args, on_read, f));
    follow(f, 0, first_us);
    follow(f, 1, second_us);
    hand_state(&f->h, 0, &newer, 5);
    hand_state(&f->h, 1, &newer, 6);
    assert_int_equal(f->n_done, 1);
    return f->followed;
}

static void a_read_may_be_kept_where_all_who_answered_were_followed_before(void **state)
{
    struct fixture *f = *state;

    assert_true(read_followed(f, HAND_START_US, HAND_START_US - 1));
}

static void a_read_is_not_kept_where_one_who_answered_is_not_followed(void **state)
{
    struct fixture *f = *state;

    assert_false(read_followed(f, HAND_START_US, 0));
}

static void a_read_is_not_kept_where_one_was_followed_only_after_it_was_asked(void **state)
{
    struct fixture *f = *state;

    assert_false(read_followed(f, HAND_START_US + 1, HAND_START_US));
}

/* Three answer because one is behind; the one that is not followed agrees with none but itself. */
static void a_read_that_needed_a_third_needs_it_followed_as_well(void **state)
{
    struct fixture *f = *state;
    struct op *op = read_up_to_the_third(f);

    (void)op;
    for (unsigned i = 0; i < 3; i++)
        health_follow(f->h.health, i, HAND_START_US);
    health_follow(f->h.health, f->h.calls[2]->node, 0);
    hand_state(&f->h, 2, &newer, 7);
    assert_int_equal(f->n_done, 1);
    assert_false(f->followed);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_read_brings_the_newest_record_to_a_majority, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(
            a_read_that_meets_one_behind_answers_as_soon_as_two_others_agree, setup, teardown),
        cmocka_unit_test_setup_teardown(
            a_third_replica_that_does_not_answer_in_its_usual_time_is_not_waited_for, setup,
            teardown),
        cmocka_unit_test_setup_teardown(a_third_replica_that_is_not_fit_is_not_asked, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(who_lost_its_disk_meanwhile_does_not_count_for_the_majority,
                                        setup, teardown),
        cmocka_unit_test_setup_teardown(bytes_that_are_no_answer_are_not_taken_for_damaged_data,
                                        setup_single, teardown),
        cmocka_unit_test_setup_teardown(a_key_that_every_replica_finds_damaged_is_told_so_at_once,
                                        setup, teardown),
        cmocka_unit_test_setup_teardown(
            a_value_that_its_first_holder_finds_damaged_comes_from_the_next, setup, teardown),
        cmocka_unit_test_setup_teardown(a_value_that_two_of_three_find_damaged_comes_from_the_third,
                                        setup, teardown),
        cmocka_unit_test_setup_teardown(
            a_value_comes_from_the_third_where_its_first_holder_is_behind, setup, teardown),
        cmocka_unit_test_setup_teardown(
            a_version_whose_value_all_but_the_last_holder_find_damaged_comes_from_that, setup,
            teardown),
        cmocka_unit_test_setup_teardown(a_pinned_read_waits_for_the_one_replica_that_is_there,
                                        setup, teardown),
        cmocka_unit_test_setup_teardown(a_pinned_read_of_a_long_value_fetches_all_of_it_once, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(a_replica_that_recovers_is_asked_last, setup, teardown),
        cmocka_unit_test_setup_teardown(
            a_read_may_be_kept_where_all_who_answered_were_followed_before, setup, teardown),
        cmocka_unit_test_setup_teardown(a_read_is_not_kept_where_one_who_answered_is_not_followed,
                                        setup, teardown),
        cmocka_unit_test_setup_teardown(
            a_read_is_not_kept_where_one_was_followed_only_after_it_was_asked, setup, teardown),
        cmocka_unit_test_setup_teardown(a_read_that_needed_a_third_needs_it_followed_as_well, setup,
                                        teardown),
    };

    return cmocka_run_group_tests_name("read", tests, NULL, NULL);
}

/* test_listing.c - listings against answers given by hand: damage, and who is asked. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/status.h"
#include "tests/lib/hand.h"

#define TIMEOUT_MS 1000u
#define SHOWN_MAX 4u

struct shown {
    char key[16];
    uint32_t flags;
};

struct fixture {
    struct hand h;
    bool done;
    int err;
    unsigned n;
    struct shown shown[SHOWN_MAX];
};

static const struct record live = {.version = {10, 7}, .seq = 3};
static const struct record tombstone = {.version = {11, 7}, .flags = RECORD_TOMBSTONE, .seq = 4};

static int setup_with(void **state, unsigned replication_factor)
{
    struct fixture *f = calloc(1, sizeof *f);

    assert_non_null(f);
    hand_init(&f->h, 3, replication_factor, TIMEOUT_MS);
    *state = f;
    return 0;
}

static int setup(void **state)
{
    return setup_with(state, 3);
}

static int setup_two_replicas(void **state)
{
    return setup_with(state, 2);
}

static int teardown(void **state)
{
    struct fixture *f = *state;

    hand_run_out(&f->h); /* whatever a test that failed left under way */
    hand_fini(&f->h);
    free(f);
    return 0;
}

/* --- helpers ---------------------------------------------------------------------------------- */

static void on_list(void *arg, struct list_result *res)
{
    struct fixture *f = arg;
    struct cursor c = cursor_of(buf_span(&res->entries));
    struct entry e;

    assert_false(f->done);
    f->done = true;
    f->err = res->err;
    for (f->n = 0; res->err == 0 && entry_next(&c, &e) == 1; f->n++) {
        struct span name = span_of(e.key.data, e.prefix_len != 0 ? e.prefix_len : e.key.len);

        assert_true(f->n < SHOWN_MAX && name.len < sizeof f->shown[0].key);
        memcpy(f->shown[f->n].key, name.data, name.len);
        f->shown[f->n].flags = e.flags;
    }
}

/* n_asked: how many nodes cover the ring. */
static void list_asking(struct fixture *f, bool delimiter, unsigned n_asked)
{
    struct list_args args = {.limit = SHOWN_MAX - 1, .delimiter = delimiter};

    assert_non_null(client_list(f->h.client, &args, on_list, f));
    assert_int_equal(f->h.n_calls, n_asked);
}

static void list(struct fixture *f, bool delimiter)
{
    list_asking(f, delimiter, 2);
}

static void add(struct buf *entries, const char *key, uint32_t prefix_len, const struct record *rec)
{
    struct entry e = {.key = span_str(key), .flags = ENTRY_DAMAGED};

    if (rec != NULL)
        entry_of_record(&e, span_str(key), rec);
    e.prefix_len = prefix_len;
    entry_encode(entries, &e);
    assert_int_equal(entries->err, 0);
}

static void answer(struct fixture *f, unsigned i, struct buf *entries, uint32_t n)
{
    hand_answer_value(&f->h, i, (struct answer){.kind = ANS_LIST, .n_entries = n},
                      buf_span(entries));
    buf_fini(entries);
}

/* Answers with one key. NULL: it is damaged. */
static void answer_key(struct fixture *f, unsigned i, const char *key, const struct record *rec)
{
    struct buf entries = {0};

    add(&entries, key, 0, rec);
    answer(f, i, &entries, 1);
}

static void answer_nothing(struct fixture *f, unsigned i)
{
    struct buf none = {0};

    answer(f, i, &none, 0);
}

static void state(struct fixture *f, unsigned i, const struct record *rec)
{
    assert_int_equal(hand_message(&f->h, i).kind, MSG_READ);
    hand_answer(&f->h, i, (struct answer){.kind = ANS_STATE, .record = *rec}, 5);
}

/* --- nodes that fail -------------------------------------------------------------------------- */

/* With two replicas of each key every node is needed: the first that says so decides it. */
static void a_node_of_another_ring_that_is_needed_ends_the_listing_at_once(void **state_)
{
    struct fixture *f = *state_;
    struct answer other = {.kind = ANS_ERROR, .status = status_from_errno(-EBADE)};

    list_asking(f, false, 3);
    hand_answer(&f->h, 0, other, 5);
    assert_true(f->done);
    assert_int_equal(f->err, -EBADE);
    hand_run_out(&f->h);
}

static void a_node_of_another_ring_that_others_cover_for_is_done_without(void **state_)
{
    struct fixture *f = *state_;
    struct answer other = {.kind = ANS_ERROR, .status = status_from_errno(-EBADE)};

    list(f, false);
    hand_answer(&f->h, 0, other, 5);
    assert_false(f->done);
    assert_int_equal(f->h.n_calls, 3);
    answer_key(f, 1, "k", &live);
    answer_key(f, 2, "k", &live);
    assert_true(f->done && f->err == 0 && f->n == 1);
    hand_run_out(&f->h);
}

/* --- damage ----------------------------------------------------------------------------------- */

static void a_key_that_one_node_finds_damaged_is_settled_among_the_others(void **state_)
{
    struct fixture *f = *state_;

    list(f, false);
    answer_key(f, 0, "k", NULL);
    answer_key(f, 1, "k", &live);
    assert_false(f->done);
    assert_int_equal(f->h.n_calls, 4);
    state(f, 2, &live);
    state(f, 3, &live);
    assert_true(f->done && f->err == 0);
    assert_int_equal(f->n, 1);
    assert_string_equal(f->shown[0].key, "k");
    assert_int_equal(f->shown[0].flags, 0);
    hand_run_out(&f->h);
}

/* The other has nothing, and the damaged one nothing to say: that is no majority for "absent". */
static void a_damaged_key_is_not_absent_because_another_node_has_none(void **state_)
{
    struct fixture *f = *state_;

    list(f, false);
    answer_key(f, 0, "k", NULL);
    answer_nothing(f, 1);
    assert_false(f->done);
    assert_int_equal(f->h.n_calls, 4);
    state(f, 2, &live);
    state(f, 3, &live);
    assert_true(f->done && f->err == 0 && f->n == 1);
    hand_run_out(&f->h);
}

static void a_damaged_key_that_turns_out_deleted_is_left_out(void **state_)
{
    struct fixture *f = *state_;

    list(f, false);
    answer_key(f, 0, "k", NULL);
    answer_nothing(f, 1);
    state(f, 2, &tombstone);
    state(f, 3, &tombstone);
    assert_true(f->done && f->err == 0 && f->n == 0);
    hand_run_out(&f->h);
}

/* The third may be asked as often as one likes; and other keys are as good as ever. */
static void a_key_that_two_of_three_find_damaged_is_named_and_hides_no_other(void **state_)
{
    struct fixture *f = *state_;

    list(f, false);
    for (unsigned i = 0; i < 2; i++) {
        struct buf entries = {0};

        add(&entries, "a", 0, NULL);
        add(&entries, "b", 0, &live);
        answer(f, i, &entries, 2);
    }
    hand_damaged(&f->h, 2);
    hand_damaged(&f->h, 3);
    state(f, 4, &live);
    assert_false(f->done); /* that can be mended, given time */
    hand_run_until(&f->h, HAND_START_US + 1000 * TIMEOUT_MS - 1);
    assert_true(f->done && f->err == 0);
    assert_int_equal(f->n, 2);
    assert_string_equal(f->shown[0].key, "a");
    assert_int_equal(f->shown[0].flags, ENTRY_DAMAGED);
    assert_string_equal(f->shown[1].key, "b");
    assert_int_equal(f->shown[1].flags, 0);
    hand_run_out(&f->h);
}

static void a_key_that_two_of_three_found_damaged_is_shown_when_it_was_mended(void **state_)
{
    struct fixture *f = *state_;

    list(f, false);
    answer_key(f, 0, "k", NULL);
    answer_key(f, 1, "k", NULL);
    state(f, 2, &live);
    state(f, 3, &live);
    assert_true(f->done && f->err == 0 && f->n == 1);
    assert_int_equal(f->shown[0].flags, 0);
    hand_run_out(&f->h);
}

/* All say that they cannot answer now, as nodes do whose store fails for a while. */
static void a_key_of_which_no_node_said_that_it_is_damaged_is_not_shown_as_such(void **state_)
{
    struct fixture *f = *state_;

    list(f, false);
    answer_key(f, 0, "k", &live);
    answer_nothing(f, 1);
    for (unsigned i = 2; i < 5; i++)
        hand_damaged(&f->h, i);
    assert_true(f->done && f->err < 0);
    hand_run_out(&f->h);
}

/* Nobody knows whether there is anything below it: the keys there are looked at one by one. */
static void a_prefix_with_nothing_but_damage_below_is_settled_key_by_key(void **state_)
{
    struct fixture *f = *state_;
    struct buf entries = {0};

    list(f, true);
    add(&entries, "d/x", 2, NULL);
    answer(f, 0, &entries, 1);
    add(&entries, "d/x", 2, NULL);
    answer(f, 1, &entries, 1);
    assert_false(f->done);
    assert_int_equal(f->h.n_calls, 4);
    assert_int_equal(hand_message(&f->h, 2).kind, MSG_LIST);
    assert_true(span_eq(hand_message(&f->h, 2).key, span_str("d/")));
    answer_key(f, 2, "d/x", NULL);
    answer_key(f, 3, "d/x", &live);
    state(f, 4, &live);
    state(f, 5, &live);
    assert_true(f->done && f->err == 0 && f->n == 1);
    assert_string_equal(f->shown[0].key, "d/");
    hand_run_out(&f->h);
}

/* --- peeks ------------------------------------------------------------------------------------ */

static void on_peek(void *arg, struct read_result *res)
{
    struct fixture *f = arg;

    f->done = true;
    f->err = res->err;
    f->n = res->has_child;
}

static void a_damaged_child_is_no_child_before_it_was_looked_at(void **state_)
{
    struct fixture *f = *state_;
    struct read_args args = {.key = span_str("d"), .peek = true};
    struct answer a = {.kind = ANS_STATE, .has_peek = true};

    a.peek = (struct entry){.key = span_str("d/x"), .flags = ENTRY_DAMAGED};
    assert_non_null(client_read(f->h.client, &args, on_peek, f));
    assert_int_equal(f->h.n_calls, 2);
    hand_answer(&f->h, 0, a, 5);
    hand_answer(&f->h, 1, a, 5);
    assert_false(f->done);
    assert_int_equal(hand_message(&f->h, 2).kind, MSG_LIST);
    answer_nothing(f, 2);
    answer_nothing(f, 3);
    assert_true(f->done && f->err == 0);
    assert_int_equal(f->n, 0);
    hand_run_out(&f->h);
}

/* --- whom it asks ----------------------------------------------------------------------------- */

/* Or what has been emptied of thousands of keys would take as many questions. */
static void a_listing_that_meets_deleted_keys_asks_for_more_at_a_time(void **state_)
{
    struct fixture *f = *state_;
    uint32_t last = 0;

    list(f, false);
    for (unsigned page = 0; page < 10; page++) {
        unsigned first = f->h.n_calls - 2;
        uint32_t limit = hand_message(&f->h, first).limit;

        assert_true(limit > last || limit == LIST_LIMIT_MAX);
        last = limit;
        for (unsigned i = 0; i < 2; i++) {
            struct buf entries = {0};
            char key[16];

            snprintf(key, sizeof key, "gone%u", page);
            add(&entries, key, 0, &tombstone);
            hand_answer_value(&f->h, first + i,
                              (struct answer){.kind = ANS_LIST, .n_entries = 1, .more = page < 9},
                              buf_span(&entries));
            buf_fini(&entries);
        }
    }
    assert_true(f->done);
    assert_int_equal(f->err, 0);
    assert_int_equal(f->n, 0);
    assert_int_equal(last, LIST_LIMIT_MAX);
}

static void a_node_that_recovers_is_asked_last_and_one_that_fails_is_replaced(void **state_)
{
    struct fixture *f = *state_;

    for (unsigned recovering = 0; recovering < 3; recovering++) {
        unsigned at = f->h.n_calls;
        struct list_args args = {.limit = 1};

        f->done = false;
        for (unsigned i = 0; i < 3; i++) {
            health_answered(f->h.health, i, f->h.now_us, 100, false, 1000, 5);
            health_hello(f->h.health, i, 0, 0, 0, i == recovering);
        }
        assert_non_null(client_list(f->h.client, &args, on_list, f));
        assert_int_equal(f->h.n_calls, at + 2);
        assert_int_not_equal(f->h.calls[at]->node, recovering);
        assert_int_not_equal(f->h.calls[at + 1]->node, recovering);
        hand_damaged(&f->h, at);
        assert_int_equal(f->h.calls[at + 2]->node, recovering);
        answer_nothing(f, at + 1);
        answer_nothing(f, at + 2);
        assert_true(f->done && f->err == 0);
    }
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(
            a_node_of_another_ring_that_is_needed_ends_the_listing_at_once, setup_two_replicas,
            teardown),
        cmocka_unit_test_setup_teardown(
            a_node_of_another_ring_that_others_cover_for_is_done_without, setup, teardown),
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
        TEST(a_key_that_one_node_finds_damaged_is_settled_among_the_others),
        TEST(a_damaged_key_is_not_absent_because_another_node_has_none),
        TEST(a_damaged_key_that_turns_out_deleted_is_left_out),
        TEST(a_key_that_two_of_three_find_damaged_is_named_and_hides_no_other),
        TEST(a_key_that_two_of_three_found_damaged_is_shown_when_it_was_mended),
        TEST(a_key_of_which_no_node_said_that_it_is_damaged_is_not_shown_as_such),
        TEST(a_prefix_with_nothing_but_damage_below_is_settled_key_by_key),
        TEST(a_damaged_child_is_no_child_before_it_was_looked_at),
        TEST(a_listing_that_meets_deleted_keys_asks_for_more_at_a_time),
        TEST(a_node_that_recovers_is_asked_last_and_one_that_fails_is_replaced),
    };

    return cmocka_run_group_tests_name("listing", tests, NULL, NULL);
}

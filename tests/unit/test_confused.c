/*
 * test_confused.c - a client among nodes of which one says what is whole, checksummed and wrong: an
 * answer to something else, the value of another record, a page out of order. Found by the fuzz
 * targets client and listing.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <stdlib.h>

#include "tests/lib/hand.h"

struct fixture {
    struct hand h;
    unsigned n_done;
    int err;
    struct value value;
    unsigned n_listed;
    struct buf names; /* with a blank behind each */
};

static int setup(void **state)
{
    struct fixture *f = calloc(1, sizeof *f);

    assert_non_null(f);
    hand_init(&f->h, 3, 3, 1000);
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;

    hand_run_out(&f->h);
    hand_fini(&f->h);
    value_fini(&f->value);
    buf_fini(&f->names);
    free(f);
    return 0;
}

static void on_read(void *arg, struct read_result *res)
{
    struct fixture *f = arg;

    f->n_done++;
    f->err = res->err;
    f->value = res->value;
    res->value = (struct value){0};
}

static void on_written(void *arg, struct write_result *res)
{
    struct fixture *f = arg;

    f->n_done++;
    f->err = res->err;
}

static int put_nothing(void *ctx, const struct record *cur, struct value cur_value,
                       struct draft *next)
{
    (void)ctx, (void)cur, (void)cur_value, (void)next;
    return 0;
}

static void on_listed(void *arg, struct list_result *res)
{
    struct fixture *f = arg;
    struct cursor c = cursor_of(buf_span(&res->entries));
    struct entry e;

    f->n_done++;
    f->err = res->err;
    f->n_listed = res->n;
    while (entry_next(&c, &e) == 1)
        buf_addf(&f->names, "%.*s ", (int)e.key.len, (const char *)e.key.data);
}

/* A record of version 10 with this value; sums is its memory. */
static struct record record_with(struct span value, struct buf *sums)
{
    struct record rec = {.version = {10, 7}, .seq = 1, .size = value.len};

    record_sums(sums, value);
    rec.sums = buf_span(sums);
    return rec;
}

static void an_answer_to_another_kind_of_request_counts_for_nothing(void **state)
{
    struct fixture *f = *state;
    struct write_args args = {.key = span_str("k"), .edit = put_nothing};

    client_write(f->h.client, &args, on_written, f);
    assert_int_equal(f->h.n_calls, 3);
    hand_say(&f->h, 0, ANS_ACCEPTED);
    hand_say(&f->h, 1, ANS_PROMISE);
    assert_int_equal(f->h.n_calls, 3); /* one promise is no majority */
    hand_say(&f->h, 2, ANS_PROMISE);
    assert_true(f->h.n_calls > 3);
    for (unsigned i = 3; i < 5; i++)
        hand_say(&f->h, i, ANS_STATE);
    assert_int_equal(f->n_done, 0);
}

static void a_pinned_read_goes_on_until_someone_brings_the_bytes(void **state)
{
    struct fixture *f = *state;
    struct buf sums = {0};
    struct record rec = record_with(span_str("value"), &sums);
    struct read_args args = {
        .key = span_str("k"), .want_value = true, .length = READ_ALL, .pin = rec.version};

    client_read(f->h.client, &args, on_read, f);
    hand_answer(&f->h, 0, (struct answer){.kind = ANS_STATE, .record = rec}, 1);
    assert_int_equal(f->n_done, 0);
    assert_int_equal(f->h.n_calls, 2);
    hand_answer_value(&f->h, 1,
                      (struct answer){.kind = ANS_STATE, .record = rec, .has_value = true},
                      span_str("value"));
    assert_int_equal(f->n_done, 1);
    assert_int_equal(f->err, 0);
    assert_true(span_eq(value_span(f->value), span_str("value")));
    buf_fini(&sums);
}

static void a_value_is_never_given_out_with_the_record_of_another(void **state)
{
    struct fixture *f = *state;
    struct buf sums = {0}, others = {0};
    struct record rec = record_with(span_str("value"), &sums);
    struct record other = record_with(span_str("VALUE"), &others);
    struct read_args args = {.key = span_str("k"), .want_value = true, .length = READ_ALL};

    client_read(f->h.client, &args, on_read, f);
    hand_answer(&f->h, 0, (struct answer){.kind = ANS_STATE, .record = rec}, 1);
    hand_answer(&f->h, 1, (struct answer){.kind = ANS_STATE, .record = rec}, 1);
    assert_int_equal(f->h.n_calls, 3); /* the bytes are fetched */
    hand_answer_value(&f->h, 2,
                      (struct answer){.kind = ANS_STATE, .record = other, .has_value = true},
                      span_str("VALUE"));
    assert_int_equal(f->n_done, 1);
    assert_int_equal(f->err, -EBADMSG);
    assert_null(f->value.data);
    buf_fini(&sums);
    buf_fini(&others);
}

/* Answers a LIST with these keys, in this order. */
static void answer_page(struct fixture *f, unsigned call, const char *const *keys, unsigned n)
{
    struct answer a = {.kind = ANS_LIST, .n_entries = n};
    struct buf entries = {0};

    for (unsigned i = 0; i < n; i++) {
        struct entry e = {.key = span_str(keys[i]), .version = {10, 7}};

        entry_encode(&entries, &e);
    }
    hand_answer_value(&f->h, call, a, buf_span(&entries));
    buf_fini(&entries);
}

/* What is asked for lies behind "d". */
static void claim_page_is_replaced(struct fixture *f, const char *const *keys, unsigned n)
{
    static const char *const good[] = {"e", "f"};
    struct list_args args = {.start_after = span_str("d"), .limit = 10};

    client_list(f->h.client, &args, on_listed, f);
    assert_int_equal(f->h.n_calls, 2);
    answer_page(f, 0, keys, n);
    assert_int_equal(f->h.n_calls, 3); /* the third node is asked in its place */
    answer_page(f, 1, good, 2);
    answer_page(f, 2, good, 2);
    assert_int_equal(f->n_done, 1);
    assert_int_equal(f->err, 0);
    assert_int_equal(f->n_listed, 2);
    assert_true(span_eq(buf_span(&f->names), span_str("e f ")));
}

static void a_page_out_of_order_is_another_nodes_to_give(void **state)
{
    claim_page_is_replaced(*state, (const char *const[]){"f", "e"}, 2);
}

static void a_page_with_a_name_twice_is_another_nodes_to_give(void **state)
{
    claim_page_is_replaced(*state, (const char *const[]){"e", "e", "f"}, 3);
}

static void a_page_from_before_the_position_is_another_nodes_to_give(void **state)
{
    claim_page_is_replaced(*state, (const char *const[]){"c", "e", "f"}, 3);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(an_answer_to_another_kind_of_request_counts_for_nothing,
                                        setup, teardown),
        cmocka_unit_test_setup_teardown(a_pinned_read_goes_on_until_someone_brings_the_bytes, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(a_value_is_never_given_out_with_the_record_of_another,
                                        setup, teardown),
        cmocka_unit_test_setup_teardown(a_page_out_of_order_is_another_nodes_to_give, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(a_page_with_a_name_twice_is_another_nodes_to_give, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(a_page_from_before_the_position_is_another_nodes_to_give,
                                        setup, teardown),
    };

    return cmocka_run_group_tests_name("confused", tests, NULL, NULL);
}

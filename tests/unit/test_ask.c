/* test_ask.c - one message to one node, against answers given by hand. */
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
    int err;
    char why[256];
    bool answered;
    struct answer answer; /* what it borrows is gone */
    size_t value_len, entries_len;
};

static const struct record rec = {.version = {10, 7}, .seq = 1};

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

static void on_asked(void *arg, struct ask_result *res)
{
    struct fixture *f = arg;

    assert_false(f->done);
    f->done = true;
    f->err = res->err;
    f->answered = res->answer != NULL;
    if (res->answer != NULL)
        f->answer = *res->answer;
    f->value_len = res->value.len;
    f->entries_len = res->entries.len;
    for (unsigned i = 0; i < sizeof f->why; i++)
        f->why[i] = res->why.msg[i];
}

static void on_settled(void *arg, struct write_result *res)
{
    (void)arg;
    (void)res;
}

static struct op *ask(struct fixture *f, unsigned node, struct message m, struct value body)
{
    struct ask_args args = {.node = node, .m = &m, .body = body};
    struct op *op = client_ask(f->h.client, &args, on_asked, f);

    assert_non_null(op);
    assert_int_equal(f->h.n_calls, 1);
    assert_int_equal(f->h.calls[0]->node, node);
    return op;
}

static void a_message_goes_to_that_node_with_its_bytes_and_the_answer_comes_back(void **state)
{
    struct fixture *f = *state;
    struct buf sums = {0};
    struct record r = rec;
    struct message m = {.kind = MSG_ACCEPT, .flags = MSG_RESTORE, .key = span_str("k")};
    struct value body = {0};

    record_sums(&sums, span_str("value"));
    r.size = 5;
    r.sums = buf_span(&sums);
    m.record = r;
    assert_int_equal(value_copy(span_str("value"), &body), 0);
    ask(f, 2, m, body);
    value_fini(&body); /* it has a reference of its own */
    assert_int_equal(hand_message(&f->h, 0).flags, MSG_RESTORE);
    assert_int_equal(hand_message(&f->h, 0).ring, ring_fingerprint(f->h.cfg->ring));
    assert_true(span_eq(value_span(f->h.calls[0]->body), span_str("value")));
    hand_say(&f->h, 0, ANS_ACCEPTED);
    assert_true(f->done && f->err == 0 && f->answered);
    buf_fini(&sums);
}

static void a_refusal_is_an_answer_and_raises_what_the_client_has_seen(void **state)
{
    struct fixture *f = *state;
    struct ballot high = {HAND_START_US * 3, 9};
    struct settle_args settle = {.key = span_str("k")};

    ask(f, 1, (struct message){.kind = MSG_DROP, .key = span_str("k"), .ballot = {4, 4}},
        (struct value){0});
    hand_refuse(&f->h, 0, high);
    assert_true(f->done && f->err == 0);
    assert_int_equal(f->answer.kind, ANS_REFUSE);
    assert_int_equal(f->answer.ballot.counter, high.counter);

    assert_non_null(client_settle(f->h.client, &settle, on_settled, NULL));
    assert_true(hand_message(&f->h, 1).ballot.counter > high.counter);
    hand_run_out(&f->h);
}

static void what_a_node_says_is_wrong_is_told(void **state)
{
    struct fixture *f = *state;

    ask(f, 0, (struct message){.kind = MSG_KEYS, .limit = 10}, (struct value){0});
    hand_answer(&f->h, 0,
                (struct answer){.kind = ANS_ERROR, .status = 503, .text = span_str("recovering")},
                5);
    assert_true(f->done);
    assert_int_equal(f->err, -EHOSTDOWN);
    assert_true(f->answered);
    assert_int_equal(f->answer.status, 503);
    assert_string_equal(f->why, "node: recovering");
}

static void entries_come_along(void **state)
{
    struct fixture *f = *state;
    struct answer a = {.kind = ANS_KEYS, .n_entries = 1};
    struct buf entries = {0};
    struct entry e;

    entry_of_record(&e, span_str("k"), &rec);
    entry_encode(&entries, &e);
    ask(f, 0, (struct message){.kind = MSG_KEYS, .limit = 10}, (struct value){0});
    hand_answer_value(&f->h, 0, a, buf_span(&entries));
    assert_true(f->done && f->err == 0);
    assert_int_equal(f->entries_len, entries.len);
    buf_fini(&entries);
}

static void an_answer_to_another_question_is_none(void **state)
{
    struct fixture *f = *state;

    ask(f, 0, (struct message){.kind = MSG_READ, .key = span_str("k")}, (struct value){0});
    hand_say(&f->h, 0, ANS_HELLO);
    assert_true(f->done);
    assert_int_equal(f->err, -EPROTO);
}

static void damaged_bytes_of_a_value_are_no_value(void **state)
{
    struct fixture *f = *state;
    struct buf sums = {0};
    struct record r = rec;

    record_sums(&sums, span_str("value"));
    r.size = 5;
    r.sums = buf_span(&sums);
    ask(f, 0,
        (struct message){
            .kind = MSG_READ, .flags = MSG_WANT_VALUE, .key = span_str("k"), .length = READ_ALL},
        (struct value){0});
    hand_answer_value(&f->h, 0, (struct answer){.kind = ANS_STATE, .record = r}, span_str("valve"));
    assert_true(f->done);
    assert_int_equal(f->err, -EBADMSG);
    assert_int_equal(f->value_len, 0);
    buf_fini(&sums);
}

static void a_node_that_is_silent_is_not_waited_for_longer_than_its_time(void **state)
{
    struct fixture *f = *state;

    ask(f, 0, (struct message){.kind = MSG_READ, .key = span_str("k")}, (struct value){0});
    hand_run_until(&f->h, HAND_START_US + 1000 * TIMEOUT_MS - 1);
    assert_false(f->done);
    hand_run_until(&f->h, HAND_START_US + 1000 * TIMEOUT_MS);
    assert_true(f->done && !f->answered);
    assert_int_equal(f->err, -ETIMEDOUT);
}

static void a_cancel_ends_it(void **state)
{
    struct fixture *f = *state;

    op_cancel(
        ask(f, 0, (struct message){.kind = MSG_READ, .key = span_str("k")}, (struct value){0}));
    assert_false(f->done);
    hand_run(&f->h);
    assert_true(f->done);
    assert_int_equal(f->err, -EINTR);
}

/* --- HELLO ------------------------------------------------------------------------------------ */

static void on_hello(void *arg, struct hello_result *res)
{
    struct fixture *f = arg;

    f->done = true;
    f->err = res->err;
    f->answer = res->answer;
}

static void a_hello_says_who_asks_and_tells_health_what_it_heard(void **state)
{
    struct fixture *f = *state;
    struct hello_args args = {
        .node = 1, .self = 2, .incarnation = 77, .state = NODE_RECOVERING, .timeout_ms = 100};
    struct answer a = {.kind = ANS_HELLO, .floor = 9, .n_keys = 3, .recovering = NODE_RECOVERING};
    struct message m;

    assert_non_null(client_hello(f->h.client, &args, on_hello, f));
    m = hand_message(&f->h, 0);
    assert_int_equal(m.node, 2);
    assert_int_equal(m.incarnation, 77);
    assert_int_equal(m.recovering, NODE_RECOVERING);
    hand_answer(&f->h, 0, a, 5);
    assert_true(f->done && f->err == 0);
    assert_int_equal(f->answer.floor, 9);
    assert_true(health_get(f->h.health, 1).recovering);
    assert_true(health_up(f->h.health, 1));
    assert_false(health_fit(f->h.health, 1));

    assert_non_null(client_hello(f->h.client, &args, on_hello, f));
    a.recovering = NODE_COFOUNDER; /* is whole */
    hand_answer(&f->h, 1, a, 5);
    assert_true(health_fit(f->h.health, 1));
}

/* --- health ----------------------------------------------------------------------------------- */

static void what_this_process_lacks_says_nothing_of_the_node(void **state)
{
    static const int own[] = {-ENOSPC, -EDQUOT, -EIO,   -EFBIG,  -ENOMEM,
                              -EMFILE, -ENFILE, -EROFS, -EACCES, -ECANCELED};
    static const int of_node[] = {-ECONNREFUSED, -ECONNRESET, -EHOSTUNREACH, -ENETUNREACH, -EPROTO};
    struct fixture *f = *state;
    struct hello_args args = {.node = 1, .self = 2, .timeout_ms = 100};
    unsigned n = 0;

    for (size_t i = 0; i < sizeof(own) / sizeof(own[0]); i++) {
        assert_non_null(client_hello(f->h.client, &args, on_hello, f));
        hand_fail(&f->h, n++, own[i]);
        assert_true(health_up(f->h.health, 1));
    }
    for (size_t i = 0; i < sizeof(of_node) / sizeof(of_node[0]); i++) {
        assert_non_null(client_hello(f->h.client, &args, on_hello, f));
        hand_fail(&f->h, n++, of_node[i]);
        assert_false(health_up(f->h.health, 1));
        health_answered(f->h.health, 1, f->h.now_us, 100, false, 1000, 5);
    }
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
        TEST(a_message_goes_to_that_node_with_its_bytes_and_the_answer_comes_back),
        TEST(a_refusal_is_an_answer_and_raises_what_the_client_has_seen),
        TEST(what_a_node_says_is_wrong_is_told),
        TEST(entries_come_along),
        TEST(an_answer_to_another_question_is_none),
        TEST(damaged_bytes_of_a_value_are_no_value),
        TEST(a_node_that_is_silent_is_not_waited_for_longer_than_its_time),
        TEST(a_cancel_ends_it),
        TEST(a_hello_says_who_asks_and_tells_health_what_it_heard),
        TEST(what_this_process_lacks_says_nothing_of_the_node),
    };

    return cmocka_run_group_tests_name("ask", tests, NULL, NULL);
}

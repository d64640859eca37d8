/* test_key_merge.c - listings of several nodes side by side, against answers given by hand. */
#include "node/key_merge.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/lib/hand.h"

struct fixture {
    struct hand h;
    struct key_merge *m;
    unsigned n_ready;
    bool closed;
};

static void on_ready(void *arg)
{
    struct fixture *f = arg;

    f->n_ready++;
}

static void on_closed(void *arg)
{
    struct fixture *f = arg;

    assert_false(f->closed);
    f->closed = true;
}

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

    if (!f->closed)
        key_merge_close(f->m, on_closed, f);
    hand_run_out(&f->h);
    assert_true(f->closed);
    hand_fini(&f->h);
    free(f);
    return 0;
}

static void merge_two(struct fixture *f)
{
    const struct key_source sources[2] = {{1, 0}, {2, 0}};
    struct key_merge_opts opts = {
        .client = f->h.client,
        .sources = sources,
        .n_sources = 2,
        .timeout_ms = 1000,
        .on_ready = on_ready,
        .arg = f,
    };

    assert_int_equal(key_merge_new(&opts, &f->m), 0);
}

/* A page: "a1 b2" stands for a in version 1, b in version 2. next: NULL: it is the last. */
static void answer_page(struct fixture *f, unsigned node, const char *keys, const char *next)
{
    struct answer a = {.kind = ANS_KEYS};
    struct buf entries = {0};

    for (const char *p = keys; *p != '\0'; p += p[2] == ' ' ? 3 : 2) {
        struct entry e = {.key = span_of(p, 1), .version = {(uint64_t)(p[1] - '0'), 1}};

        entry_encode(&entries, &e);
        a.n_entries++;
    }
    a.more = next != NULL;
    if (next != NULL)
        a.next = span_str(next);
    hand_answer_value(&f->h, hand_find(&f->h, MSG_KEYS, node), a, buf_span(&entries));
    buf_fini(&entries);
}

/* The next key is this one, in these versions at the two. */
static void assert_next(struct fixture *f, const char *key, uint64_t first, uint64_t second)
{
    struct merged_key k;

    assert_int_equal(key_merge_next(f->m, &k), 1);
    assert_true(span_eq(k.key, span_str(key)));
    assert_int_equal(k.entries[0].version.counter, first);
    assert_int_equal(k.entries[1].version.counter, second);
}

static void assert_result(struct fixture *f, int want)
{
    struct merged_key k;

    assert_int_equal(key_merge_next(f->m, &k), want);
}

static void keys_come_in_order_with_what_each_node_has(void **state)
{
    struct fixture *f = *state;

    merge_two(f);
    assert_result(f, -EAGAIN);
    answer_page(f, 1, "a1 c3", NULL);
    assert_int_equal(f->n_ready, 0);
    answer_page(f, 2, "a1 b2 c4", NULL);
    assert_int_equal(f->n_ready, 1);
    assert_next(f, "a", 1, 1);
    assert_next(f, "b", 0, 2);
    assert_next(f, "c", 3, 4);
    assert_result(f, 0);
    assert_result(f, 0);
}

static void the_next_page_is_asked_for_behind_the_last_and_only_when_it_is_needed(void **state)
{
    struct fixture *f = *state;

    merge_two(f);
    assert_result(f, -EAGAIN);
    answer_page(f, 1, "a1 b1", "b");
    answer_page(f, 2, "", "m"); /* a page may be without any key */
    assert_result(f, -EAGAIN);
    assert_int_equal(hand_n_open(&f->h), 1); /* node 1 has told enough */
    assert_true(
        span_eq(hand_message(&f->h, hand_find(&f->h, MSG_KEYS, 2)).start_after, span_str("m")));
    answer_page(f, 2, "n1", NULL);
    assert_next(f, "a", 1, 0);
    assert_next(f, "b", 1, 0);
    assert_result(f, -EAGAIN);
    answer_page(f, 1, "n2", NULL);
    assert_next(f, "n", 2, 1);
    assert_result(f, 0);
}

static void a_node_that_fails_ends_it_and_is_named(void **state)
{
    struct fixture *f = *state;
    const struct err *why;

    merge_two(f);
    assert_result(f, -EAGAIN);
    answer_page(f, 1, "a1", NULL);
    hand_fail(&f->h, hand_find(&f->h, MSG_KEYS, 2), -ECONNREFUSED);
    assert_int_equal(f->n_ready, 1);
    assert_result(f, -ECONNREFUSED);
    assert_int_equal(key_merge_failed(f->m, &why), 2);
    assert_non_null(strstr(why->msg, "refused"));
}

static void a_page_that_leads_nowhere_is_an_error_and_no_endless_loop(void **state)
{
    struct fixture *f = *state;

    merge_two(f);
    assert_result(f, -EAGAIN);
    answer_page(f, 1, "", "m");
    answer_page(f, 2, "x1", NULL);
    assert_result(f, -EAGAIN);
    answer_page(f, 1, "", "m");
    assert_result(f, -EPROTO);
}

static void closing_in_the_middle_waits_for_what_is_under_way(void **state)
{
    struct fixture *f = *state;

    merge_two(f);
    assert_result(f, -EAGAIN);
    answer_page(f, 1, "a1", NULL);
    key_merge_close(f->m, on_closed, f);
    assert_false(f->closed);
    hand_run_out(&f->h);
    assert_true(f->closed);
    assert_int_equal(f->n_ready, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(keys_come_in_order_with_what_each_node_has, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(
            the_next_page_is_asked_for_behind_the_last_and_only_when_it_is_needed, setup, teardown),
        cmocka_unit_test_setup_teardown(a_node_that_fails_ends_it_and_is_named, setup, teardown),
        cmocka_unit_test_setup_teardown(a_page_that_leads_nowhere_is_an_error_and_no_endless_loop,
                                        setup, teardown),
        cmocka_unit_test_setup_teardown(closing_in_the_middle_waits_for_what_is_under_way, setup,
                                        teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

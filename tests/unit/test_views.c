/* test_views.c - moments of a store that has no snapshots of its own. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/hash.h"
#include "node/views.h"

#define BYTES_MAX (1u << 20)

static int setup(void **state)
{
    struct views *vs;

    assert_int_equal(views_new(BYTES_MAX, &vs), 0);
    *state = vs;
    return 0;
}

static int teardown(void **state)
{
    views_free(*state);
    return 0;
}

/* Changes key, which was `before` until now. */
static bool change(struct views *vs, const char *key, const char *before)
{
    struct views_change c;
    bool wanted = views_begin(vs, span_str(key), &c);

    views_end(vs, &c, VIEWS_CHANGED, span_str(before));
    return wanted;
}

/* The first changed key from `from` on: "KEY=BEFORE", or "" for none, or "-ERRNO". */
static const char *next(struct views *vs, struct view *v, const char *from, bool above)
{
    static char text[100];
    struct buf key = {0}, before = {0}, all = {0};
    int ret = views_next(vs, v, span_str(from), above, &key, &before);

    if (ret < 0)
        buf_addf(&all, "%d", ret);
    else if (ret == 1)
        buf_addf(&all, "%.*s=%.*s", (int)key.len, (char *)key.data, (int)before.len,
                 before.len > 0 ? (char *)before.data : "");
    buf_u8(&all, 0);
    memcpy(text, all.data, all.len);
    buf_fini(&key);
    buf_fini(&before);
    buf_fini(&all);
    return text;
}

static void without_a_view_nothing_is_wanted(void **state)
{
    struct views *vs = *state;
    struct view *v;

    assert_false(change(vs, "k", "old"));
    v = views_open(vs);
    assert_string_equal(next(vs, v, "", false), "");
    views_close(vs, v);
    assert_false(change(vs, "k", "older"));
}

static void what_was_there_first_is_kept_for_each_view(void **state)
{
    struct views *vs = *state;
    struct view *early = views_open(vs), *late;

    assert_true(change(vs, "b", "1"));
    late = views_open(vs);
    assert_true(change(vs, "b", "2"));
    assert_false(change(vs, "b", "3"));
    assert_true(change(vs, "a", ""));
    assert_string_equal(next(vs, early, "b", false), "b=1");
    assert_string_equal(next(vs, late, "b", false), "b=2");
    assert_string_equal(next(vs, early, "", false), "a=");
    assert_string_equal(next(vs, early, "a", true), "b=1");
    assert_string_equal(next(vs, early, "b", true), "");
    views_close(vs, early);
    views_close(vs, late);
}

static void a_change_that_was_not_made_leaves_no_trace(void **state)
{
    struct views *vs = *state;
    struct view *v = views_open(vs);
    struct views_change c;

    assert_true(change(vs, "a", "1"));
    assert_true(views_begin(vs, span_str("b"), &c));
    views_end(vs, &c, VIEWS_UNCHANGED, (struct span){0});
    assert_string_equal(next(vs, v, "a", true), "");
    assert_true(change(vs, "b", "2"));
    assert_string_equal(next(vs, v, "a", true), "b=2");
    views_close(vs, v);
}

static void a_change_of_which_nobody_knows_ends_the_walk_there(void **state)
{
    struct views *vs = *state;
    struct view *v = views_open(vs);
    struct views_change c;

    assert_true(views_begin(vs, span_str("b"), &c));
    views_end(vs, &c, VIEWS_UNKNOWN, (struct span){0});
    change(vs, "a", "1");
    assert_string_equal(next(vs, v, "", false), "a=1");
    assert_string_equal(next(vs, v, "a", true), "-5"); /* EIO */
    views_close(vs, v);
}

struct waiter {
    struct views *vs;
    struct view *v;
    atomic_bool done;
    bool right;
};

static void *wait_for_b(void *arg)
{
    struct waiter *w = arg;

    w->right = strcmp(next(w->vs, w->v, "b", false), "b=old") == 0;
    atomic_store(&w->done, true);
    return NULL;
}

static void a_walk_waits_for_a_change_under_way(void **state)
{
    struct views *vs = *state;
    struct waiter w = {.vs = vs, .v = views_open(vs)};
    struct views_change c;
    pthread_t thread;

    assert_true(views_begin(vs, span_str("b"), &c));
    assert_int_equal(pthread_create(&thread, NULL, wait_for_b, &w), 0);
    change(vs, "a", "1"); /* which is before where it waits */
    assert_false(atomic_load(&w.done));
    views_end(vs, &c, VIEWS_CHANGED, span_str("old"));
    pthread_join(thread, NULL);
    assert_true(w.right);
    views_close(vs, w.v);
}

static void a_view_closed_during_a_change_is_forgotten(void **state)
{
    struct views *vs = *state;
    struct view *v = views_open(vs);
    struct views_change c;

    assert_true(views_begin(vs, span_str("b"), &c));
    views_close(vs, v);
    views_end(vs, &c, VIEWS_CHANGED, span_str("old"));
}

static void what_is_kept_is_bounded_and_the_largest_view_is_given_up(void **state)
{
    struct views *vs = *state;
    struct view *large = views_open(vs), *small;
    static char before[60000];
    char key[16];

    memset(before, 'x', sizeof(before) - 1);
    for (unsigned i = 0; i < 10; i++) {
        (void)snprintf(key, sizeof(key), "k%02u", i);
        change(vs, key, before);
    }
    small = views_open(vs);
    for (unsigned i = 10; i < 20; i++) {
        (void)snprintf(key, sizeof(key), "k%02u", i);
        change(vs, key, before);
    }
    assert_string_equal(next(vs, large, "", false), "-105"); /* ENOBUFS */
    assert_string_equal(next(vs, small, "k20", false), "");
    views_close(vs, large);
    views_close(vs, small);
}

static void many_changes_come_in_byte_order(void **state)
{
    struct views *vs = *state;
    struct view *v = views_open(vs);
    struct buf key = {0}, before = {0}, last = {0};
    struct views_change c;
    unsigned n = 0;

    for (uint64_t i = 0; i < 3000; i++) {
        uint64_t k = hash_fmix64(i % 1500 + 1);

        (void)views_begin(vs, span_of(&k, 1 + k % 8), &c);
        views_end(vs, &c, i % 7 == 0 ? VIEWS_UNCHANGED : VIEWS_CHANGED, span_of(&i, sizeof(i)));
    }
    while (views_next(vs, v, buf_span(&last), n > 0, &key, &before) == 1) {
        assert_true(n == 0 || span_cmp(buf_span(&key), buf_span(&last)) > 0);
        buf_clear(&last);
        buf_add_span(&last, buf_span(&key));
        n++;
    }
    assert_true(n > 1000);
    buf_fini(&key);
    buf_fini(&before);
    buf_fini(&last);
    views_close(vs, v);
}

#define N_CHOSEN 3000u

/*
 * Keys in byte order whose hashes fall: as nodes of a tree by key and hash they would be a list.
 * Each is wanted, or the view would have been given up.
 */
static void *change_chosen(void *arg)
{
    struct views *vs = arg;
    uint64_t n = 0;
    uintptr_t wanted = 0;

    for (uint64_t i = 0; i < N_CHOSEN; i++) {
        uint64_t most = UINT64_MAX / N_CHOSEN * (N_CHOSEN - i), hash;
        char key[40];
        struct views_change c;

        do {
            (void)snprintf(key, sizeof(key), "%06u-%llu", (unsigned)i, (unsigned long long)n++);
            hash = hash_fmix64(hash_xxh3(span_str(key)));
        } while (hash > most || hash < most - UINT64_MAX / N_CHOSEN);
        wanted += views_begin(vs, span_str(key), &c);
        views_end(vs, &c, VIEWS_CHANGED, span_str("x"));
    }
    return (void *)wanted;
}

static void keys_that_somebody_chose_need_no_deeper_stack_than_others(void **state)
{
    struct view *v = views_open(*state);
    pthread_attr_t attr;
    pthread_t thread;
    void *wanted;

    assert_non_null(v);
    assert_int_equal(pthread_attr_init(&attr), 0);
    assert_int_equal(pthread_attr_setstacksize(&attr, 64u << 10), 0);
    assert_int_equal(pthread_create(&thread, &attr, change_chosen, *state), 0);
    assert_int_equal(pthread_join(thread, &wanted), 0);
    assert_int_equal((uintptr_t)wanted, N_CHOSEN);
    pthread_attr_destroy(&attr);
    views_close(*state, v);
}

#define CLAIM(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CLAIM(without_a_view_nothing_is_wanted),
        CLAIM(what_was_there_first_is_kept_for_each_view),
        CLAIM(a_change_that_was_not_made_leaves_no_trace),
        CLAIM(a_change_of_which_nobody_knows_ends_the_walk_there),
        CLAIM(a_walk_waits_for_a_change_under_way),
        CLAIM(a_view_closed_during_a_change_is_forgotten),
        CLAIM(what_is_kept_is_bounded_and_the_largest_view_is_given_up),
        CLAIM(many_changes_come_in_byte_order),
        CLAIM(keys_that_somebody_chose_need_no_deeper_stack_than_others),
    };

    return cmocka_run_group_tests_name("views", tests, NULL, NULL);
}

/* test_history.c - the checker on histories that are known to be good or bad. */
#include "tests/lib/history.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "tests/lib/rng.h"

static struct history h;

static int begin(void **state)
{
    (void)state;
    memset(&h, 0, sizeof h);
    return 0;
}

static struct history_op *add(enum history_kind kind, uint32_t id, uint64_t start, uint64_t end,
                              enum history_outcome outcome)
{
    struct history_op *op = history_add(&h, kind, 0, id, start);

    assert_non_null(op);
    history_end(op, outcome, end);
    return op;
}

static struct history_op *ok(enum history_kind kind, uint32_t id, uint64_t start, uint64_t end)
{
    return add(kind, id, start, end, HISTORY_OK);
}

static struct history_op *unknown(enum history_kind kind, uint32_t id, uint64_t start)
{
    return add(kind, id, start, 0, HISTORY_UNKNOWN);
}

/* op saw this list, whose last write was `mark`; {0} is nothing there. */
static void saw(struct history_op *op, uint32_t mark, const uint32_t *ids, unsigned n)
{
    op->seen.mark_known = op->seen.list_known = true;
    op->seen.mark = mark;
    op->seen.n = n;
    memcpy(op->seen.ids, ids, n * sizeof *ids);
}

#define SAW(op, mark, ...)                                                                         \
    saw(op, mark, (const uint32_t[]){__VA_ARGS__},                                                 \
        sizeof((const uint32_t[]){__VA_ARGS__}) / sizeof(uint32_t))

static void saw_nothing(struct history_op *op)
{
    op->seen.mark_known = op->seen.list_known = true;
}

static bool is_good(void)
{
    struct history_verdict v;

    assert_int_equal(history_check(&h, &v), 0);
    assert_true(v.good || v.unexplained != 0);
    return v.good;
}

static void nothing_at_all_is_good(void **state)
{
    (void)state;
    assert_true(is_good());
    saw_nothing(ok(HISTORY_READ, 0, 1, 2));
    assert_true(is_good());
}

static void a_read_sees_the_write_before_it(void **state)
{
    (void)state;
    ok(HISTORY_SET, 1, 1, 2);
    SAW(ok(HISTORY_READ, 0, 3, 4), 1, 1);
    assert_true(is_good());
}

static void a_stale_read_is_bad(void **state)
{
    (void)state;
    ok(HISTORY_SET, 1, 1, 2);
    ok(HISTORY_SET, 2, 3, 4);
    SAW(ok(HISTORY_READ, 0, 5, 6), 1, 1);
    assert_false(is_good());
}

static void a_read_during_a_write_may_see_either_value(void **state)
{
    (void)state;
    ok(HISTORY_SET, 1, 1, 2);
    ok(HISTORY_SET, 2, 3, 9);
    SAW(ok(HISTORY_READ, 0, 4, 5), 1, 1);
    SAW(ok(HISTORY_READ, 0, 6, 7), 2, 2);
    assert_true(is_good());
}

static void the_new_value_and_then_the_old_one_is_bad(void **state)
{
    (void)state;
    ok(HISTORY_SET, 1, 1, 2);
    ok(HISTORY_SET, 2, 3, 9);
    SAW(ok(HISTORY_READ, 0, 4, 5), 2, 2);
    SAW(ok(HISTORY_READ, 0, 6, 7), 1, 1);
    assert_false(is_good());
}

static void a_lost_append_is_bad(void **state)
{
    (void)state;
    ok(HISTORY_APPEND, 1, 1, 5);
    ok(HISTORY_APPEND, 2, 2, 6);
    SAW(ok(HISTORY_READ, 0, 7, 8), 2, 2);
    assert_false(is_good());
}

static void concurrent_appends_may_be_in_either_order(void **state)
{
    (void)state;
    ok(HISTORY_APPEND, 1, 1, 5);
    ok(HISTORY_APPEND, 2, 2, 6);
    SAW(ok(HISTORY_READ, 0, 7, 8), 1, 2, 1);
    assert_true(is_good());
}

static void appends_one_after_the_other_keep_their_order(void **state)
{
    (void)state;
    ok(HISTORY_APPEND, 1, 1, 2);
    ok(HISTORY_APPEND, 2, 3, 4);
    SAW(ok(HISTORY_READ, 0, 5, 6), 1, 2, 1);
    assert_false(is_good());
}

static void a_double_append_is_bad(void **state)
{
    (void)state;
    ok(HISTORY_APPEND, 1, 1, 2);
    SAW(ok(HISTORY_READ, 0, 3, 4), 1, 1, 1);
    assert_false(is_good());
}

static void an_unknown_append_that_took_effect_twice_is_bad(void **state)
{
    (void)state;
    unknown(HISTORY_APPEND, 1, 1);
    SAW(ok(HISTORY_READ, 0, 3, 4), 1, 1, 1);
    assert_false(is_good());
}

static void an_unknown_write_may_take_effect_late(void **state)
{
    (void)state;
    unknown(HISTORY_SET, 1, 1);
    ok(HISTORY_SET, 2, 2, 3);
    SAW(ok(HISTORY_READ, 0, 4, 5), 2, 2);
    SAW(ok(HISTORY_READ, 0, 6, 7), 1, 1);
    assert_true(is_good());
}

static void an_unknown_write_does_not_take_effect_before_it_began(void **state)
{
    (void)state;
    SAW(ok(HISTORY_READ, 0, 1, 2), 1, 1);
    unknown(HISTORY_SET, 1, 3);
    assert_false(is_good());
}

static void many_unknown_writes_in_the_order_that_a_read_shows_are_good(void **state)
{
    enum { N = 24 };
    uint32_t ids[N];

    (void)state;
    for (uint32_t i = 0; i < N; i++) {
        unknown(HISTORY_APPEND, i + 1, 1);
        ids[i] = N - i;
    }
    saw(ok(HISTORY_READ, 0, 2, 3), ids[N - 1], ids, N);
    assert_true(is_good());
}

static void an_unknown_write_may_never_take_effect(void **state)
{
    (void)state;
    unknown(HISTORY_SET, 1, 1);
    unknown(HISTORY_DELETE, 3, 1);
    ok(HISTORY_SET, 2, 2, 3);
    SAW(ok(HISTORY_READ, 0, 4, 5), 2, 2);
    assert_true(is_good());
}

static void an_unknown_write_that_comes_and_goes_is_bad(void **state)
{
    (void)state;
    ok(HISTORY_SET, 2, 1, 2);
    unknown(HISTORY_SET, 1, 3);
    SAW(ok(HISTORY_READ, 0, 4, 5), 1, 1);
    SAW(ok(HISTORY_READ, 0, 6, 7), 2, 2);
    assert_false(is_good());
}

static void a_write_that_surely_had_no_effect_is_never_seen(void **state)
{
    (void)state;
    add(HISTORY_SET, 1, 1, 0, HISTORY_NONE);
    saw_nothing(ok(HISTORY_READ, 0, 3, 4));
    assert_true(is_good());
    SAW(ok(HISTORY_READ, 0, 5, 6), 1, 1);
    assert_false(is_good());
}

static void two_creates_cannot_both_win(void **state)
{
    (void)state;
    ok(HISTORY_CREATE, 1, 1, 9);
    ok(HISTORY_CREATE, 2, 2, 8);
    assert_false(is_good());
}

static void a_create_wins_again_after_a_delete(void **state)
{
    (void)state;
    ok(HISTORY_CREATE, 1, 1, 9);
    ok(HISTORY_DELETE, 3, 1, 9);
    ok(HISTORY_CREATE, 2, 2, 8);
    assert_true(is_good());
}

static void a_create_that_failed_needs_something_to_fail_on(void **state)
{
    (void)state;
    add(HISTORY_CREATE, 1, 1, 2, HISTORY_FAILED);
    assert_false(is_good());
    unknown(HISTORY_SET, 2, 1);
    assert_true(is_good());
}

static void a_condition_that_failed_though_it_held_is_bad(void **state)
{
    (void)state;
    ok(HISTORY_SET, 1, 1, 2);
    add(HISTORY_DELETE, 2, 3, 4, HISTORY_FAILED);
    SAW(ok(HISTORY_READ, 0, 5, 6), 1, 1);
    assert_false(is_good());
}

static void what_a_failed_condition_saw_must_have_been_there(void **state)
{
    (void)state;
    ok(HISTORY_SET, 1, 1, 2);
    ok(HISTORY_SET, 2, 3, 4);
    SAW(add(HISTORY_CREATE, 3, 5, 6, HISTORY_FAILED), 1, 1);
    assert_false(is_good());
}

static void a_failed_condition_shows_an_unknown_write_to_all_later_ones(void **state)
{
    (void)state;
    unknown(HISTORY_SET, 1, 1);
    SAW(add(HISTORY_CREATE, 2, 2, 3, HISTORY_FAILED), 1, 1);
    saw_nothing(ok(HISTORY_READ, 0, 4, 5));
    assert_false(is_good());
}

static struct history_op *cas(uint32_t id, uint32_t expect, uint64_t start, uint64_t end)
{
    struct history_op *op = ok(HISTORY_CAS, id, start, end);

    op->expect = expect;
    return op;
}

static void one_of_two_compare_and_sets_wins(void **state)
{
    (void)state;
    ok(HISTORY_SET, 1, 1, 2);
    cas(2, 1, 3, 9);
    SAW(add(HISTORY_CAS, 3, 3, 9, HISTORY_FAILED), 2, 2);
    assert_true(is_good());
    cas(4, 1, 3, 9);
    assert_false(is_good());
}

static void a_compare_and_set_does_not_overwrite_what_came_between(void **state)
{
    (void)state;
    ok(HISTORY_SET, 1, 1, 2);
    ok(HISTORY_TOUCH, 2, 3, 4);
    cas(3, 1, 5, 6);
    assert_false(is_good());
}

static void a_touch_keeps_the_list(void **state)
{
    (void)state;
    ok(HISTORY_SET, 1, 1, 2);
    ok(HISTORY_TOUCH, 2, 3, 9);
    ok(HISTORY_APPEND, 3, 4, 8);
    SAW(ok(HISTORY_READ, 0, 10, 11), 2, 1, 3);
    assert_true(is_good());
    SAW(ok(HISTORY_READ, 0, 12, 13), 2, 1);
    assert_false(is_good());
}

static void a_write_replaced_what_it_saw(void **state)
{
    (void)state;
    ok(HISTORY_SET, 1, 1, 2);
    SAW(ok(HISTORY_SET, 2, 3, 6), 1, 1);
    SAW(ok(HISTORY_SET, 3, 4, 7), 1, 1); /* both replaced 1: one of them is lost */
    assert_false(is_good());
}

static void a_deleted_key_stays_deleted(void **state)
{
    (void)state;
    ok(HISTORY_SET, 1, 1, 2);
    ok(HISTORY_DELETE, 2, 3, 4);
    SAW(ok(HISTORY_READ, 0, 5, 6), 1, 1);
    assert_false(is_good());
}

static void version(struct history_op *op, uint64_t counter, uint32_t mark)
{
    op->version_known = true;
    op->version = (struct ballot){counter, 1};
    op->version_mark = mark;
}

static void versions_never_go_back(void **state)
{
    struct history_op *first, *second;

    (void)state;
    first = ok(HISTORY_SET, 1, 1, 2);
    second = ok(HISTORY_SET, 2, 3, 4);
    version(first, 10, 1);
    version(second, 11, 2);
    assert_true(is_good());
    version(second, 9, 2);
    assert_false(is_good());
    second->start = 2; /* now they overlap */
    assert_true(is_good());
}

static void a_version_names_one_write(void **state)
{
    (void)state;
    version(ok(HISTORY_SET, 1, 1, 8), 10, 1);
    version(ok(HISTORY_SET, 2, 2, 9), 10, 2);
    assert_false(is_good());
}

static void a_full_history_takes_no_more(void **state)
{
    (void)state;
    for (unsigned i = 0; i < HISTORY_OPS_MAX; i++)
        ok(HISTORY_SET, i + 1, 2 * i + 1, 2 * i + 2);
    assert_null(history_add(&h, HISTORY_SET, 0, 99, 999));
    assert_true(is_good());
}

/* Runs random operations on a register in some order, each at one moment within its time. */
static void make_random_history(struct rng *rng)
{
    uint32_t list[HISTORY_OPS_MAX];
    unsigned n = 0;
    uint32_t mark = 0;

    memset(&h, 0, sizeof h);
    for (uint32_t id = 1; id <= 40; id++) {
        uint64_t moment = 1000 + 100 * id, start = moment - rng_below(rng, 250);
        bool shrug = rng_chance(rng, 200);
        struct history_op *op;

        switch (rng_below(rng, 4)) {
        case 0:
            op = ok(HISTORY_READ, 0, start, moment + rng_below(rng, 250));
            saw(op, mark, list, n);
            continue;
        case 1:
            op = ok(HISTORY_SET, id, start, moment + rng_below(rng, 250));
            n = 0;
            break;
        case 2:
            op = ok(HISTORY_DELETE, id, start, moment + rng_below(rng, 250));
            if (mark == 0)
                history_end(op, HISTORY_FAILED, op->end);
            mark = 0;
            n = 0;
            continue;
        default:
            op = ok(HISTORY_APPEND, id, start, moment + rng_below(rng, 250));
            break;
        }
        list[n++] = id;
        mark = id;
        if (shrug)
            history_end(op, HISTORY_UNKNOWN, 0);
    }
}

static void every_history_of_a_true_register_is_good_and_soon_decided(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 300; seed++) {
        struct rng rng = {seed};

        make_random_history(&rng);
        if (!is_good()) {
            history_print(stderr, &h, NULL);
            fail_msg("seed %llu", (unsigned long long)seed);
        }
    }
}

static void a_true_history_with_one_lie_in_it_is_bad(void **state)
{
    unsigned n_lies = 0;

    (void)state;
    for (uint64_t seed = 1; seed <= 300; seed++) {
        struct rng rng = {seed};
        unsigned liar = HISTORY_OPS_MAX;

        make_random_history(&rng);
        for (unsigned i = 0; i < h.n; i++) {
            if (h.ops[i].kind == HISTORY_READ && h.ops[i].seen.n >= 2)
                liar = i;
        }
        if (liar == HISTORY_OPS_MAX)
            continue;
        h.ops[liar].seen.ids[0] = h.ops[liar].seen.ids[1]; /* nothing was written twice */
        n_lies++;
        assert_false(is_good());
    }
    assert_true(n_lies > 100);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(nothing_at_all_is_good, begin),
        cmocka_unit_test_setup(a_read_sees_the_write_before_it, begin),
        cmocka_unit_test_setup(a_stale_read_is_bad, begin),
        cmocka_unit_test_setup(a_read_during_a_write_may_see_either_value, begin),
        cmocka_unit_test_setup(the_new_value_and_then_the_old_one_is_bad, begin),
        cmocka_unit_test_setup(a_lost_append_is_bad, begin),
        cmocka_unit_test_setup(concurrent_appends_may_be_in_either_order, begin),
        cmocka_unit_test_setup(appends_one_after_the_other_keep_their_order, begin),
        cmocka_unit_test_setup(a_double_append_is_bad, begin),
        cmocka_unit_test_setup(an_unknown_append_that_took_effect_twice_is_bad, begin),
        cmocka_unit_test_setup(an_unknown_write_may_take_effect_late, begin),
        cmocka_unit_test_setup(an_unknown_write_does_not_take_effect_before_it_began, begin),
        cmocka_unit_test_setup(many_unknown_writes_in_the_order_that_a_read_shows_are_good, begin),
        cmocka_unit_test_setup(an_unknown_write_may_never_take_effect, begin),
        cmocka_unit_test_setup(an_unknown_write_that_comes_and_goes_is_bad, begin),
        cmocka_unit_test_setup(a_write_that_surely_had_no_effect_is_never_seen, begin),
        cmocka_unit_test_setup(two_creates_cannot_both_win, begin),
        cmocka_unit_test_setup(a_create_wins_again_after_a_delete, begin),
        cmocka_unit_test_setup(a_create_that_failed_needs_something_to_fail_on, begin),
        cmocka_unit_test_setup(a_condition_that_failed_though_it_held_is_bad, begin),
        cmocka_unit_test_setup(what_a_failed_condition_saw_must_have_been_there, begin),
        cmocka_unit_test_setup(a_failed_condition_shows_an_unknown_write_to_all_later_ones, begin),
        cmocka_unit_test_setup(one_of_two_compare_and_sets_wins, begin),
        cmocka_unit_test_setup(a_compare_and_set_does_not_overwrite_what_came_between, begin),
        cmocka_unit_test_setup(a_touch_keeps_the_list, begin),
        cmocka_unit_test_setup(a_write_replaced_what_it_saw, begin),
        cmocka_unit_test_setup(a_deleted_key_stays_deleted, begin),
        cmocka_unit_test_setup(versions_never_go_back, begin),
        cmocka_unit_test_setup(a_version_names_one_write, begin),
        cmocka_unit_test_setup(a_full_history_takes_no_more, begin),
        cmocka_unit_test_setup(every_history_of_a_true_register_is_good_and_soon_decided, begin),
        cmocka_unit_test_setup(a_true_history_with_one_lie_in_it_is_bad, begin),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

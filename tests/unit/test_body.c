/* test_body.c - bodies in memory stay within their budget, whatever is announced and comes. */
#include "node/body.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define MAX 1000000u

static void add_pattern(struct body *b, size_t len, size_t piece)
{
    uint8_t *bytes = malloc(piece);

    assert_non_null(bytes);
    while (len > 0) {
        size_t n = len < piece ? len : piece;

        for (size_t i = 0; i < n; i++)
            bytes[i] = (uint8_t)((b->len + i) * 31);
        assert_int_equal(body_add(b, span_of(bytes, n)), 0);
        len -= n;
    }
    free(bytes);
}

static void assert_pattern(const struct body *b, size_t len)
{
    struct value v = body_value(b);

    assert_int_equal(v.len, len);
    for (size_t i = 0; i < len; i++)
        assert_int_equal(v.data[i], (uint8_t)(i * 31));
    value_fini(&v);
}

static void a_body_comes_out_as_it_came_in(void **state)
{
    static const size_t lens[] = {0, 1, 65535, 65536, 65537, 300000, MAX};
    struct budget budget = {.max = 4 * MAX};

    (void)state;
    for (size_t i = 0; i < sizeof(lens) / sizeof(lens[0]); i++) {
        struct body b;

        assert_int_equal(body_begin(&b, &budget, lens[i], MAX), 0);
        assert_int_equal(atomic_load(&budget.used), lens[i]);
        add_pattern(&b, lens[i], 16384);
        assert_pattern(&b, lens[i]);
        body_fini(&b);
        assert_int_equal(body_begin(&b, &budget, UINT64_MAX, MAX), 0);
        add_pattern(&b, lens[i], 5000);
        assert_pattern(&b, lens[i]);
        assert_true(atomic_load(&budget.used) >= lens[i]);
        body_fini(&b);
        assert_int_equal(atomic_load(&budget.used), 0);
    }
}

static void the_value_outlives_the_body(void **state)
{
    struct budget budget = {.max = MAX};
    struct body b;
    struct value v;

    (void)state;
    assert_int_equal(body_begin(&b, &budget, 5, MAX), 0);
    assert_int_equal(body_add(&b, span_str("hello")), 0);
    v = body_value(&b);
    body_fini(&b);
    assert_true(span_eq(value_span(v), span_str("hello")));
    value_fini(&v);
}

static void one_byte_over_the_maximum_is_refused_announced_or_not(void **state)
{
    struct budget budget = {.max = 4 * MAX};
    struct body b;

    (void)state;
    assert_int_equal(body_begin(&b, &budget, MAX + 1, MAX), -EFBIG);
    body_fini(&b);
    assert_int_equal(body_begin(&b, &budget, UINT64_MAX, MAX), 0);
    add_pattern(&b, MAX, 16384);
    assert_int_equal(body_add(&b, span_str("x")), -EFBIG);
    assert_pattern(&b, MAX);
    body_fini(&b);
    assert_int_equal(atomic_load(&budget.used), 0);
}

static void more_than_the_budget_is_refused_and_given_back(void **state)
{
    struct budget budget = {.max = 3 * MAX / 2};
    struct body one, two, grows;

    (void)state;
    assert_int_equal(body_begin(&one, &budget, MAX, MAX), 0);
    assert_int_equal(body_begin(&two, &budget, MAX, MAX), -EAGAIN);
    body_fini(&two);
    assert_int_equal(body_begin(&grows, &budget, UINT64_MAX, MAX), 0);
    add_pattern(&grows, 200000, 20000);
    for (int i = 0; i < 50; i++) { /* sooner or later, and not as a crash */
        char bytes[20000] = {0};

        if (body_add(&grows, span_of(bytes, sizeof(bytes))) == -EAGAIN)
            break;
        assert_true(i < 49);
    }
    assert_true(atomic_load(&budget.used) <= budget.max);
    body_fini(&grows);
    body_fini(&one);
    assert_int_equal(atomic_load(&budget.used), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_body_comes_out_as_it_came_in),
        cmocka_unit_test(the_value_outlives_the_body),
        cmocka_unit_test(one_byte_over_the_maximum_is_refused_announced_or_not),
        cmocka_unit_test(more_than_the_budget_is_refused_and_given_back),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

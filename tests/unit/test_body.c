/* test_body.c - bodies stay within their budgets, whatever is announced and comes. */
#include "node/body.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/limits.h"
#include "common/record.h"
#include "common/spool.h"

#define MAX 1000000u
#define LARGE ((size_t)MEMORY_BLOB_MAX + 54321)

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
    struct body_room room = {.memory.max = 4 * MAX};

    (void)state;
    for (size_t i = 0; i < sizeof(lens) / sizeof(lens[0]); i++) {
        struct body b;

        assert_int_equal(body_begin(&b, &room, lens[i], MAX), 0);
        assert_int_equal(atomic_load(&room.memory.used), lens[i]);
        add_pattern(&b, lens[i], 16384);
        assert_pattern(&b, lens[i]);
        body_fini(&b);
        assert_int_equal(body_begin(&b, &room, UINT64_MAX, MAX), 0);
        add_pattern(&b, lens[i], 5000);
        assert_pattern(&b, lens[i]);
        assert_true(atomic_load(&room.memory.used) >= lens[i]);
        body_fini(&b);
        assert_int_equal(atomic_load(&room.memory.used), 0);
    }
}

static void the_value_outlives_the_body(void **state)
{
    struct body_room room = {.memory.max = MAX};
    struct body b;
    struct value v;

    (void)state;
    assert_int_equal(body_begin(&b, &room, 5, MAX), 0);
    assert_int_equal(body_add(&b, span_str("hello")), 0);
    v = body_value(&b);
    body_fini(&b);
    assert_true(span_eq(value_span(v), span_str("hello")));
    value_fini(&v);
}

static void one_byte_over_the_maximum_is_refused_announced_or_not(void **state)
{
    struct body_room room = {.memory.max = 4 * MAX};
    struct body b;

    (void)state;
    assert_int_equal(body_begin(&b, &room, MAX + 1, MAX), -EFBIG);
    body_fini(&b);
    assert_int_equal(body_begin(&b, &room, UINT64_MAX, MAX), 0);
    add_pattern(&b, MAX, 16384);
    assert_int_equal(body_add(&b, span_str("x")), -EFBIG);
    assert_pattern(&b, MAX);
    body_fini(&b);
    assert_int_equal(atomic_load(&room.memory.used), 0);
}

static void more_than_the_budget_is_refused_and_given_back(void **state)
{
    struct body_room room = {.memory.max = 3 * MAX / 2};
    struct body one, two, grows;

    (void)state;
    assert_int_equal(body_begin(&one, &room, MAX, MAX), 0);
    assert_int_equal(body_begin(&two, &room, MAX, MAX), -EAGAIN);
    body_fini(&two);
    assert_int_equal(body_begin(&grows, &room, UINT64_MAX, MAX), 0);
    add_pattern(&grows, 200000, 20000);
    for (int i = 0; i < 50; i++) { /* sooner or later, and not as a crash */
        char bytes[20000] = {0};

        if (body_add(&grows, span_of(bytes, sizeof(bytes))) == -EAGAIN)
            break;
        assert_true(i < 49);
    }
    assert_true(atomic_load(&room.memory.used) <= room.memory.max);
    body_fini(&grows);
    body_fini(&one);
    assert_int_equal(atomic_load(&room.memory.used), 0);
}

static void a_large_body_is_on_the_disk_and_counts_there(void **state)
{
    static const uint64_t announced[] = {LARGE, UINT64_MAX};

    (void)state;
    for (size_t i = 0; i < 2; i++) {
        struct body_room room = {.memory.max = 2 * MEMORY_BLOB_MAX, .disk.max = 2 * LARGE};
        struct buf want = {0};
        struct span sums;
        struct body b, other;
        struct value v;

        assert_int_equal(body_begin(&b, &room, announced[i], 2 * LARGE), 0);
        add_pattern(&b, LARGE, 100001);
        assert_int_equal(atomic_load(&room.memory.used), 0);
        assert_true(atomic_load(&room.disk.used) >= LARGE);
        assert_true(b.blob->mapped);
        assert_int_equal(body_begin(&other, &room, LARGE + 1, 2 * LARGE), -EAGAIN);
        body_fini(&other);
        v = body_value(&b);
        record_sums(&want, value_span(v));
        assert_int_equal(body_sums(&b, &sums), 0);
        assert_true(span_eq(sums, buf_span(&want)));
        buf_fini(&want);
        assert_pattern(&b, LARGE);
        body_fini(&b);
        value_fini(&v);
        assert_int_equal(atomic_load(&room.disk.used), 0);
    }
}

static void where_the_disk_has_no_room_memory_serves(void **state)
{
    struct body_room room = {.memory.max = LARGE, .disk.max = 2 * LARGE};
    struct body b, other;

    (void)state;
    spool_set_dir("/nowhere/at/all");
    assert_int_equal(body_begin(&b, &room, LARGE, LARGE), 0);
    assert_int_equal(atomic_load(&room.memory.used), LARGE);
    assert_int_equal(body_begin(&other, &room, LARGE, LARGE), -ENOENT);
    body_fini(&other);
    spool_set_dir(NULL);
    add_pattern(&b, LARGE, 100001);
    assert_pattern(&b, LARGE);
    body_fini(&b);
    assert_int_equal(atomic_load(&room.memory.used), 0);
    assert_int_equal(atomic_load(&room.disk.used), 0);
}

/* A slow replica is still sent what the others have acknowledged, and its writer was told. */
static void the_room_is_given_back_with_the_last_reference(void **state)
{
    static const size_t lens[] = {1000, LARGE};

    (void)state;
    for (size_t i = 0; i < 2; i++) {
        struct body_room room = {.memory.max = MAX, .disk.max = LARGE};
        struct budget *budget = i == 0 ? &room.memory : &room.disk;
        struct body b;
        struct value v, leg;

        assert_int_equal(body_begin(&b, &room, lens[i], LARGE), 0);
        add_pattern(&b, lens[i], 100001);
        v = body_value(&b);
        leg = value_ref(v);
        value_fini(&v);
        body_fini(&b);
        assert_int_equal(atomic_load(&budget->used), lens[i]);
        spool_pass(leg, 0, leg.len);
        assert_int_equal(leg.data[lens[i] - 1], (uint8_t)((lens[i] - 1) * 31));
        value_fini(&leg);
        assert_int_equal(atomic_load(&budget->used), 0);
    }
}

static void bytes_of_others_count_while_they_are_held(void **state)
{
    static const size_t lens[] = {1000, LARGE};

    (void)state;
    for (size_t i = 0; i < 2; i++) {
        struct body_room room = {.memory.max = 1999, .disk.max = 2 * LARGE - 1};
        struct budget *budget = i == 0 ? &room.memory : &room.disk;
        struct value v = {blob_new(lens[i] + 10), NULL, lens[i]}, held = {0}, more = {0};
        const struct blob *first;

        assert_non_null(v.blob);
        memset(v.blob->data, 'x', v.blob->len);
        v.data = v.blob->data + 10;
        assert_int_equal(body_room_hold(&room, v, &held), 0);
        assert_int_equal(atomic_load(&budget->used), lens[i]);
        first = held.blob;
        assert_int_equal(body_room_hold(&room, v, &held), 0); /* once more, by the next try */
        assert_ptr_equal(held.blob, first);
        assert_int_equal(atomic_load(&budget->used), lens[i]);
        assert_int_equal(body_room_hold(&room, v, &more), -EAGAIN);
        value_fini(&v);
        assert_int_equal(held.len, lens[i]);
        assert_int_equal(held.data[lens[i] - 1], 'x');
        more = value_slice(held, 1, 1);
        value_fini(&held);
        assert_int_equal(atomic_load(&budget->used), lens[i]);
        value_fini(&more);
        assert_int_equal(atomic_load(&room.memory.used) + atomic_load(&room.disk.used), 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_body_comes_out_as_it_came_in),
        cmocka_unit_test(the_value_outlives_the_body),
        cmocka_unit_test(one_byte_over_the_maximum_is_refused_announced_or_not),
        cmocka_unit_test(more_than_the_budget_is_refused_and_given_back),
        cmocka_unit_test(a_large_body_is_on_the_disk_and_counts_there),
        cmocka_unit_test(where_the_disk_has_no_room_memory_serves),
        cmocka_unit_test(the_room_is_given_back_with_the_last_reference),
        cmocka_unit_test(bytes_of_others_count_while_they_are_held),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* test_content.c - the bytes of an open file: holes, cuts, and snapshots that no later write
 * changes. */
#include "fs/content.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/lib/rng.h"

static void assert_content(const struct content *c, const char *want, size_t len)
{
    assert_int_equal(content_size(c), len);
    if (len > 0)
        assert_memory_equal(c->v.data, want, len);
}

static void a_write_past_the_end_leaves_zeros_between(void **state)
{
    struct content c = {0};

    (void)state;
    assert_int_equal(content_write(&c, 3, span_str("xy")), 0);
    assert_content(&c, "\0\0\0xy", 5);
    assert_int_equal(content_write(&c, 1, span_str("AB")), 0);
    assert_content(&c, "\0ABxy", 5);
    content_fini(&c);
}

static void what_was_cut_off_does_not_come_back(void **state)
{
    struct content c = {0};

    (void)state;
    assert_int_equal(content_write(&c, 0, span_str("secret")), 0);
    assert_int_equal(content_truncate(&c, 2), 0);
    assert_int_equal(content_truncate(&c, 5), 0);
    assert_content(&c, "se\0\0\0", 5);
    assert_int_equal(content_truncate(&c, 1), 0);
    assert_int_equal(content_write(&c, 3, span_str("!")), 0);
    assert_content(&c, "s\0\0!", 4);
    content_fini(&c);
}

static void a_snapshot_stays_what_it_was(void **state)
{
    struct content c = {0};
    struct value before;

    (void)state;
    assert_int_equal(content_write(&c, 0, span_str("before")), 0);
    before = value_ref(c.v);
    assert_int_equal(content_write(&c, 0, span_str("AFTER")), 0);
    assert_int_equal(content_write(&c, 6, span_str(" more")), 0);
    assert_memory_equal(before.data, "before", 6);
    assert_int_equal(before.len, 6);
    assert_content(&c, "AFTERe more", 11);
    value_fini(&before);
    content_fini(&c);
}

static void a_value_that_begins_inside_its_blob_can_be_taken_over(void **state)
{
    struct content c = {0};
    struct value whole, part;

    (void)state;
    assert_int_equal(value_copy(span_str("head|value|tail"), &whole), 0);
    part = value_slice(whole, 5, 5);
    value_fini(&whole);
    content_set(&c, part);
    assert_int_equal(content_write(&c, 5, span_str("+")), 0);
    assert_content(&c, "value+", 6);
    content_fini(&c);
}

#define MODEL_MAX 20000u

static void random_changes_leave_what_plain_memory_would(void **state)
{
    static uint8_t model[MODEL_MAX + 600], data[600];
    struct rng rng = {.state = 7};
    struct content c = {0};
    size_t size = 0;

    (void)state;
    for (unsigned i = 0; i < 3000; i++) {
        size_t off = rng_below(&rng, MODEL_MAX), n = rng_below(&rng, sizeof(data));

        if (rng_below(&rng, 4) == 0) {
            assert_int_equal(content_truncate(&c, off), 0);
            if (off < size)
                memset(model + off, 0, size - off);
            size = off;
        } else {
            memset(data, (int)rng_below(&rng, 256), n);
            assert_int_equal(content_write(&c, off, span_of(data, n)), 0);
            memcpy(model + off, data, n);
            if (n > 0 && off + n > size)
                size = off + n;
        }
        assert_content(&c, (const char *)model, size);
    }
    content_fini(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_write_past_the_end_leaves_zeros_between),
        cmocka_unit_test(what_was_cut_off_does_not_come_back),
        cmocka_unit_test(a_snapshot_stays_what_it_was),
        cmocka_unit_test(a_value_that_begins_inside_its_blob_can_be_taken_over),
        cmocka_unit_test(random_changes_leave_what_plain_memory_would),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

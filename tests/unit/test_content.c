/* test_content.c - the bytes of an open file, in memory and in a temporary file: holes, cuts, and
 * snapshots that no later write changes. */
#include "fs/content.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/lib/rng.h"

/* One that spills what is larger than this. */
#define EACH_MAX 4096u

static struct content_pool new_pool(void)
{
    return (struct content_pool){.each_max = EACH_MAX, .total_max = SIZE_MAX};
}

static void assert_bytes(const struct content *c, const void *want, size_t len)
{
    struct value v;

    assert_int_equal(content_read(c, 0, len, &v), 0);
    assert_int_equal(v.len, len);
    assert_memory_equal(v.data, want, len);
    value_fini(&v);
}

static void assert_content(const struct content *c, const char *want, size_t len)
{
    assert_int_equal(content_size(c), len);
    if (len > 0)
        assert_bytes(c, want, len);
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

enum { WRITES, CUTS, PUNCHES, APPENDS, DROPS, LENDS, N_KINDS };

/* Changes of all kinds to a content and to plain memory; what was lent now and then is compared
 * later, whatever was changed since. */
static void change_at_random(struct content_pool *pool, uint64_t seed)
{
    static uint8_t model[2 * MODEL_MAX + 1200], lent_model[2 * MODEL_MAX + 1200], data[600];
    struct rng rng = {.state = seed};
    struct content c = {.pool = pool};
    struct value lent = {0};
    size_t size = 0, n_done[N_KINDS] = {0};

    memset(model, 0, sizeof(model));
    for (unsigned i = 0; i < 4000; i++) {
        size_t off = rng_below(&rng, MODEL_MAX), n = rng_below(&rng, sizeof(data));
        unsigned kind = rng_below(&rng, 3) > 0 ? WRITES : (unsigned)rng_below(&rng, N_KINDS);
        struct content tail = {.pool = pool};

        n_done[kind]++;
        memset(data, (int)rng_below(&rng, 256), n);
        switch (kind) {
        case WRITES:
            assert_int_equal(content_write(&c, off, span_of(data, n)), 0);
            memcpy(model + off, data, n);
            size = n > 0 && off + n > size ? off + n : size;
            break;
        case CUTS:
            assert_int_equal(content_truncate(&c, off), 0);
            if (off < size)
                memset(model + off, 0, size - off);
            size = off;
            break;
        case PUNCHES:
            n *= 10;
            assert_int_equal(content_punch(&c, off, n), 0);
            if (off < size)
                memset(model + off, 0, n < size - off ? n : size - off);
            break;
        case APPENDS:
            if (size + n > MODEL_MAX)
                break;
            assert_int_equal(content_write(&tail, 0, span_of(data, n)), 0);
            assert_int_equal(content_append(&c, &tail), 0);
            memcpy(model + size, data, n);
            size += n;
            break;
        case DROPS:
            if (n > size)
                break;
            content_drop_front(&c, n);
            memmove(model, model + n, size - n);
            memset(model + size - n, 0, n);
            size -= n;
            break;
        case LENDS:
            if (lent.len > 0)
                assert_memory_equal(lent.data, lent_model, lent.len);
            value_fini(&lent);
            assert_int_equal(content_lend(&c, &lent), 0);
            assert_int_equal(lent.len, size);
            memcpy(lent_model, model, size);
            break;
        }
        content_fini(&tail);
        assert_content(&c, (const char *)model, size);
    }
    for (unsigned kind = 0; kind < N_KINDS; kind++)
        assert_true(n_done[kind] > 50);
    value_fini(&lent);
    content_fini(&c);
}

static void random_changes_leave_what_plain_memory_would(void **state)
{
    (void)state;
    change_at_random(NULL, 7);
}

static void random_changes_of_what_spills_leave_the_same(void **state)
{
    struct content_pool pool = new_pool();

    (void)state;
    for (uint64_t seed = 1; seed < 4; seed++)
        change_at_random(&pool, seed);
    assert_int_equal(pool.used, 0);
}

/* --- in a temporary file ---------------------------------------------------------------------- */

static void what_is_too_large_leaves_memory(void **state)
{
    struct content_pool pool = new_pool();
    struct content c = {.pool = &pool};

    (void)state;
    assert_int_equal(content_write(&c, 0, span_str("head")), 0);
    assert_null(c.spill);
    assert_true(pool.used >= 4 && pool.used <= EACH_MAX);
    assert_int_equal(content_write(&c, EACH_MAX, span_str("!")), 0);
    assert_non_null(c.spill);
    assert_int_equal(pool.used, 0);
    assert_bytes(&c, "head\0", 5);
    assert_int_equal(content_size(&c), EACH_MAX + 1);
    content_fini(&c);
    assert_int_equal(content_write(&c, 0, span_str("small again")), 0);
    assert_null(c.spill);
    content_fini(&c);
}

static void many_that_are_too_much_together_leave_memory(void **state)
{
    struct content_pool pool = {.each_max = 1 << 20, .total_max = 300 << 10};
    static const uint8_t data[100 << 10];
    struct content c[6];
    unsigned n_spilled = 0;

    (void)state;
    for (unsigned i = 0; i < 6; i++) {
        c[i] = (struct content){.pool = &pool};
        assert_int_equal(content_write(&c[i], 0, span_of(data, sizeof(data))), 0);
        n_spilled += c[i].spill != NULL;
        assert_true(pool.used <= pool.total_max);
    }
    assert_int_equal(n_spilled, 3);
    for (unsigned i = 0; i < 6; i++)
        content_fini(&c[i]);
    assert_int_equal(pool.used, 0);
}

static void holes_stay_holes_and_are_found(void **state)
{
    const uint64_t far = 64ull << 20, block = 1 << 20;
    struct content_pool pool = new_pool();
    struct content c = {.pool = &pool};
    uint64_t at;

    (void)state;
    assert_int_equal(content_truncate(&c, 2 * far), 0);
    assert_int_equal(content_seek(&c, 0, true, &at), 0);
    if (at == 2 * far) { /* this disk knows none */
        content_fini(&c);
        skip();
    }
    assert_int_equal(at, 0);
    assert_int_equal(content_seek(&c, 0, false, &at), -ENXIO);
    assert_int_equal(content_write(&c, far, span_str("island")), 0);
    assert_int_equal(content_seek(&c, 5, false, &at), 0);
    assert_true(at > far - block && at <= far);
    assert_int_equal(content_seek(&c, far, true, &at), 0);
    assert_true(at > far && at < far + block);
    assert_int_equal(content_punch(&c, far - block, 2 * block), 0);
    assert_int_equal(content_seek(&c, 0, false, &at), -ENXIO);
    assert_int_equal(content_seek(&c, 2 * far, true, &at), -ENXIO);
    content_fini(&c);
}

static void
what_is_lent_is_copied_before_it_changes_and_not_before_something_behind_it_does(void **state)
{
    struct content_pool pool = new_pool();
    struct content c = {.pool = &pool};
    struct value first, second;
    struct spill *spill;

    (void)state;
    assert_int_equal(content_write(&c, EACH_MAX, span_str("end")), 0);
    spill = c.spill;
    assert_int_equal(content_lent(&c), 0);
    assert_int_equal(content_lend(&c, &first), 0);
    assert_int_equal(content_lent(&c), EACH_MAX + 3);
    assert_int_equal(content_write(&c, EACH_MAX + 3, span_str("behind")), 0);
    assert_int_equal(content_lend(&c, &second), 0);
    assert_ptr_equal(c.spill, spill);
    value_fini(&second);
    assert_int_equal(content_lent(&c), EACH_MAX + 3);
    assert_int_equal(content_write(&c, 0, span_str("x")), 0);
    assert_ptr_not_equal(c.spill, spill);
    assert_int_equal(first.data[0], 0);
    assert_bytes(&c, "x", 1);
    assert_int_equal(content_lent(&c), 0);
    value_fini(&first);
    content_fini(&c);
}

static void what_is_lent_outlives_its_content(void **state)
{
    struct content_pool pool = new_pool();
    struct content c = {.pool = &pool};
    struct value lent;

    (void)state;
    assert_int_equal(content_write(&c, EACH_MAX, span_str("end")), 0);
    assert_int_equal(content_lend(&c, &lent), 0);
    content_fini(&c);
    assert_memory_equal(lent.data + EACH_MAX, "end", 3);
    value_fini(&lent);
}

static void no_place_for_the_temporary_file_fails_the_write_and_keeps_what_was(void **state)
{
    struct content_pool pool = new_pool();
    struct content c = {.pool = &pool};
    char before[4096] = "";

    (void)state;
    if (getenv("TMPDIR") != NULL)
        snprintf(before, sizeof(before), "%s", getenv("TMPDIR"));
    assert_int_equal(content_write(&c, 0, span_str("kept")), 0);
    setenv("TMPDIR", "/nowhere", 1);
    assert_int_equal(content_write(&c, EACH_MAX, span_str("x")), -EIO);
    assert_int_equal(content_truncate(&c, EACH_MAX + 1), -EIO);
    if (before[0] != 0)
        setenv("TMPDIR", before, 1);
    else
        unsetenv("TMPDIR");
    assert_content(&c, "kept", 4);
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
        cmocka_unit_test(random_changes_of_what_spills_leave_the_same),
        cmocka_unit_test(what_is_too_large_leaves_memory),
        cmocka_unit_test(many_that_are_too_much_together_leave_memory),
        cmocka_unit_test(holes_stay_holes_and_are_found),
        cmocka_unit_test(
            what_is_lent_is_copied_before_it_changes_and_not_before_something_behind_it_does),
        cmocka_unit_test(what_is_lent_outlives_its_content),
        cmocka_unit_test(no_place_for_the_temporary_file_fails_the_write_and_keeps_what_was),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* test_buf.c - spans, the growing buffer, the cursor that reads it back, shared values. */
#include "common/buf.h"

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/lib/rng.h"

/* --- helpers ------------------------------------------------------------------------------- */

static void assert_span(struct span got, const char *want)
{
    assert_int_equal(got.len, strlen(want));
    if (got.len > 0)
        assert_memory_equal(got.data, want, got.len);
}

static void *ref_and_unref(void *arg)
{
    struct value *shared = arg;

    for (int i = 0; i < 20000; i++) {
        struct value mine = value_ref(*shared);

        value_fini(&mine);
    }
    return NULL;
}

/* --- spans --------------------------------------------------------------------------------- */

static void spans_are_ordered_as_unsigned_bytes_and_a_prefix_comes_first(void **state)
{
    static const char *const ascending[] = {"", "a", "a\x01", "ab", "a\x7f", "a\x80", "a\xff", "b"};
    size_t n = sizeof(ascending) / sizeof(ascending[0]);

    (void)state;
    for (size_t i = 0; i < n; i++) {
        for (size_t j = 0; j < n; j++) {
            int order = span_cmp(span_str(ascending[i]), span_str(ascending[j]));

            assert_int_equal(order < 0, i < j);
            assert_int_equal(order > 0, i > j);
            assert_int_equal(span_eq(span_str(ascending[i]), span_str(ascending[j])), i == j);
        }
    }
}

static void an_empty_span_without_data_compares_like_any_other(void **state)
{
    struct span none = {0};

    (void)state;
    assert_true(span_eq(none, span_str("")));
    assert_int_equal(span_cmp(none, none), 0);
    assert_true(span_cmp(none, span_str("a")) < 0);
    assert_true(span_has_prefix(span_str("a"), none));
    assert_true(span_has_prefix(none, none));
}

static void a_prefix_is_the_start_and_never_more_than_all(void **state)
{
    (void)state;
    assert_true(span_has_prefix(span_str("dir/file"), span_str("dir/")));
    assert_true(span_has_prefix(span_str("dir/"), span_str("dir/")));
    assert_false(span_has_prefix(span_str("dir"), span_str("dir/")));
    /* What lies behind a span does not count. */
    assert_false(span_has_prefix(span_of("dir/", 3), span_str("dir/")));
    assert_false(span_has_prefix(span_str("air/file"), span_str("dir/")));
    assert_true(span_has_prefix(span_of("\0a", 2), span_of("\0", 1)));
    assert_false(span_has_prefix(span_of("\0a", 2), span_of("\0b", 2)));
}

/* --- buf ----------------------------------------------------------------------------------- */

static void integers_are_little_endian_and_strings_carry_their_length(void **state)
{
    /* clang-format off */
    static const uint8_t want[] = {
        0x01,
        0x03, 0x02,
        0x07, 0x06, 0x05, 0x04,
        0x0f, 0x0e, 0x0d, 0x0c, 0x0b, 0x0a, 0x09, 0x08,
        2, 0, 'h', 'i',
        3, 0, 0, 0, 'y', 'o', 'u',
    };
    /* clang-format on */
    struct buf b = {0};

    (void)state;
    buf_u8(&b, 0x01);
    buf_u16(&b, 0x0203);
    buf_u32(&b, 0x04050607);
    buf_u64(&b, 0x08090a0b0c0d0e0f);
    buf_bytes16(&b, span_str("hi"));
    buf_bytes32(&b, span_str("you"));
    assert_int_equal(b.err, 0);
    assert_int_equal(b.len, sizeof(want));
    assert_memory_equal(b.data, want, sizeof(want));
    buf_fini(&b);
}

static void what_buf_writes_the_cursor_reads_back(void **state)
{
    struct buf b = {0};
    struct cursor c;

    (void)state;
    buf_u8(&b, 0xff);
    buf_u16(&b, 0xfffe);
    buf_u32(&b, 0xfffefdfc);
    buf_u64(&b, 0xfffefdfcfbfaf9f8);
    buf_bytes16(&b, span_str(""));
    buf_bytes32(&b, span_of("a\0b", 3));
    buf_add_str(&b, "tail");

    c = cursor_of(buf_span(&b));
    assert_int_equal(cursor_u8(&c), 0xff);
    assert_int_equal(cursor_u16(&c), 0xfffe);
    assert_int_equal(cursor_u32(&c), 0xfffefdfc);
    assert_true(cursor_u64(&c) == 0xfffefdfcfbfaf9f8);
    assert_span(cursor_bytes16(&c), "");
    assert_true(span_eq(cursor_bytes32(&c), span_of("a\0b", 3)));
    assert_int_equal(cursor_left(&c), 4);
    assert_span(cursor_bytes(&c, 4), "tail");
    assert_int_equal(cursor_left(&c), 0);
    assert_int_equal(c.err, 0);
    buf_fini(&b);
}

static void a_buffer_grows_through_many_appends_of_any_size(void **state)
{
    struct buf b = {0};
    uint8_t part[300];
    struct rng rng = {1};
    size_t len = 0;

    (void)state;
    memset(part, 'x', sizeof(part));
    for (int i = 0; i < 1000; i++) {
        size_t n = rng_below(&rng, sizeof(part));

        buf_add(&b, part, n);
        len += n;
        assert_int_equal(b.len, len);
    }
    assert_int_equal(b.err, 0);
    for (size_t i = 0; i < len; i++)
        assert_int_equal(b.data[i], 'x');
    buf_fini(&b);
    assert_null(b.data);
    assert_int_equal(b.len + b.cap, 0);
}

static void a_buffer_grows_enough_for_any_second_append(void **state)
{
    uint8_t part[200];

    (void)state;
    memset(part, 'x', sizeof(part));
    for (size_t first = 0; first < 140; first++) {
        for (size_t second = 0; second < sizeof(part); second++) {
            struct buf b = {0};

            buf_add(&b, part, first);
            buf_add(&b, part, second);
            assert_int_equal(b.len, first + second);
            assert_true(b.len <= b.cap);
            buf_fini(&b);
        }
    }
}

static void reserved_room_counts_only_when_the_caller_says_so(void **state)
{
    struct buf b = {0};
    uint8_t *room;

    (void)state;
    buf_add_str(&b, "a");
    room = buf_reserve(&b, 1000);
    assert_non_null(room);
    assert_int_equal(b.len, 1);
    memset(room, 'b', 1000);
    b.len += 1000;
    assert_int_equal(b.data[1000], 'b');
    buf_clear(&b);
    assert_non_null(buf_reserve(&b, 0)); /* room for nothing is room too */
    buf_fini(&b);
    assert_non_null(buf_reserve(&b, 0));
    buf_fini(&b);
}

static void formatted_text_is_appended_without_its_nul(void **state)
{
    struct buf b = {0};

    (void)state;
    buf_add_str(&b, "<");
    buf_addf(&b, "%s#%u", "node-1", 99u);
    buf_add_str(&b, ">");
    assert_span(buf_span(&b), "<node-1#99>");
    buf_clear(&b);
    buf_addf(&b, "%0500d", 7); /* longer than what is there at first */
    assert_int_equal(b.len, 500);
    assert_int_equal(b.data[499], '7');
    assert_int_equal(b.data[0], '0');
    buf_fini(&b);
}

static void running_out_of_memory_is_remembered_and_later_appends_do_nothing(void **state)
{
    struct buf b = {0};

    (void)state;
    buf_add_str(&b, "kept");
    assert_null(buf_reserve(&b, SIZE_MAX)); /* len + n overflows */
    assert_int_equal(b.err, -ENOMEM);
    buf_add_str(&b, "lost");
    buf_u64(&b, 1);
    buf_addf(&b, "%1000d", 1); /* more than the memory that is there */
    assert_span(buf_span(&b), "kept");
    assert_int_equal(b.err, -ENOMEM);
    buf_clear(&b);
    buf_add_str(&b, "again");
    assert_int_equal(b.err, 0);
    assert_span(buf_span(&b), "again");
    buf_fini(&b);
}

/* --- cursor -------------------------------------------------------------------------------- */

static void a_cursor_never_overruns_wherever_the_bytes_are_cut(void **state)
{
    struct buf b = {0};

    (void)state;
    buf_u8(&b, 1);
    buf_u16(&b, 2);
    buf_u32(&b, 3);
    buf_u64(&b, 4);
    buf_bytes16(&b, span_str("five"));
    buf_bytes32(&b, span_str("sixes"));
    for (size_t len = 0; len <= b.len; len++) {
        /* Of just that size: the sanitizer sees a byte read too many. */
        uint8_t *exact = malloc(len + 1);
        struct cursor c;

        assert_non_null(exact);
        memcpy(exact + 1, b.data, len);
        c = cursor_of(span_of(exact + 1, len));
        (void)cursor_u8(&c);
        (void)cursor_u16(&c);
        (void)cursor_u32(&c);
        (void)cursor_u64(&c);
        (void)cursor_bytes16(&c);
        (void)cursor_bytes32(&c);
        assert_int_equal(c.err, len == b.len ? 0 : -EBADMSG);
        assert_int_equal(cursor_left(&c), 0);
        free(exact);
    }
    buf_fini(&b);
}

static void after_an_overrun_everything_reads_as_nothing(void **state)
{
    /* Announces 65,535 bytes, holds three. */
    static const uint8_t bytes[] = {0xff, 0xff, 'a', 'b', 'c'};
    struct cursor c = cursor_of(span_of(bytes, sizeof(bytes)));

    (void)state;
    assert_int_equal(cursor_bytes16(&c).len, 0);
    assert_int_equal(c.err, -EBADMSG);
    assert_int_equal(cursor_u8(&c), 0);
    assert_true(cursor_u64(&c) == 0);
    assert_int_equal(cursor_bytes(&c, 1).len, 0);
    assert_int_equal(cursor_bytes(&c, 0).len, 0);
    assert_int_equal(cursor_left(&c), 0);
    assert_int_equal(c.err, -EBADMSG);
}

static void a_length_near_the_end_of_the_address_space_is_an_overrun(void **state)
{
    struct cursor c = cursor_of(span_str("abc"));

    (void)state;
    assert_int_equal(cursor_bytes(&c, SIZE_MAX).len, 0);
    assert_int_equal(c.err, -EBADMSG);
}

/* --- blob and value ------------------------------------------------------------------------ */

static void a_copied_value_holds_bytes_of_its_own(void **state)
{
    char text[] = "hello";
    struct value v;

    (void)state;
    assert_int_equal(value_copy(span_str(text), &v), 0);
    text[0] = 'j';
    assert_span(value_span(v), "hello");
    value_fini(&v);
    assert_null(v.blob);
    assert_int_equal(v.len, 0);
}

static void the_empty_value_owns_nothing(void **state)
{
    struct value v = {0}, other;

    (void)state;
    assert_int_equal(value_copy(span_of(NULL, 0), &v), 0);
    assert_null(v.blob);
    other = value_ref(v);
    value_fini(&other);
    value_fini(&v);
    value_fini(&v); /* twice is harmless */
    blob_unref(NULL);
}

static void bytes_live_until_the_last_reference_is_given_back(void **state)
{
    struct value v, ref, slice;

    (void)state;
    assert_int_equal(value_copy(span_str("hello world"), &v), 0);
    ref = value_ref(v);
    slice = value_slice(ref, 6, 5);
    assert_int_equal(v.blob->refs, 3);
    value_fini(&v);
    value_fini(&ref);
    assert_int_equal(slice.blob->refs, 1);
    assert_span(value_span(slice), "world"); /* the sanitizer would see it freed */
    value_fini(&slice);
}

static void an_empty_slice_keeps_no_blob_alive(void **state)
{
    struct value v, slice;

    (void)state;
    assert_int_equal(value_copy(span_str("large"), &v), 0);
    slice = value_slice(v, 5, 0);
    assert_null(slice.blob);
    assert_int_equal(slice.len, 0);
    assert_int_equal(v.blob->refs, 1);
    value_fini(&slice);
    value_fini(&v);
}

static void give_back(void *arg, void *data, size_t len)
{
    memcpy(arg, data, len);
}

static void borrowed_bytes_are_given_back_with_the_last_reference(void **state)
{
    char text[] = "mapped file", given_back[16] = "";
    struct value v, slice;

    (void)state;
    v = (struct value){blob_borrow(text, strlen(text), give_back, given_back),
                       (const uint8_t *)text, 11};
    assert_non_null(v.blob);
    assert_ptr_equal(v.blob->data, text);
    slice = value_slice(v, 7, 4);
    value_fini(&v);
    assert_string_equal(given_back, "");
    assert_span(value_span(slice), "file");
    value_fini(&slice);
    assert_string_equal(given_back, "mapped file");
}

static void references_are_counted_right_from_many_threads(void **state)
{
    pthread_t threads[4];
    struct value v;

    (void)state;
    assert_int_equal(value_copy(span_str("shared"), &v), 0);
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, ref_and_unref, &v), 0);
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    assert_int_equal(v.blob->refs, 1);
    assert_span(value_span(v), "shared");
    value_fini(&v);
}

static void a_blob_too_large_for_its_head_is_refused(void **state)
{
    (void)state;
    assert_null(blob_new(SIZE_MAX));
    assert_null(blob_new(SIZE_MAX - sizeof(struct blob) + 1));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(spans_are_ordered_as_unsigned_bytes_and_a_prefix_comes_first),
        cmocka_unit_test(an_empty_span_without_data_compares_like_any_other),
        cmocka_unit_test(a_prefix_is_the_start_and_never_more_than_all),
        cmocka_unit_test(integers_are_little_endian_and_strings_carry_their_length),
        cmocka_unit_test(what_buf_writes_the_cursor_reads_back),
        cmocka_unit_test(a_buffer_grows_through_many_appends_of_any_size),
        cmocka_unit_test(a_buffer_grows_enough_for_any_second_append),
        cmocka_unit_test(reserved_room_counts_only_when_the_caller_says_so),
        cmocka_unit_test(formatted_text_is_appended_without_its_nul),
        cmocka_unit_test(running_out_of_memory_is_remembered_and_later_appends_do_nothing),
        cmocka_unit_test(a_cursor_never_overruns_wherever_the_bytes_are_cut),
        cmocka_unit_test(after_an_overrun_everything_reads_as_nothing),
        cmocka_unit_test(a_length_near_the_end_of_the_address_space_is_an_overrun),
        cmocka_unit_test(a_copied_value_holds_bytes_of_its_own),
        cmocka_unit_test(the_empty_value_owns_nothing),
        cmocka_unit_test(bytes_live_until_the_last_reference_is_given_back),
        cmocka_unit_test(an_empty_slice_keeps_no_blob_alive),
        cmocka_unit_test(borrowed_bytes_are_given_back_with_the_last_reference),
        cmocka_unit_test(references_are_counted_right_from_many_threads),
        cmocka_unit_test(a_blob_too_large_for_its_head_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

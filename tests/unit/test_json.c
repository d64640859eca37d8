/* test_json.c - the writer of JSON answers. */
#include "common/json.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#include "tests/lib/rng.h"

/* --- assertions ------------------------------------------------------------------------------- */

static void assert_text(struct buf *b, const char *want)
{
    assert_int_equal(b->err, 0);
    buf_u8(b, 0);
    assert_string_equal((const char *)b->data, want);
    buf_fini(b);
}

static void assert_string_as(struct span s, const char *want)
{
    struct buf b = {0};
    struct json j = {.out = &b};

    json_str(&j, s);
    assert_text(&b, want);
}

static void assert_key_as(struct span key, const char *want)
{
    struct buf b = {0};
    struct json j = {.out = &b};

    json_begin(&j, '{');
    json_field_key(&j, "key", key);
    json_key(&j, "n");
    json_u64(&j, 1);
    json_end(&j, '}');
    assert_text(&b, want);
}

/* --- tests ------------------------------------------------------------------------------------ */

static void the_answer_about_replicas_has_exactly_these_bytes(void **state)
{
    static const char *const ids[] = {"node-1", "node-3", "node-2"};
    static const char *const addrs[] = {"localhost:8081", "localhost:8083", "localhost:8082"};
    struct buf b = {0};
    struct json j = {.out = &b};

    (void)state;
    json_begin(&j, '{');
    json_field_key(&j, "key", span_str("user:42"));
    json_key(&j, "replicas");
    json_begin(&j, '[');
    for (unsigned i = 0; i < 3; i++) {
        json_begin(&j, '{');
        json_key(&j, "id");
        json_str(&j, span_str(ids[i]));
        json_key(&j, "addr");
        json_str(&j, span_str(addrs[i]));
        json_end(&j, '}');
    }
    json_end(&j, ']');
    json_end(&j, '}');
    assert_text(
        &b, "{\"key\":\"user:42\",\"replicas\":[{\"id\":\"node-1\",\"addr\":\"localhost:8081\"},"
            "{\"id\":\"node-3\",\"addr\":\"localhost:8083\"},{\"id\":\"node-2\",\"addr\":"
            "\"localhost:8082\"}]}");
}

static void commas_stand_between_and_nowhere_else(void **state)
{
    struct buf b = {0};
    struct json j = {.out = &b};

    (void)state;
    json_begin(&j, '[');
    json_begin(&j, '[');
    json_end(&j, ']');
    json_begin(&j, '{');
    json_end(&j, '}');
    json_begin(&j, '{');
    json_key(&j, "a");
    json_begin(&j, '[');
    json_bool(&j, true);
    json_bool(&j, false);
    json_end(&j, ']');
    json_key(&j, "b");
    json_begin(&j, '{');
    json_end(&j, '}');
    json_key(&j, "c");
    json_u64(&j, 0);
    json_end(&j, '}');
    json_i64(&j, -1);
    json_end(&j, ']');
    assert_text(&b, "[[],{},{\"a\":[true,false],\"b\":{},\"c\":0},-1]");
}

static void numbers_are_written_whole(void **state)
{
    struct buf b = {0};
    struct json j = {.out = &b};

    (void)state;
    json_begin(&j, '[');
    json_u64(&j, UINT64_MAX);
    json_i64(&j, INT64_MIN);
    json_double(&j, 0.25);
    json_double(&j, 1);
    json_double(&j, -1234.5);
    json_double(&j, (double)INFINITY);
    json_double(&j, (double)NAN);
    json_end(&j, ']');
    assert_text(&b, "[18446744073709551615,-9223372036854775808,0.25,1.0,-1234.5,null,null]");
}

static void strings_are_escaped_and_slashes_are_not(void **state)
{
    (void)state;
    assert_string_as(span_str(""), "\"\"");
    assert_string_as(span_str("a/b"), "\"a/b\"");
    assert_string_as(span_str("\"\\"), "\"\\\"\\\\\"");
    assert_string_as(span_str("\b\f\n\r\t\x01\x1f\x7f"), "\"\\b\\f\\n\\r\\t\\u0001\\u001F\x7f\"");
    assert_string_as(span_of("a\0b", 3), "\"a\\u0000b\"");
    assert_string_as(span_str("\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80"),
                     "\"\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80\"");
}

static void utf8_is_told_from_what_only_looks_like_it(void **state)
{
    static const char *const good[] = {
        "",
        "a",
        "\x7f",
        "\xc2\x80",
        "\xdf\xbf",
        "\xe0\xa0\x80",
        "\xed\x9f\xbf",
        "\xee\x80\x80",
        "\xef\xbf\xbf",
        "\xf0\x90\x80\x80",
        "\xf4\x8f\xbf\xbf",
    };
    static const char *const bad[] = {
        "\x80",
        "\xbf",
        "a\x80",
        "\xc3",
        "\xc3(",
        "\xe2\x82",
        "\xe2(\x82",
        "\xf0\x9f\x98",
        "\xff",
        "\xfe", /* cut, alone */
        "\xc0\x80",
        "\xc1\xbf",
        "\xe0\x80\x80",
        "\xe0\x9f\xbf",
        "\xf0\x80\x80\x80",
        "\xf0\x8f\xbf\xbf", /* overlong */
        "\xed\xa0\x80",
        "\xed\xbf\xbf", /* surrogates */
        "\xf4\x90\x80\x80",
        "\xf5\x80\x80\x80",
        "\xf8\x88\x80\x80\x80", /* too high */
    };

    (void)state;
    for (unsigned i = 0; i < sizeof(good) / sizeof(good[0]); i++)
        assert_true(json_is_utf8(span_str(good[i])));
    for (unsigned i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        assert_false(json_is_utf8(span_str(bad[i])));
    assert_true(json_is_utf8(span_of("\0", 1)));
}

/*
 * The writer hands strings to jansson, so both must agree on what a string is: all sequences of 4
 * interesting bytes.
 */
static void our_utf8_is_that_of_the_library(void **state)
{
    static const uint8_t bytes[] = {'a',  0x7f, 0x80, 0x8f, 0x90, 0x9f, 0xa0, 0xbf,
                                    0xc0, 0xc1, 0xc2, 0xdf, 0xe0, 0xe1, 0xed, 0xee,
                                    0xef, 0xf0, 0xf1, 0xf4, 0xf5, 0xff};
    const unsigned n = sizeof(bytes);

    (void)state;
    for (unsigned i = 0; i < n * n * n * n; i++) {
        char s[4] = {(char)bytes[i % n], (char)bytes[i / n % n], (char)bytes[i / n / n % n],
                     (char)bytes[i / n / n / n]};

        for (size_t len = i < n * n * n ? 3 : 4; len <= 4; len++) {
            json_t *theirs = json_stringn(s, len);

            assert_int_equal(json_is_utf8(span_of(s, len)), theirs != NULL);
            json_decref(theirs);
        }
    }
}

static void keys_that_are_no_text_come_as_base64(void **state)
{
    (void)state;
    assert_key_as(span_str("a\"b"), "{\"key\":\"a\\\"b\",\"n\":1}");
    assert_key_as(span_str("\xff"), "{\"key_base64\":\"/w==\",\"n\":1}");
    assert_key_as(span_str("\xff\xfe"), "{\"key_base64\":\"//4=\",\"n\":1}");
    assert_key_as(span_str("\xfb\xf0\x01"), "{\"key_base64\":\"+/AB\",\"n\":1}");
    assert_key_as(span_str("\xffoobar"), "{\"key_base64\":\"/29vYmFy\",\"n\":1}");
}

static void what_is_written_is_read_back_the_same(void **state)
{
    struct rng rng = {21};

    (void)state;
    for (unsigned round = 0; round < 2000; round++) {
        struct buf b = {0};
        struct json j = {.out = &b};
        char s[24];
        size_t len = rng_below(&rng, sizeof(s));
        json_t *back;

        for (size_t i = 0; i < len; i++)
            s[i] = (char)rng_below(&rng, 128);
        json_begin(&j, '[');
        json_str(&j, span_of(s, len));
        json_end(&j, ']');
        back = json_loadb((const char *)b.data, b.len, JSON_ALLOW_NUL, NULL);
        assert_non_null(back);
        assert_int_equal(json_string_length(json_array_get(back, 0)), len);
        assert_memory_equal(json_string_value(json_array_get(back, 0)), s, len);
        json_decref(back);
        buf_fini(&b);
    }
}

static void a_buffer_without_memory_stays_in_error(void **state)
{
    struct buf b = {.err = -ENOMEM};
    struct json j = {.out = &b};

    (void)state;
    json_begin(&j, '{');
    json_key(&j, "a");
    json_str(&j, span_str("b"));
    json_end(&j, '}');
    assert_int_equal(b.err, -ENOMEM);
    assert_int_equal(b.len, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_answer_about_replicas_has_exactly_these_bytes),
        cmocka_unit_test(commas_stand_between_and_nowhere_else),
        cmocka_unit_test(numbers_are_written_whole),
        cmocka_unit_test(strings_are_escaped_and_slashes_are_not),
        cmocka_unit_test(utf8_is_told_from_what_only_looks_like_it),
        cmocka_unit_test(our_utf8_is_that_of_the_library),
        cmocka_unit_test(keys_that_are_no_text_come_as_base64),
        cmocka_unit_test(what_is_written_is_read_back_the_same),
        cmocka_unit_test(a_buffer_without_memory_stays_in_error),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

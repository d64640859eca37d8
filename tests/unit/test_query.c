/* test_query.c - the part of a URL behind '?', and base64. */
#include "node/query.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>
#include "common/base64.h"

/* Parses with the two parameters that there are. */
static int parse(const char *query, struct query_param p[2], struct err *err)
{
    p[0] = (struct query_param){.name = "a"};
    p[1] = (struct query_param){.name = "bb"};
    return query_parse(span_str(query), p, 2, err);
}

static void assert_value(const struct query_param *p, const char *want, size_t len)
{
    assert_true(p->given);
    assert_true(span_eq(buf_span(&p->value), span_of(want, len)));
}

static void values_are_decoded_once_and_a_plus_is_a_plus(void **state)
{
    struct query_param p[2];
    struct err err;

    (void)state;
    assert_int_equal(parse("a=x%2525+y%26&bb=%ff/=", p, &err), 0);
    assert_value(&p[0], "x%25+y&", 7);
    assert_value(&p[1], "\xff/=", 3);
    query_fini(p, 2);
}

static void a_name_alone_and_an_empty_value_are_given_and_empty(void **state)
{
    struct query_param p[2];
    struct err err;

    (void)state;
    assert_int_equal(parse("a&bb=", p, &err), 0);
    assert_value(&p[0], "", 0);
    assert_value(&p[1], "", 0);
    query_fini(p, 2);
    assert_int_equal(parse("", p, &err), 0);
    assert_false(p[0].given || p[1].given);
    assert_int_equal(parse("&&a=1&", p, &err), 0);
    assert_value(&p[0], "1", 1);
    query_fini(p, 2);
}

static void what_is_wrong_is_refused_by_name(void **state)
{
    static const struct {
        const char *query, *word;
    } cases[] = {{"c=1", "c"},        {"a=1&a=2", "twice"}, {"a=%0", "escape"},
                 {"a=%zz", "escape"}, {"a=%00", "NUL"},     {"bb=1&A=1", "A"},
                 {"=1", "unknown"},   {"aa=1", "aa"},       {"b=1&bb=1", "unknown"}};

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct query_param p[2];
        struct err err = {{0}};

        assert_int_equal(parse(cases[i].query, p, &err), -EINVAL);
        assert_non_null(strstr(err.msg, cases[i].word));
        query_fini(p, 2);
    }
}

static void a_value_is_as_long_as_a_key_or_as_its_parameter_says(void **state)
{
    char query[8192];

    (void)state;
    for (size_t max = 0; max <= 5464; max += 5464) {
        size_t longest = max == 0 ? 4096 : max;
        struct query_param p = {.name = "a", .max = max};
        struct err err;

        memset(query, 'x', sizeof(query));
        memcpy(query, "a=", 2);
        assert_int_equal(query_parse(span_of(query, 2 + longest), &p, 1, &err), 0);
        assert_int_equal(p.value.len, longest);
        query_fini(&p, 1);
        p = (struct query_param){.name = "a", .max = max};
        assert_int_equal(query_parse(span_of(query, 3 + longest), &p, 1, &err), -ENAMETOOLONG);
        assert_non_null(strstr(err.msg, "too long"));
        query_fini(&p, 1);
    }
}

static void base64_round_trips_every_length(void **state)
{
    uint8_t bytes[256];

    (void)state;
    for (size_t i = 0; i < sizeof(bytes); i++)
        bytes[i] = (uint8_t)(i * 37 + 11);
    for (size_t n = 0; n <= sizeof(bytes); n++) {
        struct buf text = {0}, back = {0};

        base64_encode(&text, span_of(bytes, n));
        assert_int_equal(text.len, (n + 2) / 3 * 4);
        assert_int_equal(base64_decode(&back, buf_span(&text)), 0);
        assert_true(span_eq(buf_span(&back), span_of(bytes, n)));
        buf_fini(&back);
        buf_fini(&text);
    }
}

static void base64_knows_the_vectors_of_the_standard_and_both_alphabets(void **state)
{
    struct buf out = {0};

    (void)state;
    base64_encode(&out, span_str("fooba"));
    assert_true(span_eq(buf_span(&out), span_str("Zm9vYmE=")));
    buf_clear(&out);
    base64_encode(&out, span_str("\xfb\xff"));
    assert_true(span_eq(buf_span(&out), span_str("+/8=")));
    buf_clear(&out);
    assert_int_equal(base64_decode(&out, span_str("-_8")), 0);
    assert_true(span_eq(buf_span(&out), span_str("\xfb\xff")));
    buf_fini(&out);
}

static void what_is_no_base64_leaves_the_buffer_as_it_was(void **state)
{
    static const char *const bad[] = {"Z", "Zm9v*", "Zm9vY", "====", "Zm=v", "Zm9vYm E="};

    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct buf out = {0};

        buf_add_str(&out, "before");
        assert_int_equal(base64_decode(&out, span_str(bad[i])), -EINVAL);
        assert_true(span_eq(buf_span(&out), span_str("before")));
        buf_fini(&out);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_are_decoded_once_and_a_plus_is_a_plus),
        cmocka_unit_test(a_name_alone_and_an_empty_value_are_given_and_empty),
        cmocka_unit_test(what_is_wrong_is_refused_by_name),
        cmocka_unit_test(a_value_is_as_long_as_a_key_or_as_its_parameter_says),
        cmocka_unit_test(base64_round_trips_every_length),
        cmocka_unit_test(base64_knows_the_vectors_of_the_standard_and_both_alphabets),
        cmocka_unit_test(what_is_no_base64_leaves_the_buffer_as_it_was),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

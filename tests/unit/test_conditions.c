/* test_conditions.c - entity tags, dates, conditions and ranges: every decision as a table. */
#include "node/conditions.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#define OWN "000000000000000a-000000000000000b"
#define OTHER "000000000000000a-000000000000000c"
#define NOON_NS 784111777000000000 /* Sun, 06 Nov 1994 08:49:37 GMT */

static const struct ballot own = {0xa, 0xb};

static struct record live(void)
{
    return (struct record){.version = own, .size = 100, .mtime_ns = NOON_NS + 500000000};
}

static struct record deleted(void)
{
    return (struct record){.version = own, .flags = RECORD_TOMBSTONE};
}

static void a_list_of_tags_is_well_formed_or_refused(void **state)
{
    static const char *const good[] = {"*",           " * ",
                                       "\"a\"",       "W/\"a\"",
                                       "\"a\",\"b\"", " \"a\" , W/\"b\" ,",
                                       "\"\"",        "\"with, comma\""};
    static const char *const bad[] = {"",    " ",        ",",           "a",
                                      "\"a", "a\"",      "\"a\" \"b\"", "w/\"a\"",
                                      "W/a", "*, \"a\"", "\"a\", *",    "\"a\" x"};

    (void)state;
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++)
        assert_int_equal(etags_check(good[i]), 0);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        assert_int_equal(etags_check(bad[i]), -EINVAL);
}

static void a_weak_tag_matches_only_weakly(void **state)
{
    (void)state;
    assert_true(etags_match("\"" OWN "\"", own, false));
    assert_true(etags_match("\"x\", \"" OWN "\"", own, false));
    assert_true(etags_match("*", own, false));
    assert_false(etags_match("\"" OTHER "\"", own, true));
    assert_false(etags_match("W/\"" OWN "\"", own, false));
    assert_true(etags_match("W/\"" OWN "\"", own, true));
}

static void the_newest_version_that_is_named_is_known(void **state)
{
    static char mine[] = "\"" OWN "\"", both[] = "W/\"" OTHER "\", \"" OWN "\"", any[] = "*",
                date[] = "Sun, 06 Nov 1994 08:49:37 GMT",
                text[] = "\"x\", \"" OWN "0\", \"" OWN "\"";
    const struct ballot other = {0xa, 0xc};
    struct conditions c = {.if_none_match = any, .if_modified_since = date, .if_range = date};

    (void)state;
    assert_true(ballot_is_none(conditions_newest(&c)));
    c.if_match = text;
    assert_int_equal(ballot_cmp(conditions_newest(&c), own), 0);
    c.if_none_match = both;
    assert_int_equal(ballot_cmp(conditions_newest(&c), other), 0);
    c = (struct conditions){.if_range = mine};
    assert_int_equal(ballot_cmp(conditions_newest(&c), own), 0);
}

static void a_write_goes_on_only_where_its_conditions_hold(void **state)
{
    const struct record none = {0}, there = live(), gone = deleted();
    static char any[] = "*", mine[] = "\"" OWN "\"", other[] = "\"" OTHER "\"";
    const struct {
        char *if_match, *if_none_match;
        int on_live, on_absent;
    } cases[] = {
        {NULL, NULL, 0, 0},
        {any, NULL, 0, -ECANCELED},
        {mine, NULL, 0, -ECANCELED},
        {other, NULL, -ECANCELED, -ECANCELED},
        {NULL, any, -ECANCELED, 0},
        {NULL, mine, -ECANCELED, 0},
        {NULL, other, 0, 0},
        {mine, other, 0, -ECANCELED},
        {mine, any, -ECANCELED, -ECANCELED},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct conditions c = {.if_match = cases[i].if_match,
                               .if_none_match = cases[i].if_none_match};

        assert_int_equal(conditions_write(&c, &there), cases[i].on_live);
        assert_int_equal(conditions_write(&c, &none), cases[i].on_absent);
        assert_int_equal(conditions_write(&c, &gone), cases[i].on_absent);
    }
}

static void dates_are_understood_in_their_three_forms_and_compared_by_the_second(void **state)
{
    static const char *const same[] = {"Sun, 06 Nov 1994 08:49:37 GMT",
                                       "Sunday, 06-Nov-94 08:49:37 GMT",
                                       "Sun Nov  6 08:49:37 1994"};
    char text[HTTP_DATE_LEN];
    int64_t t;

    (void)state;
    for (size_t i = 0; i < sizeof(same) / sizeof(same[0]); i++) {
        assert_int_equal(http_date_parse(same[i], &t), 0);
        assert_int_equal(t, NOON_NS / 1000000000);
    }
    assert_int_equal(http_date_parse("yesterday", &t), -EINVAL);
    assert_int_equal(http_date_parse("Sun, 06 Nov 1994 08:49:37 GMT junk", &t), -EINVAL);
    http_date(NOON_NS + 999999999, text);
    assert_string_equal(text, same[0]);
    http_date(-1, text); /* before the epoch it is still rounded down */
    assert_string_equal(text, "Wed, 31 Dec 1969 23:59:59 GMT");
}

static void a_read_answers_304_or_412_by_the_order_of_the_standard(void **state)
{
    static char mine[] = "\"" OWN "\"", other[] = "\"" OTHER "\"";
    static char now[] = "Sun, 06 Nov 1994 08:49:37 GMT", before[] = "Sun, 06 Nov 1994 08:49:36 GMT";
    static char no_date[] = "soon";
    const struct record rec = live();
    const struct {
        struct conditions c;
        unsigned status;
    } cases[] = {
        {{0}, 0},
        {{.if_none_match = mine}, 304},
        {{.if_none_match = other}, 0},
        {{.if_none_match = other, .if_modified_since = now}, 0}, /* the date does not count then */
        {{.if_modified_since = now}, 304},
        {{.if_modified_since = before}, 0},
        {{.if_modified_since = no_date}, 0},
        {{.if_match = mine}, 0},
        {{.if_match = other}, 412},
        {{.if_match = other, .if_none_match = mine}, 412},
        {{.if_unmodified_since = now}, 0},
        {{.if_unmodified_since = before}, 412},
        {{.if_unmodified_since = before, .if_match = mine}, 0},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        assert_int_equal(conditions_read(&cases[i].c, &rec), cases[i].status);
}

static void a_part_is_given_only_of_the_version_that_if_range_names(void **state)
{
    static char mine[] = "\"" OWN "\"", weak[] = "W/\"" OWN "\"", other[] = "\"" OTHER "\"";
    static char now[] = "Sun, 06 Nov 1994 08:49:37 GMT", later[] = "Sun, 06 Nov 1994 08:49:38 GMT";
    const struct record rec = live();

    (void)state;
    assert_true(conditions_range(&(struct conditions){0}, &rec));
    assert_true(conditions_range(&(struct conditions){.if_range = mine}, &rec));
    assert_true(conditions_range(&(struct conditions){.if_range = now}, &rec));
    assert_false(conditions_range(&(struct conditions){.if_range = weak}, &rec));
    assert_false(conditions_range(&(struct conditions){.if_range = other}, &rec));
    assert_false(conditions_range(&(struct conditions){.if_range = later}, &rec));
}

static void ranges_resolve_to_exactly_their_bytes(void **state)
{
    static const struct {
        const char *header;
        unsigned status; /* of a value of 100 bytes */
        uint64_t offset, length;
    } cases[] = {
        {"bytes=0-0", 206, 0, 1},
        {"bytes=10-19", 206, 10, 10},
        {"bytes=99-", 206, 99, 1},
        {"bytes=0-", 206, 0, 100},
        {"bytes=50-1000", 206, 50, 50},
        {"bytes=50-99999999999999999999999", 206, 50, 50},
        {"bytes=-1", 206, 99, 1},
        {"bytes=-100", 206, 0, 100},
        {"bytes=-1000", 206, 0, 100},
        {"BYTES= 1-2 ", 206, 1, 2},
        {"bytes=100-", 416, 0, 0},
        {"bytes=100-200", 416, 0, 0},
        {"bytes=-0", 416, 0, 0},
        {"bytes=99999999999999999999999-", 416, 0, 0},
        {NULL, 200, 0, 100},
        {"", 200, 0, 100},
        {"bytes", 200, 0, 100},
        {"bytes=", 200, 0, 100},
        {"bytes=-", 200, 0, 100},
        {"bytes=5-4", 200, 0, 100},
        {"bytes=1-2,4-5", 200, 0, 100},
        {"bytes=1-2x", 200, 0, 100},
        {"bytes=+1-2", 200, 0, 100},
        {"lines=1-2", 200, 0, 100},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct range r = range_parse(cases[i].header);
        uint64_t offset = 0, length = 0;

        assert_int_equal(range_resolve(&r, 100, &offset, &length), cases[i].status);
        assert_int_equal(offset, cases[i].offset);
        assert_int_equal(length, cases[i].length);
    }
}

static void no_part_of_an_empty_value_can_be_given(void **state)
{
    static const char *const headers[] = {"bytes=0-0", "bytes=0-", "bytes=-1"};
    uint64_t offset, length;

    (void)state;
    for (size_t i = 0; i < sizeof(headers) / sizeof(headers[0]); i++) {
        struct range r = range_parse(headers[i]);

        assert_int_equal(range_resolve(&r, 0, &offset, &length), 416);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_list_of_tags_is_well_formed_or_refused),
        cmocka_unit_test(a_weak_tag_matches_only_weakly),
        cmocka_unit_test(the_newest_version_that_is_named_is_known),
        cmocka_unit_test(a_write_goes_on_only_where_its_conditions_hold),
        cmocka_unit_test(dates_are_understood_in_their_three_forms_and_compared_by_the_second),
        cmocka_unit_test(a_read_answers_304_or_412_by_the_order_of_the_standard),
        cmocka_unit_test(a_part_is_given_only_of_the_version_that_if_range_names),
        cmocka_unit_test(ranges_resolve_to_exactly_their_bytes),
        cmocka_unit_test(no_part_of_an_empty_value_can_be_given),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

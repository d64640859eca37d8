/* test_ballot.c - the order of ballots, and their text. */
#include "common/ballot.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static void the_counter_decides_then_the_proposer(void **state)
{
    /* clang-format off */
    /* Ascending; neighbours differ where a signed or a 32-bit comparison goes wrong. */
    static const struct ballot ascending[] = {
        {0, 0}, {0, 1}, {0, UINT64_MAX},
        {1, 0}, {1, 1}, {1, 1ull << 32}, {1, 1ull << 63}, {1, BALLOT_PROPOSER_MAX},
        {2, 0}, {1ull << 32, 0}, {1ull << 63, 0}, {UINT64_MAX, 0}, {UINT64_MAX, UINT64_MAX},
    };
    /* clang-format on */
    size_t n = sizeof(ascending) / sizeof(ascending[0]);

    (void)state;
    for (size_t i = 0; i < n; i++) {
        for (size_t j = 0; j < n; j++) {
            int order = ballot_cmp(ascending[i], ascending[j]);
            struct ballot top = ballot_max(ascending[i], ascending[j]);

            assert_int_equal(order < 0, i < j);
            assert_int_equal(order > 0, i > j);
            assert_int_equal(ballot_cmp(top, ascending[i > j ? i : j]), 0);
        }
    }
}

static void only_zero_and_zero_is_no_ballot(void **state)
{
    (void)state;
    assert_true(ballot_is_none(BALLOT_NONE));
    assert_false(ballot_is_none((struct ballot){0, 1}));
    assert_false(ballot_is_none((struct ballot){1, 0}));
}

static void text_is_two_numbers_of_sixteen_digits(void **state)
{
    char text[BALLOT_TEXT_LEN];

    (void)state;
    ballot_text(BALLOT_NONE, text);
    assert_string_equal(text, "0000000000000000-0000000000000000");
    ballot_text((struct ballot){0x0123456789abcdef, UINT64_MAX}, text);
    assert_string_equal(text, "0123456789abcdef-ffffffffffffffff");
}

static void text_reads_back_as_the_same_ballot(void **state)
{
    static const struct ballot ballots[] = {
        {0, 0}, {1, 2}, {UINT64_MAX, 1ull << 63}, {0xfedcba9876543210, 0x0f1e2d3c4b5a6978}};

    (void)state;
    for (size_t i = 0; i < sizeof(ballots) / sizeof(ballots[0]); i++) {
        char text[BALLOT_TEXT_LEN];
        struct ballot back = {1, 1};

        ballot_text(ballots[i], text);
        assert_int_equal(ballot_parse(text, &back), 0);
        assert_int_equal(ballot_cmp(back, ballots[i]), 0);
    }
}

static void any_other_text_is_refused_and_leaves_the_output_alone(void **state)
{
    static const char *const wrong[] = {
        "",
        "-",
        "1-2",
        "0000000000000001",
        "000000000000000100000000000000002",
        "0000000000000001-000000000000002",
        "0000000000000001-00000000000000020",
        "000000000000001-00000000000000002",
        "0000000000000001_0000000000000002",
        "0000000000000001-000000000000000g",
        "000000000000000A-0000000000000002",
        " 000000000000001-0000000000000002",
        "+000000000000001-0000000000000002",
        "0x00000000000001-0000000000000002",
        "0000000000000001-0000000000000002\n",
        "\"000000000000001-000000000000002\"",
        "000000000000000\xff-0000000000000002",
    };

    (void)state;
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        struct ballot out = {7, 8};

        if (ballot_parse(wrong[i], &out) != -EINVAL)
            fail_msg("\"%s\" was taken", wrong[i]);
        assert_int_equal(ballot_cmp(out, (struct ballot){7, 8}), 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_counter_decides_then_the_proposer),
        cmocka_unit_test(only_zero_and_zero_is_no_ballot),
        cmocka_unit_test(text_is_two_numbers_of_sixteen_digits),
        cmocka_unit_test(text_reads_back_as_the_same_ballot),
        cmocka_unit_test(any_other_text_is_refused_and_leaves_the_output_alone),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

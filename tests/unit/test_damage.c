/* test_damage.c - the set of damaged keys: as a plain list would have it, and bounded. */
#include "node/damage.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "tests/lib/rng.h"

#define N_KEYS 300u
#define SECOND UINT64_C(1000000)

static int setup(void **state)
{
    struct damage *d;

    assert_int_equal(damage_new(&d), 0);
    *state = d;
    return 0;
}

static int teardown(void **state)
{
    damage_free(*state);
    return 0;
}

static struct span key_of(unsigned i, char text[16])
{
    snprintf(text, 16, "key-%u", i);
    return span_str(text);
}

static void it_has_what_was_added_and_not_removed(void **state)
{
    struct damage *d = *state;
    struct rng rng = {7};
    bool has[N_KEYS] = {false};
    char text[16];
    uint64_t n = 0;

    for (unsigned step = 0; step < 20000; step++) {
        unsigned i = (unsigned)rng_below(&rng, N_KEYS);

        if (rng_chance(&rng, 500)) {
            assert_int_equal(damage_add(d, key_of(i, text), 100 * SECOND), !has[i]);
            n += !has[i];
            has[i] = true;
        } else {
            damage_remove(d, key_of(i, text));
            n -= has[i];
            has[i] = false;
        }
        assert_int_equal(damage_n(d), n);
        i = (unsigned)rng_below(&rng, N_KEYS);
        assert_int_equal(damage_has(d, key_of(i, text)), has[i]);
    }
    for (unsigned i = 0; i < N_KEYS; i++)
        assert_int_equal(damage_has(d, key_of(i, text)), has[i]);
}

static void who_was_told_is_told_again_only_after_a_while(void **state)
{
    struct damage *d = *state;
    struct span key = span_str("k");

    assert_int_equal(damage_add(d, key, 100 * SECOND), 1);
    assert_int_equal(damage_add(d, key, 109 * SECOND), 0);
    assert_int_equal(damage_add(d, key, 110 * SECOND), 1);
    assert_int_equal(damage_add(d, key, 111 * SECOND), 0);
    damage_remove(d, key);
    assert_int_equal(damage_add(d, key, 111 * SECOND), 1);
}

static void keys_above_the_limit_are_told_and_not_remembered(void **state)
{
    struct damage *d = *state;
    char text[16];

    for (unsigned i = 0; i < DAMAGE_MAX; i++)
        assert_int_equal(damage_add(d, key_of(i, text), 0), 1);
    assert_int_equal(damage_add(d, span_str("one more"), 0), -ENOSPC);
    assert_false(damage_has(d, span_str("one more")));
    assert_int_equal(damage_add(d, span_str("key-5"), 0), 0);
    damage_remove(d, span_str("key-5"));
    assert_int_equal(damage_add(d, span_str("one more"), 0), 1);
    assert_int_equal(damage_n(d), DAMAGE_MAX);
}

static void what_was_not_counted_is_known_until_it_is_counted_anew_or_whole(void **state)
{
    struct damage *d = *state;

    assert_false(damage_uncounted(d, span_str("k")));
    assert_int_equal(damage_add(d, span_str("k"), 0), 1);
    assert_int_equal(damage_add(d, span_str("l"), 0), 1);
    damage_uncount(d, span_str("k"));
    damage_uncount(d, span_str("nobody"));
    assert_true(damage_uncounted(d, span_str("k")));
    assert_false(damage_uncounted(d, span_str("l")));
    assert_false(damage_uncounted(d, span_str("nobody")));
    damage_recount(d);
    assert_false(damage_uncounted(d, span_str("k")));
    damage_uncount(d, span_str("k"));
    damage_remove(d, span_str("k"));
    assert_int_equal(damage_add(d, span_str("k"), 0), 1);
    assert_false(damage_uncounted(d, span_str("k")));
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(it_has_what_was_added_and_not_removed),
        TEST(who_was_told_is_told_again_only_after_a_while),
        TEST(keys_above_the_limit_are_told_and_not_remembered),
        TEST(what_was_not_counted_is_known_until_it_is_counted_anew_or_whole),
    };

    return cmocka_run_group_tests_name("damage", tests, NULL, NULL);
}

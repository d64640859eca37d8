/* test_hash.c - known answers of the hashes: placement and checksums rest on every bit of them. */
#include "common/hash.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

/* cmocka's assert_int_equal takes what fits the machine's word; this says so in 64 bits. */
static void assert_u64(uint64_t got, uint64_t want)
{
    if (got != want)
        fail_msg("0x%016llx is not 0x%016llx", (unsigned long long)got, (unsigned long long)want);
}

static void fnv1a_gives_the_published_answers(void **state)
{
    (void)state;
    assert_u64(hash_fnv1a(span_str("")), 0xcbf29ce484222325);
    assert_u64(hash_fnv1a(span_str("a")), 0xaf63dc4c8601ec8c);
    assert_u64(hash_fnv1a(span_str("foobar")), 0x85944171f73967e8);
}

static void fnv1a_takes_bytes_as_unsigned(void **state)
{
    (void)state;
    assert_u64(hash_fnv1a(span_of("\xff\xfe", 2)), 0x0a99c807b6f645b0);
    assert_u64(hash_fnv1a(span_of("\x80", 1)), 0xaf643d4c8602915f);
}

static void fnv1a_counts_nul_bytes(void **state)
{
    (void)state;
    assert_u64(hash_fnv1a(span_of("\0", 1)), 0xaf63bd4c8601b7df);
    assert_true(hash_fnv1a(span_of("a\0", 2)) != hash_fnv1a(span_of("a", 1)));
}

static void fmix64_gives_the_published_answers(void **state)
{
    (void)state;
    assert_u64(hash_fmix64(0), 0);
    assert_u64(hash_fmix64(1), 0xb456bcfc34c2cb2c);
    assert_u64(hash_fmix64(UINT64_MAX), 0x64b5720b4b825f21);
}

static void fmix64_flips_about_half_of_the_bits_for_each_bit(void **state)
{
    (void)state;
    for (uint64_t x = 1; x <= 16; x++) {
        for (int bit = 0; bit < 64; bit++) {
            int flipped = __builtin_popcountll(hash_fmix64(x) ^ hash_fmix64(x ^ 1ull << bit));

            assert_in_range(flipped, 8, 56);
        }
    }
}

static void xxh3_gives_the_published_answers(void **state)
{
    (void)state;
    assert_u64(hash_xxh3(span_of(NULL, 0)), 0x2d06800538d394c2);
    assert_u64(hash_xxh3(span_str("abc")), 0x78af5f94892f3950);
}

static void a_stream_sums_up_to_the_hash_of_the_whole_however_it_is_cut(void **state)
{
    struct hash_stream *h = hash_stream_new();
    uint8_t bytes[3000];

    (void)state;
    assert_non_null(h);
    for (size_t i = 0; i < sizeof(bytes); i++)
        bytes[i] = (uint8_t)hash_fmix64(i);
    for (size_t step = 1; step < sizeof(bytes); step = step * 3 + 1) {
        hash_stream_reset(h);
        for (size_t pos = 0; pos < sizeof(bytes); pos += step) {
            size_t n = sizeof(bytes) - pos < step ? sizeof(bytes) - pos : step;

            hash_stream_add(h, span_of(bytes + pos, n));
            hash_stream_add(h, span_of(NULL, 0));
        }
        assert_u64(hash_stream_sum(h), hash_xxh3(span_of(bytes, sizeof(bytes))));
    }
    hash_stream_free(h);
}

static void a_new_and_a_reset_stream_are_empty(void **state)
{
    struct hash_stream *h = hash_stream_new();

    (void)state;
    assert_non_null(h);
    assert_u64(hash_stream_sum(h), hash_xxh3(span_str("")));
    hash_stream_add(h, span_str("abc"));
    assert_u64(hash_stream_sum(h), hash_xxh3(span_str("abc")));
    hash_stream_reset(h);
    assert_u64(hash_stream_sum(h), hash_xxh3(span_str("")));
    hash_stream_free(h);
    hash_stream_free(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fnv1a_gives_the_published_answers),
        cmocka_unit_test(fnv1a_takes_bytes_as_unsigned),
        cmocka_unit_test(fnv1a_counts_nul_bytes),
        cmocka_unit_test(fmix64_gives_the_published_answers),
        cmocka_unit_test(fmix64_flips_about_half_of_the_bits_for_each_bit),
        cmocka_unit_test(xxh3_gives_the_published_answers),
        cmocka_unit_test(a_stream_sums_up_to_the_hash_of_the_whole_however_it_is_cut),
        cmocka_unit_test(a_new_and_a_reset_stream_are_empty),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

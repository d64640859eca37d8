/* test_sums.c - sums that are computed piece by piece are those of the whole. */
#include "common/sums.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "common/limits.h"
#include "common/record.h"

#define LEN_MAX (3 * (size_t)CHUNK_SIZE + 5)

static uint8_t *bytes;

static int make_bytes(void **state)
{
    (void)state;
    bytes = malloc(LEN_MAX);
    for (size_t i = 0; bytes != NULL && i < LEN_MAX; i++)
        bytes[i] = (uint8_t)(i * 13 + (i >> 16));
    return bytes == NULL ? -1 : 0;
}

static int free_bytes(void **state)
{
    (void)state;
    free(bytes);
    return 0;
}

static void the_pieces_do_not_matter(void **state)
{
    static const size_t lens[] = {0, 1, CHUNK_SIZE - 1, CHUNK_SIZE, CHUNK_SIZE + 1, LEN_MAX};
    static const size_t pieces[] = {7777, CHUNK_SIZE / 2, CHUNK_SIZE, LEN_MAX};

    (void)state;
    for (size_t l = 0; l < sizeof(lens) / sizeof(lens[0]); l++) {
        struct buf want = {0};

        record_sums(&want, span_of(bytes, lens[l]));
        for (size_t p = 0; p < sizeof(pieces) / sizeof(pieces[0]); p++) {
            struct sums *s = sums_new((struct span){0});
            struct span got;

            assert_non_null(s);
            for (size_t at = 0; at < lens[l]; at += pieces[p])
                sums_add(s,
                         span_of(bytes + at, lens[l] - at < pieces[p] ? lens[l] - at : pieces[p]));
            assert_int_equal(sums_end(s, &got), 0);
            assert_true(span_eq(got, buf_span(&want)));
            sums_free(s);
        }
        buf_fini(&want);
    }
}

static void whole_chunks_whose_sums_are_known_need_not_be_added(void **state)
{
    struct buf want = {0};
    struct span got;

    (void)state;
    record_sums(&want, span_of(bytes, LEN_MAX));
    for (size_t known = 0; known <= 3; known++) {
        struct sums *s = sums_new(span_of(want.data, known * 8));

        assert_non_null(s);
        sums_add(s, span_of(bytes + known * CHUNK_SIZE, LEN_MAX - known * CHUNK_SIZE));
        assert_int_equal(sums_end(s, &got), 0);
        assert_true(span_eq(got, buf_span(&want)));
        sums_free(s);
    }
    buf_fini(&want);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_pieces_do_not_matter),
        cmocka_unit_test(whole_chunks_whose_sums_are_known_need_not_be_added),
    };

    return cmocka_run_group_tests(tests, make_bytes, free_bytes);
}

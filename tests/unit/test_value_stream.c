/*
 * test_value_stream.c - a large value goes out whole and in order, whatever order its parts come
 * in, and holds no more of them than it may. The cluster is the test's: parts come when it says.
 */
#include "node/value_stream.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define SIZE (10ull * CHUNK_SIZE + 777)
#define ASKED_MAX 64u
#define N_PARTS (VALUE_STREAM_LEN / CHUNK_SIZE)

/* --- the cluster ------------------------------------------------------------------------------ */

struct asked {
    const struct read_args *args;
    read_done_fn *done;
    void *arg;
};

static struct asked asked[ASKED_MAX];
static unsigned n_asked, n_more;
static int refuse; /* what asking is answered with */

int __wrap_cluster_read_async(struct cluster *c, const struct read_args *args, read_done_fn *done,
                              void *arg);

int __wrap_cluster_read_async(struct cluster *c, const struct read_args *args, read_done_fn *done,
                              void *arg)
{
    (void)c;
    if (refuse < 0)
        return refuse;
    assert_in_range(n_asked, 0, ASKED_MAX - 1);
    asked[n_asked++] = (struct asked){args, done, arg};
    return 0;
}

static uint8_t byte_at(uint64_t i)
{
    return (uint8_t)(i * 13 + (i >> 20) * 5);
}

/* Bytes from offset on, in a blob of their own. */
static struct value bytes_of(uint64_t offset, size_t len)
{
    struct blob *b = blob_new(len);

    assert_non_null(b);
    for (size_t i = 0; i < len; i++)
        b->data[i] = byte_at(offset + i);
    return (struct value){b, b->data, len};
}

/* Request i is answered, with err or its bytes, and forgotten. */
static void answer(unsigned i, int err)
{
    struct asked a = asked[i];
    struct read_result res = {.err = err};

    memmove(&asked[i], &asked[i + 1], (n_asked - i - 1) * sizeof(asked[0]));
    n_asked--;
    if (err == 0) {
        res.value = bytes_of(a.args->offset, (size_t)a.args->length);
        res.value_offset = a.args->offset;
    }
    a.done(a.arg, &res);
    value_fini(&res.value);
}

static void on_more(void *arg)
{
    (void)arg;
    n_more++;
}

/* --- streams ---------------------------------------------------------------------------------- */

static struct value_stream *open_stream(uint64_t offset, uint64_t length)
{
    uint64_t start = offset - offset % CHUNK_SIZE;
    size_t len = SIZE - start < CHUNK_SIZE ? (size_t)(SIZE - start) : CHUNK_SIZE;
    struct value first = bytes_of(start, len);
    struct value_stream_opts opts = {
        .key = span_str("key"),
        .version = {7, 8},
        .offset = offset,
        .length = length,
        .first = first,
        .first_offset = start,
        .more = on_more,
    };
    struct value_stream *s;

    n_asked = n_more = 0;
    assert_int_equal(value_stream_new(&opts, &s), 0);
    value_fini(&first); /* the stream has a reference of its own */
    return s;
}

/* Reads from *pos on until it has nothing; what that was: 0, or an error. */
static int64_t read_on(struct value_stream *s, uint64_t offset, uint64_t length, uint64_t *pos)
{
    static uint8_t out[70000];
    int64_t n = 1;

    while (*pos < length && (n = value_stream_read(s, *pos, out, sizeof(out))) > 0) {
        assert_in_range(n, 1, sizeof(out));
        assert_in_range(*pos + (uint64_t)n, 1, length);
        for (int64_t i = 0; i < n; i++)
            assert_int_equal(out[i], byte_at(offset + *pos + (uint64_t)i));
        *pos += (uint64_t)n;
    }
    return n;
}

/* Answers the parts one by one: the oldest first, or the youngest, or those from the middle. */
static void goes_out_whole(uint64_t offset, uint64_t length, unsigned order)
{
    struct value_stream *s = open_stream(offset, length);
    uint64_t pos = 0;
    unsigned n_waits = 0;

    while (read_on(s, offset, length, &pos) == 0) {
        assert_in_range(n_asked, 1, N_PARTS);
        for (unsigned i = 0; i < n_asked; i++) {
            const struct read_args *args = asked[i].args;

            assert_int_equal(args->pin.counter, 7);
            assert_int_equal(args->pin.proposer, 8);
            assert_true(span_eq(args->key, span_str("key")));
            assert_int_equal(args->offset % CHUNK_SIZE, 0);
            assert_in_range(args->offset + args->length, 1, offset + length);
        }
        n_waits++;
        answer(order == 0 ? 0 : order == 1 ? n_asked - 1 : n_asked / 2, 0);
        assert_int_equal(n_more, n_waits); /* once for each that had nothing */
    }
    assert_int_equal(pos, length);
    value_stream_free(s);
    while (n_asked > 0) /* what is still under way finds nobody, and that is well */
        answer(0, 0);
}

static void it_goes_out_whole_in_whatever_order_its_parts_come(void **state)
{
    static const uint64_t parts[][2] = {
        {0, SIZE},
        {0, 1},
        {5, CHUNK_SIZE},
        {CHUNK_SIZE - 1, 2},
        {3 * CHUNK_SIZE + 5, SIZE - 3 * CHUNK_SIZE - 5},
        {2 * CHUNK_SIZE, 6 * CHUNK_SIZE},
        {2 * CHUNK_SIZE + 1, 6 * CHUNK_SIZE - 2},
        {SIZE - 1, 1},
    };

    (void)state;
    for (unsigned order = 0; order < 3; order++)
        for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++)
            goes_out_whole(parts[i][0], parts[i][1], order);
}

static void who_does_not_read_is_brought_no_more_than_the_bound(void **state)
{
    struct value_stream *s = open_stream(0, SIZE);
    uint64_t pos = 0;

    (void)state;
    assert_int_equal(n_asked, N_PARTS - 1); /* the first is here */
    while (n_asked > 0)
        answer(n_asked - 1, 0);
    assert_int_equal(n_more, 0); /* nobody waits */
    assert_true(read_on(s, 0, N_PARTS * CHUNK_SIZE, &pos) > 0);
    assert_int_equal(pos, N_PARTS * CHUNK_SIZE); /* and all of that is at hand */
    assert_int_equal(n_asked, N_PARTS - 1);      /* what was read makes room */
    value_stream_free(s);
    while (n_asked > 0)
        answer(0, 0);
}

static void an_error_is_told_behind_what_came_before_it(void **state)
{
    struct value_stream *s = open_stream(0, SIZE);
    uint64_t pos = 0;

    (void)state;
    answer(0, 0);
    answer(0, -ESTALE); /* part 2 */
    assert_int_equal(read_on(s, 0, SIZE, &pos), -ESTALE);
    assert_int_equal(pos, 2ull * CHUNK_SIZE);
    assert_int_equal(n_asked, 1); /* and none is asked for any more */
    value_stream_free(s);
    answer(0, 0);
}

static void who_waits_hears_of_an_error(void **state)
{
    struct value_stream *s = open_stream(0, SIZE);
    uint64_t pos = 0;

    (void)state;
    assert_int_equal(read_on(s, 0, SIZE, &pos), 0);
    assert_int_equal(pos, CHUNK_SIZE);
    answer(0, -EHOSTDOWN);
    assert_int_equal(n_more, 1);
    assert_int_equal(read_on(s, 0, SIZE, &pos), -EHOSTDOWN);
    value_stream_free(s);
    while (n_asked > 0)
        answer(0, -EHOSTDOWN);
    assert_int_equal(n_more, 1);
}

static void a_cluster_that_is_closed_is_an_error(void **state)
{
    struct value_stream *s;
    uint64_t pos = 0;

    (void)state;
    refuse = -EHOSTDOWN;
    s = open_stream(0, SIZE);
    refuse = 0;
    assert_int_equal(read_on(s, 0, SIZE, &pos), -EHOSTDOWN);
    assert_int_equal(pos, CHUNK_SIZE); /* what was here goes out */
    value_stream_free(s);
    value_stream_free(NULL);
}

static void a_part_of_other_bytes_is_none(void **state)
{
    struct value_stream *s = open_stream(0, SIZE);
    struct asked a = asked[0];
    struct read_result res = {.value = bytes_of(0, 10)};
    uint64_t pos = 0;

    (void)state;
    a.done(a.arg, &res); /* from the start of the value, not of its part */
    value_fini(&res.value);
    memmove(&asked[0], &asked[1], --n_asked * sizeof(asked[0]));
    assert_int_equal(read_on(s, 0, SIZE, &pos), -EIO);
    value_stream_free(s);
    while (n_asked > 0)
        answer(0, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_goes_out_whole_in_whatever_order_its_parts_come),
        cmocka_unit_test(who_does_not_read_is_brought_no_more_than_the_bound),
        cmocka_unit_test(an_error_is_told_behind_what_came_before_it),
        cmocka_unit_test(who_waits_hears_of_an_error),
        cmocka_unit_test(a_cluster_that_is_closed_is_an_error),
        cmocka_unit_test(a_part_of_other_bytes_is_none),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

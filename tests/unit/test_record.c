/* test_record.c - the stored record: what is written comes back, what was damaged never does. */
#include "common/record.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/hash.h"
#include "tests/lib/rng.h"

#define GOLDEN_V1 "tests/golden/record_v1.bin"
#define SAMPLE_KEY "user:42"
/* Where fields stand, as docs/protocol.md tables them. */
#define AT_FORMAT 3u
#define AT_FLAGS 4u
#define AT_SIZE 32u
#define AT_N_RECENT 84u

/* --- fixture ---------------------------------------------------------------------------------- */

/* A record with something in every field; its lists live as long as the fixture. */
struct sample {
    struct record rec;
    struct buf attrs, sums, bytes;
};

static int setup(void **state)
{
    struct sample *s = calloc(1, sizeof(*s));

    attr_add(&s->attrs, ATTR_CONTENT_TYPE, span_str(""), span_str("text/plain"));
    attr_add(&s->attrs, ATTR_XATTR, span_str("user.empty"), span_str(""));
    attr_add(&s->attrs, ATTR_XATTR, span_str("user.bytes"), span_of("\0\xff/%", 4));
    record_sums(&s->sums, span_str("hello, world\n"));
    s->rec = (struct record){
        .version = {0x0102030405060708, 0x1112131415161718},
        .seq = 3,
        .n_recent = 3,
        .recent = {0xa1, 0xa2, 0xffffffffffffffff},
        .size = 13,
        .mode = 0100644,
        .uid = 1000,
        .gid = 1001,
        .rdev = 0x0801,
        .mtime_ns = 1700000000123456789,
        .ctime_ns = -1,
        .atime_ns = INT64_MIN,
        .attrs = buf_span(&s->attrs),
        .sums = buf_span(&s->sums),
    };
    record_encode(&s->bytes, span_str(SAMPLE_KEY), &s->rec);
    *state = s;
    return s->bytes.err;
}

static int teardown(void **state)
{
    struct sample *s = *state;

    buf_fini(&s->attrs);
    buf_fini(&s->sums);
    buf_fini(&s->bytes);
    free(s);
    return 0;
}

/* --- helpers ---------------------------------------------------------------------------------- */

static void put_u64(uint8_t *at, uint64_t v)
{
    for (unsigned i = 0; i < 8; i++)
        at[i] = (uint8_t)(v >> (8 * i));
}

/*
 * Gives bytes that were changed on purpose a right checksum, so that only the change can be what is
 * refused.
 */
static void reseal(struct buf *b, const char *key)
{
    uint8_t both[16];

    put_u64(both, hash_xxh3(span_str(key)));
    put_u64(both + 8, hash_xxh3(span_of(b->data, b->len - 8)));
    put_u64(b->data + b->len - 8, hash_xxh3(span_of(both, 16)));
}

static int decode(const struct buf *b, struct record *out)
{
    return record_decode(buf_span(b), span_str(SAMPLE_KEY), out);
}

static void assert_span(struct span got, struct span want)
{
    assert_true(span_eq(got, want));
}

static void assert_same(const struct record *a, const struct record *b)
{
    assert_int_equal(ballot_cmp(a->version, b->version), 0);
    assert_int_equal(a->flags, b->flags);
    assert_int_equal(a->seq, b->seq);
    assert_int_equal(a->n_recent, b->n_recent);
    assert_memory_equal(a->recent, b->recent, 8u * a->n_recent);
    assert_int_equal(a->size, b->size);
    assert_int_equal(a->mode, b->mode);
    assert_int_equal(a->uid, b->uid);
    assert_int_equal(a->gid, b->gid);
    assert_int_equal(a->rdev, b->rdev);
    assert_int_equal(a->mtime_ns, b->mtime_ns);
    assert_int_equal(a->ctime_ns, b->ctime_ns);
    assert_int_equal(a->atime_ns, b->atime_ns);
    assert_span(a->attrs, b->attrs);
    assert_span(a->sums, b->sums);
}

/* A changed and resealed sample is refused, and *out is left alone. */
static void assert_refused(struct sample *s, size_t at, const void *bytes, size_t n, int want)
{
    struct record r = {.seq = 99};
    struct buf b = {0};

    buf_add_span(&b, buf_span(&s->bytes));
    memcpy(b.data + at, bytes, n);
    reseal(&b, SAMPLE_KEY);
    assert_int_equal(decode(&b, &r), want);
    assert_int_equal(r.seq, 99);
    buf_fini(&b);
}

static struct span read_file(const char *path, uint8_t *room, size_t cap)
{
    FILE *f = fopen(path, "rb");
    size_t n;

    assert_non_null(f);
    n = fread(room, 1, cap, f);
    fclose(f);
    return span_of(room, n);
}

/* --- encoding --------------------------------------------------------------------------------- */

static void a_record_comes_back_as_it_was(void **state)
{
    struct sample *s = *state;
    struct record r;

    assert_int_equal(decode(&s->bytes, &r), 0);
    assert_same(&r, &s->rec);
}

static void a_key_never_written_has_a_record_too(void **state)
{
    struct record none = {0}, r = {.seq = 1};
    struct buf b = {0};

    (void)state;
    record_encode(&b, span_str(SAMPLE_KEY), &none);
    assert_int_equal(decode(&b, &r), 0);
    assert_same(&r, &none);
    assert_false(record_is_live(&r));
    buf_fini(&b);
}

static void a_tombstone_is_not_live(void **state)
{
    struct record dead = {.version = {7, 1},
                          .flags = RECORD_TOMBSTONE,
                          .seq = 2,
                          .n_recent = 2,
                          .recent = {4, 5}},
                  r;
    struct buf b = {0};

    (void)state;
    record_encode(&b, span_str(SAMPLE_KEY), &dead);
    assert_int_equal(decode(&b, &r), 0);
    assert_same(&r, &dead);
    assert_false(record_is_live(&r));
    buf_fini(&b);
}

static void any_record_comes_back_behind_any_bytes(void **state)
{
    static const uint64_t sizes[] = {
        0, 1, CHUNK_SIZE - 1, CHUNK_SIZE, CHUNK_SIZE + 1, 70ull * CHUNK_SIZE};
    struct rng rng = {1};

    (void)state;
    for (unsigned round = 0; round < 300; round++) {
        struct buf attrs = {0}, sums = {0}, b = {0};
        uint8_t key[40], value[64];
        struct span k = span_of(key, rng_between(&rng, 1, sizeof(key)));
        struct record r = {.version = {rng_next(&rng), rng_next(&rng)}, .seq = rng_next(&rng)}, got;
        size_t before = rng_below(&rng, 20);

        for (size_t i = 0; i < k.len; i++)
            key[i] = (uint8_t)rng_next(&rng);
        for (size_t i = 0; i < sizeof(value); i++)
            value[i] = (uint8_t)rng_next(&rng);
        for (unsigned n = (unsigned)rng_below(&rng, 4); n > 0; n--)
            attr_add(&attrs, ATTR_XATTR, span_str("user.n"),
                     span_of(value, rng_below(&rng, sizeof(value))));
        r.size = sizes[rng_below(&rng, 6)];
        for (uint64_t n = record_n_chunks(r.size); n > 0; n--)
            buf_u64(&sums, rng_next(&rng));
        r.n_recent = (uint8_t)rng_below(&rng, RECENT_MAX + 1);
        for (unsigned i = 0; i < r.n_recent; i++)
            r.recent[i] = rng_next(&rng);
        r.mtime_ns = (int64_t)rng_next(&rng);
        r.attrs = buf_span(&attrs);
        r.sums = buf_span(&sums);
        for (size_t i = 0; i < before; i++)
            buf_u8(&b, 0xee);
        record_encode(&b, k, &r);
        assert_int_equal(b.err, 0);
        assert_int_equal(record_decode(span_of(b.data + before, b.len - before), k, &got), 0);
        assert_same(&got, &r);
        buf_fini(&attrs);
        buf_fini(&sums);
        buf_fini(&b);
    }
}

/*
 * If this fails, the format has changed: that needs a new version and a sample of it, and the old
 * sample must still be read.
 */
static void the_first_format_is_still_written_and_read(void **state)
{
    struct sample *s = *state;
    uint8_t room[4096];
    struct span golden = read_file(GOLDEN_V1, room, sizeof(room));
    struct record r;

    assert_int_equal(record_decode(golden, span_str(SAMPLE_KEY), &r), 0);
    assert_same(&r, &s->rec);
    assert_span(golden, buf_span(&s->bytes));
}

/* --- damage ----------------------------------------------------------------------------------- */

static void every_flipped_bit_is_found(void **state)
{
    struct sample *s = *state;
    struct record r;

    for (size_t bit = 0; bit < 8 * s->bytes.len; bit++) {
        s->bytes.data[bit / 8] ^= (uint8_t)(1u << bit % 8);
        assert_int_equal(decode(&s->bytes, &r), -EBADMSG);
        s->bytes.data[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    assert_int_equal(decode(&s->bytes, &r), 0);
}

static void every_cut_and_every_addition_is_found(void **state)
{
    struct sample *s = *state;
    struct record r;

    for (size_t len = 0; len < s->bytes.len; len++)
        assert_int_equal(record_decode(span_of(s->bytes.data, len), span_str(SAMPLE_KEY), &r),
                         -EBADMSG);
    buf_u8(&s->bytes, 0);
    assert_int_equal(decode(&s->bytes, &r), -EBADMSG);
    reseal(&s->bytes, SAMPLE_KEY);
    assert_int_equal(decode(&s->bytes, &r), -EBADMSG);
}

static void a_record_of_another_key_is_damage(void **state)
{
    struct sample *s = *state;
    struct record r;

    assert_int_equal(record_decode(buf_span(&s->bytes), span_str("user:43"), &r), -EBADMSG);
    assert_int_equal(record_decode(buf_span(&s->bytes), span_str("user:4"), &r), -EBADMSG);
    assert_int_equal(record_decode(buf_span(&s->bytes), span_str(""), &r), -EBADMSG);
}

static void a_record_from_the_future_is_not_damage(void **state)
{
    assert_refused(*state, AT_FORMAT, "\2", 1, -EPROTO);
    assert_refused(*state, AT_FORMAT, "\377", 1, -EPROTO);
    assert_refused(*state, AT_FORMAT, "\0", 1, -EBADMSG);
}

static void impossible_fields_are_refused(void **state)
{
    static const uint8_t none[16];

    assert_refused(*state, 0, "KVX", 3, -EBADMSG);
    assert_refused(*state, AT_FLAGS, "\2", 1, -EBADMSG);      /* an unknown flag */
    assert_refused(*state, AT_FLAGS, "\1", 1, -EBADMSG);      /* a tombstone with a value */
    assert_refused(*state, AT_FLAGS + 4, none, 16, -EBADMSG); /* written under no version */
    assert_refused(*state, AT_SIZE, "\0", 1, -EBADMSG);       /* a sum of no chunk */
    assert_refused(*state, AT_SIZE + 2, "\x20", 1, -EBADMSG); /* a chunk of no sum */
    assert_refused(*state, AT_SIZE + 7, "\x80", 1, -EBADMSG); /* over any limit */
    assert_refused(*state, AT_N_RECENT, "\11", 1, -EBADMSG);  /* nine ids */
    assert_refused(*state, AT_N_RECENT, "\2", 1, -EBADMSG);   /* an id that is read as lengths */
    assert_refused(*state, AT_N_RECENT + 25, "\xff\xff\xff\xff", 4,
                   -EBADMSG);                                    /* attributes beyond the end */
    assert_refused(*state, AT_N_RECENT + 29, "\3", 1, -EBADMSG); /* an unknown kind of attribute */
    assert_refused(*state, AT_N_RECENT + 30, "\1", 1, -EBADMSG); /* a content type with a name */
}

/* --- values ----------------------------------------------------------------------------------- */

static void a_value_is_verified_in_whole_chunks(void **state)
{
    static const size_t sizes[] = {
        0, 1, CHUNK_SIZE - 1, CHUNK_SIZE, CHUNK_SIZE + 1, 2 * CHUNK_SIZE, 2 * CHUNK_SIZE + 77};
    uint8_t *value = calloc(1, 3 * CHUNK_SIZE);

    (void)state;
    for (size_t i = 0; i < 2 * CHUNK_SIZE + 77; i++)
        value[i] = (uint8_t)(i * 31 + i / 977);
    for (unsigned i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        struct record r = {.version = {1, 1}, .size = sizes[i]};
        size_t last = sizes[i] / CHUNK_SIZE * CHUNK_SIZE;
        struct buf sums = {0};

        record_sums(&sums, span_of(value, sizes[i]));
        assert_int_equal(sums.len, 8 * record_n_chunks(sizes[i]));
        r.sums = buf_span(&sums);
        assert_int_equal(record_verify(&r, 0, span_of(value, sizes[i])), 0);
        for (size_t off = 0; off + CHUNK_SIZE <= sizes[i]; off += CHUNK_SIZE)
            assert_int_equal(record_verify(&r, off, span_of(value + off, CHUNK_SIZE)), 0);
        assert_int_equal(record_verify(&r, last, span_of(value + last, sizes[i] - last)), 0);
        assert_int_equal(record_verify(&r, 0, span_of(value, sizes[i] + 1)), -EINVAL);
        assert_int_equal(record_verify(&r, 1, span_of(value, 0)), -EINVAL);
        assert_int_equal(record_verify(&r, last + CHUNK_SIZE, span_of(value, 0)), -EINVAL);
        if (sizes[i] > 1)
            assert_int_equal(record_verify(&r, 0, span_of(value, 1)), -EINVAL);
        if (sizes[i] > 0) {
            value[sizes[i] - 1] ^= 1;
            assert_int_equal(record_verify(&r, 0, span_of(value, sizes[i])), -EBADMSG);
            value[sizes[i] - 1] ^= 1;
        }
        buf_fini(&sums);
    }
    free(value);
}

static void chunks_in_each_others_place_are_found(void **state)
{
    uint8_t *value = calloc(2, CHUNK_SIZE);
    struct record r = {.version = {1, 1}, .size = 2 * CHUNK_SIZE};
    struct buf sums = {0};

    (void)state;
    value[0] = 1;
    record_sums(&sums, span_of(value, 2 * CHUNK_SIZE));
    r.sums = buf_span(&sums);
    assert_int_equal(record_verify(&r, CHUNK_SIZE, span_of(value, CHUNK_SIZE)), -EBADMSG);
    assert_int_equal(record_verify(&r, 0, span_of(value + CHUNK_SIZE, CHUNK_SIZE)), -EBADMSG);
    buf_fini(&sums);
    free(value);
}

static void the_largest_value_has_a_record_and_a_larger_one_has_none(void **state)
{
    const size_t n = 8 * (VALUE_SIZE_LIMIT / CHUNK_SIZE);
    uint8_t *sums = calloc(1, n + 8);
    struct record r = {.version = {1, 1}, .size = VALUE_SIZE_LIMIT, .sums = span_of(sums, n)}, got;
    struct buf b = {0};

    (void)state;
    record_encode(&b, span_str(SAMPLE_KEY), &r);
    assert_true(b.len <= RECORD_LEN_MAX);
    assert_int_equal(decode(&b, &got), 0);
    assert_same(&got, &r);
    put_u64(b.data + AT_SIZE, VALUE_SIZE_LIMIT + 1); /* by hand, for encoding it is a bug */
    b.len = AT_N_RECENT + 5;
    buf_bytes32(&b, span_of(sums, n + 8));
    buf_u64(&b, 0);
    reseal(&b, SAMPLE_KEY);
    assert_int_equal(decode(&b, &got), -EBADMSG);
    buf_fini(&b);
    free(sums);
}

static void a_copy_outlives_what_it_was_made_from(void **state)
{
    struct sample *s = *state;
    struct record_copy copy = {0};
    struct record r;

    assert_int_equal(decode(&s->bytes, &r), 0);
    assert_int_equal(record_copy(&r, &copy), 0);
    assert_same(&copy.rec, &s->rec);
    memset(s->bytes.data, 0xdd, s->bytes.len);
    assert_same(&copy.rec, &s->rec);
    record_copy_fini(&copy);
    assert_null(copy.own.data);
    assert_int_equal(copy.rec.seq, 0);
    assert_int_equal(record_copy(&(struct record){0}, &copy), 0);
    record_copy_fini(&copy);
}

/* --- attributes ------------------------------------------------------------------------------- */

static void attributes_are_found_by_kind_and_name(void **state)
{
    struct sample *s = *state;
    struct span list = s->rec.attrs, v;

    assert_int_equal(attr_find(list, ATTR_CONTENT_TYPE, span_str(""), &v), 0);
    assert_span(v, span_str("text/plain"));
    assert_int_equal(attr_find(list, ATTR_XATTR, span_str("user.empty"), &v), 0);
    assert_span(v, span_str(""));
    assert_int_equal(attr_find(list, ATTR_XATTR, span_str("user.bytes"), &v), 0);
    assert_span(v, span_of("\0\xff/%", 4));
    assert_int_equal(attr_find(list, ATTR_XATTR, span_str("user.byte"), &v), -ENODATA);
    assert_int_equal(attr_find(list, ATTR_XATTR, span_str(""), &v), -ENODATA);
    assert_int_equal(attr_find(span_str(""), ATTR_XATTR, span_str("user.x"), &v), -ENODATA);
}

static void attributes_of_the_largest_size_fit_and_larger_lists_are_refused(void **state)
{
    uint8_t *zeros = calloc(1, ATTR_VALUE_LEN_MAX);
    char name[ATTR_NAME_LEN_MAX];
    struct record r = {.version = {1, 1}}, got;
    struct buf list = {0}, b = {0};

    (void)state;
    memset(name, 'n', sizeof(name));
    attr_add(&list, ATTR_XATTR, span_of(name, sizeof(name)), span_of(zeros, ATTR_VALUE_LEN_MAX));
    r.attrs = buf_span(&list);
    record_encode(&b, span_str(SAMPLE_KEY), &r);
    assert_int_equal(decode(&b, &got), 0);
    assert_same(&got, &r);

    /* The same with a list that is too long, put in by hand, for encoding it is a bug. */
    attr_add(&list, ATTR_XATTR, span_of(name, sizeof(name)), span_of(zeros, ATTR_VALUE_LEN_MAX));
    assert_true(list.len > ATTRS_LEN_MAX);
    b.len = AT_N_RECENT + 1;
    buf_bytes32(&b, buf_span(&list));
    buf_u32(&b, 0);
    buf_u64(&b, 0);
    reseal(&b, SAMPLE_KEY);
    assert_int_equal(decode(&b, &got), -EBADMSG);
    buf_fini(&list);
    buf_fini(&b);
    free(zeros);
}

static void an_attribute_over_the_limit_is_refused(void **state)
{
    uint8_t *zeros = calloc(1, ATTR_VALUE_LEN_MAX + 1);
    struct buf list = {0};
    struct span v;

    (void)state;
    buf_add(&list, "\2\1n", 3);
    buf_bytes32(&list, span_of(zeros, ATTR_VALUE_LEN_MAX + 1));
    assert_int_equal(attr_find(buf_span(&list), ATTR_XATTR, span_str("n"), &v), -EBADMSG);
    buf_fini(&list);
    free(zeros);
}

static void a_damaged_list_of_attributes_is_told_from_its_end(void **state)
{
    static const struct {
        const char *bytes;
        size_t len;
    } bad[] = {
        {"\2", 1},              /* nothing behind the kind */
        {"\2\1", 2},            /* no name */
        {"\2\1n\1\0\0", 6},     /* half a length */
        {"\2\1n\2\0\0\0v", 8},  /* half a value */
        {"\2\0\0\0\0\0", 6},    /* an xattr without a name */
        {"\2\1\0\0\0\0\0", 7},  /* a NUL in a name */
        {"\1\1n\0\0\0\0", 7},   /* a content type with one */
        {"\0\1n\0\0\0\0", 7},   /* kind 0 */
        {"\2\1n\0\0\0\0\2", 8}, /* a good one, then rubbish */
    };

    (void)state;
    for (unsigned i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct span list = span_of(bad[i].bytes, bad[i].len), v;

        assert_int_equal(attr_find(list, ATTR_XATTR, span_str("absent"), &v), -EBADMSG);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_record_comes_back_as_it_was, setup, teardown),
        cmocka_unit_test(a_key_never_written_has_a_record_too),
        cmocka_unit_test(a_tombstone_is_not_live),
        cmocka_unit_test(any_record_comes_back_behind_any_bytes),
        cmocka_unit_test_setup_teardown(the_first_format_is_still_written_and_read, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(every_flipped_bit_is_found, setup, teardown),
        cmocka_unit_test_setup_teardown(every_cut_and_every_addition_is_found, setup, teardown),
        cmocka_unit_test_setup_teardown(a_record_of_another_key_is_damage, setup, teardown),
        cmocka_unit_test_setup_teardown(a_record_from_the_future_is_not_damage, setup, teardown),
        cmocka_unit_test_setup_teardown(impossible_fields_are_refused, setup, teardown),
        cmocka_unit_test(a_value_is_verified_in_whole_chunks),
        cmocka_unit_test(chunks_in_each_others_place_are_found),
        cmocka_unit_test(the_largest_value_has_a_record_and_a_larger_one_has_none),
        cmocka_unit_test_setup_teardown(a_copy_outlives_what_it_was_made_from, setup, teardown),
        cmocka_unit_test_setup_teardown(attributes_are_found_by_kind_and_name, setup, teardown),
        cmocka_unit_test(attributes_of_the_largest_size_fit_and_larger_lists_are_refused),
        cmocka_unit_test(an_attribute_over_the_limit_is_refused),
        cmocka_unit_test(a_damaged_list_of_attributes_is_told_from_its_end),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

/*
 * fuzz_record.c - any bytes as a record: rejected, or exactly what encoding gives back.
 *
 * Input: how (1: with the right checksum), key length, key, the record.
 */
#include "tests/fuzz/fuzz.h"

#include <errno.h>
#include <string.h>

#include "common/record.h"
#include "tests/fuzz/sums.h"

/* Every attribute of a list can be found, and a list built of them is the same list. */
static void claim_attrs(struct span attrs)
{
    struct buf again = {0};
    enum attr_kind kind;
    struct span name, value, found;
    size_t pos = 0;
    int more;

    while ((more = attr_next(attrs, &pos, &kind, &name, &value)) == 1) {
        CLAIM(attr_find(attrs, kind, name, &found) == 0);
        attr_add(&again, kind, name, value);
    }
    CLAIM(more == 0 && pos == attrs.len);
    CLAIM(span_eq(buf_span(&again), attrs));
    buf_fini(&again);
}

static void claim_copy(const struct record *r, struct span key, struct span bytes)
{
    struct record_copy copy = {0};
    struct buf again = {0};

    CLAIM(record_copy(r, &copy) == 0);
    record_encode(&again, key, &copy.rec);
    CLAIM(span_eq(buf_span(&again), bytes));
    record_copy_fini(&copy);
    buf_fini(&again);
}

/* Asking for parts of the value, right and wrong, stays within the sums. */
static void claim_verify(const struct record *r)
{
    static const uint8_t nothing[64];
    const uint64_t offsets[] = {
        0,         1, CHUNK_SIZE, r->size, r->size - r->size % CHUNK_SIZE, r->size + CHUNK_SIZE,
        UINT64_MAX};

    CLAIM(record_n_chunks(r->size) * 8 == r->sums.len);
    for (size_t i = 0; i < sizeof offsets / sizeof offsets[0]; i++)
        for (size_t len = 0; len <= sizeof nothing; len += 32) {
            int err = record_verify(r, offsets[i], span_of(nothing, len));

            CLAIM(err == 0 || err == -EBADMSG || err == -EINVAL);
            CLAIM(err == -EINVAL || offsets[i] + len <= r->size);
        }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct input in = {data, size};
    unsigned how = input_u8(&in);
    struct span key = input_bytes(&in, input_u8(&in)), rest = input_rest(&in);
    struct buf bytes = {0}, other = {0};
    struct record r = {0}, untouched = {0};
    int err;

    buf_add_span(&bytes, rest);
    if (how & 1)
        sums_record(bytes.data, bytes.len, key);
    err = record_decode(buf_span(&bytes), key, &r);
    CLAIM(err == 0 || err == -EBADMSG || err == -EPROTO);
    if (err < 0) {
        CLAIM(memcmp(&r, &untouched, sizeof r) == 0);
    } else {
        claim_attrs(r.attrs);
        claim_copy(&r, key, buf_span(&bytes));
        claim_verify(&r);
        CLAIM(r.n_recent <= RECENT_MAX && r.size <= VALUE_SIZE_LIMIT);
        /* Not under another key, not cut, not longer. */
        buf_add_span(&other, key);
        buf_u8(&other, 'x');
        CLAIM(record_decode(buf_span(&bytes), buf_span(&other), &r) == -EBADMSG);
        CLAIM(record_decode(span_of(bytes.data, bytes.len - 1), key, &r) == -EBADMSG);
        buf_u8(&bytes, 0);
        CLAIM(record_decode(buf_span(&bytes), key, &r) == -EBADMSG);
    }
    buf_fini(&bytes);
    buf_fini(&other);
    return 0;
}

/* sums.c - puts the right checksums into bytes that are to look like a record or a message. */
#include "tests/fuzz/sums.h"

#include <string.h>

#include "common/hash.h"
#include "common/message.h"

#define SUM_LEN 8u
#define FIXED_LEN 8u        /* of a head: magic, version, length */
#define ENTRY_FIXED_LEN 76u /* of an entry behind its key: prefix_len to atime, without the sum */

static void put_le(uint8_t *at, uint64_t v, unsigned n)
{
    for (unsigned i = 0; i < n; i++)
        at[i] = (uint8_t)(v >> (8 * i));
}

static uint64_t get_le(const uint8_t *at, unsigned n)
{
    uint64_t v = 0;

    for (unsigned i = 0; i < n; i++)
        v |= (uint64_t)at[i] << (8 * i);
    return v;
}

void sums_record(uint8_t *data, size_t len, struct span key)
{
    uint8_t both[16];

    if (len < SUM_LEN)
        return;
    put_le(both, hash_xxh3(key), 8);
    put_le(both + 8, hash_xxh3(span_of(data, len - SUM_LEN)), 8);
    put_le(data + len - SUM_LEN, hash_xxh3(span_of(both, sizeof both)), 8);
}

/* The length of the entry at the start of data, 0: it does not fit. */
static size_t sum_entry(uint8_t *data, size_t len)
{
    size_t key_len = len >= 2 ? get_le(data, 2) : 0, at = 2 + key_len + ENTRY_FIXED_LEN;

    if (len < at + 4)
        return 0;
    put_le(data + at, hash_xxh3(span_of(data, at)), 4);
    return at + 4;
}

void sums_entries(uint8_t *data, size_t len)
{
    size_t n;

    while ((n = sum_entry(data, len)) > 0) {
        data += n;
        len -= n;
    }
}

/* A record behind its u32 length, at `at`. Where it ends; len: it does not fit. */
static size_t sum_record_at(uint8_t *data, size_t at, size_t len, struct span key)
{
    size_t n;

    if (at > len || len - at < 4)
        return len;
    n = get_le(data + at, 4);
    at += 4;
    if (n > len - at)
        return len;
    sums_record(data + at, n, key);
    return at + n;
}

/* The length of the head, made possible; 0: there is not even room for one. */
static size_t head_len(uint8_t *data, size_t len)
{
    size_t n;

    if (len < FIXED_LEN + SUM_LEN)
        return 0;
    n = get_le(data + 4, 4);
    if (n < FIXED_LEN + SUM_LEN || n > len) {
        n = len;
        put_le(data + 4, n, 4);
    }
    return n;
}

static void sum_head(uint8_t *data, size_t n)
{
    put_le(data + n - SUM_LEN, hash_xxh3(span_of(data, n - SUM_LEN)), 8);
}

void sums_request(uint8_t *data, size_t len)
{
    size_t n = head_len(data, len), end = n - SUM_LEN, key_len, at = 35;

    if (n == 0)
        return;
    if (end >= at && data[8] == MSG_ACCEPT) {
        key_len = get_le(data + 33, 2);
        if (key_len <= end - at) {
            at += key_len;
            if (data[9] & MSG_SAME_VALUE)
                at += 16;
            (void)sum_record_at(data, at, end, span_of(data + 35, key_len));
        }
    }
    sum_head(data, n);
}

void sums_answer(uint8_t *data, size_t len, struct span key)
{
    size_t n = head_len(data, len), end = n - SUM_LEN, at = 29;

    if (n == 0)
        return;
    if (end >= at && (data[8] == ANS_PROMISE || data[8] == ANS_STATE)) {
        size_t n_known = get_le(data + 25, 4);

        at = n_known <= (end - at) / 12 ? sum_record_at(data, at + 12 * n_known, end, key) : end;
        if (end - at > 10) /* has_value, value_offset, has_peek, and then an entry */
            (void)sum_entry(data + at + 10, end - at - 10);
    }
    sum_head(data, n);
    if (n < len && (data[8] == ANS_LIST || data[8] == ANS_KEYS))
        sums_entries(data + n, len - n);
}

/*
 * fuzz_message.c - any bytes as a replica request, an answer or entries of a listing: rejected, or
 * exactly what encoding gives back.
 *
 * Input: how (1: with the right checksums), what (0 request, 1 answer, 2 entries), key length and
 * key (of an answer), the bytes.
 */
#include "tests/fuzz/fuzz.h"

#include <errno.h>
#include <string.h>

#include "common/message.h"
#include "tests/fuzz/sums.h"

static void claim_error(int err, size_t head_len, size_t len)
{
    CLAIM(err == -EAGAIN || err == -EBADMSG || err == -EPROTO || err == -EFBIG);
    if (err == -EAGAIN)
        CLAIM(head_len == 0 || (head_len > len && head_len <= MESSAGE_HEAD_MAX));
}

static void try_request(struct buf *bytes)
{
    struct buf again = {0};
    struct message m;
    size_t head_len = 0, cut_len = 0;
    int err = message_decode(buf_span(bytes), &m, &head_len);

    if (err < 0) {
        claim_error(err, head_len, bytes->len);
        return;
    }
    CLAIM(head_len <= bytes->len);
    message_encode(&again, &m);
    CLAIM(again.err == 0);
    CLAIM(span_eq(buf_span(&again), span_of(bytes->data, head_len)));
    /* A part of it is never the whole. */
    for (size_t n = 0; n < head_len; n += 1 + n / 16)
        CLAIM(message_decode(span_of(bytes->data, n), &m, &cut_len) == -EAGAIN);
    buf_fini(&again);
}

static void try_answer(struct buf *bytes, struct span key)
{
    struct buf again = {0};
    struct answer a;
    size_t head_len = 0, cut_len = 0;
    int err = answer_decode(buf_span(bytes), key, &a, &head_len);

    if (err < 0) {
        claim_error(err, head_len, bytes->len);
        return;
    }
    CLAIM(head_len <= bytes->len);
    answer_encode(&again, key, &a);
    CLAIM(again.err == 0);
    CLAIM(span_eq(buf_span(&again), span_of(bytes->data, head_len)));
    for (uint32_t i = 0; i < a.n_known; i++) {
        uint32_t node;
        uint64_t incarnation;

        answer_known(&a, i, &node, &incarnation);
    }
    for (size_t n = 0; n < head_len; n += 1 + n / 16)
        CLAIM(answer_decode(span_of(bytes->data, n), key, &a, &cut_len) == -EAGAIN);
    buf_fini(&again);
}

static void try_entries(struct buf *bytes)
{
    struct cursor c = cursor_of(buf_span(bytes));
    struct buf again = {0};
    struct entry e;
    int more;

    while ((more = entry_next(&c, &e)) == 1) {
        CLAIM(e.prefix_len <= e.key.len);
        entry_encode(&again, &e);
    }
    CLAIM(more == 0 || more == -EBADMSG);
    CLAIM(again.len <= bytes->len);
    CLAIM(span_eq(buf_span(&again), span_of(bytes->data, again.len)));
    CLAIM(more < 0 || again.len == bytes->len);
    if (more < 0) /* and so it stays */
        CLAIM(entry_next(&c, &e) == -EBADMSG);
    buf_fini(&again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct input in = {data, size};
    unsigned how = input_u8(&in), what = input_pick(&in, 3);
    struct span key = input_bytes(&in, input_u8(&in)), rest = input_rest(&in);
    struct buf bytes = {0};

    buf_add_span(&bytes, rest);
    if (how & 1) {
        if (what == 0)
            sums_request(bytes.data, bytes.len);
        else if (what == 1)
            sums_answer(bytes.data, bytes.len, key);
        else
            sums_entries(bytes.data, bytes.len);
    }
    if (what == 0)
        try_request(&bytes);
    else if (what == 1)
        try_answer(&bytes, key);
    else
        try_entries(&bytes);
    buf_fini(&bytes);
    return 0;
}

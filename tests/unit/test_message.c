/* test_message.c - replica requests and answers come back whole, and never when damaged. */
#include "common/message.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/hash.h"
#include "tests/lib/rng.h"

#define KEY "dir/a b"
#define N_REQUESTS 15u
#define N_ANSWERS 15u
/* Where fields of the frame stand, as docs/protocol.md tables them. */
#define AT_FORMAT 3u
#define AT_LEN 4u
#define AT_KIND 8u
#define AT_FLAGS 9u /* of a request */
#define AT_KEY 35u  /* of a request: its bytes */

/* --- fixture: one of each kind ---------------------------------------------------------------- */

struct world {
    struct buf attrs, sums, known, digests, buckets;
    struct record rec, none;
    struct message requests[N_REQUESTS];
    struct answer answers[N_ANSWERS];
};

static void make_requests(struct world *w)
{
    const struct message base = {
        .ring = 0x1122334455667788, .budget_ms = 5000, .deadline_ms = 123456789012};
    struct message *m = w->requests;

    for (unsigned i = 0; i < N_REQUESTS; i++) {
        m[i] = base;
        m[i].key = span_str(KEY);
    }
    m[0].kind = MSG_PREPARE;
    m[0].ballot = (struct ballot){7, 8};
    m[0].length = INLINE_VALUE_MAX;
    m[1] = m[0];
    m[1].flags = MSG_WANT_VALUE;
    m[2].kind = MSG_ACCEPT;
    m[2].record = w->rec;
    m[3] = m[2];
    m[3].flags = MSG_SAME_VALUE;
    m[3].pin = (struct ballot){5, 6};
    m[4].kind = MSG_READ;
    m[5] = m[4];
    m[5].flags = MSG_WANT_VALUE | MSG_PEEK;
    m[5].pin = (struct ballot){5, 6};
    m[5].offset = CHUNK_SIZE;
    m[5].length = UINT64_MAX;
    m[6].kind = MSG_LIST;
    m[6].flags = MSG_DELIMITER;
    m[6].key = span_str("dir/");
    m[6].start_after = span_of("dir/\0\xff", 6);
    m[6].limit = LIST_LIMIT_MAX;
    m[7].kind = MSG_LIST;
    m[7].key = span_str("");
    m[7].limit = 1;
    m[8].kind = MSG_HELLO;
    m[8].key = span_str("");
    m[8].node = MESSAGE_NODE_NONE;
    m[8].incarnation = 42;
    m[8].recovering = NODE_RECOVERING;
    m[9] = m[2];
    m[9].flags = MSG_RESTORE;
    m[10].kind = MSG_DIGEST;
    m[10].key = span_str("");
    m[10].node = 3;
    m[10].group = MESSAGE_GROUP_NONE;
    m[10].digest = 0x99aabbccddeeff00;
    m[11] = m[10];
    m[11].group = DIGEST_GROUPS - 1;
    m[12].kind = MSG_KEYS;
    m[12].key = span_str("");
    m[12].node = 3;
    m[12].limit = 1;
    m[13] = m[12];
    m[13].buckets = buf_span(&w->buckets);
    m[13].start_after = span_of("dir/\0\xff", 6);
    m[13].limit = LIST_LIMIT_MAX;
    m[14].kind = MSG_DROP;
    m[14].ballot = (struct ballot){7, 8};
}

static void make_answers(struct world *w)
{
    struct answer *a = w->answers;

    for (unsigned i = 0; i < N_ANSWERS; i++)
        a[i] = (struct answer){
            .clock_ms = 77, .incarnation = 78, .n_known = 2, .known = buf_span(&w->known)};
    a[0].kind = ANS_PROMISE;
    a[0].record = w->rec;
    a[1] = a[0];
    a[1].has_value = true;
    a[2].kind = ANS_PROMISE; /* of a key never written */
    a[3].kind = ANS_REFUSE;
    a[3].ballot = (struct ballot){9, UINT64_MAX};
    a[4].kind = ANS_ACCEPTED;
    a[4].n_known = 0;
    a[4].known = span_str("");
    a[5].kind = ANS_STATE;
    a[5].record = w->rec;
    a[5].has_value = true;
    a[5].value_offset = CHUNK_SIZE;
    a[6] = a[5];
    a[6].has_peek = true;
    entry_of_record(&a[6].peek, span_str(KEY "/child"), &w->rec);
    a[7].kind = ANS_NEED_VALUE;
    a[8].kind = ANS_LIST;
    a[8].more = true;
    a[8].n_entries = 3;
    a[9].kind = ANS_HELLO;
    a[9].floor = 1;
    a[9].disk_free = 2;
    a[9].disk_total = 3;
    a[9].n_keys = 4;
    a[9].n_bytes = 5;
    a[9].recovering = NODE_COFOUNDER;
    a[9].store = span_str("rocksdb");
    a[9].ailment = span_str("Input/output error");
    a[10].kind = ANS_ERROR;
    a[10].status = 421;
    a[10].text = span_str("not a replica");
    a[11].kind = ANS_DIGEST;
    a[11].same = true;
    a[12].kind = ANS_DIGEST;
    a[12].n_digests = DIGEST_GROUPS;
    a[12].digests = buf_span(&w->digests);
    a[13].kind = ANS_KEYS;
    a[13].n_entries = 2;
    a[14].kind = ANS_KEYS;
    a[14].more = true;
    a[14].next = span_str("where it goes on");
}

static int setup(void **state)
{
    struct world *w = calloc(1, sizeof(*w));

    attr_add(&w->attrs, ATTR_CONTENT_TYPE, span_str(""), span_str("text/html"));
    buf_u64(&w->sums, 1);
    buf_u64(&w->sums, 2);
    for (unsigned i = 0; i < DIGEST_GROUPS; i++)
        buf_u64(&w->digests, i * UINT64_C(0x0101010101010101));
    for (unsigned i = 0; i < DIGEST_BUCKETS / 8; i++)
        buf_u8(&w->buckets, (uint8_t)(7 * i));
    answer_add_known(&w->known, 0, 0xaaaa);
    answer_add_known(&w->known, 7, UINT64_MAX);
    w->rec = (struct record){
        .version = {1000, 2000},
        .seq = 1,
        .n_recent = 1,
        .recent = {99},
        .size = CHUNK_SIZE + 5,
        .mode = 0100600,
        .uid = 1,
        .gid = 2,
        .rdev = 3,
        .mtime_ns = -4,
        .ctime_ns = 5,
        .atime_ns = 6,
        .attrs = buf_span(&w->attrs),
        .sums = buf_span(&w->sums),
    };
    make_requests(w);
    make_answers(w);
    *state = w;
    return 0;
}

static int teardown(void **state)
{
    struct world *w = *state;

    buf_fini(&w->attrs);
    buf_fini(&w->sums);
    buf_fini(&w->known);
    buf_fini(&w->digests);
    buf_fini(&w->buckets);
    free(w);
    return 0;
}

/* --- assertions ------------------------------------------------------------------------------- */

static void assert_span(struct span got, struct span want)
{
    assert_true(span_eq(got, want));
}

static void assert_same_record(const struct record *a, const struct record *b)
{
    struct buf x = {0}, y = {0};

    record_encode(&x, span_str(KEY), a);
    record_encode(&y, span_str(KEY), b);
    assert_span(buf_span(&x), buf_span(&y));
    buf_fini(&x);
    buf_fini(&y);
}

static void assert_same_message(const struct message *a, const struct message *b)
{
    assert_int_equal(a->kind, b->kind);
    assert_int_equal(a->flags, b->flags);
    assert_int_equal(a->ring, b->ring);
    assert_int_equal(a->budget_ms, b->budget_ms);
    assert_int_equal(a->deadline_ms, b->deadline_ms);
    assert_span(a->key, b->key);
    assert_int_equal(ballot_cmp(a->ballot, b->ballot), 0);
    assert_int_equal(ballot_cmp(a->pin, b->pin), 0);
    assert_same_record(&a->record, &b->record);
    assert_int_equal(a->offset, b->offset);
    assert_int_equal(a->length, b->length);
    assert_span(a->start_after, b->start_after);
    assert_int_equal(a->limit, b->limit);
    assert_int_equal(a->node, b->node);
    assert_int_equal(a->incarnation, b->incarnation);
    assert_int_equal(a->recovering, b->recovering);
    assert_int_equal(a->group, b->group);
    assert_int_equal(a->digest, b->digest);
    assert_span(a->buckets, b->buckets);
}

static void assert_same_entry(const struct entry *a, const struct entry *b)
{
    assert_span(a->key, b->key);
    assert_int_equal(a->prefix_len, b->prefix_len);
    assert_int_equal(ballot_cmp(a->version, b->version), 0);
    assert_int_equal(a->flags, b->flags);
    assert_int_equal(a->size, b->size);
    assert_int_equal(a->mode, b->mode);
    assert_int_equal(a->uid, b->uid);
    assert_int_equal(a->gid, b->gid);
    assert_int_equal(a->rdev, b->rdev);
    assert_int_equal(a->mtime_ns, b->mtime_ns);
    assert_int_equal(a->ctime_ns, b->ctime_ns);
    assert_int_equal(a->atime_ns, b->atime_ns);
}

static void assert_same_answer(const struct answer *a, const struct answer *b)
{
    assert_int_equal(a->kind, b->kind);
    assert_int_equal(a->clock_ms, b->clock_ms);
    assert_int_equal(a->incarnation, b->incarnation);
    assert_int_equal(a->n_known, b->n_known);
    assert_span(a->known, b->known);
    assert_int_equal(ballot_cmp(a->ballot, b->ballot), 0);
    assert_same_record(&a->record, &b->record);
    assert_int_equal(a->has_value, b->has_value);
    assert_int_equal(a->value_offset, b->value_offset);
    assert_int_equal(a->has_peek, b->has_peek);
    assert_same_entry(&a->peek, &b->peek);
    assert_int_equal(a->n_entries, b->n_entries);
    assert_int_equal(a->more, b->more);
    assert_int_equal(a->floor, b->floor);
    assert_int_equal(a->disk_free, b->disk_free);
    assert_int_equal(a->disk_total, b->disk_total);
    assert_int_equal(a->n_keys, b->n_keys);
    assert_int_equal(a->n_bytes, b->n_bytes);
    assert_int_equal(a->recovering, b->recovering);
    assert_span(a->store, b->store);
    assert_span(a->ailment, b->ailment);
    assert_span(a->next, b->next);
    assert_int_equal(a->same, b->same);
    assert_int_equal(a->n_digests, b->n_digests);
    for (uint32_t i = 0; i < a->n_digests; i++)
        assert_true(answer_digest(a, i) == answer_digest(b, i));
    assert_int_equal(a->status, b->status);
    assert_span(a->text, b->text);
}

/* --- helpers ---------------------------------------------------------------------------------- */

/* Either codec, so that what holds of the frame is tested on both. */
typedef int decode_fn(struct span bytes, size_t *head_len);

static int decode_request(struct span bytes, size_t *head_len)
{
    struct message m;

    return message_decode(bytes, &m, head_len);
}

static int decode_answer(struct span bytes, size_t *head_len)
{
    struct answer a;

    return answer_decode(bytes, span_str(KEY), &a, head_len);
}

/* The i-th head of all there are in the fixture; false behind the last. */
static bool encode_nth(const struct world *w, unsigned i, struct buf *out, decode_fn **decode)
{
    buf_clear(out);
    if (i >= N_REQUESTS + N_ANSWERS)
        return false;
    *decode = i < N_REQUESTS ? decode_request : decode_answer;
    if (i < N_REQUESTS)
        message_encode(out, &w->requests[i]);
    else
        answer_encode(out, span_str(KEY), &w->answers[i - N_REQUESTS]);
    assert_int_equal(out->err, 0);
    return true;
}

static void put_le(uint8_t *at, uint64_t v, unsigned n)
{
    for (unsigned i = 0; i < n; i++)
        at[i] = (uint8_t)(v >> (8 * i));
}

/* Gives a head that was changed on purpose its right length and checksum. */
static void reseal(struct buf *b)
{
    put_le(b->data + AT_LEN, b->len, 4);
    put_le(b->data + b->len - 8, hash_xxh3(span_of(b->data, b->len - 8)), 8);
}

static int decode_resealed(struct buf *b, decode_fn *decode)
{
    size_t head_len;

    reseal(b);
    return decode(buf_span(b), &head_len);
}

/* --- frames ----------------------------------------------------------------------------------- */

static void every_request_comes_back_as_it_was(void **state)
{
    struct world *w = *state;

    for (unsigned i = 0; i < N_REQUESTS; i++) {
        struct buf b = {0};
        struct message m;
        size_t head_len, len;

        message_encode(&b, &w->requests[i]);
        len = b.len;
        buf_add_str(&b, "the value");
        assert_int_equal(message_decode(buf_span(&b), &m, &head_len), 0);
        assert_int_equal(head_len, len);
        assert_same_message(&m, &w->requests[i]);
        buf_fini(&b);
    }
}

static void every_answer_comes_back_as_it_was(void **state)
{
    struct world *w = *state;

    for (unsigned i = 0; i < N_ANSWERS; i++) {
        struct buf b = {0};
        struct answer a;
        size_t head_len, len;

        answer_encode(&b, span_str(KEY), &w->answers[i]);
        len = b.len;
        buf_add_str(&b, "the value");
        assert_int_equal(answer_decode(buf_span(&b), span_str(KEY), &a, &head_len), 0);
        assert_int_equal(head_len, len);
        assert_same_answer(&a, &w->answers[i]);
        buf_fini(&b);
    }
}

static void a_head_that_is_not_whole_asks_for_the_rest(void **state)
{
    struct buf b = {0};
    decode_fn *decode;

    for (unsigned i = 0; encode_nth(*state, i, &b, &decode); i++) {
        for (size_t len = 0; len < b.len; len++) {
            size_t need = 99;

            assert_int_equal(decode(span_of(b.data, len), &need), -EAGAIN);
            assert_int_equal(need, len < 8 ? 0 : b.len);
        }
    }
    buf_fini(&b);
}

static void every_flipped_bit_is_found(void **state)
{
    struct buf b = {0};
    decode_fn *decode;

    for (unsigned i = 0; encode_nth(*state, i, &b, &decode); i++) {
        for (size_t bit = 0; bit < 8 * b.len; bit++) {
            size_t head_len;
            int err;

            b.data[bit / 8] ^= (uint8_t)(1u << bit % 8);
            err = decode(buf_span(&b), &head_len);
            if (bit / 8 < AT_LEN ||
                bit / 8 >=
                    AT_LEN +
                        4) /* a damaged length may also ask for more than there is, or be absurd */
                assert_int_equal(err, -EBADMSG);
            else
                assert_true(err == -EBADMSG || err == -EAGAIN || err == -EFBIG);
            b.data[bit / 8] ^= (uint8_t)(1u << bit % 8);
        }
    }
    buf_fini(&b);
}

static void what_is_no_message_is_refused_at_its_first_wrong_byte(void **state)
{
    size_t head_len;

    (void)state;
    assert_int_equal(decode_request(span_str("P"), &head_len), -EBADMSG);
    assert_int_equal(decode_request(span_str("KVA"), &head_len), -EBADMSG);
    assert_int_equal(decode_answer(span_str("KVM"), &head_len), -EBADMSG);
    assert_int_equal(decode_answer(span_str("KV "), &head_len), -EBADMSG);
}

static void a_head_over_the_limit_is_refused_before_it_is_read(void **state)
{
    uint8_t start[8] = {'K', 'V', 'M', 1};
    size_t head_len;

    (void)state;
    put_le(start + AT_LEN, MESSAGE_HEAD_MAX + 1, 4);
    assert_int_equal(decode_request(span_of(start, 8), &head_len), -EFBIG);
    put_le(start + AT_LEN, MESSAGE_HEAD_MAX, 4);
    assert_int_equal(decode_request(span_of(start, 8), &head_len), -EAGAIN);
    put_le(start + AT_LEN, 15, 4);
    assert_int_equal(decode_request(span_of(start, 8), &head_len), -EBADMSG);
}

static void a_message_from_the_future_is_not_damage(void **state)
{
    struct buf b = {0};
    decode_fn *decode;

    for (unsigned i = 0; encode_nth(*state, i, &b, &decode); i++) {
        b.data[AT_FORMAT] = 2;
        assert_int_equal(decode_resealed(&b, decode), -EPROTO);
        b.data[AT_FORMAT] = 0;
        assert_int_equal(decode_resealed(&b, decode), -EBADMSG);
    }
    buf_fini(&b);
}

static void unknown_kinds_and_bytes_too_many_are_refused(void **state)
{
    struct buf b = {0};
    decode_fn *decode;

    for (unsigned i = 0; encode_nth(*state, i, &b, &decode); i++) {
        uint8_t kind = b.data[AT_KIND];

        b.data[AT_KIND] = 0;
        assert_int_equal(decode_resealed(&b, decode), -EBADMSG);
        b.data[AT_KIND] = 200;
        assert_int_equal(decode_resealed(&b, decode), -EBADMSG);
        b.data[AT_KIND] = kind;
        assert_int_equal(decode_resealed(&b, decode), 0);
        buf_u8(&b, 0);
        assert_int_equal(decode_resealed(&b, decode), -EBADMSG);
    }
    /* Neither is an unknown kind with no fields of its own. */
    message_encode(&b, &((struct world *)*state)->requests[8]);
    b.data[AT_KIND] = 200;
    b.len = AT_KEY + 8;
    assert_int_equal(decode_resealed(&b, decode_request), -EBADMSG);
    buf_fini(&b);
}

/* --- fields that cannot be -------------------------------------------------------------------- */

static void flags_of_another_kind_are_refused(void **state)
{
    struct world *w = *state;
    static const uint32_t allowed[] = {
        [MSG_PREPARE] = MSG_WANT_VALUE,
        [MSG_READ] = MSG_WANT_VALUE | MSG_PEEK,
        [MSG_LIST] = MSG_DELIMITER,
        [MSG_HELLO] = 0,
        [MSG_DIGEST] = 0,
        [MSG_KEYS] = 0,
        [MSG_DROP] = 0,
    };

    for (unsigned i = 0; i < N_REQUESTS; i++) {
        enum message_kind kind = w->requests[i].kind;
        struct buf b = {0};

        if (kind == MSG_ACCEPT) /* its flag changes the fields */
            continue;
        message_encode(&b, &w->requests[i]);
        for (unsigned bit = 0; bit < 32; bit++) {
            put_le(b.data + AT_FLAGS, 1u << bit, 4);
            assert_int_equal(decode_resealed(&b, decode_request),
                             1u << bit & allowed[kind] ? 0 : -EBADMSG);
        }
        buf_fini(&b);
    }
}

static void keys_that_are_none_are_refused(void **state)
{
    struct world *w = *state;
    struct buf b = {0};

    message_encode(&b, &w->requests[0]);
    b.data[AT_KEY] = 0;
    assert_int_equal(decode_resealed(&b, decode_request), -EBADMSG);

    /* A PREPARE of the empty key, put together by hand. */
    b.len = AT_KEY;
    put_le(b.data + AT_KEY - 2, 0, 2);
    buf_u64(&b, 1);
    buf_u64(&b, 1);
    buf_u64(&b, 0);
    assert_int_equal(decode_resealed(&b, decode_request), -EBADMSG);
    buf_fini(&b);
}

static void lists_of_no_length_are_refused(void **state)
{
    struct world *w = *state;
    struct buf b = {0};

    message_encode(&b, &w->requests[7]);
    put_le(b.data + b.len - 12, 0, 4);
    assert_int_equal(decode_resealed(&b, decode_request), -EBADMSG);
    put_le(b.data + b.len - 12, LIST_LIMIT_MAX + 1, 4);
    assert_int_equal(decode_resealed(&b, decode_request), -EBADMSG);
    put_le(b.data + b.len - 12, LIST_LIMIT_MAX, 4);
    assert_int_equal(decode_resealed(&b, decode_request), 0);
    buf_fini(&b);
}

/* The same head with n bytes at `at` changed to v. */
static int decode_with(const struct buf *head, size_t at, uint64_t v, unsigned n, decode_fn *decode)
{
    struct buf b = {0};
    int err;

    buf_add_span(&b, buf_span(head));
    put_le(b.data + at, v, n);
    err = decode_resealed(&b, decode);
    buf_fini(&b);
    return err;
}

static void what_repair_cannot_ask_is_refused(void **state)
{
    struct world *w = *state;
    struct buf b = {0};

    message_encode(&b, &w->requests[11]); /* DIGEST: node, group, digest */
    assert_int_equal(decode_with(&b, AT_KEY + 4, 0, 4, decode_request), 0);
    assert_int_equal(decode_with(&b, AT_KEY + 4, DIGEST_GROUPS, 4, decode_request), -EBADMSG);
    buf_clear(&b);
    message_encode(&b, &w->requests[12]); /* KEYS: node, buckets, start_after, limit */
    assert_int_equal(decode_with(&b, b.len - 12, 2, 4, decode_request), 0);
    assert_int_equal(decode_with(&b, b.len - 12, 0, 4, decode_request), -EBADMSG);
    b.len -= 8 + 4 + 2 + 2;
    buf_bytes16(&b, span_str("a bitmap of another size"));
    buf_bytes16(&b, span_str(""));
    buf_u32(&b, 1);
    buf_u64(&b, 0);
    assert_int_equal(decode_resealed(&b, decode_request), -EBADMSG);
    buf_clear(&b);
    message_encode(&b, &w->requests[8]); /* HELLO: no node asks as a cofounder */
    assert_int_equal(decode_with(&b, b.len - 9, NODE_WHOLE, 1, decode_request), 0);
    assert_int_equal(decode_with(&b, b.len - 9, NODE_ANNOUNCING, 1, decode_request), 0);
    assert_int_equal(decode_with(&b, b.len - 9, NODE_COFOUNDER, 1, decode_request), -EBADMSG);
    assert_int_equal(decode_with(&b, b.len - 9, NODE_ANNOUNCING + 1, 1, decode_request), -EBADMSG);
    buf_fini(&b);
}

static void what_repair_cannot_answer_is_refused(void **state)
{
    struct world *w = *state;
    const size_t at_fields = 29 + 2 * 12; /* behind the known nodes */
    struct buf b = {0}, text = {0};

    for (unsigned i = 0; i <= HELLO_TEXT_MAX; i++)
        buf_u8(&text, 'x');
    answer_encode(&b, span_str(KEY), &w->answers[12]); /* DIGEST: not the same, and why */
    assert_int_equal(decode_with(&b, at_fields, 1, 1, decode_answer), -EBADMSG);
    assert_int_equal(decode_with(&b, at_fields + 1, DIGEST_GROUPS - 1, 4, decode_answer), -EBADMSG);
    buf_clear(&b);
    answer_encode(&b, span_str(KEY), &w->answers[11]);
    assert_int_equal(decode_with(&b, at_fields, 0, 1, decode_answer), -EBADMSG);
    buf_clear(&b);
    answer_encode(&b, span_str(KEY), &w->answers[13]); /* KEYS: the end, and no next page */
    assert_int_equal(decode_with(&b, at_fields, 1, 1, decode_answer), -EBADMSG);
    buf_clear(&b);
    answer_encode(&b, span_str(KEY), &w->answers[14]);
    assert_int_equal(decode_with(&b, at_fields, 0, 1, decode_answer), -EBADMSG);
    buf_clear(&b);
    answer_encode(&b, span_str(KEY), &w->answers[9]); /* HELLO */
    assert_int_equal(decode_with(&b, at_fields + 5 * 8, NODE_COFOUNDER + 1, 1, decode_answer),
                     -EBADMSG);
    buf_clear(&b);
    answer_encode(&b, span_str(KEY), &w->answers[9]);
    b.len -= 8 + 2 + w->answers[9].ailment.len;
    buf_bytes16(&b, buf_span(&text));
    buf_u64(&b, 0);
    assert_int_equal(decode_resealed(&b, decode_answer), -EBADMSG);
    buf_fini(&text);
    buf_fini(&b);
}

static void ballots_that_must_be_are_there(void **state)
{
    struct world *w = *state;
    struct buf b = {0};

    message_encode(&b, &w->requests[0]); /* PREPARE under no ballot */
    memset(b.data + b.len - 32, 0, 16);  /* before length and checksum */
    assert_int_equal(decode_resealed(&b, decode_request), -EBADMSG);
    buf_clear(&b);
    message_encode(&b, &w->requests[3]); /* the value of no version */
    memset(b.data + AT_KEY + strlen(KEY), 0, 16);
    assert_int_equal(decode_resealed(&b, decode_request), -EBADMSG);
    buf_fini(&b);
}

static void a_record_of_another_key_is_refused(void **state)
{
    struct world *w = *state;
    struct message m;
    struct answer a;
    struct buf b = {0};
    size_t head_len;

    answer_encode(&b, span_str(KEY), &w->answers[0]);
    assert_int_equal(answer_decode(buf_span(&b), span_str("dir/b"), &a, &head_len), -EBADMSG);
    buf_clear(&b);
    message_encode(&b, &w->requests[2]);
    b.data[AT_KEY] ^= 1; /* the head's own checksum is right again, the record's is not */
    reseal(&b);
    assert_int_equal(message_decode(buf_span(&b), &m, &head_len), -EBADMSG);
    buf_fini(&b);
}

static void values_stand_at_a_chunk_inside_the_record(void **state)
{
    struct world *w = *state;
    struct buf b = {0};

    answer_encode(&b, span_str(KEY), &w->answers[5]);
    put_le(b.data + b.len - 17, 4096, 8);
    assert_int_equal(decode_resealed(&b, decode_answer), -EBADMSG);
    put_le(b.data + b.len - 17, 2 * CHUNK_SIZE, 8);
    assert_int_equal(decode_resealed(&b, decode_answer), -EBADMSG);
    put_le(b.data + b.len - 17, CHUNK_SIZE, 8);
    assert_int_equal(decode_resealed(&b, decode_answer), 0);
    b.data[b.len - 18] = 0; /* an offset of no value */
    assert_int_equal(decode_resealed(&b, decode_answer), -EBADMSG);
    put_le(b.data + b.len - 17, 0, 8);
    assert_int_equal(decode_resealed(&b, decode_answer), 0);
    b.data[b.len - 18] = 2; /* has_value is yes or no */
    assert_int_equal(decode_resealed(&b, decode_answer), -EBADMSG);
    buf_fini(&b);
}

static void random_fields_in_a_right_frame_never_overrun(void **state)
{
    struct rng rng = {7};
    struct buf b = {0};
    decode_fn *decode;

    for (unsigned round = 0; round < 200; round++) {
        for (unsigned i = 0; encode_nth(*state, i, &b, &decode); i++) {
            unsigned n = (unsigned)rng_between(&rng, 1, 4);

            while (n-- > 0)
                b.data[rng_between(&rng, AT_KIND, b.len - 9)] = (uint8_t)rng_next(&rng);
            if (rng_chance(&rng, 300))
                b.len = rng_between(&rng, 16, b.len);
            (void)decode_resealed(&b, decode); /* the sanitizers judge */
        }
    }
    buf_fini(&b);
}

static void the_known_pairs_are_read_by_index(void **state)
{
    struct world *w = *state;
    uint64_t incarnation;
    uint32_t node;

    answer_known(&w->answers[0], 0, &node, &incarnation);
    assert_int_equal(node, 0);
    assert_int_equal(incarnation, 0xaaaa);
    answer_known(&w->answers[0], 1, &node, &incarnation);
    assert_int_equal(node, 7);
    assert_true(incarnation == UINT64_MAX);
}

static void a_head_that_nobody_could_read_is_an_error_of_the_buffer(void **state)
{
    struct answer a = {.kind = ANS_ACCEPTED};
    struct buf known = {0}, b = {0};

    (void)state;
    while (known.len <= MESSAGE_HEAD_MAX) {
        answer_add_known(&known, a.n_known, 1);
        a.n_known++;
    }
    a.known = buf_span(&known);
    answer_encode(&b, span_str(""), &a);
    assert_int_equal(b.err, -EFBIG);
    buf_fini(&known);
    buf_fini(&b);
}

/* --- entries ---------------------------------------------------------------------------------- */

static void make_entries(const struct world *w, struct entry e[3])
{
    entry_of_record(&e[0], span_str("a"), &w->rec);
    entry_of_record(&e[1], span_str("dir/x"), &w->rec);
    e[1].prefix_len = 4;
    entry_of_record(&e[2], span_of("\xff\xfe", 2), &w->rec);
    e[2].flags = RECORD_TOMBSTONE;
    e[2].size = 0;
}

static void entries_come_back_in_a_row(void **state)
{
    struct entry e[3], got;
    struct buf b = {0};
    struct cursor c;

    make_entries(*state, e);
    for (unsigned i = 0; i < 3; i++)
        entry_encode(&b, &e[i]);
    c = cursor_of(buf_span(&b));
    for (unsigned i = 0; i < 3; i++) {
        assert_int_equal(entry_next(&c, &got), 1);
        assert_same_entry(&got, &e[i]);
    }
    assert_int_equal(entry_next(&c, &got), 0);
    assert_int_equal(entry_next(&c, &got), 0);
    buf_fini(&b);
}

static void an_entry_tells_what_its_record_does(void **state)
{
    struct world *w = *state;
    struct entry e;

    entry_of_record(&e, span_str("k"), &w->rec);
    assert_span(e.key, span_str("k"));
    assert_int_equal(e.prefix_len, 0);
    assert_int_equal(ballot_cmp(e.version, w->rec.version), 0);
    assert_int_equal(e.size, CHUNK_SIZE + 5);
    assert_int_equal(e.mode, 0100600);
    assert_int_equal(e.uid, 1);
    assert_int_equal(e.gid, 2);
    assert_int_equal(e.rdev, 3);
    assert_int_equal(e.mtime_ns, -4);
    assert_int_equal(e.ctime_ns, 5);
    assert_int_equal(e.atime_ns, 6);
}

static void every_flipped_bit_and_every_cut_of_an_entry_is_found(void **state)
{
    struct entry e[3], got;
    struct buf b = {0};
    struct cursor c;

    make_entries(*state, e);
    entry_encode(&b, &e[1]);
    for (size_t bit = 0; bit < 8 * b.len; bit++) {
        b.data[bit / 8] ^= (uint8_t)(1u << bit % 8);
        c = cursor_of(buf_span(&b));
        assert_int_equal(entry_next(&c, &got), -EBADMSG);
        assert_int_equal(entry_next(&c, &got), -EBADMSG);
        b.data[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    for (size_t len = 1; len < b.len; len++) {
        c = cursor_of(span_of(b.data, len));
        assert_int_equal(entry_next(&c, &got), -EBADMSG);
    }
    buf_fini(&b);
}

static void an_entry_of_damage_says_nothing_else(void **state)
{
    struct entry e, got;
    struct buf b = {0};
    struct cursor c;

    (void)state;
    entry_of_damage(&e, span_str("dir/k"));
    e.prefix_len = 4;
    entry_encode(&b, &e);
    c = cursor_of(buf_span(&b));
    assert_int_equal(entry_next(&c, &got), 1);
    assert_same_entry(&got, &e);
    assert_int_equal(got.flags, ENTRY_DAMAGED);
    assert_true(ballot_is_none(got.version));
    b.data[2 + 5 + 4] = 1; /* a version */
    put_le(b.data + b.len - 4, hash_xxh3(span_of(b.data, b.len - 4)), 4);
    c = cursor_of(buf_span(&b));
    assert_int_equal(entry_next(&c, &got), -EBADMSG);
    buf_fini(&b);
}

static void impossible_entries_are_refused(void **state)
{
    static const struct {
        size_t at;
        uint8_t byte;
    } bad[] = {
        {2, 0},        /* a NUL in the key */
        {7, 6},        /* a prefix longer than the key */
        {27, 2},       /* an unknown flag */
        {27, 1},       /* a tombstone that has a size and stands for a prefix */
        {31 + 7, 255}, /* an impossible size */
    };
    struct entry e[3], got;

    make_entries(*state, e);
    for (unsigned i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct buf b = {0};
        struct cursor c;

        entry_encode(&b, &e[1]);
        c = cursor_of(buf_span(&b));
        assert_int_equal(entry_next(&c, &got), 1);
        b.data[bad[i].at] = bad[i].byte;
        put_le(b.data + b.len - 4, hash_xxh3(span_of(b.data, b.len - 4)), 4);
        c = cursor_of(buf_span(&b));
        assert_int_equal(entry_next(&c, &got), -EBADMSG);
        buf_fini(&b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(every_request_comes_back_as_it_was, setup, teardown),
        cmocka_unit_test_setup_teardown(every_answer_comes_back_as_it_was, setup, teardown),
        cmocka_unit_test_setup_teardown(a_head_that_is_not_whole_asks_for_the_rest, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(every_flipped_bit_is_found, setup, teardown),
        cmocka_unit_test(what_is_no_message_is_refused_at_its_first_wrong_byte),
        cmocka_unit_test(a_head_over_the_limit_is_refused_before_it_is_read),
        cmocka_unit_test_setup_teardown(a_message_from_the_future_is_not_damage, setup, teardown),
        cmocka_unit_test_setup_teardown(unknown_kinds_and_bytes_too_many_are_refused, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(flags_of_another_kind_are_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(keys_that_are_none_are_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(lists_of_no_length_are_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(ballots_that_must_be_are_there, setup, teardown),
        cmocka_unit_test_setup_teardown(a_record_of_another_key_is_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(values_stand_at_a_chunk_inside_the_record, setup, teardown),
        cmocka_unit_test_setup_teardown(random_fields_in_a_right_frame_never_overrun, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(the_known_pairs_are_read_by_index, setup, teardown),
        cmocka_unit_test(a_head_that_nobody_could_read_is_an_error_of_the_buffer),
        cmocka_unit_test_setup_teardown(entries_come_back_in_a_row, setup, teardown),
        cmocka_unit_test_setup_teardown(an_entry_tells_what_its_record_does, setup, teardown),
        cmocka_unit_test_setup_teardown(every_flipped_bit_and_every_cut_of_an_entry_is_found, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(an_entry_of_damage_says_nothing_else, setup, teardown),
        cmocka_unit_test_setup_teardown(what_repair_cannot_ask_is_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(what_repair_cannot_answer_is_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(impossible_entries_are_refused, setup, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

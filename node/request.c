/*
 * request.c - a replica request on its way in: head first, then the value, in pieces of any size.
 */
#include "node/replica_impl.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/*
 * Bytes to look at while the length of the head is unknown; what is too many belongs to the value.
 */
#define HEAD_FIRST 64u

int request_fail(struct replica_request *rq, int err, const char *fmt, ...)
{
    char text[sizeof(rq->why.msg)];
    va_list ap;

    assert(err < 0);
    if (rq->err < 0)
        return rq->err;
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    rq->err = err_set(&rq->why, err, "%s", text);
    return rq->err;
}

int request_check_late(struct replica_request *rq)
{
    struct clock *clock = rq->r->opts.clock;
    uint64_t now_us = clock->mono_us(clock);

    if (now_us - rq->arrived_us > rq->m.budget_ms * UINT64_C(1000))
        return request_fail(rq, -ETIMEDOUT,
                            "too late: not begun within the %" PRIu32 " ms that it had",
                            rq->m.budget_ms);
    if (rq->m.deadline_ms != 0 && now_us / 1000 > rq->m.deadline_ms)
        return request_fail(rq, -ETIMEDOUT, "too late: its deadline was %" PRIu64 " ms ago",
                            now_us / 1000 - rq->m.deadline_ms);
    return 0;
}

static int check_ballot(struct replica_request *rq, struct ballot b)
{
    if (b.counter > BALLOT_COUNTER_MAX || b.proposer == BALLOT_PROPOSER_MAX)
        return request_fail(rq, -EINVAL, "no client has the ballot %" PRIu64 "/%" PRIu64, b.counter,
                            b.proposer);
    return 0;
}

/* How many value bytes have to follow the head. */
static uint64_t value_expected(const struct message *m)
{
    if (m->kind != MSG_ACCEPT || (m->flags & MSG_SAME_VALUE))
        return 0;
    return m->record.size;
}

static int check_accept(struct replica_request *rq)
{
    const struct record *rec = &rq->m.record;
    uint64_t max = rq->r->opts.max_value_size;

    if (rec->size > max)
        return request_fail(rq, -EFBIG,
                            "a value of %" PRIu64 " bytes is above max_value_size, %" PRIu64,
                            rec->size, max);
    if ((rec->flags & RECORD_TOMBSTONE) && (rec->size > 0 || (rq->m.flags & MSG_SAME_VALUE)))
        return request_fail(rq, -EINVAL, "a tombstone has no value");
    return check_ballot(rq, rec->version);
}

/* A recovering node knows nothing that others may rely on: of its own it takes and tells all. */
static bool is_for_recovering(const struct replica_request *rq)
{
    const struct message *m = &rq->m;

    return m->kind == MSG_HELLO || (m->kind == MSG_ACCEPT && (m->flags & MSG_RESTORE)) ||
           (m->kind == MSG_KEYS && m->node == rq->r->opts.self);
}

/* All that can be told from the head alone. */
static int check_head(struct replica_request *rq)
{
    const struct replica_opts *opts = &rq->r->opts;
    const struct message *m = &rq->m;
    bool of_key = m->kind == MSG_PREPARE || m->kind == MSG_ACCEPT || m->kind == MSG_READ ||
                  m->kind == MSG_DROP;
    uint64_t value_len = rq->total - rq->head_len;

    if (m->ring != ring_fingerprint(opts->ring))
        return request_fail(
            rq, -EBADE, "another ring: the request's is %016" PRIx64 ", this node's %016" PRIx64,
            m->ring, ring_fingerprint(opts->ring));
    if (opts->placed_by.len > 0)
        return request_fail(rq, -EBADE, "this node's data was placed by another ring");
    if (request_check_late(rq) < 0)
        return rq->err;
    /* A peek asks all nodes what is below the key; of the key itself, others know nothing. */
    if (of_key && !(m->flags & MSG_PEEK) && !ring_is_replica(opts->ring, m->key, opts->self))
        return request_fail(rq, -EREMCHG, "this node is no replica of the key");
    if (replica_superseded(rq->r) && m->kind != MSG_HELLO)
        return request_fail(rq, -EAGAIN, "superseded: there is a newer store of this node");
    if (replica_recovering(rq->r) && !is_for_recovering(rq))
        return request_fail(rq, -EAGAIN, "recovering: this node does not have its records yet");
    if ((m->kind == MSG_PREPARE || m->kind == MSG_DROP) && check_ballot(rq, m->ballot) < 0)
        return rq->err;
    if (m->kind == MSG_ACCEPT && check_accept(rq) < 0)
        return rq->err;
    if (value_len != value_expected(m))
        return request_fail(rq, -EINVAL,
                            "%" PRIu64 " bytes follow the head where %" PRIu64 " belong", value_len,
                            value_expected(m));
    return 0;
}

/* Makes ready for the value bytes. */
static int begin_value(struct replica_request *rq)
{
    struct store *s = rq->r->opts.store;
    uint64_t len = value_expected(&rq->m);
    int err;

    if (len == 0)
        return 0;
    if (len <= INLINE_VALUE_MAX) {
        if (buf_reserve(&rq->value, (size_t)len) == NULL)
            return request_fail(rq, -ENOMEM, "no memory for the value");
        return 0;
    }
    if (replica_foresee(rq, &rq->settled) < 0 || rq->settled)
        return rq->err;
    rq->sums = cursor_of(rq->m.record.sums);
    rq->hash = hash_stream_new();
    if (rq->hash == NULL)
        return request_fail(rq, -ENOMEM, "no memory for the value");
    err = s->ops->file_begin(s, len, &rq->file);
    if (err < 0)
        return request_fail(rq, err, "cannot begin a file for the value: %s", strerror(-err));
    return 0;
}

/*
 * Value bytes for the file: hashed up to the end of each chunk, compared there, and only then
 * forgotten.
 */
static int feed_file(struct replica_request *rq, struct span part)
{
    struct store *s = rq->r->opts.store;
    int err;

    while (part.len > 0) {
        size_t room = CHUNK_SIZE - (size_t)(rq->value_got % CHUNK_SIZE);
        struct span piece = span_of(part.data, part.len < room ? part.len : room);

        hash_stream_add(rq->hash, piece);
        rq->value_got += piece.len;
        if (rq->value_got % CHUNK_SIZE == 0 || rq->value_got == rq->m.record.size) {
            if (hash_stream_sum(rq->hash) != cursor_u64(&rq->sums))
                return request_fail(
                    rq, -EINVAL,
                    "the value was damaged on its way: it does not match its checksum");
            hash_stream_reset(rq->hash);
        }
        err = s->ops->file_write(rq->file, piece);
        if (err < 0)
            return request_fail(rq, err, "cannot store the value: %s", strerror(-err));
        part = span_of(part.data + piece.len, part.len - piece.len);
    }
    return 0;
}

static int feed_value(struct replica_request *rq, struct span part)
{
    if (rq->settled || part.len == 0)
        return 0;
    if (rq->file != NULL)
        return feed_file(rq, part);
    buf_add_span(&rq->value, part);
    return rq->value.err < 0 ? request_fail(rq, -ENOMEM, "no memory for the value") : 0;
}

/* Takes from part what the head still needs; the rest, if any, is the value's. */
static int feed_head(struct replica_request *rq, struct span *part)
{
    size_t want = rq->head_len > 0 ? rq->head_len - rq->head.len : HEAD_FIRST;
    size_t n = part->len < want ? part->len : want;
    int err;

    buf_add(&rq->head, part->data, n);
    *part = span_of(part->data + n, part->len - n);
    if (rq->head.err < 0)
        return request_fail(rq, -ENOMEM, "no memory for the head");
    if (rq->head.len < rq->head_len)
        return 0;
    err = message_decode(buf_span(&rq->head), &rq->m, &rq->head_len);
    if (err == -EAGAIN && rq->head_len <= rq->total)
        return 0;
    if (err == -EPROTO)
        return request_fail(rq, err, "the request is of a newer format");
    if (err == -EFBIG)
        return request_fail(rq, err, "the head of the request is too long");
    if (err < 0) /* not -EBADMSG: that is the word for damage at rest */
        return request_fail(rq, -EINVAL, "the head of the request is damaged");
    rq->decoded = true;
    if (check_head(rq) < 0 || begin_value(rq) < 0)
        return rq->err;
    return feed_value(rq, span_of(rq->head.data + rq->head_len, rq->head.len - rq->head_len));
}

int replica_begin(struct replica *r, uint64_t total, struct replica_request **out)
{
    struct replica_request *rq = calloc(1, sizeof(*rq));

    if (rq == NULL)
        return -ENOMEM;
    rq->r = r;
    rq->reply = REPLY_NONE;
    rq->total = total;
    rq->arrived_us = r->opts.clock->mono_us(r->opts.clock);
    if (total > MESSAGE_HEAD_MAX + r->opts.max_value_size)
        (void)request_fail(rq, -EFBIG, "a request of %" PRIu64 " bytes is longer than any", total);
    *out = rq;
    return 0;
}

int replica_feed(struct replica_request *rq, struct span part)
{
    if (rq->err < 0)
        return rq->err;
    if (part.len > rq->total - rq->got)
        return request_fail(rq, -EINVAL, "more bytes came than the %" PRIu64 " announced",
                            rq->total);
    rq->got += part.len;
    while (part.len > 0 && !rq->decoded) {
        if (feed_head(rq, &part) < 0)
            return rq->err;
    }
    return feed_value(rq, part);
}

/* The whole value is here: the last check, and large ones to the disk, before any lock is taken. */
static int finish_value(struct replica_request *rq)
{
    struct store *s = rq->r->opts.store;
    int err;

    if (rq->got < rq->total || !rq->decoded)
        return request_fail(rq, -EINVAL,
                            "the request was cut short: %" PRIu64 " of %" PRIu64 " bytes", rq->got,
                            rq->total);
    if (rq->file != NULL) {
        err = s->ops->file_finish(rq->file);
        return err < 0 ? request_fail(rq, err, "cannot store the value: %s", strerror(-err)) : 0;
    }
    if (rq->value.len > 0 && record_verify(&rq->m.record, 0, buf_span(&rq->value)) < 0)
        return request_fail(rq, -EINVAL,
                            "the value was damaged on its way: it does not match its checksum");
    return 0;
}

/* The answer, but for the first chunk of a file. */
static void perform(struct replica_request *rq)
{
    if (rq->performed)
        return;
    rq->performed = true;
    if (rq->err == 0 && finish_value(rq) == 0)
        (void)replica_perform(rq, &rq->reply);
}

bool replica_ask(struct replica_request *rq, struct reply *out)
{
    perform(rq);
    if (rq->err == 0 && rq->reply.large != NULL)
        return false;
    replica_end(rq, out);
    return true;
}

void replica_end(struct replica_request *rq, struct reply *out)
{
    struct reply *reply = &rq->reply;
    int err;

    perform(rq);
    err = rq->err == 0 ? reply_check(reply) : 0;
    if (err < 0)
        (void)replica_fail_load(rq, err);
    if (rq->err < 0) {
        reply_fini(reply);
        replica_answer_error(rq, reply);
    }
    *out = *reply;
    *reply = REPLY_NONE;
    replica_abort(rq);
}

void replica_abort(struct replica_request *rq)
{
    struct store *s;

    if (rq == NULL)
        return;
    s = rq->r->opts.store;
    s->ops->file_abort(rq->file);
    hash_stream_free(rq->hash);
    reply_fini(&rq->reply);
    buf_fini(&rq->value);
    buf_fini(&rq->head);
    free(rq);
}

/*
 * fuzz_replica.c - one replica over a store in memory, whole or recovering, and requests that come
 * in pieces: good ones, late ones, damaged ones, some that end in the middle. A model that fits on
 * a page says of each what the answer must be.
 *
 * Input: recovering (u8: 1), then a row of choices, see step().
 */
#include <string.h>

#include "common/config.h"
#include "common/keypath.h"
#include "common/list.h"
#include "node/promises.h"
#include "node/replica.h"
#include "tests/fuzz/grammar.h"
#include "tests/fuzz/sums.h"

#define STEPS_MAX 40u
#define VALUE_MAX (2u << 20)

/* What must be known of one key. */
struct model {
    struct ballot promised;
    struct buf bytes; /* the encoded record; empty: never written */
    struct record rec;
    struct buf value;
};

struct world {
    struct clock clock;
    uint64_t now_us;
    struct config *cfg;
    struct store *store;
    struct replica *r;
    bool recovering;
    uint64_t floor;                    /* the highest counter promised or accepted */
    struct model models[GRAMMAR_KEYS]; /* in byte order of the keys */
};

/* An answer, with the bytes that it borrows from. */
struct got {
    struct buf bytes;
    struct answer a;
    struct span rest;
};

static uint64_t clock_us(struct clock *c)
{
    return container_of(c, struct world, clock)->now_us;
}

/* --- the world -------------------------------------------------------------------------------- */

/* Four nodes and three replicas: some keys are none of this node's. */
static const char cluster[] =
    "{\"nodes\":[{\"id\":\"n0\",\"addr\":\"h0:1\"},{\"id\":\"n1\",\"addr\":\"h1:1\"},"
    "{\"id\":\"n2\",\"addr\":\"h2:1\"},{\"id\":\"n3\",\"addr\":\"h3:1\"}],\"replication_factor\":"
    "3}";

static void world_open(struct world *w)
{
    struct replica_opts opts = {.ring = w->cfg->ring,
                                .cfg = w->cfg,
                                .store = w->store,
                                .clock = &w->clock,
                                .seed = 1,
                                .max_value_size = VALUE_MAX,
                                .floor_ahead_us = 1};
    struct err err = {""};

    CLAIM(replica_open(&opts, &w->r, &err) == 0);
    CLAIM(replica_index(w->r, NULL) == 0);
}

static void world_init(struct world *w, bool recovering)
{
    static struct config *cfg; /* the same for all runs */
    struct err err = {""};

    if (cfg == NULL)
        CLAIM(config_parse("fuzz", span_str(cluster), &cfg, &err) == 0);
    *w = (struct world){.clock = {clock_us, clock_us}, .now_us = 1000000, .cfg = cfg};
    CLAIM(store_memory_open(&w->store) == 0);
    world_open(w);
    w->recovering = recovering;
    CLAIM(replica_recovering(w->r));
    if (!recovering)
        CLAIM(replica_found(w->r, NULL, 0) == 0);
}

static void world_fini(struct world *w)
{
    replica_close(w->r);
    w->store->ops->close(w->store);
    for (unsigned i = 0; i < GRAMMAR_KEYS; i++) {
        buf_fini(&w->models[i].bytes);
        buf_fini(&w->models[i].value);
    }
}

/* NULL: a key that an edit made; the model of such a one is that nothing is known. */
static struct model *model_of(struct world *w, struct span key)
{
    for (unsigned i = 0; i < GRAMMAR_KEYS; i++)
        if (span_eq(grammar_key(i), key))
            return &w->models[i];
    return NULL;
}

/* --- asking ----------------------------------------------------------------------------------- */

static void read_answer(struct reply *reply, struct span key, struct got *out)
{
    uint64_t len = reply_len(reply), pos = 0;
    uint8_t *room = buf_reserve(&out->bytes, len);
    size_t head_len = 0;

    CLAIM(room != NULL && len > 0);
    while (pos < len) {
        int64_t n = reply_read(reply, pos, room + pos, (size_t)(len - pos));

        CLAIM(n > 0);
        pos += (uint64_t)n;
    }
    out->bytes.len = len;
    CLAIM(answer_decode(buf_span(&out->bytes), key, &out->a, &head_len) == 0);
    out->rest = span_of(out->bytes.data + head_len, out->bytes.len - head_len);
    CLAIM((reply->status == 200) == (out->a.kind != ANS_ERROR));
    CLAIM(out->a.kind != ANS_ERROR || out->a.status == reply->status);
    CLAIM(out->a.kind == ANS_LIST || out->a.kind == ANS_KEYS || out->a.has_value ||
          out->rest.len == 0);
}

/* Feeds the bytes in pieces. False: the sender went away, and there is no answer. */
static bool ask(struct world *w, struct input *in, struct span bytes, uint64_t total,
                struct reply *out)
{
    unsigned n_pieces = input_pick(in, 4);
    bool gone = input_u8(in) == 0xff;
    struct replica_request *rq;
    size_t pos = 0;

    CLAIM(replica_begin(w->r, total, &rq) == 0);
    w->now_us += input_u8(in) == 0x80 ? 1000u * input_u8(in) : 0; /* it waited to be read */
    for (unsigned i = 0; i <= n_pieces && pos < bytes.len; i++) {
        size_t left = bytes.len - pos, n = i == n_pieces || gone ? left : input_u16(in) % left + 1;

        if (replica_feed(rq, span_of(bytes.data + pos, gone ? n / 2 : n)) < 0)
            break;
        pos += n;
    }
    if (gone)
        replica_abort(rq);
    else
        replica_end(rq, out);
    return !gone;
}

/* --- what must come --------------------------------------------------------------------------- */

static bool is_present(const struct model *k)
{
    return k != NULL && k->bytes.len > 0;
}

static struct ballot version_of(const struct model *k)
{
    return is_present(k) ? k->rec.version : BALLOT_NONE;
}

/* 0: it is to be stored; else the answer without storing. restore: whatever was promised. */
static unsigned judge(const struct model *k, struct ballot b, bool restore, struct ballot *top)
{
    struct ballot version = version_of(k);

    *top = restore ? version : ballot_max(k->promised, version);
    if (ballot_cmp(b, version) == 0)
        return ANS_ACCEPTED;
    return ballot_cmp(b, *top) < 0 ? ANS_REFUSE : 0;
}

static bool ballot_is_possible(struct ballot b)
{
    return b.counter <= BALLOT_COUNTER_MAX && b.proposer != BALLOT_PROPOSER_MAX;
}

static bool same_value(const struct model *k, const struct message *m)
{
    return is_present(k) && ballot_cmp(k->rec.version, m->pin) == 0 && record_is_live(&k->rec) &&
           k->rec.size == m->record.size && span_eq(k->rec.sums, m->record.sums);
}

static bool is_restore(const struct world *w, const struct message *m)
{
    return w->recovering && (m->flags & MSG_RESTORE);
}

static bool accept_is_wrong(const struct world *w, const struct model *k, const struct message *m,
                            struct span value)
{
    bool keep = m->flags & MSG_SAME_VALUE;
    struct ballot top;

    if (!ballot_is_possible(m->record.version) || m->record.size > VALUE_MAX)
        return true;
    if (keep && (m->record.flags & RECORD_TOMBSTONE))
        return true;
    if (value.len != (keep ? 0 : m->record.size))
        return true;
    /* The bytes of a large value are not even looked at where the answer is clear before. */
    if (value.len > INLINE_VALUE_MAX && judge(k, m->record.version, is_restore(w, m), &top) != 0)
        return false;
    return value.len > 0 && record_verify(&m->record, 0, value) < 0;
}

/* Is this whole, decoded request to be answered by an error? */
static bool is_wrong(struct world *w, const struct message *m, struct span value, uint64_t begun_us)
{
    bool of_key = m->kind == MSG_PREPARE || m->kind == MSG_ACCEPT || m->kind == MSG_READ ||
                  m->kind == MSG_DROP;
    bool of_ballot = m->kind == MSG_PREPARE || m->kind == MSG_DROP;
    struct model unknown = {0}, *k = model_of(w, m->key);

    if (m->ring != ring_fingerprint(w->cfg->ring))
        return true;
    if (w->now_us - begun_us > 1000ull * m->budget_ms ||
        (m->deadline_ms != 0 && w->now_us / 1000 > m->deadline_ms))
        return true;
    if (of_key && !(m->flags & MSG_PEEK) && !ring_is_replica(w->cfg->ring, m->key, 0))
        return true;
    if (w->recovering && m->kind != MSG_HELLO && !(m->kind == MSG_KEYS && m->node == 0) &&
        !(m->kind == MSG_ACCEPT && (m->flags & MSG_RESTORE)))
        return true;
    if (m->kind == MSG_ACCEPT)
        return accept_is_wrong(w, k != NULL ? k : &unknown, m, value);
    if (value.len > 0 || (of_ballot && !ballot_is_possible(m->ballot)))
        return true;
    if (m->kind == MSG_HELLO && m->node == MESSAGE_NODE_NONE)
        return false;
    return (m->kind == MSG_HELLO || m->kind == MSG_DIGEST || m->kind == MSG_KEYS) &&
           m->node >= ring_n_nodes(w->cfg->ring);
}

static void claim_record(const struct model *k, const struct got *got, struct span key)
{
    struct buf bytes = {0};

    if (!is_present(k)) {
        CLAIM(ballot_is_none(got->a.record.version) && !got->a.has_value);
        return;
    }
    record_encode(&bytes, key, &got->a.record);
    CLAIM(span_eq(buf_span(&bytes), buf_span(&k->bytes)));
    buf_fini(&bytes);
    if (!got->a.has_value)
        return;
    CLAIM(record_is_live(&k->rec) && got->a.value_offset + got->rest.len <= k->value.len);
    CLAIM(record_verify(&k->rec, got->a.value_offset, got->rest) == 0);
    if (got->rest.len > 0)
        CLAIM(memcmp(got->rest.data, k->value.data + got->a.value_offset, got->rest.len) == 0);
}

static void claim_prepare(struct world *w, struct model *k, const struct message *m,
                          const struct got *got)
{
    struct ballot top;

    (void)judge(k, m->ballot, false, &top);
    if (ballot_cmp(m->ballot, top) <= 0) {
        CLAIM(got->a.kind == ANS_REFUSE && ballot_cmp(got->a.ballot, top) == 0);
        return;
    }
    CLAIM(got->a.kind == ANS_PROMISE);
    claim_record(k, got, m->key);
    CLAIM(got->a.has_value == ((m->flags & MSG_WANT_VALUE) && is_present(k) &&
                               record_is_live(&k->rec) && k->rec.size <= m->length));
    CLAIM(!got->a.has_value || got->rest.len == k->rec.size);
    k->promised = m->ballot;
    w->floor = m->ballot.counter > w->floor ? m->ballot.counter : w->floor;
}

static void model_store(struct model *k, const struct message *m, struct span value)
{
    buf_clear(&k->bytes);
    record_encode(&k->bytes, m->key, &m->record);
    CLAIM(record_decode(buf_span(&k->bytes), m->key, &k->rec) == 0);
    if (!(m->flags & MSG_SAME_VALUE)) {
        buf_clear(&k->value);
        buf_add_span(&k->value, value);
    }
}

static void claim_accept(struct world *w, struct model *k, const struct message *m,
                         struct span value, const struct got *got)
{
    struct ballot b = m->record.version, top;
    unsigned verdict = judge(k, b, is_restore(w, m), &top);

    if (verdict != 0) {
        CLAIM(got->a.kind == verdict);
        CLAIM(verdict != ANS_REFUSE || ballot_cmp(got->a.ballot, top) == 0);
    } else if ((m->flags & MSG_SAME_VALUE) && !same_value(k, m)) {
        CLAIM(got->a.kind == ANS_NEED_VALUE);
    } else {
        CLAIM(got->a.kind == ANS_ACCEPTED);
        model_store(k, m, value);
        k->promised = ballot_max(k->promised, b);
        w->floor = b.counter > w->floor ? b.counter : w->floor;
    }
}

static void claim_read(struct world *w, struct model *k, const struct message *m,
                       const struct got *got)
{
    bool live = is_present(k) && record_is_live(&k->rec);
    const struct model *below = NULL;
    struct buf dir = {0};

    CLAIM(got->a.kind == ANS_STATE);
    claim_record(k, got, m->key);
    CLAIM(got->a.has_value ==
          ((m->flags & MSG_WANT_VALUE) && live &&
           (ballot_is_none(m->pin) || ballot_cmp(m->pin, k->rec.version) == 0)));
    if (got->a.has_value && m->offset < k->rec.size && m->length > 0) { /* all that was wanted */
        uint64_t end = m->length < k->rec.size - m->offset ? m->offset + m->length : k->rec.size;

        CLAIM(got->a.value_offset <= m->offset && got->a.value_offset + got->rest.len >= end);
    }
    buf_add_span(&dir, m->key);
    buf_u8(&dir, '/');
    for (unsigned i = GRAMMAR_KEYS; i > 0; i--) {
        const struct model *o = &w->models[i - 1];

        if (is_present(o) && span_has_prefix(grammar_key(i - 1), buf_span(&dir)) &&
            (below == NULL || record_is_live(&o->rec) || !record_is_live(&below->rec)))
            below = o;
    }
    CLAIM(got->a.has_peek == ((m->flags & MSG_PEEK) && below != NULL));
    if (got->a.has_peek)
        CLAIM(span_eq(got->a.peek.key, grammar_key((unsigned)(below - w->models))) &&
              ballot_cmp(got->a.peek.version, below->rec.version) == 0);
    buf_fini(&dir);
}

/* The name under which a listing shows the key. */
static struct span name_of(const struct message *m, struct span key)
{
    const uint8_t *rest = key.data + m->key.len, *slash = NULL;

    if ((m->flags & MSG_DELIMITER) && key.len > m->key.len)
        slash = memchr(rest, '/', key.len - m->key.len);
    return slash != NULL ? span_of(key.data, (size_t)(slash + 1 - key.data)) : key;
}

static bool next_entry(struct cursor *c, struct entry *e)
{
    int more = entry_next(c, e);

    CLAIM(more >= 0);
    return more == 1;
}

/* All names behind start_after, each once and in order, as far as the page goes. */
static void claim_list(struct world *w, const struct message *m, const struct got *got)
{
    struct cursor c = cursor_of(got->rest);
    struct span last = {0};
    struct entry e;
    uint32_t n = 0;
    bool more = false;

    CLAIM(got->a.kind == ANS_LIST && got->a.n_entries <= m->limit);
    for (unsigned i = 0; i < GRAMMAR_KEYS; i++) {
        struct span key = grammar_key(i), name;

        if (!is_present(&w->models[i]) || !span_has_prefix(key, m->key) ||
            span_cmp(key, m->start_after) <= 0)
            continue;
        name = name_of(m, key);
        if ((last.data != NULL && span_eq(name, last)) ||
            (name.data[name.len - 1] == '/' && (m->flags & MSG_DELIMITER) &&
             name.len > m->key.len && span_has_prefix(m->start_after, name)))
            continue;
        last = name;
        if (n == m->limit) {
            more = true;
            break;
        }
        CLAIM(next_entry(&c, &e));
        n++;
        CLAIM(span_eq(span_of(e.key.data, e.prefix_len > 0 ? e.prefix_len : e.key.len), name));
        if (e.prefix_len == 0)
            CLAIM(ballot_cmp(e.version, w->models[i].rec.version) == 0 &&
                  e.size == w->models[i].rec.size);
    }
    CLAIM(n == got->a.n_entries && !next_entry(&c, &e));
    CLAIM(got->a.more || !more);
}

/* Does a key count in what this node and that one share? */
static bool is_shared(const struct world *w, unsigned i, unsigned node)
{
    struct span key = grammar_key(i);

    return is_present(&w->models[i]) && ring_is_replica(w->cfg->ring, key, 0) &&
           ring_is_replica(w->cfg->ring, key, node);
}

static void claim_keys(struct world *w, const struct message *m, const struct got *got)
{
    struct cursor c = cursor_of(got->rest);
    struct entry e;
    uint32_t n = 0;

    CLAIM(got->a.kind == ANS_KEYS && got->a.n_entries <= m->limit);
    for (unsigned i = 0; i < GRAMMAR_KEYS && n < m->limit; i++) {
        struct span key = grammar_key(i);
        unsigned bucket = digest_bucket(key);

        if (!is_shared(w, i, m->node) || span_cmp(key, m->start_after) <= 0 ||
            (m->buckets.len > 0 && !(m->buckets.data[bucket / 8] >> bucket % 8 & 1)))
            continue;
        CLAIM(next_entry(&c, &e));
        n++;
        CLAIM(span_eq(e.key, key) && e.prefix_len == 0);
        CLAIM(ballot_cmp(e.version, w->models[i].rec.version) == 0);
    }
    CLAIM(n == got->a.n_entries && !next_entry(&c, &e));
    CLAIM(got->a.more || n < m->limit || got->a.next.len == 0);
}

/* Counted anew, the digest is what changing it at each write has made of it. */
static void claim_digest(struct world *w, const struct message *m, const struct got *got)
{
    uint64_t own = 0, words[DIGEST_GROUPS] = {0};

    CLAIM(got->a.kind == ANS_DIGEST);
    for (unsigned i = 0; i < GRAMMAR_KEYS; i++) {
        unsigned bucket = digest_bucket(grammar_key(i)), group = bucket / 64;
        uint64_t digest = digest_of(grammar_key(i), version_of(&w->models[i]));

        /* With itself it compares nothing. */
        if (!is_shared(w, i, m->node) || m->node == 0)
            continue;
        if (m->group == MESSAGE_GROUP_NONE)
            words[group] ^= digest;
        else if (m->group == group)
            words[bucket % 64] ^= digest;
    }
    for (unsigned i = 0; i < DIGEST_GROUPS; i++)
        own ^= words[i];
    CLAIM(got->a.same == (own == m->digest));
    for (uint32_t i = 0; i < got->a.n_digests; i++)
        CLAIM(answer_digest(&got->a, i) == words[i]);
}

static void claim_drop(struct world *w, struct model *k, const struct message *m,
                       const struct got *got)
{
    struct ballot floor = {m->ballot.counter, BALLOT_PROPOSER_MAX};

    if (is_present(k) && (record_is_live(&k->rec) || ballot_cmp(k->rec.version, m->ballot) != 0)) {
        CLAIM(got->a.kind == ANS_REFUSE);
        CLAIM(ballot_cmp(got->a.ballot, ballot_max(k->promised, k->rec.version)) == 0);
        return;
    }
    CLAIM(got->a.kind == ANS_ACCEPTED);
    buf_clear(&k->bytes);
    k->promised = ballot_max(k->promised, floor);
    w->floor = floor.counter > w->floor ? floor.counter : w->floor;
}

static void claim_answer(struct world *w, const struct message *m, struct span value,
                         const struct got *got)
{
    struct model unknown = {0}, *k = model_of(w, m->key);

    if (k == NULL)
        k = &unknown;
    switch (m->kind) {
    case MSG_PREPARE:
        claim_prepare(w, k, m, got);
        break;
    case MSG_ACCEPT:
        claim_accept(w, k, m, value, got);
        break;
    case MSG_READ:
        claim_read(w, k, m, got);
        break;
    case MSG_LIST:
        claim_list(w, m, got);
        break;
    case MSG_HELLO:
        CLAIM(got->a.kind == ANS_HELLO && got->a.floor >= w->floor);
        CLAIM((got->a.recovering == NODE_RECOVERING) == w->recovering);
        break;
    case MSG_DIGEST:
        claim_digest(w, m, got);
        break;
    case MSG_KEYS:
        claim_keys(w, m, got);
        break;
    case MSG_DROP:
        claim_drop(w, k, m, got);
        break;
    }
    buf_fini(&unknown.bytes);
    buf_fini(&unknown.value);
}

/* --- one step --------------------------------------------------------------------------------- */

/* Does the answer carry a record, whose checksum covers the key? */
static bool is_of_record(struct world *w, const struct message *m)
{
    struct model unknown = {0}, *k = model_of(w, m->key);
    struct ballot top;

    if (m->kind != MSG_PREPARE)
        return m->kind == MSG_READ;
    (void)judge(k != NULL ? k : &unknown, m->ballot, false, &top);
    return ballot_cmp(m->ballot, top) > 0;
}

/* Asks with these bytes, and compares what comes with what must come. */
static void step_with(struct world *w, struct input *in, struct span bytes, uint64_t total)
{
    uint64_t begun_us = w->now_us;
    struct reply reply = REPLY_NONE;
    struct got got = {0};
    struct message m = {0};
    size_t head_len = 0;
    bool right = total == bytes.len && message_decode(bytes, &m, &head_len) == 0;
    struct span value = span_of(bytes.data + head_len, bytes.len - head_len);

    if (!ask(w, in, bytes, total, &reply))
        return;
    right = right && !is_wrong(w, &m, value, begun_us);
    CLAIM((reply.status == 200) == right);
    read_answer(&reply, right && is_of_record(w, &m) ? m.key : span_of(NULL, 0), &got);
    if (right)
        claim_answer(w, &m, value, &got);
    reply_fini(&reply);
    buf_fini(&got.bytes);
}

/* Edits can make other keys, of which the model keeps nothing: what would leave a trace of such a
 * one, a promise or a record, is not sent. */
static bool is_of_model(struct world *w, struct span bytes)
{
    struct message m;
    size_t head_len;

    if (message_decode(bytes, &m, &head_len) < 0 || model_of(w, m.key) != NULL)
        return true;
    return m.kind != MSG_PREPARE && m.kind != MSG_ACCEPT && m.kind != MSG_DROP;
}

/* It has all records, it is told; from then on it promises nothing up to the floor. */
static void recovered(struct world *w, uint64_t floor)
{
    struct ballot b = {floor, BALLOT_PROPOSER_MAX};

    CLAIM((replica_recovered(w->r, floor) == 0) == (floor <= BALLOT_COUNTER_MAX));
    if (floor > BALLOT_COUNTER_MAX)
        return;
    w->recovering = false;
    w->floor = floor > w->floor ? floor : w->floor;
    for (unsigned i = 0; i < GRAMMAR_KEYS; i++)
        w->models[i].promised = ballot_max(w->models[i].promised, b);
}

static void step(struct world *w, struct input *in)
{
    struct made made = {0};
    struct buf bytes = {0};
    struct message m;
    unsigned how = input_u8(in);
    uint64_t total;

    grammar_request(in, ring_fingerprint(w->cfg->ring), &made, &m);
    message_encode(&bytes, &m);
    if (m.kind == MSG_ACCEPT && !(m.flags & MSG_SAME_VALUE))
        buf_add_span(&bytes, buf_span(&made.value));
    if (how & 1)
        grammar_edit(in, &bytes);
    if ((how & 1) && !(how & 2))
        sums_request(bytes.data, bytes.len);
    total = bytes.len;
    if (how == 0xff)
        total += input_u64(in);
    if (how & 4)
        w->now_us += 1000u * input_u8(in);
    if (is_of_model(w, buf_span(&bytes)))
        step_with(w, in, buf_span(&bytes), total);
    made_fini(&made);
    buf_fini(&bytes);
}

/* A READ of every key: nothing else than what was accepted is there. */
static void read_all(struct world *w)
{
    struct input none = {0};

    for (unsigned i = 0; i < GRAMMAR_KEYS; i++) {
        struct message m = {.kind = MSG_READ,
                            .flags = MSG_WANT_VALUE | MSG_PEEK,
                            .ring = ring_fingerprint(w->cfg->ring),
                            .budget_ms = 1000,
                            .length = UINT64_MAX,
                            .key = grammar_key(i)};
        struct buf bytes = {0};

        message_encode(&bytes, &m);
        step_with(w, &none, buf_span(&bytes), bytes.len);
        buf_fini(&bytes);
    }
}

/* After a restart: the same records, and no counter promised anew. */
static void restart(struct world *w)
{
    replica_close(w->r);
    world_open(w);
    read_all(w);
    for (unsigned i = 0; i < GRAMMAR_KEYS; i++) {
        struct model *k = &w->models[i];
        struct message m = {.kind = MSG_PREPARE,
                            .ring = ring_fingerprint(w->cfg->ring),
                            .budget_ms = 1000,
                            .key = grammar_key(i),
                            .ballot = k->promised};
        struct reply reply = REPLY_NONE;
        struct input none = {0};
        struct got got = {0};
        struct buf bytes = {0};

        if (m.ballot.proposer == BALLOT_PROPOSER_MAX) /* of a floor: no message has that */
            m.ballot.proposer--;
        if (ballot_is_none(k->promised) || !ring_is_replica(w->cfg->ring, m.key, 0))
            continue;
        message_encode(&bytes, &m);
        CLAIM(ask(w, &none, buf_span(&bytes), bytes.len, &reply));
        read_answer(&reply, span_of(NULL, 0), &got);
        CLAIM(got.a.kind == ANS_REFUSE);
        reply_fini(&reply);
        buf_fini(&got.bytes);
        buf_fini(&bytes);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct input in = {data, size};
    struct world w;

    world_init(&w, input_u8(&in) & 1);
    for (unsigned i = 0; i < STEPS_MAX && in.len > 0; i++) {
        if (w.recovering && input_u8(&in) == 0xff)
            recovered(&w, input_u64(&in));
        step(&w, &in);
    }
    if (w.recovering)
        recovered(&w, 1);
    read_all(&w);
    restart(&w);
    world_fini(&w);
    return 0;
}

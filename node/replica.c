/*
 * replica.c - what one node answers to PREPARE, ACCEPT, READ, LIST and HELLO: its part of
 * docs/protocol.md.
 */
#include "node/replica_impl.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/json.h"
#include "common/keypath.h"
#include "common/status.h"
#include "node/scan.h"

#define FLOOR_AHEAD_US 10000000u

/*
 * A key as the store has it: rec borrows from item. A key never written has a record of version
 * none.
 */
struct present {
    struct store_item item;
    struct record rec;
};

/* --- opening --------------------------------------------------------------------------- */

int replica_open(const struct replica_opts *opts, struct replica **out, struct err *err)
{
    struct replica *r = calloc(1, sizeof(*r));
    int ret;

    if (r == NULL)
        return err_set(err, -ENOMEM, "no memory for the replica");
    r->opts = *opts;
    if (r->opts.floor_ahead_us == 0)
        r->opts.floor_ahead_us = FLOOR_AHEAD_US;
    if (r->opts.max_value_size == 0)
        r->opts.max_value_size = VALUE_SIZE_DEFAULT_MAX;
    ret = incarnations_open(opts->store, opts->cfg, ring_n_nodes(opts->ring), opts->self,
                            opts->clock->wall_us(opts->clock), opts->seed, &r->incarnations, err);
    if (ret == 0)
        ret = promises_open(opts->store, r->opts.floor_ahead_us, &r->promises, err);
    if (ret < 0) {
        replica_close(r);
        return ret;
    }
    *out = r;
    return 0;
}

void replica_close(struct replica *r)
{
    if (r == NULL)
        return;
    promises_close(r->promises);
    incarnations_close(r->incarnations);
    free(r);
}

uint64_t replica_incarnation(const struct replica *r)
{
    return incarnations_get(r->incarnations, r->opts.self);
}

int replica_learn(struct replica *r, unsigned node, uint64_t incarnation)
{
    return incarnations_learn(r->incarnations, node, incarnation);
}

/* --- answers --------------------------------------------------------------------------- */

static void add_known(const struct replica *r, unsigned node, struct answer *a, struct buf *known)
{
    uint64_t incarnation = incarnations_get(r->incarnations, node);

    if (node == r->opts.self || incarnation == 0)
        return;
    answer_add_known(known, node, incarnation);
    a->n_known++;
}

/*
 * The bytes of an answer about key, or about no key in particular. What is known of other nodes
 * goes with it: of the key's other replicas, of all.
 */
static int encode_answer(struct replica *r, struct span key, struct answer *a, struct reply *out)
{
    struct buf known = {0};
    int err;

    a->clock_ms = r->opts.clock->mono_us(r->opts.clock) / 1000;
    a->incarnation = replica_incarnation(r);
    if (a->kind != ANS_ERROR && key.len > 0) {
        const unsigned *nodes = ring_replicas(r->opts.ring, key);

        for (unsigned i = 0; i < ring_n_replicas(r->opts.ring); i++)
            add_known(r, nodes[i], a, &known);
    } else if (a->kind != ANS_ERROR) {
        for (unsigned i = 0; i < ring_n_nodes(r->opts.ring); i++)
            add_known(r, i, a, &known);
    }
    a->known = buf_span(&known);
    err = known.err;
    if (err == 0) {
        answer_encode(&out->head,
                      a->kind == ANS_PROMISE || a->kind == ANS_STATE ? key : (struct span){0}, a);
        err = out->head.err;
    }
    buf_fini(&known);
    return err;
}

void replica_owners_json(const struct config *cfg, struct span key, struct buf *out)
{
    const unsigned *nodes = ring_replicas(cfg->ring, key);
    struct json j = {.out = out};

    json_begin(&j, '{');
    json_field_key(&j, "key", key);
    json_key(&j, "replicas");
    json_begin(&j, '[');
    for (unsigned i = 0; i < ring_n_replicas(cfg->ring); i++) {
        json_begin(&j, '{');
        json_key(&j, "id");
        json_str(&j, span_str(cfg->nodes[nodes[i]].id));
        json_key(&j, "addr");
        json_str(&j, span_str(cfg->nodes[nodes[i]].addr));
        json_end(&j, '}');
    }
    json_end(&j, ']');
    json_end(&j, '}');
    buf_u8(out, '\n');
}

void replica_answer_error(struct replica_request *rq, struct reply *out)
{
    struct answer a = {
        .kind = ANS_ERROR, .status = status_from_errno(rq->err), .text = span_str(rq->why.msg)};
    struct buf owners = {0};

    if (rq->err == -EREMCHG && rq->r->opts.cfg != NULL) {
        replica_owners_json(rq->r->opts.cfg, rq->m.key, &owners);
        if (owners.err == 0)
            a.text = buf_span(&owners);
    }
    *out = REPLY_NONE;
    out->status = a.status;
    if (encode_answer(rq->r, (struct span){0}, &a, out) < 0)
        /* No memory: the status alone, which no client takes for an answer. */
        buf_fini(&out->head);
    buf_fini(&owners);
}

/* --- one key --------------------------------------------------------------------------- */

static int present_load(struct replica *r, struct span key, bool want_value, struct present *out)
{
    struct store *s = r->opts.store;
    struct present p = {.item = STORE_ITEM_NONE};
    int err = s->ops->get(s, key, want_value, &p.item);

    if (err < 0)
        return err;
    if (p.item.record.len > 0)
        err = record_decode(buf_span(&p.item.record), key, &p.rec);
    if (err < 0)
        store_item_fini(&p.item);
    else
        *out = p;
    return err;
}

static int fail_load(struct replica_request *rq, int err)
{
    if (err == -EBADMSG)
        return request_fail(rq, err, "this node's record of the key is damaged");
    return request_fail(rq, err, "this node's store cannot read the key: %s", strerror(-err));
}

/*
 * Puts the bytes from offset on, as many as length, widened to whole chunks, behind the answer.
 * Bytes in memory are verified here, those in a file chunk by chunk: the first one here, the others
 * by reply_read().
 */
static int attach_value(struct present *p, uint64_t offset, uint64_t length, struct answer *a,
                        struct reply *out)
{
    uint64_t size = p->rec.size, from, to;
    int err;

    offset = offset < size ? offset : size;
    length = length < size - offset ? length : size - offset;
    from = offset - offset % CHUNK_SIZE;
    to = length == 0 ? from : (offset + length + CHUNK_SIZE - 1) / CHUNK_SIZE * CHUNK_SIZE;
    to = to < size ? to : size;
    a->has_value = true;
    a->value_offset = from;
    if (p->item.fd < 0) {
        if (p->item.value.len != size || record_verify(&p->rec, 0, value_span(p->item.value)) < 0)
            return -EBADMSG;
        out->value = value_slice(p->item.value, (size_t)from, (size_t)(to - from));
        return 0;
    }
    err = record_copy(&p->rec, &out->rec);
    if (err < 0)
        return err;
    out->fd = p->item.fd; /* the reply's from here */
    p->item.fd = -1;
    out->file_offset = from;
    out->file_len = to - from;
    return reply_check(out);
}

/*
 * A put that failed may be on the disk all the same, and show only after the next start. A promise
 * says what this node has: none is made in such doubt. It ends with the process, or with a write
 * that succeeds, for the store begins a new log after a failure.
 */
static int check_certain(struct replica_request *rq)
{
    struct replica *r = rq->r;
    uint64_t n_doubts = atomic_load(&r->n_doubts);
    int err;

    if (n_doubts == atomic_load(&r->n_settled))
        return 0;
    err = r->opts.store->ops->probe(r->opts.store);
    if (err < 0)
        return request_fail(rq, err, "a write failed, and may show after a restart: %s",
                            strerror(-err));
    atomic_store(&r->n_settled, n_doubts);
    return 0;
}

static int prepare(struct replica_request *rq, struct reply *out)
{
    struct replica *r = rq->r;
    const struct message *m = &rq->m;
    bool want_value = m->flags & MSG_WANT_VALUE;
    struct answer a = {.kind = ANS_REFUSE};
    struct present p = {.item = STORE_ITEM_NONE};
    unsigned slot = promises_lock(r->promises, m->key);
    int err = request_check_late(rq);

    if (err == 0)
        err = check_certain(rq);
    if (err == 0) {
        err = present_load(r, m->key, want_value, &p);
        if (err < 0)
            (void)fail_load(rq, err);
    }
    if (err == 0) {
        a.ballot = ballot_max(promises_get(r->promises, slot), p.rec.version);
        if (ballot_cmp(m->ballot, a.ballot) > 0) {
            err = promises_raise(r->promises, slot, m->ballot);
            a.kind = ANS_PROMISE;
        }
    }
    promises_unlock(r->promises, slot);
    if (err < 0) {
        (void)request_fail(rq, err, "cannot make the promise durable: %s", strerror(-err));
        goto out;
    }
    if (a.kind == ANS_PROMISE) {
        a.ballot = BALLOT_NONE;
        a.record = p.rec;
        if (want_value && record_is_live(&p.rec) && p.rec.size <= m->length)
            err = attach_value(&p, 0, UINT64_MAX, &a, out);
        if (err < 0) {
            (void)fail_load(rq, err);
            goto out;
        }
    }
    err = encode_answer(r, m->key, &a, out);
    if (err < 0)
        (void)request_fail(rq, err, "no memory for the answer");
out:
    store_item_fini(&p.item);
    return err;
}

/*
 * What an ACCEPT of b is answered without storing anything: ANS_ACCEPTED (again), ANS_REFUSE; or 0:
 * it is to be stored. Slot is locked.
 */
static int judge_accept_locked(struct replica *r, unsigned slot, struct ballot b,
                               const struct record *present, struct ballot *top)
{
    struct ballot promised = promises_get(r->promises, slot);

    if (ballot_cmp(b, present->version) == 0)
        return ANS_ACCEPTED;
    *top = ballot_max(promised, present->version);
    return ballot_cmp(b, *top) < 0 ? ANS_REFUSE : 0;
}

int replica_foresee(struct replica_request *rq, bool *settled)
{
    struct replica *r = rq->r;
    struct present p = {.item = STORE_ITEM_NONE};
    struct ballot top;
    unsigned slot = promises_lock(r->promises, rq->m.key);
    int err = present_load(r, rq->m.key, false, &p);

    if (err == 0)
        *settled = judge_accept_locked(r, slot, rq->m.record.version, &p.rec, &top) != 0;
    promises_unlock(r->promises, slot);
    store_item_fini(&p.item);
    return err < 0 ? fail_load(rq, err) : 0;
}

/*
 * Is the value stored under version `pin`, and is it the one that the record of this message means?
 */
static bool has_same_value(const struct message *m, const struct record *present)
{
    return ballot_cmp(present->version, m->pin) == 0 && record_is_live(present) &&
           present->size == m->record.size && span_eq(present->sums, m->record.sums);
}

/* The part of ACCEPT under the lock of its slot. record: the encoded one, to be stored. */
static int accept_locked(struct replica_request *rq, unsigned slot, struct span record,
                         struct answer *a)
{
    struct replica *r = rq->r;
    struct store *s = r->opts.store;
    const struct message *m = &rq->m;
    bool keep = m->flags & MSG_SAME_VALUE, same = false;
    struct present p = {.item = STORE_ITEM_NONE};
    int err = request_check_late(rq), verdict;

    if (err < 0)
        return err;
    err = present_load(r, m->key, false, &p);
    if (err < 0)
        return fail_load(rq, err);
    verdict = judge_accept_locked(r, slot, m->record.version, &p.rec, &a->ballot);
    same = has_same_value(m, &p.rec);
    store_item_fini(&p.item);
    a->kind = verdict != 0 ? (enum answer_kind)verdict : ANS_ACCEPTED;
    if (a->kind != ANS_REFUSE)
        a->ballot = BALLOT_NONE;
    if (verdict != 0)
        return 0;
    if (keep && !same) {
        a->kind = ANS_NEED_VALUE;
        return 0;
    }
    /* What was foreseen is no longer so: only a damaged or dropped record can do that. */
    if (rq->settled)
        return request_fail(rq, -EAGAIN, "the key changed meanwhile; the value was not kept");
    err = promises_raise(r->promises, slot, m->record.version);
    if (err == 0) {
        err = s->ops->put(s, m->key, record, buf_span(&rq->value), rq->file, keep);
        if (err < 0)
            atomic_fetch_add(&r->n_doubts, 1);
    }
    if (err < 0)
        return request_fail(rq, err, "cannot store: %s", strerror(-err));
    rq->file = NULL; /* the store's from here */
    return 0;
}

static int accept(struct replica_request *rq, struct reply *out)
{
    struct replica *r = rq->r;
    struct answer a = {0};
    struct buf record = {0};
    unsigned slot;
    int err;

    record_encode(&record, rq->m.key, &rq->m.record);
    if (record.err < 0) {
        err = request_fail(rq, -ENOMEM, "no memory for the record");
        goto out;
    }
    slot = promises_lock(r->promises, rq->m.key);
    err = accept_locked(rq, slot, buf_span(&record), &a);
    promises_unlock(r->promises, slot);
    if (err < 0)
        goto out;
    err = encode_answer(r, rq->m.key, &a, out);
    if (err < 0)
        (void)request_fail(rq, err, "no memory for the answer");
out:
    buf_fini(&record);
    return err;
}

static int read_key(struct replica_request *rq, struct reply *out)
{
    struct replica *r = rq->r;
    const struct message *m = &rq->m;
    bool want_value = m->flags & MSG_WANT_VALUE;
    struct answer a = {.kind = ANS_STATE};
    struct present p = {.item = STORE_ITEM_NONE};
    struct buf below = {0};
    int err = present_load(r, m->key, want_value, &p);

    if (err < 0)
        return fail_load(rq, err);
    a.record = p.rec;
    if (want_value && record_is_live(&p.rec) &&
        (ballot_is_none(m->pin) || ballot_cmp(m->pin, p.rec.version) == 0))
        err = attach_value(&p, m->offset, m->length, &a, out);
    if (err < 0) {
        (void)fail_load(rq, err);
        goto out;
    }
    if (m->flags & MSG_PEEK)
        err = scan_below(r->opts.store, m->key, &below, &a.peek, &a.has_peek);
    if (err < 0) {
        (void)request_fail(rq, err, "this node's store cannot tell what is below the key: %s",
                           strerror(-err));
        goto out;
    }
    err = encode_answer(r, m->key, &a, out);
    if (err < 0)
        (void)request_fail(rq, err, "no memory for the answer");
out:
    buf_fini(&below);
    store_item_fini(&p.item);
    return err;
}

/* --- all keys, the node itself --------------------------------------------------------- */

static int list(struct replica_request *rq, struct reply *out)
{
    struct replica *r = rq->r;
    struct answer a = {.kind = ANS_LIST};
    struct buf entries = {0};
    int err = scan_list(r->opts.store, &rq->m, &entries, &a.n_entries, &a.more);

    if (err < 0) {
        (void)request_fail(rq, err, "this node's store cannot be listed: %s",
                           err == -EBADMSG ? "a record is damaged" : strerror(-err));
        goto out;
    }
    err = encode_answer(r, (struct span){0}, &a, out);
    buf_add_span(&out->head, buf_span(&entries));
    if (err == 0)
        err = out->head.err;
    if (err < 0)
        (void)request_fail(rq, err, "no memory for the answer");
out:
    buf_fini(&entries);
    return err;
}

static int hello(struct replica_request *rq, struct reply *out)
{
    struct replica *r = rq->r;
    struct store *s = r->opts.store;
    const struct message *m = &rq->m;
    struct answer a = {.kind = ANS_HELLO, .floor = promises_floor(r->promises)};
    struct store_stats stats;
    int err = 0;

    if (m->node != MESSAGE_NODE_NONE && m->node >= ring_n_nodes(r->opts.ring))
        return request_fail(rq, -EINVAL, "no node has the index %" PRIu32, m->node);
    if (m->node != MESSAGE_NODE_NONE && m->node != r->opts.self)
        err = incarnations_learn(r->incarnations, m->node, m->incarnation);
    if (err == 0)
        err = s->ops->stats(s, &stats);
    if (err < 0)
        return request_fail(rq, err, "this node's store fails: %s", strerror(-err));
    a.disk_free = stats.disk_free;
    a.disk_total = stats.disk_total;
    a.n_keys = stats.n_keys;
    err = encode_answer(r, (struct span){0}, &a, out);
    return err < 0 ? request_fail(rq, err, "no memory for the answer") : 0;
}

int replica_perform(struct replica_request *rq, struct reply *out)
{
    switch (rq->m.kind) {
    case MSG_PREPARE:
        return prepare(rq, out);
    case MSG_ACCEPT:
        return accept(rq, out);
    case MSG_READ:
        return read_key(rq, out);
    case MSG_LIST:
        return list(rq, out);
    case MSG_HELLO:
        return hello(rq, out);
    }
    return request_fail(rq, -EINVAL, "unknown kind of request");
}

/* --- for people ------------------------------------------------------------------------ */

/* The whole value of p, verified, in memory. */
static int load_value(struct present *p, struct value *out)
{
    struct answer a = {0};
    struct reply reply = REPLY_NONE;
    struct blob *blob = NULL;
    int64_t n;
    int err = attach_value(p, 0, UINT64_MAX, &a, &reply);

    if (err < 0)
        goto out;
    if (reply.fd < 0) {
        *out = value_ref(reply.value);
        goto out;
    }
    blob = blob_new((size_t)reply.file_len);
    if (blob == NULL) {
        err = -ENOMEM;
        goto out;
    }
    n = reply_read(&reply, 0, blob->data, blob->len);
    if (n < 0) {
        err = (int)n;
        goto out;
    }
    assert((size_t)n == blob->len);
    *out = (struct value){.blob = blob, .data = blob->data, .len = blob->len};
    blob = NULL;
out:
    blob_unref(blob);
    reply_fini(&reply);
    return err;
}

int replica_peek(struct replica *r, struct span key, struct record_copy *rec, struct value *value)
{
    struct present p = {.item = STORE_ITEM_NONE};
    struct record_copy copy = {0};
    struct value v = {0};
    int err = key_check(key);

    if (err == 0 && !ring_is_replica(r->opts.ring, key, r->opts.self))
        err = -EREMCHG;
    if (err == 0)
        err = present_load(r, key, true, &p);
    if (err < 0)
        return err;
    err = record_copy(&p.rec, &copy);
    if (err == 0 && record_is_live(&p.rec))
        err = load_value(&p, &v);
    if (err < 0) {
        record_copy_fini(&copy);
    } else {
        *rec = copy;
        *value = v;
    }
    store_item_fini(&p.item);
    return err;
}

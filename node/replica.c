/*
 * replica.c - one node's part of docs/protocol.md: its life from start to stop, how it answers, and
 * what it answers about itself and all keys. replica_key.c has the messages about one key,
 * replica_repair.c those of repair.
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
#include "node/present.h"
#include "node/scan.h"

#define FLOOR_AHEAD_US 10000000u

/* --- opening ------------------------------------------------------------------------- */

int replica_open(const struct replica_opts *opts, struct replica **out, struct err *err)
{
    struct incarnations_opts io = {.store = opts->store,
                                   .cfg = opts->cfg,
                                   .n_nodes = ring_n_nodes(opts->ring),
                                   .self = opts->self,
                                   .born_us = opts->clock->wall_us(opts->clock),
                                   .seed = opts->seed,
                                   .distrusted = opts->distrusted};
    struct replica *r = calloc(1, sizeof(*r));
    int ret;

    if (r == NULL)
        return err_set(err, -ENOMEM, "no memory for the replica");
    r->opts = *opts;
    if (r->opts.floor_ahead_us == 0)
        r->opts.floor_ahead_us = FLOOR_AHEAD_US;
    if (r->opts.max_value_size == 0)
        r->opts.max_value_size = VALUE_SIZE_DEFAULT_MAX;
    ret = damage_new(&r->damage);
    if (ret == 0)
        ret = digests_new(opts->ring, opts->self, &r->digests);
    if (ret < 0)
        err_set(err, ret, "no memory for the digests");
    if (ret == 0)
        ret = incarnations_open(&io, &r->incarnations, err);
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
    digests_free(r->digests);
    damage_free(r->damage);
    free(r);
}

uint64_t replica_incarnation(const struct replica *r)
{
    return incarnations_get(r->incarnations, r->opts.self);
}

int replica_learn(struct replica *r, unsigned node, const struct answer *hello)
{
    bool votes = hello->recovering != NODE_RECOVERING;
    int err = incarnations_learn(r->incarnations, node, hello->incarnation, votes);

    for (uint32_t i = 0; err == 0 && i < hello->n_known; i++) {
        uint64_t incarnation;
        uint32_t index;
        bool is_whole;

        answer_known(hello, i, &index, &incarnation);
        is_whole = index & KNOWN_WHOLE;
        index &= ~KNOWN_WHOLE;
        if (index < ring_n_nodes(r->opts.ring) && index != r->opts.self)
            err = incarnations_learn(r->incarnations, index, incarnation, is_whole);
    }
    return err;
}

/* --- recovery ------------------------------------------------------------------------ */

bool replica_recovering(const struct replica *r)
{
    return incarnations_recovering(r->incarnations);
}

bool replica_superseded(const struct replica *r)
{
    return incarnations_superseded(r->incarnations);
}

bool replica_votes(const struct replica *r)
{
    return !replica_recovering(r) && !replica_superseded(r);
}

enum node_state replica_state(const struct replica *r)
{
    if (replica_votes(r))
        return NODE_WHOLE;
    return replica_recovering(r) && atomic_load(&r->announcing) ? NODE_ANNOUNCING : NODE_RECOVERING;
}

void replica_announce(struct replica *r)
{
    atomic_store(&r->announcing, true);
}

int replica_renew(struct replica *r, uint64_t than)
{
    atomic_store(&r->announcing, false);
    return incarnations_renew(r->incarnations, than);
}

void replica_supersede(struct replica *r)
{
    incarnations_supersede(r->incarnations);
}

int replica_recovered(struct replica *r, uint64_t floor)
{
    int err = 0;

    if (floor > BALLOT_COUNTER_MAX)
        return -EINVAL;
    /* No RESTORE is under way while all slots are locked: the next one meets a node that votes. */
    promises_lock_all(r->promises);
    if (!replica_recovering(r))
        err = -EINVAL;
    if (err == 0)
        err = promises_raise_all(r->promises, floor);
    if (err == 0)
        err = incarnations_recovered(r->incarnations);
    promises_unlock_all(r->promises);
    return err;
}

int replica_found(struct replica *r, const struct founder *others, unsigned n)
{
    int err;

    promises_lock_all(r->promises);
    err = incarnations_found(r->incarnations, others, n);
    promises_unlock_all(r->promises);
    return err;
}

/* --- answers ------------------------------------------------------------------------- */

static void add_known(uint32_t node, uint64_t incarnation, struct answer *a, struct buf *known)
{
    if (incarnation == 0)
        return;
    answer_add_known(known, node, incarnation);
    a->n_known++;
}

/* What is known of other nodes: of the key's other replicas, of all. */
static void add_all_known(const struct replica *r, struct span key, struct answer *a,
                          struct buf *known)
{
    const unsigned *nodes = key.len > 0 ? ring_replicas(r->opts.ring, key) : NULL;
    unsigned n = nodes != NULL ? ring_n_replicas(r->opts.ring) : ring_n_nodes(r->opts.ring);

    for (unsigned i = 0; i < n; i++) {
        unsigned node = nodes != NULL ? nodes[i] : i;

        if (node != r->opts.self)
            add_known(node, incarnations_get(r->incarnations, node), a, known);
    }
}

/* The same in an answer to HELLO, with those that are whole. */
static void add_lives(const struct replica *r, uint32_t asker, struct answer *a, struct buf *known)
{
    const struct incarnations *in = r->incarnations;

    for (unsigned i = 0; i < ring_n_nodes(r->opts.ring); i++) {
        if (i == r->opts.self)
            continue;
        add_known(i, i == asker ? incarnations_highest(in, i) : incarnations_get(in, i), a, known);
        add_known(i | KNOWN_WHOLE, incarnations_whole(in, i), a, known);
    }
}

/* The bytes of an answer about key, or about no key in particular. asker: of HELLO. */
static int encode_answer(struct replica *r, struct span key, uint32_t asker, struct answer *a,
                         struct reply *out)
{
    struct buf known = {0};
    int err;

    a->clock_ms = r->opts.clock->mono_us(r->opts.clock) / 1000;
    a->incarnation = replica_incarnation(r);
    if (a->kind == ANS_HELLO)
        add_lives(r, asker, a, &known);
    else if (a->kind != ANS_ERROR)
        add_all_known(r, key, a, &known);
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

int replica_answer(struct replica_request *rq, struct span key, struct answer *a, struct reply *out)
{
    int err = encode_answer(rq->r, key, rq->m.node, a, out);

    return err < 0 ? request_fail(rq, err, "no memory for the answer") : 0;
}

int replica_fail_load(struct replica_request *rq, int err)
{
    if (err == -EBADMSG)
        return request_fail(rq, err, "this node's record of the key is damaged");
    return request_fail(rq, err, "this node's store cannot read the key: %s", strerror(-err));
}

int replica_check_certain(struct replica_request *rq)
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

void replica_note_damage(struct replica *r, int err)
{
    bool overfull = atomic_load(&r->overfull) && atomic_exchange(&r->overfull, false);

    if ((overfull || err == -EBADMSG) && r->opts.on_store_damage != NULL)
        r->opts.on_store_damage(r->opts.on_damage_arg);
}

void replica_answer_error(struct replica_request *rq, struct reply *out)
{
    struct answer a = {
        .kind = ANS_ERROR, .status = status_from_errno(rq->err), .text = span_str(rq->why.msg)};
    const struct config *cfg = rq->r->opts.cfg;
    struct buf json = {0};

    if (rq->err == -EREMCHG && cfg != NULL)
        config_owners_json(cfg, rq->m.key, &json);
    else if (rq->err == -EBADE && rq->m.ring == ring_fingerprint(rq->r->opts.ring))
        buf_add_span(&json, rq->r->opts.placed_by);
    else if (rq->err == -EBADE && cfg != NULL)
        config_ring_json(cfg, &json);
    if (json.err == 0 && json.len > 0)
        a.text = buf_span(&json);
    *out = REPLY_NONE;
    out->status = a.status;
    if (encode_answer(rq->r, (struct span){0}, MESSAGE_NODE_NONE, &a, out) < 0)
        /* No memory: the status alone, which no client takes for an answer. */
        buf_fini(&out->head);
    buf_fini(&json);
}

/* --- all keys, the node itself ------------------------------------------------------- */

static int list(struct replica_request *rq, struct reply *out)
{
    struct answer a = {.kind = ANS_LIST};
    struct buf entries = {0};
    int err = scan_list(rq->r, &rq->m, &entries, &a.n_entries, &a.more);

    if (err < 0) {
        (void)request_fail(rq, err, "this node's store cannot be listed: %s", strerror(-err));
        goto out;
    }
    err = replica_answer(rq, (struct span){0}, &a, out);
    if (err < 0)
        goto out;
    buf_add_span(&out->head, buf_span(&entries));
    if (out->head.err < 0)
        err = request_fail(rq, out->head.err, "no memory for the answer");
out:
    buf_fini(&entries);
    return err;
}

/* What the store can tell is filled in; 0, or why that is not all. */
static int hello_stats(struct replica *r, struct answer *a)
{
    struct store *s = r->opts.store;
    struct store_stats stats = {0};
    bool empty = false;
    int err = s->ops->stats(s, &stats);

    /* The store only estimates their number; that a recovering one has none must be certain. */
    if (err == 0 && replica_recovering(r))
        err = store_is_empty(s, &empty);
    a->disk_free = stats.disk_free;
    a->disk_total = stats.disk_total;
    a->n_bytes = stats.n_bytes;
    a->n_keys = stats.n_keys;
    a->store = span_str(s->ops->kind);
    if (replica_recovering(r))
        a->n_keys = empty ? 0 : stats.n_keys > 0 ? stats.n_keys : 1;
    return err;
}

/* Why the store does not work, if so: by the last probe, or because it just failed. */
static struct span hello_ailment(struct replica *r, int stats_err, struct err *why)
{
    why->msg[0] = '\0';
    if ((r->opts.watch == NULL || watch_explain(r->opts.watch, why) == 0) && stats_err < 0)
        store_explain(r->opts.store, stats_err, why);
    return span_of(why->msg, strnlen(why->msg, HELLO_TEXT_MAX));
}

static int hello(struct replica_request *rq, struct reply *out)
{
    struct replica *r = rq->r;
    const struct message *m = &rq->m;
    bool of_peer = m->node != MESSAGE_NODE_NONE && m->node != r->opts.self;
    struct answer a = {.kind = ANS_HELLO};
    struct err ailment;
    int err = 0;

    if (of_peer && m->node >= ring_n_nodes(r->opts.ring))
        return request_fail(rq, -EINVAL, "no node has the index %" PRIu32, m->node);
    if (of_peer)
        err = incarnations_on_hello(r->incarnations, m->node, m->incarnation, m->recovering,
                                    r->opts.clock->mono_us(r->opts.clock));
    if (err < 0)
        return request_fail(rq, err, "this node's store fails: %s", strerror(-err));
    /* That a store fails is for HELLO to tell, and no reason to be silent. */
    a.ailment = hello_ailment(r, hello_stats(r, &a), &ailment);
    /*
     * After it has learned, not before: what is promised from then on goes out with the name of the
     * sender's new life, and what was promised until then is below this floor.
     */
    a.floor = promises_floor(r->promises);
    if (!replica_votes(r)) {
        a.recovering = NODE_RECOVERING;
        if (replica_superseded(r) && a.n_keys == 0)
            a.n_keys = 1; /* else it would be taken for one that never had anything */
    } else if (of_peer && incarnations_cofounder(r->incarnations, m->node, m->incarnation)) {
        a.recovering = NODE_COFOUNDER;
    }
    return replica_answer(rq, (struct span){0}, &a, out);
}

int replica_perform(struct replica_request *rq, struct reply *out)
{
    switch (rq->m.kind) {
    case MSG_PREPARE:
        return replica_prepare(rq, out);
    case MSG_ACCEPT:
        return replica_accept(rq, out);
    case MSG_READ:
        return replica_read(rq, out);
    case MSG_LIST:
        return list(rq, out);
    case MSG_HELLO:
        return hello(rq, out);
    case MSG_DIGEST:
        return replica_digest(rq, out);
    case MSG_KEYS:
        return replica_keys(rq, out);
    case MSG_DROP:
        return replica_drop(rq, out);
    }
    return request_fail(rq, -EINVAL, "unknown kind of request");
}

/* --- for people ---------------------------------------------------------------------- */

int replica_peek(struct replica *r, struct span key, struct record_copy *rec, struct reply *value)
{
    struct present p = PRESENT_NONE;
    struct record_copy copy = {0};
    struct reply v = REPLY_NONE;
    struct answer a = {0};
    int err = key_check(key);

    if (err == 0 && r->opts.placed_by.len > 0)
        err = -EBADE;
    if (err == 0 && !ring_is_replica(r->opts.ring, key, r->opts.self))
        err = -EREMCHG;
    if (err == 0 && !replica_votes(r))
        err = -EAGAIN;
    if (err == 0)
        err = present_load(r, key, true, &p);
    if (err < 0)
        return err;
    if (p.state != PRESENT_WHOLE)
        err = -EBADMSG;
    if (err == 0)
        err = record_copy(&p.rec, &copy);
    if (err == 0 && record_is_live(&p.rec))
        err = replica_attach(r, key, &p, 0, UINT64_MAX, &a, &v);
    if (err == 0)
        err = reply_check(&v);
    if (err == -EBADMSG)
        present_damaged(r, key, p.state == PRESENT_WHOLE ? p.rec.version : BALLOT_NONE);
    if (err < 0) {
        record_copy_fini(&copy);
        reply_fini(&v);
    } else {
        *rec = copy;
        *value = v;
    }
    present_fini(&p);
    return err;
}

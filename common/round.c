/*
 * round.c - one message to several nodes: sending, decoding and verifying what comes back,
 * counting, and telling health about it.
 */
#include "common/op.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/spool.h"
#include "common/status.h"

/* A call that carries this much says nothing about a node's usual latency. */
#define LARGE_CALL (64u << 10)
/* The slowest network that large values are planned for, in bytes per microsecond. */
#define SLOWEST_BYTES_PER_US 8u
/* Of a value that is wanted whole, whatever its size. */
#define READ_ALL_PLANNED (64u << 20)

/* After a call has become slow, its timer has told health by then. */
#define SLOW_TOLD_US 1000u

static void leg_done(struct call *call, int err, struct blob *answer);
static void leg_arrived(struct call *call, struct blob *answer, size_t len);

struct round *round_new(struct op *op, struct span key, const unsigned *nodes, unsigned n,
                        unsigned n_votes, unsigned need,
                        void (*on_answer)(struct round *, struct leg *))
{
    struct round *r = calloc(1, sizeof *r + n * sizeof r->legs[0]);

    if (r == NULL)
        return NULL;
    if (tally_init(&r->tally, n_votes, need) < 0) {
        free(r);
        return NULL;
    }
    buf_add_span(&r->key, key);
    if (r->key.err != 0) {
        tally_fini(&r->tally);
        buf_fini(&r->key);
        free(r);
        return NULL;
    }
    r->c = op->c;
    r->op = op;
    r->on_answer = on_answer;
    r->deadline_us = op->deadline_us;
    r->n = n;
    r->n_votes = n_votes;
    for (unsigned i = 0; i < n; i++) {
        r->legs[i].round = r;
        r->legs[i].node = nodes[i];
        list_init(&r->legs[i].waiting);
    }
    op->c->n_rounds++;
    round_drop(op);
    op->round = r;
    return r;
}

static void round_free(struct round *r)
{
    for (unsigned i = 0; i < r->n; i++) {
        buf_fini(&r->legs[i].head);
        blob_unref(r->legs[i].body);
    }
    value_fini(&r->body);
    value_fini(&r->tail);
    tally_fini(&r->tally);
    buf_fini(&r->key);
    r->c->n_rounds--;
    free(r);
}

void round_drop(struct op *op)
{
    struct round *r = op->round;

    if (r == NULL)
        return;
    op->round = NULL;
    r->op = NULL;
    if (r->in_flight == 0)
        round_free(r);
}

/* --- who is slow ------------------------------------------------------------------------------ */

static void slow_rearm(struct client *c)
{
    struct transport *t = c->opts.transport;
    struct leg *oldest;

    if (list_empty(&c->waiting)) {
        t->ops->timer_clear(t, &c->slow_timer);
        return;
    }
    oldest = container_of(c->waiting.next, struct leg, waiting);
    if (c->slow_timer.slot == 0 || c->slow_timer.due_us != oldest->slow_us)
        t->ops->timer_set(t, &c->slow_timer, oldest->slow_us);
}

static void on_slow(struct timer *timer)
{
    struct client *c = container_of(timer, struct client, slow_timer);
    uint64_t now = transport_now_us(c->opts.transport);

    while (!list_empty(&c->waiting)) {
        struct leg *leg = container_of(c->waiting.next, struct leg, waiting);

        if (leg->slow_us > now)
            break;
        list_remove(&leg->waiting);
        health_slow(c->opts.health, leg->node, now);
    }
    slow_rearm(c);
}

/*
 * The list stays sorted by when each leg becomes slow: nearly always that is the order of sending.
 */
static void slow_watch(struct leg *leg)
{
    struct client *c = leg->round->c;
    struct list *at = c->waiting.prev;

    while (at != &c->waiting && container_of(at, struct leg, waiting)->slow_us > leg->slow_us)
        at = at->prev;
    list_insert(at->next, &leg->waiting);
    c->slow_timer.fire = on_slow;
    if (c->waiting.next == &leg->waiting)
        slow_rearm(c);
}

/* --- sending and hearing ---------------------------------------------------------------------- */

void round_send(struct round *r, unsigned i, struct message *m)
{
    struct client *c = r->c;
    struct leg *leg = &r->legs[i];
    uint64_t now = transport_now_us(c->opts.transport);
    uint64_t left_ms = r->deadline_us > now ? (r->deadline_us - now + 999) / 1000 : 1;
    uint64_t bytes = r->body.len + r->tail.len;

    assert(!leg->sent);
    leg->sent = true;
    if (i < r->n_votes)
        tally_ask(&r->tally, i);
    m->ring = ring_fingerprint(c->opts.ring);
    m->budget_ms = left_ms > UINT32_MAX ? UINT32_MAX : (uint32_t)left_ms;
    m->deadline_ms = health_node_deadline_ms(c->opts.health, leg->node, now, left_ms);
    m->key = buf_span(&r->key);
    leg->asked = m->kind;
    message_encode(&leg->head, m);
    if (m->kind == MSG_READ && (m->flags & MSG_WANT_VALUE))
        bytes += m->length == READ_ALL ? READ_ALL_PLANNED : m->length;
    leg->sent_us = now;
    leg->slow_us = now + health_slow_us(c->opts.health, leg->node) + bytes / SLOWEST_BYTES_PER_US;
    leg->call.node = leg->node;
    leg->call.head = buf_span(&leg->head);
    leg->call.body = r->body;
    leg->call.tail = r->tail;
    leg->call.deadline_us = r->deadline_us > now ? r->deadline_us : now + 1;
    leg->call.done = leg_done;
    leg->call.arrived = leg_arrived;
    r->in_flight++;
    slow_watch(leg);
    c->opts.transport->ops->send(c->opts.transport, &leg->call);
}

void round_agreed(struct round *r, unsigned i, uint64_t incarnation)
{
    assert(i < r->n_votes && !r->legs[i].sent);
    r->legs[i].sent = r->legs[i].ended = true;
    tally_vote(&r->tally, i, VOTE_YES, incarnation);
}

/* Is an answer of this kind one to that request? Another must not be counted for what it is not. */
static bool answers(enum answer_kind kind, enum message_kind asked)
{
    if (kind == ANS_ERROR)
        return true;
    switch (asked) {
    case MSG_PREPARE:
        return kind == ANS_PROMISE || kind == ANS_REFUSE;
    case MSG_ACCEPT:
        return kind == ANS_ACCEPTED || kind == ANS_REFUSE || kind == ANS_NEED_VALUE;
    case MSG_READ:
        return kind == ANS_STATE;
    case MSG_LIST:
        return kind == ANS_LIST;
    case MSG_HELLO:
        return kind == ANS_HELLO;
    case MSG_DIGEST:
        return kind == ANS_DIGEST;
    case MSG_KEYS:
        return kind == ANS_KEYS;
    case MSG_DROP:
        return kind == ANS_ACCEPTED || kind == ANS_REFUSE;
    }
    return false;
}

/*
 * A large value is verified as it comes: all at once would hold up the loop, and whatever else is
 * on it. What does not match is found again, and told, when the answer is complete.
 */
static void leg_arrived(struct call *call, struct blob *answer, size_t len)
{
    struct leg *leg = container_of(call, struct leg, call);
    struct answer a;
    struct value v;
    size_t head_len, have;

    if (answer->len <= MEMORY_BLOB_MAX || len < leg->verify_at)
        return;
    leg->verify_at = len + CHUNK_SIZE;
    if (answer_decode(span_of(answer->data, len), buf_span(&leg->round->key), &a, &head_len) < 0 ||
        !a.has_value)
        return;
    v = (struct value){answer, answer->data + head_len, len - head_len};
    have = v.len - v.len % CHUNK_SIZE;
    if (have <= leg->verified ||
        record_verify(&a.record, a.value_offset + leg->verified,
                      span_of(v.data + leg->verified, have - leg->verified)) < 0)
        return;
    spool_pass(v, leg->verified, have);
    leg->verified = have;
}

static int verify_rest(const struct leg *leg)
{
    struct span v = value_span(leg->value);

    if (leg->verified > v.len)
        return -EBADMSG;
    return record_verify(&leg->ans.record, leg->ans.value_offset + leg->verified,
                         span_of(v.data + leg->verified, v.len - leg->verified));
}

/*
 * Makes sense of the bytes that came back: fills leg->ans and value, or returns why they are of no
 * use.
 */
static int leg_decode(struct leg *leg, struct blob *body)
{
    size_t head_len = 0;
    int err = answer_decode(span_of(body->data, body->len), buf_span(&leg->round->key), &leg->ans,
                            &head_len);

    if (err < 0)
        return -EPROTO; /* no answer at all, or one cut short: that says nothing of the data */
    if (!answers(leg->ans.kind, leg->asked)) {
        leg->ans = (struct answer){0};
        return -EPROTO;
    }
    leg->body = blob_ref(body);
    if (leg->ans.kind == ANS_ERROR) {
        err = status_to_errno(leg->ans.status);
        return err < 0 ? err : -EPROTO;
    }
    if (leg->ans.has_value) {
        leg->value = (struct value){leg->body, body->data + head_len, body->len - head_len};
        return verify_rest(leg);
    }
    if (leg->ans.kind == ANS_LIST || leg->ans.kind == ANS_KEYS)
        leg->value = (struct value){leg->body, body->data + head_len, body->len - head_len};
    else if (head_len != body->len)
        return -EBADMSG;
    return 0;
}

static void leg_count(struct round *r, struct leg *leg)
{
    unsigned i = (unsigned)(leg - r->legs);
    enum vote vote = VOTE_FAILED;
    uint64_t incarnation = 0;

    if (leg->body != NULL) {
        incarnation = leg->ans.incarnation;
        for (uint32_t k = 0; k < leg->ans.n_known; k++) {
            uint32_t node;
            uint64_t known;

            answer_known(&leg->ans, k, &node, &known);
            for (unsigned j = 0; j < r->n_votes; j++)
                if (r->legs[j].node == node)
                    tally_known(&r->tally, j, known);
        }
    }
    if (leg->err == 0)
        vote = leg->ans.kind == ANS_REFUSE || leg->ans.kind == ANS_NEED_VALUE ? VOTE_NO : VOTE_YES;
    if (i < r->n_votes)
        tally_vote(&r->tally, i, vote, incarnation);
}

static void leg_tell_health(const struct leg *leg, size_t answer_len)
{
    struct client *c = leg->round->c;
    uint64_t now = transport_now_us(c->opts.transport);
    bool large = leg->call.body.len + leg->call.tail.len + answer_len > LARGE_CALL;

    if (leg->body != NULL) {
        health_answered(c->opts.health, leg->node, now, now - leg->sent_us, large,
                        leg->ans.clock_ms, leg->ans.incarnation);
        if (leg->err == 0 && leg->ans.kind == ANS_HELLO) {
            health_hello(c->opts.health, leg->node, leg->ans.disk_free, leg->ans.disk_total,
                         leg->ans.n_keys, leg->ans.recovering == NODE_RECOVERING);
            health_store(c->opts.health, leg->node, now, leg->ans.n_bytes, leg->ans.store,
                         leg->ans.ailment);
        } else if (leg->ans.kind == ANS_ERROR && leg->ans.status >= 500) {
            health_refused(c->opts.health, leg->node);
        }
    } else if (transport_err_of_node(leg->err) && (leg->err != -ETIMEDOUT || now >= leg->slow_us)) {
        /* A call that was given little time proves nothing by running out of it. */
        health_failed(c->opts.health, leg->node, now, leg->err);
    }
}

static void leg_done(struct call *call, int err, struct blob *answer)
{
    struct leg *leg = container_of(call, struct leg, call);
    struct round *r = leg->round;

    if (r->c->waiting.next == &leg->waiting) {
        list_remove(&leg->waiting);
        slow_rearm(r->c);
    } else {
        list_remove(&leg->waiting);
    }
    leg->ended = true;
    leg->err = err < 0 ? err : leg_decode(leg, answer);
    leg_tell_health(leg, answer != NULL ? answer->len : 0);
    blob_unref(answer);
    if (leg->err == 0 && leg->ans.kind == ANS_REFUSE)
        client_saw(r->c, leg->ans.ballot); /* also when nobody listens any more */
    leg_count(r, leg);
    r->in_flight--;
    if (r->op != NULL) {
        r->on_answer(r, leg); /* may drop the round, which frees it when this was the last leg */
        return;
    }
    if (r->on_late != NULL)
        r->on_late(r, leg);
    if (r->in_flight == 0)
        round_free(r);
}

unsigned round_next(const struct round *r)
{
    unsigned i = 0;

    while (i < r->n && r->legs[i].sent)
        i++;
    return i;
}

unsigned round_pending(const struct round *r)
{
    return r->in_flight;
}

bool round_awaits(const struct round *r)
{
    for (unsigned i = 0; i < r->n; i++)
        if (r->legs[i].sent && !r->legs[i].ended && health_up(r->c->opts.health, r->legs[i].node))
            return true;
    return false;
}

uint64_t round_slow_us(const struct round *r)
{
    uint64_t until = 0;

    for (unsigned i = 0; i < r->n; i++)
        if (r->legs[i].sent && !r->legs[i].ended && r->legs[i].slow_us > until)
            until = r->legs[i].slow_us;
    return until != 0 ? until + SLOW_TOLD_US : UINT64_MAX;
}

uint64_t round_hedge_us(const struct round *r)
{
    uint64_t wait = 0;

    for (unsigned i = 0; i < r->n; i++) {
        if (r->legs[i].sent && !r->legs[i].ended) {
            uint64_t usual = health_hedge_us(r->c->opts.health, r->legs[i].node);

            wait = usual > wait ? usual : wait;
        }
    }
    return transport_now_us(r->c->opts.transport) + wait;
}

void round_hedge_later(struct round *r)
{
    op_wake_at(r->op, round_next(r) < r->n ? round_hedge_us(r) : UINT64_MAX);
}

bool round_followed(const struct round *r)
{
    for (unsigned i = 0; i < r->n; i++) {
        const struct leg *leg = &r->legs[i];
        uint64_t since_us;

        if (!leg->ended || leg->err != 0)
            continue;
        since_us = health_get(r->c->opts.health, leg->node).followed_us;
        if (since_us == 0 || leg->sent_us < since_us)
            return false;
    }
    return true;
}

/* --- telling why ------------------------------------------------------------------------------ */

/* What a node said, where it is made for people; else what that comes to. */
static struct span leg_reason(const struct leg *leg)
{
    if (leg->body == NULL || leg->ans.kind != ANS_ERROR || leg->ans.text.len == 0)
        return span_str(strerror(-leg->err));
    if (leg->err == -EBADE)
        return span_str("it holds another ring");
    if (leg->err == -EREMCHG)
        return span_str("it is no replica of the key");
    return span_of(leg->ans.text.data, leg->ans.text.len > 120 ? 120 : leg->ans.text.len);
}

static void explain_leg(const struct round *r, unsigned i, struct buf *text)
{
    const struct leg *leg = &r->legs[i];

    if (!leg->sent)
        buf_addf(text, "down");
    else if (!leg->ended)
        buf_addf(text, "no answer yet");
    else if (leg->err != 0)
        buf_add_span(text, leg_reason(leg));
    else if (i < r->n_votes && tally_of(&r->tally, i) == VOTE_NO)
        buf_addf(text, "refused");
}

void round_explain(const struct round *r, struct err *why)
{
    struct buf text = {0}, of_leg = {0};

    if (r->n > 1)
        buf_addf(&text, "%u of %u replicas needed, %u answered", r->tally.need, r->n_votes,
                 tally_count(&r->tally, VOTE_YES));
    for (unsigned i = 0; i < r->n; i++) {
        buf_clear(&of_leg);
        explain_leg(r, i, &of_leg);
        if (of_leg.len > 0)
            buf_addf(&text, "%s%s: %.*s", text.len > 0 ? "; " : "",
                     client_node_name(r->c, r->legs[i].node), (int)of_leg.len,
                     (const char *)of_leg.data);
    }
    err_set(why, 0, "%.*s", (int)text.len, text.data != NULL ? (const char *)text.data : "");
    buf_fini(&text);
    buf_fini(&of_leg);
}

static bool leg_damaged(const struct leg *leg)
{
    return leg->ended && is_damage(leg->err);
}

bool round_found_damage(const struct round *r)
{
    for (unsigned i = 0; i < r->n_votes; i++)
        if (leg_damaged(&r->legs[i]))
            return true;
    return false;
}

bool round_damage_awaited(const struct round *r)
{
    for (unsigned i = 0; i < r->n_votes; i++)
        if (!r->legs[i].sent || (r->legs[i].ended && !leg_damaged(&r->legs[i])))
            return false;
    return r->in_flight > 0;
}

int round_lasting_err(const struct round *r, unsigned i)
{
    static const int lasting[] = {-ENOSPC, -EBADE, -EFBIG, -EINVAL, -EREMCHG, -ENAMETOOLONG};
    const struct leg *leg = &r->legs[i];

    for (size_t k = 0; k < sizeof lasting / sizeof lasting[0]; k++)
        if (leg->ended && leg->err == lasting[k])
            return leg->err;
    return 0;
}

int round_verdict(const struct round *r)
{
    unsigned n_lasting = 0, n_damaged = 0;
    int first = -EHOSTDOWN;

    for (unsigned i = 0; i < r->n_votes; i++) {
        int err = round_lasting_err(r, i);

        n_damaged += leg_damaged(&r->legs[i]);
        if (err != 0 && n_lasting++ == 0)
            first = err;
    }
    if (n_damaged == r->n_votes)
        return -EBADMSG;
    return r->n_votes - n_lasting < r->tally.need ? first : -EHOSTDOWN;
}

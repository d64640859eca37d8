/*
 * net.c - a network that does as the input says.
 *
 *   flight   one call: on its way to the node, then its answer on the way back
 *   fate     what becomes of it, chosen when it is sent
 */
#include "tests/fuzz/net.h"

#include <errno.h>
#include <string.h>

#include "common/config.h"
#include "tests/fuzz/sums.h"

#define HOP_US 1000u
#define STEPS_MAX 20000u

enum fate {
    /* of any node */
    FATE_HONEST,
    FATE_LOST,
    FATE_LOST_ANSWER,
    FATE_REFUSED,
    FATE_LATE,
    /* of a hostile one: what it answers instead */
    FATE_RAW,     /* bytes */
    FATE_DAMAGED, /* the honest answer with edits, whose checksums are not mended */
    FATE_UNFIT,   /* an answer to another kind of request */
    FATE_OTHER,   /* the honest answer, but about another key */
    FATE_CUT,     /* the honest answer, shorter or longer */
    FATE_EDITED,  /* lies: the honest answer with edits, and with the right checksums */
    FATE_MADE,    /* lies: any answer of the right kind */
};

struct flight {
    struct list link;
    struct call *call;
    enum fate fate;
    uint64_t due_us; /* of the next event; UINT64_MAX: there is none */
    bool arrived;
    struct blob *answer;
};

/* --- clock and timers ------------------------------------------------------------------------- */

static uint64_t mono_us(struct clock *c)
{
    return container_of(c, struct net, clock)->now_us;
}

static uint64_t wall_us(struct clock *c)
{
    return container_of(c, struct net, clock)->now_us;
}

static void timer_clear(struct transport *t, struct timer *timer)
{
    if (timer->slot > 0)
        container_of(t, struct net, transport)->timers[timer->slot - 1] = NULL;
    timer->slot = 0;
}

static void timer_set(struct transport *t, struct timer *timer, uint64_t due_us)
{
    struct net *n = container_of(t, struct net, transport);
    size_t i = 0;

    timer_clear(t, timer);
    while (n->timers[i] != NULL)
        CLAIM(++i < NET_TIMERS_MAX);
    n->timers[i] = timer;
    n->n_timers = i < n->n_timers ? n->n_timers : i + 1;
    timer->slot = i + 1;
    timer->due_us = due_us;
}

/* --- fates ------------------------------------------------------------------------------------ */

/* More than half of the choices are the honest way, or hardly anything would ever succeed. */
static enum fate pick_fate(struct net *n, unsigned node)
{
    unsigned b = input_u8(n->in);
    bool hostile = n->hostile >> node & 1;

    if (b < (hostile ? 16 : 160))
        return FATE_HONEST;
    if (!hostile || b >= 240)
        return (enum fate)(FATE_LOST + b % (FATE_LATE - FATE_LOST + 1));
    if (n->lies && b >= 96)
        return b & 1 ? FATE_EDITED : FATE_MADE;
    return (enum fate)(FATE_RAW + b % (FATE_CUT - FATE_RAW + 1));
}

static void net_send(struct transport *t, struct call *call)
{
    struct net *n = container_of(t, struct net, transport);
    struct flight *f = calloc(1, sizeof *f);

    CLAIM(f != NULL && call->node < NET_NODES);
    f->call = call;
    f->fate = pick_fate(n, call->node);
    f->due_us = n->now_us + HOP_US;
    list_insert(&n->flights, &f->link);
}

static const struct transport_ops net_ops = {
    .send = net_send, .timer_set = timer_set, .timer_clear = timer_clear};

/* --- what a node answers ---------------------------------------------------------------------- */

static struct blob *blob_of(struct buf *bytes)
{
    struct blob *b = blob_new(bytes->len);

    CLAIM(b != NULL);
    if (bytes->len > 0)
        memcpy(b->data, bytes->data, bytes->len);
    buf_fini(bytes);
    return b;
}

/* What the replica makes of the request. */
static void serve(struct net *n, unsigned node, struct span head, struct span body, struct buf *out)
{
    struct reply reply = REPLY_NONE;
    struct replica_request *rq;
    uint64_t len, pos = 0;
    uint8_t *room;

    CLAIM(replica_begin(n->replicas[node], head.len + body.len, &rq) == 0);
    if (replica_feed(rq, head) == 0)
        (void)replica_feed(rq, body);
    replica_end(rq, &reply);
    len = reply_len(&reply);
    room = buf_reserve(out, len);
    CLAIM(room != NULL);
    while (pos < len) {
        int64_t got = reply_read(&reply, pos, room + pos, (size_t)(len - pos));

        CLAIM(got > 0);
        pos += (uint64_t)got;
    }
    out->len = len;
    reply_fini(&reply);
}

static enum answer_kind fitting(enum message_kind kind)
{
    switch (kind) {
    case MSG_PREPARE:
        return ANS_PROMISE;
    case MSG_ACCEPT:
        return ANS_ACCEPTED;
    case MSG_READ:
        return ANS_STATE;
    case MSG_LIST:
        return ANS_LIST;
    case MSG_HELLO:
        return ANS_HELLO;
    case MSG_DIGEST:
        return ANS_DIGEST;
    case MSG_KEYS:
        return ANS_KEYS;
    case MSG_DROP:
        return ANS_ACCEPTED;
    }
    return ANS_ERROR;
}

/* Could an answer of this kind be one to that request? */
static bool is_fit(enum message_kind asked, enum answer_kind kind)
{
    if (kind == fitting(asked) || kind == ANS_ERROR)
        return true;
    return (kind == ANS_REFUSE &&
            (asked == MSG_PREPARE || asked == MSG_ACCEPT || asked == MSG_DROP)) ||
           (kind == ANS_NEED_VALUE && asked == MSG_ACCEPT);
}

static void make_answer(struct net *n, struct span key, enum answer_kind kind, struct buf *out,
                        enum answer_kind *made_kind)
{
    struct made made = {0};
    struct answer a;

    grammar_answer(n->in, kind, n->now_us / 1000, &made, &a);
    *made_kind = a.kind;
    answer_encode(out, key, &a);
    if (a.has_value)
        buf_add(out, made.value.data != NULL ? made.value.data + a.value_offset : NULL,
                made.value.len - (size_t)a.value_offset);
    buf_add_span(out, buf_span(&made.bytes));
    made_fini(&made);
}

/* The honest answer, encoded for another key: its record's checksum is not for this one. */
static void of_other_key(struct buf *bytes, struct span key)
{
    struct buf out = {0};
    struct answer a;
    size_t head_len;

    if (answer_decode(buf_span(bytes), key, &a, &head_len) < 0 ||
        (a.kind != ANS_PROMISE && a.kind != ANS_STATE)) {
        bytes->len = 0;
        return;
    }
    answer_encode(&out, span_str("another"), &a);
    buf_add(&out, bytes->data + head_len, bytes->len - head_len);
    buf_fini(bytes);
    *bytes = out;
}

/* What a hostile node answers in place of `bytes`. */
static void replace(struct net *n, struct flight *f, struct buf *bytes)
{
    struct message m;
    enum answer_kind kind;
    size_t head_len;

    CLAIM(message_decode(f->call->head, &m, &head_len) == 0);
    switch (f->fate) {
    case FATE_RAW:
        buf_clear(bytes);
        buf_add_span(bytes, input_bytes(n->in, input_u8(n->in)));
        break;
    case FATE_DAMAGED:
        grammar_edit(n->in, bytes);
        break;
    case FATE_UNFIT:
        buf_clear(bytes);
        make_answer(n, m.key, 0, bytes, &kind);
        if (is_fit(m.kind, kind))
            buf_clear(bytes);
        break;
    case FATE_OTHER:
        of_other_key(bytes, m.key);
        break;
    case FATE_CUT:
        if (input_u8(n->in) & 1)
            buf_add_span(bytes, input_bytes(n->in, 1 + input_pick(n->in, 32)));
        else
            bytes->len = input_u16(n->in) % bytes->len;
        break;
    case FATE_EDITED:
        grammar_edit(n->in, bytes);
        sums_answer(bytes->data, bytes->len, m.key);
        break;
    default:
        buf_clear(bytes);
        make_answer(n, m.key, fitting(m.kind), bytes, &kind);
    }
}

/* --- events ----------------------------------------------------------------------------------- */

static void flight_end(struct flight *f, int err)
{
    struct call *call = f->call;
    struct blob *answer = err < 0 ? NULL : f->answer;

    list_remove(&f->link);
    if (answer == NULL)
        blob_unref(f->answer);
    free(f);
    call->done(call, err, answer);
}

static void flight_arrive(struct net *n, struct flight *f)
{
    struct buf bytes = {0};

    f->arrived = true;
    if (f->fate == FATE_LOST) {
        f->due_us = UINT64_MAX;
        return;
    }
    serve(n, f->call->node, f->call->head, value_span(f->call->body), &bytes);
    if (f->fate >= FATE_RAW)
        replace(n, f, &bytes);
    f->answer = blob_of(&bytes);
    f->due_us = n->now_us + HOP_US;
    if (f->fate == FATE_LATE)
        f->due_us += 2000u * input_u8(n->in);
    if (f->fate == FATE_LOST_ANSWER)
        f->due_us = UINT64_MAX;
}

/* The next event of all. */
static void net_step(struct net *n)
{
    struct timer *timer = NULL;
    struct flight *flight = NULL;
    uint64_t next = UINT64_MAX;

    for (struct list *at = n->flights.next; at != &n->flights; at = at->next) {
        struct flight *f = container_of(at, struct flight, link);
        uint64_t due = f->due_us < f->call->deadline_us ? f->due_us : f->call->deadline_us;

        if (due < next) {
            next = due;
            flight = f;
        }
    }
    for (size_t i = 0; i < n->n_timers; i++) {
        if (n->timers[i] != NULL && n->timers[i]->due_us < next) {
            next = n->timers[i]->due_us;
            timer = n->timers[i];
        }
    }
    CLAIM(flight != NULL || timer != NULL); /* else nothing will ever happen again */
    n->now_us = next > n->now_us ? next : n->now_us;
    if (timer != NULL) {
        timer_clear(&n->transport, timer);
        timer->fire(timer);
    } else if (n->now_us >= flight->call->deadline_us) {
        flight_end(flight, -ETIMEDOUT);
    } else if (flight->fate == FATE_REFUSED) {
        flight_end(flight, -ECONNREFUSED);
    } else if (!flight->arrived) {
        flight_arrive(n, flight);
    } else {
        flight_end(flight, 0);
    }
}

void net_run(struct net *n, const bool *done, uint64_t until_us)
{
    for (unsigned steps = 0; !*done; steps++) {
        CLAIM(steps < STEPS_MAX);
        net_step(n);
        CLAIM(n->now_us <= until_us);
    }
}

/* --- making and ending ------------------------------------------------------------------------ */

static const char cluster[] =
    "{\"nodes\":[{\"id\":\"n0\",\"addr\":\"h0:1\"},{\"id\":\"n1\",\"addr\":\"h1:1\"},"
    "{\"id\":\"n2\",\"addr\":\"h2:1\"}],\"replication_factor\":3,\"virtual_nodes\":4}";

static void open_node(struct net *n, unsigned node)
{
    struct replica_opts opts = {
        .ring = n->cfg->ring, .self = node, .cfg = n->cfg, .clock = &n->clock, .seed = node};
    struct err err = {""};

    CLAIM(store_memory_open(&n->stores[node]) == 0);
    opts.store = n->stores[node];
    CLAIM(replica_open(&opts, &n->replicas[node], &err) == 0);
    CLAIM(replica_found(n->replicas[node], NULL, 0) == 0);
}

void net_init(struct net *n, struct input *in)
{
    static struct config *cfg; /* the same for all runs */
    struct client_opts opts = {.seed = 1, .proposer = 7, .timeout_ms = NET_TIMEOUT_MS};
    struct err err = {""};

    if (cfg == NULL)
        CLAIM(config_parse("fuzz", span_str(cluster), &cfg, &err) == 0);
    *n = (struct net){.clock = {mono_us, wall_us}, .now_us = 1000000, .in = in, .cfg = cfg};
    n->transport = (struct transport){&net_ops, &n->clock};
    list_init(&n->flights);
    for (unsigned i = 0; i < NET_NODES; i++)
        open_node(n, i);
    CLAIM(health_new(NET_NODES, &n->health) == 0);
    opts.ring = cfg->ring;
    opts.transport = &n->transport;
    opts.health = n->health;
    CLAIM(client_new(&opts, &n->client) == 0);
}

void net_fini(struct net *n)
{
    client_stop_background(n->client);
    while (!list_empty(&n->flights))
        net_step(n);
    client_free(n->client);
    health_free(n->health);
    for (unsigned i = 0; i < NET_NODES; i++) {
        replica_close(n->replicas[i]);
        n->stores[i]->ops->close(n->stores[i]);
    }
}

void net_put(struct net *n, unsigned node, struct span key, const struct record *rec,
             struct span value)
{
    struct message m = {.kind = MSG_ACCEPT,
                        .ring = ring_fingerprint(n->cfg->ring),
                        .budget_ms = 1000,
                        .key = key,
                        .record = *rec};
    struct buf head = {0}, answer = {0};

    message_encode(&head, &m);
    serve(n, node, buf_span(&head), value, &answer);
    buf_fini(&head);
    buf_fini(&answer);
}

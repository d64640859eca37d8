/*
 * sim_net.c - client processes and what is between them and the nodes.
 *
 *   flight   a call and its packets: knows which call to end while a packet of it is under way
 *   packet   the bytes of a request or an answer, with the time when they arrive
 */
#include "tests/lib/sim.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct flight {
    struct sim_client *from;
    unsigned node;
    struct call *call; /* NULL: has ended */
    struct timer deadline;
    struct list link; /* in from->flights while call is set */
    unsigned refs;    /* the call's and one of each packet */
};

struct packet {
    struct timer arrive;
    struct flight *flight;
    struct list link; /* in from->packets */
    bool is_answer;
    int err; /* an answer without bytes */
    struct blob *bytes;
};

static void flight_unref(struct flight *f)
{
    if (--f->refs == 0)
        free(f);
}

/* Takes the reference on answer. */
static void flight_end(struct flight *f, int err, struct blob *answer)
{
    struct call *call = f->call;

    f->call = NULL;
    list_remove(&f->link);
    sim_timer_clear(f->from->sim, &f->deadline);
    call->priv = NULL;
    flight_unref(f);
    call->done(call, err, answer);
}

static void on_deadline(struct timer *t)
{
    flight_end(container_of(t, struct flight, deadline), -ETIMEDOUT, NULL);
}

/* --- packets --------------------------------------------------------------------------------- */

static void on_arrival(struct timer *t);

static void packet_free(struct packet *p)
{
    list_remove(&p->link);
    sim_timer_clear(p->flight->from->sim, &p->arrive);
    blob_unref(p->bytes);
    flight_unref(p->flight);
    free(p);
}

/* Within one machine, where nothing is lost. */
static bool is_local(const struct flight *f)
{
    return f->from->node == f->node;
}

static void packet_send(struct flight *f, bool is_answer, int err, struct blob *bytes, bool late)
{
    struct sim *s = f->from->sim;
    struct packet *p = sim_alloc(sizeof *p);
    bool local = is_local(f);
    uint64_t delay = rng_between(&s->rng, 20, local ? 60 : s->net.delay_us);

    if (late || (!local && rng_chance(&s->rng, s->net.linger)))
        delay += rng_below(&s->rng, s->net.linger_us + 1);
    p->arrive.fire = on_arrival;
    p->flight = f;
    f->refs++;
    list_insert(&f->from->packets, &p->link);
    p->is_answer = is_answer;
    p->err = err;
    p->bytes = bytes != NULL ? blob_ref(bytes) : NULL;
    sim_timer_set(s, &p->arrive, s->now_us + delay, NULL);
}

/* A node that the ballot of a message chooses; or none. */
static unsigned chosen_by(const struct sim *s, struct ballot b, enum message_kind kind)
{
    return (unsigned)(rng_mix(b.counter ^ b.proposer ^ (uint64_t)kind << 60) %
                      (s->opts.n_nodes + 1));
}

/* Is the request to come late, or not at all, on purpose (see struct sim_net)? */
static bool is_picked_out(struct flight *f, const struct blob *bytes, bool *lost)
{
    struct sim *s = f->from->sim;
    bool of_node = f->from->node != SIM_NO_NODE;
    struct message m;
    size_t head_len;

    *lost = false;
    if ((of_node ? s->net.lose_drop : s->net.straggle) == 0 ||
        message_decode(span_of(bytes->data, bytes->len), &m, &head_len) < 0)
        return false;
    if (of_node)
        *lost = m.kind == MSG_DROP && !is_local(f) &&
                f->node == chosen_by(s, m.ballot, m.kind) % s->opts.n_nodes &&
                rng_chance(&s->rng, s->net.lose_drop);
    else if (m.kind == MSG_ACCEPT)
        return f->node != chosen_by(s, m.record.version, m.kind) &&
               rng_chance(&s->rng, s->net.straggle);
    else if (m.kind == MSG_PREPARE)
        return f->node == chosen_by(s, m.ballot, m.kind) && rng_chance(&s->rng, s->net.straggle);
    return *lost;
}

/* One way through the network: bytes may be NULL, with the error that the client gets. */
static void post(struct flight *f, bool is_answer, int err, struct blob *bytes)
{
    struct sim *s = f->from->sim;
    bool lost = false, late = !is_answer && is_picked_out(f, bytes, &lost);

    if (!lost && (is_local(f) || !rng_chance(&s->rng, s->net.lose)))
        packet_send(f, is_answer, err, bytes, late);
    if (!is_answer && !lost && !is_local(f) && rng_chance(&s->rng, s->net.duplicate))
        packet_send(f, is_answer, err, bytes, true);
}

static void arrive_at_node(struct packet *p)
{
    struct flight *f = p->flight;
    struct sim *s = f->from->sim;
    struct sim_node *node = &s->nodes[f->node];
    struct blob *answer = NULL;
    int err;

    if (f->from->cut_to[f->node] > s->now_us)
        return;
    err = node->replica == NULL
              ? -ECONNREFUSED
              : sim_node_serve(node, f->from, span_of(p->bytes->data, p->bytes->len), &answer);
    if (!is_local(f) &&
        rng_chance(&s->rng, s->net.lose / 4)) { /* the connection breaks, it is not known when */
        blob_unref(answer);
        answer = NULL;
        err = -ECONNRESET;
    }
    post(f, true, err, answer);
    blob_unref(answer);
}

static void arrive_at_client(struct packet *p)
{
    struct flight *f = p->flight;

    if (f->call == NULL || f->from->cut_from[f->node] > f->from->sim->now_us)
        return;
    flight_end(f, p->err, p->bytes != NULL ? blob_ref(p->bytes) : NULL);
}

static void on_arrival(struct timer *t)
{
    struct packet *p = container_of(t, struct packet, arrive);
    struct sim_client *cl = p->flight->from;
    struct sim *s = cl->sim;
    uint64_t thaw_us = p->is_answer ? cl->thaw_us : s->nodes[p->flight->node].thaw_us;

    if (thaw_us > s->now_us) { /* waits in a socket of the frozen process */
        sim_timer_set(s, t, thaw_us + rng_below(&s->rng, 500), NULL);
        return;
    }
    if (!cl->killed || !p->is_answer) {
        if (p->is_answer)
            arrive_at_client(p);
        else
            arrive_at_node(p);
    }
    packet_free(p);
}

/* --- the transport --------------------------------------------------------------------------- */

static void net_send(struct transport *t, struct call *call)
{
    struct sim_client *cl = container_of(t, struct sim_client, transport);
    uint64_t sim_deadline = call->deadline_us - cl->clock.mono_base;
    struct flight *f = sim_alloc(sizeof *f);
    struct blob *bytes = blob_new(call->head.len + call->body.len + call->tail.len);

    assert(bytes != NULL && call->node < cl->sim->opts.n_nodes &&
           call->deadline_us >= cl->clock.mono_base);
    memcpy(bytes->data, call->head.data, call->head.len);
    if (call->body.len > 0)
        memcpy(bytes->data + call->head.len, call->body.data, call->body.len);
    if (call->tail.len > 0)
        memcpy(bytes->data + call->head.len + call->body.len, call->tail.data, call->tail.len);
    f->from = cl;
    f->node = call->node;
    f->call = call;
    f->refs = 1;
    f->deadline.fire = on_deadline;
    call->priv = f;
    list_insert(&cl->flights, &f->link);
    sim_timer_set(cl->sim, &f->deadline, sim_deadline, cl);
    if (!cl->killed)
        post(f, false, 0, bytes);
    blob_unref(bytes);
}

static void net_timer_set(struct transport *t, struct timer *timer, uint64_t due_us)
{
    struct sim_client *cl = container_of(t, struct sim_client, transport);
    uint64_t base = cl->clock.mono_base;

    sim_timer_set(cl->sim, timer, due_us > base ? due_us - base : 0, cl);
    timer->due_us = due_us;
}

static void net_timer_clear(struct transport *t, struct timer *timer)
{
    sim_timer_clear(container_of(t, struct sim_client, transport)->sim, timer);
}

static const struct transport_ops net_ops = {
    .send = net_send, .timer_set = net_timer_set, .timer_clear = net_timer_clear};

/* --- client processes ------------------------------------------------------------------------ */

static void probed(void *arg, struct hello_result *res)
{
    (void)arg;
    (void)res;
}

/* As the prober of a real process: nodes that are down are asked whether they still are. */
static void on_probe(struct timer *t)
{
    struct sim_client *cl = container_of(t, struct sim_client, probe);
    struct hello_args args = {.self = MESSAGE_NODE_NONE, .timeout_ms = 400};

    for (args.node = 0; args.node < cl->sim->opts.n_nodes; args.node++) {
        struct health_info info = health_get(cl->health, args.node);

        if (!info.up || info.recovering || info.doubtful)
            client_hello(cl->client, &args, probed, NULL);
    }
    sim_timer_set(cl->sim, t, cl->sim->now_us + HEALTH_PROBE_US, cl);
}

/* Started and seeded; knows everybody. */
static struct sim_client *process_new(struct sim *s, unsigned node, uint32_t timeout_ms)
{
    struct sim_client *cl = sim_alloc(sizeof *cl);
    struct client_opts opts = {
        .ring = s->ring, .transport = &cl->transport, .timeout_ms = timeout_ms};
    int err;

    cl->sim = s;
    cl->node = node;
    list_init(&cl->flights);
    list_init(&cl->packets);
    cl->cut_to = sim_alloc(2 * s->opts.n_nodes * sizeof *cl->cut_to);
    cl->cut_from = cl->cut_to + s->opts.n_nodes;
    sim_clock_init(&cl->clock, s);
    cl->transport = (struct transport){&net_ops, &cl->clock.clock};
    err = health_new(s->opts.n_nodes, &cl->health);
    assert(err == 0);
    opts.health = cl->health;
    opts.seed = rng_next(&s->rng);
    opts.proposer = cl->proposer = rng_next(&s->rng) | 1;
    err = client_new(&opts, &cl->client);
    assert(err == 0);
    return cl;
}

struct sim_client *sim_client_start(struct sim *s, uint32_t timeout_ms)
{
    struct sim_client *cl = process_new(s, SIM_NO_NODE, timeout_ms);

    cl->index = s->n_clients++;
    s->clients = realloc(s->clients, s->n_clients * sizeof(struct sim_client *));
    assert(s->clients != NULL);
    s->clients[cl->index] = cl;
    cl->probe.fire = on_probe;
    sim_timer_set(s, &cl->probe, s->now_us + HEALTH_PROBE_US, cl);
    return cl;
}

struct sim_client *sim_client_of_node(struct sim *s, unsigned node, uint32_t timeout_ms)
{
    struct sim_client *cl = process_new(s, node, timeout_ms);

    cl->index = UINT_MAX - node; /* unlike that of any client process */
    cl->clock.wall_base = s->nodes[node].clock.wall_base;
    return cl;
}

static void free_packets(struct sim_client *cl, bool requests_too)
{
    for (struct list *at = cl->packets.next, *next; at != &cl->packets; at = next) {
        struct packet *p = container_of(at, struct packet, link);

        next = at->next;
        if (p->is_answer || is_local(p->flight) || requests_too)
            packet_free(p);
    }
}

void sim_client_hang_up(struct sim_client *cl)
{
    assert(cl->killed);
    free_packets(cl, false);
    for (unsigned n = 0; !list_empty(&cl->flights); n++) {
        assert(n < 10000); /* each call that ends starts another one */
        flight_end(container_of(cl->flights.next, struct flight, link), -ECANCELED, NULL);
    }
}

static void process_end(struct sim_client *cl)
{
    cl->killed = true;
    cl->thaw_us = 0;
    sim_timer_clear(cl->sim, &cl->probe);
    client_stop_background(cl->client);
    sim_client_hang_up(cl);
    client_free(cl->client);
    health_free(cl->health);
}

static void remains_free(struct sim_client *cl)
{
    free_packets(cl, true);
    free(cl->cut_to);
    free(cl);
}

void sim_client_bury(struct sim_client *cl)
{
    process_end(cl);
    list_insert(&cl->sim->buried, &cl->link);
}

void sim_client_free_buried(struct sim *s)
{
    while (!list_empty(&s->buried)) {
        struct sim_client *cl = container_of(s->buried.next, struct sim_client, link);

        list_remove(&cl->link);
        remains_free(cl);
    }
}

void sim_client_free(struct sim_client *cl)
{
    process_end(cl);
    remains_free(cl);
}

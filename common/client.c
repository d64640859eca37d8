/*
 * client.c - what all operations of the client share: ballots, the order in which replicas are
 * asked, deadlines.
 *
 * The parts, in reading order: op.h (op, round, leg), round.c, this file, client_ask.c,
 * read.h (client_read.c, read_one.c, read_peek.c), write.h (client_write.c, write_accept.c,
 * client_settle.c), client_mend.c, background.c, listing.c.
 */
#include "common/client.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "common/op.h"

#define BACKOFF_MIN_US 500u
#define BACKOFF_MAX_US 200000u
/*
 * A quorum is waited for until it has been out of reach for `timeout`, not that long by each call:
 * of a row of calls the last would else end many timeouts after the nodes were lost. Later calls
 * still ask, for this long.
 */
#define PATIENCE_MIN_US 50000u
#define CHECK_EVERY_US 250000u
#define BYTES_PER_SECOND_PLANNED (10u << 20)

int client_new(const struct client_opts *opts, struct client **out)
{
    struct client *c = calloc(1, sizeof *c);

    assert(opts->proposer != 0 && opts->proposer != BALLOT_PROPOSER_MAX);
    if (c == NULL)
        return -ENOMEM;
    c->opts = *opts;
    c->rng = opts->seed;
    list_init(&c->waiting);
    turns_init(&c->turns);
    background_init(&c->background);
    *out = c;
    return 0;
}

const struct client_opts *client_options(const struct client *c)
{
    return &c->opts;
}

void client_free(struct client *c)
{
    if (c == NULL)
        return;
    assert(c->n_ops == 0 && c->n_rounds == 0);
    free(c);
}

/*
 * splitmix64 (Steele, Lea, Flood 2014): small, and good enough for ids and jitter; seeded, so that
 * tests repeat.
 */
uint64_t client_random(struct client *c)
{
    uint64_t z = c->rng += 0x9e3779b97f4a7c15u;

    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/*
 * The clock only makes it likely that the ballot is above all others. That it is never used twice
 * comes from `seen`, which every ballot raises.
 */
struct ballot client_ballot(struct client *c)
{
    struct clock *clock = c->opts.transport->clock;
    uint64_t now = clock->wall_us(clock);

    c->seen = now > c->seen ? now : c->seen + 1;
    return (struct ballot){c->seen, c->opts.proposer};
}

void client_saw(struct client *c, struct ballot b)
{
    if (b.counter > c->seen && b.counter <= BALLOT_COUNTER_MAX)
        c->seen = b.counter;
}

const char *client_node_name(const struct client *c, unsigned node)
{
    return c->opts.node_name != NULL ? c->opts.node_name(c->opts.node_name_arg, node) : "node";
}

unsigned client_order(const struct client *c, struct span key, unsigned *nodes)
{
    const unsigned *replicas = ring_replicas(c->opts.ring, key);
    unsigned n = ring_n_replicas(c->opts.ring), up = 0, at = 0;

    for (unsigned i = 0; i < n; i++)
        if (health_fit(c->opts.health, replicas[i]))
            nodes[up++] = replicas[i];
    at = up;
    for (unsigned i = 0; i < n && at < n; i++) {
        bool listed = false;

        for (unsigned k = 0; k < up && !listed; k++)
            listed = nodes[k] == replicas[i];
        if (!listed)
            nodes[at++] = replicas[i];
    }
    return up;
}

/* --- op --------------------------------------------------------------------------------------- */

static void op_rearm(struct op *op)
{
    struct transport *t = op->c->opts.transport;
    uint64_t due = op->wake_us < op->deadline_us ? op->wake_us : op->deadline_us;

    if (op->check_us < due)
        due = op->check_us;
    if (op->cancelled || op->failed != 0)
        due = 0;
    if (op->timer.slot == 0 || op->timer.due_us != due)
        t->ops->timer_set(t, &op->timer, due);
}

/* Is as much of the replicas up as it needs? up NULL (not of the ring): ask health. */
static bool suffices(const struct client *c, struct span key, enum op_scope scope, const bool *up)
{
    const struct ring *ring = c->opts.ring;
    const unsigned *replicas;
    unsigned n = 0;

    if (scope == OP_OF_RING)
        return ring_covered(ring, up);
    replicas = ring_replicas(ring, key);
    for (unsigned i = 0; i < ring_n_replicas(ring); i++)
        n += up != NULL ? up[replicas[i]] : health_up(c->opts.health, replicas[i]);
    return n >= (scope == OP_OF_REPLICA ? 1 : ring_majority(ring));
}

/*
 * For how long what the op needs has been out of reach; 0: it is not. Takes away the nodes that are
 * down one by one, the longest down first, until the rest does not suffice.
 */
static uint64_t silent_us(const struct client *c, struct span key, enum op_scope scope,
                          uint64_t now)
{
    unsigned n = ring_n_nodes(c->opts.ring);
    uint64_t *since, silent = 0;
    bool *up;

    if (scope == OP_OF_NODE || (scope != OP_OF_RING && suffices(c, key, scope, NULL)))
        return 0;
    since = calloc(n, sizeof *since);
    up = calloc(n, sizeof *up);
    if (since == NULL || up == NULL)
        goto out; /* then the op is as patient as any */
    for (unsigned i = 0; i < n; i++) {
        struct health_info info = health_get(c->opts.health, i);

        /* silent since its last answer; one never heard of, since it was first missed */
        uint64_t from = info.seen_us != 0 ? info.seen_us : info.since_us;

        up[i] = true;
        since[i] = info.up || from > now ? now : from;
    }
    while (silent == 0) {
        unsigned next = n;

        for (unsigned i = 0; i < n; i++)
            if (up[i] && since[i] < now && (next == n || since[i] < since[next]))
                next = i;
        if (next == n)
            goto out; /* none of the others is down */
        up[next] = false;
        if (!suffices(c, key, scope, up))
            silent = now - since[next];
    }
out:
    free(since);
    free(up);
    return silent;
}

/* Is there no point in the time that the op's bytes get? Else it looks again later. */
static bool is_lost(struct op *op, uint64_t now)
{
    if (op->deadline_us == UINT64_MAX) { /* it is ending already */
        op->check_us = UINT64_MAX;
        return false;
    }
    op->check_us = now + CHECK_EVERY_US;
    return silent_us(op->c, buf_span(&op->key), op->scope, now) >= op->timeout_us;
}

static void on_op_timer(struct timer *timer)
{
    struct op *op = container_of(timer, struct op, timer);
    uint64_t now = transport_now_us(op->c->opts.transport);

    if (op->failed != 0) {
        op->on_end(op, op->failed);
    } else if (op->cancelled) {
        op->on_end(op, -EINTR);
    } else if (now >= op->deadline_us) {
        op->on_end(op, -ETIMEDOUT);
    } else if (now >= op->check_us && is_lost(op, now)) {
        op->on_end(op, -ETIMEDOUT);
    } else if (now >= op->wake_us) {
        op->wake_us = UINT64_MAX;
        op_rearm(op);
        op->on_wake(op);
    } else {
        op_rearm(op);
    }
}

/* Callers queue behind one another; each is to end within the timeout of all. */
static uint64_t patience_us(const struct op *op, uint64_t now)
{
    uint64_t silent = silent_us(op->c, buf_span(&op->key), op->scope, now);

    return op->timeout_us > silent + PATIENCE_MIN_US ? op->timeout_us - silent : PATIENCE_MIN_US;
}

int op_init(struct op *op, struct client *c, struct span key, enum op_scope scope,
            uint32_t timeout_ms, uint64_t size)
{
    uint64_t now = transport_now_us(c->opts.transport);
    uint64_t timeout_us = 1000ull * (timeout_ms != 0 ? timeout_ms : c->opts.timeout_ms);

    op->c = c;
    op->scope = scope;
    op->timeout_us = timeout_us;
    op->wake_us = UINT64_MAX;
    op->timer.fire = on_op_timer;
    buf_add_span(&op->key, key);
    if (op->key.err != 0)
        return -ENOMEM;
    timeout_us = patience_us(op, now);
    op->check_us = size > 0 ? now + timeout_us : UINT64_MAX;
    op->deadline_us = now + timeout_us + size * 1000000u / BYTES_PER_SECOND_PLANNED;
    c->n_ops++;
    op_rearm(op);
    return 0;
}

void op_needs(struct op *op, enum op_scope scope)
{
    uint64_t now = transport_now_us(op->c->opts.transport), until;

    if (op->scope == scope)
        return;
    op->scope = scope;
    if (silent_us(op->c, buf_span(&op->key), scope, now) == 0)
        return; /* it is there: the op has all its time, also that of its bytes */
    until = now + patience_us(op, now);
    if (until < op->deadline_us)
        op->deadline_us = until;
    op_rearm(op);
}

void op_fini(struct op *op)
{
    struct transport *t = op->c->opts.transport;

    round_drop(op);
    t->ops->timer_clear(t, &op->timer);
    buf_fini(&op->key);
    op->c->n_ops--;
}

void op_wake_at(struct op *op, uint64_t due_us)
{
    op->wake_us = due_us;
    op_rearm(op);
}

uint32_t op_left_ms(const struct op *op)
{
    uint64_t now = transport_now_us(op->c->opts.transport);

    return op->deadline_us > now ? (uint32_t)((op->deadline_us - now) / 1000 + 1) : 1;
}

void op_add_bytes(struct op *op, uint64_t size)
{
    if (size == 0)
        return;
    if (op->check_us == UINT64_MAX)
        op->check_us = op->deadline_us;
    op->deadline_us += size * 1000000u / BYTES_PER_SECOND_PLANNED;
    op_rearm(op);
}

void op_fail_soon(struct op *op, int err)
{
    op->failed = err;
    op_rearm(op);
}

void op_cancel(struct op *op)
{
    if (op->c->at_once) {
        op->on_end(op, -EINTR);
        return;
    }
    op->cancelled = true;
    op_rearm(op);
}

void op_end_now(struct op *op)
{
    struct client *c = op->c;

    c->at_once = true;
    op->on_end(op, -EINTR);
    c->at_once = false;
}

uint64_t op_backoff_us(struct op *op, unsigned tries)
{
    uint64_t most = BACKOFF_MIN_US;

    while (tries-- > 0 && most < BACKOFF_MAX_US)
        most *= 2;
    return BACKOFF_MIN_US + client_random(op->c) % most;
}

/* prober.c - HELLO to the nodes that nobody talks to. */
#include "common/prober.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

/*
 * Longer than the interval: a node that answers slowly must not look dead. A node that comes back
 * refuses or answers at once.
 */
#define PROBE_TIMEOUT_MS 1000u

/* Traffic shows that a node is there, but not its ring, its state and its disk: HELLO does. */
#define REFRESH_US 2000000u

/* One node: waiting for its timer, or for the answer. */
struct probe {
    struct prober *prober;
    unsigned node;
    struct timer timer;
    struct op *op;     /* under way, else NULL */
    uint64_t heard_us; /* of its last HELLO, 0: never */
};

struct prober {
    struct prober_opts opts;
    bool stopped;
    void (*on_idle)(void *arg); /* after prober_stop() */
    void *on_idle_arg;
    unsigned n_under_way;
    struct probe probes[];
};

static void probe_again_at(struct probe *pr, uint64_t due_us)
{
    struct transport *t = pr->prober->opts.transport;

    t->ops->timer_set(t, &pr->timer, due_us);
}

/* What to say of ourselves now. Returns whether we wait for what others answer. */
static bool self_state(const struct prober *p, uint64_t *incarnation, uint8_t *state)
{
    *incarnation = 0;
    *state = NODE_WHOLE;
    if (p->opts.self_state != NULL)
        p->opts.self_state(p->opts.arg, incarnation, state);
    return *state != NODE_WHOLE;
}

/* A node that recovers has news soon: so have the others for it, and it for them. */
static uint64_t probe_every_us(const struct probe *pr)
{
    struct prober *p = pr->prober;
    uint64_t incarnation;
    uint8_t state;

    return self_state(p, &incarnation, &state) || health_get(p->opts.health, pr->node).recovering
               ? HEALTH_PROBE_RECOVERING_US
               : HEALTH_PROBE_US;
}

static void on_hello(void *arg, struct hello_result *res)
{
    struct probe *pr = arg;
    struct prober *p = pr->prober;
    uint64_t now = transport_now_us(p->opts.transport);

    pr->op = NULL;
    p->n_under_way--;
    if (res->err == 0)
        pr->heard_us = now;
    if (!p->stopped) {
        probe_again_at(pr, now + probe_every_us(pr));
        p->opts.on_result(p->opts.arg, pr->node, res);
    } else if (p->n_under_way == 0) {
        p->on_idle(p->on_idle_arg);
    }
}

static void on_timer(struct timer *t)
{
    struct probe *pr = container_of(t, struct probe, timer);
    struct prober *p = pr->prober;
    struct health_info info = health_get(p->opts.health, pr->node);
    uint64_t now = transport_now_us(p->opts.transport);
    struct hello_args args = {
        .node = pr->node,
        .self = p->opts.self,
        .timeout_ms = PROBE_TIMEOUT_MS,
    };
    bool urgent = self_state(p, &args.incarnation, &args.state);

    if (!urgent && health_alive(&info) && !info.recovering && !info.doubtful && info.seen_us != 0 &&
        now < info.seen_us + HEALTH_PROBE_US && now < pr->heard_us + REFRESH_US) {
        uint64_t refresh_us = pr->heard_us + REFRESH_US, probe_us = info.seen_us + HEALTH_PROBE_US;

        probe_again_at(pr, refresh_us < probe_us ? refresh_us : probe_us);
        return;
    }
    pr->op = client_hello(p->opts.client, &args, on_hello, pr);
    if (pr->op == NULL)
        probe_again_at(pr, now + probe_every_us(pr)); /* no memory now */
    else
        p->n_under_way++;
}

int prober_new(const struct prober_opts *opts, struct prober **out)
{
    struct prober *p = calloc(1, sizeof(*p) + opts->n_nodes * sizeof(p->probes[0]));

    if (p == NULL)
        return -ENOMEM;
    p->opts = *opts;
    for (unsigned i = 0; i < opts->n_nodes; i++) {
        p->probes[i] = (struct probe){.prober = p, .node = i, .timer.fire = on_timer};
        probe_again_at(&p->probes[i], 0);
    }
    *out = p;
    return 0;
}

void prober_stop(struct prober *p, void (*on_idle)(void *arg), void *arg)
{
    struct transport *t = p->opts.transport;

    assert(!p->stopped);
    p->stopped = true;
    p->on_idle = on_idle;
    p->on_idle_arg = arg;
    for (unsigned i = 0; i < p->opts.n_nodes; i++) {
        t->ops->timer_clear(t, &p->probes[i].timer);
        if (p->probes[i].op != NULL)
            op_cancel(p->probes[i].op);
    }
}

bool prober_idle(const struct prober *p)
{
    return p->n_under_way == 0;
}

void prober_free(struct prober *p)
{
    free(p);
}

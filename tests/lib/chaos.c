/* chaos.c - faults at random times. */
#include "tests/lib/chaos.h"

static uint64_t until(struct chaos *c)
{
    return c->sim->now_us + rng_below(&c->sim->rng, c->length_us + 1);
}

static struct sim_client *any_client(struct chaos *c)
{
    return c->sim->n_clients == 0 ? NULL
                                  : c->sim->clients[rng_below(&c->sim->rng, c->sim->n_clients)];
}

static void cut(struct chaos *c, struct sim_client *cl, unsigned node)
{
    unsigned ways = (unsigned)rng_between(&c->sim->rng, 1, 3);

    if (ways & 1)
        cl->cut_to[node] = until(c);
    if (ways & 2)
        cl->cut_from[node] = until(c);
}

static void set_clock(struct chaos *c, struct sim_client *cl, struct sim_node *node)
{
    sim_clock_jump(cl != NULL && rng_chance(&c->sim->rng, 500) ? &cl->clock : &node->clock);
}

static void kill_client(struct chaos *c, struct sim_client *cl)
{
    if (c->n_kills == 0 || cl->killed)
        return;
    c->n_kills--;
    cl->killed = true;
    if (c->on_kill != NULL)
        c->on_kill(c, cl);
}

static void freeze_client(struct chaos *c, struct sim_client *cl)
{
    cl->thaw_us = until(c);
    cl->was_frozen = true;
}

static void do_fault(struct chaos *c, enum chaos_fault fault)
{
    struct sim *s = c->sim;
    struct sim_node *node = &s->nodes[rng_below(&s->rng, s->opts.n_nodes)];
    struct sim_client *cl = any_client(c);

    if (c->only_node != CHAOS_ANY_NODE)
        node = &s->nodes[c->only_node];
    if (fault == CHAOS_CRASH_NODE)
        sim_node_crash(node, rng_below(&s->rng, c->length_us));
    else if (fault == CHAOS_FREEZE_NODE)
        node->thaw_us = until(c);
    else if (fault == CHAOS_SET_CLOCK)
        set_clock(c, cl, node);
    else if (cl != NULL && fault == CHAOS_FREEZE_CLIENT)
        freeze_client(c, cl);
    else if (cl != NULL && fault == CHAOS_CUT)
        cut(c, cl, node->index);
    else if (cl != NULL)
        kill_client(c, cl);
    c->n_faults++;
}

static void on_tick(struct timer *t)
{
    struct chaos *c = container_of(t, struct chaos, tick);
    unsigned fault = 1u << rng_below(&c->sim->rng, 6);

    if (c->faults & fault)
        do_fault(c, fault);
    sim_timer_set(c->sim, t, c->sim->now_us + rng_below(&c->sim->rng, 2 * c->gap_us), NULL);
}

void chaos_start(struct chaos *c)
{
    c->tick = (struct timer){.fire = on_tick};
    sim_timer_set(c->sim, &c->tick, c->sim->now_us + rng_below(&c->sim->rng, 2 * c->gap_us), NULL);
}

void chaos_end(struct chaos *c)
{
    struct sim *s = c->sim;

    sim_timer_clear(s, &c->tick);
    s->net.lose = s->net.duplicate = s->net.linger = 0;
    s->opts.fail_put = 0;
    for (unsigned i = 0; i < s->opts.n_nodes; i++) {
        struct sim_node *n = &s->nodes[i];

        n->thaw_us = 0;
        if (sim_node_broken(n))
            sim_node_crash(n, 0);
        sim_node_start(n);
        for (unsigned k = 0; k < s->n_clients; k++)
            s->clients[k]->cut_to[i] = s->clients[k]->cut_from[i] = 0;
    }
    for (unsigned k = 0; k < s->n_clients; k++)
        s->clients[k]->thaw_us = 0;
}

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

/* --- what may be lost ------------------------------------------------------------------------ */

/* Does this node lack, or may it come to lack, what it acknowledged of the key? */
static bool is_frail(struct chaos *c, unsigned node, struct span key)
{
    struct sim_node *n = &c->sim->nodes[node];

    return sim_node_recovering(n) || sim_disk_trap_tears(n->disk) || !sim_disk_intact(n->disk, key);
}

static unsigned minority(const struct sim *s)
{
    return ring_n_replicas(s->ring) - ring_majority(s->ring);
}

/*
 * So many whole others a node needs to recover; the rest may be without their disks. Of two copies
 * each has all that was acknowledged; but a damaged key has no majority any more.
 */
static unsigned losable(const struct sim *s)
{
    return ring_n_replicas(s->ring) == 2 ? 1 : minority(s);
}

/* May the node lose what it has of the key? Never more than so many replicas at once. */
static bool may_lose_key(struct chaos *c, unsigned node, struct span key, unsigned most)
{
    const unsigned *replicas = ring_replicas(c->sim->ring, key);
    unsigned n_lost = 1;

    for (unsigned i = 0; i < ring_n_replicas(c->sim->ring); i++)
        n_lost += replicas[i] != node && is_frail(c, replicas[i], key);
    return n_lost <= most;
}

/* May it lose all it has? Also of the sets of replicas that no key of the test has. */
static bool may_lose_all(struct chaos *c, unsigned node)
{
    struct sim *s = c->sim;

    for (uint32_t i = 0; i < ring_n_sets(s->ring); i++) {
        const unsigned *set = ring_set(s->ring, i);
        unsigned n_lost = 1;
        bool in_it = false;

        for (unsigned k = 0; k < ring_n_replicas(s->ring); k++) {
            in_it |= set[k] == node;
            n_lost += set[k] != node && sim_node_recovering(&s->nodes[set[k]]);
        }
        if (in_it && n_lost > losable(s))
            return false;
    }
    for (unsigned i = 0; i < s->n_keys; i++) {
        if (ring_is_replica(s->ring, s->keys[i], node) &&
            !may_lose_key(c, node, s->keys[i], losable(s)))
            return false;
    }
    return true;
}

/* --- faults ---------------------------------------------------------------------------------- */

static void cut(struct chaos *c, struct sim_client *cl, unsigned node, unsigned ways)
{
    if (ways & 1)
        cl->cut_to[node] = until(c);
    if (ways & 2)
        cl->cut_from[node] = until(c);
}

static void cut_any(struct chaos *c, unsigned node)
{
    struct rng *rng = &c->sim->rng;
    struct sim_client *cl = any_client(c);
    struct sim_client *agent = c->sim->nodes[rng_below(rng, c->sim->opts.n_nodes)].agent;
    unsigned ways = (unsigned)rng_between(rng, 1, 3);

    if (agent != NULL && agent->node != node && (cl == NULL || rng_chance(rng, 500)))
        cut(c, agent, node, ways);
    else if (cl != NULL)
        cut(c, cl, node, ways);
}

static void isolate(struct chaos *c, struct sim_node *node)
{
    struct sim *s = c->sim;
    unsigned ways = (unsigned)rng_between(&s->rng, 1, 3);

    for (unsigned i = 0; i < s->n_clients; i++)
        cut(c, s->clients[i], node->index, ways);
    for (unsigned i = 0; i < s->opts.n_nodes; i++) {
        if (i == node->index)
            continue;
        if (s->nodes[i].agent != NULL)
            cut(c, s->nodes[i].agent, node->index, ways);
        if (node->agent != NULL)
            cut(c, node->agent, i, ways == 3 ? 3 : ways ^ 3);
    }
}

static void set_clock(struct chaos *c, struct sim_client *cl, struct sim_node *node)
{
    if (cl != NULL && rng_chance(&c->sim->rng, 500)) {
        sim_clock_jump(&cl->clock);
        return;
    }
    sim_clock_jump(&node->clock);
    if (node->agent != NULL)
        node->agent->clock.wall_base = node->clock.wall_base;
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

static void crash(struct chaos *c, struct sim_node *node)
{
    sim_node_crash(node, rng_below(&c->sim->rng, c->length_us));
}

/* One that may not lose anything now just dies. */
static void crash_writing(struct chaos *c, struct sim_node *node)
{
    bool tears = (c->faults & CHAOS_DAMAGE) && minority(c->sim) > 0 && may_lose_all(c, node->index);

    if (node->replica != NULL)
        sim_disk_trap(node->disk, &node->trapped, tears);
}

static void wipe(struct chaos *c, struct sim_node *node)
{
    if (!may_lose_all(c, node->index))
        return;
    crash(c, node);
    sim_node_wipe(node);
    c->n_wiped++;
}

static void lose_power(struct chaos *c, struct sim_node *node)
{
    if (!may_lose_all(c, node->index))
        return;
    crash(c, node);
    sim_node_lose_power(node);
    c->n_power_lost++;
}

static void damage(struct chaos *c, struct sim_node *node)
{
    struct sim *s = c->sim;
    struct span key;

    if (s->n_keys == 0)
        return;
    key = s->keys[rng_below(&s->rng, s->n_keys)];
    if (!ring_is_replica(s->ring, key, node->index) ||
        !may_lose_key(c, node->index, key, minority(s)))
        return;
    if (!sim_disk_intact(node->disk, key))
        return; /* the same bit once more would mend it, behind the back of a node that knows */
    sim_disk_damage(node->disk, key);
    c->n_damaged++;
}

#define LOSSES (CHAOS_WIPE | CHAOS_LOSE_POWER | CHAOS_DAMAGE)

static void do_node_fault(struct chaos *c, enum chaos_fault fault, struct sim_node *node)
{
    if ((fault & LOSSES) && !rng_chance(&c->sim->rng, c->loss))
        return;
    if (fault == CHAOS_CRASH_NODE)
        crash(c, node);
    else if (fault == CHAOS_FREEZE_NODE)
        sim_node_freeze(node, until(c));
    else if (fault == CHAOS_CRASH_WRITING)
        crash_writing(c, node);
    else if (fault == CHAOS_ISOLATE)
        isolate(c, node);
    else if (fault == CHAOS_WIPE)
        wipe(c, node);
    else if (fault == CHAOS_LOSE_POWER)
        lose_power(c, node);
    else if (fault == CHAOS_DAMAGE)
        damage(c, node);
}

static void do_fault(struct chaos *c, enum chaos_fault fault)
{
    struct sim *s = c->sim;
    struct sim_node *node = &s->nodes[rng_below(&s->rng, s->opts.n_nodes)];
    struct sim_client *cl = any_client(c);

    if (c->only_node != CHAOS_ANY_NODE)
        node = &s->nodes[c->only_node];
    if (fault == CHAOS_SET_CLOCK)
        set_clock(c, cl, node);
    else if (fault == CHAOS_CUT)
        cut_any(c, node->index);
    else if (cl != NULL && fault == CHAOS_FREEZE_CLIENT)
        freeze_client(c, cl);
    else if (cl != NULL && fault == CHAOS_KILL_CLIENT)
        kill_client(c, cl);
    else
        do_node_fault(c, fault, node);
    c->n_faults++;
}

/* One of those that may happen. */
static enum chaos_fault draw_fault(struct chaos *c)
{
    unsigned left = c->faults, n = (unsigned)__builtin_popcount(left);

    for (uint64_t skip = rng_below(&c->sim->rng, n); skip > 0; skip--)
        left &= left - 1;
    return (enum chaos_fault)(left & -left);
}

static void on_tick(struct timer *t)
{
    struct chaos *c = container_of(t, struct chaos, tick);

    uint64_t within_us = 2 * c->gap_us;

    do_fault(c, draw_fault(c));
    if (c->burst > 0 && rng_chance(&c->sim->rng, c->burst))
        within_us = c->length_us;
    sim_timer_set(c->sim, t, c->sim->now_us + rng_below(&c->sim->rng, within_us), NULL);
}

void chaos_start(struct chaos *c)
{
    if (!c->sim->opts.repair) /* what is lost stays lost */
        c->faults &= CHAOS_WITHOUT_LOSS;
    c->tick = (struct timer){.fire = on_tick};
    if (c->faults != 0)
        sim_timer_set(c->sim, &c->tick, c->sim->now_us + rng_below(&c->sim->rng, 2 * c->gap_us),
                      NULL);
}

static void end_cuts(struct sim *s, struct sim_client *cl)
{
    for (unsigned i = 0; i < s->opts.n_nodes; i++)
        cl->cut_to[i] = cl->cut_from[i] = 0;
    cl->thaw_us = 0;
}

void chaos_end(struct chaos *c)
{
    struct sim *s = c->sim;

    sim_timer_clear(s, &c->tick);
    s->net.lose = s->net.duplicate = s->net.linger = s->net.straggle = s->net.lose_drop = 0;
    s->opts.fail_put = 0;
    for (unsigned i = 0; i < s->opts.n_nodes; i++) {
        struct sim_node *n = &s->nodes[i];

        sim_node_freeze(n, 0);
        sim_clock_mend(&n->clock);
        sim_disk_trap(n->disk, NULL, false);
        if (sim_disk_broken(n->disk))
            sim_node_crash(n, 0);
        sim_node_start(n);
        if (n->agent != NULL)
            end_cuts(s, n->agent);
    }
    for (unsigned k = 0; k < s->n_clients; k++)
        end_cuts(s, s->clients[k]);
}

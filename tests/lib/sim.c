/* sim.c - events and time: a binary heap by time, ties broken at random. */
#include "tests/lib/sim.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/log.h"

/* What nodes say to people says nothing new here. The linker puts this in place (--wrap). */
void __wrap_log_event(enum log_level level, const char *event, const char *fmt, ...);

void __wrap_log_event(enum log_level level, const char *event, const char *fmt, ...)
{
    (void)level;
    (void)event;
    (void)fmt;
}

#define DAY_US (24 * 3600 * 1000000ull)
#define EPOCH_US (20000 * DAY_US) /* some day in 2024 */

struct sim_armed {
    uint64_t due_us, tie;
    struct timer *timer;
    struct sim_client *owner;
};

void *sim_alloc(size_t size)
{
    void *p = calloc(1, size);

    assert(p != NULL);
    return p;
}

/* --- the heap -------------------------------------------------------------------------------- */

static bool sooner(const struct sim_armed *a, const struct sim_armed *b)
{
    return a->due_us != b->due_us ? a->due_us < b->due_us : a->tie < b->tie;
}

static void heap_put(struct sim *s, size_t i, struct sim_armed a)
{
    s->heap[i] = a;
    a.timer->slot = i + 1;
}

/* Finds the place of `a`, from the free place i on, up or down. */
static void heap_place(struct sim *s, size_t i, struct sim_armed a)
{
    while (i > 0 && sooner(&a, &s->heap[(i - 1) / 2])) {
        heap_put(s, i, s->heap[(i - 1) / 2]);
        i = (i - 1) / 2;
    }
    for (size_t child = 2 * i + 1; child < s->n_armed; child = 2 * i + 1) {
        if (child + 1 < s->n_armed && sooner(&s->heap[child + 1], &s->heap[child]))
            child++;
        if (!sooner(&s->heap[child], &a))
            break;
        heap_put(s, i, s->heap[child]);
        i = child;
    }
    heap_put(s, i, a);
}

void sim_timer_clear(struct sim *s, struct timer *t)
{
    size_t i = t->slot - 1;

    if (t->slot == 0)
        return;
    t->slot = 0;
    s->n_armed--;
    if (i < s->n_armed)
        heap_place(s, i, s->heap[s->n_armed]);
}

void sim_timer_set(struct sim *s, struct timer *t, uint64_t due_us, struct sim_client *owner)
{
    sim_timer_clear(s, t);
    if (s->n_armed == s->heap_cap) {
        s->heap_cap = s->heap_cap == 0 ? 256 : 2 * s->heap_cap;
        s->heap = realloc(s->heap, s->heap_cap * sizeof *s->heap);
        assert(s->heap != NULL);
    }
    heap_place(s, s->n_armed++, (struct sim_armed){due_us, rng_next(&s->rng), t, owner});
}

void sim_step(struct sim *s)
{
    struct sim_armed a = s->heap[0];

    assert(s->n_armed > 0);
    sim_timer_clear(s, a.timer);
    if (a.due_us > s->now_us)
        s->now_us = a.due_us;
    s->trace = rng_mix(s->trace ^ s->now_us) + a.tie;
    if (a.owner != NULL && a.owner->thaw_us > s->now_us)
        sim_timer_set(s, a.timer, a.owner->thaw_us, a.owner);
    else
        a.timer->fire(a.timer);
}

static void nothing(struct timer *t)
{
    (void)t;
}

void sim_run(struct sim *s, uint64_t for_us)
{
    struct timer end = {.fire = nothing};

    sim_timer_set(s, &end, s->now_us + for_us, NULL);
    while (end.slot != 0)
        sim_step(s);
}

/* --- clocks ---------------------------------------------------------------------------------- */

static uint64_t mono_us(struct clock *clock)
{
    struct sim_clock *c = container_of(clock, struct sim_clock, clock);

    return c->mono_base + (c->sim->now_us >> c->slow);
}

static uint64_t wall_us(struct clock *clock)
{
    struct sim_clock *c = container_of(clock, struct sim_clock, clock);

    return c->wall_base + c->sim->now_us;
}

void sim_clock_jump(struct sim_clock *c)
{
    uint64_t apart_us = c->sim->opts.clocks_apart_us;

    c->wall_base = EPOCH_US + rng_below(&c->sim->rng, apart_us != 0 ? apart_us : DAY_US);
}

void sim_clock_mend(struct sim_clock *c)
{
    uint64_t behind_us = c->sim->now_us - (c->sim->now_us >> c->slow);

    if (c->mono_base > behind_us)
        c->mono_base -= behind_us; /* goes on from where it is */
    c->slow = 0;
}

void sim_clock_init(struct sim_clock *c, struct sim *s)
{
    c->clock = (struct clock){mono_us, wall_us};
    c->sim = s;
    c->mono_base = 1 + rng_below(&s->rng, 30 * DAY_US);
    sim_clock_jump(c);
}

/* --- a cluster ------------------------------------------------------------------------------- */

static int make_ring(struct sim *s)
{
    unsigned n = s->opts.n_nodes;
    char(*names)[16] = sim_alloc(n * sizeof *names);
    const char **ids = sim_alloc(n * sizeof *ids);
    int err;

    for (unsigned i = 0; i < n; i++) {
        snprintf(names[i], sizeof names[i], "node-%02u", i + 1);
        ids[i] = names[i];
    }
    err = ring_new(ids, n, 20, RING_FNV1A_MIX, s->opts.replication_factor, &s->ring);
    free(ids);
    free(names);
    return err;
}

/* The cluster has begun: who votes has announced that to the others. */
static void introduce(struct sim *s)
{
    unsigned n = s->opts.n_nodes;

    for (unsigned i = 0; i < n * n; i++) {
        struct answer hello = {.kind = ANS_HELLO};

        hello.incarnation = replica_incarnation(s->nodes[i % n].replica);
        if (i / n != i % n && replica_learn(s->nodes[i / n].replica, i % n, &hello) < 0)
            abort();
    }
}

int sim_new(const struct sim_opts *opts, struct sim **out)
{
    struct sim *s = sim_alloc(sizeof *s);
    int err;

    s->opts = *opts;
    s->net = opts->net;
    list_init(&s->buried);
    s->rng.state = rng_mix(opts->seed + 1);
    err = make_ring(s);
    if (err < 0) {
        free(s);
        return err;
    }
    s->nodes = sim_alloc(opts->n_nodes * sizeof *s->nodes);
    for (unsigned i = 0; i < opts->n_nodes; i++)
        sim_node_init(&s->nodes[i], s, i);
    if (!opts->new_cluster)
        introduce(s);
    *out = s;
    return 0;
}

void sim_use_key(struct sim *s, struct span key)
{
    uint8_t *copy = sim_alloc(key.len + 1);

    memcpy(copy, key.data, key.len);
    s->keys = realloc(s->keys, (s->n_keys + 1) * sizeof *s->keys);
    assert(s->keys != NULL);
    s->keys[s->n_keys++] = span_of(copy, key.len);
}

static void free_keys(struct sim *s)
{
    for (unsigned i = 0; i < s->n_keys; i++)
        free((void *)(uintptr_t)s->keys[i].data);
    free(s->keys);
}

void sim_free(struct sim *s)
{
    if (s == NULL)
        return;
    for (unsigned i = 0; i < s->opts.n_nodes; i++)
        sim_node_fini(&s->nodes[i]);
    for (unsigned i = 0; i < s->n_clients; i++)
        sim_client_free(s->clients[i]);
    free(s->clients);
    free(s->nodes);
    free_keys(s);
    sim_client_free_buried(s);
    sim_lies_free(s);
    free(s->heap);
    ring_free(s->ring);
    free(s);
}

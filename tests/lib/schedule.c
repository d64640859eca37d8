/*
 * schedule.c - draws a cluster and its troubles from a seed, runs operations through them, and
 * judges the histories.
 */
#include "tests/lib/schedule.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "tests/lib/cold.h"

static unsigned pick(struct rng *rng, const unsigned *from, size_t n)
{
    return from[rng_below(rng, n)];
}

#define PICK(rng, ...)                                                                             \
    pick(rng, (const unsigned[]){__VA_ARGS__},                                                     \
         sizeof((const unsigned[]){__VA_ARGS__}) / sizeof(unsigned))

/* --- what is drawn --------------------------------------------------------------------------- */

#define CHAOS_LENGTH_MOST_US 200000u

static void draw_repair(const struct schedule *sc, struct rng *rng, uint32_t timeout_ms,
                        struct sim_opts *o)
{
    uint64_t longest_us = 2 * (timeout_ms * 1000ull + o->net.linger_us + CHAOS_LENGTH_MOST_US);

    o->repair = true;
    o->new_cluster = rng_chance(rng, 100) && !sc->one_in_trouble; /* which needs all nodes */
    o->sync_us = sc->everysec ? PICK(rng, 1000, 30000, 300000) : 0;
    o->scrub_us = PICK(rng, 100000, 500000);
    o->repair_timeout_ms = PICK(rng, 300, 1000, 5000);
    /* Honest: above the life of every message and operation. */
    o->tombstone_age_us = sc->drop_early ? 50000 : longest_us;
}

static uint32_t draw_timeout_ms(const struct schedule *sc, struct rng *rng)
{
    if (sc->quiet || sc->one_in_trouble)
        return 5000;
    switch (sc->shape) {
    case SHAPE_ANY:
        break;
    case SHAPE_DROPS:
        return 100;
    case SHAPE_LATE:
    case SHAPE_DEAF_WRITERS:
    case SHAPE_LIVES:
        return 3000;
    }
    return PICK(rng, 100, 300, 1000);
}

static struct sim_opts draw_sim(const struct schedule *sc, struct rng *rng, uint32_t timeout_ms)
{
    struct sim_opts o = {
        .seed = rng_next(rng),
        .n_nodes = sc->n_nodes,
        .replication_factor = sc->replication_factor,
        .net = {.delay_us = PICK(rng, 100, 1000, 20000)},
        .lies = sc->lies,
    };

    if (sc->quiet) {
        o.net.delay_us = 1000;
    } else {
        o.net.duplicate = PICK(rng, 0, 100, 300);
        if (sc->one_in_trouble) {
            o.net.delay_us = PICK(rng, 100, 1000);
        } else {
            o.net.lose = PICK(rng, 0, 50, 200);
            o.net.linger = PICK(rng, 0, 50, 200);
            o.net.linger_us = timeout_ms * 1000ull * PICK(rng, 0, 1, 3) + 50000;
            o.slow_nodes = rng_chance(rng, 500);
            o.fail_put = PICK(rng, 0, 0, 0, 20);
        }
    }
    if (sc->repair)
        draw_repair(sc, rng, timeout_ms, &o);
    return o;
}

#define BIT(kind) (1u << HISTORY_##kind)

static struct workload_opts draw_workload(const struct schedule *sc, struct rng *rng,
                                          uint32_t timeout_ms)
{
    struct workload_opts o = {
        .n_clients = PICK(rng, 2, 3),
        .n_keys = PICK(rng, 1, 1, 2),
        .timeout_ms = timeout_ms,
        .think_us = PICK(rng, 0, 5000, 200000),
        .padding = sc->padding,
    };

    o.n_actors = o.n_clients + PICK(rng, 0, 1, 2);
    o.n_ops = (unsigned)rng_between(rng, 2, o.n_keys * 24 / o.n_actors);
    o.kinds = PICK(rng, BIT(READ) | BIT(SET) | BIT(APPEND),
                   BIT(READ) | BIT(CREATE) | BIT(DELETE) | BIT(SET), BIT(READ) | BIT(APPEND),
                   BIT(READ) | BIT(CAS) | BIT(TOUCH), WORKLOAD_ALL_KINDS);
    return o;
}

static void shape_late(struct rng *rng, struct sim_opts *sim, struct workload_opts *workload)
{
    sim->net = (struct sim_net){
        .delay_us = 1000,
        .lose = PICK(rng, 0, 10),
        .linger = PICK(rng, 0, 50),
        .linger_us = PICK(rng, 400000, 1000000),
        .straggle = 900,
    };
    workload->n_actors = PICK(rng, 3, 4);
    workload->n_ops = (unsigned)rng_between(rng, 3, 6);
    workload->kinds =
        PICK(rng, BIT(READ) | BIT(APPEND), BIT(APPEND), BIT(READ) | BIT(CAS) | BIT(SET));
    workload->think_us = PICK(rng, 5000, 100000);
}

static void shape_lives(struct rng *rng, struct sim_opts *sim, struct workload_opts *workload)
{
    sim->net = (struct sim_net){
        .delay_us = 1000,
        .lose = PICK(rng, 0, 200),
        .linger = 300,
        .linger_us = PICK(rng, 1000000, 3000000),
    };
    /* Else, after a few, none is above the highest yet. */
    sim->clocks_apart_us = PICK(rng, 1000000, 5000000);
    workload->n_actors = 3;
    workload->n_ops = (unsigned)rng_between(rng, 3, 6);
    workload->think_us = PICK(rng, 200000, 500000);
}

/* Tombstones grow old in the pauses. */
static void shape_deletes(struct rng *rng, struct sim_opts *sim, struct workload_opts *workload)
{
    unsigned age_us = (unsigned)sim->tombstone_age_us;

    sim->clocks_apart_us = PICK(rng, age_us / 2, 8 * age_us);
    sim->scrub_us = 20000;
    workload->n_clients = workload->n_actors = 4; /* one that comes late has seen nothing yet */
    workload->n_ops = (unsigned)rng_between(rng, 1, 5);
    workload->kinds = BIT(READ) | BIT(DELETE) | PICK(rng, BIT(CREATE), BIT(APPEND), BIT(SET));
    workload->think_us = PICK(rng, 5000, 3 * age_us, 6 * age_us);
}

static void shape_drops(struct rng *rng, struct sim_opts *sim)
{
    sim->nodes_ahead = true; /* what is old by their clocks is dropped */
    sim->net.delay_us = 1000;
    sim->net.lose = PICK(rng, 0, 20);
    sim->net.lose_drop = PICK(rng, 0, 900, 900);
}

/* Bends what was drawn to the shape. */
static void shape(const struct schedule *sc, struct rng *rng, struct sim_opts *sim,
                  struct workload_opts *workload)
{
    if (sc->shape == SHAPE_ANY)
        return;
    sim->slow_nodes = true;
    workload->n_keys = 1;
    workload->n_clients = 3;
    if (sc->shape == SHAPE_LATE)
        shape_late(rng, sim, workload);
    else if (sc->shape == SHAPE_LIVES)
        shape_lives(rng, sim, workload);
    else
        shape_deletes(rng, sim, workload);
    if (sc->shape == SHAPE_DROPS)
        shape_drops(rng, sim);
}

static void shape_chaos(const struct schedule *sc, struct rng *rng, struct chaos *c)
{
    if (sc->shape == SHAPE_ANY)
        return;
    c->faults = sc->faults;
    c->loss = 1000;
    if (sc->shape == SHAPE_LATE) {
        c->gap_us = PICK(rng, 50000, 200000);
        c->length_us = PICK(rng, 1000, 20000);
    } else if (sc->shape == SHAPE_LIVES) {
        c->gap_us = PICK(rng, 300000, 1000000);
        c->length_us = PICK(rng, 5000, 20000);
        c->burst = 600;
        c->only_node = 0;
    } else { /* nothing grows old where no node lives long */
        c->gap_us = PICK(rng, 300000, 3000000);
    }
    if (sc->shape == SHAPE_DEAF_WRITERS)
        c->length_us = 1000000;
}

static struct chaos draw_chaos(const struct schedule *sc, struct rng *rng, struct sim *s)
{
    struct chaos c = {
        .sim = s,
        .faults = sc->faults & (unsigned)rng_next(rng),
        .gap_us = PICK(rng, 5000, 30000, 200000),
        .length_us = PICK(rng, 1000, 20000, CHAOS_LENGTH_MOST_US),
        .loss = PICK(rng, 50, 300, 1000),
        .only_node = sc->one_in_trouble ? 0 : CHAOS_ANY_NODE,
        .n_kills = 1,
    };

    shape_chaos(sc, rng, &c);
    return c;
}

struct killing {
    struct chaos chaos;
    struct workload *workload;
};

static void on_kill(struct chaos *c, struct sim_client *cl)
{
    workload_killed(container_of(c, struct killing, chaos)->workload, cl);
}

/* --- a run ----------------------------------------------------------------------------------- */

#define CONVERGE_WITHIN_US 60000000u
#define CONVERGE_STEP_US 50000u

/* Until all replicas hold the same, and the nodes know it. Returns how long that took. */
static uint64_t converge(struct workload *w)
{
    struct sim *s = w->sim;
    uint64_t began_us = s->now_us;
    struct err why;

    while (!sim_converged(s, &why) || !sim_digests_right(s, &why)) {
        if (s->now_us > began_us + CONVERGE_WITHIN_US) {
            workload_complain(w, "the replicas do not come to hold the same: %s", why.msg);
            break;
        }
        sim_run(s, CONVERGE_STEP_US);
    }
    return s->now_us - began_us;
}

static void note_result(const struct workload *w, const struct chaos *c,
                        struct schedule_result *result)
{
    memcpy(result->n_outcomes, w->n_outcomes, sizeof w->n_outcomes);
    result->n_reads = w->n_reads;
    result->n_reads_failed = w->n_reads_failed;
    result->n_faults = c->n_faults;
    result->n_wiped = c->n_wiped;
    result->n_power_lost = c->n_power_lost;
    result->n_damaged = c->n_damaged;
    sim_repaired(w->sim, &result->repaired);
    result->trace = w->sim->trace;
}

/* No disk that was lost ever comes back, so that no life stands in the way of a later one. */
static unsigned complain_of_superseded(struct workload *w)
{
    const struct sim *s = w->sim;
    unsigned n = s->n_superseded;

    for (unsigned i = 0; i < s->opts.n_nodes; i++)
        n += s->nodes[i].replica != NULL && replica_superseded(s->nodes[i].replica);
    if (n > 0)
        workload_complain(w, "%u times a node was superseded, by an earlier life", n);
    return n;
}

/* Where a majority was well all the time, nothing fails. */
static void complain_of_failures(struct workload *w)
{
    unsigned n = w->n_outcomes[HISTORY_NONE] + w->n_outcomes[HISTORY_UNKNOWN] + w->n_reads_failed;

    if (n > 0)
        workload_complain(w, "%u operations failed, though a majority was well", n);
}

void schedule_run(const struct schedule *sc, FILE *out, struct schedule_result *result)
{
    struct rng rng = {sc->seed};
    uint32_t timeout_ms = draw_timeout_ms(sc, &rng);
    struct sim_opts sim_opts = draw_sim(sc, &rng, timeout_ms);
    struct workload_opts workload_opts = draw_workload(sc, &rng, timeout_ms);
    struct workload w;
    struct killing k;
    struct sim *s;
    unsigned n_cold;
    struct err why;
    int err;

    memset(result, 0, sizeof *result);
    shape(sc, &rng, &sim_opts, &workload_opts);
    n_cold = sc->repair && sc->shape != SHAPE_LIVES ? PICK(&rng, 0, 0, 0, 0, 12) : 0;
    err = sim_new(&sim_opts, &s);
    assert(err == 0);
    cold_write(s, n_cold);
    workload_start(&w, s, &workload_opts);
    k.chaos = draw_chaos(sc, &rng, s);
    k.chaos.on_kill = on_kill;
    k.workload = &w;
    if (!sc->quiet)
        chaos_start(&k.chaos);
    workload_finish(&w);
    chaos_end(&k.chaos);
    if (sc->repair && sc->replication_factor == 2)
        result->converge_us = converge(&w); /* no reads before: each needs both */
    workload_read_all(&w);
    /* What was still under way comes too late to change anything seen. */
    sim_run(s, 2 * s->net.linger_us);
    workload_read_all(&w);
    if (sc->repair) {
        result->converge_us += converge(&w);
        if (!cold_intact(s, n_cold, &why))
            workload_complain(&w, "%s", why.msg);
        workload_read_all(&w);
    }
    if (sc->quiet || sc->one_in_trouble)
        complain_of_failures(&w);
    result->n_superseded = complain_of_superseded(&w);
    result->good = workload_judge(&w, out, &result->n_broken);
    if (!result->good)
        fprintf(out, "the seed was %" PRIu64 ", with %u nodes, %u copies\n", sc->seed, sc->n_nodes,
                sc->replication_factor);
    note_result(&w, &k.chaos, result);
    sim_free(s);
    workload_fini(&w);
}

/* --- how many -------------------------------------------------------------------------------- */

#if defined(__SANITIZE_ADDRESS__)
#define IS_SANITIZED 1
#elif defined(__has_feature)
#define IS_SANITIZED __has_feature(address_sanitizer)
#else
#define IS_SANITIZED 0
#endif

static uint64_t from_environment(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);

    return text == NULL || *text == '\0' ? otherwise : strtoull(text, NULL, 10);
}

uint64_t schedule_first_seed(uint64_t usual)
{
    return from_environment("KVFS_SIM_SEED", usual);
}

unsigned schedule_count(unsigned usual)
{
#if IS_SANITIZED
    usual = (usual + 9) / 10;
#endif
    return (unsigned)from_environment("KVFS_SIM_COUNT", usual);
}

/*
 * schedule.c - draws a cluster and its troubles from a seed, runs operations through them, and
 * judges the histories.
 */
#include "tests/lib/schedule.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static unsigned pick(struct rng *rng, const unsigned *from, size_t n)
{
    return from[rng_below(rng, n)];
}

#define PICK(rng, ...)                                                                             \
    pick(rng, (const unsigned[]){__VA_ARGS__},                                                     \
         sizeof((const unsigned[]){__VA_ARGS__}) / sizeof(unsigned))

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
        return o;
    }
    o.net.duplicate = PICK(rng, 0, 100, 300);
    if (sc->one_in_trouble) {
        o.net.delay_us = PICK(rng, 100, 1000);
        return o;
    }
    o.net.lose = PICK(rng, 0, 50, 200);
    o.net.linger = PICK(rng, 0, 50, 200);
    o.net.linger_us = timeout_ms * 1000ull * PICK(rng, 0, 1, 3) + 50000;
    o.slow_nodes = rng_chance(rng, 500);
    o.fail_put = PICK(rng, 0, 0, 0, 20);
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

static struct chaos draw_chaos(const struct schedule *sc, struct rng *rng, struct sim *s)
{
    struct chaos c = {
        .sim = s,
        .faults = sc->faults & (unsigned)rng_next(rng),
        .gap_us = PICK(rng, 3000, 20000, 150000),
        .length_us = PICK(rng, 1000, 20000, 200000),
        .only_node = sc->one_in_trouble ? 0 : CHAOS_ANY_NODE,
        .n_kills = 1,
    };

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

void schedule_run(const struct schedule *sc, FILE *out, struct schedule_result *result)
{
    struct rng rng = {sc->seed};
    uint32_t timeout_ms = sc->quiet || sc->one_in_trouble ? 5000 : PICK(&rng, 100, 300, 1000);
    struct sim_opts sim_opts = draw_sim(sc, &rng, timeout_ms);
    struct workload_opts workload_opts = draw_workload(sc, &rng, timeout_ms);
    struct workload w;
    struct killing k;
    struct sim *s;
    int err = sim_new(&sim_opts, &s);

    assert(err == 0);
    workload_start(&w, s, &workload_opts);
    k.chaos = draw_chaos(sc, &rng, s);
    k.chaos.on_kill = on_kill;
    k.workload = &w;
    if (!sc->quiet)
        chaos_start(&k.chaos);
    workload_finish(&w);
    chaos_end(&k.chaos);
    workload_read_all(&w);
    sim_run(
        s,
        2 * s->net.linger_us); /* what was still under way comes too late to change anything seen */
    workload_read_all(&w);
    result->good = workload_judge(&w, out, &result->n_broken);
    if (!result->good)
        fprintf(out, "the seed was %" PRIu64 ", with %u nodes, %u copies\n", sc->seed, sc->n_nodes,
                sc->replication_factor);
    memcpy(result->n_outcomes, w.n_outcomes, sizeof w.n_outcomes);
    result->n_reads = w.n_reads;
    result->n_reads_failed = w.n_reads_failed;
    result->n_faults = k.chaos.n_faults;
    result->trace = s->trace;
    sim_free(s);
    workload_fini(&w);
}

/* --- how many -------------------------------------------------------------------------------- */

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
#ifdef __SANITIZE_ADDRESS__
    usual /= 4;
#endif
    return (unsigned)from_environment("KVFS_SIM_COUNT", usual);
}

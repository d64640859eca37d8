/*
 * workload.h - random operations of several clients on a few keys, what each saw, and the
 * judgement: can every key's history be explained?
 *
 * A write puts its id into the record's rdev, where even a listing shows it; values are lists of
 * such ids (see history.h).
 */
#ifndef KVFS_TESTS_LIB_WORKLOAD_H
#define KVFS_TESTS_LIB_WORKLOAD_H

#include "tests/lib/history.h"
#include "tests/lib/sim.h"

#define WORKLOAD_ALL_KINDS 127u

struct workload_opts {
    unsigned n_clients,
        n_actors; /* an actor does one operation after the other; several may share a client */
    unsigned n_keys, n_ops; /* n_ops: of each actor */
    unsigned kinds;         /* 1u << enum history_kind, those that are drawn from */
    uint32_t timeout_ms;
    uint64_t think_us;       /* pause before each, up to this */
    size_t padding;          /* bytes behind the ids of each value */
    const char *const *keys; /* n_keys names; NULL: "key-0" and so on */
};

struct workload_actor;

struct workload {
    struct workload_opts opts;
    struct sim *sim;
    struct history *histories; /* n_keys */
    struct workload_actor *actors;
    unsigned n_running; /* actors that have not come to their end */
    uint32_t last_id;
    unsigned n_outcomes[4]; /* by enum history_outcome, of writes */
    unsigned n_reads, n_reads_failed;
    char complaint[256]; /* what was seen to be wrong before any judgement; the first such */
};

/* Starts the clients, which the sim keeps, and the actors. */
void workload_start(struct workload *w, struct sim *s, const struct workload_opts *opts);
/* Steps the sim until every actor has done all it had to do. */
void workload_finish(struct workload *w);
/* This client was killed: what its actors were doing has an unknown outcome. */
void workload_killed(struct workload *w, const struct sim_client *cl);
/*
 * Reads every key through a new client, in a cluster that is whole: each read has to succeed, and
 * goes into the history.
 */
void workload_read_all(struct workload *w);
/*
 * Is all well? Otherwise says to `out` what is not, and *n_broken is how many keys have a history
 * that cannot be explained.
 */
bool workload_judge(const struct workload *w, FILE *out, unsigned *n_broken);
void workload_fini(struct workload *w);

/* The name of a key. Borrowed, until the fourth call after this one. */
struct span workload_key(const struct workload *w, unsigned key);
void workload_complain(struct workload *w, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

#endif

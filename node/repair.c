/*
 * repair.c - the engine of repair: its parts, who of the peers is back, and what it tells.
 *
 *   recovery.[ch]     until this node votes; rescue.[ch]: one key of it
 *   comparison.[ch]   one for each peer of a higher index
 *   mending.[ch]      keys that differ, and own ones that are damaged
 *   tombstones.[ch]   old ones that may be dropped
 *
 * Comparing, mending and dropping begin when the node votes.
 */
#include "node/repair.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "node/comparison.h"
#include "node/mending.h"
#include "node/recovery.h"
#include "node/tombstones.h"

#define TOMBSTONE_AGE_DEFAULT_US 86400000000u

struct peer {
    bool whole; /* by its last HELLO */
    uint64_t incarnation;
    struct comparison *comparison; /* NULL: the peer compares, or nothing is shared */
};

struct repair {
    struct repair_opts opts;
    struct repair_part part;
    struct work work;
    struct pace pace;
    void (*on_idle)(void *arg); /* of repair_stop() */
    void *on_idle_arg;

    struct recovery *recovery;
    struct op *greeting; /* of itself, under way */
    struct mending *mending;
    struct tombstones *tombstones;
    struct peer *peers; /* by node */

    pthread_mutex_t lock;
    struct repair_progress progress; /* lock; for other threads */
};

/* --- what it tells ---------------------------------------------------------------------------- */

/* When the last of those that it compares itself with was found the same; 0: not all were. */
static uint64_t all_same_us(const struct repair *rp)
{
    uint64_t least = UINT64_MAX;

    for (unsigned i = 0; i < ring_n_nodes(rp->opts.ring); i++) {
        const struct comparison *c = rp->peers[i].comparison;

        if (c != NULL && comparison_same_us(c) < least)
            least = comparison_same_us(c);
    }
    return least == UINT64_MAX ? 0 : least;
}

static void publish(void *arg)
{
    struct repair *rp = arg;
    struct mending_counts m = mending_get(rp->mending);
    struct repair_progress p = {
        .n_behind = m.n_behind,
        .n_mended = m.n_mended,
        .n_healed = m.n_healed,
        .n_failed = m.n_failed,
        .n_dropped = tombstones_n_dropped(rp->tombstones),
        .last_same_us = all_same_us(rp),
    };

    recovery_progress(rp->recovery, &p);
    for (unsigned i = 0; i < ring_n_nodes(rp->opts.ring); i++) {
        if (rp->peers[i].comparison != NULL)
            p.n_compared += comparison_count(rp->peers[i].comparison);
    }
    pthread_mutex_lock(&rp->lock);
    rp->progress = p;
    pthread_mutex_unlock(&rp->lock);
}

void repair_get_progress(struct repair *rp, struct repair_progress *out)
{
    pthread_mutex_lock(&rp->lock);
    *out = rp->progress;
    pthread_mutex_unlock(&rp->lock);
}

uint64_t repair_old_counter(const struct repair *rp)
{
    return repair_old_counter_of(&rp->opts);
}

/* --- how the parts work together -------------------------------------------------------------- */

static void compare_all(struct repair *rp)
{
    for (unsigned i = 0; i < ring_n_nodes(rp->opts.ring); i++) {
        if (rp->peers[i].comparison != NULL && rp->peers[i].whole)
            comparison_hurry(rp->peers[i].comparison);
    }
}

static void on_greeted(void *arg, struct hello_result *res)
{
    struct repair *rp = arg;

    (void)res; /* it has told health */
    rp->greeting = NULL;
    work_end(&rp->work);
}

/*
 * This node's own client has heard, as all others have, that it recovers, and would leave it out of
 * what it writes until the next probe.
 */
static void greet_self(struct repair *rp)
{
    struct hello_args args = {.node = rp->opts.self,
                              .self = rp->opts.self,
                              .incarnation = replica_incarnation(rp->opts.replica),
                              .state = NODE_WHOLE,
                              .timeout_ms = REPAIR_TIMEOUT_MS};

    rp->greeting = client_hello(rp->opts.client, &args, on_greeted, rp);
    if (rp->greeting != NULL)
        work_begin(&rp->work);
}

static void on_recovered(void *arg)
{
    struct repair *rp = arg;

    greet_self(rp);
    mending_begin(rp->mending);
    compare_all(rp);
}

static void on_room(void *arg)
{
    struct repair *rp = arg;

    for (unsigned i = 0; i < ring_n_nodes(rp->opts.ring); i++) {
        if (rp->peers[i].comparison != NULL)
            comparison_go_on(rp->peers[i].comparison);
    }
}

static void on_old_tombstone(void *arg, struct span key, struct ballot version)
{
    struct repair *rp = arg;

    tombstones_add(rp->tombstones, key, version);
}

static bool on_difference(void *arg, struct span key, uint64_t size)
{
    struct repair *rp = arg;

    return mending_add(rp->mending, key, size);
}

/*
 * Of the replicas that are whole, the first by index is in charge of a key: wherever two of them
 * differ, it differs from one of them, too.
 */
static bool another_in_charge(void *arg, struct span key)
{
    const struct repair *rp = arg;
    const unsigned *replicas = ring_replicas(rp->opts.ring, key);

    for (unsigned i = 0; i < ring_n_replicas(rp->opts.ring); i++) {
        if (replicas[i] < rp->opts.self && rp->peers[replicas[i]].whole)
            return true;
    }
    return false;
}

static uint64_t count_mended(void *arg)
{
    const struct repair *rp = arg;

    return mending_get(rp->mending).n_mended;
}

/* --- what it is told -------------------------------------------------------------------------- */

void repair_on_hello(struct repair *rp, unsigned node, const struct hello_result *res)
{
    struct peer *p = &rp->peers[node];
    bool whole = res->err == 0 && res->answer.recovering != NODE_RECOVERING;
    bool is_back = whole && (!p->whole || p->incarnation != res->answer.incarnation);

    if (rp->work.stopped)
        return;
    p->whole = whole;
    if (whole)
        p->incarnation = res->answer.incarnation;
    recovery_on_hello(rp->recovery, node, res);
    if (is_back && p->comparison != NULL && recovery_is_done(rp->recovery))
        comparison_hurry(p->comparison);
}

void repair_indexed(struct repair *rp)
{
    if (!rp->work.stopped && recovery_is_done(rp->recovery))
        compare_all(rp);
}

void repair_damaged(struct repair *rp, struct span key)
{
    mending_heal(rp->mending, key);
}

void repair_tombstone(struct repair *rp, struct span key, struct ballot version)
{
    if (recovery_is_done(rp->recovery))
        tombstones_add(rp->tombstones, key, version);
}

bool repair_has_room(const struct repair *rp)
{
    return tombstones_has_room(rp->tombstones);
}

/* --- life ------------------------------------------------------------------------------------- */

static int make_comparisons(struct repair *rp)
{
    const struct ring *ring = rp->opts.ring;
    int err = 0;

    for (unsigned i = rp->opts.self + 1; i < ring_n_nodes(ring) && err == 0; i++) {
        struct comparison_opts opts = {
            .part = &rp->part,
            .peer = i,
            .found = on_difference,
            .left_to_other = another_in_charge,
            .n_mended = count_mended,
            .arg = rp,
        };

        if (ring_shares(ring, rp->opts.self, i))
            err = comparison_new(&opts, &rp->peers[i].comparison);
    }
    return err;
}

static int make_parts(struct repair *rp)
{
    struct mending_opts mending = {
        .part = &rp->part, .on_room = on_room, .on_old_tombstone = on_old_tombstone, .arg = rp};
    int err;

    rp->peers = calloc(ring_n_nodes(rp->opts.ring), sizeof(*rp->peers));
    if (rp->peers == NULL)
        return -ENOMEM;
    err = recovery_new(&rp->part, on_recovered, rp, &rp->recovery);
    if (err == 0)
        err = mending_new(&mending, &rp->mending);
    if (err == 0)
        err = tombstones_new(&rp->part, &rp->tombstones);
    if (err == 0)
        err = make_comparisons(rp);
    return err;
}

int repair_new(const struct repair_opts *opts, struct repair **out)
{
    struct repair *rp = calloc(1, sizeof(*rp));
    int err;

    if (rp == NULL)
        return -ENOMEM;
    pthread_mutex_init(&rp->lock, NULL);
    rp->opts = *opts;
    if (rp->opts.tombstone_age_us == 0)
        rp->opts.tombstone_age_us = TOMBSTONE_AGE_DEFAULT_US;
    rp->part = (struct repair_part){
        .opts = &rp->opts, .work = &rp->work, .pace = &rp->pace, .changed = publish, .arg = rp};
    err = make_parts(rp);
    if (err < 0) {
        repair_free(rp);
        return err;
    }
    publish(rp);
    if (recovery_is_done(rp->recovery))
        mending_begin(rp->mending);
    *out = rp;
    return 0;
}

static void on_work_over(void *arg)
{
    struct repair *rp = arg;

    rp->on_idle(rp->on_idle_arg);
}

void repair_stop(struct repair *rp, void (*on_idle)(void *arg), void *arg)
{
    assert(!rp->work.stopped);
    rp->on_idle = on_idle;
    rp->on_idle_arg = arg;
    rp->work.on_idle = on_work_over;
    rp->work.arg = rp;
    work_begin(&rp->work); /* so that the end does not come in the middle of this */
    rp->work.stopped = true;
    recovery_stop(rp->recovery);
    if (rp->greeting != NULL)
        op_cancel(rp->greeting);
    mending_stop(rp->mending);
    tombstones_stop(rp->tombstones);
    for (unsigned i = 0; i < ring_n_nodes(rp->opts.ring); i++) {
        if (rp->peers[i].comparison != NULL)
            comparison_stop(rp->peers[i].comparison);
    }
    rp->work.n--; /* idle already: nobody needs to be told */
}

bool repair_idle(const struct repair *rp)
{
    return rp->work.n == 0;
}

void repair_free(struct repair *rp)
{
    if (rp == NULL)
        return;
    assert(rp->work.n == 0);
    for (unsigned i = 0; rp->peers != NULL && i < ring_n_nodes(rp->opts.ring); i++)
        comparison_free(rp->peers[i].comparison);
    free(rp->peers);
    tombstones_free(rp->tombstones);
    mending_free(rp->mending);
    recovery_free(rp->recovery);
    pthread_mutex_destroy(&rp->lock);
    free(rp);
}

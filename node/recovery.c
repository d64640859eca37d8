/*
 * recovery.c - the steps of recovering:
 *
 *   asking    HELLO, by the prober, until of every set of replicas that this node is in enough
 *             others (a majority, or all where that is fewer) have learned the present incarnation.
 *             Or until all of all sets are as new as this node: then there is nothing to recover,
 *             and the cluster begins. Then the same once more, *announcing*: now they store that
 *             this life will vote, and tell their floor.
 *   copying   what those others list, merged by key; each key by a rescue (rescue.h), some in
 *             parallel. When one of the others fails, back to asking: the keys that were copied
 *             stay, and copying goes on behind the last one.
 *   done      the floor is stored, and it votes.
 *   superseded  it voted, and hears that a newer life of this node announced: it votes no more.
 *
 * What must never be: that it votes while a record that a majority had accepted, this node's lost
 * copy counted in, is known to no majority without it.
 */
#include "node/recovery.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/log.h"
#include "node/census.h"
#include "node/key_merge.h"
#include "node/rescue.h"

#define LOSS_WAIT_US 10000000u /* with accept_data_loss: how long the others have to appear */
#define LOSS_TELL_US 2000000u  /* the same: and those that did to store the announcement */
#define AGAIN_US 1000000u      /* after an error of this node's own */
#define TELL_AFTER_US 2000000u /* nodes that start together wait for a moment */
#define STUCK_TRIES 3u         /* of one key, before people are told */

enum phase { ASKING, COPYING, DONE, SUPERSEDED };

struct recovery {
    const struct repair_part *part;
    void (*done)(void *arg);
    void *done_arg;
    enum phase phase;
    struct timer timer; /* looks again: an error, or patience that ends */
    uint64_t waits_since_us;
    bool waits; /* since then; the first look was taken */

    struct census census;
    bool own_known;
    uint64_t own_keys;
    uint64_t floor; /* the highest told */

    struct key_merge *merge;
    struct key_source *sources;   /* of the merge */
    unsigned n_others, n_sources; /* this node itself comes last, where it has anything */
    struct merged_key next;       /* pulled and not begun */
    bool has_next, at_end;
    struct buf position; /* of the last key begun */
    struct list rescues;
    unsigned n_rescues;
    uint64_t bytes; /* of their values */

    uint64_t n_expected, n_begun, n_done;
    uint64_t n_kept, n_lost; /* of those done: that were here already; that nobody has any more */
    char waits_for[sizeof(((struct repair_progress *)0)->waits_for)];
    char logged[sizeof(((struct repair_progress *)0)->waits_for)];
    char stuck[sizeof(((struct repair_progress *)0)->waits_for)]; /* a key does not come */
    int told_failure;                                             /* the last that was logged */
};

static void recovery_look(struct recovery *rc);
static void recovery_pump(struct recovery *rc);

static const struct repair_opts *opts_of(const struct recovery *rc)
{
    return rc->part->opts;
}

/* --- for people ------------------------------------------------------------------------------- */

static void set_text(char *out, size_t cap, const struct buf *text)
{
    size_t len = text->err != 0 ? 0 : text->len < cap ? text->len : cap - 1;

    memcpy(out, text->data != NULL ? text->data : (const uint8_t *)"", len);
    out[len] = '\0';
}

/* Whom it waits for and why, in /status, and in the log once per change. */
static void tell_waiting(struct recovery *rc)
{
    unsigned n_nodes = ring_n_nodes(opts_of(rc)->ring);
    struct buf text = {0};

    for (unsigned i = 0; i < n_nodes; i++) {
        if (rc->census.citizens[i].shares && !census_is_whole(&rc->census, i))
            buf_addf(&text, "%s%s: %s", text.len > 0 ? "; " : "", repair_node_name(rc->part, i),
                     census_explain(&rc->census, i));
    }
    if (text.len > 0 && !opts_of(rc)->accept_data_loss)
        buf_addf(&text, "; see --accept-data-loss");
    set_text(rc->waits_for, sizeof(rc->waits_for), &text);
    buf_fini(&text);
    if (repair_now_us(rc->part) >= rc->waits_since_us + TELL_AFTER_US && rc->waits_for[0] != '\0' &&
        strcmp(rc->logged, rc->waits_for) != 0) {
        memcpy(rc->logged, rc->waits_for, sizeof(rc->logged));
        log_event(LOG_LEVEL_WARN, "recovery-waits", "for=%s",
                  log_quote(rc->waits_for, strlen(rc->waits_for)));
    }
    rc->part->changed(rc->part->arg);
}

/* An error of this node's own, logged once. */
static void tell_failure(struct recovery *rc, const char *what, int err)
{
    if (rc->told_failure != err)
        log_event(LOG_LEVEL_ERROR, "recovery-failed", "what=%s error=%s",
                  log_quote(what, strlen(what)), log_quote(strerror(-err), strlen(strerror(-err))));
    rc->told_failure = err;
    repair_timer_set(rc->part, &rc->timer, repair_now_us(rc->part) + AGAIN_US);
}

/* --- the end ---------------------------------------------------------------------------------- */

static void recovery_end(struct recovery *rc)
{
    rc->phase = DONE;
    rc->waits_for[0] = rc->stuck[0] = '\0';
    rc->n_expected = rc->n_begun;
    repair_timer_clear(rc->part, &rc->timer);
    rc->part->changed(rc->part->arg);
    rc->done(rc->done_arg);
}

/* All others are as new as this node. */
static void recovery_found(struct recovery *rc)
{
    unsigned n = 0, n_nodes = ring_n_nodes(opts_of(rc)->ring);
    struct founder *others = calloc(n_nodes, sizeof(*others));
    int err = others == NULL ? -ENOMEM : 0;

    for (unsigned i = 0; i < n_nodes && err == 0; i++) {
        const struct citizen *z = &rc->census.citizens[i];

        if (z->shares)
            others[n++] = (struct founder){i, z->incarnation};
    }
    if (err == 0)
        err = replica_found(opts_of(rc)->replica, others, n);
    free(others);
    if (err != 0) {
        tell_failure(rc, "cannot begin a new cluster", err);
        return;
    }
    log_event(LOG_LEVEL_INFO, "new-cluster", "others=%u", n);
    recovery_end(rc);
}

static void recovery_complete(struct recovery *rc)
{
    int err = replica_recovered(opts_of(rc)->replica, rc->floor);

    if (err != 0) {
        tell_failure(rc, "cannot end the recovery", err);
        return;
    }
    log_event(rc->n_lost > 0 ? LOG_LEVEL_WARN : LOG_LEVEL_INFO, "recovered",
              "keys=%" PRIu64 " kept=%" PRIu64 " lost=%" PRIu64, rc->n_done - rc->n_lost,
              rc->n_kept, rc->n_lost);
    recovery_end(rc);
}

/* --- copying ---------------------------------------------------------------------------------- */

static void on_merge_closed(void *arg)
{
    work_end(arg);
}

static void merge_close(struct recovery *rc)
{
    struct key_merge *m = rc->merge;

    rc->merge = NULL;
    rc->has_next = false;
    if (m != NULL)
        key_merge_close(m, on_merge_closed, rc->part->work);
}

/* One of the others cannot be asked any more. */
static void on_source_failed(struct recovery *rc)
{
    const struct err *why;
    unsigned node = key_merge_failed(rc->merge, &why);

    log_event(LOG_LEVEL_WARN, "recovery-interrupted", "node=%s error=%s keys=%" PRIu64,
              repair_node_name(rc->part, node), log_quote(why->msg, strlen(why->msg)), rc->n_done);
    rc->phase = ASKING;
    rc->waits = false;
    merge_close(rc);
    if (node == opts_of(rc)->self) {
        repair_timer_set(rc->part, &rc->timer, repair_now_us(rc->part) + AGAIN_US);
        return;
    }
    census_failed(&rc->census, node, -EHOSTDOWN); /* until it says hello again */
    recovery_look(rc);
}

/* The entry of the source that has the newest; the others only. */
static unsigned newest_source(const struct recovery *rc, const struct merged_key *k)
{
    unsigned best = 0;

    for (unsigned i = 0; i < rc->n_others; i++) {
        if (k->entries[best].key.len == 0 ||
            ballot_cmp(k->entries[i].version, k->entries[best].version) > 0)
            best = i;
    }
    return best;
}

/* From whom is this key to be had? */
static struct rescue_plan plan_rescue(const struct recovery *rc, const struct merged_key *k)
{
    const struct ring *ring = opts_of(rc)->ring;
    unsigned n = ring_n_replicas(ring), n_same = 0, n_asked = 0, best = newest_source(rc, k);
    const struct entry *top = &k->entries[best];

    for (unsigned i = 0; i < rc->n_others; i++) {
        n_asked += ring_is_replica(ring, k->key, rc->sources[i].node);
        n_same += ballot_cmp(k->entries[i].version, top->version) == 0;
    }
    if (!ballot_is_none(top->version) && n_same >= (n == 2 ? 1 : ring_majority(ring)))
        return (struct rescue_plan){RESCUE_PINNED, rc->sources[best].node, top->version, top->size};
    if (n > 2 && n_asked >= ring_majority(ring))
        return (struct rescue_plan){.way = RESCUE_SETTLE, .size = top->size};
    return (struct rescue_plan){
        .way = RESCUE_NEWEST, .source = rc->sources[best].node, .size = top->size};
}

/* Only this node has it; or it has the very version that it would get. */
static bool is_here(const struct recovery *rc, const struct merged_key *k,
                    const struct rescue_plan *plan)
{
    const struct entry *own = &k->entries[rc->n_others];
    bool elsewhere = false;

    if (rc->n_sources == rc->n_others || own->key.len == 0)
        return false;
    for (unsigned i = 0; i < rc->n_others; i++)
        elsewhere |= k->entries[i].key.len > 0;
    if (!elsewhere)
        return true;
    return plan->way == RESCUE_PINNED && ballot_cmp(own->version, plan->version) == 0;
}

static void tell_stuck(struct recovery *rc, const struct rescue *r, int err)
{
    struct buf text = {0};
    struct span key = rescue_key(r);

    buf_addf(&text, "key %s: %s", log_quote(key.data, key.len < 64 ? key.len : 64), strerror(-err));
    set_text(rc->stuck, sizeof(rc->stuck), &text);
    buf_fini(&text);
    rc->part->changed(rc->part->arg);
}

/* A rescue failed: how does it go on? */
static void plan_again(void *arg, const struct rescue *r, unsigned tries, int err,
                       struct rescue_plan *plan)
{
    struct recovery *rc = arg;
    const struct ring *ring = opts_of(rc)->ring;
    struct span key = rescue_key(r);
    unsigned first = 0, n_whole = census_count_whole(&rc->census, key, &first);
    bool lossy = opts_of(rc)->accept_data_loss;

    if (tries >= STUCK_TRIES)
        tell_stuck(rc, r, err);
    if (lossy && tries >= STUCK_TRIES && (err == -EBADMSG || n_whole == 0)) {
        rc->n_lost++;
        plan->way = RESCUE_LOST;
        log_event(LOG_LEVEL_ERROR, "key-lost", "key=%s error=%s", log_quote(key.data, key.len),
                  log_quote(strerror(-err), strlen(strerror(-err))));
    } else if (ring_n_replicas(ring) > 2 && n_whole >= ring_majority(ring)) {
        plan->way = RESCUE_SETTLE;
    } else if (n_whole > 0 && (ring_n_replicas(ring) == 2 || lossy)) {
        plan->way = RESCUE_NEWEST;
        plan->source = first;
    } else {
        plan->way = RESCUE_NOBODY;
    }
}

static void on_rescued(void *arg, struct rescue *r)
{
    struct recovery *rc = arg;

    list_remove(rescue_link(r));
    rc->n_rescues--;
    rc->bytes -= rescue_size(r);
    rc->n_done++;
    rc->stuck[0] = '\0';
    if (rc->part->work->stopped)
        return;
    if (rc->n_done % 1000 == 0)
        rc->part->changed(rc->part->arg);
    recovery_pump(rc);
}

/* The next key, in rc->next. 1: it is there; else as key_merge_next(). */
static int recovery_pull(struct recovery *rc)
{
    int r = rc->has_next ? 1 : key_merge_next(rc->merge, &rc->next);

    rc->has_next = r == 1;
    return r;
}

/* Begins with rc->next. False: not now. */
static bool recovery_begin_next(struct recovery *rc)
{
    struct rescue_opts opts = {
        .part = rc->part,
        .key = rc->next.key,
        .plan = plan_rescue(rc, &rc->next),
        .again = plan_again,
        .done = on_rescued,
        .arg = rc,
    };
    bool here = is_here(rc, &rc->next, &opts.plan);
    struct rescue *r;

    if (!here && rc->n_rescues > 0 && rc->bytes + opts.plan.size > RECOVERY_BYTES_MAX)
        return false;
    buf_clear(&rc->position);
    buf_add_span(&rc->position, rc->next.key);
    if (rc->position.err != 0 || (!here && rescue_start(&opts, &r) < 0)) {
        repair_timer_set(rc->part, &rc->timer, repair_now_us(rc->part) + AGAIN_US);
        return false;
    }
    rc->has_next = false;
    rc->n_begun++;
    if (here) {
        rc->n_kept++;
        rc->n_done++;
        return true;
    }
    list_insert(&rc->rescues, rescue_link(r));
    rc->n_rescues++;
    rc->bytes += opts.plan.size;
    return true;
}

static void recovery_pump(struct recovery *rc)
{
    int r = 1;

    if (rc->phase != COPYING)
        return;
    while (!rc->at_end && rc->n_rescues < RECOVERY_PARALLEL && r == 1) {
        r = recovery_pull(rc);
        if (r == 0) {
            rc->at_end = true;
            merge_close(rc);
        }
        if (r == 1 && !recovery_begin_next(rc))
            return;
    }
    if (r < 0 && r != -EAGAIN)
        on_source_failed(rc);
    else if (rc->at_end && rc->n_rescues == 0)
        recovery_complete(rc);
}

static void on_merge_ready(void *arg)
{
    recovery_pump(arg);
}

/* All that are whole, more than enough or not: the more list, the less is settled by READs. */
static unsigned find_sources(struct recovery *rc)
{
    rc->n_others = 0;
    for (unsigned i = 0; i < ring_n_nodes(opts_of(rc)->ring); i++) {
        if (rc->census.citizens[i].shares && census_is_whole(&rc->census, i))
            rc->sources[rc->n_others++] = (struct key_source){i, opts_of(rc)->self};
    }
    rc->n_sources = rc->n_others;
    if (rc->own_keys > 0)
        rc->sources[rc->n_sources++] = (struct key_source){opts_of(rc)->self, opts_of(rc)->self};
    return rc->n_sources;
}

/*
 * How many keys there will be: an estimate, from what the others have; where each node holds only a
 * part of the keys, as many as one of them on average.
 */
static uint64_t expect_keys(const struct recovery *rc)
{
    const struct ring *ring = opts_of(rc)->ring;
    bool all = ring_n_replicas(ring) == ring_n_nodes(ring);
    uint64_t most = 0, sum = 0;

    for (unsigned i = 0; i < rc->n_others; i++) {
        uint64_t n = rc->census.citizens[rc->sources[i].node].n_keys;

        most = n > most ? n : most;
        sum += n;
    }
    return all || rc->n_others == 0 ? most : sum / rc->n_others;
}

static void recovery_copy(struct recovery *rc)
{
    struct key_merge_opts opts = {
        .client = opts_of(rc)->client,
        .sources = rc->sources,
        .n_sources = find_sources(rc),
        .start_after = buf_span(&rc->position),
        .timeout_ms = REPAIR_TIMEOUT_MS,
        .on_ready = on_merge_ready,
        .arg = rc,
    };

    if (key_merge_new(&opts, &rc->merge) < 0) {
        tell_failure(rc, "cannot begin to copy", -ENOMEM);
        return;
    }
    work_begin(rc->part->work);
    rc->phase = COPYING;
    rc->at_end = rc->waits = false;
    rc->waits_for[0] = '\0';
    rc->n_expected = expect_keys(rc);
    log_event(LOG_LEVEL_INFO, "recovery-copies", "from=%u keys=%" PRIu64, rc->n_others,
              rc->n_expected);
    rc->part->changed(rc->part->arg);
    recovery_pump(rc);
}

/* --- asking ----------------------------------------------------------------------------------- */

/* While it copies: what it still needs of the others may have to wait for one of them. */
static void recovery_watch(struct recovery *rc, const struct verdict *v)
{
    if (v->enough || opts_of(rc)->accept_data_loss) {
        rc->waits = false;
        rc->waits_for[0] = '\0';
        rc->part->changed(rc->part->arg);
    } else {
        tell_waiting(rc);
    }
}

/*
 * Enough others know of this life, so that every later one will hear of it: it may announce that it
 * is going to vote. And must, before it copies: who has stored that names it for good, and what an
 * earlier life answers counts with none of those any more.
 */
static void recovery_announce(struct recovery *rc)
{
    replica_announce(opts_of(rc)->replica);
    census_begin(&rc->census, true);
    recovery_look(rc); /* there may be no others */
}

/* With accept_data_loss: those that have not appeared by now are lost. */
static void recovery_accept_loss(struct recovery *rc)
{
    uint64_t now = repair_now_us(rc->part);

    if (!rc->census.announcing) {
        rc->waits_since_us = now - LOSS_WAIT_US + LOSS_TELL_US;
        recovery_announce(rc);
        return;
    }
    log_event(LOG_LEVEL_WARN, "data-loss-accepted", "without=%s",
              log_quote(rc->waits_for, strlen(rc->waits_for)));
    recovery_copy(rc);
}

/* Is there enough to go on? */
static void recovery_look(struct recovery *rc)
{
    uint64_t now = repair_now_us(rc->part);
    struct verdict v = census_verdict(&rc->census);
    bool is_new = v.all_blank && rc->own_keys == 0;

    if (rc->phase == DONE || rc->phase == SUPERSEDED || rc->part->work->stopped)
        return;
    if (!rc->waits) {
        rc->waits = true;
        rc->waits_since_us = now;
    }
    if (rc->phase == COPYING) {
        recovery_watch(rc, &v);
    } else if (!rc->own_known) {
        tell_waiting(rc); /* for an answer of its own: a moment after the start */
    } else if (!rc->census.announcing && (is_new || v.enough)) {
        recovery_announce(rc);
    } else if (is_new) {
        recovery_found(rc);
    } else if (v.enough) {
        recovery_copy(rc);
    } else if (opts_of(rc)->accept_data_loss && now >= rc->waits_since_us + LOSS_WAIT_US) {
        recovery_accept_loss(rc);
    } else {
        if (opts_of(rc)->accept_data_loss)
            repair_timer_set(rc->part, &rc->timer, rc->waits_since_us + LOSS_WAIT_US);
        tell_waiting(rc);
    }
}

static void on_timer(struct timer *t)
{
    struct recovery *rc = container_of(t, struct recovery, timer);

    if (rc->phase == COPYING)
        recovery_pump(rc);
    else
        recovery_look(rc);
}

/* The data directory of an earlier life was started again, or the process of one still runs. */
static void recovery_superseded(struct recovery *rc, unsigned told_by)
{
    struct buf text = {0};

    replica_supersede(opts_of(rc)->replica);
    buf_addf(&text,
             "a newer store of this node is known to %s: this data directory is out of date;"
             " start the node with the newer one, or with an empty one",
             repair_node_name(rc->part, told_by));
    set_text(rc->waits_for, sizeof(rc->waits_for), &text);
    buf_fini(&text);
    rc->phase = SUPERSEDED;
    repair_timer_clear(rc->part, &rc->timer);
    log_event(LOG_LEVEL_ERROR, "superseded", "reason=%s",
              log_quote(rc->waits_for, strlen(rc->waits_for)));
    rc->part->changed(rc->part->arg);
}

/*
 * Another life of this node called itself by a higher number, an earlier one, whose clock was
 * ahead: this one must stand above it, or answers given in the earlier one would count, and its own
 * would not. What the others know is void then, and what was copied, as those who named this life
 * do so no longer.
 */
static void recovery_renew(struct recovery *rc, uint64_t than)
{
    int err = replica_renew(opts_of(rc)->replica, than);

    if (err != 0) {
        tell_failure(rc, "cannot take a new incarnation", err);
        return;
    }
    log_event(LOG_LEVEL_WARN, "incarnation-renewed",
              "reason=\"an earlier life's clock was ahead\"");
    census_begin(&rc->census, false);
    rc->phase = ASKING;
    rc->waits = false;
    merge_close(rc);
    buf_clear(&rc->position);
}

static void hear_of_others(struct recovery *rc, unsigned node, const struct hello_result *res)
{
    uint64_t own = replica_incarnation(opts_of(rc)->replica);

    if (res->err != 0) {
        census_failed(&rc->census, node, res->err);
        return;
    }
    if (rc->phase == DONE && census_known_as(&rc->census, &res->answer, KNOWN_WHOLE) > own)
        recovery_superseded(rc, node);
    else if (replica_recovering(opts_of(rc)->replica) &&
             census_known_as(&rc->census, &res->answer, 0) > own)
        recovery_renew(rc, census_known_as(&rc->census, &res->answer, 0));
    if (census_hear(&rc->census, node, &res->answer, replica_incarnation(opts_of(rc)->replica)) &&
        res->answer.floor > rc->floor)
        rc->floor = res->answer.floor;
}

void recovery_on_hello(struct recovery *rc, unsigned node, const struct hello_result *res)
{
    if (rc->part->work->stopped)
        return;
    if (node != opts_of(rc)->self) {
        hear_of_others(rc, node, res);
    } else {
        rc->own_known |= res->err == 0;
        if (res->err == 0)
            rc->own_keys = res->answer.n_keys;
    }
    recovery_look(rc);
}

/* --- life ------------------------------------------------------------------------------------- */

int recovery_new(const struct repair_part *part, void (*done)(void *arg), void *arg,
                 struct recovery **out)
{
    const struct ring *ring = part->opts->ring;
    struct recovery *rc = calloc(1, sizeof(*rc));

    if (rc == NULL)
        return -ENOMEM;
    rc->part = part;
    rc->done = done;
    rc->done_arg = arg;
    rc->phase = replica_recovering(part->opts->replica) ? ASKING : DONE;
    rc->timer.fire = on_timer;
    list_init(&rc->rescues);
    rc->sources = calloc(ring_n_nodes(ring), sizeof(*rc->sources));
    if (rc->sources == NULL || census_init(&rc->census, ring, part->opts->self) < 0) {
        recovery_free(rc);
        return -ENOMEM;
    }
    *out = rc;
    return 0;
}

void recovery_free(struct recovery *rc)
{
    if (rc == NULL)
        return;
    assert(rc->merge == NULL && rc->n_rescues == 0);
    buf_fini(&rc->position);
    free(rc->sources);
    census_fini(&rc->census);
    free(rc);
}

void recovery_stop(struct recovery *rc)
{
    repair_timer_clear(rc->part, &rc->timer);
    merge_close(rc);
    for (struct list *at = rc->rescues.next, *next; at != &rc->rescues; at = next) {
        next = at->next;
        rescue_stop(rescue_of(at));
    }
}

bool recovery_is_done(const struct recovery *rc)
{
    return rc->phase == DONE;
}

void recovery_progress(const struct recovery *rc, struct repair_progress *out)
{
    const char *text = rc->waits_for[0] != '\0' ? rc->waits_for : rc->stuck;

    out->recovering = rc->phase != DONE;
    out->n_done = rc->n_done;
    out->n_found = rc->n_expected > rc->n_begun ? rc->n_expected : rc->n_begun;
    memcpy(out->waits_for, text, sizeof(out->waits_for));
}

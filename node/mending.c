/*
 * mending.c - keys that are to be mended, one after the other, as fast as is good for those who use
 * the cluster.
 *
 *   mend   client_mend(): all replicas up to the newest record
 *   heal   client_settle(): a fresh ballot, which a replica accepts over a damaged record when it
 *          is above all that it can have had there. Fresh by this machine's clock first; where a
 *          promise stands above that (just after a start all do), above the node's floor, which no
 *          promise exceeds. In turn with client_mend(): where so many copies are damaged that there
 *          is no majority to settle, those of which only the value's bytes are bad take them again
 *          one by one.
 */
#include "node/mending.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/log.h"

#define MENDS_MAX 256u
#define HEALS_MAX 1024u
#define HEAL_AGAIN_MIN_US 500000u
#define HEAL_AGAIN_MAX_US 60000000u

struct job {
    struct mending *mending;
    struct list link;
    struct buf key;
    uint64_t size;
    bool heals;
    bool told_again; /* while it is healed: perhaps of what was stored before, perhaps not */
    unsigned tries;
    uint64_t due_us; /* of a heal that failed: when to try again */
    uint64_t above;
    struct op *op;
};

struct mending {
    const struct repair_part *part;
    struct mending_opts opts;
    bool begun, wants_room;
    struct list waiting, active;
    struct list resting; /* heals that failed, by due_us */
    struct timer timer;  /* when the next may begin, or ends its rest */
    unsigned n_mends, n_heals, n_active;
    bool large; /* the active one travels alone */
    struct mending_counts counts;
};

static void mending_pump(struct mending *m);

static struct job *job_of(struct list *link)
{
    return container_of(link, struct job, link);
}

/* --- the queue -------------------------------------------------------------------------------- */

static void job_free(struct job *j)
{
    struct mending *m = j->mending;

    if (j->heals)
        m->n_heals--;
    else
        m->n_mends--;
    list_remove(&j->link);
    buf_fini(&j->key);
    free(j);
}

static struct job *list_find(const struct list *jobs, struct span key, bool heals)
{
    for (struct list *at = jobs->next; at != jobs; at = at->next) {
        struct job *j = job_of(at);

        if (j->heals == heals && span_eq(buf_span(&j->key), key))
            return j;
    }
    return NULL;
}

static struct job *mending_find(const struct mending *m, struct span key, bool heals)
{
    struct job *j = list_find(&m->waiting, key, heals);

    if (j == NULL)
        j = list_find(&m->active, key, heals);
    return j == NULL && heals ? list_find(&m->resting, key, true) : j;
}

static void mending_push(struct mending *m, struct span key, uint64_t size, bool heals)
{
    struct job *j = calloc(1, sizeof(*j));

    if (j == NULL)
        return;
    j->mending = m;
    j->size = size;
    j->heals = heals;
    list_init(&j->link);
    buf_add_span(&j->key, key);
    if (heals)
        m->n_heals++;
    else
        m->n_mends++;
    if (j->key.err != 0) {
        job_free(j);
        return;
    }
    /* What cannot be served goes before what is only behind. */
    list_insert(heals ? m->waiting.next : &m->waiting, &j->link);
    mending_pump(m);
    m->part->changed(m->part->arg);
}

bool mending_add(struct mending *m, struct span key, uint64_t size)
{
    if (mending_find(m, key, false) != NULL)
        return true;
    if (m->n_mends >= MENDS_MAX) {
        m->wants_room = true;
        return false;
    }
    mending_push(m, key, size, false); /* without memory: a later comparison finds it */
    return true;
}

void mending_heal(struct mending *m, struct span key)
{
    struct job *j = m->part->work->stopped ? NULL : mending_find(m, key, true);

    if (j != NULL)
        j->told_again = j->op != NULL;
    /* Beyond that they are told of again, by the next who reads them or by the scrub. */
    else if (!m->part->work->stopped && m->n_heals < HEALS_MAX)
        mending_push(m, key, 0, true);
}

/* --- the end of a job ------------------------------------------------------------------------- */

static void job_leave(struct job *j)
{
    struct mending *m = j->mending;

    j->op = NULL;
    m->n_active--;
    m->large = false;
    list_remove(&j->link);
}

/* After a job has left. Last: the work may be over, and all freed. */
static void mending_next(struct mending *m)
{
    struct work *work = m->part->work;
    bool room = m->wants_room && m->n_mends < MENDS_MAX / 2;

    if (!work->stopped) {
        mending_pump(m);
        if (room) {
            m->wants_room = false;
            m->opts.on_room(m->opts.arg);
        }
        m->part->changed(m->part->arg);
    }
    work_end(work);
}

static void on_mended(void *arg, struct mend_result *res)
{
    struct job *j = arg;
    struct mending *m = j->mending;

    job_leave(j);
    if (res->err == 0)
        m->counts.n_mended += res->n_mended > 0;
    else if (!m->part->work->stopped)
        m->counts.n_failed++;
    if (res->err == 0 && res->old_tombstone && !m->part->work->stopped)
        m->opts.on_old_tombstone(m->opts.arg, buf_span(&j->key), res->version);
    job_free(j);
    mending_next(m);
}

/* Did this node store it? */
static bool stored_here(const struct mending *m, const struct write_result *res)
{
    for (unsigned i = 0; i < res->n_reports; i++) {
        if (res->reports[i].node == m->part->opts->self)
            return res->reports[i].state == REPORT_OK;
    }
    return false;
}

static void job_rest(struct job *j)
{
    struct mending *m = j->mending;
    struct list *at = &m->resting;

    m->counts.n_failed++;
    j->due_us =
        repair_now_us(m->part) + repair_backoff_us(j->tries, HEAL_AGAIN_MIN_US, HEAL_AGAIN_MAX_US);
    j->tries++;
    while (at->prev != &m->resting && job_of(at->prev)->due_us > j->due_us)
        at = at->prev;
    list_insert(at, &j->link);
}

/* The last of a try to heal. */
static void job_healed(struct job *j, bool healed)
{
    struct mending *m = j->mending;

    job_leave(j);
    if (m->part->work->stopped) {
        job_free(j);
    } else if (!healed) {
        job_rest(j);
    } else if (j->told_again) {
        j->told_again = false;
        j->tries = 0;
        list_insert(&m->waiting, &j->link);
    } else {
        m->counts.n_healed++;
        log_event(LOG_LEVEL_INFO, "healed", "key=%s", log_quote(j->key.data, j->key.len));
        job_free(j);
        repair_reindex(m->part);
    }
    mending_next(m);
}

static void on_settled(void *arg, struct write_result *res)
{
    struct job *j = arg;

    job_healed(j, res->err == 0 && stored_here(j->mending, res));
}

/* Whether it was this copy is not told; if it was not, the damage is told again. */
static void on_brought(void *arg, struct mend_result *res)
{
    job_healed(arg, res->err == 0 || res->n_mended > 0);
}

/* --- the beginning ---------------------------------------------------------------------------- */

static bool job_settle(struct job *j)
{
    struct settle_args args = {
        .key = buf_span(&j->key), .above = j->above, .timeout_ms = REPAIR_TIMEOUT_MS};

    j->op = client_settle(j->mending->part->opts->client, &args, on_settled, j);
    return j->op != NULL;
}

static void on_floor(void *arg, struct hello_result *res)
{
    struct job *j = arg;
    struct mending *m = j->mending;

    j->op = NULL;
    if (res->err == 0)
        j->above = res->answer.floor;
    if (m->part->work->stopped || !job_settle(j))
        job_healed(j, false);
}

static bool job_mend(struct job *j, mend_done_fn *done)
{
    const struct repair_opts *opts = j->mending->part->opts;
    struct mend_args args = {
        .key = buf_span(&j->key),
        .old_counter = repair_old_counter_of(opts),
        .timeout_ms = repair_timeout_ms(j->size),
    };

    j->op = client_mend(opts->client, &args, done, j);
    return j->op != NULL;
}

static bool job_ask_floor(struct job *j)
{
    const struct repair_opts *opts = j->mending->part->opts;
    struct hello_args args = {
        .node = opts->self,
        .self = opts->self,
        .incarnation = replica_incarnation(opts->replica),
        .state = NODE_WHOLE,
        .timeout_ms = REPAIR_TIMEOUT_MS,
    };

    j->op = client_hello(opts->client, &args, on_floor, j);
    return j->op != NULL;
}

static bool job_start(struct job *j)
{
    if (!j->heals)
        return job_mend(j, on_mended);
    if (j->tries == 0)
        return job_settle(j);
    return j->tries % 2 == 1 ? job_ask_floor(j) : job_mend(j, on_brought);
}

/* Takes up again what has rested. */
static void mending_wake(struct mending *m, uint64_t now)
{
    while (!list_empty(&m->resting) && job_of(m->resting.next)->due_us <= now) {
        struct list *link = m->resting.next;

        list_remove(link);
        list_insert(&m->waiting, link);
    }
}

static void mending_pump(struct mending *m)
{
    const struct repair_part *part = m->part;
    uint64_t now = repair_now_us(part);

    if (!m->begun || part->work->stopped)
        return;
    mending_wake(m, now);
    while (!list_empty(&m->waiting) && m->n_active < REPAIR_PARALLEL && !m->large) {
        struct job *j = job_of(m->waiting.next);

        if (j->size > REPAIR_LARGE && m->n_active > 0)
            break;
        if (part->pace->next_us > now) {
            repair_timer_set(part, &m->timer, part->pace->next_us);
            return;
        }
        if (!job_start(j)) { /* no memory now */
            repair_timer_set(part, &m->timer, now + HEAL_AGAIN_MIN_US);
            return;
        }
        pace_take(part->pace, now, j->size);
        list_remove(&j->link);
        list_insert(&m->active, &j->link);
        m->large = j->size > REPAIR_LARGE;
        m->n_active++;
        work_begin(part->work);
    }
    if (!list_empty(&m->resting))
        repair_timer_set(part, &m->timer, job_of(m->resting.next)->due_us);
}

static void on_timer(struct timer *t)
{
    mending_pump(container_of(t, struct mending, timer));
}

/* --- life ------------------------------------------------------------------------------------- */

int mending_new(const struct mending_opts *opts, struct mending **out)
{
    struct mending *m = calloc(1, sizeof(*m));

    if (m == NULL)
        return -ENOMEM;
    m->opts = *opts;
    m->part = opts->part;
    m->timer.fire = on_timer;
    list_init(&m->waiting);
    list_init(&m->active);
    list_init(&m->resting);
    *out = m;
    return 0;
}

static void free_all(struct list *jobs)
{
    while (!list_empty(jobs))
        job_free(job_of(jobs->next));
}

void mending_free(struct mending *m)
{
    if (m == NULL)
        return;
    free_all(&m->waiting);
    free_all(&m->resting);
    free(m);
}

void mending_stop(struct mending *m)
{
    repair_timer_clear(m->part, &m->timer);
    for (struct list *at = m->active.next; at != &m->active; at = at->next)
        op_cancel(job_of(at)->op);
}

void mending_begin(struct mending *m)
{
    m->begun = true;
    mending_pump(m);
}

struct mending_counts mending_get(const struct mending *m)
{
    struct mending_counts c = m->counts;

    c.n_behind = m->n_mends;
    return c;
}

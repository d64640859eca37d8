/*
 * tombstones.c - candidates on their way to being dropped.
 *
 *   1. All replicas hold it, or nothing: seen by client_mend().
 *   2. It rests, by the monotonic clock: far longer than any message lives that could still bring
 *      something older.
 *   3. Seen again, the very same.
 *   4. DROP to all replicas. Each promises nothing up to the tombstone's version any more, durably,
 *      and then forgets it.
 *
 * What does not go as it should ends the candidacy; a later scrub or comparison begins another.
 */
#include "node/tombstones.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "common/hash.h"

#define CANDIDATES_MAX 65536u
#define CANDIDATES_LEN_MAX (16u << 20) /* of their keys */
#define BUCKETS 1024u
#define PARALLEL 2u
#define REST_MAX_US 600000000u

struct candidate {
    struct tombstones *all;
    struct list link;   /* in new, resting or active */
    struct list bucket; /* by hash of the key */
    struct ballot version;
    uint64_t due_us; /* while it rests */
    bool rested;
    struct op *op;
    /* Step 4: */
    unsigned n_asked, n_dropped;
    struct op **asks; /* by replica; NULL: ended */
    size_t key_len;
    uint8_t key[];
};

struct drop_leg {
    struct candidate *c;
    unsigned i;
};

struct tombstones {
    const struct repair_part *part;
    struct list fresh, resting, active; /* resting: by due_us, as they came */
    struct list buckets[BUCKETS];
    _Atomic unsigned n;
    unsigned n_active;
    size_t keys_len;
    struct timer timer;
    uint64_t n_dropped;
};

static void tombstones_pump(struct tombstones *t);

static struct candidate *candidate_of(struct list *link)
{
    return container_of(link, struct candidate, link);
}

static struct span key_of(const struct candidate *c)
{
    return span_of(c->key, c->key_len);
}

static void candidate_free(struct candidate *c)
{
    c->all->n--;
    c->all->keys_len -= c->key_len;
    list_remove(&c->link);
    list_remove(&c->bucket);
    free(c->asks);
    free(c);
}

/* Last: the work may be over, and all freed. */
static void candidate_leave(struct candidate *c, bool rests)
{
    struct tombstones *t = c->all;
    struct work *work = t->part->work;
    uint64_t age = t->part->opts->tombstone_age_us;

    c->op = NULL;
    t->n_active--;
    if (rests && !work->stopped) {
        c->due_us = repair_now_us(t->part) + (age < REST_MAX_US ? age : REST_MAX_US);
        list_remove(&c->link);
        list_insert(&t->resting, &c->link);
    } else {
        candidate_free(c);
    }
    if (!work->stopped) {
        tombstones_pump(t);
        t->part->changed(t->part->arg);
    }
    work_end(work);
}

/* --- dropping --------------------------------------------------------------------------------- */

static void on_dropped(void *arg, struct ask_result *res)
{
    struct drop_leg *leg = arg;
    struct candidate *c = leg->c;
    struct tombstones *t = c->all;

    c->asks[leg->i] = NULL;
    free(leg);
    c->n_dropped += res->err == 0 && res->answer->kind == ANS_ACCEPTED;
    if (--c->n_asked > 0)
        return;
    t->n_dropped += c->n_dropped == ring_n_replicas(t->part->opts->ring);
    candidate_leave(c, false);
}

static void candidate_ask(struct candidate *c, unsigned i, unsigned node)
{
    struct message m = {.kind = MSG_DROP, .key = key_of(c), .ballot = c->version};
    struct ask_args args = {.node = node, .m = &m, .timeout_ms = REPAIR_TIMEOUT_MS};
    struct drop_leg *leg = malloc(sizeof(*leg));

    if (leg == NULL)
        return;
    *leg = (struct drop_leg){c, i};
    c->asks[i] = client_ask(c->all->part->opts->client, &args, on_dropped, leg);
    if (c->asks[i] == NULL)
        free(leg);
    else
        c->n_asked++;
}

/* False: nobody could be asked. */
static bool candidate_drop(struct candidate *c)
{
    const struct ring *ring = c->all->part->opts->ring;
    const unsigned *replicas = ring_replicas(ring, key_of(c));

    c->asks = calloc(ring_n_replicas(ring), sizeof(struct op *));
    if (c->asks == NULL)
        return false;
    for (unsigned i = 0; i < ring_n_replicas(ring); i++)
        candidate_ask(c, i, replicas[i]);
    return c->n_asked > 0;
}

/* --- seeing it -------------------------------------------------------------------------------- */

static void on_seen(void *arg, struct mend_result *res)
{
    struct candidate *c = arg;
    bool held = res->err == 0 && res->old_tombstone && ballot_cmp(res->version, c->version) == 0;

    c->op = NULL;
    if (held && c->rested && !c->all->part->work->stopped && candidate_drop(c))
        return;
    candidate_leave(c, held && !c->rested);
}

static bool candidate_see(struct candidate *c)
{
    const struct repair_opts *opts = c->all->part->opts;
    struct mend_args args = {
        .key = key_of(c),
        .old_counter = repair_old_counter_of(opts),
        .timeout_ms = REPAIR_TIMEOUT_MS,
    };

    c->op = client_mend(opts->client, &args, on_seen, c);
    return c->op != NULL;
}

static struct candidate *tombstones_next(struct tombstones *t, uint64_t now)
{
    struct candidate *c;

    if (!list_empty(&t->resting)) {
        c = candidate_of(t->resting.next);
        if (c->due_us <= now) {
            c->rested = true;
            return c;
        }
    }
    return list_empty(&t->fresh) ? NULL : candidate_of(t->fresh.next);
}

static void tombstones_pump(struct tombstones *t)
{
    const struct repair_part *part = t->part;
    uint64_t now = repair_now_us(part);
    struct candidate *c;

    if (part->work->stopped)
        return;
    while (t->n_active < PARALLEL && (c = tombstones_next(t, now)) != NULL) {
        if (part->pace->next_us > now) {
            repair_timer_set(part, &t->timer, part->pace->next_us);
            return;
        }
        if (!candidate_see(c)) {
            candidate_free(c);
            continue;
        }
        pace_take(part->pace, now, 0);
        list_remove(&c->link);
        list_insert(&t->active, &c->link);
        t->n_active++;
        work_begin(part->work);
    }
    if (t->n_active < PARALLEL && !list_empty(&t->resting))
        repair_timer_set(part, &t->timer, candidate_of(t->resting.next)->due_us);
}

static void on_timer(struct timer *timer)
{
    tombstones_pump(container_of(timer, struct tombstones, timer));
}

void tombstones_add(struct tombstones *t, struct span key, struct ballot version)
{
    struct list *bucket = &t->buckets[hash_xxh3(key) % BUCKETS];
    struct candidate *c;

    if (t->part->work->stopped || t->n >= CANDIDATES_MAX ||
        t->keys_len + key.len > CANDIDATES_LEN_MAX)
        return;
    for (struct list *at = bucket->next; at != bucket; at = at->next) {
        if (span_eq(key_of(container_of(at, struct candidate, bucket)), key))
            return;
    }
    c = calloc(1, sizeof(*c) + key.len);
    if (c == NULL)
        return;
    c->all = t;
    c->version = version;
    c->key_len = key.len;
    memcpy(c->key, key.data, key.len);
    t->n++;
    t->keys_len += key.len;
    list_init(&c->link);
    list_insert(&t->fresh, &c->link);
    list_init(&c->bucket);
    list_insert(bucket, &c->bucket);
    tombstones_pump(t);
}

bool tombstones_has_room(const struct tombstones *t)
{
    return t->n < CANDIDATES_MAX / 2;
}

uint64_t tombstones_n_dropped(const struct tombstones *t)
{
    return t->n_dropped;
}

/* --- life ------------------------------------------------------------------------------------- */

int tombstones_new(const struct repair_part *part, struct tombstones **out)
{
    struct tombstones *t = calloc(1, sizeof(*t));

    if (t == NULL)
        return -ENOMEM;
    t->part = part;
    t->timer.fire = on_timer;
    list_init(&t->fresh);
    list_init(&t->resting);
    list_init(&t->active);
    for (unsigned i = 0; i < BUCKETS; i++)
        list_init(&t->buckets[i]);
    *out = t;
    return 0;
}

static void free_all(struct list *candidates)
{
    while (!list_empty(candidates))
        candidate_free(candidate_of(candidates->next));
}

void tombstones_free(struct tombstones *t)
{
    if (t == NULL)
        return;
    free_all(&t->fresh);
    free_all(&t->resting);
    free(t);
}

void tombstones_stop(struct tombstones *t)
{
    repair_timer_clear(t->part, &t->timer);
    for (struct list *at = t->active.next; at != &t->active; at = at->next) {
        struct candidate *c = candidate_of(at);

        if (c->op != NULL)
            op_cancel(c->op);
        for (unsigned i = 0; c->asks != NULL && i < ring_n_replicas(t->part->opts->ring); i++)
            if (c->asks[i] != NULL)
                op_cancel(c->asks[i]);
    }
}

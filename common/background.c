/*
 * background.c - read repair: what the client does of its own accord after a READ, so that the
 * replicas which that did not need come to hold the same. It never delays or fails anything.
 *
 *   check   asks the replicas that a READ did not ask for their version.
 *   mend    client_mend() of a key of which some replica was seen to be behind, or damaged.
 *
 * Both are bounded in rate and number, whatever the client is busy with; what is over is dropped:
 * the nodes' own comparison finds it (docs/protocol.md, Repair).
 */
#include <errno.h>
#include <stdlib.h>

#include "common/op.h"

#define CHECKS_PER_SECOND 50u
#define MENDS_PER_SECOND 50u
#define MENDS_MAX 4u
#define MEND_BYTES_MAX (16u << 20) /* of several at once; one alone may be larger */
/* A write under way makes replicas differ for a moment: then there is nothing to mend. */
#define MEND_DELAY_US 20000u
#define CHECK_TIMEOUT_MS 1000u

/* --- as many as there may be ------------------------------------------------------------------ */

/* A bucket of tokens that holds what flows in within a second: paid_us is when it is full again. */
static bool bucket_take(uint64_t *paid_us, unsigned per_second, uint64_t now)
{
    uint64_t from = *paid_us > now ? *paid_us : now, price = 1000000u / per_second;

    if (from - now + price > 1000000u)
        return false;
    *paid_us = from + price;
    return true;
}

/* --- mend ------------------------------------------------------------------------------------- */

struct mending {
    struct client *c;
    struct list link; /* in background.mends */
    struct buf key;
    uint64_t size;
    struct timer delay; /* until it begins */
    struct op *op;      /* then */
};

static void mending_free(struct mending *m)
{
    struct transport *t = m->c->opts.transport;

    t->ops->timer_clear(t, &m->delay);
    list_remove(&m->link);
    m->c->background.n_mends--;
    m->c->background.mend_bytes -= m->size;
    buf_fini(&m->key);
    free(m);
}

static void on_mended(void *arg, struct mend_result *res)
{
    (void)res; /* where it failed, the nodes will see to it */
    mending_free(arg);
}

static void mending_begin(struct timer *t)
{
    struct mending *m = container_of(t, struct mending, delay);
    struct mend_args args = {.key = buf_span(&m->key)};

    m->op = client_mend(m->c, &args, on_mended, m);
    if (m->op == NULL)
        mending_free(m);
}

static bool is_being_mended(struct client *c, struct span key)
{
    struct list *mends = &c->background.mends;

    for (struct list *at = mends->next; at != mends; at = at->next)
        if (span_eq(buf_span(&container_of(at, struct mending, link)->key), key))
            return true;
    return false;
}

void background_mend(struct client *c, struct span key, uint64_t size)
{
    struct background *b = &c->background;
    struct transport *t = c->opts.transport;
    uint64_t now = transport_now_us(t);
    struct mending *m;

    if (b->stopped || b->n_mends >= MENDS_MAX || is_being_mended(c, key) ||
        (b->n_mends > 0 && b->mend_bytes + size > MEND_BYTES_MAX) ||
        !bucket_take(&b->mends_paid_us, MENDS_PER_SECOND, now))
        return;
    m = calloc(1, sizeof *m);
    if (m == NULL)
        return;
    m->c = c;
    m->size = size;
    m->delay.fire = mending_begin;
    buf_add_span(&m->key, key);
    b->n_mends++;
    b->mend_bytes += size;
    list_insert(&b->mends, &m->link);
    if (m->key.err != 0)
        mending_free(m);
    else
        t->ops->timer_set(t, &m->delay, now + MEND_DELAY_US);
}

/* --- check ------------------------------------------------------------------------------------ */

struct check_op {
    struct op op;
    struct list link; /* in background.checks */
    struct ballot version;
    uint64_t size; /* of the value of that version */
    bool behind;
};

static void check_finish(struct check_op *k)
{
    struct client *c = k->op.c;

    if (k->behind)
        background_mend(c, buf_span(&k->op.key), k->size);
    list_remove(&k->link);
    op_fini(&k->op);
    free(k);
}

static void check_end(struct op *op, int err)
{
    (void)err;
    check_finish(container_of(op, struct check_op, op));
}

bool background_is_behind(const struct leg *leg, struct ballot version)
{
    if (leg->err != 0)
        return is_damage(leg->err);
    return leg->ans.kind == ANS_STATE && ballot_cmp(leg->ans.record.version, version) < 0;
}

static void on_checked(struct round *r, struct leg *leg)
{
    struct check_op *k = container_of(r->op, struct check_op, op);

    k->behind |= background_is_behind(leg, k->version);
    if (round_pending(r) == 0)
        check_finish(k);
}

/* Those that are worth asking, to the front. */
static unsigned only_fit(const struct client *c, unsigned *nodes, unsigned n)
{
    unsigned n_fit = 0;

    for (unsigned i = 0; i < n; i++)
        if (health_fit(c->opts.health, nodes[i]))
            nodes[n_fit++] = nodes[i];
    return n_fit;
}

void background_check(struct client *c, struct span key, struct ballot version, uint64_t size,
                      unsigned *nodes, unsigned n)
{
    struct background *b = &c->background;
    struct message m = {.kind = MSG_READ};
    struct check_op *k;
    struct round *r;

    if (b->stopped)
        return;
    n = only_fit(c, nodes, n);
    if (n == 0 ||
        !bucket_take(&b->checks_paid_us, CHECKS_PER_SECOND, transport_now_us(c->opts.transport)))
        return;
    k = calloc(1, sizeof *k);
    if (k == NULL || op_init(&k->op, c, key, OP_OF_NODE, CHECK_TIMEOUT_MS, 0) < 0) {
        free(k);
        return;
    }
    k->version = version;
    k->size = size;
    k->op.on_end = check_end;
    list_insert(&b->checks, &k->link);
    r = round_new(&k->op, key, nodes, n, n, n, on_checked);
    if (r == NULL) {
        op_fail_soon(&k->op, -ENOMEM);
        return;
    }
    for (unsigned i = 0; i < n; i++)
        round_send(r, i, &m);
}

/* --- the end ---------------------------------------------------------------------------------- */

void background_init(struct background *b)
{
    list_init(&b->mends);
    list_init(&b->checks);
}

void client_stop_background(struct client *c)
{
    struct background *b = &c->background;

    b->stopped = true;
    while (!list_empty(&b->mends)) {
        struct mending *m = container_of(b->mends.next, struct mending, link);

        if (m->op != NULL)
            op_end_now(m->op);
        else
            mending_free(m);
    }
    while (!list_empty(&b->checks))
        op_end_now(&container_of(b->checks.next, struct check_op, link)->op);
}

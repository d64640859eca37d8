/*
 * client_mend.c - all replicas of one key up to its newest record.
 *
 *   ask      every replica for its record, and all that are up are waited for.
 *   fetch    the value, from one that has the newest, where another is to get it.
 *   bring    the record to those behind: ACCEPT under its own ballot, the original message arriving
 *            late. That is right at any time and whoever else is missing.
 *   settle   where a replica refuses that, for it promised something higher, or lost its own record
 *            to damage: a fresh ballot (client_settle.c). This takes a majority.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "common/op.h"

/* The key may change again and again while it is mended; whoever does that brings it to all. */
#define ASK_TRIES_MAX 3u
/* The second ballot lies above whatever refused the first; a third is for writes in between. */
#define SETTLE_TRIES_MAX 3u

enum holding {
    HOLDS_UNKNOWN, /* no answer that counts */
    HOLDS_NEWEST,
    HOLDS_OLDER,
    HOLDS_NOTHING,
    HOLDS_DAMAGED,
    HOLDS_REFUSED, /* something older, and a promise above the newest */
};

struct mend_op {
    struct op op;
    uint64_t old_counter;
    mend_done_fn *done;
    void *arg;

    unsigned n; /* replicas, in ring order */
    unsigned *nodes;
    enum holding *holds;
    struct record_copy top; /* the newest */
    struct value value;     /* its bytes, once they were needed */

    unsigned n_asks, n_settles;
    bool tried_damaged;
    struct op *sub; /* a fetch or a settling under way */
    int ending;     /* the op ends with this as soon as sub has ended */
    struct mend_result res;
};

static void mend_ask(struct mend_op *m);
static void mend_next(struct mend_op *m);

static unsigned mend_count(const struct mend_op *m, enum holding holding)
{
    unsigned n = 0;

    for (unsigned i = 0; i < m->n; i++)
        n += m->holds[i] == holding;
    return n;
}

static bool is_old_tombstone(const struct mend_op *m)
{
    const struct record *top = &m->top.rec;

    return (top->flags & RECORD_TOMBSTONE) && top->version.counter < m->old_counter;
}

static void mend_finish(struct mend_op *m, int err)
{
    m->res.err = err;
    if (err == 0)
        m->res.why.msg[0] = '\0';
    m->res.version = m->top.rec.version;
    m->res.flags = m->top.rec.flags;
    m->res.size = m->top.rec.size;
    m->res.old_tombstone = err == 0 && is_old_tombstone(m);
    m->done(m->arg, &m->res);
    op_fini(&m->op);
    record_copy_fini(&m->top);
    value_fini(&m->value);
    free(m->nodes);
    free(m->holds);
    free(m);
}

static void mend_end(struct op *op, int err)
{
    struct mend_op *m = container_of(op, struct mend_op, op);

    if (op->round != NULL)
        round_explain(op->round, &m->res.why);
    if (err == -ETIMEDOUT)
        err = -EHOSTDOWN;
    if (m->sub == NULL) {
        mend_finish(m, err);
        return;
    }
    m->ending = err;
    op->deadline_us = UINT64_MAX;
    op->cancelled = false;
    op_wake_at(op, UINT64_MAX);
    op_cancel(m->sub);
}

/* Are there answers to wait for? Of those that are up; who is, is seen again when they are slow. */
static bool mend_waits(struct mend_op *m, const struct round *r)
{
    if (!round_awaits(r))
        return false;
    op_wake_at(&m->op, round_slow_us(r));
    return true;
}

/* --- settle ----------------------------------------------------------------------------------- */

static void on_settled(void *arg, struct write_result *res)
{
    struct mend_op *m = arg;

    m->sub = NULL;
    if (m->ending != 0 || res->err < 0) {
        m->res.why = res->why;
        mend_finish(m, m->ending != 0 ? m->ending : res->err);
        return;
    }
    if (ballot_is_none(res->rec.rec.version)) {
        mend_finish(m, -ENOMEM); /* it is stored, but what it is was lost */
        return;
    }
    record_copy_fini(&m->top);
    m->top = res->rec;
    res->rec = (struct record_copy){0};
    m->res.why = res->why;
    for (unsigned i = 0; i < m->n; i++) {
        const struct report *rep = &res->reports[i]; /* in ring order, too */

        assert(rep->node == m->nodes[i]);
        if (rep->state == REPORT_OK) {
            m->res.n_mended += m->holds[i] != HOLDS_NEWEST;
            m->holds[i] = HOLDS_NEWEST;
        } else if (rep->state == REPORT_FAILED && rep->err == -ECANCELED) {
            m->holds[i] = HOLDS_REFUSED;
        } else if (rep->state == REPORT_FAILED && rep->err == -ENODATA) {
            m->holds[i] = HOLDS_DAMAGED;
        } else {
            m->holds[i] = HOLDS_UNKNOWN;
        }
    }
    mend_next(m);
}

static void mend_settle(struct mend_op *m)
{
    struct settle_args args = {.key = buf_span(&m->op.key), .timeout_ms = op_left_ms(&m->op)};

    m->n_settles++;
    m->sub = client_settle(m->op.c, &args, on_settled, m);
    if (m->sub == NULL)
        mend_finish(m, -ENOMEM);
}

/* --- bring ------------------------------------------------------------------------------------ */

/*
 * A damaged replica is tried once: where only the bytes of the value are bad, it takes them again
 * under the version that they had. It knows whether that is right, and refuses it otherwise.
 */
static bool is_behind(const struct mend_op *m, unsigned i)
{
    switch (m->holds[i]) {
    case HOLDS_OLDER:
        return true;
    case HOLDS_NOTHING:
        return !is_old_tombstone(m);
    case HOLDS_DAMAGED:
        return !m->tried_damaged && !ballot_is_none(m->top.rec.version);
    default:
        return false;
    }
}

static void mend_brought(struct mend_op *m, const struct round *r)
{
    unsigned leg = 0;

    if (tally_count(&r->tally, VOTE_YES) < r->n)
        round_explain(r, &m->res.why);
    for (unsigned i = 0; i < m->n; i++) {
        if (!is_behind(m, i))
            continue;
        assert(r->legs[leg].node == m->nodes[i]);
        if (tally_of(&r->tally, leg) == VOTE_YES) {
            m->holds[i] = HOLDS_NEWEST;
            m->res.n_mended++;
        } else if (tally_of(&r->tally, leg) == VOTE_NO) {
            if (m->holds[i] != HOLDS_DAMAGED)
                m->holds[i] = HOLDS_REFUSED;
        } else {
            m->holds[i] = HOLDS_UNKNOWN; /* also where its disk fails: a ballot is no help */
        }
        leg++;
    }
    m->tried_damaged = true;
    op_wake_at(&m->op, UINT64_MAX);
    round_drop(&m->op);
    mend_next(m);
}

static void on_brought(struct round *r, struct leg *leg)
{
    struct mend_op *m = container_of(r->op, struct mend_op, op);

    (void)leg;
    if (!mend_waits(m, r))
        mend_brought(m, r);
}

static void mend_bring(struct mend_op *m)
{
    struct message accept = {.kind = MSG_ACCEPT, .record = m->top.rec};
    unsigned *behind = calloc(m->n, sizeof *behind), n = 0;
    struct round *r = NULL;

    for (unsigned i = 0; i < m->n && behind != NULL; i++)
        if (is_behind(m, i))
            behind[n++] = m->nodes[i];
    if (behind != NULL)
        r = round_new(&m->op, buf_span(&m->op.key), behind, n, n, n, on_brought);
    free(behind);
    if (r == NULL) {
        mend_finish(m, -ENOMEM);
        return;
    }
    if (m->top.rec.size > 0)
        r->body = value_ref(m->value);
    for (unsigned i = 0; i < n; i++)
        round_send(r, i, &accept);
    op_wake_at(&m->op, round_slow_us(r));
}

/* --- fetch ------------------------------------------------------------------------------------ */

static void on_fetched(void *arg, struct read_result *got)
{
    struct mend_op *m = arg;

    m->sub = NULL;
    if (m->ending == 0 && got->err == 0) {
        m->value = got->value;
        got->value = (struct value){0};
        mend_bring(m);
    } else if (m->ending == 0 && got->err == -ESTALE && m->n_asks < ASK_TRIES_MAX) {
        mend_ask(m); /* there is something newer meanwhile */
    } else {
        m->res.why = got->why;
        mend_finish(m, m->ending != 0 ? m->ending : got->err);
    }
}

/* The bytes travel only where they are missing, and once: then they go to all who lack them. */
static void mend_fetch(struct mend_op *m)
{
    struct read_args args = {.key = buf_span(&m->op.key),
                             .want_value = true,
                             .length = m->top.rec.size,
                             .pin = m->top.rec.version,
                             .timeout_ms = op_left_ms(&m->op)};

    op_add_bytes(&m->op, 2 * m->top.rec.size); /* here, and there */
    m->sub = client_read(m->op.c, &args, on_fetched, m);
    if (m->sub == NULL)
        mend_finish(m, -ENOMEM);
}

/* --- ask -------------------------------------------------------------------------------------- */

/* Is a fresh ballot needed, and is there a majority to give it? */
static bool wants_settling(const struct mend_op *m)
{
    unsigned damaged = mend_count(m, HOLDS_DAMAGED), refused = mend_count(m, HOLDS_REFUSED);
    unsigned votes = m->n - damaged - mend_count(m, HOLDS_UNKNOWN);

    return damaged + refused > 0 && m->n_settles < SETTLE_TRIES_MAX &&
           votes >= ring_majority(m->op.c->opts.ring);
}

/* What each replica holds is known, as far as it can be: what is to be done about it? */
static void mend_next(struct mend_op *m)
{
    bool behind = false;

    for (unsigned i = 0; i < m->n; i++)
        behind |= is_behind(m, i);
    if (behind && m->top.rec.size > 0 && m->value.data == NULL)
        mend_fetch(m);
    else if (behind)
        mend_bring(m);
    else if (wants_settling(m))
        mend_settle(m);
    else if (mend_count(m, HOLDS_UNKNOWN) > 0)
        mend_finish(m, -EHOSTDOWN);
    else if (mend_count(m, HOLDS_DAMAGED) > 0)
        mend_finish(m, -EBADMSG);
    else
        mend_finish(m, mend_count(m, HOLDS_REFUSED) > 0 ? -EAGAIN : 0);
}

static enum holding holding_of(const struct round *r, unsigned i, struct ballot newest)
{
    const struct leg *leg = &r->legs[i];

    if (tally_of(&r->tally, i) != VOTE_YES)
        return leg->ended && is_damage(leg->err) ? HOLDS_DAMAGED : HOLDS_UNKNOWN;
    if (ballot_cmp(leg->ans.record.version, newest) == 0)
        return HOLDS_NEWEST;
    return ballot_is_none(leg->ans.record.version) ? HOLDS_NOTHING : HOLDS_OLDER;
}

static void mend_decide(struct mend_op *m, const struct round *r)
{
    static const struct record none;
    const struct record *top = &none;
    int err;

    op_wake_at(&m->op, UINT64_MAX);
    round_explain(r, &m->res.why);
    for (unsigned i = 0; i < r->n; i++) {
        const struct record *rec = &r->legs[i].ans.record;

        if (tally_of(&r->tally, i) != VOTE_YES)
            continue;
        client_saw(m->op.c, rec->version);
        if (ballot_cmp(rec->version, top->version) > 0)
            top = rec;
    }
    for (unsigned i = 0; i < r->n; i++)
        m->holds[i] = holding_of(r, i, top->version);
    record_copy_fini(&m->top);
    value_fini(&m->value);
    err = record_copy(top, &m->top);
    round_drop(&m->op);
    if (err < 0)
        mend_finish(m, err);
    else
        mend_next(m);
}

static void on_state(struct round *r, struct leg *leg)
{
    struct mend_op *m = container_of(r->op, struct mend_op, op);

    (void)leg;
    if (!mend_waits(m, r))
        mend_decide(m, r);
}

/* Those thought to be down are asked as well, but not waited for. */
static void mend_ask(struct mend_op *m)
{
    struct message read = {.kind = MSG_READ};
    struct round *r = round_new(&m->op, buf_span(&m->op.key), m->nodes, m->n, m->n, m->n, on_state);

    m->n_asks++;
    if (r == NULL) {
        op_fail_soon(&m->op, -ENOMEM);
        return;
    }
    for (unsigned i = 0; i < m->n; i++)
        round_send(r, i, &read);
    op_wake_at(&m->op, round_slow_us(r));
}

static void mend_wake(struct op *op)
{
    struct mend_op *m = container_of(op, struct mend_op, op);
    struct round *r = op->round;

    if (r->on_answer == on_state)
        mend_decide(m, r); /* there is time left to mend the others */
    else if (round_awaits(r))
        op_wake_at(op, UINT64_MAX);
    else
        mend_brought(m, r);
}

struct op *client_mend(struct client *c, const struct mend_args *args, mend_done_fn *done,
                       void *arg)
{
    struct mend_op *m = calloc(1, sizeof *m);
    unsigned n = ring_n_replicas(c->opts.ring);
    const unsigned *replicas = ring_replicas(c->opts.ring, args->key);

    if (m == NULL)
        return NULL;
    m->nodes = calloc(n, sizeof *m->nodes);
    m->holds = calloc(n, sizeof *m->holds);
    if (m->nodes == NULL || m->holds == NULL ||
        op_init(&m->op, c, args->key, OP_OF_KEY, args->timeout_ms, 0) < 0) {
        free(m->nodes);
        free(m->holds);
        free(m);
        return NULL;
    }
    for (unsigned i = 0; i < n; i++)
        m->nodes[i] = replicas[i];
    m->n = n;
    m->old_counter = args->old_counter;
    m->done = done;
    m->arg = arg;
    m->op.on_end = mend_end;
    m->op.on_wake = mend_wake;
    mend_ask(m);
    return &m->op;
}

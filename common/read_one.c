/*
 * read_one.c - the READ (client_read.c) that takes one replica's word: cheap, and possible where a
 * majority is out of reach; what it brings may be old, or never have been settled.
 *
 *   ask      the first replica in ring order that is up and whole; the next, where it has nothing
 *            (or only what is older than the caller knows), fails, or is slow. Last those whose
 *            store is ill: they may still be able to read.
 *   peek     the question for what is below the key goes to all nodes that are up, for a replica
 *            of the key need not hold that.
 *   believe  the newest of what has come. So where that is a deletion, nobody who missed it brings
 *            the key back.
 *   decide   nobody has anything: only a majority can say that there is nothing.
 */
#include <errno.h>
#include <stdlib.h>

#include "common/read.h"

bool read_majority_is_fit(const struct client *c, struct span key)
{
    const unsigned *replicas = ring_replicas(c->opts.ring, key);
    unsigned n = 0;

    for (unsigned i = 0; i < ring_n_replicas(c->opts.ring); i++)
        n += health_fit(c->opts.health, replicas[i]);
    return n >= ring_majority(c->opts.ring);
}

/* --- decide ----------------------------------------------------------------------------------- */

static void on_decided(void *arg, struct read_result *got)
{
    struct read_op *rd = arg;
    int err = rd->ending != 0 ? rd->ending : got->err;

    rd->sub = NULL;
    read_result_fini(&rd->res);
    rd->res = *got;
    *got = (struct read_result){0};
    read_finish(rd, err);
}

/* An operation of its own: it has no more patience than any other without a quorum. */
static void ask_majority(struct read_op *rd)
{
    struct read_args args = {
        .key = buf_span(&rd->op.key),
        .want_value = rd->want_value,
        .offset = rd->offset,
        .length = rd->length,
        .peek = rd->peek,
        .timeout_ms = op_left_ms(&rd->op),
    };

    round_drop(&rd->op);
    op_wake_at(&rd->op, UINT64_MAX);
    rd->sub = client_read(rd->op.c, &args, on_decided, rd);
    if (rd->sub == NULL)
        op_fail_soon(&rd->op, -ENOMEM);
}

/* --- ask -------------------------------------------------------------------------------------- */

/* Of the replicas that have answered the one that names the newest version; NULL: none has. */
static const struct leg *newest_answer(const struct round *r)
{
    const struct leg *newest = NULL;

    for (unsigned i = 0; i < r->n_votes; i++) {
        const struct leg *leg = &r->legs[i];
        int cmp;

        if (!read_leg_counts(r, i))
            continue;
        cmp = newest == NULL ? 1 : ballot_cmp(leg->ans.record.version, newest->ans.record.version);
        if (cmp > 0 || (cmp == 0 && leg->ans.has_value && !newest->ans.has_value))
            newest = leg;
    }
    return newest;
}

/* Who is behind what is believed, or damaged, is mended afterwards. */
static void note_others(struct read_op *rd, const struct round *r, struct ballot version)
{
    for (unsigned i = 0; i < r->n_votes; i++)
        rd->mend |= r->legs[i].ended && background_is_behind(&r->legs[i], version);
}

static int take_record(struct read_op *rd, const struct leg *leg)
{
    int err;

    record_copy_fini(&rd->res.rec);
    err = record_copy(&leg->ans.record, &rd->res.rec);
    value_fini(&rd->res.value);
    if (err == 0 && leg->ans.has_value) {
        rd->res.value = value_ref(leg->value);
        rd->res.value_offset = leg->ans.value_offset;
    }
    client_saw(rd->op.c, leg->ans.record.version);
    return err;
}

/* The first live key below that any node names. 0 or -ENOMEM. */
static int take_child(struct read_op *rd, const struct round *r)
{
    for (unsigned i = 0; i < r->n; i++) {
        const struct leg *leg = &r->legs[i];

        if (!leg->ended || leg->err != 0 || leg->ans.kind != ANS_STATE || !leg->ans.has_peek ||
            leg->ans.peek.flags != 0)
            continue;
        buf_clear(&rd->res.child_key);
        buf_add_span(&rd->res.child_key, leg->ans.peek.key);
        if (rd->res.child_key.err != 0)
            return -ENOMEM;
        rd->res.child = leg->ans.peek;
        rd->res.child.key = buf_span(&rd->res.child_key);
        rd->res.has_child = true;
        return 0;
    }
    return 0;
}

/* Takes what has come. False: nobody has anything, so far. */
static bool take_any(struct read_op *rd, struct round *r)
{
    const struct leg *leg = newest_answer(r);
    bool has_key = leg != NULL && record_is_live(&leg->ans.record) &&
                   ballot_cmp(leg->ans.record.version, rd->at_least) >= 0;
    int err = rd->peek ? take_child(rd, r) : 0;

    if (err == 0 && has_key) {
        note_others(rd, r, leg->ans.record.version);
        err = take_record(rd, leg);
    }
    if (err < 0) {
        read_finish(rd, err);
        return true;
    }
    if (!has_key && !rd->res.has_child)
        return false;
    op_wake_at(&rd->op, UINT64_MAX);
    rd->res.lone = true;
    read_settled(rd);
    return true;
}

/*
 * When the next is asked as well; with none left, when those that were count as slow, and again
 * while they do.
 */
static void wait_for_answers(struct read_op *rd, struct round *r)
{
    uint64_t slow_us = round_slow_us(r), now = transport_now_us(rd->op.c->opts.transport);

    if (round_next(r) < r->n)
        op_wake_at(&rd->op, round_hedge_us(r));
    else
        op_wake_at(&rd->op, slow_us > now ? slow_us : now + HEALTH_SLOW_MIN_US);
}

static void on_one_answer(struct round *r, struct leg *leg)
{
    struct read_op *rd = container_of(r->op, struct read_op, op);
    unsigned next = round_next(r);

    (void)leg;
    if (rd->peek && round_pending(r) > 0)
        return;
    if (take_any(rd, r))
        return;
    if (next < r->n) {
        read_send(rd, r, next, true);
        wait_for_answers(rd, r);
    } else if (round_pending(r) == 0) {
        ask_majority(rd);
    } else {
        wait_for_answers(rd, r);
    }
}

bool read_one_wake(struct read_op *rd)
{
    struct round *r = rd->op.round;
    unsigned next;

    if (r == NULL || r->on_answer != on_one_answer)
        return false;
    next = round_next(r);
    if (next < r->n) {
        read_send(rd, r, next, true);
        wait_for_answers(rd, r);
    } else if (take_any(rd, r)) { /* with peek: without those that are slow */
        return true;
    } else if (round_pending(r) > 0 && !read_majority_is_fit(rd->op.c, buf_span(&rd->op.key))) {
        wait_for_answers(rd, r); /* nobody else could say anything */
    } else {
        ask_majority(rd);
    }
    return true;
}

/* Does it answer, though it does not vote just now for want of a store that works? */
static bool is_ailing(const struct client *c, unsigned node)
{
    struct health_info info = health_get(c->opts.health, node);

    return info.up && info.ailing && !info.recovering;
}

/*
 * Who is there: *n_votes replicas of the key in ring order, those that are well first, and with
 * peek, which waits for all, no others where there are any, but all nodes that are well.
 */
static unsigned order(const struct read_op *rd, unsigned *nodes, unsigned *n_votes)
{
    const struct client *c = rd->op.c;
    const struct ring *ring = c->opts.ring;
    struct span key = buf_span(&rd->op.key);
    unsigned n = client_order(c, key, nodes);
    bool ailing = n == 0 || !rd->peek;

    for (unsigned i = n; ailing && i < ring_n_replicas(ring); i++)
        if (is_ailing(c, nodes[i]))
            nodes[n++] = nodes[i];
    *n_votes = n;
    for (unsigned i = 0; rd->peek && i < ring_n_nodes(ring); i++)
        if (!ring_is_replica(ring, key, i) && health_fit(c->opts.health, i))
            nodes[n++] = i;
    return n;
}

void read_one(struct read_op *rd)
{
    struct op *op = &rd->op;
    unsigned *nodes = calloc(ring_n_nodes(op->c->opts.ring), sizeof *nodes), n, n_votes;
    struct round *r = NULL;

    rd->from = READ_ONE;
    rd->value_leg = rd->n_left = 0;
    rd->mend = rd->res.followed = rd->res.has_child = false;
    if (nodes != NULL) {
        n = order(rd, nodes, &n_votes);
        if (n_votes == 0) {
            free(nodes);
            ask_majority(rd);
            return;
        }
        r = round_new(op, buf_span(&op->key), nodes, n, n_votes, 1, on_one_answer);
        free(nodes);
    }
    if (r == NULL) {
        op_fail_soon(op, -ENOMEM);
        return;
    }
    do
        read_send(rd, r, round_next(r), false);
    while (rd->peek && round_next(r) < r->n);
    wait_for_answers(rd, r);
}

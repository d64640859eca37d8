/*
 * read_peek.c - the part of a READ (client_read.c) that tells whether anything lives below its key.
 */
#include "common/read.h"

#include <errno.h>

/* Did a majority of the replicas of this leg's child name the very same child? */
static bool child_confirmed(const struct read_op *rd, const struct round *r, const struct leg *leg)
{
    const struct ring *ring = rd->op.c->opts.ring;
    unsigned n = 0;

    for (unsigned i = 0; i < r->n; i++) {
        const struct leg *other = &r->legs[i];

        if (read_leg_counts(r, i) && other->ans.has_peek &&
            ring_is_replica(ring, leg->ans.peek.key, other->node) &&
            span_eq(other->ans.peek.key, leg->ans.peek.key) &&
            ballot_cmp(other->ans.peek.version, leg->ans.peek.version) == 0)
            n++;
    }
    return n >= ring_majority(ring);
}

/*
 * Surely no child, without looking: each node holds all keys, a majority know of the very same
 * deletions there, and nobody of anything else.
 */
static bool children_are_dead(const struct read_op *rd, const struct round *r)
{
    const struct ring *ring = rd->op.c->opts.ring;
    bool dead = false;

    if (ring_n_replicas(ring) < ring_n_nodes(ring))
        return false;
    for (unsigned i = 0; i < r->n; i++) {
        const struct entry *e = &r->legs[i].ans.peek;
        unsigned n = 0;

        if (!read_leg_counts(r, i) || !r->legs[i].ans.has_peek)
            continue;
        if (!(e->flags & RECORD_TOMBSTONE))
            return false;
        for (unsigned k = 0; k < r->n; k++) {
            const struct answer *other = &r->legs[k].ans;

            n += read_leg_counts(r, k) && other->has_peek && span_eq(other->peek.key, e->key) &&
                 other->peek.flags == e->flags && other->peek.rdev == e->rdev;
        }
        dead |= n >= ring_majority(ring);
    }
    return dead;
}

static int read_set_child(struct read_op *rd, const struct entry *e)
{
    buf_clear(&rd->res.child_key);
    buf_add_span(&rd->res.child_key, e->key);
    if (rd->res.child_key.err != 0)
        return -ENOMEM;
    rd->res.child = *e;
    rd->res.child.key = buf_span(&rd->res.child_key);
    rd->res.has_child = true;
    return 0;
}

static void on_children(void *arg, struct list_result *list)
{
    struct read_op *rd = arg;
    struct cursor c = cursor_of(buf_span(&list->entries));
    struct entry e;
    int err = list->err;

    rd->sub = NULL;
    if (rd->ending != 0) {
        read_finish(rd, rd->ending);
        return;
    }
    rd->res.followed &= list->followed;
    if (err == 0 && list->n > 0) {
        err = entry_next(&c, &e) == 1 ? read_set_child(rd, &e) : -EBADMSG;
    }
    if (err < 0)
        rd->res.why = list->why;
    read_finish(rd, err);
}

/* Nodes named different children, or not enough named the same: a settled listing decides. */
static void read_children(struct read_op *rd)
{
    struct buf prefix = {0};
    struct list_args args = {.limit = 1, .timeout_ms = op_left_ms(&rd->op)};

    buf_add_span(&prefix, buf_span(&rd->op.key));
    buf_u8(&prefix, '/');
    args.prefix = buf_span(&prefix);
    if (prefix.err == 0)
        rd->sub = client_list(rd->op.c, &args, on_children, rd);
    buf_fini(&prefix);
    if (rd->sub == NULL)
        read_finish(rd, -ENOMEM);
}

void read_peek(struct read_op *rd)
{
    round_drop(&rd->op);
    if (rd->peek && rd->res.has_child && rd->res.child_key.len == 0) {
        rd->res.has_child = false;
        read_children(rd);
        return;
    }
    read_finish(rd, 0);
}

int read_note_children(struct read_op *rd, const struct round *r)
{
    bool any = false;

    rd->res.has_child = false;
    buf_clear(&rd->res.child_key);
    for (unsigned i = 0; i < r->n; i++) {
        const struct leg *leg = &r->legs[i];

        if (!read_leg_counts(r, i) || !leg->ans.has_peek)
            continue;
        any = true;
        if (leg->ans.peek.flags == 0 && child_confirmed(rd, r, leg))
            return read_set_child(rd, &leg->ans.peek);
    }
    /* child_key stays empty: see read_peek() */
    rd->res.has_child = any && !children_are_dead(rd, r);
    return 0;
}

/*
 * client_settle.c - a WRITE that changes nothing (client_write.c), for the sake of its ballot and
 * of each single replica: it ends when all that are up have stored the record, not only a majority.
 *
 * What is in the way of a plain copy of the record is in its way, too: a replica that promised
 * something higher refuses it, or one whose own record is damaged, until the ballot is above that.
 */
#include "common/write.h"

#include <errno.h>
#include <stdlib.h>

/* It got the message without the bytes, and has none that it could keep. */
static bool report_lacks_value(const struct report *rep)
{
    return rep->state == REPORT_FAILED && rep->err == -ENODATA;
}

/* Waits for those that are up; who is, is seen again when they count as slow. */
static bool settle_waits(struct write_op *w)
{
    const struct round *r = w->op.round;
    uint64_t slow_us = round_slow_us(r);

    if (!round_awaits(r))
        return false;
    op_wake_at(&w->op, slow_us > transport_now_us(w->op.c->opts.transport) ? slow_us : UINT64_MAX);
    return true;
}

static void settle_finish(struct write_op *w)
{
    if (w->op.round != NULL)
        round_explain(w->op.round, &w->res.why);
    write_finish(w, 0);
}

void settle_stored(struct write_op *w)
{
    bool lacking = false;

    if (!w->stored) {
        w->stored = true; /* nothing about it is open any more */
        if (record_copy(&w->draft.rec, &w->res.rec) < 0)
            w->res.rec = (struct record_copy){0};
        w->res.existed = record_is_live(&w->draft.rec);
        write_turn_over(w);
    }
    if (settle_waits(w))
        return;
    for (unsigned i = 0; i < w->n; i++)
        lacking |= report_lacks_value(&w->reports[i]);
    if (lacking && w->same_value)
        write_fetch(w, w->ballot);
    else
        settle_finish(w);
}

static void on_value_brought(struct round *r, struct leg *leg)
{
    struct write_op *w = container_of(r->op, struct write_op, op);

    write_report_leg(w, leg);
    settle_stored(w);
}

/* The same message once more, with the value written out, to those that lack it. */
void settle_bring_value(struct write_op *w)
{
    struct message m = {.kind = MSG_ACCEPT, .record = w->draft.rec};
    unsigned n = 0;
    struct round *r;

    w->same_value = false; /* once is enough */
    for (unsigned i = 0; i < w->n; i++)
        if (report_lacks_value(&w->reports[i]))
            w->nodes[n++] = w->reports[i].node;
    r = round_new(&w->op, buf_span(&w->op.key), w->nodes, n, n, n, on_value_brought);
    if (r == NULL) {
        write_finish(w, 0);
        return;
    }
    r->body = value_ref(w->cur_value);
    for (unsigned i = 0; i < n; i++)
        round_send(r, i, &m);
    op_wake_at(&w->op, round_slow_us(r));
}

struct op *client_settle(struct client *c, const struct settle_args *args, write_done_fn *done,
                         void *arg)
{
    struct write_op *w = write_new(c, args->key, args->timeout_ms, 0, done, arg);

    if (w == NULL)
        return NULL;
    client_saw(c, (struct ballot){args->above, 0});
    w->settling = true;
    write_start(w);
    return &w->op;
}

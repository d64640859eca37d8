/*
 * write_accept.c - the second round of a WRITE (client_write.c): ACCEPT, and the report of who
 * stored it.
 */
#include "common/write.h"

#include <assert.h>
#include <errno.h>

static struct report *report_of(struct write_op *w, unsigned node)
{
    for (unsigned i = 0; i < w->n; i++)
        if (w->reports[i].node == node)
            return &w->reports[i];
    assert(!"a leg of the round is a replica of the key");
    return NULL;
}

void write_report_leg(struct write_op *w, const struct leg *leg)
{
    struct report *rep = report_of(w, leg->node);

    if (leg->err == 0 && leg->ans.kind == ANS_ACCEPTED) {
        bool first = true;

        for (unsigned i = 0; i < w->n; i++)
            first &= w->reports[i].state != REPORT_OK;
        if (first)
            w->res.primary = leg->node;
        rep->state = REPORT_OK;
        rep->err = 0;
    } else {
        rep->state = REPORT_FAILED;
        rep->err = leg->err != 0                     ? leg->err
                   : leg->ans.kind == ANS_NEED_VALUE ? -ENODATA
                                                     : -ECANCELED;
    }
}

/* What a success is about. */
static int keep_record(struct write_op *w)
{
    const struct record *rec = &w->draft.rec;

    /* Whatever builds on a write puts its own id before that one's; a settling adds none. */
    if (w->purpose == FOR_DONE_BEFORE)
        w->res.rec_is = rec->recent[0] == w->id ? WRITE_AS_EARLIER : WRITE_SUPERSEDED;
    return record_copy(rec, &w->res.rec);
}

/* The majority stored it. */
static void write_accepted(struct write_op *w, struct round *r)
{
    struct op *op = &w->op;

    if (w->purpose == FOR_SETTLING) {
        settle_stored(w);
        return;
    }
    if (w->purpose == FOR_CONDITION) {
        write_finish_with(w, w->condition, &w->draft.rec);
        return;
    }
    w->res.existed = w->replaced_live;
    if (w->report_wait_ms > 0 && round_awaits(r)) {
        if (!w->stored) {
            uint64_t until = transport_now_us(op->c->opts.transport) + 1000ull * w->report_wait_ms;

            w->stored = keep_record(w) == 0;
            if (!w->stored) {
                write_finish_unknown(w);
                return;
            }
            op_wake_at(op, until);
            write_turn_over(w);
        }
        return;
    }
    if (w->stored || keep_record(w) == 0)
        write_finish(w, 0);
    else
        write_finish_unknown(w);
}

static bool anyone_needs_value(const struct round *r)
{
    for (unsigned i = 0; i < r->n; i++)
        if (r->legs[i].ended && r->legs[i].err == 0 && r->legs[i].ans.kind == ANS_NEED_VALUE)
            return true;
    return false;
}

void write_accept_lost(struct write_op *w)
{
    /*
     * Those that lack the value get it, under the same ballot: it is the same message with its
     * value written out. Whoever took the message holds these bytes under its version now.
     */
    if (w->same_value && anyone_needs_value(w->op.round))
        write_fetch(w, w->ballot);
    else
        write_retry(w);
}

static void accept_send(struct write_op *w, struct round *r, unsigned i)
{
    struct message m = {.kind = MSG_ACCEPT, .record = w->draft.rec};

    if (w->same_value) {
        m.flags = MSG_SAME_VALUE;
        m.pin = w->cur.rec.version;
    }
    report_of(w, r->legs[i].node)->state = REPORT_PENDING;
    round_send(r, i, &m);
}

static void on_accept_answer(struct round *r, struct leg *leg)
{
    struct write_op *w = container_of(r->op, struct write_op, op);

    write_report_leg(w, leg);
    while (tally_count(&r->tally, VOTE_YES) + tally_count(&r->tally, VOTE_ASKED) < r->tally.need &&
           w->n_up < w->n)
        accept_send(w, r, w->n_up++);
    if (w->stored && w->settling) {
        settle_stored(w);
        return;
    }
    switch (tally_state(&r->tally)) {
    case TALLY_MET:
        write_accepted(w, r);
        break;
    case TALLY_LOST:
        write_accept_lost(w);
        break;
    case TALLY_WAIT:
        write_hedge_later(w);
        break;
    }
}

void write_accept_others(struct write_op *w)
{
    while (w->n_up < w->n)
        accept_send(w, w->op.round, w->n_up++);
}

void write_accept(struct write_op *w)
{
    struct op *op = &w->op;
    struct round *r;

    w->same_value = w->draft.same_value && w->draft.rec.size > 0 && !w->have_cur_value;
    if (w->draft.same_value && w->have_cur_value) {
        value_fini(&w->draft.value);
        w->draft.value = value_ref(w->cur_value);
    }
    if (!w->same_value)
        write_plan(w, w->draft.rec.size);
    r = round_new(op, buf_span(&op->key), w->nodes, w->n, w->n, ring_majority(op->c->opts.ring),
                  on_accept_answer);
    if (r == NULL) {
        write_finish(w, -ENOMEM);
        return;
    }
    if (!w->same_value && w->draft.rec.size > 0) {
        r->body = value_ref(w->draft.value);
        r->tail = value_ref(w->draft.tail);
    }
    for (unsigned i = 0; i < w->n; i++) {
        w->reports[i].state = REPORT_FAILED;
        w->reports[i].err = -EHOSTDOWN; /* until it is asked */
    }
    for (unsigned i = 0; i < w->n_up; i++)
        accept_send(w, r, i);
    write_hedge_later(w);
}

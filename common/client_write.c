/*
 * client_write.c - WRITE (docs/protocol.md): single-register Paxos with a changing value (Rystsov,
 * CASPaxos 2018) and exact retries.
 *
 * One try: a fresh ballot b.
 *   prepare  b to all replicas, wait for a majority of promises. cur = the newest record they name.
 *   judge    was an earlier try of mine done after all? Does the condition hold on cur?
 *   fetch    cur's value, where the edit or the settling needs its bytes and they are not at hand.
 *   accept   the new record under b to all replicas: done when a majority stored it.
 *   settle   the same with cur unchanged, before anything is reported that rests on cur: where a
 *            minority may hold something newer
 *            than the majority (an earlier try of mine, or what someone else left), a later
 *            operation could pick it up.
 * A refusal (someone else's ballot is higher) leads to the next try, after a random pause.
 *
 * Writes of one key take turns: turns.h.
 */
#include "common/write.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/sums.h"

#define SENT_PAUSE_US 200u

static void write_judge(struct write_op *w);

void write_result_fini(struct write_result *r)
{
    record_copy_fini(&r->rec);
}

static void draft_fini(struct draft *d)
{
    value_fini(&d->value);
    value_fini(&d->tail);
}

void write_turn_over(struct write_op *w)
{
    struct client *c = w->op.c;
    struct turn *next = turns_leave(&c->turns, &w->turn);

    if (next != NULL)
        op_wake_at(&container_of(next, struct write_op, turn)->op,
                   transport_now_us(c->opts.transport));
}

void write_finish(struct write_op *w, int err)
{
    write_turn_over(w);
    w->res.err = err;
    w->res.id = w->id;
    /*
     * That all ACCEPTs were refused proves nothing: what was refused may be the second copy of a
     * message, whose first was stored and has led to what is there now.
     */
    w->res.certain = err < 0 && !w->sent;
    w->res.n_reports = w->n;
    w->res.reports = w->reports;
    w->done(w->arg, &w->res);
    write_result_fini(&w->res);
    op_fini(&w->op);
    record_copy_fini(&w->cur);
    value_fini(&w->cur_value);
    draft_fini(&w->draft);
    value_fini(&w->sums_of);
    buf_fini(&w->sums);
    free(w->nodes);
    free(w->reports);
    free(w);
}

void write_finish_with(struct write_op *w, int err, const struct record *rec)
{
    (void)record_copy(rec, &w->res.rec); /* without memory for it, it fails all the same */
    w->sent = false;                     /* a majority holds something newer */
    write_finish(w, err);
}

void write_finish_unknown(struct write_op *w)
{
    w->res.rec = (struct record_copy){0};
    w->res.rec_is = WRITE_SUPERSEDED;
    write_finish(w, 0);
}

static void write_end(struct op *op, int err)
{
    struct write_op *w = container_of(op, struct write_op, op);

    if (w->stored && w->sub == NULL) {
        write_finish(w, 0);
        return;
    }
    if (op->round != NULL)
        round_explain(op->round, &w->res.why);
    if (err == -ETIMEDOUT)
        err = -EHOSTDOWN;
    if (w->sub == NULL) {
        write_finish(w, err);
        return;
    }
    w->ending = err;
    op->deadline_us = UINT64_MAX;
    op->cancelled = false;
    op_wake_at(op, UINT64_MAX);
    op_cancel(w->sub);
}

/*
 * Once something was sent, it has to be found again before too many others write: there is only as
 * much of a pause as is needed for two of such not to spoil each other's tries for ever.
 */
static uint64_t write_pause_us(struct write_op *w)
{
    return w->sent ? client_random(w->op.c) % SENT_PAUSE_US : op_backoff_us(&w->op, w->tries++);
}

void write_retry(struct write_op *w)
{
    struct op *op = &w->op;
    int err = -EHOSTDOWN;

    if (op->round != NULL) {
        round_explain(op->round, &w->res.why);
        err = round_verdict(op->round);
        if (w->preparing && round_found_damage(op->round)) /* it may be all that is in the way */
            background_mend(op->c, buf_span(&op->key), 0);
    }
    round_drop(op);
    if (err != -EHOSTDOWN) {
        write_finish(w, err);
        return;
    }
    op_wake_at(op, transport_now_us(op->c->opts.transport) + write_pause_us(w));
}

/*
 * Nodes thought to be down are not waited for; but when those that were asked take longer than
 * usual, the others are asked as well: one of the former may have frozen, one of the latter may be
 * back. And where one has refused, only silence keeps this try alive: it is given up then.
 */
void write_hedge_later(struct write_op *w)
{
    const struct client *c = w->op.c;
    bool lost = tally_count(&w->op.round->tally, VOTE_NO) > 0;
    uint64_t wait = 0;

    for (unsigned i = 0; i < w->n_up; i++) {
        uint64_t usual = health_hedge_us(c->opts.health, w->nodes[i]);

        wait = usual > wait ? usual : wait;
    }
    op_wake_at(&w->op,
               w->n_up < w->n || lost ? transport_now_us(c->opts.transport) + wait : UINT64_MAX);
}

/* --- judge ------------------------------------------------------------------------------------ */

/*
 * draft = cur, to be accepted unchanged under this try's ballot. A key never written becomes a
 * tombstone that no write led to.
 */
static void draft_settle(struct write_op *w, enum accept_for purpose)
{
    draft_fini(&w->draft);
    w->draft = (struct draft){.rec = w->cur.rec, .same_value = true};
    if (ballot_is_none(w->cur.rec.version))
        w->draft.rec.flags = RECORD_TOMBSTONE;
    w->draft.rec.version = w->ballot;
    w->purpose = purpose;
    write_accept(w);
}

/* Of what stands before the tail most is summed already, where it is the present value. */
static int sum_with_tail(struct write_op *w)
{
    const struct draft *d = &w->draft;
    bool same =
        w->have_cur_value && d->value.data == w->cur_value.data && d->value.len == w->cur.rec.size;
    size_t skip = same ? d->value.len / CHUNK_SIZE : 0;
    struct span all, known = span_of(w->cur.rec.sums.data, skip * 8);
    struct sums *s = sums_new(skip > 0 ? known : (struct span){0});
    int err = s == NULL ? -ENOMEM : 0;

    if (err == 0) {
        skip *= CHUNK_SIZE;
        if (d->value.len > skip)
            sums_add(s, span_of(d->value.data + skip, d->value.len - skip));
        sums_add(s, value_span(d->tail));
        err = sums_end(s, &all);
    }
    value_fini(&w->sums_of);
    buf_clear(&w->sums);
    if (err == 0) {
        buf_add_span(&w->sums, all);
        err = w->sums.err;
    }
    if (err == 0)
        w->draft.rec.sums = buf_span(&w->sums);
    sums_free(s);
    return err;
}

static int draft_complete(struct write_op *w)
{
    struct record *rec = &w->draft.rec;
    const struct record *cur = &w->cur.rec;

    rec->version = w->ballot;
    rec->seq = cur->seq + 1;
    rec->recent[0] = w->id;
    rec->n_recent = 1;
    for (unsigned i = 0; i < cur->n_recent && rec->n_recent < RECENT_MAX; i++)
        rec->recent[rec->n_recent++] = cur->recent[i];
    if (rec->flags & RECORD_TOMBSTONE) {
        struct record bare = {.version = rec->version,
                              .flags = RECORD_TOMBSTONE,
                              .seq = rec->seq,
                              .n_recent = rec->n_recent,
                              .mtime_ns = rec->mtime_ns};

        memcpy(bare.recent, rec->recent, sizeof bare.recent);
        *rec = bare;
        w->draft.same_value = false;
        draft_fini(&w->draft);
        return 0;
    }
    if (w->draft.same_value) {
        rec->size = cur->size;
        rec->sums = cur->sums;
        return 0;
    }
    rec->size = (uint64_t)w->draft.value.len + w->draft.tail.len;
    if (w->draft.tail.len > 0)
        return sum_with_tail(w);
    if (w->draft.sums.len > 0) {
        rec->sums = w->draft.sums;
        return 0;
    }
    if (rec->size == 0) {
        rec->sums = (struct span){0};
        return 0;
    }
    if (w->sums_of.data != w->draft.value.data || w->sums_of.len != w->draft.value.len) {
        buf_clear(&w->sums);
        record_sums(&w->sums, value_span(w->draft.value));
        value_fini(&w->sums_of);
        w->sums_of = value_ref(w->draft.value);
    }
    rec->sums = buf_span(&w->sums);
    return w->sums.err;
}

/* An ACCEPT that replaces cur goes out. */
static void note_sent(struct write_op *w)
{
    const struct record *cur = &w->cur.rec;

    if (w->sent)
        roots_narrow(&w->roots, cur);
    else
        roots_begin(&w->roots, cur);
    w->sent = true;
    w->sent_ballot = w->ballot;
    w->replaced_live = record_is_live(cur);
}

static void write_judge(struct write_op *w)
{
    const struct record *cur = &w->cur.rec;
    int err;

    if (w->settling) {
        draft_settle(w, FOR_SETTLING);
        return;
    }
    if (w->sent) {
        if (record_is_recent(cur, w->id)) {
            draft_settle(w, FOR_DONE_BEFORE);
            return;
        }
        if (!roots_reach(&w->roots, cur)) {
            err_set(&w->res.why, 0, "later writes hide whether this one was stored");
            write_finish(w, -EHOSTDOWN);
            return;
        }
        /*
         * cur was chosen without this write, and is newer than all that was sent of it: nobody will
         * ever pick that up again.
         */
        if (w->agreed && ballot_cmp(cur->version, w->sent_ballot) > 0)
            w->sent = false;
    }
    if (w->want_value && record_is_live(cur) && cur->size > 0 && !w->have_cur_value) {
        write_fetch(w, cur->version);
        return;
    }
    draft_fini(&w->draft);
    w->draft = (struct draft){.rec = *cur};
    w->draft.rec.flags = 0;
    if (!record_is_live(cur))
        w->draft.rec = (struct record){0};
    err = w->edit(w->ctx, cur, w->have_cur_value ? w->cur_value : (struct value){0}, &w->draft);
    if (err < 0) {
        w->condition = err;
        if (w->agreed && !w->sent) /* else a minority may hold something newer */
            write_finish_with(w, err, cur);
        else
            draft_settle(w, FOR_CONDITION);
        return;
    }
    err = draft_complete(w);
    if (err < 0) {
        write_finish(w, err);
        return;
    }
    note_sent(w);
    w->purpose = FOR_WRITE;
    write_accept(w);
}

static void on_fetched(void *arg, struct read_result *got)
{
    struct write_op *w = arg;
    int err = got->err;

    w->sub = NULL;
    if (err == 0 && !span_eq(got->rec.rec.sums, w->cur.rec.sums))
        err = err_set(&got->why, -EBADMSG, "replicas have different values under one version");
    if (w->ending != 0 || (w->stored && err < 0)) {
        write_finish(w, w->stored ? 0 : w->ending);
        return;
    }
    if (err < 0) {
        w->res.why = got->why;
        if (err == -ESTALE && ballot_cmp(w->fetch_pin, w->cur.rec.version) != 0)
            write_fetch(w, w->cur.rec.version); /* nobody took the message */
        else if (err == -ESTALE) /* someone else was faster: this ballot is lost as well */
            write_retry(w);
        else
            write_finish(w, err);
        return;
    }
    value_fini(&w->cur_value);
    w->cur_value = got->value;
    got->value = (struct value){0};
    w->have_cur_value = true;
    if (w->stored)
        settle_bring_value(w);
    else if (ballot_cmp(w->draft.rec.version, w->ballot) == 0)
        write_accept(w); /* the draft stood already, and only its value was missing */
    else
        write_judge(w);
}

void write_plan(struct write_op *w, uint64_t size)
{
    if (size <= w->planned || (size <= MEMORY_BLOB_MAX && !w->settling))
        return;
    op_add_bytes(&w->op, size - w->planned);
    w->planned = size;
}

void write_fetch(struct write_op *w, struct ballot pin)
{
    struct read_args args = {
        .key = buf_span(&w->op.key),
        .want_value = true,
        .length = w->cur.rec.size,
        .pin = pin,
        .timeout_ms = op_left_ms(&w->op),
    };

    write_plan(w, w->planned + 2 * w->cur.rec.size); /* here, and to those that lack them */
    w->fetch_pin = pin;
    round_drop(&w->op);
    op_wake_at(&w->op, UINT64_MAX);
    w->sub = client_read(w->op.c, &args, on_fetched, w);
    if (w->sub == NULL)
        write_finish(w, -ENOMEM);
}

/* --- prepare ---------------------------------------------------------------------------------- */

/* Is what an earlier try was brought also what stands there now? A large value would be fetched
 * again, and be held twice while a slow replica is still sent that try. */
static bool keeps_cur_value(const struct write_op *w, const struct record *now)
{
    return w->want_value && w->have_cur_value && record_is_live(now) &&
           now->size == w->cur_value.len && w->cur.rec.size == now->size &&
           span_eq(w->cur.rec.sums, now->sums);
}

/* A majority has promised. */
static void write_promised(struct write_op *w, struct round *r)
{
    const struct leg *top = NULL;
    unsigned n_agree = 0;

    for (unsigned i = 0; i < r->n; i++) {
        const struct leg *leg = &r->legs[i];

        if (tally_of(&r->tally, i) != VOTE_YES)
            continue;
        client_saw(w->op.c, leg->ans.record.version);
        if (top == NULL || ballot_cmp(leg->ans.record.version, top->ans.record.version) > 0)
            top = leg;
    }
    if (!keeps_cur_value(w, &top->ans.record)) {
        value_fini(&w->cur_value);
        w->have_cur_value = false;
    }
    for (unsigned i = 0; i < r->n; i++) {
        const struct leg *leg = &r->legs[i];

        if (tally_of(&r->tally, i) != VOTE_YES ||
            ballot_cmp(leg->ans.record.version, top->ans.record.version) != 0)
            continue;
        n_agree++;
        if (leg->ans.has_value && leg->value.len == leg->ans.record.size && !w->have_cur_value &&
            span_eq(leg->ans.record.sums, top->ans.record.sums)) {
            w->cur_value = value_ref(leg->value);
            w->have_cur_value = true;
        }
    }
    w->agreed = n_agree >= r->tally.need;
    record_copy_fini(&w->cur);
    if (record_copy(&top->ans.record, &w->cur) < 0) {
        write_finish(w, -ENOMEM);
        return;
    }
    round_drop(&w->op);
    op_wake_at(&w->op, UINT64_MAX);
    w->preparing = false;
    write_judge(w);
}

static void prepare_send(struct write_op *w, struct round *r, unsigned i)
{
    struct message m = {.kind = MSG_PREPARE, .ballot = w->ballot};

    /*
     * A small value comes from all: whoever answers first has it. One copy of a larger one is
     * enough; what takes long to bring is fetched, in the time that it is given then; and a
     * settling asks for it only when a replica turns out to lack it.
     */
    if (w->want_value || w->settling) {
        m.flags = MSG_WANT_VALUE;
        m.length = i == 0 && w->want_value ? MEMORY_BLOB_MAX : INLINE_VALUE_MAX;
    }
    round_send(r, i, &m);
}

/* And to those that were not asked yet. */
static void prepare_others(struct write_op *w)
{
    while (w->n_up < w->n)
        prepare_send(w, w->op.round, w->n_up++);
}

static void on_prepare_answer(struct round *r, struct leg *leg)
{
    struct write_op *w = container_of(r->op, struct write_op, op);

    (void)leg;
    /* Those thought to be down are asked after all when the others do not suffice. */
    while (tally_count(&r->tally, VOTE_YES) + tally_count(&r->tally, VOTE_ASKED) < r->tally.need &&
           w->n_up < w->n)
        prepare_send(w, r, w->n_up++);
    switch (tally_state(&r->tally)) {
    case TALLY_MET:
        write_promised(w, r);
        break;
    case TALLY_LOST:
        if (!round_damage_awaited(r))
            write_retry(w);
        break;
    case TALLY_WAIT:
        write_hedge_later(w);
        break;
    }
}

static void write_try(struct write_op *w)
{
    struct op *op = &w->op;
    unsigned need = ring_majority(op->c->opts.ring);
    struct round *r;

    w->ballot = client_ballot(op->c);
    w->n_up = client_order(op->c, buf_span(&op->key), w->nodes);
    if (w->n_up < need)
        w->n_up = w->n;
    r = round_new(op, buf_span(&op->key), w->nodes, w->n, w->n, need, on_prepare_answer);
    if (r == NULL) {
        op_fail_soon(op, -ENOMEM);
        return;
    }
    w->preparing = true;
    for (unsigned i = 0; i < w->n_up; i++)
        prepare_send(w, r, i);
    write_hedge_later(w);
}

static void write_wake(struct op *op)
{
    struct write_op *w = container_of(op, struct write_op, op);

    if (w->stored && w->settling) {
        settle_stored(w);
    } else if (w->stored) {
        write_finish(w, 0); /* the others took too long to be reported of */
    } else if (op->round == NULL) {
        w->turn.waiting = false;
        write_try(w);
    } else if (w->n_up < w->n) {
        if (w->preparing)
            prepare_others(w);
        else
            write_accept_others(w);
        write_hedge_later(w);
    } else if (w->preparing) {
        write_retry(w);
    } else {
        write_accept_lost(w);
    }
}

/*
 * Waits for its turn half of its timeout at most: the write before it may be stuck. And not at all
 * where too few replicas are up: what fails has to tell which ones did not answer.
 */
void write_start(struct write_op *w)
{
    struct op *op = &w->op;
    struct span key = buf_span(&op->key);
    uint64_t now = transport_now_us(op->c->opts.transport), left = op->deadline_us - now;
    bool enough = client_order(op->c, key, w->nodes) >= ring_majority(op->c->opts.ring);

    turns_join(&op->c->turns, &w->turn, key, enough);
    if (w->turn.waiting)
        op_wake_at(op, now + (left < op->timeout_us ? left : op->timeout_us) / 2);
    else
        write_try(w);
}

struct write_op *write_new(struct client *c, struct span key, uint32_t timeout_ms, uint64_t size,
                           write_done_fn *done, void *arg)
{
    struct write_op *w = calloc(1, sizeof *w);
    unsigned n = ring_n_replicas(c->opts.ring);
    const unsigned *replicas = ring_replicas(c->opts.ring, key);

    if (w == NULL)
        return NULL;
    w->nodes = calloc(n, sizeof *w->nodes);
    w->reports = calloc(n, sizeof *w->reports);
    if (w->nodes == NULL || w->reports == NULL ||
        op_init(&w->op, c, key, OP_OF_KEY, timeout_ms, size) < 0) {
        free(w->nodes);
        free(w->reports);
        free(w);
        return NULL;
    }
    for (unsigned i = 0; i < n; i++)
        w->reports[i].node = replicas[i];
    w->n = n;
    w->planned = size;
    w->done = done;
    w->arg = arg;
    w->id = client_random(c);
    w->op.on_end = write_end;
    w->op.on_wake = write_wake;
    return w;
}

struct op *client_write(struct client *c, const struct write_args *args, write_done_fn *done,
                        void *arg)
{
    struct write_op *w = write_new(c, args->key, args->timeout_ms, args->size_hint, done, arg);

    if (w == NULL)
        return NULL;
    w->edit = args->edit;
    w->ctx = args->ctx;
    w->want_value = args->want_value;
    w->report_wait_ms = args->report_wait_ms;
    write_start(w);
    return &w->op;
}

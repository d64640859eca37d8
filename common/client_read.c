/*
 * client_read.c - READ (docs/protocol.md): a majority names the newest version, or is brought to
 * it, before the reader hears of it.
 *
 *   ask      a majority of the replicas (the first for the value, the others for the record alone);
 *            one that fails or is slow is replaced by the next. With `peek`, also as many other
 *            nodes as hold a majority of every replica set.
 *   rest     where they differ: another replica may make those that hold the newest record a
 *            majority. That is one more round trip and no sync: the reader hears of it sooner, and
 *            who is behind is mended afterwards.
 *   mend     where that did not help: the newest record, unchanged under its own ballot, to those
 *            that are behind; it is only the original message arriving late. Refused there (a newer
 *            ballot is about): a WRITE that changes nothing.
 *   fetch    the value, pinned to that version, where it did not come along.
 *
 * A read with a pin is only the last of these: whoever holds that version will do, for a version
 * never changes. A read that takes one replica's word is read_one.c.
 */
#include "common/read.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/*
 * Of a value that is wanted whole, however large, so much is asked for at first; where there is
 * more, that is fetched in the time that it is given then.
 */
#define READ_ALL_FIRST MEMORY_BLOB_MAX

static void read_try(struct read_op *rd);
static void on_read_answer(struct round *r, struct leg *leg);

static void read_free(struct read_op *rd)
{
    free(rd->nodes);
    free(rd->told);
    free(rd->left);
    free(rd->lives);
    free(rd->answered);
    free(rd);
}

/* Of a READ that has been answered: what it saw, or did not look at, is cared for afterwards. */
static void read_repair(struct read_op *rd, struct ballot version, uint64_t size)
{
    struct span key = buf_span(&rd->op.key);

    if (rd->mend)
        background_mend(rd->op.c, key, size);
    else if (rd->n_left > 0)
        background_check(rd->op.c, key, version, size, rd->left, rd->n_left);
}

void read_finish(struct read_op *rd, int err)
{
    const struct record *rec = &rd->res.rec.rec;
    struct ballot version = rec->version;
    uint64_t size = rec->size;

    rd->res.err = err;
    if (err < 0)
        value_fini(&rd->res.value);
    rd->done(rd->arg, &rd->res); /* may take the record away */
    read_result_fini(&rd->res);
    if (err == 0 && ballot_is_none(rd->pin))
        read_repair(rd, version, size);
    op_fini(&rd->op);
    read_free(rd);
}

void read_result_fini(struct read_result *r)
{
    record_copy_fini(&r->rec);
    value_fini(&r->value);
    buf_fini(&r->child_key);
}

static void read_end(struct op *op, int err)
{
    struct read_op *rd = container_of(op, struct read_op, op);

    if (op->round != NULL && rd->res.why.msg[0] == '\0')
        round_explain(op->round, &rd->res.why);
    if (err == -ETIMEDOUT)
        err = -EHOSTDOWN;
    if (rd->sub == NULL) {
        read_finish(rd, err);
        return;
    }
    rd->ending = err;
    op->deadline_us = UINT64_MAX;
    op->cancelled = false;
    op_wake_at(op, UINT64_MAX);
    op_cancel(rd->sub);
}

/*
 * The round cannot succeed: remember why, and try again after a pause unless trying is in vain.
 *
 * Where damage is in the way, that is mended meanwhile, as far as it can be; and a replica whose
 * value alone is bad can still tell its version: at once, first the versions, and then the bytes
 * from whoever has them whole.
 */
static void read_retry(struct read_op *rd)
{
    int err = -EHOSTDOWN;
    bool damaged = false;

    if (rd->op.round != NULL) {
        round_explain(rd->op.round, &rd->res.why);
        err = round_verdict(rd->op.round);
        damaged = rd->op.round->on_answer == on_read_answer && round_found_damage(rd->op.round);
    }
    if (damaged)
        background_mend(rd->op.c, buf_span(&rd->op.key), 0);
    round_drop(&rd->op);
    if (err != -EHOSTDOWN) {
        read_finish(rd, err);
        return;
    }
    if (rd->from == READ_ONE_IN_NEED && !read_majority_is_fit(rd->op.c, buf_span(&rd->op.key))) {
        read_one(rd);
        return;
    }
    if (damaged && rd->want_value && !rd->apart) {
        rd->apart = true;
        read_try(rd);
        return;
    }
    op_needs(&rd->op, OP_OF_KEY); /* whether a version that nobody has is gone only they can say */
    op_wake_at(&rd->op,
               transport_now_us(rd->op.c->opts.transport) + op_backoff_us(&rd->op, rd->tries++));
}

bool read_leg_counts(const struct round *r, unsigned i)
{
    const struct leg *leg = &r->legs[i];

    if (!leg->ended || leg->err != 0 || leg->ans.kind != ANS_STATE)
        return false;
    return i >= r->n_votes || tally_of(&r->tally, i) == VOTE_YES;
}

/* --- fetch: the value of a known version ------------------------------------------------------ */

static void on_fetched(void *arg, struct read_result *got)
{
    struct read_op *rd = arg;
    int err = got->err;

    rd->sub = NULL;
    if (err == 0 && !span_eq(got->rec.rec.sums, rd->res.rec.rec.sums))
        err = err_set(&got->why, -EBADMSG, "replicas have different values under one version");
    if (rd->ending != 0) {
        read_finish(rd, rd->ending);
        return;
    }
    if (err < 0) {
        rd->res.why = got->why;
        if (err == -ESTALE) /* replaced meanwhile: the newer one is as good an answer */
            read_retry(rd);
        else
            read_finish(rd, err);
        return;
    }
    value_fini(&rd->res.value);
    rd->res.value = got->value;
    rd->res.value_offset = got->value_offset;
    got->value = (struct value){0};
    rd->after_fetch(rd);
}

static void read_fetch(struct read_op *rd, uint64_t offset, uint64_t length,
                       void (*then)(struct read_op *))
{
    struct read_args args = {
        .key = buf_span(&rd->op.key),
        .want_value = true,
        .offset = offset,
        .length = length,
        .pin = rd->res.rec.rec.version,
        .timeout_ms = op_left_ms(&rd->op),
    };

    round_drop(&rd->op);
    op_wake_at(&rd->op, UINT64_MAX); /* no more hedging: the fetch does that */
    rd->after_fetch = then;
    rd->sub = client_read(rd->op.c, &args, on_fetched, rd);
    if (rd->sub == NULL)
        read_finish(rd, -ENOMEM);
}

/* More bytes are to travel than was known: the timeout will do for a few MiB. */
static void read_plan(struct read_op *rd, uint64_t size)
{
    if (size > MEMORY_BLOB_MAX)
        op_add_bytes(&rd->op, size);
}

/* Is every wanted byte of the value in res.value? */
static bool value_at_hand(const struct read_op *rd)
{
    const struct record *rec = &rd->res.rec.rec;
    uint64_t end = rd->length > rec->size - rd->offset ? rec->size : rd->offset + rd->length;

    return rd->res.value.data != NULL && rd->res.value_offset <= rd->offset &&
           rd->res.value_offset + rd->res.value.len >= end;
}

void read_settled(struct read_op *rd)
{
    const struct record *rec = &rd->res.rec.rec;

    if (!rd->want_value || !record_is_live(rec) || rd->offset >= rec->size || rd->length == 0) {
        value_fini(&rd->res.value);
        read_peek(rd);
    } else if (value_at_hand(rd)) {
        read_peek(rd);
    } else {
        uint64_t left = rec->size - rd->offset;

        if (rd->length == READ_ALL)
            read_plan(rd, left);
        read_fetch(rd, rd->offset, rd->length < left ? rd->length : left, read_peek);
    }
}

/* --- mend: bring those that are behind to the newest ------------------------------------------ */

static int edit_nothing(void *ctx, const struct record *cur, struct value cur_value,
                        struct draft *next)
{
    (void)ctx, (void)cur, (void)cur_value, (void)next;
    return -ECANCELED;
}

static void on_nothing_written(void *arg, struct write_result *res)
{
    struct read_op *rd = arg;

    rd->sub = NULL;
    if (rd->ending != 0) {
        read_finish(rd, rd->ending);
        return;
    }
    if (res->err != -ECANCELED) {
        rd->res.why = res->why;
        read_finish(rd, res->err);
        return;
    }
    record_copy_fini(&rd->res.rec);
    rd->res.rec = res->rec;
    res->rec = (struct record_copy){0};
    value_fini(&rd->res.value); /* of the version that was superseded */
    read_settled(rd);
}

/* A newer ballot is about: only a round of our own can settle what it left. */
static void read_settle_by_write(struct read_op *rd)
{
    struct write_args args = {
        .key = buf_span(&rd->op.key), .edit = edit_nothing, .timeout_ms = op_left_ms(&rd->op)};

    round_drop(&rd->op);
    rd->sub = client_write(rd->op.c, &args, on_nothing_written, rd);
    if (rd->sub == NULL)
        read_finish(rd, -ENOMEM);
}

static void on_mended(struct round *r, struct leg *leg)
{
    struct read_op *rd = container_of(r->op, struct read_op, op);

    (void)leg;
    if (tally_state(&r->tally) != TALLY_WAIT)
        op_wake_at(&rd->op, UINT64_MAX);
    switch (tally_state(&r->tally)) {
    case TALLY_MET:
        read_settled(rd);
        break;
    case TALLY_LOST:
        if (tally_count(&r->tally, VOTE_NO) > 0)
            read_settle_by_write(rd);
        else
            read_retry(rd);
        break;
    case TALLY_WAIT:
        break;
    }
}

static void read_mend(struct read_op *rd)
{
    const struct record *rec = &rd->res.rec.rec;
    struct op *op = &rd->op;
    struct message m = {.kind = MSG_ACCEPT, .record = *rec};
    unsigned n = rd->n_behind + rd->n_agree;
    struct round *r;

    if (rec->size > 0 && (rd->res.value.data == NULL || rd->res.value.len != rec->size)) {
        read_plan(rd, 2 * rec->size); /* here, and to those that lack them */
        read_fetch(rd, 0, rec->size, read_mend);
        return;
    }
    r = round_new(op, buf_span(&op->key), rd->told, n, n, ring_majority(op->c->opts.ring),
                  on_mended);
    if (r == NULL) {
        read_finish(rd, -ENOMEM);
        return;
    }
    if (rec->size > 0)
        r->body = value_ref(rd->res.value);
    for (unsigned i = 0; i < rd->n_behind; i++)
        round_send(r, i, &m);
    /* They count, unless it turns out now that one has lost its disk since. */
    for (unsigned i = rd->n_behind; i < n; i++)
        round_agreed(r, i, rd->lives[i]);
    op_wake_at(&rd->op, round_slow_us(r));
}

/* --- ask -------------------------------------------------------------------------------------- */

/* Sorts who answered the round into told. Returns one that brought the value, or NULL. */
static const struct leg *read_sort_answers(struct read_op *rd, const struct round *r,
                                           struct ballot newest)
{
    const struct leg *with_value = NULL;

    rd->n_behind = rd->n_agree = 0;
    for (unsigned i = 0; i < r->n_votes; i++) {
        const struct leg *leg = &r->legs[i];

        if (tally_of(&r->tally, i) == VOTE_YES && ballot_cmp(leg->ans.record.version, newest) != 0)
            rd->told[rd->n_behind++] = leg->node;
    }
    for (unsigned i = 0; i < r->n_votes; i++) {
        const struct leg *leg = &r->legs[i];
        unsigned at = rd->n_behind + rd->n_agree;

        if (tally_of(&r->tally, i) != VOTE_YES || ballot_cmp(leg->ans.record.version, newest) != 0)
            continue;
        rd->told[at] = leg->node;
        rd->lives[at] = leg->ans.incarnation;
        rd->n_agree++;
        if (leg->ans.has_value)
            with_value = leg;
    }
    return with_value;
}

static void on_late_answer(struct round *r, struct leg *leg)
{
    bool votes = leg < r->legs + r->n_votes; /* the others have nothing of the key */

    if (votes && background_is_behind(leg, r->late_version))
        background_mend(r->c, buf_span(&r->key), r->late_size);
}

/* Who lacks the newest version, or may lack it, beyond those that this READ will mend itself. */
static void read_note_others(struct read_op *rd, struct round *r, const struct record *newest)
{
    rd->n_left = 0;
    rd->mend = rd->apart || (rd->n_behind > 0 && rd->n_agree >= r->tally.need);
    for (unsigned i = 0; i < r->n_votes; i++) {
        const struct leg *leg = &r->legs[i];

        if (!leg->sent)
            rd->left[rd->n_left++] = leg->node;
        else if (leg->ended && is_damage(leg->err))
            rd->mend = true;
    }
    r->late_version = newest->version;
    r->late_size = newest->size;
    r->on_late = on_late_answer;
}

/* A majority of the replicas has answered: which version is it? */
static void read_decide(struct read_op *rd, struct round *r)
{
    const struct leg *top = NULL, *with_value = NULL;
    int err;

    for (unsigned i = 0; i < r->n_votes; i++) {
        const struct leg *leg = &r->legs[i];

        if (tally_of(&r->tally, i) != VOTE_YES)
            continue;
        client_saw(rd->op.c, leg->ans.record.version);
        if (top == NULL || ballot_cmp(leg->ans.record.version, top->ans.record.version) > 0)
            top = leg;
    }
    op_wake_at(&rd->op, UINT64_MAX); /* no more hedging */
    with_value = read_sort_answers(rd, r, top->ans.record.version);
    read_note_others(rd, r, &top->ans.record);
    rd->res.followed = round_followed(r);
    record_copy_fini(&rd->res.rec);
    err = record_copy(&top->ans.record, &rd->res.rec);
    if (err == 0 && rd->peek)
        err = read_note_children(rd, r);
    if (err < 0) {
        read_finish(rd, err);
        return;
    }
    value_fini(&rd->res.value);
    if (with_value != NULL && span_eq(with_value->ans.record.sums, rd->res.rec.rec.sums)) {
        rd->res.value = value_ref(with_value->value);
        rd->res.value_offset = with_value->ans.value_offset;
    }
    if (ballot_is_none(rd->res.rec.rec.version) || rd->n_agree >= r->tally.need)
        read_settled(rd);
    else
        read_mend(rd);
}

/* Did the leg bring the value of a version that no other answer surpasses? */
static bool leg_brought_newest(const struct round *r, const struct leg *leg)
{
    if (leg->err != 0 || !leg->ans.has_value)
        return false;
    for (unsigned i = 0; i < r->n_votes; i++)
        if (tally_of(&r->tally, i) == VOTE_YES &&
            ballot_cmp(r->legs[i].ans.record.version, leg->ans.record.version) > 0)
            return false;
    return true;
}

/*
 * The value is asked of one replica; of another only when that one failed, is behind, or is slow
 * (`hurry`).
 */
void read_send(struct read_op *rd, struct round *r, unsigned i, bool hurry)
{
    struct message m = {.kind = MSG_READ, .pin = rd->pin};
    const struct leg *asked = &r->legs[rd->value_leg];
    bool coming = asked->sent && (asked->ended ? leg_brought_newest(r, asked) : !hurry);

    if (rd->want_value && !rd->apart && i < r->n_votes && !coming) {
        m.flags |= MSG_WANT_VALUE;
        m.offset = rd->offset;
        m.length = rd->first_length;
        rd->value_leg = i;
    }
    if (rd->peek)
        m.flags |= MSG_PEEK;
    round_send(r, i, &m);
}

/*
 * Do those that answered (and, with `pending`, those that still may) hold a majority of every
 * replica set?
 */
static bool read_covered(struct read_op *rd, const struct round *r, bool pending)
{
    const struct ring *ring = rd->op.c->opts.ring;

    if (!rd->peek)
        return true;
    memset(rd->answered, 0, ring_n_nodes(ring) * sizeof *rd->answered);
    for (unsigned i = 0; i < r->n; i++)
        rd->answered[r->legs[i].node] =
            read_leg_counts(r, i) || (pending && r->legs[i].sent && !r->legs[i].ended);
    return ring_covered(ring, rd->answered);
}

/*
 * Sends to as many more as are needed for the round to succeed without any of those that failed.
 * False: there are not enough.
 */
static bool read_top_up(struct read_op *rd, struct round *r)
{
    unsigned i = round_next(r);

    while (tally_count(&r->tally, VOTE_YES) + tally_count(&r->tally, VOTE_ASKED) < r->tally.need) {
        if (i >= r->n_votes)
            return false;
        read_send(rd, r, i++, false);
    }
    while (!read_covered(rd, r, true)) {
        if (i >= r->n)
            return false;
        read_send(rd, r, i++, false);
    }
    return true;
}

/* How many of those that answered name the newest version? */
static unsigned count_newest(const struct round *r)
{
    struct ballot newest = {0};
    unsigned n = 0;

    for (unsigned i = 0; i < r->n_votes; i++) {
        int cmp;

        if (tally_of(&r->tally, i) != VOTE_YES)
            continue;
        cmp = ballot_cmp(r->legs[i].ans.record.version, newest);
        if (cmp > 0) {
            newest = r->legs[i].ans.record.version;
            n = 1;
        } else if (cmp == 0) {
            n++;
        }
    }
    return n;
}

/*
 * A majority answered and does not agree: asks the replicas that were not asked yet. True: wait,
 * until it is longer than usual for them; they may make a majority of those that hold the newest.
 */
static bool read_ask_rest(struct read_op *rd, struct round *r)
{
    struct health *health = rd->op.c->opts.health;
    unsigned n = count_newest(r), n_may = 0;

    for (unsigned i = 0; i < r->n_votes; i++)
        n_may += !r->legs[i].ended && health_fit(health, r->legs[i].node);
    if (n >= r->tally.need || n + n_may < r->tally.need)
        return false;
    for (unsigned i = 0; i < r->n_votes; i++)
        if (!r->legs[i].sent && health_fit(health, r->legs[i].node))
            read_send(rd, r, i, false);
    op_wake_at(&rd->op, round_hedge_us(r));
    return true;
}

/* Enough have answered to decide it. */
static bool read_is_met(struct read_op *rd, const struct round *r)
{
    return tally_state(&r->tally) == TALLY_MET && read_covered(rd, r, false);
}

/* When the slowest of those asked has taken longer than usual, the next is asked as well. */
static void on_read_answer(struct round *r, struct leg *leg)
{
    struct read_op *rd = container_of(r->op, struct read_op, op);

    (void)leg;
    if (read_is_met(rd, r)) {
        if (!read_ask_rest(rd, r))
            read_decide(rd, r);
    } else if (!read_top_up(rd, r) && !round_damage_awaited(r)) {
        read_retry(rd);
    }
}

/* Did the leg bring all of the value that is wanted of the record? */
static bool leg_has_wanted(const struct read_op *rd, const struct leg *leg)
{
    uint64_t size = leg->ans.record.size, from = leg->ans.value_offset, left;

    if (!rd->want_value || rd->offset >= size)
        return true;
    left = size - rd->offset;
    return leg->ans.has_value && from <= rd->offset &&
           from + leg->value.len >=
               rd->offset + (rd->first_length < left ? rd->first_length : left);
}

/* Of a pinned read: the first that holds the version, and all that is wanted of it, will do. */
static void on_pinned_answer(struct round *r, struct leg *leg)
{
    struct read_op *rd = container_of(r->op, struct read_op, op);
    unsigned next = round_next(r);
    int err;

    if (leg->err == 0 && leg->ans.kind == ANS_STATE &&
        ballot_cmp(leg->ans.record.version, rd->pin) == 0 && leg_has_wanted(rd, leg)) {
        err = record_copy(&leg->ans.record, &rd->res.rec);
        if (err == 0 && leg->ans.has_value) {
            rd->res.value = value_ref(leg->value);
            rd->res.value_offset = leg->ans.value_offset;
        }
        if (err == 0)
            read_settled(rd);
        else
            read_finish(rd, err);
    } else if (next < r->n) {
        read_send(rd, r, next, true);
    } else if (round_pending(r) == 0) {
        if (tally_count(&r->tally, VOTE_YES) >= ring_majority(rd->op.c->opts.ring))
            read_finish(rd, -ESTALE);
        else
            read_retry(rd);
    } else {
        op_wake_at(&rd->op, round_slow_us(r));
    }
}

/* In need one looks again when those that were asked would count as down. */
static void read_hedge_later(struct read_op *rd, struct round *r)
{
    uint64_t slow_us = round_slow_us(r);

    round_hedge_later(r);
    if (rd->from == READ_ONE_IN_NEED && rd->op.wake_us == UINT64_MAX &&
        slow_us > transport_now_us(rd->op.c->opts.transport))
        op_wake_at(&rd->op, slow_us);
}

static void read_try(struct read_op *rd)
{
    struct op *op = &rd->op;
    const struct ring *ring = op->c->opts.ring;
    bool pinned = !ballot_is_none(rd->pin);
    struct round *r;

    client_order(op->c, buf_span(&op->key), rd->nodes);
    rd->value_leg = 0;
    rd->res.lone = false;
    r = round_new(op, buf_span(&op->key), rd->nodes, rd->n_nodes, rd->n_replicas,
                  pinned ? 1 : ring_majority(ring), pinned ? on_pinned_answer : on_read_answer);
    if (r == NULL) {
        op_fail_soon(op, -ENOMEM);
        return;
    }
    (void)read_top_up(rd, r); /* there are enough: nobody was asked yet */
    read_hedge_later(rd, r);
}

static void read_wake(struct op *op)
{
    struct read_op *rd = container_of(op, struct read_op, op);
    struct round *r = op->round;

    if (read_one_wake(rd))
        return;
    if (r == NULL) {
        read_try(rd);
    } else if (r->on_answer == on_read_answer && read_is_met(rd, r)) {
        read_decide(rd, r);
    } else if (rd->from == READ_ONE_IN_NEED && !read_majority_is_fit(op->c, buf_span(&op->key))) {
        read_one(rd);
    } else if (round_next(r) < r->n) {
        read_send(rd, r, round_next(r), true);
        read_hedge_later(rd, r);
    } else if (r->on_answer == on_mended) {
        read_retry(rd);
    } else if (r->on_answer == on_pinned_answer &&
               tally_count(&r->tally, VOTE_YES) >= ring_majority(op->c->opts.ring)) {
        read_finish(rd, -ESTALE); /* who still has it is silent, and a majority has not */
    }
}

struct op *client_read(struct client *c, const struct read_args *args, read_done_fn *done,
                       void *arg)
{
    const struct ring *ring = c->opts.ring;
    struct read_op *rd = calloc(1, sizeof *rd);
    unsigned n = ring_n_replicas(ring), all = ring_n_nodes(ring);
    uint64_t size = args->want_value && args->length != READ_ALL ? args->length : 0;
    bool one = args->from != READ_MAJORITY && ballot_is_none(args->pin) &&
               (args->from == READ_ONE || !read_majority_is_fit(c, args->key)),
         alone = one || !ballot_is_none(args->pin);

    if (rd == NULL)
        return NULL;
    rd->nodes = calloc(all, sizeof *rd->nodes);
    rd->told = calloc(n, sizeof *rd->told);
    rd->left = calloc(n, sizeof *rd->left);
    rd->lives = calloc(n, sizeof *rd->lives);
    rd->answered = calloc(all, sizeof *rd->answered);
    if (rd->nodes == NULL || rd->told == NULL || rd->left == NULL || rd->lives == NULL ||
        rd->answered == NULL ||
        op_init(&rd->op, c, args->key, alone ? OP_OF_REPLICA : OP_OF_KEY, args->timeout_ms, size) <
            0) {
        read_free(rd);
        return NULL;
    }
    rd->want_value = args->want_value && args->length > 0;
    rd->offset = args->offset;
    rd->length = args->length;
    rd->first_length = args->length == READ_ALL ? READ_ALL_FIRST : args->length;
    rd->peek = args->peek;
    rd->pin = args->pin;
    rd->from = ballot_is_none(args->pin) ? args->from : READ_MAJORITY;
    rd->at_least = args->at_least;
    rd->done = done;
    rd->arg = arg;
    rd->op.on_end = read_end;
    rd->op.on_wake = read_wake;
    rd->n_replicas = rd->n_nodes = n;
    if (rd->peek) {
        for (unsigned i = 0; i < all; i++)
            if (!ring_is_replica(ring, args->key, i))
                rd->nodes[rd->n_nodes++] = i;
    }
    if (one)
        read_one(rd);
    else
        read_try(rd);
    return &rd->op;
}

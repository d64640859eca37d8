/*
 * listing.c - listings merged from the nodes: complete and settled, or an error.
 *
 * Every node lists what it holds; it suffices to hear as many as hold a majority of every replica
 * set (ring_covered). Each tells its keys in order up to some point; up to the least of these
 * points, the horizon, the merge knows of every key what each of its answering replicas has,
 * including nothing, or damage. What a majority of its replicas agree on is shown or left out at
 * once. All else is settled first: a key by a READ, a common prefix (whose nodes may each know
 * another key below it) by a small listing of its own, without roll-up.
 *
 *   ask -> page (merge into items, in order) -> settle the doubtful items, several at once -> emit;
 *   again, until the limit is met or the page has become long.
 */
#include "common/listing.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define SETTLE_PARALLEL_MAX 16u
#define ASK_GROWTH 4u /* of the names asked for, from page to page */

static void list_page_done(struct list_op *l);

void list_result_fini(struct list_result *r)
{
    buf_fini(&r->entries);
    buf_fini(&r->next);
}

static void items_clear(struct list_op *l)
{
    for (unsigned i = 0; i < l->n_items; i++)
        buf_fini(&l->items[i].bytes);
    l->n_items = l->next_item = 0;
}

static void list_finish(struct list_op *l, int err)
{
    l->res.err = err;
    l->done(l->arg, &l->res);
    list_result_fini(&l->res);
    items_clear(l);
    op_fini(&l->op);
    buf_fini(&l->after);
    free(l->items);
    free(l->sources);
    free(l->nodes);
    free(l->answered);
    free(l);
}

static void list_end(struct op *op, int err)
{
    struct list_op *l = container_of(op, struct list_op, op);

    if (op->round != NULL && !l->merging)
        round_explain(op->round, &l->res.why);
    if (err == -ETIMEDOUT)
        err = -EHOSTDOWN;
    if (l->n_subs == 0) {
        list_finish(l, err);
        return;
    }
    l->ending = err;
    op->deadline_us = UINT64_MAX;
    op->cancelled = false;
    op_wake_at(op, UINT64_MAX);
    for (unsigned i = 0; i < l->n_items; i++)
        if (l->items[i].sub != NULL)
            op_cancel(l->items[i].sub);
}

/*
 * Why the nodes cannot be brought to cover the ring, where trying again is in vain: without those
 * that fail for good no majority is left of some replica set. Else -EHOSTDOWN.
 */
static int list_verdict(struct list_op *l)
{
    const struct round *r = l->op.round;
    int first = 0;

    for (unsigned i = 0; i < r->n; i++) {
        int err = round_lasting_err(r, i);

        l->answered[r->legs[i].node] = err == 0;
        first = first != 0 ? first : err;
    }
    return ring_covered(l->op.c->opts.ring, l->answered) ? -EHOSTDOWN : first;
}

static void list_retry(struct list_op *l)
{
    struct op *op = &l->op;
    int err = list_verdict(l);

    round_explain(op->round, &l->res.why);
    round_drop(op);
    if (err != -EHOSTDOWN) {
        list_finish(l, err);
        return;
    }
    op_wake_at(op, transport_now_us(op->c->opts.transport) + op_backoff_us(op, l->tries++));
}

/* --- settle ----------------------------------------------------------------------------------- */

static void item_show(struct item *item, const struct entry *e)
{
    struct buf bytes = {0};

    entry_encode(&bytes, e); /* before what e borrows from goes */
    buf_fini(&item->bytes);
    item->bytes = bytes;
    item->state = ITEM_SHOW;
}

static void list_settle_next(struct list_op *l);

/* A settling has ended. */
static void item_settled(struct item *item, int err, const struct err *why)
{
    struct list_op *l = item->list;

    item->sub = NULL;
    l->n_subs--;
    if (err == 0)
        err = item->bytes.err;
    if (err < 0 && l->ending == 0) {
        l->res.why = *why;
        list_end(&l->op, err); /* cancels the other settlings, and finishes when they are over */
        return;
    }
    if (l->ending != 0) {
        if (l->n_subs == 0)
            list_finish(l, l->ending);
        return;
    }
    list_settle_next(l);
}

static void on_key_settled(void *arg, struct read_result *res)
{
    struct item *item = arg;
    struct entry e;

    item->list->res.followed &= res->err == 0 && res->followed;
    if (res->err == 0 && record_is_live(&res->rec.rec)) {
        entry_of_record(&e, buf_span(&item->bytes), &res->rec.rec);
        item_show(item, &e);
    } else if (res->err == 0) {
        item->state = ITEM_GONE;
    } else if (item->damaged && (res->err == -EBADMSG || res->err == -EHOSTDOWN)) {
        /* no reason to hide all other keys */
        e = (struct entry){.key = buf_span(&item->bytes), .flags = ENTRY_DAMAGED};
        item_show(item, &e);
        res->err = 0;
    }
    item_settled(item, res->err, &res->why);
}

static void on_prefix_settled(void *arg, struct list_result *res)
{
    struct item *item = arg;
    struct cursor c = cursor_of(buf_span(&res->entries));
    struct entry e;
    int err = res->err;

    item->list->res.followed &= res->followed;
    if (err == 0 && res->n == 0) {
        item->state = ITEM_GONE;
    } else if (err == 0) {
        if (entry_next(&c, &e) == 1) {
            e.prefix_len = (uint32_t)item->bytes.len;
            item_show(item, &e);
        } else {
            err = -EBADMSG;
        }
    }
    item_settled(item, err, &res->why);
}

/* Starts as many settlings as may run side by side; with none left, the page is done. */
static void list_settle_next(struct list_op *l)
{
    while (l->next_item < l->n_items && l->n_subs < SETTLE_PARALLEL_MAX) {
        struct item *item = &l->items[l->next_item++];

        if (item->state != ITEM_DOUBTFUL)
            continue;
        if (item->is_prefix) {
            struct list_args args = {
                .prefix = buf_span(&item->bytes), .limit = 1, .timeout_ms = op_left_ms(&l->op)};

            item->sub = client_list(l->op.c, &args, on_prefix_settled, item);
        } else {
            struct read_args args = {.key = buf_span(&item->bytes),
                                     .timeout_ms = op_left_ms(&l->op)};

            if (item->damaged) /* it may be healed in time; but the listing is to end well */
                args.timeout_ms = (args.timeout_ms + 1) / 2;
            item->sub = client_read(l->op.c, &args, on_key_settled, item);
        }
        if (item->sub == NULL) {
            list_end(&l->op, -ENOMEM);
            return;
        }
        l->n_subs++;
    }
    if (l->n_subs == 0)
        list_page_done(l);
}

static void list_ask(struct list_op *l);

/*
 * All items are decided: they go into the result. One above the limit only tells that there is
 * more.
 */
static void list_page_done(struct list_op *l)
{
    round_drop(&l->op);
    for (unsigned i = 0; i < l->n_items; i++) {
        struct item *item = &l->items[i];
        struct cursor c = cursor_of(buf_span(&item->bytes));
        struct entry e;

        if (item->state != ITEM_SHOW)
            continue;
        if (l->res.n == l->limit) {
            l->res.more = true;
            list_finish(l, 0);
            return;
        }
        if (entry_next(&c, &e) != 1) {
            list_finish(l, -EBADMSG);
            return;
        }
        buf_add(&l->res.entries, item->bytes.data, item->bytes.len);
        buf_clear(&l->res.next);
        buf_add_span(&l->res.next, list_entry_name(&e));
        l->res.n++;
    }
    items_clear(l);
    if (l->res.entries.err != 0 || l->res.next.err != 0)
        list_finish(l, -ENOMEM);
    else if (!l->exhausted && l->res.entries.len < LIST_LEN_MAX) {
        l->ask *= l->ask < LIST_LIMIT_MAX ? ASK_GROWTH : 1; /* deleted keys may go on for long */
        list_ask(l);
    } else {
        l->res.more = !l->exhausted;
        list_finish(l, 0);
    }
}

/* --- ask -------------------------------------------------------------------------------------- */

/* How many bytes of a key are the prefix under which it is listed; 0: the key itself is. */
static size_t rolled_up_len(const struct list_op *l, struct span key)
{
    const uint8_t *slash = NULL;
    size_t n = l->op.key.len;

    if (l->delimiter && key.len > n)
        slash = memchr(key.data + n, '/', key.len - n);
    return slash != NULL ? (size_t)(slash + 1 - key.data) : 0;
}

/*
 * Is it a page of what was asked for: names below the prefix, each behind the one before and all
 * behind l->after, rolled up as they should be, as many as it says? What a merge makes of another
 * one would be out of order, or never get on.
 */
static bool page_is_sound(const struct list_op *l, const struct leg *leg)
{
    struct cursor c = cursor_of(value_span(leg->value));
    struct span last = buf_span(&l->after);
    struct entry e;
    uint32_t n = 0;
    int more;

    for (; (more = entry_next(&c, &e)) == 1; n++) {
        if (!span_has_prefix(e.key, buf_span(&l->op.key)) ||
            e.prefix_len != rolled_up_len(l, e.key) || span_cmp(list_entry_name(&e), last) <= 0)
            return false;
        last = list_entry_name(&e);
    }
    return more == 0 && n == leg->ans.n_entries && (n > 0 || !leg->ans.more);
}

static bool leg_lists(const struct round *r, unsigned i)
{
    return tally_of(&r->tally, i) == VOTE_YES && r->legs[i].ans.kind == ANS_LIST &&
           r->legs[i].err == 0;
}

static bool list_covered(struct list_op *l, const struct round *r, bool pending)
{
    memset(l->answered, 0, l->n_nodes * sizeof *l->answered);
    for (unsigned i = 0; i < r->n; i++)
        l->answered[r->legs[i].node] =
            leg_lists(r, i) || (pending && r->legs[i].sent && !r->legs[i].ended);
    return ring_covered(l->op.c->opts.ring, l->answered);
}

static void list_send(struct list_op *l, struct round *r, unsigned i)
{
    struct message m = {
        .kind = MSG_LIST,
        .flags = l->delimiter ? MSG_DELIMITER : 0,
        .start_after = buf_span(&l->after),
        .limit = l->ask > LIST_LIMIT_MAX ? LIST_LIMIT_MAX : l->ask,
    };

    round_send(r, i, &m);
}

static bool list_top_up(struct list_op *l, struct round *r)
{
    for (unsigned i = round_next(r); !list_covered(l, r, true); i++) {
        if (i >= r->n)
            return false;
        list_send(l, r, i);
    }
    return true;
}

static int list_page(struct list_op *l, struct round *r)
{
    int err = 0;

    l->res.followed &= round_followed(r);
    l->merging = true;
    op_wake_at(&l->op, UINT64_MAX);
    l->n_sources = 0;
    for (unsigned i = 0; i < r->n && err == 0; i++) {
        struct source *s = &l->sources[l->n_sources];

        if (!leg_lists(r, i))
            continue;
        l->n_sources++;
        s->node = r->legs[i].node;
        s->more = r->legs[i].ans.more;
        s->n_left = r->legs[i].ans.n_entries;
        s->cursor = cursor_of(value_span(r->legs[i].value));
        err = list_source_next(s);
        if (err == 0 && !s->have && s->more)
            err = -EBADMSG; /* more, but nothing: it would never get on */
    }
    return err == 0 ? list_merge(l) : err;
}

static void on_list_answer(struct round *r, struct leg *leg)
{
    struct list_op *l = container_of(r->op, struct list_op, op);
    int err;

    if (l->merging)
        return;
    if (leg->err == 0 && !page_is_sound(l, leg))
        leg->err = -EPROTO; /* another node is asked in its place */
    if (list_covered(l, r, false)) {
        err = list_page(l, r);
        if (err < 0)
            list_finish(l, err);
        else
            list_settle_next(l);
    } else if (!list_top_up(l, r)) {
        list_retry(l);
    }
}

/* Those thought to be up and whole first, from a random one on, so that the work is shared. */
static void list_order(struct list_op *l)
{
    unsigned start = (unsigned)(client_random(l->op.c) % l->n_nodes), at = 0;
    bool *up = l->answered; /* sampled once: other loops change it meanwhile */

    for (unsigned i = 0; i < l->n_nodes; i++)
        up[i] = health_fit(l->op.c->opts.health, i);
    for (unsigned i = 0; i < l->n_nodes; i++)
        if (up[(start + i) % l->n_nodes])
            l->nodes[at++] = (start + i) % l->n_nodes;
    for (unsigned i = 0; i < l->n_nodes; i++)
        if (!up[(start + i) % l->n_nodes])
            l->nodes[at++] = (start + i) % l->n_nodes;
}

static void list_ask(struct list_op *l)
{
    struct op *op = &l->op;
    struct round *r;

    list_order(l);
    r = round_new(op, buf_span(&op->key), l->nodes, l->n_nodes, l->n_nodes,
                  ring_majority(op->c->opts.ring), on_list_answer);
    if (r == NULL) {
        op_fail_soon(op, -ENOMEM);
        return;
    }
    l->merging = false;
    (void)list_top_up(l, r); /* all nodes together cover the ring */
    round_hedge_later(r);
}

static void list_wake(struct op *op)
{
    struct list_op *l = container_of(op, struct list_op, op);
    struct round *r = op->round;

    if (r == NULL) {
        list_ask(l);
    } else if (!l->merging && round_next(r) < r->n) {
        list_send(l, r, round_next(r));
        round_hedge_later(r);
    }
}

struct op *client_list(struct client *c, const struct list_args *args, list_done_fn *done,
                       void *arg)
{
    struct list_op *l = calloc(1, sizeof *l);
    unsigned n = ring_n_nodes(c->opts.ring);

    assert(args->limit >= 1 && args->limit <= LIST_LIMIT_MAX);
    if (l == NULL)
        return NULL;
    l->nodes = calloc(n, sizeof *l->nodes);
    l->answered = calloc(n, sizeof *l->answered);
    l->sources = calloc(n, sizeof *l->sources);
    l->items = calloc(args->limit + 1, sizeof *l->items);
    buf_add_span(&l->after, args->start_after);
    if (l->nodes == NULL || l->answered == NULL || l->sources == NULL || l->items == NULL ||
        l->after.err != 0 ||
        op_init(&l->op, c, args->prefix, OP_OF_RING, args->timeout_ms, 0) < 0) {
        free(l->nodes);
        free(l->answered);
        free(l->sources);
        free(l->items);
        buf_fini(&l->after);
        free(l);
        return NULL;
    }
    l->n_nodes = n;
    l->delimiter = args->delimiter;
    l->limit = args->limit;
    l->ask = args->limit + 1;
    l->done = done;
    l->arg = arg;
    l->res.followed = true;
    l->op.on_end = list_end;
    l->op.on_wake = list_wake;
    list_ask(l);
    return &l->op;
}

/*
 * rescue.c - one key, from the others to here.
 *
 *   fetch   READ of one replica, or a READ that the others settle
 *   store   ACCEPT with RESTORE to this node itself, which has it then whatever it promised. A
 *           large value that may be here already is not fetched before this node said that it is
 *           not.
 */
#include "node/rescue.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#define AGAIN_MIN_US 100000u
#define AGAIN_MAX_US 5000000u

struct rescue {
    const struct repair_part *part;
    struct rescue_opts opts;
    struct list link;
    struct buf key;
    struct rescue_plan plan;
    bool with_value; /* fetch it, whatever its size */
    uint64_t first_size;
    unsigned tries;
    int err; /* of the last try */
    struct timer timer;
    struct op *op;
    struct record_copy rec;
    struct value value;
};

static void rescue_fetch(struct rescue *r);

/* Last: the work may be over, and all freed. */
static void rescue_end(struct rescue *r)
{
    struct work *work = r->part->work;

    r->opts.done(r->opts.arg, r);
    assert(r->op == NULL);
    record_copy_fini(&r->rec);
    value_fini(&r->value);
    buf_fini(&r->key);
    free(r);
    work_end(work);
}

static void rescue_rest(struct rescue *r, int err)
{
    if (r->part->work->stopped) {
        rescue_end(r);
        return;
    }
    r->err = err;
    repair_timer_set(r->part, &r->timer,
                     repair_now_us(r->part) +
                         repair_backoff_us(r->tries++, AGAIN_MIN_US, AGAIN_MAX_US));
}

static void on_rested(struct timer *t)
{
    struct rescue *r = container_of(t, struct rescue, timer);

    r->opts.again(r->opts.arg, r, r->tries, r->err, &r->plan);
    if (r->plan.way == RESCUE_LOST)
        rescue_end(r);
    else if (r->plan.way == RESCUE_NOBODY)
        rescue_rest(r, r->err);
    else
        rescue_fetch(r);
}

/* --- storing ---------------------------------------------------------------------------------- */

static bool value_is_here(const struct rescue *r)
{
    return r->value.len == r->rec.rec.size;
}

static void on_stored(void *arg, struct ask_result *res)
{
    struct rescue *r = arg;

    r->op = NULL;
    if (r->part->work->stopped) {
        rescue_end(r);
    } else if (res->err < 0) {
        rescue_rest(r, res->err);
    } else if (res->answer->kind == ANS_NEED_VALUE && !value_is_here(r)) {
        r->with_value = true;
        rescue_fetch(r);
    } else { /* a refusal: something newer is here already */
        rescue_end(r);
    }
}

static void rescue_store(struct rescue *r)
{
    struct message m = {.kind = MSG_ACCEPT, .flags = MSG_RESTORE, .record = r->rec.rec};
    struct ask_args args = {
        .node = r->part->opts->self,
        .m = &m,
        .body = r->value,
        .timeout_ms = repair_timeout_ms(r->value.len),
    };

    m.key = buf_span(&r->key);
    if (!value_is_here(r)) {
        m.flags |= MSG_SAME_VALUE;
        m.pin = r->rec.rec.version;
        args.body = (struct value){0};
    }
    r->op = client_ask(r->part->opts->client, &args, on_stored, r);
    if (r->op == NULL)
        rescue_rest(r, -ENOMEM);
}

/* --- fetching --------------------------------------------------------------------------------- */

/* This is the record. Takes *value. */
static void rescue_take(struct rescue *r, const struct record *rec, struct value *value)
{
    int err;

    record_copy_fini(&r->rec);
    value_fini(&r->value);
    err = record_copy(rec, &r->rec);
    if (err < 0) {
        rescue_rest(r, err);
        return;
    }
    r->value = *value;
    *value = (struct value){0};
    if (ballot_is_none(rec->version)) {
        rescue_end(r); /* nobody has it any more */
    } else if (r->with_value && !value_is_here(r)) {
        /* It grew meanwhile: the part that was asked for is not all of it. */
        r->plan =
            (struct rescue_plan){.way = RESCUE_NEWEST, .source = r->plan.source, .size = rec->size};
        rescue_rest(r, -ESTALE);
    } else {
        rescue_store(r);
    }
}

static void on_fetched(void *arg, struct ask_result *res)
{
    struct rescue *r = arg;
    struct value value;

    r->op = NULL;
    if (r->part->work->stopped) {
        rescue_end(r);
    } else if (res->err < 0) {
        rescue_rest(r, res->err);
    } else if (r->plan.way == RESCUE_PINNED &&
               ballot_cmp(res->answer->record.version, r->plan.version) != 0) {
        rescue_rest(r, -ESTALE); /* written meanwhile */
    } else {
        value = value_ref(res->value);
        rescue_take(r, &res->answer->record, &value);
        value_fini(&value);
    }
}

static void on_settled(void *arg, struct read_result *res)
{
    struct rescue *r = arg;

    r->op = NULL;
    if (r->part->work->stopped)
        rescue_end(r);
    else if (res->err < 0)
        rescue_rest(r, res->err);
    else
        rescue_take(r, &res->rec.rec, &res->value);
}

static struct op *ask_source(struct rescue *r)
{
    struct message m = {.kind = MSG_READ, .key = buf_span(&r->key)};
    struct ask_args args = {.node = r->plan.source, .m = &m};

    if (r->plan.way == RESCUE_PINNED)
        m.pin = r->plan.version;
    if (r->with_value) {
        m.flags = MSG_WANT_VALUE;
        m.length = r->plan.size > 0 ? r->plan.size : READ_ALL;
    }
    args.timeout_ms = repair_timeout_ms(r->with_value ? r->plan.size : 0);
    return client_ask(r->part->opts->client, &args, on_fetched, r);
}

static struct op *ask_all(struct rescue *r)
{
    struct read_args args = {
        .key = buf_span(&r->key),
        .want_value = true,
        .length = READ_ALL,
        .timeout_ms = repair_timeout_ms(r->plan.size),
    };

    r->with_value = true;
    return client_read(r->part->opts->client, &args, on_settled, r);
}

static void rescue_fetch(struct rescue *r)
{
    r->op = r->plan.way == RESCUE_SETTLE ? ask_all(r) : ask_source(r);
    if (r->op == NULL)
        rescue_rest(r, -ENOMEM);
}

/* --- life ------------------------------------------------------------------------------------- */

int rescue_start(const struct rescue_opts *opts, struct rescue **out)
{
    struct rescue *r = calloc(1, sizeof(*r));

    if (r == NULL)
        return -ENOMEM;
    r->part = opts->part;
    r->opts = *opts;
    r->plan = opts->plan;
    r->first_size = opts->plan.size;
    r->with_value = opts->plan.size <= INLINE_VALUE_MAX;
    r->timer.fire = on_rested;
    list_init(&r->link);
    buf_add_span(&r->key, opts->key);
    if (r->key.err != 0) {
        free(r);
        return -ENOMEM;
    }
    r->opts.key = buf_span(&r->key);
    work_begin(r->part->work);
    *out = r;
    rescue_fetch(r);
    return 0;
}

void rescue_stop(struct rescue *r)
{
    if (r->op != NULL) {
        op_cancel(r->op);
        return;
    }
    repair_timer_clear(r->part, &r->timer);
    rescue_end(r);
}

struct span rescue_key(const struct rescue *r)
{
    return buf_span(&r->key);
}

uint64_t rescue_size(const struct rescue *r)
{
    return r->first_size;
}

struct list *rescue_link(struct rescue *r)
{
    return &r->link;
}

struct rescue *rescue_of(struct list *link)
{
    return container_of(link, struct rescue, link);
}

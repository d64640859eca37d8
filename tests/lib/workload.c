/* workload.c - actors: each draws an operation, starts it, and writes down what came of it. */
#include "tests/lib/workload.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#define OVERDUE_US 1000u /* an operation may end so long after its timeout */

#define OPS_RESERVED 5u /* places in each history for what is read at the end */

/* A version that an actor has met: what a CAS builds on. */
struct met {
    bool known;
    struct ballot version;
    uint32_t mark;
};

struct workload_actor {
    struct workload *w;
    struct sim_client *cl;
    unsigned index, n_left;
    struct timer next;
    struct met *met; /* by key */
    bool orphan;     /* the client was killed during the operation */
    /* the operation under way: */
    unsigned key;
    struct history_op *op;
    struct ballot expect;
    unsigned n_edits;
    uint64_t started_us;
};

void workload_complain(struct workload *w, const char *fmt, ...)
{
    va_list ap;

    if (w->complaint[0] != '\0')
        return;
    va_start(ap, fmt);
    vsnprintf(w->complaint, sizeof w->complaint, fmt, ap);
    va_end(ap);
}

struct span workload_key(const struct workload *w, unsigned key)
{
    static char names[4][24];
    static unsigned turn;
    char *name = names[turn++ % 4];

    if (w->opts.keys != NULL)
        return span_str(w->opts.keys[key]);
    snprintf(name, sizeof names[0], "key-%u", key);
    return span_str(name);
}

/*
 * --- values: u32 count, the ids, padding that depends on the last of them ----------------------
 */

static uint8_t padding_byte(uint32_t last_id, size_t i)
{
    return (uint8_t)(last_id * 31 + i);
}

static int value_make(struct value *out, const uint32_t *ids, unsigned n, size_t padding)
{
    struct buf b = {0};
    int err;

    buf_u32(&b, n);
    for (unsigned i = 0; i < n; i++)
        buf_u32(&b, ids[i]);
    for (size_t i = 0; i < padding; i++)
        buf_u8(&b, padding_byte(ids[n - 1], i));
    err = b.err != 0 ? b.err : value_copy(buf_span(&b), out);
    buf_fini(&b);
    return err;
}

/* Reads the ids of a live value into seen; false: these bytes were never written. */
static bool value_parse(struct span bytes, size_t padding, struct history_seen *seen)
{
    struct cursor c = cursor_of(bytes);

    seen->n = cursor_u32(&c);
    if (seen->n == 0 || seen->n > HISTORY_IDS_MAX)
        return false;
    for (unsigned i = 0; i < seen->n; i++)
        seen->ids[i] = cursor_u32(&c);
    if (c.err != 0 || cursor_left(&c) != padding)
        return false;
    for (size_t i = 0; i < padding; i++) {
        if (c.pos[i] != padding_byte(seen->ids[seen->n - 1], i))
            return false;
    }
    return true;
}

static uint32_t mark_of(const struct record *r)
{
    return record_is_live(r) ? (uint32_t)r->rdev : 0;
}

/* Notes what of the key was seen; value only when it was asked for. */
static void see(struct workload *w, struct history_seen *seen, const struct record *r,
                const struct span *value)
{
    memset(seen, 0, sizeof *seen);
    seen->mark_known = true;
    seen->mark = mark_of(r);
    seen->list_known = value != NULL;
    if (value == NULL || seen->mark == 0)
        return;
    if (!value_parse(*value, w->opts.padding, seen))
        workload_complain(w, "the value of mark %" PRIu32 ", %zu bytes, is none that was written",
                          seen->mark, value->len);
}

/* --- writing --------------------------------------------------------------------------------- */

static int condition(const struct workload_actor *a, const struct record *cur)
{
    switch (a->op->kind) {
    case HISTORY_CREATE:
        return record_is_live(cur) ? -EEXIST : 0;
    case HISTORY_DELETE:
    case HISTORY_TOUCH:
        return record_is_live(cur) ? 0 : -ENOENT;
    case HISTORY_CAS:
        return ballot_cmp(cur->version, a->expect) == 0 ? 0 : -EPERM;
    default:
        return 0;
    }
}

static bool is_condition_error(int err)
{
    return err == -EEXIST || err == -ENOENT || err == -EPERM;
}

static int edit(void *ctx, const struct record *cur, struct value cur_value, struct draft *next)
{
    struct workload_actor *a = ctx;
    struct history_seen *seen = &a->op->seen;
    struct span value = value_span(cur_value);
    bool want_value = seen->list_known;
    int err = condition(a, cur);

    a->n_edits++;
    see(a->w, seen, cur, want_value ? &value : NULL);
    if (err < 0)
        return err;
    if (a->op->kind == HISTORY_DELETE) {
        next->rec = (struct record){.flags = RECORD_TOMBSTONE};
        return 0;
    }
    next->rec.rdev = a->op->id;
    if (a->op->kind == HISTORY_TOUCH) {
        next->same_value = true;
        return 0;
    }
    if (a->op->kind == HISTORY_APPEND && seen->mark != 0) {
        uint32_t ids[HISTORY_IDS_MAX + 1];

        memcpy(ids, seen->ids, seen->n * sizeof ids[0]);
        ids[seen->n] = a->op->id;
        return value_make(&next->value, ids, seen->n + 1, a->w->opts.padding);
    }
    return value_make(&next->value, &a->op->id, 1, a->w->opts.padding);
}

/*
 * --- the end of an operation -------------------------------------------------------------------
 */

static void pause_before_next(struct workload_actor *a)
{
    struct sim *s = a->w->sim;

    sim_timer_set(s, &a->next, s->now_us + rng_below(&s->rng, a->w->opts.think_us + 1), a->cl);
}

static void note_version(struct workload_actor *a, const struct record *r)
{
    a->op->version_known = true;
    a->op->version = r->version;
    a->op->version_mark = mark_of(r);
    a->met[a->key] = (struct met){true, r->version, mark_of(r)};
}

static void op_ended(struct workload_actor *a, enum history_outcome outcome, const struct record *r,
                     const char *why)
{
    struct sim *s = a->w->sim;
    uint64_t took_us = s->now_us - a->started_us;

    if (a->orphan) { /* nobody is left to hear the answer */
        a->w->n_running--;
        return;
    }
    history_end(a->op, outcome, s->now_us);
    if (outcome == HISTORY_OK || outcome == HISTORY_FAILED)
        note_version(a, r);
    if (a->op->kind != HISTORY_READ)
        a->w->n_outcomes[outcome]++;
    else if (outcome == HISTORY_OK)
        a->w->n_reads++;
    else
        a->w->n_reads_failed++;
    if (took_us > a->w->opts.timeout_ms * 1000ull + OVERDUE_US && !a->cl->was_frozen)
        workload_complain(a->w, "an operation took %" PRIu64 " us, over its timeout: %s", took_us,
                          why);
    a->op = NULL;
    pause_before_next(a);
}

/* Is what a write says of itself its own? A deletion leaves no mark to tell by. */
static void check_own(struct workload_actor *a, const struct write_result *res)
{
    bool deletes = a->op->kind == HISTORY_DELETE;
    bool own = mark_of(&res->rec.rec) == (deletes ? 0 : a->op->id);

    if (res->rec_is != WRITE_SUPERSEDED && !own)
        workload_complain(a->w, "write %" PRIu32 " returns what another stored as its own",
                          a->op->id);
    if (res->rec_is == WRITE_SUPERSEDED && own && !deletes)
        workload_complain(a->w, "write %" PRIu32 " calls its own record another's", a->op->id);
}

static void write_done(void *arg, struct write_result *res)
{
    struct workload_actor *a = arg;
    enum history_outcome outcome = res->certain ? HISTORY_NONE : HISTORY_UNKNOWN;

    if (res->err == 0) {
        outcome = HISTORY_OK;
        check_own(a, res);
        if (a->n_edits > 1) /* of several tries, it need not be the last that took effect */
            a->op->seen.mark_known = a->op->seen.list_known = false;
        else if (res->existed != (a->op->seen.mark != 0))
            workload_complain(a->w, "write %" PRIu32 " says wrongly whether it replaced anything",
                              a->op->id);
    } else if (is_condition_error(res->err)) {
        outcome = HISTORY_FAILED;
        if (!res->certain)
            workload_complain(a->w, "the condition of %" PRIu32 " failed, but not for certain",
                              a->op->id);
    }
    op_ended(a, outcome, &res->rec.rec, res->why.msg);
}

static void read_done(void *arg, struct read_result *res)
{
    struct workload_actor *a = arg;
    struct span value = value_span(res->value);

    if (res->err == 0)
        see(a->w, &a->op->seen, &res->rec.rec, a->op->seen.list_known ? &value : NULL);
    op_ended(a, res->err == 0 ? HISTORY_OK : HISTORY_NONE, &res->rec.rec, res->why.msg);
}

/* --- the start of one ------------------------------------------------------------------------ */

static enum history_kind draw_kind(struct workload_actor *a)
{
    struct rng *rng = &a->w->sim->rng;
    unsigned kind;

    do
        kind = (unsigned)rng_below(rng, 7);
    while (!(a->w->opts.kinds >> kind & 1));
    return kind == HISTORY_CAS && !a->met[a->key].known ? HISTORY_READ : (enum history_kind)kind;
}

static void op_start(struct workload_actor *a)
{
    struct workload *w = a->w;
    struct client *c = a->cl->client;
    enum history_kind kind = draw_kind(a);
    bool want_value =
        kind == HISTORY_APPEND || rng_chance(&w->sim->rng, kind == HISTORY_READ ? 750 : 250);
    struct op *op;

    if (w->histories[a->key].n >= HISTORY_OPS_MAX - OPS_RESERVED) {
        w->n_running--;
        return;
    }
    a->op = history_add(&w->histories[a->key], kind, a->index,
                        kind == HISTORY_READ ? 0 : ++w->last_id, w->sim->now_us);
    a->started_us = w->sim->now_us;
    a->n_edits = 0;
    a->op->seen.list_known = want_value;
    a->op->expect = a->met[a->key].mark;
    a->expect = a->met[a->key].version;
    if (kind == HISTORY_READ) {
        struct read_args args = {
            .key = workload_key(w, a->key), .want_value = want_value, .length = READ_ALL};

        op = client_read(c, &args, read_done, a);
    } else {
        struct write_args args = {
            .key = workload_key(w, a->key), .edit = edit, .ctx = a, .want_value = want_value};

        op = client_write(c, &args, write_done, a);
    }
    assert(op != NULL);
}

static void on_next(struct timer *t)
{
    struct workload_actor *a = container_of(t, struct workload_actor, next);

    if (a->n_left == 0 || a->cl->killed) {
        a->w->n_running--;
        return;
    }
    a->n_left--;
    a->key = (unsigned)rng_below(&a->w->sim->rng, a->w->opts.n_keys);
    op_start(a);
}

void workload_killed(struct workload *w, const struct sim_client *cl)
{
    for (unsigned i = 0; i < w->opts.n_actors; i++) {
        struct workload_actor *a = &w->actors[i];

        if (a->cl == cl && a->op != NULL) {
            a->orphan = true;
            a->op->seen.list_known = a->op->seen.mark_known = false;
        }
    }
}

/* --- all of them ----------------------------------------------------------------------------- */

void workload_start(struct workload *w, struct sim *s, const struct workload_opts *opts)
{
    unsigned first = s->n_clients;

    memset(w, 0, sizeof *w);
    w->opts = *opts;
    w->sim = s;
    w->histories = sim_alloc(opts->n_keys * sizeof *w->histories);
    w->actors = sim_alloc(opts->n_actors * sizeof *w->actors);
    w->n_running = opts->n_actors;
    for (unsigned i = 0; i < opts->n_keys; i++)
        sim_use_key(s, workload_key(w, i));
    for (unsigned i = 0; i < opts->n_clients; i++)
        sim_client_start(s, opts->timeout_ms);
    for (unsigned i = 0; i < opts->n_actors; i++) {
        struct workload_actor *a = &w->actors[i];

        a->w = w;
        a->cl = s->clients[first + i % opts->n_clients];
        a->index = i;
        a->n_left = opts->n_ops;
        a->met = sim_alloc(opts->n_keys * sizeof *a->met);
        a->next.fire = on_next;
        pause_before_next(a);
    }
}

void workload_finish(struct workload *w)
{
    while (w->n_running > 0)
        sim_step(w->sim);
}

struct last_read {
    struct workload *w;
    unsigned key, *n_left;
    struct history_op *op;
};

static void last_read_done(void *arg, struct read_result *res)
{
    struct last_read *l = arg;
    struct span value = value_span(res->value);

    if (res->err == 0) {
        see(l->w, &l->op->seen, &res->rec.rec, &value);
        l->op->version_known = true;
        l->op->version = res->rec.rec.version;
        l->op->version_mark = mark_of(&res->rec.rec);
        history_end(l->op, HISTORY_OK, l->w->sim->now_us);
    } else {
        workload_complain(l->w, "the last read of key %u failed: %s: %s", l->key,
                          strerror(-res->err), res->why.msg);
    }
    --*l->n_left;
}

void workload_read_all(struct workload *w)
{
    struct sim_client *cl = sim_client_start(w->sim, 5000);
    struct last_read *reads = sim_alloc(w->opts.n_keys * sizeof *reads);
    unsigned n_left = 0;

    for (unsigned i = 0; i < w->opts.n_keys; i++) {
        struct read_args args = {.key = workload_key(w, i), .want_value = true, .length = READ_ALL};
        struct history_op *op =
            history_add(&w->histories[i], HISTORY_READ, 1000 + cl->index, 0, w->sim->now_us);

        assert(op != NULL);
        reads[i] = (struct last_read){w, i, &n_left, op};
        n_left++;
        client_read(cl->client, &args, last_read_done, &reads[i]);
    }
    while (n_left > 0)
        sim_step(w->sim);
    free(reads);
}

bool workload_judge(const struct workload *w, FILE *out, unsigned *n_broken)
{
    bool good = w->complaint[0] == '\0';

    *n_broken = 0;
    if (!good)
        fprintf(out, "%s\n", w->complaint);
    for (unsigned i = 0; i < w->opts.n_keys; i++) {
        struct history_verdict v;
        int err = history_check(&w->histories[i], &v);

        if (err == 0 && v.good)
            continue;
        good = false;
        *n_broken += err == 0;
        fprintf(out, "key %u: ", i);
        if (err < 0)
            fprintf(out, "not decided: %s\n", strerror(-err));
        history_print(out, &w->histories[i], err < 0 ? NULL : &v);
    }
    return good;
}

void workload_fini(struct workload *w)
{
    for (unsigned i = 0; i < w->opts.n_actors; i++) {
        sim_timer_clear(w->sim, &w->actors[i].next);
        free(w->actors[i].met);
    }
    free(w->actors);
    free(w->histories);
}

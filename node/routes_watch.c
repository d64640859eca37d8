/*
 * routes_watch.c - GET /watch?prefix=&after=: the changes that this node stores, as they come, one
 * JSON object a line.
 *
 * Nothing is kept for a watcher but the lines that it is being sent: one that falls so far behind
 * that the changes it has not seen are forgotten is told so, and goes on with the newest.
 */
#include "node/routes.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/json.h"
#include "node/query.h"

/* Well within the 250 ms that are promised. */
#define HEARTBEAT_US 200000u
/* Changes are taken so many bytes at a time, and their lines sent before the next. */
#define BATCH_LEN (16u << 10)

enum { PREFIX, PREFIX_BASE64, AFTER, N_PARAMS };

struct watch_task {
    struct task task;
    struct query_param params[N_PARAMS];
    struct span prefix; /* of params */
    struct watcher watcher;
    bool watching; /* in service.watchers */
    bool resumes;  /* after= was given: */
    struct ballot after;
    bool greeted;
    uint64_t number;  /* up to here it has been told */
    struct buf lines; /* being sent; `sent` bytes of it are */
    size_t sent;
    struct buf batch; /* scratch */
};

/* --- lines ------------------------------------------------------------------------------------ */

/* Lives and numbers are written as ballots are, and read back. */
static void json_position(struct json *j, const char *name, uint64_t life, uint64_t number)
{
    char text[BALLOT_TEXT_LEN];

    ballot_text((struct ballot){life, number}, text);
    json_key(j, name);
    json_str(j, span_str(text));
}

static void line_begin(struct json *j, const struct watch_task *w)
{
    json_begin(j, '{');
    json_position(j, "position", changes_life(w->task.service->changes), w->number);
}

static void line_end(struct json *j)
{
    json_end(j, '}');
    buf_u8(j->out, '\n');
}

/* The first: who speaks, from where on, and up to where there are changes already. */
static void add_greeting(struct watch_task *w, uint64_t latest)
{
    struct service *s = w->task.service;
    struct json j = {.out = &w->lines};
    char ring[17];

    snprintf(ring, sizeof(ring), "%016" PRIx64, ring_fingerprint(s->cfg->ring));
    line_begin(&j, w);
    json_key(&j, "node");
    json_str(&j, span_str(s->name));
    json_key(&j, "ring");
    json_str(&j, span_str(ring));
    json_position(&j, "latest", changes_life(s->changes), latest);
    line_end(&j);
}

/* Changes were missed; those behind the new position will be told. */
static void add_gap(struct watch_task *w, const char *why)
{
    struct json j = {.out = &w->lines};

    line_begin(&j, w);
    json_key(&j, "gap");
    json_str(&j, span_str(why));
    line_end(&j);
}

static void add_change(struct watch_task *w, const struct change *c)
{
    struct json j = {.out = &w->lines};
    char version[BALLOT_TEXT_LEN];

    ballot_text(c->version, version);
    line_begin(&j, w);
    json_field_key(&j, "key", c->key);
    json_key(&j, "version");
    json_str(&j, span_str(version));
    json_key(&j, "kind");
    json_str(&j, span_str(c->deleted ? "delete" : "put"));
    line_end(&j);
}

static void add_heartbeat(struct watch_task *w)
{
    struct json j = {.out = &w->lines};

    line_begin(&j, w);
    line_end(&j);
}

/* --- the stream ------------------------------------------------------------------------------- */

static void greet(struct watch_task *w)
{
    struct changes *changes = w->task.service->changes;
    uint64_t latest = changes_latest(changes);
    bool same_life = w->resumes && w->after.counter == changes_life(changes);

    w->greeted = true;
    w->number = same_life && w->after.proposer <= latest ? w->after.proposer : latest;
    add_greeting(w, latest);
    if (w->resumes && !same_life)
        add_gap(w, "the position is of another life of the node");
    else if (w->resumes && w->after.proposer > latest)
        add_gap(w, "the position has not been reached yet");
}

/* Lines of the next changes, if there are any. 0 or -ENOMEM. */
static int fill_changes(struct watch_task *w)
{
    struct changes *changes = w->task.service->changes;
    uint64_t upto = w->number;
    struct change c;
    struct cursor from;
    int err;

    do {
        buf_clear(&w->batch);
        err = changes_read(changes, w->number, BATCH_LEN, &w->batch, &upto);
        if (err == -ENODATA) {
            w->number = changes_latest(changes);
            add_gap(w, "changes came faster than they were fetched");
            return 0;
        }
        if (err < 0)
            return err;
        from = cursor_of(buf_span(&w->batch));
        while (changes_next(&from, &c)) {
            w->number = c.number;
            if (span_has_prefix(c.key, w->prefix))
                add_change(w, &c);
        }
    } while (w->batch.len > 0 && w->lines.len == 0);
    return 0;
}

/* What comes next into lines. Nothing: it is to sleep. 0 or -ENOMEM. */
static int fill(struct watch_task *w)
{
    struct clock *clock = w->task.service->clock;
    uint64_t now = clock->mono_us(clock);
    int err;

    buf_clear(&w->lines);
    w->sent = 0;
    if (!w->greeted)
        greet(w);
    err = fill_changes(w);
    if (err == 0 && w->lines.len == 0 && now >= atomic_load(&w->watcher.due_us))
        add_heartbeat(w);
    if (err == 0)
        err = w->lines.err;
    if (w->lines.len > 0)
        atomic_store(&w->watcher.due_us, now + HEARTBEAT_US);
    atomic_store(&w->watcher.seen, w->number);
    return err;
}

static int64_t watch_read(void *arg, uint64_t pos, void *out, size_t cap)
{
    struct watch_task *w = arg;
    size_t n;
    int err;

    (void)pos;
    if (watchers_stopped(w->task.service->watchers))
        return RESPONSE_END;
    if (w->sent == w->lines.len) {
        err = fill(w);
        if (err < 0)
            return err;
    }
    n = w->lines.len - w->sent;
    n = n < cap ? n : cap;
    if (n > 0)
        memcpy(out, w->lines.data + w->sent, n);
    w->sent += n;
    return (int64_t)n;
}

/* --- the request ------------------------------------------------------------------------------ */

static void watch_end(struct task *t)
{
    struct watch_task *w = container_of(t, struct watch_task, task);
    struct clock *clock = t->service->clock;
    struct response r = {.status = 200};
    int err;

    response_header(&r, "Content-Type", "application/x-ndjson");
    response_header(&r, "Cache-Control", "no-store");
    if (strcmp(exchange_method(t->x), "HEAD") == 0) {
        exchange_reply(t->x, &r);
        return;
    }
    w->watcher.x = t->x;
    atomic_store(&w->watcher.due_us, clock->mono_us(clock) + HEARTBEAT_US);
    atomic_store(&w->watcher.seen, UINT64_MAX); /* until it has looked for itself */
    err = watchers_add(t->service->watchers, &w->watcher);
    if (err < 0) {
        response_fini(&r);
        reply_problem(t->x, 503, "%s",
                      err == -EBUSY ? "too many watch this node already" : "the node is stopping");
        return;
    }
    w->watching = true;
    r.read = watch_read;
    r.read_arg = w;
    r.body_len = RESPONSE_ENDLESS;
    exchange_reply(t->x, &r);
}

static void watch_gone(struct task *t)
{
    struct watch_task *w = container_of(t, struct watch_task, task);

    if (w->watching)
        watchers_remove(t->service->watchers, &w->watcher);
    query_fini(w->params, N_PARAMS);
    buf_fini(&w->lines);
    buf_fini(&w->batch);
    free(w);
}

static const struct task_ops watch_ops = {NULL, watch_end, watch_gone};

static int take_params(struct watch_task *w, struct span query, struct err *why)
{
    struct query_param *p = w->params;
    int err;

    p[PREFIX].name = "prefix";
    p[PREFIX_BASE64].name = "prefix_base64";
    p[PREFIX_BASE64].max = (KEY_LEN_MAX + 2) / 3 * 4;
    p[AFTER].name = "after";
    err = query_parse(query, p, N_PARAMS, why);
    if (err == 0)
        err = query_bytes(&p[PREFIX], &p[PREFIX_BASE64], &w->prefix, why);
    if (err != 0)
        return err;
    w->resumes = p[AFTER].given;
    buf_u8(&p[AFTER].value, 0);
    if (p[AFTER].value.err != 0)
        return err_set(why, -ENOMEM, "out of memory");
    if (w->resumes && ballot_parse((const char *)p[AFTER].value.data, &w->after) != 0)
        return err_set(why, -EINVAL, "after is no \"position\" of an earlier line");
    return 0;
}

struct task *watch_begin(struct service *s, struct exchange *x, struct span rest)
{
    struct watch_task *w;
    struct err why = {{0}};

    (void)rest;
    if (!only_get(x))
        return NULL;
    if (s->changes == NULL) {
        reply_problem(x, 404, "a gateway stores nothing: watch the nodes (/status names them)");
        return NULL;
    }
    w = task_new(sizeof(*w), &watch_ops, s, x);
    if (w == NULL)
        return NULL;
    if (take_params(w, exchange_query(x), &why) != 0)
        reply_problem(x, 400, "%s", why.msg);
    return &w->task;
}

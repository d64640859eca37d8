/*
 * routes_write.c - PUT, DELETE and POST ?append of /kv/{key}: each one WRITE, whose edit decides on
 * the conditions and makes the new record.
 */
#include "node/routes.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "common/json.h"
#include "common/limits.h"
#include "common/peers.h"
#include "common/relay.h"
#include "node/body.h"
#include "node/query.h"

#define REPORT_WAIT_MS 100u
#define TYPE_LEN_MAX 255u

enum kind { PUT, DELETE, APPEND };

struct kv_write {
    struct task task;
    enum kind kind;
    struct buf key;
    struct conditions cond;
    char type[TYPE_LEN_MAX + 1]; /* PUT: the media type to store; empty: none */
    struct body body;            /* empty while it is relayed */
    struct relay *relay;         /* of one that is not for memory; see relay.h */
    struct value value;          /* the whole body */
    struct span sums;            /* its checksums, where it is large */
    struct value old;            /* APPEND: what it goes behind, as it counts */
    struct buf attrs;            /* of the record that edit() made last */
    struct write_args args;
};

/* --- the edit --------------------------------------------------------------------------------- */

/* Copies all attributes but the content type, and adds ours. */
static int rebuild_attrs(struct kv_write *w, struct span old)
{
    enum attr_kind kind;
    struct span name, value;
    size_t pos = 0;
    int r;

    buf_clear(&w->attrs);
    if (w->type[0] != '\0')
        attr_add(&w->attrs, ATTR_CONTENT_TYPE, (struct span){0}, span_str(w->type));
    while ((r = attr_next(old, &pos, &kind, &name, &value)) == 1)
        if (kind != ATTR_CONTENT_TYPE)
            attr_add(&w->attrs, kind, name, value);
    return r < 0 ? r : w->attrs.err;
}

static int edit_put(struct kv_write *w, struct draft *next)
{
    int err = rebuild_attrs(w, next->rec.attrs);

    if (err != 0)
        return err;
    next->rec.attrs = buf_span(&w->attrs);
    next->value = value_ref(w->value);
    next->sums = w->sums;
    return 0;
}

static int edit_append(struct kv_write *w, struct value old, struct draft *next)
{
    struct service *s = w->task.service;
    uint64_t size = (uint64_t)old.len + w->value.len;

    if (size > s->cfg->max_value_size)
        return -EFBIG;
    if (size == 0)
        return 0;
    if (old.len > 0) {
        int err = body_room_hold(&s->room, old, &w->old);

        if (err != 0)
            return err;
        next->value = value_ref(w->old);
    }
    next->tail = value_ref(w->value);
    return 0;
}

static int edit(void *ctx, const struct record *cur, struct value cur_value, struct draft *next)
{
    struct kv_write *w = ctx;
    struct clock *clock = w->task.service->clock;
    int64_t now_ns = (int64_t)clock->wall_us(clock) * 1000;
    bool live = record_is_live(cur);
    int err = conditions_write(&w->cond, cur);

    if (err != 0)
        return err;
    if (w->kind == DELETE && !live)
        return -ENOENT;
    if (w->kind == DELETE) {
        next->rec = (struct record){.flags = RECORD_TOMBSTONE};
    } else {
        if (!live)
            next->rec = (struct record){.atime_ns = now_ns};
        err = w->kind == PUT ? edit_put(w, next)
                             : edit_append(w, live ? cur_value : (struct value){0}, next);
    }
    next->rec.mtime_ns = now_ns;
    next->rec.ctime_ns = now_ns;
    return err;
}

/* --- the answer ------------------------------------------------------------------------------- */

static void report_error(struct service *s, const struct report *rep, struct err *out)
{
    const char *text = strerror(-rep->err);

    /* It was not asked, or its store is out of reach: it is known why. */
    if (rep->err == -EHOSTDOWN && peers_error(s->cluster, rep->node, out))
        return;
    if (rep->err == -ECANCELED)
        text = "refused: it knows of a newer ballot";
    else if (rep->err == -EBADE)
        text = "it holds another ring";
    else if (rep->err == -EBADMSG)
        text = "its copy is damaged";
    err_set(out, rep->err, "%s", text);
}

static void add_report(struct json *j, struct service *s, const struct report *rep)
{
    const struct config *cfg = s->cfg;
    static const char *const states[] = {
        [REPORT_PENDING] = "pending", [REPORT_OK] = "ok", [REPORT_FAILED] = "failed"};

    json_begin(j, '{');
    json_key(j, "node");
    json_str(j, span_str(cfg->nodes[rep->node].id));
    json_key(j, "status");
    json_str(j, span_str(states[rep->state]));
    if (rep->state == REPORT_FAILED) {
        struct err why;

        report_error(s, rep, &why);
        json_key(j, "error");
        json_str(j, span_str(why.msg));
    }
    json_end(j, '}');
}

static void reply_stored(struct kv_write *w, const struct write_result *res)
{
    const struct config *cfg = w->task.service->cfg;
    struct response r = {0};
    struct buf text = {0};
    struct json j = {.out = &text};
    char version[BALLOT_TEXT_LEN];

    json_begin(&j, '{');
    json_field_key(&j, "key", buf_span(&w->key));
    json_key(&j, "version");
    if (res->rec_is == WRITE_SUPERSEDED) {
        json_none(&j); /* what is there now is not what this client sent */
    } else {
        ballot_text(res->rec.rec.version, version);
        json_str(&j, span_str(version));
        kv_add_version(&r, &res->rec.rec);
    }
    json_key(&j, "primary_node");
    json_str(&j, span_str(cfg->nodes[res->primary].id));
    json_key(&j, "replications");
    json_begin(&j, '[');
    for (unsigned i = 0; i < res->n_reports; i++)
        if (res->reports[i].node != res->primary)
            add_report(&j, w->task.service, &res->reports[i]);
    json_end(&j, ']');
    json_end(&j, '}');
    buf_u8(&text, '\n');
    response_json(&r, res->existed ? 200 : 201, &text);
    exchange_reply(w->task.x, &r);
}

static void reply_not_stored(struct kv_write *w, const struct write_result *res)
{
    struct exchange *x = w->task.x;
    struct response r = {0};

    switch (res->err) {
    case -ECANCELED:
        kv_add_version(&r, &res->rec.rec);
        response_problem(&r, 412,
                         "nothing was stored: the condition does not hold for the present version");
        exchange_reply(x, &r);
        return;
    case -ENOENT:
        reply_problem(x, 404, "there is no such key");
        return;
    case -EFBIG:
        reply_problem(x, 413, "nothing was stored: the value would be above %llu bytes",
                      (unsigned long long)w->task.service->cfg->max_value_size);
        return;
    default:
        reply_failed(x, res->err,
                     res->certain ? "nothing was stored: " : "outcome unknown: ", &res->why);
    }
}

static void write_done(void *arg, struct write_result *res)
{
    struct kv_write *w = arg;
    struct response r = {.status = 204};

    value_fini(&w->old);
    if (res->err != 0)
        reply_not_stored(w, res);
    else if (w->kind == DELETE)
        exchange_reply(w->task.x, &r);
    else
        reply_stored(w, res);
}

/* --- the request ------------------------------------------------------------------------------ */

static void reply_no_room(struct kv_write *w, int err)
{
    unsigned long long max = w->task.service->cfg->max_value_size;

    if (err == -ECANCELED)
        reply_problem(w->task.x, 503, "nothing was stored: this node stops");
    else if (err == -EFBIG)
        reply_problem(w->task.x, 413, "nothing was stored: a value has at most %llu bytes", max);
    else if (err == -EAGAIN)
        reply_problem(w->task.x, 503,
                      "nothing was stored: the bodies under way fill the room meant for them");
    else if (err == -ENOSPC || err == -EDQUOT)
        reply_problem(w->task.x, 507,
                      "nothing was stored: the disk of this node has no room for "
                      "the body while it comes");
    else if (err != -ENOMEM)
        reply_problem(w->task.x, 503, "nothing was stored: no temporary file for the body: %s",
                      strerror(-err));
    else
        reply_problem(w->task.x, 503, "nothing was stored: out of memory");
}

/* The whole body is here. */
static void start_write(struct kv_write *w)
{
    struct service *s = w->task.service;
    int err = body_sums(&w->body, &w->sums);

    if (err != 0) {
        reply_no_room(w, err);
        return;
    }
    w->value = body_value(&w->body);
    w->args = (struct write_args){
        .key = buf_span(&w->key),
        .edit = edit,
        .ctx = w,
        .want_value = w->kind == APPEND,
        .report_wait_ms = w->kind == DELETE ? 0 : REPORT_WAIT_MS,
        .size_hint = w->value.len,
    };
    err = cluster_write_async(s->cluster, &w->args, write_done, w);
    if (err != 0)
        reply_problem(w->task.x, 503, "nothing was stored: %s", strerror(-err));
}

/* What the relay of a large body owns. */
struct relayed {
    struct kv_write *w; /* there while the body is not ended, or paused */
    struct exchange *x;
    struct body body;
};

static int relayed_take(void *arg, struct span part)
{
    return body_add(&((struct relayed *)arg)->body, part);
}

static void relayed_room(void *arg)
{
    exchange_go_on(((struct relayed *)arg)->x);
}

static void relayed_ended(void *arg, int err)
{
    struct relayed *d = arg;
    struct kv_write *w = d->w;

    w->body = d->body;
    d->body = (struct body){0};
    if (err != 0)
        reply_no_room(w, err);
    else
        start_write(w);
}

static void relayed_free(void *arg)
{
    struct relayed *d = arg;

    body_fini(&d->body);
    free(d);
}

static const struct relay_ops relayed_ops = {relayed_take, relayed_room, relayed_ended,
                                             relayed_free};

/* Moves the body to a relay. 0 or -ENOMEM. */
static int relay_body(struct kv_write *w)
{
    struct relayed *d = malloc(sizeof(*d));
    int err = -ENOMEM;

    if (d != NULL) {
        *d = (struct relayed){w, w->task.x, w->body};
        err = relay_new(w->task.service->workers, &relayed_ops, d, &w->relay);
    }
    if (err < 0)
        free(d);
    else
        w->body = (struct body){0};
    return err;
}

static void write_part(struct task *t, struct span part)
{
    struct kv_write *w = container_of(t, struct kv_write, task);
    int err = w->relay == NULL ? body_add(&w->body, part) : relay_add(w->relay, part);

    if (err == RELAY_FULL)
        exchange_pause(t->x);
    else if (err != 0)
        reply_no_room(w, err);
}

static void write_end(struct task *t)
{
    struct kv_write *w = container_of(t, struct kv_write, task);

    if (w->relay == NULL)
        start_write(w);
    else
        relay_end(w->relay);
}

static void write_free(struct task *t)
{
    struct kv_write *w = container_of(t, struct kv_write, task);

    relay_free(w->relay);
    value_fini(&w->value);
    body_fini(&w->body);
    buf_fini(&w->attrs);
    conditions_fini(&w->cond);
    buf_fini(&w->key);
    free(w);
}

/* A DELETE has no use for a body. */
static const struct task_ops delete_ops = {NULL, write_end, write_free};
static const struct task_ops write_ops = {write_part, write_end, write_free};

/* POST is for ?append, which no other method takes. */
static bool take_kind(struct exchange *x, enum kind *out)
{
    struct query_param append = {.name = "append"};
    struct err why;
    const char *method = exchange_method(x);
    int err = query_parse(exchange_query(x), &append, 1, &why);
    bool post = strcmp(method, "POST") == 0;

    query_fini(&append, 1);
    if (err != 0)
        reply_problem(x, 400, "%s", why.msg);
    else if (post && !append.given)
        reply_problem(x, 400, "POST is for ?append; PUT stores a value");
    else if (!post && append.given)
        reply_problem(x, 400, "append goes with POST");
    *out = post ? APPEND : strcmp(method, "PUT") == 0 ? PUT : DELETE;
    return err == 0 && post == append.given;
}

/*
 * A value is kept byte for byte, under the type it was sent with. What HTTP clients put in of
 * themselves (octet-stream, and curl's guess that all data is a form) is not kept.
 */
static bool take_type(struct exchange *x, struct kv_write *w)
{
    const char *type = exchange_header(x, "Content-Type"),
               *coding = exchange_header(x, "Content-Encoding");

    if (coding != NULL && strcasecmp(coding, "identity") != 0) {
        reply_problem(x, 415, "values are kept as they are sent: no Content-Encoding");
        return false;
    }
    if (exchange_header(x, "Content-Range") != NULL) {
        reply_problem(x, 400, "a value is stored whole: no Content-Range");
        return false;
    }
    if (type == NULL || strcasecmp(type, "application/octet-stream") == 0 ||
        strcasecmp(type, "application/x-www-form-urlencoded") == 0)
        return true;
    if (strlen(type) > TYPE_LEN_MAX) {
        reply_problem(x, 400, "Content-Type has at most %u bytes", TYPE_LEN_MAX);
        return false;
    }
    for (const char *p = type; *p != '\0'; p++) {
        if (iscntrl((unsigned char)*p)) { /* it could not be sent back */
            reply_problem(x, 400, "Content-Type holds a control character");
            return false;
        }
    }
    memcpy(w->type, type, strlen(type) + 1);
    return true;
}

static bool take_body(struct exchange *x, struct kv_write *w)
{
    uint64_t len = exchange_body_length(x);
    int err;

    if (!exchange_has_length(x)) {
        reply_problem(x, 411, "the length of the value is missing");
        return false;
    }
    err = body_begin(&w->body, &w->task.service->room, len, w->task.service->cfg->max_value_size);
    if (err == 0 && len > MEMORY_BLOB_MAX) /* also where it is not known */
        err = relay_body(w);
    if (err != 0)
        reply_no_room(w, err);
    return err == 0;
}

struct task *kv_write_begin(struct service *s, struct exchange *x, struct span rest)
{
    enum kind kind;
    struct buf key = {0};
    struct kv_write *w;

    if (!take_kind(x, &kind) || !kv_take_key(s, x, rest, &key))
        return NULL;
    w = task_new(sizeof(*w), kind == DELETE ? &delete_ops : &write_ops, s, x);
    if (w == NULL) {
        buf_fini(&key);
        return NULL;
    }
    w->kind = kind;
    w->key = key;
    if (kv_take_conditions(x, &w->cond) && take_type(x, w) && kind != DELETE)
        (void)take_body(x, w);
    return &w->task;
}

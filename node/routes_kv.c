/*
 * routes_kv.c - GET and HEAD of /kv/{key}, and what they share with writes.
 *
 * One read brings the first FIRST_LEN bytes of what is asked for, which mostly is all. What is
 * longer is read in a second step, pinned to the version that the first one found, once the budget
 * has room for it. Where the key changes in between the whole goes again. What is longer than
 * WHOLE_LEN is read while it is sent (value_stream.h).
 */
#include "node/routes.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/status.h"
#include "node/query.h"
#include "node/value_stream.h"

#define FIRST_LEN CHUNK_SIZE
/* Values up to this do not count against the budget: the number of clients bounds them. */
#define FREE_LEN (64u << 10)
#define TRIES_MAX 3u /* of the two steps; then one read of everything */
/* Up to this all of it is there before the first byte is sent, of one version whatever happens. */
#define WHOLE_LEN MEMORY_BLOB_MAX
#define TYPE_LEN_MAX 255

struct kv_get {
    struct task task;
    struct buf key;
    struct conditions cond;
    struct range range;
    bool head;
    unsigned tries;
    uint64_t taken; /* of the budget */
    struct read_args args;
};

/* --- shared with writes ----------------------------------------------------------------------- */

void reply_not_here(struct service *s, struct exchange *x, struct span key)
{
    struct response r = {0};
    struct buf json = {0};

    config_owners_json(s->cfg, key, &json);
    if (json.err != 0) {
        buf_fini(&json);
        reply_problem(x, 503, "out of memory");
        return;
    }
    response_json(&r, 421, &json);
    exchange_reply(x, &r);
}

void reply_failed(struct exchange *x, int err, const char *prefix, const struct err *why)
{
    unsigned status = err == -EINTR || err == -ENOMEM ? 503 : status_from_errno(err);

    reply_problem(x, status, "%s%s", prefix, why->msg[0] != '\0' ? why->msg : strerror(-err));
}

bool kv_take_key(struct service *s, struct exchange *x, struct span path, struct buf *key)
{
    if (!take_key(x, path, key))
        return false;
    if (s->forward || s->self == MESSAGE_NODE_NONE ||
        ring_is_replica(s->cfg->ring, buf_span(key), s->self))
        return true;
    reply_not_here(s, x, buf_span(key));
    buf_fini(key);
    return false;
}

/* One header into *out, where it is given; lists of tags are checked. False: it has replied. */
static bool take_condition(struct exchange *x, const char *name, bool tags, char **out)
{
    const char *value = exchange_header(x, name);

    if (value == NULL)
        return true;
    if (exchange_header_count(x, name) > 1) {
        reply_problem(x, 400, "there is more than one %s header", name);
        return false;
    }
    if (tags && etags_check(value) != 0) {
        reply_problem(x, 400, "%s is neither * nor a list of quoted ETags", name);
        return false;
    }
    *out = strdup(value);
    if (*out == NULL)
        reply_problem(x, 503, "nothing was stored: out of memory");
    return *out != NULL;
}

bool kv_take_conditions(struct exchange *x, struct conditions *out)
{
    return take_condition(x, "If-Match", true, &out->if_match) &&
           take_condition(x, "If-None-Match", true, &out->if_none_match) &&
           take_condition(x, "If-Modified-Since", false, &out->if_modified_since) &&
           take_condition(x, "If-Unmodified-Since", false, &out->if_unmodified_since) &&
           take_condition(x, "If-Range", false, &out->if_range);
}

void kv_add_version(struct response *r, const struct record *rec)
{
    char version[BALLOT_TEXT_LEN], date[HTTP_DATE_LEN];

    if (!record_is_live(rec))
        return;
    ballot_text(rec->version, version);
    response_header(r, "ETag", "\"%s\"", version);
    http_date(rec->mtime_ns, date);
    if (rec->mtime_ns > 0 && date[0] != '\0')
        response_header(r, "Last-Modified", "%s", date);
}

/* --- answers ---------------------------------------------------------------------------------- */

static void add_type(struct response *r, const struct record *rec)
{
    struct span type;

    if (attr_find(rec->attrs, ATTR_CONTENT_TYPE, (struct span){0}, &type) == 0 && type.len > 0 &&
        type.len <= TYPE_LEN_MAX)
        response_header(r, "Content-Type", "%.*s", (int)type.len, (const char *)type.data);
    else
        response_header(r, "Content-Type", "application/octet-stream");
}

/* Takes what is on its way out from the budget; false: there is no room, and it has replied. */
static bool take_room(struct kv_get *g, uint64_t len)
{
    if (len <= g->taken || len <= FREE_LEN)
        return true;
    if (!budget_take(&g->task.service->room.memory, len - g->taken)) {
        reply_problem(g->task.x, 503, "too many large values are being read at the moment");
        return false;
    }
    g->taken = len;
    return true;
}

static void add_headers(struct response *r, const struct record *rec, uint64_t offset,
                        uint64_t length)
{
    kv_add_version(r, rec);
    add_type(r, rec);
    response_header(r, "Accept-Ranges", "bytes");
    if (r->status == 206)
        response_header(r, "Content-Range", "bytes %" PRIu64 "-%" PRIu64 "/%" PRIu64, offset,
                        offset + length - 1, rec->size);
}

static void reply_value(struct kv_get *g, const struct record *rec, unsigned status,
                        uint64_t offset, struct value value)
{
    struct response r = {.status = status};

    add_headers(&r, rec, offset, value.len);
    if (g->head)
        r.body_len = rec->size;
    else
        r.value = value_ref(value);
    exchange_reply(g->task.x, &r);
}

static int64_t read_stream(void *arg, uint64_t pos, void *out, size_t cap)
{
    return value_stream_read(arg, pos, out, cap);
}

static void free_stream(void *arg)
{
    value_stream_free(arg);
}

static void on_more(void *arg)
{
    exchange_wake(arg);
}

/* res has the first bytes. */
static void reply_stream(struct kv_get *g, const struct read_result *res, unsigned status,
                         uint64_t offset, uint64_t length)
{
    const struct record *rec = &res->rec.rec;
    struct value_stream_opts opts = {
        .cluster = g->task.service->cluster,
        .key = buf_span(&g->key),
        .version = rec->version,
        .offset = offset,
        .length = length,
        .first = res->value,
        .first_offset = res->value_offset,
        .more = on_more,
        .arg = g->task.x,
    };
    struct value_stream *s;
    struct response r = {.status = status};

    if (value_stream_new(&opts, &s) < 0) {
        reply_problem(g->task.x, 503, "out of memory");
        return;
    }
    add_headers(&r, rec, offset, length);
    r.read = read_stream;
    r.read_free = free_stream;
    r.read_arg = s;
    r.body_len = length;
    exchange_reply(g->task.x, &r);
}

static void reply_without_value(struct kv_get *g, const struct record *rec, unsigned status)
{
    struct response r = {.status = status};

    kv_add_version(&r, rec);
    if (status == 416)
        response_header(&r, "Content-Range", "bytes */%" PRIu64, rec->size);
    if (status == 412)
        response_problem(&r, status, "the condition does not hold for the present version");
    if (status == 416)
        response_problem(&r, status, "the value has %" PRIu64 " bytes", rec->size);
    exchange_reply(g->task.x, &r);
}

/* --- reading ---------------------------------------------------------------------------------- */

static void start_read(struct kv_get *g);

/* What the first step asks for. */
static void plan_first(struct kv_get *g)
{
    const struct range *r = &g->range;

    g->args.pin = BALLOT_NONE;
    g->args.offset = 0;
    g->args.want_value = !g->head;
    g->args.length = FIRST_LEN;
    if (++g->tries > TRIES_MAX) {
        g->args.length = READ_ALL;
    } else if (r->kind == RANGE_SUFFIX) {
        g->args.want_value = false; /* where it begins depends on the size */
    } else if (r->kind == RANGE_FROM) {
        g->args.offset = r->first;
        if (r->last - r->first < FIRST_LEN)
            g->args.length = r->last - r->first + 1;
    }
    if (!g->args.want_value)
        g->args.length = 0;
}

/* The first step found a record; answers, or goes on to the second step. */
static void answer(struct kv_get *g, struct read_result *res)
{
    const struct record *rec = &res->rec.rec;
    uint64_t offset, length;
    unsigned status = conditions_read(&g->cond, rec);
    const struct range whole = {0}, *range = conditions_range(&g->cond, rec) ? &g->range : &whole;

    if (status != 0) {
        reply_without_value(g, rec, status);
        return;
    }
    if (g->head) {
        reply_value(g, rec, 200, 0, (struct value){0});
        return;
    }
    status = range_resolve(range, rec->size, &offset, &length);
    if (status == 416) {
        reply_without_value(g, rec, status);
        return;
    }
    if (!take_room(g, length > WHOLE_LEN ? VALUE_STREAM_LEN : length))
        return;
    if (length == 0) {
        reply_value(g, rec, status, 0, (struct value){0});
    } else if (length > WHOLE_LEN && offset >= res->value_offset &&
               offset - res->value_offset < res->value.len) {
        reply_stream(g, res, status, offset, length);
    } else if (offset >= res->value_offset &&
               offset - res->value_offset + length <= res->value.len) {
        struct value part =
            value_slice(res->value, (size_t)(offset - res->value_offset), (size_t)length);

        reply_value(g, rec, status, offset, part);
        value_fini(&part);
    } else if (!ballot_is_none(g->args.pin)) {
        reply_problem(g->task.x, 500, "a replica answered with less than the value");
    } else {
        g->args.want_value = true;
        g->args.pin = rec->version;
        g->args.offset = offset;
        g->args.length = length > WHOLE_LEN ? FIRST_LEN : length;
        start_read(g);
    }
}

static void get_done(void *arg, struct read_result *res)
{
    struct kv_get *g = arg;

    if (res->err == -ESTALE && !ballot_is_none(g->args.pin)) {
        plan_first(g);
        start_read(g);
    } else if (res->err != 0) {
        reply_failed(g->task.x, res->err, "", &res->why);
    } else if (!record_is_live(&res->rec.rec)) {
        reply_problem(g->task.x, g->cond.if_match != NULL ? 412 : 404, "there is no such key");
    } else {
        answer(g, res);
    }
}

static void start_read(struct kv_get *g)
{
    int err = cluster_read_async(g->task.service->cluster, &g->args, get_done, g);

    if (err != 0)
        reply_problem(g->task.x, 503, "cannot read: %s", strerror(-err));
}

static void get_end(struct task *t)
{
    struct kv_get *g = container_of(t, struct kv_get, task);

    plan_first(g);
    start_read(g);
}

static void get_free(struct task *t)
{
    struct kv_get *g = container_of(t, struct kv_get, task);

    if (g->taken > 0)
        budget_give(&t->service->room.memory, g->taken);
    conditions_fini(&g->cond);
    buf_fini(&g->key);
    free(g);
}

static const struct task_ops get_ops = {NULL, get_end, get_free};

/* ?read=one or ?read=quorum. False: it has replied. */
static bool take_from(struct exchange *x, enum read_from *out)
{
    struct query_param read = {.name = "read", .max = sizeof("quorum")};
    struct err why;
    int err = query_parse(exchange_query(x), &read, 1, &why);
    struct span value = buf_span(&read.value);
    bool one = span_eq(value, span_str("one"));

    if (err == 0 && read.given && !one && !span_eq(value, span_str("quorum")))
        err = err_set(&why, -EINVAL, "read is one or quorum");
    query_fini(&read, 1);
    if (err != 0)
        reply_problem(x, 400, "%s", why.msg);
    *out = one ? READ_ONE : READ_MAJORITY;
    return err == 0;
}

struct task *kv_begin(struct service *s, struct exchange *x, struct span rest)
{
    const char *method = exchange_method(x);
    enum read_from from;
    struct buf key = {0};
    struct kv_get *g;

    if (strcmp(method, "PUT") == 0 || strcmp(method, "DELETE") == 0 || strcmp(method, "POST") == 0)
        return kv_write_begin(s, x, rest);
    if (strcmp(method, "GET") != 0 && strcmp(method, "HEAD") != 0) {
        reply_not_allowed(x, "GET, HEAD, PUT, DELETE, POST");
        return NULL;
    }
    if (!take_from(x, &from) || !kv_take_key(s, x, rest, &key))
        return NULL;
    g = task_new(sizeof(*g), &get_ops, s, x);
    if (g == NULL) {
        buf_fini(&key);
        return NULL;
    }
    g->key = key;
    g->args.key = buf_span(&g->key);
    g->args.from = from;
    g->head = strcmp(method, "HEAD") == 0;
    if (!g->head && exchange_header_count(x, "Range") == 1)
        g->range = range_parse(exchange_header(x, "Range"));
    (void)kv_take_conditions(x, &g->cond);
    g->args.at_least = conditions_newest(&g->cond); /* of one replica's word: no step back */
    return &g->task;
}

/*
 * routes_list.c - GET /kv?prefix=&delimiter=/&start_after=&limit=: one page of the keys there are,
 * as JSON.
 */
#include "node/routes.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/base64.h"
#include "common/json.h"
#include "node/query.h"

enum { PREFIX, PREFIX_BASE64, START_AFTER, START_AFTER_BASE64, DELIMITER, LIMIT, N_PARAMS };

struct kv_list {
    struct task task;
    struct query_param params[N_PARAMS];
    struct list_args args;
};

/* --- the answer ------------------------------------------------------------------------------- */

/* RFC 3339 in UTC, to the nanosecond. */
static void json_time(struct json *j, int64_t ns)
{
    int64_t part = ns % 1000000000;
    time_t t;
    struct tm tm;
    char date[64], text[96];

    if (part < 0)
        part += 1000000000;
    t = (time_t)((ns - part) / 1000000000);
    if (gmtime_r(&t, &tm) == NULL || strftime(date, sizeof(date), "%Y-%m-%dT%H:%M:%S", &tm) == 0)
        date[0] = '\0';
    snprintf(text, sizeof(text), "%s.%09" PRId64 "Z", date, part);
    json_str(j, span_str(text));
}

static void add_key(struct json *j, const struct entry *e)
{
    char version[BALLOT_TEXT_LEN];

    ballot_text(e->version, version);
    json_begin(j, '{');
    json_field_key(j, "key", e->key);
    json_key(j, "size");
    json_u64(j, e->size);
    json_key(j, "version");
    json_str(j, span_str(version));
    json_key(j, "mtime");
    json_time(j, e->mtime_ns);
    if (e->flags & ENTRY_DAMAGED) { /* at too many replicas: nothing but its name is known */
        json_key(j, "damaged");
        json_bool(j, true);
    }
    json_end(j, '}');
}

/* 0, or -EBADMSG: these are no entries. */
static int add_keys(struct json *j, struct span entries)
{
    struct cursor c = cursor_of(entries);
    struct entry e;
    int r;

    json_key(j, "keys");
    json_begin(j, '[');
    while ((r = entry_next(&c, &e)) == 1)
        if (e.prefix_len == 0)
            add_key(j, &e);
    json_end(j, ']');
    return r;
}

/*
 * "prefixes" holds those that are UTF-8, "prefixes_base64", only there when needed, the others.
 * *n_other: how many are of the other kind, and were left out.
 */
static void add_prefixes(struct json *j, struct span entries, bool as_base64, unsigned *n_other)
{
    struct cursor c = cursor_of(entries);
    struct buf text = {0};
    struct entry e;

    *n_other = 0;
    json_key(j, as_base64 ? "prefixes_base64" : "prefixes");
    json_begin(j, '[');
    while (entry_next(&c, &e) == 1) {
        struct span prefix = span_of(e.key.data, e.prefix_len);

        if (e.prefix_len == 0)
            continue;
        if (json_is_utf8(prefix) == as_base64) {
            ++*n_other;
            continue;
        }
        buf_clear(&text);
        if (as_base64)
            base64_encode(&text, prefix);
        json_str(j, as_base64 ? buf_span(&text) : prefix);
    }
    json_end(j, ']');
    if (text.err != 0)
        j->out->err = text.err;
    buf_fini(&text);
}

static int make_page(const struct list_result *res, struct buf *out)
{
    struct json j = {.out = out};
    struct span entries = buf_span(&res->entries);
    unsigned n_other;
    int err;

    json_begin(&j, '{');
    err = add_keys(&j, entries);
    add_prefixes(&j, entries, false, &n_other);
    if (n_other > 0)
        add_prefixes(&j, entries, true, &n_other);
    if (res->more) {
        json_field_key(&j, "next", buf_span(&res->next));
    } else {
        json_key(&j, "next");
        json_double(&j, NAN); /* which JSON can only write as null */
    }
    json_end(&j, '}');
    buf_u8(out, '\n');
    return err != 0 ? err : out->err;
}

static void list_done(void *arg, struct list_result *res)
{
    struct kv_list *l = arg;
    struct response r = {0};
    struct buf json = {0};
    int err;

    if (res->err != 0) {
        reply_failed(l->task.x, res->err, "", &res->why);
        return;
    }
    err = make_page(res, &json);
    if (err != 0) {
        buf_fini(&json);
        reply_problem(l->task.x, 503, "cannot make the listing: %s", strerror(-err));
        return;
    }
    response_json(&r, 200, &json);
    exchange_reply(l->task.x, &r);
}

/* --- the request ------------------------------------------------------------------------------ */

static void list_end(struct task *t)
{
    struct kv_list *l = container_of(t, struct kv_list, task);
    int err = cluster_list_async(t->service->cluster, &l->args, list_done, l);

    if (err != 0)
        reply_problem(t->x, 503, "cannot list: %s", strerror(-err));
}

static void list_free(struct task *t)
{
    struct kv_list *l = container_of(t, struct kv_list, task);

    query_fini(l->params, N_PARAMS);
    free(l);
}

static const struct task_ops list_ops = {NULL, list_end, list_free};

static int take_limit(struct query_param *p, uint32_t *out, struct err *why)
{
    uint32_t n = 0;

    if (!p->given) {
        *out = LIST_LIMIT_DEFAULT;
        return 0;
    }
    for (size_t i = 0; i < p->value.len && n <= LIST_LIMIT_MAX; i++) {
        unsigned d = p->value.data[i] - (unsigned)'0';

        n = d > 9 ? LIST_LIMIT_MAX + 1 : n * 10 + d;
    }
    if (n == 0 || n > LIST_LIMIT_MAX)
        return err_set(why, -EINVAL, "limit is a number from 1 to %u", LIST_LIMIT_MAX);
    *out = n;
    return 0;
}

static int take_args(struct kv_list *l, struct span query, struct err *why)
{
    static const char *const names[N_PARAMS] = {
        "prefix", "prefix_base64", "start_after", "start_after_base64", "delimiter", "limit"};
    struct query_param *p = l->params;
    int err;

    for (unsigned i = 0; i < N_PARAMS; i++)
        p[i].name = names[i];
    p[PREFIX_BASE64].max = p[START_AFTER_BASE64].max = (KEY_LEN_MAX + 2) / 3 * 4;
    err = query_parse(query, p, N_PARAMS, why);
    if (err == 0)
        err = query_bytes(&p[PREFIX], &p[PREFIX_BASE64], &l->args.prefix, why);
    if (err == 0)
        err = query_bytes(&p[START_AFTER], &p[START_AFTER_BASE64], &l->args.start_after, why);
    if (err == 0)
        err = take_limit(&p[LIMIT], &l->args.limit, why);
    if (err != 0)
        return err;
    l->args.delimiter = p[DELIMITER].value.len > 0;
    if (l->args.delimiter && !span_eq(buf_span(&p[DELIMITER].value), span_str("/")))
        return err_set(why, -EINVAL, "delimiter can only be /");
    return 0;
}

struct task *list_begin(struct service *s, struct exchange *x, struct span rest)
{
    struct kv_list *l;
    struct err why = {{0}};

    (void)rest;
    if (!only_get(x))
        return NULL;
    l = task_new(sizeof(*l), &list_ops, s, x);
    if (l == NULL)
        return NULL;
    if (take_args(l, exchange_query(x), &why) != 0)
        reply_problem(x, 400, "%s", why.msg);
    return &l->task;
}

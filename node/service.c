/* service.c - from a path to its route; admission, and what every answer needs. */
#include "node/service.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/keypath.h"
#include "node/routes.h"

/* More of a body than that, where none belongs, is not read. */
#define UNWANTED_BODY_MAX (64u << 10)

/* --- routing ---------------------------------------------------------------------------------- */

struct route_entry {
    const char *path; /* ends in '/': whatever follows is `rest` */
    enum route route;
    bool reserved; /* goes on when clients are too many */
    route_begin_fn *begin;
};

static const struct route_entry routes[] = {
    {"/kv/", ROUTE_KV, false, kv_begin},
    {"/replica", ROUTE_REPLICA, true, replica_begin_raw},
    {"/kv", ROUTE_LIST, false, list_begin},
    {"/replicas/", ROUTE_REPLICAS, true, replicas_begin},
    {"/replica/", ROUTE_REPLICA, true, replica_begin_peek},
    {"/watch", ROUTE_WATCH, true, watch_begin},
    {"/health", ROUTE_HEALTH, true, health_begin},
    {"/status", ROUTE_STATUS, true, status_begin},
    {"/metrics", ROUTE_METRICS, true, metrics_begin},
};

static struct task *not_found(struct service *s, struct exchange *x, struct span rest)
{
    (void)s;
    (void)rest;
    reply_problem(x, 404, "there is nothing at this path; keys are at /kv/{key}");
    return NULL;
}

static const struct route_entry nowhere = {"", ROUTE_NONE, true, not_found};

/* Of "http://host/path", as a proxy asks, the path. */
static struct span path_of(const struct exchange *x)
{
    struct span path = exchange_path(x);
    const struct span scheme = span_str("http://");

    if (span_has_prefix(path, scheme)) {
        const uint8_t *slash = memchr(path.data + scheme.len, '/', path.len - scheme.len);

        if (slash != NULL)
            return span_of(slash, (size_t)(path.data + path.len - slash));
    }
    return path;
}

static const struct route_entry *find_route(struct span path, struct span *rest)
{
    for (size_t i = 0; i < sizeof(routes) / sizeof(routes[0]); i++) {
        struct span name = span_str(routes[i].path);

        if (!span_has_prefix(path, name))
            continue;
        if (name.data[name.len - 1] != '/' && path.len != name.len)
            continue;
        *rest = span_of(path.data + name.len, path.len - name.len);
        return &routes[i];
    }
    *rest = path;
    return &nowhere;
}

/* --- the server's handler --------------------------------------------------------------------- */

static void on_begin(void *ctx, struct exchange *x)
{
    struct service *s = ctx;
    struct span rest;
    const struct route_entry *r = find_route(path_of(x), &rest);
    uint64_t body = exchange_body_length(x);
    struct task *t;

    metrics_started(s->metrics, r->route);
    if (!r->reserved && atomic_fetch_add(&s->n_clients, 1) >= s->clients_max) {
        reply_problem(x, 503, "nothing was stored: %u requests are under way already",
                      s->clients_max);
        return;
    }
    t = r->begin(s, x, rest);
    exchange_set_user(x, t);
    if (t != NULL && t->ops->part == NULL && body > UNWANTED_BODY_MAX && !exchange_replied(x))
        reply_problem(x, 413, "this request takes no body");
}

static void on_part(void *ctx, struct exchange *x, struct span part)
{
    struct task *t = exchange_user(x);

    (void)ctx;
    if (t->ops->part != NULL)
        t->ops->part(t, part);
}

static void on_end(void *ctx, struct exchange *x)
{
    struct task *t = exchange_user(x);

    (void)ctx;
    t->ops->end(t);
}

static void on_gone(void *ctx, struct exchange *x)
{
    struct service *s = ctx;
    struct span rest;
    const struct route_entry *r = find_route(path_of(x), &rest);
    struct task *t = exchange_user(x);

    if (!r->reserved)
        atomic_fetch_sub(&s->n_clients, 1);
    metrics_finished(s->metrics, r->route, exchange_method(x), exchange_status(x),
                     s->clock->mono_us(s->clock) - exchange_started_us(x), exchange_bytes_in(x),
                     exchange_bytes_out(x));
    if (t != NULL)
        t->ops->free(t);
}

const struct server_handler service_handler = {on_begin, on_part, on_end, on_gone};

/* --- for the routes --------------------------------------------------------------------------- */

void *task_new(size_t size, const struct task_ops *ops, struct service *s, struct exchange *x)
{
    struct task *t = calloc(1, size);

    if (t == NULL) {
        reply_problem(x, 503, "nothing was stored: out of memory");
        return NULL;
    }
    *t = (struct task){ops, s, x};
    return t;
}

void reply_problem(struct exchange *x, unsigned status, const char *fmt, ...)
{
    struct response r = {0};
    char detail[800];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(detail, sizeof(detail), fmt, ap);
    va_end(ap);
    response_problem(&r, status, "%s", detail);
    exchange_reply(x, &r);
}

void reply_not_allowed(struct exchange *x, const char *allow)
{
    struct response r = {0};

    response_header(&r, "Allow", "%s", allow);
    response_problem(&r, 405, "this path takes %s", allow);
    exchange_reply(x, &r);
}

bool only_get(struct exchange *x)
{
    if (strcmp(exchange_method(x), "GET") == 0 || strcmp(exchange_method(x), "HEAD") == 0)
        return true;
    reply_not_allowed(x, "GET, HEAD");
    return false;
}

bool no_query(struct exchange *x)
{
    if (exchange_query(x).len == 0)
        return true;
    reply_problem(x, 400, "this request takes no query (a '?' in a key is written %%3F)");
    return false;
}

bool take_key(struct exchange *x, struct span path, struct buf *key)
{
    int err = path.len == 0 ? -EINVAL : key_from_url(key, path);

    if (err == 0 && key->err == 0)
        return true;
    if (err == -ENAMETOOLONG)
        reply_problem(x, 414, "a key has at most %u bytes", KEY_LEN_MAX);
    else if (path.len == 0)
        reply_problem(x, 400, "the key is empty");
    else if (err == -EINVAL)
        reply_problem(x, 400, "not a key: a bad %%-escape, or a NUL byte");
    else
        reply_problem(x, 503, "nothing was stored: out of memory");
    buf_fini(key);
    return false;
}

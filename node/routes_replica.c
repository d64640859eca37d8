/*
 * routes_replica.c - this node's part of the protocol over HTTP: POST /replica for the cluster, GET
 * /replica/{key} for people.
 *
 * Both wait for the disk, never for other nodes. What is small does so on the server's thread; a
 * large value goes to the workers as it comes (relay.h).
 */
#include "node/routes.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/limits.h"
#include "common/relay.h"
#include "common/status.h"

/* A value in memory up to this is copied behind its head, to go out in one piece. */
#define COPY_MAX (128u << 10)

/* --- POST /replica ---------------------------------------------------------------------------- */

struct raw {
    struct task task;
    struct replica_request *rq; /* NULL where it is relayed, or ended */
    struct relay *relay;        /* of a large one */
};

/* What the relay of a large request owns. */
struct relayed {
    struct exchange *x;
    struct replica_request *rq;
};

static int64_t read_reply(void *arg, uint64_t pos, void *out, size_t cap)
{
    return reply_read(arg, pos, out, cap);
}

static void free_reply(void *arg)
{
    reply_fini(arg);
    free(arg);
}

/* The bytes of *reply behind the headers of *r. Takes both. */
static void send_body(struct exchange *x, struct response *r, struct reply *reply)
{
    struct reply *kept;

    if (reply->fd < 0 && reply->value.len <= COPY_MAX) {
        buf_add_span(&reply->head, value_span(reply->value));
        if (reply->head.err == 0) {
            r->text = reply->head;
            reply->head = (struct buf){0};
            reply_fini(reply);
            exchange_reply(x, r);
            return;
        }
    }
    kept = malloc(sizeof(*kept));
    if (kept == NULL || reply->head.err != 0) {
        free(kept);
        reply_fini(reply);
        response_fini(r);
        reply_problem(x, 503, "out of memory");
        return;
    }
    *kept = *reply;
    *reply = REPLY_NONE;
    r->read = read_reply;
    r->read_free = free_reply;
    r->read_arg = kept;
    r->body_len = reply_len(kept);
    exchange_reply(x, r);
}

/* Takes *reply. */
static void send_reply(struct exchange *x, struct reply *reply)
{
    struct response r = {.status = reply->status};

    response_header(&r, "Content-Type", "application/octet-stream");
    send_body(x, &r, reply);
}

/*
 * What fails is told by the answer, after the rest: while a body comes in there is no answering.
 */
static int relayed_take(void *arg, struct span part)
{
    (void)replica_feed(((struct relayed *)arg)->rq, part);
    return 0;
}

static void relayed_room(void *arg)
{
    exchange_go_on(((struct relayed *)arg)->x);
}

static void relayed_ended(void *arg, int err)
{
    struct relayed *d = arg;
    struct exchange *x = d->x;
    struct reply reply;

    if (err < 0) {
        reply_problem(x, 503, "%s", err == -ECANCELED ? "this node stops" : strerror(-err));
        return;
    }
    replica_end(d->rq, &reply);
    d->rq = NULL;
    send_reply(x, &reply);
}

static void relayed_free(void *arg)
{
    struct relayed *d = arg;

    replica_abort(d->rq);
    free(d);
}

static const struct relay_ops relayed_ops = {relayed_take, relayed_room, relayed_ended,
                                             relayed_free};

/* Moves the request to a relay. 0 or -ENOMEM. */
static int raw_relay(struct raw *w)
{
    struct relayed *d = malloc(sizeof(*d));
    int err = -ENOMEM;

    if (d != NULL) {
        *d = (struct relayed){w->task.x, w->rq};
        err = relay_new(w->task.service->workers, &relayed_ops, d, &w->relay);
    }
    if (err < 0)
        free(d);
    else
        w->rq = NULL;
    return err;
}

static void raw_part(struct task *t, struct span part)
{
    struct raw *w = container_of(t, struct raw, task);

    if (w->relay == NULL)
        (void)replica_feed(w->rq, part);
    else if (relay_add(w->relay, part) == RELAY_FULL)
        exchange_pause(t->x);
}

static void raw_end(struct task *t)
{
    struct raw *w = container_of(t, struct raw, task);
    struct reply reply;

    if (w->relay != NULL) {
        relay_end(w->relay);
        return;
    }
    replica_end(w->rq, &reply);
    w->rq = NULL;
    send_reply(t->x, &reply);
}

static void raw_free(struct task *t)
{
    struct raw *w = container_of(t, struct raw, task);

    relay_free(w->relay);
    replica_abort(w->rq);
    free(w);
}

static const struct task_ops raw_ops = {raw_part, raw_end, raw_free};

/* Is there a replica here at all? Else it has replied. */
static bool has_replica(struct service *s, struct exchange *x)
{
    if (s->replica != NULL)
        return true;
    reply_problem(x, 404, "a gateway keeps no replicas");
    return false;
}

struct task *replica_begin_raw(struct service *s, struct exchange *x, struct span rest)
{
    uint64_t len = exchange_body_length(x);
    struct raw *w;
    int err;

    (void)rest;
    if (strcmp(exchange_method(x), "POST") != 0) {
        reply_not_allowed(x, "POST");
        return NULL;
    }
    if (!has_replica(s, x))
        return NULL;
    if (len == 0 || len == BODY_LENGTH_UNKNOWN) {
        reply_problem(x, 411, "a replica request says how long it is");
        return NULL;
    }
    if (len > MESSAGE_HEAD_MAX + s->cfg->max_value_size) {
        reply_problem(x, 413, "a request of %" PRIu64 " bytes is longer than any", len);
        return NULL;
    }
    w = task_new(sizeof(*w), &raw_ops, s, x);
    if (w == NULL)
        return NULL;
    exchange_keep_connection(x);
    err = replica_begin(s->replica, len, &w->rq);
    if (err != 0)
        w->rq = NULL;
    else if (len > INLINE_VALUE_MAX)
        err = raw_relay(w);
    if (err != 0) {
        reply_problem(x, status_from_errno(err), "%s", strerror(-err));
    }
    return &w->task;
}

/* --- GET /replica/{key} ----------------------------------------------------------------------- */

struct peek {
    struct task task;
    struct buf key;
};

static void peek_end(struct task *t)
{
    struct peek *p = container_of(t, struct peek, task);
    struct service *s = t->service;
    struct span key = buf_span(&p->key);
    struct response r = {.status = 200};
    struct record_copy rec = {0};
    struct reply value = REPLY_NONE;
    int err = replica_peek(s->replica, key, &rec, &value);

    if (err == -EREMCHG) {
        reply_not_here(s, t->x, key);
    } else if (err != 0) {
        reply_problem(t->x, status_from_errno(err), "this node's copy cannot be read: %s",
                      err != -EAGAIN                   ? strerror(-err)
                      : replica_superseded(s->replica) ? "superseded"
                                                       : "recovering");
    } else if (!record_is_live(&rec.rec)) {
        reply_problem(t->x, 404, "this node has no copy of that key");
    } else {
        kv_add_version(&r, &rec.rec);
        response_header(&r, "Content-Type", "application/octet-stream");
        send_body(t->x, &r, &value);
    }
    reply_fini(&value);
    record_copy_fini(&rec);
}

static void peek_free(struct task *t)
{
    struct peek *p = container_of(t, struct peek, task);

    buf_fini(&p->key);
    free(p);
}

static const struct task_ops peek_ops = {NULL, peek_end, peek_free};

struct task *replica_begin_peek(struct service *s, struct exchange *x, struct span rest)
{
    const char *ring = exchange_header(x, "Kvfs-Ring");
    char own[17];
    struct buf key = {0};
    struct peek *p;

    if (!only_get(x) || !has_replica(s, x) || !no_query(x) || !take_key(x, rest, &key))
        return NULL;
    p = task_new(sizeof(*p), &peek_ops, s, x);
    if (p == NULL) {
        buf_fini(&key);
        return NULL;
    }
    p->key = key;
    snprintf(own, sizeof(own), "%016" PRIx64, ring_fingerprint(s->cfg->ring));
    if (ring != NULL && strcmp(ring, own) != 0)
        reply_problem(x, 409, "this node's ring is %s", own);
    return &p->task;
}

/*
 * routes_replica.c - this node's part of the protocol over HTTP: POST /replica for the cluster, GET
 * /replica/{key} for people.
 *
 * Both wait for the disk, never for other nodes. What is small does so on the server's thread; a
 * large value goes to the workers as it comes (relay.h), and is read by them as it goes.
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
    struct loop_job reading;    /* the first part of a large value, for the answer */
};

/* What the relay of a large request owns. */
struct relayed {
    struct task *task; /* there while the body is paused, or not answered */
    struct replica_request *rq;
};

/*
 * An answer on its way out. Either the server's thread is at it, or, while that sleeps, a worker,
 * which loads what comes next from its file.
 */
struct sending {
    struct reply reply;
    struct exchange *x;
    struct workers *workers;
    struct loop_job loading;
    uint64_t pos; /* of what is loaded */
    int err;
};

static void on_loading(struct loop_job *job)
{
    struct sending *s = container_of(job, struct sending, loading);

    s->err = workers_hurried(s->workers) ? -ECANCELED : reply_load(&s->reply, s->pos);
    exchange_wake(s->x);
}

static int64_t read_reply(void *arg, uint64_t pos, void *out, size_t cap)
{
    struct sending *s = arg;
    int64_t n = s->err < 0 ? s->err : reply_read_loaded(&s->reply, pos, out, cap);

    if (n == 0) {
        s->pos = pos;
        workers_post(s->workers, &s->loading);
    }
    return n;
}

static void free_reply(void *arg)
{
    struct sending *s = arg;

    reply_fini(&s->reply);
    free(s);
}

/* The bytes of *reply behind the headers of *r. Takes both. */
static void send_body(struct task *t, struct response *r, struct reply *reply)
{
    struct exchange *x = t->x;
    struct sending *s;

    if (reply->large == NULL && reply->value.len <= COPY_MAX) {
        buf_add_span(&reply->head, value_span(reply->value));
        if (reply->head.err == 0) {
            r->text = reply->head;
            reply->head = (struct buf){0};
            reply_fini(reply);
            exchange_reply(x, r);
            return;
        }
    }
    s = malloc(sizeof(*s));
    if (s == NULL || reply->head.err != 0) {
        free(s);
        reply_fini(reply);
        response_fini(r);
        reply_problem(x, 503, "out of memory");
        return;
    }
    *s = (struct sending){*reply, x, t->service->workers, {.fn = on_loading}, 0, 0};
    *reply = REPLY_NONE;
    r->read = read_reply;
    r->read_free = free_reply;
    r->read_arg = s;
    r->body_len = reply_len(&s->reply);
    exchange_reply(x, r);
}

/* Takes *reply. */
static void send_reply(struct task *t, struct reply *reply)
{
    struct response r = {.status = reply->status};

    response_header(&r, "Content-Type", "application/octet-stream");
    send_body(t, &r, reply);
}

/* err: why a worker did not come to it. */
static void reply_not_done(struct task *t, int err)
{
    reply_problem(t->x, 503, "%s", err == -ECANCELED ? "this node stops" : strerror(-err));
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
    exchange_go_on(((struct relayed *)arg)->task->x);
}

static void relayed_ended(void *arg, int err)
{
    struct relayed *d = arg;
    struct task *t = d->task;
    struct reply reply;

    if (err < 0) {
        reply_not_done(t, err);
        return;
    }
    replica_end(d->rq, &reply);
    d->rq = NULL;
    send_reply(t, &reply);
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
        *d = (struct relayed){&w->task, w->rq};
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

/* On a worker. */
static void on_reading(struct loop_job *job)
{
    struct raw *w = container_of(job, struct raw, reading);
    struct replica_request *rq = w->rq;
    struct reply reply;

    if (workers_hurried(w->task.service->workers)) {
        reply_not_done(&w->task, -ECANCELED);
        return;
    }
    w->rq = NULL;
    replica_end(rq, &reply);
    send_reply(&w->task, &reply);
}

static void raw_end(struct task *t)
{
    struct raw *w = container_of(t, struct raw, task);
    struct reply reply;

    if (w->relay != NULL) {
        relay_end(w->relay);
    } else if (replica_ask(w->rq, &reply)) {
        w->rq = NULL;
        send_reply(t, &reply);
    } else {
        w->reading.fn = on_reading;
        workers_post(t->service->workers, &w->reading);
    }
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
    struct loop_job reading;
};

/* On a worker: it may be large. */
static void on_peek(struct loop_job *job)
{
    struct peek *p = container_of(job, struct peek, reading);
    struct task *t = &p->task;
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
        send_body(t, &r, &value);
    }
    reply_fini(&value);
    record_copy_fini(&rec);
}

static void peek_end(struct task *t)
{
    struct peek *p = container_of(t, struct peek, task);

    p->reading.fn = on_peek;
    workers_post(t->service->workers, &p->reading);
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

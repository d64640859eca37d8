/*
 * exchange.c - the life of an exchange: a request as libmicrohttpd brings it, and its answer.
 *
 * libmicrohttpd calls exchange_on_uri() when the request line is in, then exchange_on_request()
 * once for the header, once per piece of body, and a last time; then it may be answered. An answer
 * queued in the first call ends the connection, so answers of begin() wait for the last call where
 * the body is short enough to be swallowed. While a body comes in nothing can be queued at all:
 * then the answer is sent by hand.
 *
 * A suspended connection is resumed by whoever replies. `state` decides the race between end()
 * returning and a reply from elsewhere:
 *
 *     server thread: end() returns; suspend; RUNNING -> WAITING, or, where it is REPLIED already,
 *                    resume at once
 *     replier:       stores the response; -> REPLIED; resumes where it was WAITING
 *
 * In the same way a body is paused, and `flow` decides between that and exchange_go_on().
 *
 * An answer sleeps likewise while its reader has nothing, and `stream` decides between that
 * and exchange_wake(). Of one without end the connection's deadline moves on each time that the
 * socket has taken all so far: it is cut only where its client takes nothing.
 */
#include "node/exchange.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>

#include "common/log.h"
#include "node/listener.h"

/* Of answers that are read while sent. */
#define BLOCK_SIZE (128u << 10)
/* An unwanted body up to this is read rather than the connection closed. */
#define SWALLOW_MAX (64u << 10)
/* Between requests. */
#define IDLE_LIMIT_US 60000000u
/* A body or an answer may take so long, and as much longer as it moves this many bytes a second. */
#define GRACE_US 20000000u
#define RATE_MIN (256u << 10)

/* --- who keeps libmicrohttpd from being stopped ----------------------------------------------- */

/* False: too late, the connection is to be cut. */
static bool hold(struct server *s)
{
    bool may;

    pthread_mutex_lock(&s->lock);
    may = !s->closing;
    s->n_held += may;
    pthread_mutex_unlock(&s->lock);
    return may;
}

/* Each hold() is given up once: by who took it, or by who resumes the connection. */
static void release(struct server *s)
{
    pthread_mutex_lock(&s->lock);
    if (--s->n_held == 0)
        pthread_cond_signal(&s->released);
    pthread_mutex_unlock(&s->lock);
}

/* --- the framing of a request ----------------------------------------------------------------- */

static enum MHD_Result add_header(void *cls, enum MHD_ValueKind kind, const char *name,
                                  size_t name_len, const char *value, size_t value_len)
{
    (void)kind;
    return framing_add(cls, name, name_len, value, value_len) ? MHD_YES : MHD_NO;
}

/*
 * Reads the header's framing into x; the reason why it cannot be trusted, or NULL. The request line
 * and the header lie in one buffer, in order; strings end at their first NUL there, so what a NUL
 * would hide shows as bytes that no string covers.
 */
static const char *check_framing(struct exchange *x, const char *url, const char *method,
                                 const char *version)
{
    const union MHD_ConnectionInfo *size =
        MHD_get_connection_info(x->connection, MHD_CONNECTION_INFO_REQUEST_HEADER_SIZE);
    struct framing f = {.at = version + strlen(version)};

    if (size == NULL || version - url != (ptrdiff_t)x->target_len + 1)
        return "the request line holds a NUL byte";
    for (size_t i = 0; i < x->target_len; i++)
        if ((unsigned char)x->target[i] <= ' ' || x->target[i] == 0x7f)
            return "the request target holds a space or a control character";
    MHD_get_connection_values_n(x->connection, MHD_HEADER_KIND, add_header, &f);
    return framing_finish(&f, method + size->header_size, version, &x->body_length, &x->has_length);
}

/* --- answers ---------------------------------------------------------------------------------- */

/* The reader of an answer, for libmicrohttpd. */
struct source {
    struct exchange *x; /* not after gone() */
    response_read_fn *read;
    void (*free)(void *arg);
    void *arg;
};

/*
 * Asks the reader for the next bytes. Where it has none the connection sleeps, and this says 0,
 * until exchange_wake(), which may have come already.
 */
static int64_t source_ask(struct source *src, uint64_t pos, char *out, size_t cap)
{
    enum stream_state busy = STREAM_BUSY;
    struct exchange *x = src->x;
    struct server *s = x->server;
    int64_t n;

    if (src->read == NULL)
        return -EIO;
    if (!hold(s))
        return -ESHUTDOWN;
    atomic_store(&x->stream, STREAM_BUSY); /* before it looks: what comes after it wakes it */
    n = src->read(src->arg, pos, out, cap);
    if (n == 0) {
        MHD_suspend_connection(x->connection);
        if (atomic_compare_exchange_strong(&x->stream, &busy, STREAM_ASLEEP))
            return 0;
        MHD_resume_connection(x->connection);
    }
    release(s);
    return n;
}

static ssize_t source_read(void *cls, uint64_t pos, char *out, size_t cap)
{
    int64_t n = source_ask(cls, pos, out, cap);

    return n >= 0 ? (ssize_t)n : MHD_CONTENT_READER_END_WITH_ERROR;
}

static ssize_t source_read_endless(void *cls, uint64_t pos, char *out, size_t cap)
{
    struct source *src = cls;
    struct exchange *x = src->x;
    int64_t n;

    if (!atomic_load(&x->hurried)) /* the socket has taken all so far */
        (void)conn_works(x->conn, server_now_us(x->server) + GRACE_US);
    n = source_ask(src, pos, out, cap);
    if (n == RESPONSE_END)
        return MHD_CONTENT_READER_END_OF_STREAM;
    if (n < 0)
        return MHD_CONTENT_READER_END_WITH_ERROR;
    if (n > 0)
        x->bytes_out += (uint64_t)n;
    return (ssize_t)n;
}

static void source_free(void *cls)
{
    struct source *src = cls;

    if (src->free != NULL)
        src->free(src->arg);
    free(src);
}

static void unref_blob(void *blob)
{
    blob_unref(blob);
}

/* NULL without memory. */
static struct MHD_Response *make_source(struct exchange *x)
{
    struct response *r = &x->resp;
    bool endless = r->body_len == RESPONSE_ENDLESS;
    struct source *src = malloc(sizeof(*src));
    struct MHD_Response *m;

    if (src == NULL)
        return NULL;
    *src = (struct source){x, r->read, r->read_free, r->read_arg};
    m = MHD_create_response_from_callback(endless ? MHD_SIZE_UNKNOWN : r->body_len, BLOCK_SIZE,
                                          endless ? source_read_endless : source_read, src,
                                          source_free);
    if (m == NULL)
        free(src);
    else
        r->read_free = NULL;
    return m;
}

/* Moves the body of x's response into an answer of libmicrohttpd; NULL without memory. */
static struct MHD_Response *make_body(struct exchange *x)
{
    struct response *r = &x->resp;
    struct MHD_Response *m;

    if (r->body_len > 0)
        return make_source(x);
    if (r->text.len > 0) {
        m = MHD_create_response_from_buffer(r->text.len, r->text.data, MHD_RESPMEM_MUST_FREE);
        if (m != NULL)
            r->text = (struct buf){0};
        return m;
    }
    if (r->value.len > 0) {
        /* It is not written through: libmicrohttpd's type has no const. */
        m = MHD_create_response_from_buffer_with_free_callback_cls(
            r->value.len, (void *)(uintptr_t)r->value.data, unref_blob, r->value.blob);
        if (m != NULL)
            r->value = (struct value){0};
        return m;
    }
    return MHD_create_response_from_buffer(0, NULL, MHD_RESPMEM_PERSISTENT);
}

static struct MHD_Response *make_response(struct exchange *x)
{
    struct response *r = &x->resp;
    struct MHD_Response *m;
    const char *name, *value;
    size_t pos = 0;

    x->bytes_out =
        strcmp(x->method, "HEAD") == 0 || r->body_len == RESPONSE_ENDLESS ? 0 : response_len(r);
    if (r->headers.err != 0 || (m = make_body(x)) == NULL)
        return NULL;
    while (response_next_header(r, &pos, &name, &value))
        (void)MHD_add_response_header(m, name, value);
    if (r->close || atomic_load(&x->server->draining) > (x->kept ? DRAIN_CLIENTS : DRAIN_NONE))
        (void)MHD_add_response_header(m, "Connection", "close");
    return m;
}

/* Sends the stored answer through libmicrohttpd; in its first or last call only. */
static enum MHD_Result queue(struct exchange *x)
{
    struct MHD_Response *m = make_response(x);
    enum MHD_Result r;

    if (m == NULL) {
        log_event(LOG_LEVEL_ERROR, "no-memory", "for=response");
        return MHD_NO;
    }
    if (!conn_works(x->conn,
                    server_now_us(x->server) + GRACE_US + x->bytes_out * 1000000 / RATE_MIN)) {
        MHD_destroy_response(m);
        return MHD_NO;
    }
    x->status = x->resp.status;
    x->queued = true;
    r = MHD_queue_response(x->connection, x->status, m);
    MHD_destroy_response(m);
    return r;
}

/*
 * While a body comes in, libmicrohttpd takes no answer: a short one goes out by hand, and the
 * connection is closed.
 */
static enum MHD_Result refuse_midway(struct exchange *x)
{
    struct response *r = &x->resp;
    struct buf out = {0};

    response_write(r, &out);
    if (out.err == 0 &&
        send(conn_fd(x->conn), out.data, out.len, MSG_DONTWAIT | MSG_NOSIGNAL) == (ssize_t)out.len)
        x->status = r->status;
    buf_fini(&out);
    conn_linger(x->conn);
    return MHD_NO;
}

void exchange_reply(struct exchange *x, struct response *r)
{
    struct server *s = x->server;

    x->resp = *r;
    *r = (struct response){0};
    switch (atomic_exchange(&x->state, REPLIED)) {
    case RUNNING:
        break;
    case WAITING:
        pthread_mutex_lock(&s->lock);
        s->n_answering++;
        x->answering = true;
        pthread_mutex_unlock(&s->lock);
        MHD_resume_connection(x->connection);
        release(s);
        break;
    case REPLIED:
        assert(!"one reply per exchange");
    }
}

void exchange_wake(struct exchange *x)
{
    struct server *s = x->server;

    if (atomic_exchange(&x->stream, STREAM_WOKEN) != STREAM_ASLEEP)
        return;
    MHD_resume_connection(x->connection);
    release(s);
}

/* So long a body may take, not counting the time in which nobody took it. */
static uint64_t body_deadline_us(const struct exchange *x)
{
    return x->started_us + x->paused_us + GRACE_US + x->bytes_in * 1000000 / RATE_MIN;
}

void exchange_pause(struct exchange *x)
{
    x->pausing = true;
}

/* After the part() that said so: the connection sleeps, unless it is to go on already. */
static void pause_body(struct exchange *x)
{
    enum flow_state flowing = FLOWING;

    x->pausing = false;
    x->paused_since = server_now_us(x->server);
    (void)conn_works(x->conn, 0);
    MHD_suspend_connection(x->connection);
    if (atomic_compare_exchange_strong(&x->flow, &flowing, PAUSED))
        return; /* it may be gone already */
    atomic_store(&x->flow, FLOWING);
    (void)conn_works(x->conn, body_deadline_us(x));
    MHD_resume_connection(x->connection);
    release(x->server);
}

void exchange_go_on(struct exchange *x)
{
    struct server *s = x->server;

    if (atomic_exchange(&x->flow, GOES_ON) != PAUSED)
        return;
    atomic_store(&x->flow, FLOWING);
    x->paused_us += server_now_us(s) - x->paused_since;
    (void)conn_works(x->conn, body_deadline_us(x));
    MHD_resume_connection(x->connection);
    release(s);
}

void exchange_hurry(struct exchange *x, uint64_t within_us)
{
    atomic_store(&x->hurried, true);
    (void)conn_works(x->conn, server_now_us(x->server) + within_us);
}

bool exchange_replied(const struct exchange *x)
{
    return atomic_load(&x->state) == REPLIED;
}

/* --- the life of an exchange ------------------------------------------------------------------ */

/* May the body of an answered request be read to its end, to keep the connection? */
static bool may_swallow(const struct exchange *x)
{
    return !x->resp.close && x->body_length != BODY_LENGTH_UNKNOWN &&
           x->body_length - x->bytes_in <= SWALLOW_MAX && exchange_header(x, "Expect") == NULL;
}

/* Who is slow to send what nobody wants is the first to go when room is short. */
static void swallow(struct exchange *x)
{
    x->swallow = true;
    conn_unwanted(x->conn, x->started_us + GRACE_US);
}

/*
 * Has the client ended its side with the body still incomplete? libmicrohttpd learns of that by an
 * edge of epoll, and misses one that came together with the last bytes; the connection would wait
 * for its deadline. (Of a chunked body its buffer may hold the end already.)
 */
static bool is_cut(const struct exchange *x)
{
    char byte;

    return x->body_length != BODY_LENGTH_UNKNOWN && x->bytes_in < x->body_length &&
           recv(conn_fd(x->conn), &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0;
}

static enum MHD_Result begin(struct exchange *x, const char *url, const char *method,
                             const char *version)
{
    struct server *s = x->server;
    const char *why;

    snprintf(x->method, sizeof(x->method), "%s", method);
    why = check_framing(x, url, method, version);
    if (!conn_works(x->conn, x->body_length > 0 ? server_now_us(s) + GRACE_US : 0))
        return MHD_NO;
    if (why != NULL) {
        struct response r = {.close = true};

        response_problem(&r, 400, "%s", why);
        exchange_reply(x, &r);
    } else {
        pthread_mutex_lock(&s->lock);
        s->n_exchanges++;
        pthread_mutex_unlock(&s->lock);
        x->begun = true;
        s->opts.handler.begin(s->opts.ctx, x);
    }
    if (!exchange_replied(x))
        return MHD_YES;
    if (x->body_length == 0 && !x->resp.close) {
        x->ended = true;
        return MHD_YES; /* the last call comes at once */
    }
    if (may_swallow(x)) {
        swallow(x);
        return MHD_YES;
    }
    if (x->body_length > 0 || why != NULL)
        conn_linger(x->conn);
    return queue(x);
}

static enum MHD_Result part(struct exchange *x, struct span data)
{
    struct server *s = x->server;

    x->bytes_in += data.len;
    if (x->swallow)
        return MHD_YES;
    (void)conn_works(x->conn, body_deadline_us(x));
    if (!hold(s))
        return MHD_NO;
    s->opts.handler.part(s->opts.ctx, x, data);
    if (x->pausing) { /* nothing may end it before exchange_go_on() */
        pause_body(x);
        return MHD_YES;
    }
    release(s);
    if (!exchange_replied(x))
        return is_cut(x) ? MHD_NO : MHD_YES;
    if (may_swallow(x)) {
        swallow(x);
        return MHD_YES;
    }
    return refuse_midway(x);
}

static enum MHD_Result finish(struct exchange *x)
{
    struct server *s = x->server;
    enum exchange_state running = RUNNING;

    if (exchange_replied(x))
        return queue(x);
    if (!hold(s))
        return MHD_NO;
    assert(!x->ended);
    x->ended = true;
    (void)conn_works(x->conn, 0); /* its operation has a time limit of its own */
    s->opts.handler.end(s->opts.ctx, x);
    if (exchange_replied(x)) {
        release(s);
        return queue(x);
    }
    MHD_suspend_connection(x->connection);
    if (!atomic_compare_exchange_strong(&x->state, &running, WAITING)) {
        MHD_resume_connection(x->connection);
        release(s);
    }
    return MHD_YES;
}

enum MHD_Result exchange_on_request(void *cls, struct MHD_Connection *connection, const char *url,
                                    const char *method, const char *version, const char *data,
                                    size_t *data_len, void **context)
{
    struct exchange *x = *context;
    struct span piece;

    (void)cls;
    if (x == NULL || x->conn == NULL)
        return MHD_NO; /* no memory */
    if (x->connection == NULL) {
        x->connection = connection;
        return begin(x, url, method, version);
    }
    if (*data_len == 0)
        return finish(x);
    if (atomic_load(&x->flow) == PAUSED)
        return MHD_YES; /* a chunk behind the one that was too much: it is brought again */
    piece = span_of(data, *data_len);
    *data_len = 0;
    return part(x, piece);
}

void *exchange_on_uri(void *cls, const char *uri, struct MHD_Connection *connection)
{
    struct server *s = cls;
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    size_t len = uri == NULL ? 0 : strlen(uri);
    struct exchange *x = calloc(1, sizeof(*x) + len + 1);

    if (x == NULL)
        return NULL;
    x->server = s;
    x->conn = info == NULL ? NULL : info->socket_context;
    x->started_us = server_now_us(s);
    x->target_len = len;
    if (len > 0)
        memcpy(x->target, uri, len);
    x->path_len = strcspn(x->target, "?");
    if (x->conn != NULL)
        conn_waits(x->conn, x->started_us + HEADER_LIMIT_US);
    return x;
}

void exchange_on_completed(void *cls, struct MHD_Connection *connection, void **context,
                           enum MHD_RequestTerminationCode code)
{
    struct server *s = cls;
    struct exchange *x = *context;

    (void)connection;
    if (x == NULL)
        return;
    *context = NULL;
    if (x->queued && code != MHD_REQUEST_TERMINATED_COMPLETED_OK)
        x->status = 0;
    if (x->conn != NULL)
        conn_waits(x->conn, server_now_us(s) + IDLE_LIMIT_US);
    if (x->begun) {
        s->opts.handler.gone(s->opts.ctx, x);
        pthread_mutex_lock(&s->lock);
        s->n_exchanges--;
        s->n_kept -= x->kept;
        s->n_answering -= x->answering;
        pthread_cond_signal(&s->drained);
        pthread_mutex_unlock(&s->lock);
    }
    response_fini(&x->resp);
    free(x);
}

/* --- the request, for handlers ---------------------------------------------------------------- */

const char *exchange_method(const struct exchange *x)
{
    return x->method;
}

struct span exchange_path(const struct exchange *x)
{
    return span_of(x->target, x->path_len);
}

struct span exchange_query(const struct exchange *x)
{
    if (x->path_len == x->target_len)
        return span_of(NULL, 0);
    return span_of(x->target + x->path_len + 1, x->target_len - x->path_len - 1);
}

const char *exchange_header(const struct exchange *x, const char *name)
{
    return MHD_lookup_connection_value(x->connection, MHD_HEADER_KIND, name);
}

struct count {
    const char *name;
    unsigned n;
};

static enum MHD_Result count_header(void *cls, enum MHD_ValueKind kind, const char *name,
                                    const char *value)
{
    struct count *c = cls;

    (void)kind;
    (void)value;
    c->n += strcasecmp(name, c->name) == 0;
    return MHD_YES;
}

unsigned exchange_header_count(const struct exchange *x, const char *name)
{
    struct count c = {.name = name};

    MHD_get_connection_values(x->connection, MHD_HEADER_KIND, count_header, &c);
    return c.n;
}

uint64_t exchange_body_length(const struct exchange *x)
{
    return x->body_length;
}

bool exchange_has_length(const struct exchange *x)
{
    return x->has_length;
}

uint64_t exchange_started_us(const struct exchange *x)
{
    return x->started_us;
}

unsigned exchange_connections(const struct exchange *x)
{
    return conns_count(x->server->conns);
}

void exchange_keep_connection(struct exchange *x)
{
    conn_keep(x->conn);
    if (x->kept)
        return;
    x->kept = true;
    pthread_mutex_lock(&x->server->lock);
    x->server->n_kept++;
    pthread_mutex_unlock(&x->server->lock);
}

void exchange_set_user(struct exchange *x, void *user)
{
    x->user = user;
}

void *exchange_user(const struct exchange *x)
{
    return x->user;
}

unsigned exchange_status(const struct exchange *x)
{
    return x->status;
}

uint64_t exchange_bytes_in(const struct exchange *x)
{
    return x->bytes_in;
}

uint64_t exchange_bytes_out(const struct exchange *x)
{
    return x->bytes_out;
}

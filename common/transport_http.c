/*
 * transport_http.c - the transport over libcurl: one multi handle on a loop.
 *
 * A call gets a request, which ends in done() whatever happens. It is first `waiting` for one of
 * its peer's connections, then `running` on an easy handle; what cannot even begin is `failed`, and
 * answered by the next turn of the loop, for done() must not come from inside send().
 *
 * Cost per request is what the choices here are about: easy handles are kept per peer with all
 * options set, so that a request sets only its body; deadlines are timers of our own, not curl's;
 * and a connection's socket stays in the epoll set between requests, see sockets.h.
 */
#include "common/transport_http.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/curl_loop.h"
#include "common/gather.h"
#include "common/limits.h"
#include "common/payload.h"
#include "common/streams.h"

#define PEER_CONNECTIONS_MAX 32u   /* per loop; further calls to that node wait */
#define SMALL_BODY_MAX (64u << 10) /* curl sends smaller bodies in one piece with the HTTP head */
#define SMALL_BODY_KEEP_MAX (8u << 10) /* memory that an idle handle keeps */
#define RECEIVE_BUFFER_SIZE (128L << 10)
#define SEND_BUFFER_SIZE (256L << 10)
#define ENTRY_LEN_MAX (KEY_LEN_MAX + 256u)

_Static_assert(SMALL_BODY_MAX <= 64u << 10, "curl copies them into its own buffer");

struct http;

static void on_transfer(struct transfer *t, CURLcode code);

struct peer {
    struct http *http;
    char *origin, *url; /* "http://host:port"; of replica requests */
    unsigned n_running;
    struct list idle;    /* handles, the last used first */
    struct list waiting; /* calls, in the order they came */
};

/* An easy handle with everything set that all requests to its peer share. */
struct handle {
    struct transfer transfer;
    struct list link;
    CURL *easy;
    struct request *rq; /* NULL while idle */
    struct buf small;   /* the body of a small request */
};

struct request {
    struct http *http;
    struct peer *peer;
    struct call *call;
    struct handle *handle; /* while running */
    struct timer deadline;
    struct payload payload;
    struct gather *gather; /* of an answer too large for memory */
    bool full, paused;     /* the gather's: nothing more may be added; curl was told so */
    int err;               /* why our own callback stopped it */
    bool again;            /* it had to begin anew, on a connection of its own */
};

struct http {
    struct transport base;
    struct curl_loop curl;
    struct streams streams;
    struct curl_slist *headers;
    unsigned n_peers;
    struct peer *peers;
    struct workers *workers; /* NULL: the loop waits for the disk itself */
    uint64_t answer_len_max;
    struct list running, failed; /* calls; of a failed one priv is the error */
    struct timer failed_timer;
    bool closing;
};

static struct http *http_of(struct transport *t)
{
    return container_of(t, struct http, base);
}

/* --- what curl calls back for ----------------------------------------------------------------- */

static struct payload *payload_of(void *handle)
{
    return &((struct handle *)handle)->rq->payload;
}

static size_t on_read(char *out, size_t size, size_t n, void *arg)
{
    return payload_read(payload_of(arg), out, size * n);
}

/* Curl sends a body again when a connection that it kept turns out to be closed. */
static int on_seek(void *arg, curl_off_t offset, int origin)
{
    if (origin != SEEK_SET || offset < 0 || payload_seek(payload_of(arg), (uint64_t)offset) < 0)
        return CURL_SEEKFUNC_FAIL;
    return CURL_SEEKFUNC_OK;
}

static int gather_begin(struct request *rq, size_t len);

static size_t on_write(char *data, size_t size, size_t n, void *arg)
{
    struct handle *hd = arg;
    struct request *rq = hd->rq;
    struct span part = span_of(data, size * n);
    curl_off_t announced = -1;

    if (rq->full) {
        rq->paused = true;
        return CURL_WRITEFUNC_PAUSE;
    }
    curl_easy_getinfo(hd->easy, CURLINFO_CONTENT_LENGTH_DOWNLOAD_T, &announced);
    rq->err = 0;
    if (rq->gather == NULL && rq->payload.answer == NULL && announced > MEMORY_BLOB_MAX &&
        (uint64_t)announced <= rq->payload.answer_len_max && rq->http->workers != NULL)
        rq->err = gather_begin(rq, (size_t)announced);
    if (rq->err == 0 && rq->gather != NULL) {
        rq->err = gather_add(rq->gather, part);
        rq->full = rq->err == RELAY_FULL;
        return rq->err < 0 ? 0 : part.len;
    }
    if (rq->err == 0)
        rq->err = payload_write(&rq->payload, part, announced);
    if (rq->err < 0)
        return 0;
    if (rq->call->arrived != NULL)
        rq->call->arrived(rq->call, rq->payload.answer, rq->payload.answer_len);
    return part.len;
}

/* --- easy handles ----------------------------------------------------------------------------- */

static void handle_free(struct handle *hd)
{
    if (hd == NULL)
        return;
    if (hd->easy != NULL)
        curl_easy_cleanup(hd->easy);
    buf_fini(&hd->small);
    free(hd);
}

static CURLcode set_callbacks(struct handle *hd)
{
    CURL *e = hd->easy;
    CURLcode code = CURLE_OK;

    code |= curl_easy_setopt(e, CURLOPT_WRITEFUNCTION, on_write);
    code |= curl_easy_setopt(e, CURLOPT_WRITEDATA, hd);
    code |= curl_easy_setopt(e, CURLOPT_READFUNCTION, on_read);
    code |= curl_easy_setopt(e, CURLOPT_READDATA, hd);
    code |= curl_easy_setopt(e, CURLOPT_SEEKFUNCTION, on_seek);
    code |= curl_easy_setopt(e, CURLOPT_SEEKDATA, hd);
    return code;
}

static CURLcode set_options(struct handle *hd, struct peer *p)
{
    CURL *e = hd->easy;
    CURLcode code = curl_loop_prepare(&p->http->curl, e, &hd->transfer, p->url);

    code |= curl_easy_setopt(e, CURLOPT_POST, 1L);
    code |= curl_easy_setopt(e, CURLOPT_HTTPHEADER, p->http->headers);
    code |= curl_easy_setopt(e, CURLOPT_BUFFERSIZE, RECEIVE_BUFFER_SIZE);
    code |= curl_easy_setopt(e, CURLOPT_UPLOAD_BUFFERSIZE, SEND_BUFFER_SIZE);
    return code;
}

static struct handle *handle_new(struct peer *p)
{
    struct handle *hd = calloc(1, sizeof(*hd));

    if (hd == NULL)
        return NULL;
    hd->transfer.ended = on_transfer;
    hd->easy = curl_easy_init();
    /*
     * The codes of setopt are or-ed: that is not a code any more, but not CURLE_OK either where one
     * failed.
     */
    if (hd->easy == NULL || set_callbacks(hd) != CURLE_OK || set_options(hd, p) != CURLE_OK) {
        handle_free(hd);
        return NULL;
    }
    list_init(&hd->link);
    return hd;
}

/* Sets what is particular to this request: its body. 0 or -ENOMEM. */
static int handle_load(struct handle *hd, struct request *rq)
{
    struct call *c = rq->call;
    uint64_t size = c->head.len + c->body.len + c->tail.len;
    const void *bytes = NULL; /* NULL: on_read() gives them */
    CURLcode code;

    hd->rq = rq;
    hd->transfer.open_err = 0;
    if (size < SMALL_BODY_MAX && size == c->head.len) {
        bytes = c->head.data;
    } else if (size < SMALL_BODY_MAX) {
        buf_clear(&hd->small);
        buf_add_span(&hd->small, c->head);
        buf_add_span(&hd->small, value_span(c->body));
        buf_add_span(&hd->small, value_span(c->tail));
        if (hd->small.err != 0)
            return -ENOMEM;
        bytes = hd->small.data;
    }
    code = curl_easy_setopt(hd->easy, CURLOPT_POSTFIELDS, bytes);
    code |= curl_easy_setopt(hd->easy, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)size);
    return code == CURLE_OK ? 0 : -ENOMEM;
}

static void handle_rest(struct handle *hd, struct peer *p)
{
    if (hd->rq->again)
        curl_easy_setopt(hd->easy, CURLOPT_FRESH_CONNECT, 0L);
    hd->rq = NULL;
    if (hd->small.cap > SMALL_BODY_KEEP_MAX)
        buf_fini(&hd->small);
    list_insert(p->idle.next, &hd->link);
}

/* --- requests --------------------------------------------------------------------------------- */

static void fail_soon(struct http *h, struct call *c, int err)
{
    c->priv = (void *)(intptr_t)err;
    list_insert(&h->failed, &c->link);
    loop_timer_set(&h->curl.loop, &h->failed_timer, 0);
}

static void request_free(struct request *rq)
{
    loop_timer_clear(&rq->http->curl.loop, &rq->deadline);
    gather_free(rq->gather);
    payload_fini(&rq->payload);
    free(rq);
}

/* Gives the request a connection. */
static void request_start(struct request *rq)
{
    struct peer *p = rq->peer;
    struct http *h = rq->http;
    struct call *c = rq->call;
    struct handle *hd;
    int err = -ENOMEM;

    if (list_empty(&p->idle)) {
        hd = handle_new(p);
    } else {
        hd = container_of(p->idle.next, struct handle, link);
        list_remove(&hd->link);
    }
    if (hd != NULL)
        err = handle_load(hd, rq);
    if (err == 0 && curl_multi_add_handle(h->curl.multi, hd->easy) != CURLM_OK)
        err = -ENOMEM;
    if (err < 0) {
        if (hd != NULL)
            handle_rest(hd, p);
        request_free(rq);
        fail_soon(h, c, err);
        return;
    }
    rq->handle = hd;
    p->n_running++;
    list_insert(&h->running, &c->link);
}

static void peer_start_waiting(struct peer *p)
{
    while (!list_empty(&p->waiting) && p->n_running < PEER_CONNECTIONS_MAX) {
        struct call *c = container_of(p->waiting.next, struct call, link);

        list_remove(&c->link);
        request_start(c->priv);
    }
}

/* The exchange is over: others may have its connection. */
static void request_release(struct request *rq)
{
    struct handle *hd = rq->handle;

    if (hd == NULL)
        return;
    rq->handle = NULL;
    curl_multi_remove_handle(rq->http->curl.multi, hd->easy);
    handle_rest(hd, rq->peer);
    rq->peer->n_running--;
}

/* Ends it: the connection is kept by curl where the exchange was complete, and closed otherwise. */
static void request_end(struct request *rq, int err)
{
    struct call *c = rq->call;
    struct peer *p = rq->peer;
    struct blob *answer = NULL;

    list_remove(&c->link);
    request_release(rq);
    if (err == 0)
        err = payload_take_answer(&rq->payload, &answer);
    request_free(rq);
    if (!p->http->closing)
        peer_start_waiting(p);
    c->done(c, err, answer);
}

static void on_deadline(struct timer *t)
{
    request_end(container_of(t, struct request, deadline), -ETIMEDOUT);
}

/*
 * A kept connection that its node closes just when it is used again looks like a reset: the request
 * then begins anew on a fresh one. All requests bear that, even where the node had begun on the
 * first. Curl does the same by itself, but not while it sends a large body, and only five times in
 * the life of a handle that is never reset.
 */
static bool request_begin_again(struct request *rq, int err)
{
    CURL *e = rq->handle->easy;
    long n_opened = 1;

    if (err != -ECONNRESET || rq->payload.answer != NULL || rq->gather != NULL || rq->again)
        return false;
    curl_easy_getinfo(e, CURLINFO_NUM_CONNECTS, &n_opened);
    if (n_opened != 0) /* it was fresh */
        return false;
    rq->again = true;
    rq->payload.sent = 0;
    curl_multi_remove_handle(rq->http->curl.multi, e);
    return curl_easy_setopt(e, CURLOPT_FRESH_CONNECT, 1L) == CURLE_OK &&
           curl_multi_add_handle(rq->http->curl.multi, e) == CURLM_OK;
}

static void on_transfer(struct transfer *t, CURLcode code)
{
    struct handle *hd = container_of(t, struct handle, transfer);
    struct request *rq = hd->rq;
    int err = curl_loop_error(hd->easy, t, code, rq->err < 0 ? rq->err : 0);

    if (request_begin_again(rq, err))
        return;
    if (err == 0 && rq->gather != NULL) {
        request_release(rq);
        peer_start_waiting(rq->peer);
        gather_end(rq->gather);
    } else {
        request_end(rq, err);
    }
}

/* --- answers too large for memory ------------------------------------------------------------- */

static void on_gather_progress(void *arg, struct blob *answer, size_t written)
{
    struct call *c = ((struct request *)arg)->call;

    if (c->arrived != NULL)
        c->arrived(c, answer, written);
}

static void on_gather_room(void *arg)
{
    struct request *rq = arg;
    bool paused = rq->paused;

    rq->full = rq->paused = false;
    /* It may bring what curl has kept meanwhile. */
    if (paused && rq->handle != NULL &&
        curl_easy_pause(rq->handle->easy, CURLPAUSE_CONT) != CURLE_OK)
        request_end(rq, rq->err < 0 ? rq->err : -EIO);
}

static void on_gather_done(void *arg, int err, struct blob *answer)
{
    struct request *rq = arg;

    rq->payload.answer = answer;
    rq->payload.answer_len = answer == NULL ? 0 : answer->len;
    request_end(rq, err);
}

static int gather_begin(struct request *rq, size_t len)
{
    struct gather_opts opts = {
        .workers = rq->http->workers,
        .loop = &rq->http->curl.loop,
        .len = len,
        .progress = on_gather_progress,
        .room = on_gather_room,
        .done = on_gather_done,
        .arg = rq,
    };

    return gather_new(&opts, &rq->gather);
}

/* --- calls ------------------------------------------------------------------------------------ */

static void end_failed(struct http *h)
{
    struct list now;

    /* What fails again inside done() waits for the next turn. */
    list_init(&now);
    while (!list_empty(&h->failed)) {
        struct list *item = h->failed.next;

        list_remove(item);
        list_insert(&now, item);
    }
    while (!list_empty(&now)) {
        struct call *c = container_of(now.next, struct call, link);

        list_remove(&c->link);
        c->done(c, (int)(intptr_t)c->priv, NULL);
    }
}

static void on_failed(struct timer *t)
{
    end_failed(container_of(t, struct http, failed_timer));
}

static void http_send(struct transport *t, struct call *c)
{
    struct http *h = http_of(t);
    struct request *rq = NULL;
    int err = 0;

    assert(c->node < h->n_peers);
    if (h->closing)
        err = -ECANCELED;
    else if (c->deadline_us <= transport_now_us(t))
        err = -ETIMEDOUT;
    else if ((rq = calloc(1, sizeof(*rq))) == NULL)
        err = -ENOMEM;
    if (err < 0) {
        fail_soon(h, c, err);
        return;
    }
    rq->http = h;
    rq->peer = &h->peers[c->node];
    rq->call = c;
    rq->payload = (struct payload){
        .head = c->head,
        .body = c->body,
        .tail = c->tail,
        .answer_len_max = h->answer_len_max,
    };
    rq->deadline.fire = on_deadline;
    loop_timer_set(&h->curl.loop, &rq->deadline, c->deadline_us);
    c->priv = rq;
    if (rq->peer->n_running < PEER_CONNECTIONS_MAX)
        request_start(rq);
    else
        list_insert(&rq->peer->waiting, &c->link);
}

static int http_stream_open(struct transport *t, struct stream *s)
{
    struct http *h = http_of(t);

    assert(s->node < h->n_peers);
    return h->closing ? -ENOMEM : streams_open(&h->streams, s, h->peers[s->node].origin);
}

static void http_stream_close(struct transport *t, struct stream *s)
{
    streams_close(&http_of(t)->streams, s);
}

static void http_timer_set(struct transport *t, struct timer *timer, uint64_t due_us)
{
    loop_timer_set(&http_of(t)->curl.loop, timer, due_us);
}

static void http_timer_clear(struct transport *t, struct timer *timer)
{
    loop_timer_clear(&http_of(t)->curl.loop, timer);
}

static const struct transport_ops http_ops = {
    .send = http_send,
    .stream_open = http_stream_open,
    .stream_close = http_stream_close,
    .timer_set = http_timer_set,
    .timer_clear = http_timer_clear,
};

void transport_http_run(struct transport *t)
{
    loop_run(&http_of(t)->curl.loop);
}

void transport_http_stop(struct transport *t)
{
    loop_stop(&http_of(t)->curl.loop);
}

void transport_http_post(struct transport *t, struct loop_job *job)
{
    loop_post(&http_of(t)->curl.loop, job);
}

/* --- from birth to death ---------------------------------------------------------------------- */

int transport_http_setup(void)
{
    return curl_global_init(CURL_GLOBAL_NOTHING) == CURLE_OK ? 0 : -ENOMEM; /* nothing: no TLS */
}

static int peers_init(struct http *h, const struct config *cfg)
{
    h->peers = calloc(cfg->n_nodes, sizeof(*h->peers));
    if (h->peers == NULL)
        return -ENOMEM;
    for (; h->n_peers < cfg->n_nodes; h->n_peers++) {
        const struct config_node *n = &cfg->nodes[h->n_peers];
        struct peer *p = &h->peers[h->n_peers];
        bool v6 = strchr(n->host, ':') != NULL;

        if (asprintf(&p->origin, "http://%s%s%s:%u", v6 ? "[" : "", n->host, v6 ? "]" : "",
                     (unsigned)n->port) < 0)
            p->origin = NULL;
        if (p->origin == NULL || asprintf(&p->url, "%s/replica", p->origin) < 0) {
            free(p->origin);
            return -ENOMEM;
        }
        p->http = h;
        list_init(&p->idle);
        list_init(&p->waiting);
    }
    return 0;
}

static int headers_init(struct http *h)
{
    static const char *const unwanted[] = {
        "Expect:", "Accept:", "Content-Type:"}; /* that curl would send by itself */

    for (size_t i = 0; i < sizeof(unwanted) / sizeof(*unwanted); i++) {
        struct curl_slist *more = curl_slist_append(h->headers, unwanted[i]);

        if (more == NULL)
            return -ENOMEM;
        h->headers = more;
    }
    return 0;
}

int transport_http_new(const struct config *cfg, struct clock *clock, struct workers *workers,
                       struct transport **out)
{
    struct http *h = calloc(1, sizeof(*h));
    uint64_t listing = (uint64_t)LIST_LIMIT_MAX * ENTRY_LEN_MAX;
    int err;

    if (h == NULL)
        return -ENOMEM;
    h->base = (struct transport){.ops = &http_ops, .clock = clock};
    h->workers = workers;
    h->answer_len_max =
        MESSAGE_HEAD_MAX + (cfg->max_value_size > listing ? cfg->max_value_size : listing);
    list_init(&h->running);
    list_init(&h->failed);
    h->failed_timer.fire = on_failed;
    err = curl_loop_init(&h->curl, clock, cfg->n_nodes * (PEER_CONNECTIONS_MAX + 1));
    if (err < 0) {
        free(h);
        return err;
    }
    streams_init(&h->streams, &h->curl);
    err = peers_init(h, cfg);
    if (err == 0)
        err = headers_init(h);
    if (err < 0) {
        transport_http_free(&h->base);
        return err;
    }
    *out = &h->base;
    return 0;
}

static void end_all(struct list *calls)
{
    while (!list_empty(calls)) {
        struct call *c = container_of(calls->next, struct call, link);

        request_end(c->priv, -ECANCELED);
    }
}

static void peer_fini(struct peer *p)
{
    while (!list_empty(&p->idle)) {
        struct handle *hd = container_of(p->idle.next, struct handle, link);

        list_remove(&hd->link);
        handle_free(hd);
    }
    free(p->origin);
    free(p->url);
}

void transport_http_free(struct transport *t)
{
    struct http *h;

    if (t == NULL)
        return;
    h = http_of(t);
    h->closing = true;
    /* done() may send again, which now fails at once; jobs that nobody ran may, too. */
    do {
        loop_run_jobs(&h->curl.loop);
        end_all(&h->running);
        for (unsigned i = 0; i < h->n_peers; i++)
            end_all(&h->peers[i].waiting);
        end_failed(h);
        streams_fini(&h->streams);
    } while (!list_empty(&h->failed) || !list_empty(&h->curl.loop.jobs));
    for (unsigned i = 0; i < h->n_peers; i++)
        peer_fini(&h->peers[i]);
    curl_loop_fini(&h->curl);
    curl_slist_free_all(h->headers);
    free(h->peers);
    free(h);
}

/*
 * streams.c - GET requests whose answers go on.
 *
 * What curl hands over is kept until it has returned, and told by the same turn of the loop: data()
 * may then send, open and close whatever it likes, which curl does not bear from inside.
 */
#include "common/streams.h"

#include <errno.h>
#include <stdlib.h>

#include "common/buf.h"
#include "common/status.h"

#define RECEIVE_BUFFER_SIZE (64L << 10)
#define KEEP_MAX (64u << 10) /* memory that a silent stream keeps */

struct stream_transfer {
    struct transfer transfer;
    struct list link; /* in streams.all */
    struct streams *streams;
    struct stream *stream; /* NULL: it was closed from inside its own data() */
    CURL *easy;
    struct buf in; /* came, not handed on yet */
    bool in_data;
    int err; /* why our own callback stopped it */
};

static void transfer_free(struct stream_transfer *st)
{
    list_remove(&st->link);
    if (st->easy != NULL) {
        curl_multi_remove_handle(st->streams->curl->multi, st->easy);
        curl_easy_cleanup(st->easy);
    }
    buf_fini(&st->in);
    free(st);
}

/* False: that was the end of it. */
static bool transfer_tell(struct stream_transfer *st)
{
    if (st->in.len == 0)
        return true;
    st->in_data = true;
    st->stream->data(st->stream, buf_span(&st->in));
    st->in_data = false;
    if (st->stream == NULL) {
        transfer_free(st);
        return false;
    }
    buf_clear(&st->in);
    if (st->in.cap > KEEP_MAX)
        buf_fini(&st->in);
    return true;
}

static void transfer_end(struct stream_transfer *st, int err)
{
    struct stream *s = st->stream;

    if (!transfer_tell(st))
        return;
    transfer_free(st);
    s->priv = NULL;
    s->ended(s, err);
}

static int status_error(long status)
{
    int err = status == 200 ? 0 : status_to_errno((unsigned)status);

    return status == 200 || err < 0 ? err : -EPROTO;
}

static void on_transfer(struct transfer *t, CURLcode code)
{
    struct stream_transfer *st = container_of(t, struct stream_transfer, transfer);
    int err = curl_loop_error(st->easy, t, code, st->err);
    long status = 0;

    if (err == 0) { /* it may have had no body */
        curl_easy_getinfo(st->easy, CURLINFO_RESPONSE_CODE, &status);
        err = status_error(status);
    }
    transfer_end(st, err);
}

static size_t on_write(char *data, size_t size, size_t n, void *arg)
{
    struct stream_transfer *st = arg;
    long status = 0;

    curl_easy_getinfo(st->easy, CURLINFO_RESPONSE_CODE, &status);
    st->err = status_error(status);
    if (st->err == 0) {
        buf_add(&st->in, data, size * n);
        st->err = st->in.err;
    }
    if (st->err < 0)
        return 0;
    loop_timer_set(&st->streams->curl->loop, &st->streams->came, 0);
    return size * n;
}

static void on_came(struct timer *t)
{
    struct streams *ss = container_of(t, struct streams, came);
    struct list now;

    /* Each moves over once, so that it does not matter which others its data() closes or opens. */
    list_init(&now);
    while (!list_empty(&ss->all)) {
        struct list *l = ss->all.next;

        list_remove(l);
        list_insert(&now, l);
    }
    while (!list_empty(&now)) {
        struct list *l = now.next;

        list_remove(l);
        list_insert(&ss->all, l);
        (void)transfer_tell(container_of(l, struct stream_transfer, link));
    }
}

static CURLcode set_options(struct stream_transfer *st, const char *url)
{
    CURL *e = st->easy;
    CURLcode code = curl_loop_prepare(st->streams->curl, e, &st->transfer, url);

    code |= curl_easy_setopt(e, CURLOPT_HTTPGET, 1L);
    code |= curl_easy_setopt(e, CURLOPT_BUFFERSIZE, RECEIVE_BUFFER_SIZE);
    code |= curl_easy_setopt(e, CURLOPT_WRITEFUNCTION, on_write);
    code |= curl_easy_setopt(e, CURLOPT_WRITEDATA, st);
    code |= curl_easy_setopt(e, CURLOPT_FRESH_CONNECT, 1L); /* it has its connection for long */
    code |= curl_easy_setopt(e, CURLOPT_FORBID_REUSE, 1L);
    return code;
}

int streams_open(struct streams *ss, struct stream *s, const char *origin)
{
    struct stream_transfer *st = calloc(1, sizeof(*st));
    struct buf url = {0};
    bool ready = false;

    if (st == NULL)
        return -ENOMEM;
    *st = (struct stream_transfer){.transfer.ended = on_transfer, .streams = ss, .stream = s};
    list_insert(&ss->all, &st->link);
    buf_add_str(&url, origin);
    buf_add_str(&url, s->target);
    buf_u8(&url, 0);
    st->easy = curl_easy_init();
    if (url.err == 0 && st->easy != NULL)
        ready = set_options(st, (const char *)url.data) == CURLE_OK &&
                curl_multi_add_handle(ss->curl->multi, st->easy) == CURLM_OK;
    buf_fini(&url);
    if (!ready) {
        transfer_free(st);
        return -ENOMEM;
    }
    s->priv = st;
    return 0;
}

void streams_close(struct streams *ss, struct stream *s)
{
    struct stream_transfer *st = s->priv;

    (void)ss;
    if (st == NULL)
        return;
    s->priv = NULL;
    if (st->in_data)
        st->stream = NULL; /* it goes when data() has returned */
    else
        transfer_free(st);
}

void streams_init(struct streams *ss, struct curl_loop *curl)
{
    *ss = (struct streams){.curl = curl, .came.fire = on_came};
    list_init(&ss->all);
}

void streams_fini(struct streams *ss)
{
    while (!list_empty(&ss->all))
        transfer_end(container_of(ss->all.next, struct stream_transfer, link), -ECANCELED);
    loop_timer_clear(&ss->curl->loop, &ss->came);
}

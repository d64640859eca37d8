/*
 * server.c - the HTTP server as a whole: its threads, its connections, open, drain and close
 * (exchange.c has what goes over them; the two are the only users of libmicrohttpd).
 */
#include "node/exchange.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "node/listener.h"

#define N_THREADS 8
/* Memory of a connection: the longest key, escaped, twice in a query, and other headers. */
#define POOL_SIZE (32u << 10)
#define LAST_ANSWERS_S 1

static void on_connection(void *cls, struct MHD_Connection *connection, void **context,
                          enum MHD_ConnectionNotificationCode code)
{
    struct server *s = cls;
    struct conn *c = *context;

    if (code == MHD_CONNECTION_NOTIFY_STARTED) {
        const union MHD_ConnectionInfo *info =
            MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);

        *context = conn_add(s->conns, info->connect_fd, server_now_us(s) + HEADER_LIMIT_US);
        return;
    }
    if (c == NULL)
        return;
    *context = NULL;
    if (conn_lingers(c)) {
        int fd = dup(conn_fd(c));

        if (fd >= 0)
            listener_linger(s->opts.listener, fd);
    }
    conn_remove(c);
}

/* --- open, drain, close ----------------------------------------------------------------------- */

/* Keys are decoded by us, once: libmicrohttpd's own decoding would cut them at %00. */
static size_t keep_escapes(void *cls, struct MHD_Connection *connection, char *s)
{
    (void)cls;
    (void)connection;
    return strlen(s);
}

/*
 * The limit is ours: libmicrohttpd (0.9.75) that reaches its own keeps a lock for ever, and with it
 * one of its threads and all that it serves.
 */
static void on_accepted(void *arg, int fd, const struct sockaddr *sa, unsigned len)
{
    struct server *s = arg;

    if (!conns_have_room(s->conns, s->opts.connections_max))
        listener_dismiss(s->opts.listener, fd, buf_span(&s->farewell));
    else
        /* It closes fd where it cannot take it. */
        (void)MHD_add_connection(s->daemon, fd, sa, len);
}

static struct MHD_Daemon *start_daemon(struct server *s)
{
    /* Each thread has its part of it, and may happen to get most of the connections. */
    unsigned never_reached = 2 * s->opts.n_threads * s->opts.connections_max;

    return MHD_start_daemon(
        MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ITC |
            MHD_USE_NO_LISTEN_SOCKET,
        0, NULL, NULL, exchange_on_request, s, MHD_OPTION_URI_LOG_CALLBACK, exchange_on_uri, s,
        MHD_OPTION_UNESCAPE_CALLBACK, keep_escapes, NULL, MHD_OPTION_NOTIFY_COMPLETED,
        exchange_on_completed, s, MHD_OPTION_NOTIFY_CONNECTION, on_connection, s,
        MHD_OPTION_THREAD_POOL_SIZE, s->opts.n_threads, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
        (size_t)POOL_SIZE, MHD_OPTION_CONNECTION_LIMIT, never_reached,
        MHD_OPTION_SIGPIPE_HANDLED_BY_APP, 1, MHD_OPTION_END);
}

static int make_farewell(struct server *s)
{
    struct response r = {0};

    response_problem(&r, 503, "nothing was stored: too many connections are open already");
    response_write(&r, &s->farewell);
    response_fini(&r);
    return s->farewell.err;
}

int server_open(const struct server_opts *opts, struct server **out, struct err *err)
{
    struct server *s = calloc(1, sizeof(*s));
    pthread_condattr_t attr;
    int r;

    if (s == NULL)
        return err_set(err, -ENOMEM, "no memory");
    s->opts = *opts;
    if (s->opts.n_threads == 0)
        s->opts.n_threads = N_THREADS;
    pthread_mutex_init(&s->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&s->drained, &attr);
    pthread_cond_init(&s->released, NULL);
    pthread_condattr_destroy(&attr);
    r = make_farewell(s);
    if (r == 0)
        r = conns_new(opts->clock, s->opts.connections_max / 4 * 3, buf_span(&s->farewell),
                      &s->conns);
    if (r != 0) {
        err_set(err, r, "cannot start the server: %s", strerror(-r));
        goto fail;
    }
    s->daemon = start_daemon(s);
    if (s->daemon == NULL) {
        r = err_set(err, -ENOMEM, "cannot start the server: %s", strerror(errno));
        goto fail;
    }
    r = listener_start(s->opts.listener, on_accepted, s, err);
    if (r != 0)
        goto fail;
    *out = s;
    return 0;

fail:
    s->opts.listener = NULL; /* still the caller's */
    server_close(s);
    return r;
}

/* Until no request is under way, or none but the cluster's own. */
static void await_end(struct server *s, bool kept, const struct timespec *until)
{
    pthread_mutex_lock(&s->lock);
    while (s->n_exchanges > (kept ? 0 : s->n_kept) &&
           pthread_cond_timedwait(&s->drained, &s->lock, until) == 0)
        ;
    pthread_mutex_unlock(&s->lock);
}

/*
 * An answer that is given is not sent yet: libmicrohttpd cuts it off when it is stopped. Who does
 * not fetch his has LAST_ANSWERS_S.
 */
static void await_answers_locked(struct server *s)
{
    struct timespec until;

    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += LAST_ANSWERS_S;
    while (s->n_answering > 0 && pthread_cond_timedwait(&s->drained, &s->lock, &until) == 0)
        ;
}

void server_drain(struct server *s, unsigned timeout_s)
{
    struct timespec until;

    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += timeout_s;
    atomic_store(&s->draining, DRAIN_CLIENTS);
    listener_stop_accepting(s->opts.listener);
    conns_close_waiting(s->conns, false);
    await_end(s, false, &until);
    atomic_store(&s->draining, DRAIN_ALL);
    conns_close_waiting(s->conns, true);
    await_end(s, true, &until);
}

void server_close(struct server *s)
{
    if (s == NULL)
        return;
    if (s->daemon != NULL) {
        if (s->opts.listener != NULL)
            listener_stop_accepting(s->opts.listener);
        pthread_mutex_lock(&s->lock);
        s->closing = true;
        while (s->n_held > 0)
            pthread_cond_wait(&s->released, &s->lock);
        await_answers_locked(s);
        pthread_mutex_unlock(&s->lock);
        MHD_stop_daemon(s->daemon);
    }
    listener_free(s->opts.listener);
    conns_free(s->conns);
    buf_fini(&s->farewell);
    pthread_cond_destroy(&s->released);
    pthread_cond_destroy(&s->drained);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

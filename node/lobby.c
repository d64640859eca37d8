/* lobby.c - what a node answers while its store is not there yet. */
#include "node/lobby.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

#include "node/listener.h"
#include "node/server.h"
#include "node/service.h"

#define N_THREADS 2u
#define N_CONNECTIONS 256u

struct lobby {
    struct server *server;
    pthread_mutex_t lock; /* of: */
    struct err why;
};

static void on_begin(void *ctx, struct exchange *x)
{
    struct lobby *l = ctx;
    struct err why;

    pthread_mutex_lock(&l->lock);
    why = l->why;
    pthread_mutex_unlock(&l->lock);
    reply_problem(x, 503, "it waits for its store: %s", why.msg);
}

static void on_part(void *ctx, struct exchange *x, struct span part)
{
    (void)ctx;
    (void)x;
    (void)part;
}

static void on_end(void *ctx, struct exchange *x)
{
    (void)ctx;
    (void)x;
}

int lobby_open(struct listener **listener, struct clock *clock, struct lobby **out, struct err *err)
{
    struct lobby *l = calloc(1, sizeof(*l));
    struct server_opts opts = {
        .handler = {on_begin, on_part, on_end, on_end},
        .ctx = l,
        .clock = clock,
        .listener = *listener,
        .n_threads = N_THREADS,
        .connections_max = N_CONNECTIONS,
    };
    int r;

    if (l == NULL)
        return err_set(err, -ENOMEM, "no memory");
    pthread_mutex_init(&l->lock, NULL);
    r = listener_listen(*listener, err);
    if (r == 0)
        r = server_open(&opts, &l->server, err);
    if (r != 0) {
        pthread_mutex_destroy(&l->lock);
        free(l);
        return r;
    }
    *listener = NULL;
    *out = l;
    return 0;
}

void lobby_say(struct lobby *l, const char *why)
{
    pthread_mutex_lock(&l->lock);
    err_set(&l->why, 0, "%s", why);
    pthread_mutex_unlock(&l->lock);
}

void lobby_close(struct lobby *l)
{
    if (l == NULL)
        return;
    server_close(l->server);
    pthread_mutex_destroy(&l->lock);
    free(l);
}

/*
 * exchange.h - what server.c and exchange.c share, the two users of libmicrohttpd; for nobody else.
 */
#ifndef KVFS_NODE_EXCHANGE_H
#define KVFS_NODE_EXCHANGE_H

#include <microhttpd.h>
#include <pthread.h>
#include <stdatomic.h>

#include "node/conns.h"
#include "node/server.h"

/* From the connection's start, or the request line, to the end of the header. */
#define HEADER_LIMIT_US 10000000u

/* The cluster's own requests go on while there are clients', which need them to be answered. */
enum drain_state { DRAIN_NONE, DRAIN_CLIENTS, DRAIN_ALL };

enum exchange_state { RUNNING, WAITING, REPLIED };
/* Of an answer that is read: read is being asked, it had nothing, it is to be asked again. */
enum stream_state { STREAM_BUSY, STREAM_ASLEEP, STREAM_WOKEN };
/* Of a body: it comes, it waits for exchange_go_on(), which may have come already. */
enum flow_state { FLOWING, PAUSED, GOES_ON };

struct exchange {
    struct server *server;
    struct MHD_Connection *connection;
    struct conn *conn;
    void *user;
    char method[16]; /* longer ones are cut, and so are no method that anyone knows */
    uint64_t started_us, body_length, bytes_in, bytes_out;
    uint64_t paused_since, paused_us; /* the latter: in all, before that */
    bool begun, ended, has_length;
    bool pausing; /* exchange_pause() was called in this part() */
    bool swallow; /* answered, but the rest of the body comes first */
    bool queued;
    bool answering; /* server.lock; counted in n_answering */
    bool kept;      /* the cluster's own */
    unsigned status;
    _Atomic enum exchange_state state;
    _Atomic enum stream_state stream;
    _Atomic enum flow_state flow;
    _Atomic bool hurried; /* its connection's deadline stands */
    struct response resp; /* whole once state is REPLIED */
    size_t path_len, target_len;
    char target[]; /* as sent */
};

struct server {
    struct server_opts opts;
    struct conns *conns;
    struct buf farewell; /* what a connection is told for which there is no room */
    struct MHD_Daemon *daemon;
    pthread_mutex_t lock;
    pthread_cond_t drained;
    unsigned n_exchanges, n_kept; /* lock; begun and not gone; of them the cluster's own */
    /*
     * lock; handlers at work on a body, the end of a request or an answer, and the connections that
     * they left suspended: libmicrohttpd must not be stopped while there is one
     */
    unsigned n_held;
    unsigned n_answering; /* lock; of those that were waited for: answered, and not gone yet */
    bool closing;         /* lock; no more of them */
    pthread_cond_t released;
    _Atomic enum drain_state draining;
};

static inline uint64_t server_now_us(const struct server *s)
{
    return s->opts.clock->mono_us(s->opts.clock);
}

/* What libmicrohttpd calls: the request line is in; header and body; the exchange has ended. */
void *exchange_on_uri(void *cls, const char *uri, struct MHD_Connection *connection);
enum MHD_Result exchange_on_request(void *cls, struct MHD_Connection *connection, const char *url,
                                    const char *method, const char *version, const char *data,
                                    size_t *data_len, void **context);
void exchange_on_completed(void *cls, struct MHD_Connection *connection, void **context,
                           enum MHD_RequestTerminationCode code);

#endif

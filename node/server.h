/*
 * server.h - HTTP/1.1 requests in, answers out (server.c and exchange.c are the only users of
 * libmicrohttpd, and could be replaced).
 *
 * A few threads serve all connections; a handler runs on one of them and may block it for what is
 * small on a disk, never for the network. What must wait longer returns from end() without a reply
 * and calls exchange_reply() later, from any thread, and a body can be paused; the connection
 * sleeps meanwhile.
 *
 * Refused here, before a handler sees it: two Content-Lengths, one beside Transfer-Encoding,
 * another coding than chunked, a missing or second Host, a NUL or a folded line in the header, a
 * space in a header's name. Header, body and answer each have a total time limit.
 */
#ifndef KVFS_NODE_SERVER_H
#define KVFS_NODE_SERVER_H

#include <stdbool.h>

#include "common/buf.h"
#include "common/clock.h"
#include "common/err.h"
#include "node/framing.h"
#include "node/response.h"

struct listener;
struct server;
struct exchange; /* one request and its answer; gone after gone() */

/*
 * Called in this order, on one thread at a time. begin() and part() may reply at once: the rest of
 * the body is then dropped.
 */
struct server_handler {
    /* The header is complete. */
    void (*begin)(void *ctx, struct exchange *x);
    void (*part)(void *ctx, struct exchange *x, struct span part);
    /* The whole body came: reply, now or later. Not called where begin() or part() replied. */
    void (*end)(void *ctx, struct exchange *x);
    /*
     * Answered, or cut (exchange_status() 0), and never while end() is owed a reply: free what
     * belongs to it.
     */
    void (*gone)(void *ctx, struct exchange *x);
};

struct server_opts {
    struct server_handler handler;
    void *ctx;
    struct clock *clock;
    struct listener *listener; /* listening, not yet started; taken on success */
    unsigned n_threads;        /* 0: 8 */
    unsigned connections_max;
};

int server_open(const struct server_opts *opts, struct server **out, struct err *err);
/*
 * Accepts no more, closes the connections that wait for a request, and waits until what is under
 * way is answered, at most timeout_s: first clients' requests, whose answers the cluster's own
 * (exchange_keep_connection()) may be needed for, then those. No request begins after this.
 */
void server_drain(struct server *s, unsigned timeout_s);
/*
 * Waits until every exchange whose end() has returned is replied to, every paused body goes on, and
 * every answer that sleeps is woken: that has to come from elsewhere. Cuts what is left.
 */
void server_close(struct server *s);

/* --- the request; borrowed until gone(), to be read on the handler's thread ------------------- */

const char *exchange_method(const struct exchange *x);
/*
 * As sent: not decoded, not normalised. The query has no '?'; its data is NULL where there was
 * none.
 */
struct span exchange_path(const struct exchange *x);
struct span exchange_query(const struct exchange *x);
/* The first header of this name (any case), NULL. */
const char *exchange_header(const struct exchange *x, const char *name);
unsigned exchange_header_count(const struct exchange *x, const char *name);
/*
 * Bytes of body announced, BODY_LENGTH_UNKNOWN when chunked, 0 also where the header says nothing
 * of a body.
 */
uint64_t exchange_body_length(const struct exchange *x);
bool exchange_has_length(const struct exchange *x); /* Content-Length or chunked was given */
uint64_t exchange_started_us(const struct exchange *x);
unsigned exchange_connections(const struct exchange *x); /* open ones of its server */
/* The connection is another node's or a mount's: keep it open when room is short. */
void exchange_keep_connection(struct exchange *x);

/*
 * In part(): no more of the body is brought, and nothing else happens to x, before
 * exchange_go_on().
 */
void exchange_pause(struct exchange *x);
/*
 * Any thread, once for each exchange_pause(), perhaps before that. The caller must not touch x
 * afterwards.
 */
void exchange_go_on(struct exchange *x);

/* The handler's own. */
void exchange_set_user(struct exchange *x, void *user);
void *exchange_user(const struct exchange *x);

/* --- the answer ------------------------------------------------------------------------------- */

/*
 * Takes *r (leaves it {0}). Once per exchange; any thread. The caller must not touch x afterwards,
 * unless it is inside begin(), part() or end().
 */
void exchange_reply(struct exchange *x, struct response *r);
bool exchange_replied(const struct exchange *x);
/*
 * Of an answer that is read while it is sent, from the reply to gone(): read is asked again, soon.
 * Any thread; must not be called where read or gone() would wait for the caller. Where read has
 * just said 0, the one who calls this once is safe from gone().
 */
void exchange_wake(struct exchange *x);
/* It is cut if it has not ended within so long. As exchange_wake(). */
void exchange_hurry(struct exchange *x, uint64_t within_us);
/* In gone(): the status that was sent in full, 0 when the connection was cut before. */
unsigned exchange_status(const struct exchange *x);
uint64_t exchange_bytes_in(const struct exchange *x);  /* of the body */
uint64_t exchange_bytes_out(const struct exchange *x); /* of the body; so far */

#endif

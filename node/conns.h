/*
 * conns.h - the open connections of the server: a total deadline for whatever each is doing, and
 * room kept for the cluster's own traffic.
 *
 * One thread waits for the earliest deadline and shuts down the sockets that are past theirs; their
 * owner notices and closes them. A connection that only waits (for its first or next request) is
 * also shut down, longest waiting first, when more than `soft_max` are open: a flood of idle ones
 * must not keep other nodes out. It is sent the farewell: an answer to the request that may be on
 * its way.
 */
#ifndef KVFS_NODE_CONNS_H
#define KVFS_NODE_CONNS_H

#include <stdbool.h>
#include <stdint.h>

#include "common/buf.h"
#include "common/clock.h"

struct conns;
struct conn;

/* farewell: borrowed. */
int conns_new(struct clock *clock, unsigned soft_max, struct span farewell, struct conns **out);
void conns_free(struct conns *cs); /* joins the thread; no connection may be left */
unsigned conns_count(struct conns *cs);
/* Are fewer than max open, not counting those that were shut down for room, perhaps just now? */
bool conns_have_room(struct conns *cs, unsigned max);

/*
 * Shuts down all that wait, now and whenever one begins to wait: no new request begins on them.
 * kept: also other nodes' and mounts'.
 */
void conns_close_waiting(struct conns *cs, bool kept);

/*
 * Any thread. The descriptor stays the caller's, who calls conn_remove() before closing it. NULL
 * without memory.
 */
struct conn *conn_add(struct conns *cs, int fd, uint64_t deadline_us);
void conn_remove(struct conn *c); /* frees c */

/*
 * It waits for a request and may be shut down for room / for the end of a request that nobody
 * wants, and is the first to be shut down / it is at work. Shut down at deadline_us
 * (mono); 0: never.
 */
void conn_waits(struct conn *c, uint64_t deadline_us);
void conn_unwanted(struct conn *c, uint64_t deadline_us);
/* False: too late, it has been shut down for room, and nothing more may be sent. */
bool conn_works(struct conn *c, uint64_t deadline_us);
/* It belongs to another node or a mount: never shut down for room. */
void conn_keep(struct conn *c);
int conn_fd(const struct conn *c);
/*
 * Its client may still be sending when it is closed: read what comes to its end first
 * (listener_linger()).
 */
void conn_linger(struct conn *c);
bool conn_lingers(const struct conn *c);

#endif

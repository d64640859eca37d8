/*
 * listener.h - listening sockets on all addresses of a host name, one thread that accepts, and a
 * gentle end for refused senders.
 *
 * A connection closed while its client still sends is reset, and the reset may destroy the answer
 * that told why. Such sockets come here (half closed) and are read to their end, for a bounded
 * time, before they are closed.
 */
#ifndef KVFS_NODE_LISTENER_H
#define KVFS_NODE_LISTENER_H

#include <stdint.h>

#include "common/buf.h"
#include "common/err.h"

struct listener;
struct sockaddr;

/*
 * Binds host:port on every address of this machine that host resolves to, without accepting yet.
 * -EADDRINUSE, -EADDRNOTAVAIL, ... with the reason in err.
 */
int listener_bind(const char *host, uint16_t port, struct listener **out, struct err *err);
/*
 * From here on connections wait in the kernel's queue: a node that greets its peers (and itself)
 * before its server runs is answered a little later, not refused.
 */
int listener_listen(struct listener *l, struct err *err);
/* A new connection: non-blocking, close-on-exec; taken. On the listener's thread. */
typedef void listener_accept_fn(void *arg, int fd, const struct sockaddr *sa, unsigned len);
/* Starts to accept. */
int listener_start(struct listener *l, listener_accept_fn *accepted, void *arg, struct err *err);
/*
 * Closes the listening sockets; afterwards accepted() is not called any more. What lingers goes on.
 * Not on the listener's thread.
 */
void listener_stop_accepting(struct listener *l);
/*
 * Takes fd: reads and drops what still comes, until its end, or until nothing came for
 * LISTENER_LINGER_US; at most for LISTENER_LINGER_END_US. Where too many linger, the first ones
 * are closed. Any thread.
 */
void listener_linger(struct listener *l, int fd);
/* Takes fd: sends these last bytes and lets it linger. Any thread. */
void listener_dismiss(struct listener *l, int fd, struct span last);
/* Joins the thread, closes everything. NULL is allowed. */
void listener_free(struct listener *l);

#define LISTENER_LINGER_US 2000000u
#define LISTENER_LINGER_END_US 30000000u
#define LISTENER_LINGERING_MAX 64u
/* Many clients send all of a refused body before they look for the answer. */
#define LISTENER_LINGER_BYTES_MAX (512u << 20)

#endif

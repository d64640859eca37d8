/*
 * sockets.h - which events of which connections a loop watches, changed as rarely as can be.
 *
 * Whoever uses a connection says what it waits for, and after every request that it waits for
 * nothing. The socket is then left in the epoll set, armed for reading, because the next request
 * would only put it back: two system calls less per request. When an event comes while nobody waits
 * (the peer closed the idle connection) it is taken out. A closed socket leaves the set by itself;
 * that its end is told here, before its number is given to another, is what all this relies on. So
 * descriptors that were not announced by sockets_opened() are watched exactly as asked.
 */
#ifndef KVFS_COMMON_SOCKETS_H
#define KVFS_COMMON_SOCKETS_H

#include "common/loop.h"

struct socket_state {
    bool announced;
    uint32_t wanted, watched; /* EPOLLIN, EPOLLOUT: by its user, in the epoll set */
};

/* {0} with a loop is an empty one. */
struct sockets {
    struct loop *loop;
    struct socket_state *states; /* by descriptor */
    size_t n;
};

void sockets_fini(struct sockets *s);
/* A new connection. 0 or -ENOMEM. */
int sockets_opened(struct sockets *s, int fd);
/* To be called before an announced one is closed. */
void sockets_closed(struct sockets *s, int fd);
/* events: EPOLLIN, EPOLLOUT, 0 */
void sockets_want(struct sockets *s, int fd, uint32_t events);
/* An event came: does anybody wait for it? */
bool sockets_expected(struct sockets *s, int fd);

#endif

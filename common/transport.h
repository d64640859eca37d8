/*
 * transport.h - seam: requests to nodes, streams from them, and timers, on one event loop.
 *
 * transport_http.c speaks HTTP over libcurl; the tests have an in-memory network. Whatever uses
 * this is single-threaded: every function is called on the loop's thread, and every callback comes
 * on it, never from inside the call that caused it.
 */
#ifndef KVFS_COMMON_TRANSPORT_H
#define KVFS_COMMON_TRANSPORT_H

#include <errno.h>

#include "common/buf.h"
#include "common/clock.h"
#include "common/list.h"

struct transport;

/*
 * One request to one node. The caller fills the first part, and keeps the struct and all it points
 * to until done().
 */
struct call {
    unsigned node;
    struct span head;        /* encoded message head */
    struct value body, tail; /* value bytes behind it; borrowed */
    uint64_t deadline_us;    /* clock->mono_us: ended with -ETIMEDOUT then */
    /*
     * Comes exactly once. err 0: answer holds the whole body of the node's answer, whatever its
     * HTTP status; done owns that reference. Else answer is NULL: what transport_err_of_node()
     * names, -ECANCELED (the transport is closing), or what this process lacks.
     */
    void (*done)(struct call *c, int err, struct blob *answer);
    /*
     * NULL, or: so many bytes of the answer have come, in what is still the transport's. For who
     * has much to do with a long answer. A transport need not call it.
     */
    void (*arrived)(struct call *c, struct blob *answer, size_t len);

    struct list link; /* the transport's, as is priv */
    void *priv;
};

/*
 * An answer of one node that goes on (GET /watch). The caller fills the first part, and keeps it
 * until ended(), or until it has closed it.
 */
struct stream {
    unsigned node;
    const char *target; /* path and query; borrowed while it is opened */
    /* The next bytes of an answer with status 200, in any pieces; borrowed. */
    void (*data)(struct stream *s, struct span bytes);
    /* Once, and nothing after it. 0: the node ended it; else as of a call, or its status. */
    void (*ended)(struct stream *s, int err);
    void *priv; /* the transport's */
};

struct timer {
    void (*fire)(struct timer *t);
    uint64_t due_us; /* while armed */
    size_t slot;     /* the transport's; 0: not armed */
};

struct transport_ops {
    void (*send)(struct transport *t, struct call *c);
    /* 0, or -ENOMEM: it is not open, ended() does not come. No time limit but for connecting. */
    int (*stream_open)(struct transport *t, struct stream *s);
    /* Nothing is told any more; harmless after ended(). */
    void (*stream_close)(struct transport *t, struct stream *s);
    /* Arms or moves a timer; it fires once. */
    void (*timer_set)(struct transport *t, struct timer *timer, uint64_t due_us);
    void (*timer_clear)(struct transport *t, struct timer *timer); /* harmless when not armed */
};

struct transport {
    const struct transport_ops *ops;
    struct clock *clock;
};

/*
 * Does the error of a call tell of the node, or of the way to it? All others (no memory, no
 * descriptor, no room for the answer in a temporary file, an answer too long to take) are this
 * process's own, and the node may be well.
 */
static inline bool transport_err_of_node(int err)
{
    switch (err) {
    case -ETIMEDOUT:
    case -ECONNREFUSED:
    case -ECONNRESET:
    case -ECONNABORTED:
    case -EPIPE:
    case -EHOSTUNREACH:
    case -EHOSTDOWN:
    case -ENETUNREACH:
    case -ENETDOWN:
    case -ENETRESET:
    case -EADDRNOTAVAIL: /* there is no address here from which it could be reached */
    case -EPROTO:        /* what came is no HTTP, or no answer */
        return true;
    default:
        return false;
    }
}

static inline uint64_t transport_now_us(struct transport *t)
{
    return t->clock->mono_us(t->clock);
}

#endif

/*
 * transport.h - seam: requests to nodes and timers, on one event loop.
 *
 * transport_http.c speaks HTTP over libcurl; the tests have an in-memory network. Whatever uses
 * this is single-threaded: every function is called on the loop's thread, and every callback comes
 * on it, never from inside the call that caused it.
 */
#ifndef KVFS_COMMON_TRANSPORT_H
#define KVFS_COMMON_TRANSPORT_H

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
    struct span head;     /* encoded message head */
    struct value body;    /* value bytes behind it; borrowed */
    uint64_t deadline_us; /* clock->mono_us: ended with -ETIMEDOUT then */
    /*
     * Comes exactly once. err 0: answer holds the whole body of the node's answer, whatever its
     * HTTP status; done owns that reference. Else answer is NULL: -ETIMEDOUT, -ECONNREFUSED,
     * -ECONNRESET, -EHOSTUNREACH, -ECANCELED (the transport is closing), ...
     */
    void (*done)(struct call *c, int err, struct blob *answer);

    struct list link; /* the transport's, as is priv */
    void *priv;
};

struct timer {
    void (*fire)(struct timer *t);
    uint64_t due_us; /* while armed */
    size_t slot;     /* the transport's; 0: not armed */
};

struct transport_ops {
    void (*send)(struct transport *t, struct call *c);
    /* Arms or moves a timer; it fires once. */
    void (*timer_set)(struct transport *t, struct timer *timer, uint64_t due_us);
    void (*timer_clear)(struct transport *t, struct timer *timer); /* harmless when not armed */
};

struct transport {
    const struct transport_ops *ops;
    struct clock *clock;
};

static inline uint64_t transport_now_us(struct transport *t)
{
    return t->clock->mono_us(t->clock);
}

#endif

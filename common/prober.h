/*
 * prober.h - keeps health current: sends HELLO to each node that is down, ailing, recovering (or
 * seems to be), or was not heard of for HEALTH_PROBE_US, and every two seconds to those that answer
 * other traffic; one at a time per node. Lives on one loop; all calls on its thread, or while it
 * does not run.
 *
 * A node that recovers gets one each HEALTH_PROBE_RECOVERING_US, and while this process is such a
 * node, every node does: what they answer is what the recovery waits for.
 */
#ifndef KVFS_COMMON_PROBER_H
#define KVFS_COMMON_PROBER_H

#include "common/client.h"

struct prober;

struct prober_opts {
    struct client *client;       /* borrowed, as are the next two */
    struct transport *transport; /* the client's */
    struct health *health;
    unsigned n_nodes;
    uint32_t self; /* as in hello_args */
    /* What the next HELLO says of self; NULL where self is no node. */
    void (*self_state)(void *arg, uint64_t *incarnation, uint8_t *state);
    /* Of every probe, however it ended; not after prober_stop(). */
    void (*on_result)(void *arg, unsigned node, const struct hello_result *res);
    void *arg; /* of both */
};

/* The first probe of every node goes out as soon as the loop runs. 0 or -ENOMEM. */
int prober_new(const struct prober_opts *opts, struct prober **out);
/*
 * Sends no more and cancels what is under way: prober_idle() soon, told by on_idle(arg), unless it
 * is idle already.
 */
void prober_stop(struct prober *p, void (*on_idle)(void *arg), void *arg);
bool prober_idle(const struct prober *p);
/*
 * Only when idle, or when its loop does not run and its client has no operation. NULL is allowed.
 */
void prober_free(struct prober *p);

#endif

/*
 * net.h - three real replicas and one real client, and between them a network that does as the
 * input says: loses, delays, refuses; and for nodes that are hostile, answers in their place.
 *
 * Time is the net's own and moves from one event to the next. All clocks are the same.
 */
#ifndef KVFS_TESTS_FUZZ_NET_H
#define KVFS_TESTS_FUZZ_NET_H

#include "common/client.h"
#include "node/replica.h"
#include "tests/fuzz/grammar.h"

#define NET_NODES 3u
#define NET_TIMEOUT_MS 300u
#define NET_TIMERS_MAX 1024u

struct net {
    struct transport transport;
    struct clock clock;
    uint64_t now_us;
    struct input *in;
    struct config *cfg;
    struct health *health;
    struct client *client;
    struct store *stores[NET_NODES];
    struct replica *replicas[NET_NODES];
    struct list flights;
    struct timer *timers[NET_TIMERS_MAX]; /* armed; timer i has slot i + 1 */
    size_t n_timers;                      /* none stands behind */

    /*
     * Bit i: what node i does to a request is right, but its answer may be replaced: by one that is
     * no answer to this request (then nothing may go wrong: it is as good as lost), or, with
     * `lies`, by any.
     */
    unsigned hostile;
    bool lies;
};

void net_init(struct net *n, struct input *in);
/* All operations have called done(). Waits for the calls that are still under way. */
void net_fini(struct net *n);
/* Goes from event to event until *done, which must come before that time and in so many steps. */
void net_run(struct net *n, const bool *done, uint64_t until_us);
/* Stores a record on one node, past the network. */
void net_put(struct net *n, unsigned node, struct span key, const struct record *rec,
             struct span value);

#endif

/*
 * hand.h - a client whose network and time are the test's hands: each call waits until the test
 * answers it, and timers fire when the test lets time pass.
 */
#ifndef KVFS_TESTS_LIB_HAND_H
#define KVFS_TESTS_LIB_HAND_H

#include "common/client.h"
#include "common/config.h"

#define HAND_CALLS_MAX 256u
#define HAND_TIMERS_MAX 64u
#define HAND_NODES_MAX 8u
#define HAND_START_US 1000000u

struct hand {
    struct transport transport;
    struct clock clock;
    uint64_t now_us;
    struct config *cfg;
    struct health *health;
    struct client *client;
    struct call *calls[HAND_CALLS_MAX]; /* in the order of sending; NULL: has ended */
    unsigned n_calls;                   /* sent so far */
    struct timer *timers[HAND_TIMERS_MAX];
    struct stream *streams[HAND_NODES_MAX]; /* the one open to each node, or NULL; what it asks: */
    char targets[HAND_NODES_MAX][256];
    unsigned n_streams; /* opened so far */
};

/* Nodes n0, n1, ..., and a client with this timeout for operations. */
void hand_init(struct hand *h, unsigned n_nodes, unsigned replication_factor, uint32_t timeout_ms);
/* Calls that are still under way end with -ECANCELED; operations must have ended. */
void hand_fini(struct hand *h);

/* Moves time, and fires on the way what is due. */
void hand_run_until(struct hand *h, uint64_t until_us);
/* What is due now. */
void hand_run(struct hand *h);
/* So far ahead that every operation has met its deadline. */
void hand_run_out(struct hand *h);

/* What the i-th call sent. Borrows from it. */
struct message hand_message(const struct hand *h, unsigned i);
/* The place of its node among the replicas of the key that it is about. */
unsigned hand_place(const struct hand *h, unsigned i);
/* Which call under way is of that kind and goes to that node? Fails the test where none is. */
unsigned hand_find(const struct hand *h, enum message_kind kind, unsigned node);
/* How many are under way. */
unsigned hand_n_open(const struct hand *h);

/* Ends the i-th call: with these bytes, */
void hand_answer_bytes(struct hand *h, unsigned i, struct span bytes);
/* with this answer of a node in its life number `incarnation`, and a value behind it, */
void hand_answer(struct hand *h, unsigned i, struct answer a, uint64_t incarnation);
void hand_answer_value(struct hand *h, unsigned i, struct answer a, struct span value);
/* with an answer of that kind and nothing in it; or without any. */
void hand_say(struct hand *h, unsigned i, enum answer_kind kind);
void hand_refuse(struct hand *h, unsigned i, struct ballot ballot);
void hand_damaged(struct hand *h, unsigned i);
void hand_fail(struct hand *h, unsigned i, int err);

/* The node's stream brings these bytes, or ends. */
void hand_stream_text(struct hand *h, unsigned node, const char *text);
void hand_stream_end(struct hand *h, unsigned node, int err);

#endif

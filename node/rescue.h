/*
 * rescue.h - one key of a lost store brought back: fetched from the others and stored here, tried
 * until it is (docs/protocol.md, Repair).
 */
#ifndef KVFS_NODE_RESCUE_H
#define KVFS_NODE_RESCUE_H

#include "node/repair_impl.h"

/* Where its record comes from. */
enum rescue_way {
    RESCUE_PINNED, /* enough others hold this very version: from one of them */
    RESCUE_SETTLE, /* the others settle what it is: a READ, in which this node has no part */
    RESCUE_NEWEST, /* as `source` has it: the only other there is, or that is left */
    RESCUE_NOBODY, /* not now: asked again after a pause */
    RESCUE_LOST,   /* nobody ever: it is given up */
};

struct rescue_plan {
    enum rescue_way way;
    unsigned source;       /* PINNED, NEWEST */
    struct ballot version; /* PINNED */
    uint64_t size;         /* of the value, as far as is known */
};

struct rescue;

struct rescue_opts {
    const struct repair_part *part;
    struct span key; /* copied */
    struct rescue_plan plan;
    /* After it failed with err, for the tries-th time: how to go on. */
    void (*again)(void *arg, const struct rescue *r, unsigned tries, int err,
                  struct rescue_plan *plan);
    /* The key is here, or there is nothing to bring, or all is stopped. It is freed afterwards. */
    void (*done)(void *arg, struct rescue *r);
    void *arg;
};

/* A unit of work until after its done(), which comes from the loop. 0 or -ENOMEM. */
int rescue_start(const struct rescue_opts *opts, struct rescue **out);
void rescue_stop(struct rescue *r); /* cancels: done() soon, perhaps from inside */

struct span rescue_key(const struct rescue *r);
uint64_t rescue_size(const struct rescue *r); /* of its value, as the first plan said */
/* For a list of the one who started it. */
struct list *rescue_link(struct rescue *r);
struct rescue *rescue_of(struct list *link);

#endif

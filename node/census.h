/*
 * census.h - what a recovering node knows of the others, and whether that is enough to go on.
 */
#ifndef KVFS_NODE_CENSUS_H
#define KVFS_NODE_CENSUS_H

#include "common/client.h"

/* What is known of another node. */
struct citizen {
    bool shares; /* keys with this node */
    bool asked;  /* there was a result, whatever */
    int err;     /* 0: the last probe was answered: */
    /* It knows this node's present incarnation, as whole once that was announced, and no newer. */
    bool heard;
    uint8_t state;
    uint64_t incarnation, n_keys;
};

/* citizens: by node; that of this node itself (self) says nothing. */
struct census {
    const struct ring *ring; /* borrowed */
    unsigned self;
    struct citizen *citizens;
    bool announcing; /* they are asked to store that this node's life will vote */
};

int census_init(struct census *c, const struct ring *ring, unsigned self);
void census_fini(struct census *c); /* {0} is allowed */

/* All are asked anew: to learn of this life, or that it announces. */
void census_begin(struct census *c, bool announcing);
/*
 * As what the node that answered knows this one: its highest life (flag 0), its highest that is
 * whole (KNOWN_WHOLE); 0: none.
 */
uint64_t census_known_as(const struct census *c, const struct answer *a, uint32_t flag);
/* A HELLO was answered. own: this node's present incarnation. Returns whether that was heard. */
bool census_hear(struct census *c, unsigned node, const struct answer *a, uint64_t own);
void census_failed(struct census *c, unsigned node, int err); /* or it was not */

/* It votes, and has learned who this node is now. */
bool census_is_whole(const struct census *c, unsigned node);

struct verdict {
    bool all_blank; /* every other replica of every set that this node is in is as new as it is */
    bool enough;    /* of every such set are whole: a majority, or all others where that is fewer */
};
struct verdict census_verdict(const struct census *c);
/* The other replicas of this key that are whole; *first: one of them. */
unsigned census_count_whole(const struct census *c, struct span key, unsigned *first);
/* Why this one does not count. */
const char *census_explain(const struct census *c, unsigned node);

#endif

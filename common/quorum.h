/*
 * quorum.h - counting one round of answers: pure, so that tests list every case.
 *
 * An answer counts only while no other answer of the round names a newer incarnation of the node
 * that gave it: it was given before that node lost its disk, and nothing backs it any more
 * (docs/protocol.md).
 */
#ifndef KVFS_COMMON_QUORUM_H
#define KVFS_COMMON_QUORUM_H

#include <stdbool.h>
#include <stdint.h>

enum vote {
    VOTE_IDLE,   /* not asked */
    VOTE_ASKED,  /* no answer yet */
    VOTE_YES,    /* promise, accepted, state */
    VOTE_NO,     /* refused: knows a higher ballot */
    VOTE_FAILED, /* no usable answer: timeout, refused connection, damaged, recovering */
};

enum tally_state {
    TALLY_WAIT, /* more answers can still decide it */
    TALLY_MET,  /* a majority of yes */
    TALLY_LOST, /* a majority of yes has become impossible with those asked or idle */
};

struct tally {
    unsigned n, need;
    enum vote *votes;       /* n */
    uint64_t *incarnations; /* n: who answered; 0 = has not */
    uint64_t *newest;       /* n: the newest incarnation of each that any answer named */
};

/* n replicas, need of which make a majority. 0 or -ENOMEM. */
int tally_init(struct tally *t, unsigned n, unsigned need);
void tally_fini(struct tally *t);
void tally_reset(struct tally *t); /* all idle, incarnations forgotten */
void tally_ask(struct tally *t, unsigned i);
/*
 * Records the answer of i. A later answer of the same i in the round is ignored (duplicated
 * messages).
 */
void tally_vote(struct tally *t, unsigned i, enum vote v, uint64_t incarnation);
/* Some answer says that i lives in this incarnation. */
void tally_known(struct tally *t, unsigned i, uint64_t incarnation);
/* The vote of i as it counts now: VOTE_FAILED for an answer of an incarnation known to be over. */
enum vote tally_of(const struct tally *t, unsigned i);
unsigned tally_count(const struct tally *t, enum vote v);
enum tally_state tally_state(const struct tally *t);

#endif

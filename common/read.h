/*
 * read.h - the inside of READ (client_read.c, read_one.c and read_peek.c only): one read under way.
 */
#ifndef KVFS_COMMON_READ_H
#define KVFS_COMMON_READ_H

#include "common/op.h"

struct read_op {
    struct op op;
    bool want_value, peek;
    uint64_t offset, length;
    uint64_t first_length; /* what is asked for before the size is known */
    struct ballot pin, at_least;
    enum read_from from;
    read_done_fn *done;
    void *arg;

    /* nodes[0..n_replicas) are the key's; up to n_nodes the others, for peek */
    unsigned n_replicas, n_nodes;
    unsigned *nodes;
    /* who answered: n_behind whom to mend, then n_agree that hold the newest, in these lives */
    unsigned *told;
    uint64_t *lives;
    unsigned n_behind, n_agree;
    bool *answered; /* scratch, by node index: for ring_covered() */
    unsigned tries;
    void (*after_fetch)(struct read_op *rd); /* what to do with the value once it has come */
    struct op *sub;     /* a fetch, a settling write or a listing under way for this op */
    int ending;         /* the op ends with this as soon as sub has ended */
    unsigned value_leg; /* of the present round: who was asked for the value last */
    bool apart;         /* the value is asked for only once it is known which version it is of */
    unsigned *left;     /* replicas that it did not need to ask */
    unsigned n_left;
    bool mend; /* one that it asked is behind, or damaged */
    struct read_result res;
};

void read_finish(struct read_op *rd, int err);
/* Does leg i of the asking round say anything of the key, or of what is below it? */
bool read_leg_counts(const struct round *r, unsigned i);

/* Asks leg i; hurry: whoever was asked for the value before is slow. */
void read_send(struct read_op *rd, struct round *r, unsigned i, bool hurry);
/* res.rec is the answer: fetches what is missing of its value, and ends. */
void read_settled(struct read_op *rd);

/* --- read_one.c: one replica's word ----------------------------------------------------------- */

/* Are a majority of the key's replicas thought to be up and whole? */
bool read_majority_is_fit(const struct client *c, struct span key);
/* Starts asking one replica after the other; in the end a READ of a majority decides. */
void read_one(struct read_op *rd);
/* The op's timer, while that goes on. False: it is not what it waits for. */
bool read_one_wake(struct read_op *rd);

/* --- read_peek.c: is there anything below the key? -------------------------------------------- */

/* What the asking round said of that. 0 or -ENOMEM. */
int read_note_children(struct read_op *rd, const struct round *r);
/*
 * What the asking round said of children is looked at while that round is still there; here only
 * its outcome is left: child_key is set (confirmed), or has_child says that a listing must decide.
 */
void read_peek(struct read_op *rd);

#endif

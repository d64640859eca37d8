/*
 * write.h - the inside of WRITE (client_write.c, write_accept.c and client_settle.c only): one
 * write under way, and what its two rounds have in common.
 */
#ifndef KVFS_COMMON_WRITE_H
#define KVFS_COMMON_WRITE_H

#include "common/op.h"
#include "common/roots.h"

enum accept_for {
    FOR_WRITE,       /* the new record */
    FOR_DONE_BEFORE, /* settle cur: an earlier try of this very operation is in it */
    FOR_CONDITION,   /* settle cur: the condition failed on it */
    FOR_SETTLING,    /* settle cur: that is all that is wanted */
};

struct write_op {
    struct op op;
    bool settling; /* client_settle(): there is no edit */
    edit_fn *edit;
    void *ctx;
    bool want_value;
    uint32_t report_wait_ms;
    write_done_fn *done;
    void *arg;

    unsigned n;             /* replicas */
    unsigned *nodes;        /* in the order of asking; constant from the first try on */
    unsigned n_up;          /* nodes[0..n_up) have been asked in this try */
    struct report *reports; /* by ring order */

    struct turn turn; /* until the outcome is clear; while it waits nothing was sent */

    uint64_t id; /* of the operation: in `recent` of what it led to */
    unsigned tries;
    bool preparing;         /* which of the two rounds is the present one */
    struct ballot ballot;   /* of this try */
    struct record_copy cur; /* what this try builds on */
    struct value cur_value; /* its bytes, where they were needed */
    bool have_cur_value;
    bool agreed;               /* a majority of the promises named cur: it was chosen */
    bool sent;                 /* ACCEPTs of the new record went out that may still be chosen */
    struct ballot sent_ballot; /* of the last of them */
    bool replaced_live;        /* what that replaces is a live record */
    struct roots roots;        /* of all that they replace */

    enum accept_for purpose;
    int condition; /* FOR_CONDITION: what edit returned */
    struct draft draft;
    struct buf sums;         /* of sums_of, and of draft.value while that is the same */
    struct value sums_of;    /* owns a reference: other bytes cannot come to stand in its place */
    uint64_t planned;        /* bytes that have their time */
    bool same_value;         /* this ACCEPT carries no value */
    bool stored;             /* the quorum has it: what is left is done for the report only */
    struct op *sub;          /* a fetch under way ... */
    struct ballot fetch_pin; /* ... of this version */
    int ending;
    struct write_result res;
};

/* --- client_write.c: from the start to what is to be stored ----------------------------------- */

/* A write that has not begun. NULL without memory. */
struct write_op *write_new(struct client *c, struct span key, uint32_t timeout_ms, uint64_t size,
                           write_done_fn *done, void *arg);
/* Waits for its turn, then tries. */
void write_start(struct write_op *w);
/* Its outcome is clear: the next write of the key may begin. */
void write_turn_over(struct write_op *w);
void write_finish(struct write_op *w, int err);
/* A failed condition: the record that it failed on goes along. */
void write_finish_with(struct write_op *w, int err, const struct record *rec);
/* It is stored, but there is no memory to say what. */
void write_finish_unknown(struct write_op *w);
/* Another try after a pause; or the end, when the round failed in a way that no try will mend. */
void write_retry(struct write_op *w);
void write_hedge_later(struct write_op *w);
/* Sees to it that the op has time for so many bytes, in all; its timeout will do for a few MiB. */
void write_plan(struct write_op *w, uint64_t size);
/* Brings the bytes of cur, which are there under the version pin, and goes on with them. */
void write_fetch(struct write_op *w, struct ballot pin);

/* --- write_accept.c: the second round --------------------------------------------------------- */

/*
 * Sends draft under this try's ballot to all replicas thought to be up, or to all where those are
 * no majority.
 */
void write_accept(struct write_op *w);
/* And to those that it did not ask yet. */
void write_accept_others(struct write_op *w);
/* This ballot will not make it. */
void write_accept_lost(struct write_op *w);
void write_report_leg(struct write_op *w, const struct leg *leg);

/* --- client_settle.c: what a settling waits for, once a majority has stored it ---------------- */

void settle_stored(struct write_op *w); /* after each answer from then on, and when it is woken */
void settle_bring_value(struct write_op *w); /* cur_value has come */

#endif

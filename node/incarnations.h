/*
 * incarnations.h - which life each node of the ring is in, as far as this node knows: its own id,
 * made with its store, and whether that store is whole yet; the newest of every other that it was
 * ever told, durably. An answer that names them lets a client throw away what a node said before it
 * lost its disk.
 */
#ifndef KVFS_NODE_INCARNATIONS_H
#define KVFS_NODE_INCARNATIONS_H

#include "common/config.h"
#include "node/store.h"

struct incarnations;

struct incarnations_opts {
    struct store *store;
    const struct config *cfg; /* ids to keep them under; NULL: the indexes of the ring */
    unsigned n_nodes, self;
    uint64_t born_us, seed; /* of a new own one: wall clock, and 12 random bits from seed */
    bool distrusted;        /* see replica_opts */
};

/*
 * Reads them from the store. One without an incarnation of its own is new, and gets one; so does
 * one that is not trusted. Either is recovering, which is durable before the incarnation is.
 */
int incarnations_open(const struct incarnations_opts *opts, struct incarnations **out,
                      struct err *err);
void incarnations_close(struct incarnations *in);

/* Of a node, 0 when unknown. Any thread, never blocks. */
uint64_t incarnations_get(const struct incarnations *in, unsigned node);
/*
 * Remembers one that is newer (numerically greater) than the one known; durable when this returns
 * 0.
 */
int incarnations_learn(struct incarnations *in, unsigned node, uint64_t incarnation);

/* --- one's own ----------------------------------------------------------------------- */

/* A node that was new and empty when this one was. */
struct founder {
    unsigned node;
    uint64_t incarnation;
};

/* Is this store not whole yet? Any thread, never blocks. */
bool incarnations_recovering(const struct incarnations *in);
/*
 * Another one for this store, above `than`, which others know of this node. -ERANGE: there is none.
 * -ESTALE: this store is whole, and `than` is of a later one (see incarnations_siblings()): this
 * one is superseded from now until the process ends.
 */
int incarnations_renew(struct incarnations *in, uint64_t than);
/* Any thread, never blocks. */
bool incarnations_superseded(const struct incarnations *in);
/*
 * Of two lives of one node made in the same microsecond at most one ever voted. For a life votes
 * only when a majority of the others (or all, where that is fewer) have stored its incarnation and
 * answered. The next one asks as many, so it hears of each that voted before it, and is of a later
 * microsecond than those: its clock went on meanwhile, or, where it was set back, it renewed. (But
 * for a clock that was set back to the very microsecond in which a life that voted was made.)
 *
 * So a life that votes may rise above a sibling. Above another that is higher it may not: that one
 * may have voted, and acknowledged what this store does not have.
 */
bool incarnations_siblings(uint64_t a, uint64_t b);
/* Durably: the store is whole from now on. */
int incarnations_recovered(struct incarnations *in);
/* The same, of a new cluster: it remembers with whom it began. */
int incarnations_found(struct incarnations *in, const struct founder *others, unsigned n);
/* Did it begin together with that node, which had this incarnation and has no newer one? */
bool incarnations_cofounder(const struct incarnations *in, unsigned node, uint64_t incarnation);

#endif

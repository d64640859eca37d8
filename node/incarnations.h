/*
 * incarnations.h - which life each node of the ring is in, as far as this node knows: its own id,
 * made with its store, and whether that store is whole yet; of every other, durably, the newest
 * that it was ever told, and the newest that is *whole*: that votes, or announced that it is about
 * to. An answer that names them lets a client throw away what a node said before it lost its disk.
 */
#ifndef KVFS_NODE_INCARNATIONS_H
#define KVFS_NODE_INCARNATIONS_H

#include "common/config.h"
#include "common/message.h"
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

/* These three: of a node, 0 when unknown. Any thread, never blocks. */
/* What answers name: the newest, but for one that was given up. */
uint64_t incarnations_get(const struct incarnations *in, unsigned node);
uint64_t incarnations_whole(const struct incarnations *in, unsigned node);
/* What a life of that node that recovers must not be below. */
uint64_t incarnations_highest(const struct incarnations *in, unsigned node);
/*
 * Remembers one that is newer (numerically greater) than the one known, and the same of those that
 * are whole; durable when this returns 0.
 */
int incarnations_learn(struct incarnations *in, unsigned node, uint64_t incarnation, bool is_whole);

#define INCARNATION_SILENT_US 10000000u /* one that recovers says HELLO ten times a second */
/*
 * That node says HELLO. Learns from it, but does not take an announcement of a life that is not the
 * newest; and when a whole one says it, gives up a newer one that did not announce anything and has
 * been silent for that long, by the clock of now_us. Durable when this returns 0.
 */
int incarnations_on_hello(struct incarnations *in, unsigned node, uint64_t incarnation,
                          enum node_state state, uint64_t now_us);

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
 * -EINVAL: it is whole.
 */
int incarnations_renew(struct incarnations *in, uint64_t than);
/* A later life of this node is whole: this one is superseded until the process ends. */
void incarnations_supersede(struct incarnations *in);
/* Any thread, never blocks. */
bool incarnations_superseded(const struct incarnations *in);
/* Durably: the store is whole from now on. */
int incarnations_recovered(struct incarnations *in);
/* The same, of a new cluster: it remembers with whom it began. */
int incarnations_found(struct incarnations *in, const struct founder *others, unsigned n);
/* Did it begin together with that node, which had this incarnation and has no newer one? */
bool incarnations_cofounder(const struct incarnations *in, unsigned node, uint64_t incarnation);

#endif

/*
 * recovery.h - how a node whose store is new comes to vote: who the others are, what they tell, and
 * what they hold (docs/protocol.md, Repair).
 */
#ifndef KVFS_NODE_RECOVERY_H
#define KVFS_NODE_RECOVERY_H

#include "node/repair_impl.h"

struct recovery;

/* done(arg): it votes now; from the loop. */
int recovery_new(const struct repair_part *part, void (*done)(void *arg), void *arg,
                 struct recovery **out);
void recovery_free(struct recovery *rc); /* NULL is allowed */
void recovery_stop(struct recovery *rc); /* cancels; the work ends soon */

/*
 * A result of the prober, of this node itself too. Once done, it only watches the incarnation: who
 * hears of a later store of this node stops voting, and recovery_is_done() is false again.
 */
void recovery_on_hello(struct recovery *rc, unsigned node, const struct hello_result *res);

bool recovery_is_done(const struct recovery *rc);
/* Fills recovering, n_found, n_done and waits_for. */
void recovery_progress(const struct recovery *rc, struct repair_progress *out);

#endif

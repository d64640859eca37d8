/*
 * comparison.h - do this node and one peer hold the same of the keys that they share? Digests
 * first, then the keys of what differs, which are handed over to be mended (docs/protocol.md,
 * Repair).
 *
 * Of each pair the node with the lower index compares.
 */
#ifndef KVFS_NODE_COMPARISON_H
#define KVFS_NODE_COMPARISON_H

#include "node/repair_impl.h"

struct comparison;

struct comparison_opts {
    const struct repair_part *part;
    unsigned peer;
    /* A key that differs. False: no room, it comes again after comparison_go_on(). */
    bool (*found)(void *arg, struct span key, uint64_t size);
    /* Is another node in charge of a key that only the two of them were seen to differ in? */
    bool (*left_to_other)(void *arg, struct span key);
    /* How many keys were mended since the start: does anything come of what is found? */
    uint64_t (*n_mended)(void *arg);
    void *arg;
};

int comparison_new(const struct comparison_opts *opts, struct comparison **out);
void comparison_free(struct comparison *c); /* NULL is allowed */
void comparison_stop(struct comparison *c); /* cancels; the work ends soon */

/*
 * The peer has come (back), or this node has: compares at once, and takes a difference for one
 * without a second look. Without this call there is no first comparison.
 */
void comparison_hurry(struct comparison *c);
/* There is room again. */
void comparison_go_on(struct comparison *c);

uint64_t comparison_count(const struct comparison *c);   /* that ended */
uint64_t comparison_same_us(const struct comparison *c); /* wall clock: last found the same; 0 */

#endif

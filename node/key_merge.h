/*
 * key_merge.h - the keys that several nodes list (KEYS), merged into one sequence in key order,
 * page by page: what each of them has of a key stands side by side.
 *
 * On one event loop. The reader pulls, so that what it cannot take yet is not asked for.
 */
#ifndef KVFS_NODE_KEY_MERGE_H
#define KVFS_NODE_KEY_MERGE_H

#include "common/client.h"

struct key_merge;

struct key_source {
    unsigned node;        /* who lists */
    unsigned shared_with; /* the keys of which this node is a replica too */
};

struct key_merge_opts {
    struct client *client; /* borrowed */
    const struct key_source *sources;
    unsigned n_sources;
    struct span buckets;     /* as in struct message */
    struct span start_after; /* the keys behind this one */
    uint32_t timeout_ms;     /* of a page */
    /* key_merge_next() has something to say again. Not from inside it. */
    void (*on_ready)(void *arg);
    void *arg;
};

/* One key. Valid until the next call on the merge. */
struct merged_key {
    struct span key;
    const struct entry *entries; /* by source; version none and not damaged: it has nothing */
};

/* Copies sources and spans. 0 or -ENOMEM. */
int key_merge_new(const struct key_merge_opts *opts, struct key_merge **out);
/*
 * 1: a key. 0: there are no more. -EAGAIN: on_ready() will come. Else a source failed for good, and
 * key_merge_failed() tells which and why.
 */
int key_merge_next(struct key_merge *m, struct merged_key *out);
/* The node; *why is borrowed. */
unsigned key_merge_failed(const struct key_merge *m, const struct err **why);
/*
 * on_ready() does not come any more. What is under way is cancelled; closed(arg) comes when that
 * has ended: at once, or later. NULL is not allowed.
 */
void key_merge_close(struct key_merge *m, void (*closed)(void *arg), void *arg);

#endif

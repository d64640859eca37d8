/*
 * digests.h - what this node holds of the keys that it shares with each other node, in a few bytes
 * (Merkle's hash tree, with XOR of hashes so that a write changes it in place; the anti-entropy of
 * Dynamo, 2007).
 *
 * For each peer a table of DIGEST_BUCKETS words; that of a bucket is the XOR over its keys of
 * digest_of(key, version), tombstones included. Groups are the XOR of 64 buckets, the root that of
 * all groups. Keys fall into buckets by hash, whoever the peer is. Any thread; never blocks.
 */
#ifndef KVFS_NODE_DIGESTS_H
#define KVFS_NODE_DIGESTS_H

#include "common/ballot.h"
#include "common/message.h"
#include "common/ring.h"

struct digests;

int digests_new(const struct ring *ring, unsigned self, struct digests **out); /* all empty */
void digests_free(struct digests *d);
/* Both of the same ring and node, and changed by nobody meanwhile. */
void digests_copy(struct digests *to, const struct digests *from);

unsigned digest_bucket(struct span key);
/* 0 for version none: a key that is not there. */
uint64_t digest_of(struct span key, struct ballot version);

/* This node's record of the key went from one version to another; none: was, or is, not there. */
void digests_change(struct digests *d, struct span key, struct ballot from, struct ballot to);

/* 0 where nothing is shared with that node. */
uint64_t digests_root(const struct digests *d, unsigned peer);
uint64_t digests_group(const struct digests *d, unsigned peer, unsigned group);
/* group MESSAGE_GROUP_NONE: of all groups; else of the buckets of that one. */
void digests_get(const struct digests *d, unsigned peer, unsigned group,
                 uint64_t out[DIGEST_GROUPS]);

#endif

/*
 * scan.h - what a walk over the keys of this node's store tells: a page of a listing, whether a
 * directory has anything in it, and what it shares with another node. Part of the replica.
 */
#ifndef KVFS_NODE_SCAN_H
#define KVFS_NODE_SCAN_H

#include "node/replica.h"

/* Seeks to the first key above `key` (empty: to the first of all). 0 or -ENOMEM. */
int scan_seek_above(struct store *s, struct store_iter *it, struct span key);

/*
 * The page of the store that m, a MSG_LIST, asks for: encoded entries in key order, appended to
 * entries. *more: it stopped at the limit or because the page has become long; there may be more
 * after its last entry. A damaged key is an entry with ENTRY_DAMAGED, and is told: a listing never
 * leaves it out silently.
 *
 * With MSG_DELIMITER, keys that share their bytes up to the next '/' behind the prefix are one
 * entry: that of the first live one; or, where none is, of the first damaged one; or, where all are
 * dead, of the first with a digest of all. It was already given, and is left out, where start_after
 * begins with those bytes. Keys in front of the first live one are walked over one by one.
 */
int scan_list(struct replica *r, const struct message *m, struct buf *entries, uint32_t *n_entries,
              bool *more);

/*
 * The page that m, a MSG_KEYS, asks for: the keys, tombstones and damaged ones too, of which
 * m->node is a replica as well as this node, and whose bucket is wanted; encoded entries in key
 * order, appended to entries. next: the position behind which the next page begins, or nothing at
 * the end. So that one page is a few milliseconds of work, however few the wanted keys are, it also
 * ends after a number of keys that were only looked at.
 */
int scan_keys(struct replica *r, const struct message *m, struct buf *entries, uint32_t *n_entries,
              struct buf *next);

/*
 * The first live key under key + "/"; or, where all there are dead, the first of them, with a
 * digest of them all in rdev. *found tells whether there are any; entry->key then borrows from
 * `own`. -EBADMSG: none is live, but one is damaged. Walks over dead keys one by one.
 */
int scan_below(struct replica *r, struct span key, struct buf *own, struct entry *entry,
               bool *found);

#endif

/*
 * scan.h - what a walk over the keys of this node's store tells: a page of a listing, and whether a
 * directory has anything in it.
 */
#ifndef KVFS_NODE_SCAN_H
#define KVFS_NODE_SCAN_H

#include "common/message.h"
#include "node/store.h"

/*
 * The page of the store that m, a MSG_LIST, asks for: encoded entries in key order, appended to
 * entries. *more: it stopped at the limit or because the page has become long; there may be more
 * after its last entry. -EBADMSG: some record is damaged; a listing never leaves it out silently.
 *
 * With MSG_DELIMITER, keys that share their bytes up to the next '/' behind the prefix are one
 * entry: that of the first live one, or, where all are dead, of the first with a digest of all.
 * It was already given, and is left out, where start_after begins with those bytes. Dead keys in
 * front of the first live one are walked over one by one.
 */
int scan_list(struct store *s, const struct message *m, struct buf *entries, uint32_t *n_entries,
              bool *more);

/*
 * The first live key under key + "/"; or, where all there are dead, the first of them, with a
 * digest of them all in rdev. *found tells whether there are any; entry->key then borrows from
 * `own`. Walks over dead keys one by one.
 */
int scan_below(struct store *s, struct span key, struct buf *own, struct entry *entry, bool *found);

#endif

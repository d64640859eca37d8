/*
 * flusher.h - the thread of --fsync everysec: syncs the log once a second when something was
 * written, and only then removes the files of values that the log says are replaced: until then a
 * power loss may bring the old record back.
 */
#ifndef KVFS_NODE_FLUSHER_H
#define KVFS_NODE_FLUSHER_H

#include "node/rocks.h"
#include "node/value_file.h"

struct flusher;

/* Both are borrowed. 0, -ENOMEM, -EAGAIN. */
int flusher_start(struct rocks *rocks, struct value_dir *values, struct flusher **out);
/* Joins the thread; what is not synced yet stays so. NULL is allowed. */
void flusher_stop(struct flusher *f);

/* Any thread: something was written without a sync. */
void flusher_wrote(struct flusher *f);
/* Any thread: something was written that no longer names this file. */
void flusher_forget(struct flusher *f, uint64_t id);

#endif

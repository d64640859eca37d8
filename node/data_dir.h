/*
 * data_dir.h - a node's data directory: made, locked against a second process, bound to one node
 * id.
 */
#ifndef KVFS_NODE_DATA_DIR_H
#define KVFS_NODE_DATA_DIR_H

#include <stdbool.h>

#include "common/err.h"

/*
 * Makes dir (mode 0700, parents too) where it is not there, and locks it. *lock_fd holds the lock;
 * closing it gives it up. -EBUSY: another process has it. -EINVAL: it belongs to another node id,
 * or does not tell to which. Else of the failing call. A new one belongs to node_id, durably.
 */
int data_dir_open(const char *dir, const char *node_id, int *lock_fd, struct err *err);

/* NAME in the directory holds text, durably: whole, or as it was before. */
int data_dir_write(int dir_fd, const char *name, const char *text);
/* Makes the names in it durable. */
int data_dir_sync(const char *dir, struct err *err);

#endif

/*
 * boot_mark.h - may a power loss have taken what was acknowledged? DIR/in-use names the boot of
 * the machine in which a node began to write without syncing, until it has stopped in good order.
 *
 * Found at a start under the same boot it means no more than a kill -9: the kernel has everything.
 * Under another boot the machine went down in between, and the last writes may be lost.
 */
#ifndef KVFS_NODE_BOOT_MARK_H
#define KVFS_NODE_BOOT_MARK_H

#include <stdbool.h>

/* *lost: the mark of another boot is there. One of this boot is made good: all is synced, then. */
int boot_mark_check(const char *dir, bool *lost);
/* From now on writes may be unsynced. Durable when this returns 0. */
int boot_mark_set(const char *dir);
/* Nothing is unsynced, for all of the file system was: so this does first. Durable. */
int boot_mark_clear(const char *dir);

#endif

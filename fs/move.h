/*
 * move.h - one key moved to another name. A key cannot be renamed in the cluster: its record is
 * copied, and then the old one deleted, if it still is what was copied; else it is copied again.
 * Whenever this stops, the key is whole under its old name, its new one, or both.
 */
#ifndef KVFS_FS_MOVE_H
#define KVFS_FS_MOVE_H

#include "fs/core.h"

/* What may stand under the new name, and is replaced. */
enum move_over {
    MOVE_OVER_ANY,
    MOVE_OVER_NOTHING,
    MOVE_OVER_COPY, /* nothing, or what an interrupted move of the same key left */
};

/* Which version of the old key was moved, and which of the new one holds the same value; none: not
 * known. */
struct moved {
    struct ballot from, to;
};

/*
 * version: as the caller has last seen the key, which spares asking a majority; none: not known.
 * -ENOENT: there is none, or somebody else moved or deleted it meanwhile: of several exactly one
 * gets it. -EEXIST as `over` says. -EBUSY: others wrote it all the time, for ten seconds.
 * -EHOSTDOWN and other errors of the cluster. Waits for the cluster. *out is set with 0 only.
 */
int key_move(struct fs *fs, struct caller *who, struct span from, struct span to,
             struct ballot version, enum move_over over, struct moved *out);

#endif

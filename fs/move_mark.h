/*
 * move_mark.h - what the marker of a directory tells of its move, so that one that was cut short
 * can be recognised and completed, by whichever mount.
 *
 * The old marker has a number of its own (the directory's st_ino). The new one is stored before any
 * key moves, with an attribute MOVE_ATTR that says the number and the old prefix: while it is there
 * this directory is what has arrived so far of that one. The old marker is deleted when all keys
 * have left; then the attribute goes, and the number comes. Two directories are made one in no
 * other way, so whose number the new marker tells may be moved on to it although it is not empty.
 */
#ifndef KVFS_FS_MOVE_MARK_H
#define KVFS_FS_MOVE_MARK_H

#include "fs/core.h"

/* Not shown: neither user.* nor anything that programs know. */
#define MOVE_ATTR "kvfs.moving"

/*
 * The marker of the directory that is to move, with a number; made if need be. *out: to be given to
 * record_copy_fini(), {0} before. -ENAMETOOLONG and such as the cluster has them.
 */
int move_mark_source(struct fs *fs, struct caller *who, struct span from, struct record_copy *out);
/*
 * Makes `to` the directory into which `source`, the marker of from, moves; or finds that it is
 * already. Of several directories that are moved to one name exactly one gets it. -EEXIST: there is
 * one, and noreplace; -ENOTEMPTY; -ENOSPC: no room for the attribute.
 */
int move_mark_target(struct fs *fs, struct caller *who, struct span from, struct span to,
                     const struct record *source, bool noreplace);
/* All has arrived, and the old marker is gone. */
int move_mark_done(struct fs *fs, struct caller *who, struct span to, const struct record *source);
/* Has an interrupted move begun to make `to` of from? 1, 0, or an error. */
int move_mark_is_rest(struct fs *fs, struct caller *who, struct span from, struct span to);

#endif

/*
 * dirtime.h - the times of directories in which this mount makes and removes names.
 *
 * They show here at once, and are stored a little later, once for all that happened meanwhile: at
 * most DIRTIME_MS after the first change, at fsync of the directory, and when the mount ends. So a
 * name made or removed costs no second write. (A mount that is killed loses the times of about the
 * last second, never the names.) Other mounts hear of it then as of any other change.
 *
 * The store is a conditional write of the directory's marker: it never makes one, so a directory
 * that was removed, by whoever, stays removed; and it leaves an mtime that was asked for since
 * (meta_touch()). What changes the marker for another reason takes the time along. What has no
 * marker (the root, directories that exist only through keys) keeps its time in this mount alone.
 *
 * Not for handlers. in: a directory's inode, referenced.
 */
#ifndef KVFS_FS_DIRTIME_H
#define KVFS_FS_DIRTIME_H

#include "fs/core.h"

#define DIRTIME_MS 1000u

int dirtimes_new(struct fs *fs, struct dirtimes **out);
/* Nothing is under way any more. What was not stored is not. Accepts NULL. */
void dirtimes_free(struct dirtimes *d);

/* A name was made, removed or moved in it, just now. Does not wait. */
void dirtime_touch(struct fs *fs, struct inode *in);
/*
 * A file that was created earlier was stored for the first time: if the time of its creation is
 * stored already, others saw it before the name.
 */
void dirtime_appeared(struct fs *fs, struct span key);
/* What shows of attributes that were read in this version. */
void dirtime_show(struct fs *fs, struct inode *in, struct ballot version, struct meta *m);

/*
 * For who writes the directory's record anyway: in the edit, m (of the record that would be
 * replaced) gets the time that is not stored yet; *joined is for dirtime_joined() after the write.
 * False: m is what it was.
 */
struct dirtime_joined {
    int64_t changed_ns;    /* 0: nothing */
    struct ballot version; /* of the record that was looked at */
};
bool dirtime_join(struct fs *fs, struct inode *in, struct ballot version, struct meta *m,
                  struct dirtime_joined *joined);
void dirtime_joined(struct fs *fs, struct inode *in, const struct dirtime_joined *joined,
                    struct ballot version);
/*
 * Its mtime is about to be set, which counts for more than what changed in it before. Returns what
 * is not stored of that, to be given back if setting it fails.
 */
int64_t dirtime_clear(struct fs *fs, struct inode *in);
void dirtime_give_back(struct fs *fs, struct inode *in, int64_t changed_ns);

/* Stores it if need be, and waits. A failure costs only the time: 0 or -EINTR. */
int dirtime_store(struct fs *fs, struct caller *who, struct inode *in);
/* Stores all, when going down; waits for the end of it, for a few seconds. */
void dirtimes_store_all(struct fs *fs, struct caller *who);

#endif

/* attr.h - what a file shows of itself: records and listing entries to struct stat, and changes of
 * them. Pure. */
#ifndef KVFS_FS_ATTR_H
#define KVFS_FS_ATTR_H

#include <stdbool.h>
#include <sys/stat.h>

#include "common/message.h"
#include "common/record.h"

/*
 * What st_ino is, and how it is kept: what a mount makes gets a random number, which stays with it
 * wherever it is renamed and whichever mount looks. It stands in the record's rdev, which only
 * devices need; they need 32 bits of it, and keep theirs in the other half. Keys stored over HTTP
 * and directories without a marker have none, and show a hash of their path.
 */

/* What is shown of keys that carry no attributes (stored over HTTP), and of directories that exist
 * only through keys. */
struct attr_defaults {
    uint32_t uid, gid;
    uint32_t umask; /* taken off 0666 and 0777 */
};

/* The attributes of one file or directory, without its name. */
struct meta {
    uint32_t mode, uid, gid; /* mode with type */
    uint64_t rdev, size;
    uint64_t ino; /* the st_ino that goes with it through renames; 0: its path's */
    int64_t mtime_ns, ctime_ns, atime_ns;
};

/* A change asked for by chmod, chown or utimens; fields count where their bit is set. Sizes are
 * changed elsewhere. */
enum attr_change_bits {
    CHANGE_MODE = 1,
    CHANGE_UID = 2,
    CHANGE_GID = 4,
    CHANGE_MTIME = 8,
    CHANGE_ATIME = 16,
};
struct attr_change {
    unsigned set; /* enum attr_change_bits */
    uint32_t mode, uid, gid;
    int64_t mtime_ns, atime_ns;
};

/* Of a live record or entry. dir: the key is a directory's marker, whatever its mode says. */
struct meta meta_of_record(const struct attr_defaults *d, const struct record *r, bool dir);
struct meta meta_of_entry(const struct attr_defaults *d, const struct entry *e, bool dir);
/* A directory without a marker. when_ns: of the first key in it, for want of better. */
struct meta meta_of_implicit_dir(const struct attr_defaults *d, int64_t when_ns);
/* A new file or directory: owned by uid and gid, made at now_ns. rdev: of a device. */
struct meta meta_new(uint32_t mode, uint64_t rdev, uint32_t uid, uint32_t gid, int64_t now_ns);
/* Writes mode, owner, device and times (all but the size) into a record. */
void meta_to_record(const struct meta *m, struct record *r);
/* path_ino: attr_st_ino() of where it is. nlink: 0 for what has no name any more. */
void meta_to_stat(const struct meta *m, uint64_t path_ino, unsigned nlink, struct stat *out);
/* A new owner or group takes the privileges of a program, see attr_drop_privileges(). */
void meta_apply(struct meta *m, const struct attr_change *ch, int64_t now_ns);
/*
 * Something was made or removed in a directory at now_ns, when its mtime was seen_ns as far as was
 * known: its times move on, so that who compares them sees a change, also where the clocks of two
 * machines disagree. But an mtime that somebody has asked for since stays. False: nothing is to be
 * changed.
 */
bool meta_touch(struct meta *m, int64_t seen_ns, int64_t now_ns);
/*
 * The mode that is left when somebody without privileges writes to a file, cuts it, or its owner
 * changes: a program that he made must not run as its owner or group. set-group-ID of what no
 * group may execute is no privilege; a directory's are others.
 */
uint32_t attr_drop_privileges(uint32_t mode);
/* Changes asked for one after the other, as one. */
void attr_change_add(struct attr_change *ch, const struct attr_change *next);

/*
 * st_ino of a path, for what has none of its own: the same on every mount and after every remount.
 * key: of the file, or prefix of the directory ("": the root).
 */
uint64_t attr_st_ino(struct span key);
int64_t attr_now_ns(void);
/* Times that a record cannot hold, before 1677 and after 2262, become the nearest that it can. */
int64_t attr_ns_of(struct timespec ts);

#endif

/*
 * fs.h - the file system core: what the handlers call. No FUSE types; 0 or -errno; outputs last,
 * written only on success.
 *
 * Names become keys (common/keypath.h), keys are read and written through common/cluster.h. What
 * was read is kept while the nodes tell of changes (follow.h); who looks a name up or opens a file
 * asks the cluster all the same. An open file is kept, and of one that is dirty here the view in
 * memory counts.
 *
 * Locks, in the order in which they may be taken:
 *     a directory handle's (dir.c)
 *     a file's (file.h)
 *     that of the times of directories (dirtime.c)
 *     that of the directories that move (dir_moves.c)
 *     the inode table's (inode.c), the root's and that of what is open (core.h), the callers'
 *     (caller.c), the listings' (listings.c)
 *     the follow's (follow.c)
 * Nobody waits for the cluster under one of them, but for the directory handle's, on which only
 * readers of that one handle queue.
 */
#ifndef KVFS_FS_FS_H
#define KVFS_FS_FS_H

#include <stdbool.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include "fs/attr.h"
#include "fs/caller.h"
#include "fs/follow.h"

struct fs;
struct handle;     /* an open file */
struct dir_handle; /* an open directory */

struct fs_opts {
    struct cluster *cluster; /* borrowed */
    struct attr_defaults defaults;
    /*
     * What only reads takes the word of one replica: the attributes of files while the change feed
     * does not live, and files opened for reading; also what is kept here, without asking. Names,
     * and all else on which a change may rest, need a majority; only while that is out of reach a
     * name is looked up at whoever is there.
     */
    bool read_one;
};
int fs_new(const struct fs_opts *opts, struct fs **out);
/* No call is under way. What is still open is closed, and not stored: see fs_flush_all(). */
void fs_free(struct fs *fs);

/* What the change feed's callbacks get, while the mount follows it. */
struct follow *fs_follow(struct fs *fs);
/* The ids of all directories that the kernel may know of: malloced. 0 or -ENOMEM. */
int fs_dir_ids(struct fs *fs, uint64_t **out, size_t *n);

/* What is told to the kernel of a file found or made: counted, forgotten by fs_forget(). */
struct fs_entry {
    uint64_t id;
    struct stat st;
    bool name_holds; /* the kernel may believe the name for FS_NAME_TIMEOUT_S */
};
#define FS_NAME_TIMEOUT_S 60
/* A directory's for so long if not: it is just the beginning of the keys in it, and what is in it
 * is asked for all the same. */
#define FS_DIR_NAME_TIMEOUT_S 1

/*
 * Are these the attributes that the directory is known to have (fs/follow.h)? Then the kernel may
 * believe them for a while. Never of a file: its size decides what a read of its pages brings, and
 * the kernel drops what it is told of an inode (also that a read was short) when a change is told
 * at the same moment; the reader then gets too little, or zeros behind the end. What is known here
 * answers each of its questions instead.
 */
bool fs_attrs_hold(struct fs *fs, uint64_t id, const struct stat *st);
/* May the kernel use the pages that it has of the file? Of a handle that was just opened. */
bool fs_pages_hold(struct fs *fs, const struct handle *h);

int fs_lookup(struct fs *fs, struct caller *who, uint64_t parent, const char *name,
              struct fs_entry *out);
void fs_forget(struct fs *fs, uint64_t id, uint64_t nlookup);
/* h: the handle through which it is asked, or NULL. */
int fs_getattr(struct fs *fs, struct caller *who, uint64_t id, struct handle *h, struct stat *out);
/* access(2) where the kernel does not check permissions (without default_permissions): then all are
 * allowed all, but what has no x for anybody is no program. */
int fs_access(struct fs *fs, struct caller *who, uint64_t id, int mask);
/* size: UINT64_MAX leaves it. h as above. */
int fs_setattr(struct fs *fs, struct caller *who, uint64_t id, struct handle *h,
               const struct attr_change *ch, uint64_t size, struct stat *out);
int fs_readlink(struct fs *fs, struct caller *who, uint64_t id, struct buf *out);
int fs_mknod(struct fs *fs, struct caller *who, uint64_t parent, const char *name, uint32_t mode,
             uint64_t rdev, struct fs_entry *out);
int fs_mkdir(struct fs *fs, struct caller *who, uint64_t parent, const char *name, uint32_t mode,
             struct fs_entry *out);
int fs_symlink(struct fs *fs, struct caller *who, const char *target, uint64_t parent,
               const char *name, struct fs_entry *out);
int fs_unlink(struct fs *fs, struct caller *who, uint64_t parent, const char *name);
int fs_rmdir(struct fs *fs, struct caller *who, uint64_t parent, const char *name);
/* noreplace: -EEXIST when the new name exists. */
int fs_rename(struct fs *fs, struct caller *who, uint64_t parent, const char *name,
              uint64_t new_parent, const char *new_name, bool noreplace);
int fs_statfs(struct fs *fs, struct statvfs *out);

/* flags: open(2)'s. */
int fs_create(struct fs *fs, struct caller *who, uint64_t parent, const char *name, uint32_t mode,
              int flags, struct fs_entry *entry, struct handle **out);
int fs_open(struct fs *fs, struct caller *who, uint64_t id, int flags, struct handle **out);
int fs_read(struct fs *fs, struct caller *who, struct handle *h, uint64_t off, size_t len,
            struct value *out);
/* writeback: pages of a mapping, whoever's handle this is: they go where off says, also through one
 * opened for appending. */
int fs_write(struct fs *fs, struct caller *who, struct handle *h, uint64_t off, struct span data,
             bool writeback);
/* mode: fallocate(2)'s; -EOPNOTSUPP for what is more than sizes, zeros and holes. */
int fs_fallocate(struct fs *fs, struct caller *who, struct handle *h, int mode, uint64_t off,
                 uint64_t len);
/* lseek(2) with SEEK_DATA, or SEEK_HOLE. */
int fs_lseek(struct handle *h, uint64_t off, bool hole, uint64_t *out);
/* copy_file_range(2); *done may be less than len. */
int fs_copy_range(struct fs *fs, struct caller *who, struct handle *from, uint64_t from_off,
                  struct handle *to, uint64_t to_off, uint64_t len, uint64_t *done);
int fs_flush(struct fs *fs, struct caller *who, struct handle *h);
int fs_fsync(struct fs *fs, struct caller *who, struct handle *h);
/* Frees h, whatever it returns: what could not be stored is lost then, and logged. */
int fs_release(struct fs *fs, struct caller *who, struct handle *h);
/* Was it opened for appending? Its offsets are not the kernel's to tell. */
bool handle_appends(const struct handle *h);
/* Stores what is dirty of all files and directories, when going down; logs what could not be. */
void fs_flush_all(struct fs *fs, struct caller *who);

/* What is open, and not stored yet. dirty: called for each file that is, with the error of the last
 * try to store it (0: none failed); may be NULL. */
struct fs_usage {
    uint64_t n_open, n_dirty, dirty_bytes;
    bool feed_live; /* the nodes tell of changes, so what is known here may be believed */
};
void fs_get_usage(struct fs *fs,
                  void (*dirty)(void *arg, struct span key, uint64_t size, int last_err), void *arg,
                  struct fs_usage *out);
/* Is there a directory with this prefix, which ends in '/'? 1, 0, or why that cannot be said within
 * half a second. */
int fs_has_dir(struct fs *fs, struct caller *who, struct span prefix);

/*
 * Reading a directory. Offsets name positions for seekdir(): 0 is the start, where everything is
 * listed afresh. An entry keeps its offset while the handle is open, whatever comes and goes.
 */
struct fs_dirent {
    const char *name; /* borrowed until the next call with this handle */
    struct stat st;   /* st_ino and type at least; all attributes where known */
    uint64_t next_off;
    bool dots; /* "." or "..": not to be remembered */
};
int fs_opendir(struct fs *fs, struct caller *who, uint64_t id, struct dir_handle **out);
/* The entry at off: 1, 0 at the end. !may_wait: -EAGAIN where the cluster had to be asked. */
int fs_readdir(struct fs *fs, struct caller *who, struct dir_handle *d, uint64_t off, bool may_wait,
               struct fs_dirent *out);
/* Counts the entry last read for the kernel, as a lookup would: readdirplus. */
int fs_readdir_remember(struct fs *fs, struct caller *who, struct dir_handle *d,
                        struct fs_entry *out);
void fs_releasedir(struct fs *fs, struct dir_handle *d);
/* What makes or removes a name is stored when it returns, but for the time of that: now it is,
 * where the cluster answers. 0 or -EINTR. */
int fs_fsyncdir(struct fs *fs, struct caller *who, struct dir_handle *d);

/* Extended attributes, user.* only. size 0 asks for the length; -ERANGE, -ENODATA, -EOPNOTSUPP.
 * flags: XATTR_CREATE, XATTR_REPLACE. */
int fs_getxattr(struct fs *fs, struct caller *who, uint64_t id, const char *name, struct buf *out);
int fs_listxattr(struct fs *fs, struct caller *who, uint64_t id, struct buf *out);
int fs_setxattr(struct fs *fs, struct caller *who, uint64_t id, const char *name, struct span value,
                int flags);
int fs_removexattr(struct fs *fs, struct caller *who, uint64_t id, const char *name);

#endif

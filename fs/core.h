/* core.h - what the files of the core share: the mounted file system, and names resolved to keys.
 * Not for handlers. */
#ifndef KVFS_FS_CORE_H
#define KVFS_FS_CORE_H

#include <pthread.h>

#include "fs/content.h"
#include "fs/dir_moves.h"
#include "fs/follow.h"
#include "fs/fs.h"
#include "fs/inode.h"
#include "fs/listings.h"

struct dirtimes;

struct fs {
    struct cluster *cluster;
    struct inode_table *inodes;
    struct follow *follow;
    struct listings *listings;
    struct dirtimes *dirtimes;
    struct attr_defaults defaults;
    bool read_one; /* see fs_opts */
    uint64_t max_value_size;
    struct content_pool pool;  /* the memory of open files */
    struct dir_moves moves;    /* of directories, under way */
    pthread_mutex_t root_lock; /* root */
    struct meta root;          /* the root has no key: its attributes live as long as the mount */
    pthread_mutex_t open_lock; /* of the lists of what is open, to be closed at the end */
    struct list open_files, open_dirs; /* struct handle, struct dir_handle */
};

/* Whose word a read that decides nothing takes: of `one` where the mount is told so. */
static inline enum read_from fs_from(const struct fs *fs, enum read_from one)
{
    return fs->read_one ? one : READ_MAJORITY;
}

/* How long what a lookup or open saw may serve the next step of its caller, and an entry of a
 * listing the first lookup by its reader, while he has it open. */
#define SEEN_US 20000u
#define LISTED_US 1000000u

/* Monotonic. */
static inline uint64_t core_now_us(void)
{
    return clock_real()->mono_us(clock_real());
}

/* A name in a directory, as keys. */
struct name {
    struct inode *dir;        /* referenced */
    struct dir_use use;       /* so long it is not moved */
    struct buf prefix;        /* of dir */
    struct buf file;          /* the key of a file of that name; empty: there can be none */
    struct buf subdir;        /* the prefix of a directory of that name; empty: there can be none */
    int file_err, subdir_err; /* why: -EINVAL or -ENAMETOOLONG */
};
/*
 * Waits while this mount moves the directory, and enters it, see dir_moves.h: the keys stay those
 * of the name until name_fini(). -ENOENT: no such directory any more; -EINVAL: no name that can be;
 * -ENAMETOOLONG; -EINTR.
 */
int name_resolve(struct fs *fs, struct caller *who, uint64_t parent, const char *text,
                 struct name *out);
/* Both, or none. -ENOENT where *from can be no name. */
int names_resolve(struct fs *fs, struct caller *who, uint64_t parent, const char *text,
                  struct name *from, uint64_t to_parent, const char *to_text, struct name *to);
void name_fini(struct fs *fs, struct name *n);
/* The key of an inode, which stays that until it is left (also when entering it fails). Waits as
 * name_resolve() does. -ENOENT: it has no name any more; -EINTR. */
struct key_use {
    struct buf key;
    struct dir_use use;
    bool entered;
};
int key_enter(struct fs *fs, struct caller *who, struct inode *in, struct key_use *out);
void key_leave(struct fs *fs, struct key_use *k);
/* What dir_moves_enter() says: is it to be tried again? Waits for that, and makes it -EINTR where
 * the caller is to stop. */
bool fs_may_enter_again(struct fs *fs, struct caller *who, uint64_t n_ended, int *err);

/* Reads one key: 0 and what was found, -ENOENT when it is not live. from, at_least: read_args's. */
int key_find_file(struct fs *fs, struct caller *who, struct span key, enum read_from from,
                  struct ballot at_least, struct found *out);
/* The same, or the directory that hides it, which *out tells by its kind. */
int key_find_shown(struct fs *fs, struct caller *who, struct span key, enum read_from from,
                   struct found *out);
/* Looks for a directory of this prefix. */
int key_find_dir(struct fs *fs, struct caller *who, struct span prefix, enum read_from from,
                 struct found *out);
/* Looks for what shows under a name: the directory, or else the file. */
int name_find(struct fs *fs, struct caller *who, const struct name *n, enum read_from from,
              struct found *out);

/* name_find(), and what was created here but not stored yet. (fs.c) */
int fs_find(struct fs *fs, struct caller *who, const struct name *n, struct found *out);
bool fs_find_pending(struct fs *fs, const struct name *n, struct found *out);
/* fs_find(), or what the lookup by which this call began has just found. */
int fs_find_again(struct fs *fs, struct caller *who, const struct name *n, struct found *out);
/* What is left open when the mount ends; nobody uses it any more. (handle.c, dir.c) */
void fs_close_files(struct fs *fs);
void fs_close_dirs(struct fs *fs);
/* The group of what is made in dir: the directory's own where that is setgid, and then a directory
 * made in it is setgid too. (tree.c) */
uint32_t fs_inherit(struct fs *fs, struct inode *dir, struct meta *m);
/* How something was found. */
struct origin {
    enum seen_by by;
    uint64_t until_us; /* so long it is word for the caller's next step; 0: it is not */
    const struct follow_mark *mark; /* it may be kept while that holds; NULL: it may not */
};
/* Remembers what was found under a key for the kernel. -EAGAIN as inode_remember(). */
int fs_entry_of(struct fs *fs, struct caller *who, struct span key, const struct found *found,
                uint64_t moves, const struct origin *how, struct fs_entry *out);
/* It was found under its name, by a lookup or a listing: may the kernel walk over that without
 * asking, while the mark holds? Says so in *e. */
void fs_hold_name(struct fs *fs, const struct found *found, const struct follow_mark *mark,
                  struct fs_entry *e);
/* Is it in a directory that moves, by somebody else? Never blocks. (known.c, as are the next
 * seven.) */
bool fs_is_moving(struct fs *fs, struct caller *who, struct inode *in);
/* Its key was not there: may that be since a directory moved, after so many moves had ended? Waits
 * while it does. */
bool fs_has_moved(struct fs *fs, struct caller *who, struct inode *in, uint64_t n_ended);
/* Asks what an inode is now, and keeps it if it may. -ENOENT; -ESTALE: something else. */
int fs_find_inode(struct fs *fs, struct caller *who, struct inode *in, enum read_from from,
                  struct found *out);
/* Asks what a directory is, if the kernel has come by its name without asking and that is not known
 * to be as it was. -ENOENT: it is no longer there. */
int fs_renew_dir(struct fs *fs, struct caller *who, struct inode *in);
/* Before something is made or removed in a directory: 0, or -ESTALE where it is no longer there,
 * upon which the kernel walks the path again. */
int fs_check_dir(struct fs *fs, struct caller *who, struct inode *dir);
/* A lookup in the directory found nothing: -ENOENT, or -ESTALE where something else has taken the
 * place of the directory, or of one above, so that the path may lead elsewhere now. */
int fs_missed(struct fs *fs, struct caller *who, struct inode *dir);
/* Attributes as programs see them, with what this mount knows better than the cluster. */
void fs_show(struct fs *fs, struct inode *in, const struct found *found, struct stat *out);

/* Blocking calls of the cluster that keep the reason of a failure in who->why. (calls.c) */
int core_read(struct fs *fs, struct caller *who, const struct read_args *args,
              struct read_result *out);
int core_write(struct fs *fs, struct caller *who, const struct write_args *args,
               struct write_result *out);
int core_list(struct fs *fs, struct caller *who, const struct list_args *args,
              struct list_result *out);
/* Under which version a write that succeeded is stored; none: it was replaced already. */
struct ballot write_version(const struct write_result *res);
/* A page of a directory, kept or asked for; *mark was taken before: all of it holds while that
 * does, and a key of it while follow_mark_then() of that does. */
int core_list_dir(struct fs *fs, struct caller *who, const struct list_args *args,
                  struct list_result *out, struct follow_mark *mark);

/* Stores a new record where none is live: -EEXIST. *version: write_version(); may be NULL. */
int key_create(struct fs *fs, struct caller *who, struct span key, const struct meta *m,
               struct span value, struct ballot *version);
/* Deletes; -ENOENT when there is none. only: what that write made, else -ECANCELED; NULL: whatever
 * is there. */
int key_delete(struct fs *fs, struct caller *who, struct span key, const struct record *only);
/* Deletes a directory's marker, and tells what it was: for record_copy_fini(); {0} before. Stores
 * it again, where there is none. */
int marker_take(struct fs *fs, struct caller *who, struct span prefix, struct record_copy *taken);
int marker_give_back(struct fs *fs, struct caller *who, struct span prefix, struct record *taken);
/*
 * Moves a directory, prefix and all; parent: the directory it is in. into: as if it were moved to
 * new + its own name, which completes an interrupted move. (rename_dir.c)
 */
int fs_rename_dir(struct fs *fs, struct caller *who, struct inode *parent, struct span old,
                  struct span new, bool noreplace, bool into);
/* Is moving from to this name, in the directory that has begun to be it, the completion of that
 * move? 1, 0, or an error. */
int fs_rename_is_resumed(struct fs *fs, struct caller *who, const struct name *from,
                         const struct name *to);
/* Makes sure that a directory stays when its last key goes: stores its marker if it has none. */
int dir_keep(struct fs *fs, struct caller *who, struct inode *dir);
/* The open file of a key, with a reference; NULL: it is not open here. (tree.c) */
struct file *fs_file_of_key(struct fs *fs, struct span key);
/* Ends what file_hold() began, and gives the reference back. Accepts NULL. (tree.c) */
void fs_unhold(struct fs *fs, struct file *f);
/* dir_check_empty(), and nothing below was created here but not stored yet. (tree.c) */
int fs_check_empty(struct fs *fs, struct caller *who, struct span prefix);
/* Is there anything below prefix but its marker? 0: nothing; -ENOTEMPTY; -ENOENT: not even the
 * marker. */
int dir_check_empty(struct fs *fs, struct caller *who, struct span prefix);

#endif

/*
 * inode.h - what the kernel knows of: the table of inodes.
 *
 * Three kinds of names for one thing:
 *   id      what the kernel calls it ("nodeid"). Given out by this table, never twice in the life
 *           of a mount. Lives while the kernel remembers it (nlookup, given back by forget) or
 *           something here refers to it.
 *   key     where its bytes are in the cluster: the file's key, or the prefix of a directory (""
 *           for the root). Changes when it is renamed. An inode whose key was deleted or taken
 *           over by another file is *gone*: it has no key, only its open handles go on.
 *   st_ino  what programs see, see attr.h.
 *
 * Of one (key, kind) there is at most one inode that is not gone, so all handles of a file meet in
 * one struct file.
 */
#ifndef KVFS_FS_INODE_H
#define KVFS_FS_INODE_H

#include "common/list.h"
#include "fs/attr.h"

struct file;
struct inode_table;

#define INODE_ROOT 1u

enum inode_kind { INODE_FILE, INODE_DIR };

/* What was found under a name, to be remembered. */
struct found {
    enum inode_kind kind;
    struct meta meta;
    struct ballot version;
    bool made; /* just now: what had that name before is gone, if it was another file */
    bool has_marker, shadows; /* of a directory */
    bool followed;            /* as in read_result: it may be kept */
    bool lone; /* one replica's word, or what was kept: it may be old, and decides nothing */
};

/*
 * Word left for a caller's next step, which spares a second request to the cluster: a path walk
 * ends in LOOKUP, and GETATTR or OPEN follow from the same thread at once. Used once, by that
 * thread, until until_us. What it is good for depends on who left it:
 */
enum seen_by {
    SEEN_ASKED,  /* who asked the cluster in this very step: for all that follows, OPEN too */
    SEEN_TOLD,   /* who did not (it had word itself, or knows from memory): for attributes only */
    SEEN_LISTED, /* a listing: for the first LOOKUP by its reader, who leaves SEEN_TOLD */
};
struct seen {
    pid_t pid; /* 0: nothing */
    enum seen_by by;
    uint64_t until_us; /* monotonic */
    struct found found;
};

/*
 * What is kept of it while the change feed tells of changes, and what the kernel was told:
 * follow.h, whose lock guards it.
 */
struct kept {
    uint64_t hash;       /* of the key that found and told are of */
    uint64_t epoch;      /* in which found was seen to hold; 0: it does not */
    struct found found;  /* its version: all changes up to it are known */
    struct ballot told;  /* the newest version heard of */
    struct ballot pages; /* that all pages which the kernel has are of; none: of any */
    uint64_t n_mixed;    /* how often pages came to be of any */
    uint64_t
        named_until_us; /* until when it may walk over the name without asking; clock_awake_us() */
};

/*
 * When this mount last made or removed something in a directory, and what became of it: dirtime.h,
 * whose lock guards it.
 */
struct dirtime {
    int64_t changed_ns;      /* 0: it did not */
    int64_t seen_ns;         /* the directory's mtime as it was seen before that */
    struct ballot stored_in; /* the record tells of it since this version; none: not yet */
    bool kept_here;          /* it is not to be stored: the directory has no record */
    bool queued, storing;
    struct list link; /* while queued */
};

/* All fields but id, kind, kept and time are protected by the table's lock; others see them through
 * the functions below. */
struct inode {
    uint64_t id;
    enum inode_kind kind;
    uint8_t *key;
    size_t key_len;
    bool gone;
    uint64_t nlookup;  /* entry replies that the kernel has not forgotten */
    unsigned refs;     /* handles and calls under way */
    uint32_t type;     /* S_IFMT of a file */
    uint64_t ino;      /* its st_ino as last seen; 0: its path's */
    struct file *file; /* while it is open, see file.h */
    struct seen seen;
    struct kept kept;
    /* Of directories: */
    bool has_marker;    /* seen to have a marker, so it stays when the last key in it goes */
    bool shadows;       /* a key of the same name is hidden by it */
    uint32_t mode, gid; /* as last seen; new files inherit the group of setgid directories */
    int64_t mtime_ns, ctime_ns; /* as last seen */
    struct dirtime time;
    struct inode *next_by_id, *next_by_key; /* hash chains */
};

int inode_table_new(struct inode_table **out);
void inode_table_free(struct inode_table *t);

/* Gives a reference; NULL when there is none. */
struct inode *inode_get(struct inode_table *t, uint64_t id);
struct inode *inode_find(struct inode_table *t, struct span key, enum inode_kind kind);
struct inode *inode_ref(struct inode_table *t, struct inode *in);
void inode_put(struct inode_table *t, struct inode *in); /* accepts NULL */

/*
 * Finds or makes the inode of a key, in one step. lookup: the kernel will be told of it, and forget
 * it later. *out has a reference. -EAGAIN when this key, or a directory, was renamed since `moves`
 * was sampled: the key may be an old one, look again. -ENOMEM.
 */
int inode_remember(struct inode_table *t, struct span key, const struct found *found,
                   uint64_t moves, bool lookup, struct inode **out);
uint64_t inode_moves(struct inode_table *t);
void inode_forget(struct inode_table *t, uint64_t id, uint64_t nlookup);

/* Appends its key (or prefix). 0, -ENOENT when it is gone, -ENOMEM. */
int inode_key(struct inode_table *t, struct inode *in, struct buf *out);
/* The key that it has, or had last: to read what its name stands for now. 0 or -ENOMEM. */
int inode_last_key(struct inode_table *t, struct inode *in, struct buf *out);
uint32_t inode_type(struct inode_table *t, struct inode *in); /* S_IFMT of a file */
bool inode_is_gone(struct inode_table *t, struct inode *in);
/* The st_ino of a directory, as far as the kernel has asked for it. */
uint64_t inode_dir_ino(struct inode_table *t, struct span prefix);
/* attr_st_ino() of its key; of one that is gone: as it was called last. */
uint64_t inode_path_ino(struct inode_table *t, struct inode *in);

/* The key was deleted, or now is another file: its inode, if any, is gone. */
void inode_drop(struct inode_table *t, struct span key, enum inode_kind kind);
/* from has become to; what had that name is gone. */
int inode_move(struct inode_table *t, struct span from, struct span to, enum inode_kind kind);
/* The same of a directory, with all below it. keep: of two of one name now, the one stays that has
 * had it, and the other is gone. */
int inode_move_tree(struct inode_table *t, struct span from, struct span to, bool keep);

/*
 * Leaves word for the same caller; takes it (false: there is none that is good for what `want`
 * says, which for SEEN_TOLD includes SEEN_ASKED); drops what a listing left, if it is still there.
 */
void inode_set_seen(struct inode_table *t, struct inode *in, pid_t pid, uint64_t until_us,
                    enum seen_by by, const struct found *found);
bool inode_take_seen(struct inode_table *t, struct inode *in, pid_t pid, uint64_t now_us,
                     enum seen_by want, struct found *out);
void inode_drop_seen(struct inode_table *t, struct inode *in);
void inode_drop_listed(struct inode_table *t, uint64_t id);
void inode_set_dir(struct inode_table *t, struct inode *in, const struct found *found);
/* Copies what is known of a directory. */
struct dir_facts {
    bool has_marker, shadows;
    uint32_t mode, gid;
    int64_t mtime_ns, ctime_ns;
};
struct dir_facts inode_dir_facts(struct inode_table *t, struct inode *in);
/* The marker was deleted by another mount. */
void inode_lost_marker(struct inode_table *t, struct inode *in);
void inode_set_dir_times(struct inode_table *t, struct inode *in, int64_t mtime_ns,
                         int64_t ctime_ns);

/* The ids of all directories: malloced. 0 or -ENOMEM. */
int inode_dir_ids(struct inode_table *t, uint64_t **out, size_t *n);

/* --- the open files (file.c) ------------------------------------------------------------------ */

/* The open file of an inode, with a reference; NULL when it is not open. */
struct file *inode_file(struct inode_table *t, struct inode *in);
/* The same, or else `fresh`, which becomes its open file (its first reference is the caller's). */
struct file *inode_attach(struct inode_table *t, struct inode *in, struct file *fresh);
/* Gives a reference back; true: it was the last, the file is detached and the caller frees it. */
bool inode_detach(struct inode_table *t, struct file *f);
/*
 * All open files that are not gone and whose key starts with prefix, in the order of their ids,
 * each with a reference. *out: malloced (NULL when none).
 */
int inode_files_below(struct inode_table *t, struct span prefix, struct file ***out, size_t *n);

#endif

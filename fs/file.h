/*
 * file.h - an open file: one per inode, shared by all its handles, so that they share one view.
 *
 * What is in it: the *base*, the value of `version` in the cluster, either loaded whole (small
 * files, and whatever is written to; what is large then lies in a temporary file) or read through a
 * window of chunks pinned to that version (large files that are only read); and the *tail*, what
 * O_APPEND handles wrote since the last store. It stands behind the base, wherever that ends in
 * the cluster by then.
 *
 * What is dirty: `whole`, the base was changed here and replaces the stored value; else a non-empty
 * tail, which is appended; else `pending`, created and never stored. With both a changed base and
 * appends, this view wins and is stored whole.
 *
 * What another mount deleted or replaced meanwhile: appended lines, and a file that was cut to
 * nothing here, depend on nothing that was there, and go under the name whatever it stands for now,
 * as if they had come a little later. Anything else is a change of a file that is gone: it is not
 * stored, and whoever stores hears ESTALE.
 *
 * Generations: gen moves with each local change; a store saves the generation it took its snapshot
 * of, so what came later stays dirty.
 *
 * Storing, loading whole, moving and unlinking are *exclusive*: one at a time per file, by the busy
 * flag, while the lock stays free. Reads, writes to what is loaded, and getattr do not wait; but
 * writes to what is being stored out of a temporary file do. So whoever is exclusive finds the view
 * changed when it has the lock again: written to, cut to nothing, opened anew, or given up
 * (n_voided). What it may rely on is gen, and that nobody else stores.
 *
 * `version` none means that nothing in the cluster is known to be this view: it is pending, or what
 * was made or appended was replaced at once.
 */
#ifndef KVFS_FS_FILE_H
#define KVFS_FS_FILE_H

#include <pthread.h>

#include "common/list.h"
#include "fs/attr.h"
#include "fs/caller.h"
#include "fs/content.h"

struct fs;
struct inode;
struct found;

#define WINDOW_CHUNKS 4u
#define UNSURE_MAX 8u

/* A chunk of the base, pinned to `version`. */
struct chunk {
    uint64_t index;
    uint64_t used; /* when, by f->clock; 0: empty */
    bool coming;   /* being fetched */
    struct value v;
};

/* A value, and what was to stand behind it. */
struct appended {
    struct value before, added;
    size_t tail; /* so much of the tail is in it then */
};

/*
 * Appends of unknown outcome: they may be in the value already, or come to be. Each is known by its
 * operation's id, as long as the record's list of those reaches back so far; else by its bytes.
 */
struct unsure {
    unsigned n;
    struct {
        uint64_t id;
        uint64_t seq;    /* of the record that it was to replace */
        size_t tail;     /* so much of the tail it stores */
    } tries[UNSURE_MAX]; /* the last of them */
    struct appended last;
};

struct file {
    struct inode *inode; /* constant; referenced */
    unsigned refs;       /* the inode table's lock, as is link */
    struct list link;

    pthread_mutex_t lock;   /* all below */
    pthread_cond_t changed; /* busy fell, or a chunk came */
    unsigned n_open;        /* handles */
    unsigned n_writers;     /* those among them that may write */
    bool known;             /* the view was set up: by a creation or from the cluster */
    bool busy;              /* somebody works exclusively */

    struct ballot version; /* of the base; none: not stored yet, or has to be looked up again */
    bool lone;             /* that is one replica's word (struct found): no change rests on it */
    uint64_t base_size;    /* while not loaded */
    bool loaded;
    struct content base; /* while loaded */
    struct content tail;
    struct chunk window[WINDOW_CHUNKS]; /* while not loaded */
    uint64_t clock;
    struct meta meta; /* size: see file_size_locked() */

    bool whole, pending;
    bool edits; /* whole: the base is a change of what was stored, and may not make the file anew */
    bool emptied; /* only created or cut to nothing since the last store: nothing was written yet */
    bool fresh;   /* created here and not stored since: attributes travel with the first store */
    struct attr_change asked; /* of a fresh file, should its name turn out to be another's */
    bool unprivileged; /* by whom it was changed since the last store: attr_drop_privileges() */
    uint64_t gen, saved_gen;
    uint64_t failed_gen; /* of the last store that failed, with failed_err; 0: none */
    int failed_err;
    unsigned n_failed; /* stores that failed */
    unsigned n_voided; /* views given up dirty: what is still being stored of one is not ours */
    struct unsure unsure;
};

/* How the kernel's open flags are told to the core. */
struct open_mode {
    bool read, write, append, truncate;
};

/* The open file of an inode (in has a reference), made if need be; *out has a reference, to be
 * given to file_put(). */
int file_get(struct fs *fs, struct inode *in, struct file **out);
void file_put(struct fs *fs, struct file *f);

/* Counts a handle, and brings the view up to date with the cluster, unless it is dirty: then it is
 * what counts. */
int file_open(struct fs *fs, struct caller *who, struct file *f, const struct open_mode *mode);
/* The view of a new file, created here: in the cluster already (made), or not stored yet. A file
 * that is dirty already just is opened. */
void file_open_new(struct fs *fs, const struct caller *who, struct file *f,
                   const struct found *fresh, const struct open_mode *mode);
/* Gives a handle back, that may write or not; the last one stores what was never tried to be
 * stored. */
int file_close(struct fs *fs, struct caller *who, struct file *f, bool writer);

/* *out: a window into the view, owned by the caller; shorter than asked at the end. */
int file_read(struct fs *fs, struct caller *who, struct file *f, uint64_t off, size_t len,
              struct value *out);
/* append: at the end, wherever that is by the time of the store. */
int file_write(struct fs *fs, struct caller *who, struct file *f, uint64_t off, struct span data,
               bool append);
/* These three: 0, -EFBIG, or why the view cannot be changed. */
int file_truncate(struct fs *fs, struct caller *who, struct file *f, uint64_t size);
/* At least so long from now on. */
int file_extend(struct fs *fs, struct caller *who, struct file *f, uint64_t size);
/* Zeros where there is something; the size stays. */
int file_punch(struct fs *fs, struct caller *who, struct file *f, uint64_t off, uint64_t len);
/* As lseek(2) with SEEK_DATA or SEEK_HOLE: 0, -ENXIO. What is not loaded is data. */
int file_seek(struct file *f, uint64_t off, bool hole, uint64_t *out);
/* Before a read up to `wanted`, or the question for the size before one: the view moves on to a
 * newer version that just is longer, if there is one. (file_grow.c) */
void file_grow(struct fs *fs, struct caller *who, struct file *f, uint64_t wanted);
/* Stores what is dirty: after 0 a quorum has it. (file_store.c) */
int file_store(struct fs *fs, struct caller *who, struct file *f);
/* Is it dirty only by having been created or emptied? Then a close that is not the last need not
 * store it. */
bool file_only_emptied(struct file *f);

/* Dirty or pending: *out is the view that counts, whatever the cluster says. */
bool file_dirty_meta(struct file *f, struct meta *out);
bool file_pending(struct file *f);
/* Of the last try to store what is dirty now: its error, or 0. */
int file_last_error(struct file *f);
/* False while nothing is known yet: it is just being opened. */
bool file_known_meta(struct file *f, struct meta *out);
void file_meta(struct file *f, struct meta *out);
/* Created here, with attributes that are not stored yet: they travel with the first store. */
bool file_is_fresh(struct file *f);
/* Changes the attributes of a fresh file; *done false: the cluster has them, change them there (and
 * tell file_set_meta()). Waits for a store that is under way, with which they would be lost: 0 or
 * -EINTR. */
int file_change_fresh(struct caller *who, struct file *f, const struct attr_change *ch, bool *done);
/* ch was done in the cluster: version prev became next, with m. A dirty view keeps the time of its
 * last write, unless it is what was changed. */
void file_set_meta(struct file *f, const struct attr_change *ch, const struct meta *m,
                   struct ballot prev, struct ballot next);

/* Exclusive work, as moving and unlinking. 0 or -EINTR. */
int file_hold(struct caller *who, struct file *f);
void file_unhold(struct file *f);
/* Held: makes the view independent of what is stored, for what is to be unlinked or replaced. An
 * old version that is gone already cannot be had: who reads on in that hears ESTALE. */
int file_load_held(struct fs *fs, struct caller *who, struct file *f);
/* The value of one version (none: not known) has another key now, under that version. */
void file_moved(struct file *f, struct ballot from, struct ballot to);

/* What the cluster said becomes the view, unless this mount changed the file since gen, or knows
 * newer. have_value: of the value all, or as much as a chunk holds, is in *v. */
void file_install(struct fs *fs, struct file *f, uint64_t gen, const struct found *found,
                  struct value *v, bool have_value);

/* --- between file.c and the other file_*.c; f->lock is held --- */
uint64_t file_size_locked(const struct file *f);
bool file_is_dirty_locked(const struct file *f);
void file_drop_window_locked(struct file *f);
/* Waits till nobody works exclusively. 0 or -EINTR. */
int file_wait_idle_locked(struct caller *who, struct file *f);
/* Waits for a change of f, a short while: a caller who is told to stop must notice. */
void file_wait_step_locked(struct file *f);
/* Takes a value of that size, or its beginning, over as the base; empties *v. */
void file_set_base_locked(struct fs *fs, struct file *f, struct ballot version, uint64_t size,
                          struct value *v);
void appended_fini(struct appended *a);
void unsure_fini(struct unsure *u);
/* Cuts it to nothing. */
void file_empty_locked(struct fs *fs, const struct caller *who, struct file *f);
/* Fetches the whole base if need be: after 0 it is loaded. The lock is not held while waiting. */
int file_load_locked(struct fs *fs, struct caller *who, struct file *f);

#endif

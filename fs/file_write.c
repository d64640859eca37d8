/* file_write.c - changing an open file: written, cut, extended, holes made. */
#include "fs/file.h"

#include <errno.h>

#include "fs/core.h"

#define LOANS_STEP_MS 100
#define LOANS_PATIENCE_US 200000u

static void changed_locked(struct fs *fs, const struct caller *who, struct file *f)
{
    inode_drop_seen(fs->inodes, f->inode);
    follow_mix_pages(fs->follow, f->inode);
    f->gen++;
    f->meta.mtime_ns = f->meta.ctime_ns = attr_now_ns();
    if (!caller_keeps_privileges(who)) {
        f->meta.mode = attr_drop_privileges(f->meta.mode);
        f->unprivileged = true;
    }
}

void file_empty_locked(struct fs *fs, const struct caller *who, struct file *f)
{
    bool clean = !file_is_dirty_locked(f);

    file_drop_window_locked(f);
    content_fini(&f->base);
    f->loaded = true;
    content_fini(&f->tail);
    unsure_fini(&f->unsure);
    f->emptied = clean || f->emptied;
    f->whole = true;
    f->edits = f->lone = false;
    changed_locked(fs, who, f);
}

/* --- the base, to be changed ------------------------------------------------------------------ */

/* Loads the base and puts the tail behind it: the view as one piece, to be changed anywhere. */
static int unfold_locked(struct fs *fs, struct caller *who, struct file *f)
{
    int err = file_load_locked(fs, who, f);

    if (err == 0 && !f->whole) /* also of what was made here, and replaced at once */
        f->edits = !f->pending && (f->fresh || !ballot_is_none(f->version));
    if (err == 0 && content_size(&f->tail) > 0) {
        err = content_append(&f->base, &f->tail);
        if (err == 0) {
            content_fini(&f->tail);
            unsure_fini(&f->unsure);
            f->whole = true; /* no longer an append */
        }
    }
    return err;
}

/* Waits, a short while, till bytes of the base that are lent come back. */
static void wait_loans_locked(struct file *f)
{
    struct loans *l = content_loans(&f->base);

    pthread_mutex_unlock(&f->lock);
    loans_wait(l, LOANS_STEP_MS);
    loans_unref(l);
    pthread_mutex_lock(&f->lock);
}

/*
 * Until the base may be changed from off on. What is being stored out of a temporary file has to
 * stay as it is: its checksums have gone out. A replica that is still being sent it when the store
 * has ended is waited for a little only: the change then copies the file.
 */
static int ready_locked(struct fs *fs, struct caller *who, struct file *f, uint64_t off)
{
    int err = unfold_locked(fs, who, f);
    uint64_t until_us = 0;

    while (err == 0 && off < content_lent(&f->base)) {
        uint64_t now_us = core_now_us();

        if (f->busy || until_us == 0)
            until_us = now_us + LOANS_PATIENCE_US;
        if (now_us >= until_us)
            break;
        if (caller_stopped(who))
            return -EINTR;
        wait_loans_locked(f);
        err = unfold_locked(fs, who, f);
    }
    return err;
}

static void base_changed_locked(struct fs *fs, const struct caller *who, struct file *f)
{
    f->whole = true;
    f->emptied = false;
    changed_locked(fs, who, f);
}

/* --- writing ---------------------------------------------------------------------------------- */

static bool too_large(const struct fs *fs, uint64_t off, uint64_t len)
{
    return off > fs->max_value_size || len > fs->max_value_size - off;
}

int file_write(struct fs *fs, struct caller *who, struct file *f, uint64_t off, struct span data,
               bool append)
{
    int err = 0;

    pthread_mutex_lock(&f->lock);
    if (append)
        off = file_size_locked(f);
    if (too_large(fs, off, data.len)) {
        err = -EFBIG;
    } else if (append) {
        struct content *end = f->whole ? &f->base : &f->tail;

        err = content_write(end, content_size(end), data);
    } else {
        err = ready_locked(fs, who, f, off);
        if (err == 0)
            err = content_write(&f->base, off, data);
        if (err == 0)
            f->whole = true;
    }
    if (err == 0 && data.len > 0) {
        f->emptied = false;
        changed_locked(fs, who, f);
    }
    pthread_mutex_unlock(&f->lock);
    return err;
}

int file_truncate(struct fs *fs, struct caller *who, struct file *f, uint64_t size)
{
    int err = 0;

    pthread_mutex_lock(&f->lock);
    if (size > fs->max_value_size) {
        err = -EFBIG;
    } else if (size == 0) {
        file_empty_locked(fs, who, f);
    } else {
        err = ready_locked(fs, who, f, size);
        if (err == 0)
            err = content_truncate(&f->base, size);
        if (err == 0)
            base_changed_locked(fs, who, f);
    }
    pthread_mutex_unlock(&f->lock);
    return err;
}

int file_extend(struct fs *fs, struct caller *who, struct file *f, uint64_t size)
{
    int err = 0;

    pthread_mutex_lock(&f->lock);
    if (too_large(fs, size, 0))
        err = -EFBIG;
    else if (size > file_size_locked(f))
        err = ready_locked(fs, who, f, UINT64_MAX);
    if (err == 0 && size > file_size_locked(f)) {
        err = content_truncate(&f->base, size);
        if (err == 0)
            base_changed_locked(fs, who, f);
    }
    pthread_mutex_unlock(&f->lock);
    return err;
}

int file_punch(struct fs *fs, struct caller *who, struct file *f, uint64_t off, uint64_t len)
{
    int err = 0;

    pthread_mutex_lock(&f->lock);
    if (off < file_size_locked(f) && len > 0)
        err = ready_locked(fs, who, f, off);
    if (err == 0 && off < file_size_locked(f) && len > 0) {
        err = content_punch(&f->base, off, len);
        if (err == 0)
            base_changed_locked(fs, who, f);
    }
    pthread_mutex_unlock(&f->lock);
    return err;
}

/*
 * rename_dir.c - a directory moves: its marker is copied first, so that the new name is a directory
 * from then on; then all keys below it, several at a time, each copied before its old name goes;
 * the old marker goes last, when nothing is left below.
 *
 * Whatever stops it, a directory of each name is left then, and move_mark.h tells which belong
 * together: moving the old one to the new name again moves what is left. So does moving it *into*
 * the new one under its own name, for that is what mv(1) makes of the same command line, now that
 * there is a directory of the new name.
 *
 * What others have stored below the new name meanwhile is never replaced: where it stands in the
 * way of a key, both stay, and the move ends with -ENOTEMPTY, as it would on a disk where they had
 * come first.
 */
#include "fs/core.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/limits.h"
#include "fs/file.h"
#include "fs/move.h"
#include "fs/move_mark.h"

#define MOVE_THREADS 12u
#define MOVE_BYTES_MAX (64u << 20) /* of values under way at a time; one larger goes alone */
#define TREE_PASSES_MAX 8          /* over a directory into which others keep writing */

/* --- the keys below --------------------------------------------------------------------------- */

struct moving {
    struct fs *fs;
    struct caller *who;
    struct span from, to; /* prefixes */
    pthread_mutex_t lock; /* all below */
    pthread_cond_t changed;
    struct cursor entries;    /* what is left of the page */
    uint64_t bytes;           /* under way */
    unsigned n_moved, n_kept; /* in this pass: moved; both names stay */
    int err;                  /* the first */
};

/* Takes the next key of the page, when there is room for its value. False: none is left, or
 * something failed. */
static bool next_key(struct moving *m, struct entry *e)
{
    int got = 0;

    pthread_mutex_lock(&m->lock);
    if (m->err == 0 && caller_stopped(m->who))
        m->err = -EINTR;
    if (m->err == 0) {
        got = entry_next(&m->entries, e);
        if (got < 0)
            m->err = got;
    }
    while (got > 0 && m->bytes > 0 && m->bytes + e->size > MOVE_BYTES_MAX)
        pthread_cond_wait(&m->changed, &m->lock);
    if (got > 0)
        m->bytes += e->size;
    pthread_mutex_unlock(&m->lock);
    return got > 0;
}

static void done_key(struct moving *m, const struct entry *e, int err)
{
    pthread_mutex_lock(&m->lock);
    m->bytes -= e->size;
    m->n_moved += err == 0;
    m->n_kept += err == -EEXIST;
    if (err < 0 && err != -EEXIST && m->err == 0)
        m->err = err;
    pthread_cond_broadcast(&m->changed);
    pthread_mutex_unlock(&m->lock);
}

/* One key, and the open file of it: they follow one by one, should the rest fail. */
static int move_file(struct fs *fs, struct caller *who, struct span from, struct span to,
                     struct ballot version)
{
    struct moved versions;
    int err = key_move(fs, who, from, to, version, MOVE_OVER_COPY, &versions);
    struct file *f;

    if (err == 0)
        err = inode_move(fs->inodes, from, to, INODE_FILE);
    f = err == 0 ? fs_file_of_key(fs, to) : NULL;
    if (f != NULL)
        file_moved(f, versions.from, versions.to);
    file_put(fs, f);
    return err;
}

static int move_below(struct moving *m, struct caller *who, const struct entry *e)
{
    struct buf to = {0};
    int err;

    buf_add_span(&to, m->to);
    buf_add(&to, e->key.data + m->from.len, e->key.len - m->from.len);
    err = to.err;
    if (err == 0 && to.len > KEY_LEN_MAX)
        err = -ENAMETOOLONG;
    if (err == 0)
        err = move_file(m->fs, who, e->key, buf_span(&to), e->version);
    if (err == -ENOENT)
        err = 0; /* gone since it was listed */
    buf_fini(&to);
    return err;
}

static void *move_some(void *arg)
{
    struct moving *m = (struct moving *)arg;
    struct caller mine;
    struct entry e;

    /* A waiter is for one wait at a time; the original caller's wish to stop is looked at between
     * keys. */
    caller_begin(m->who->callers, CALL_NONE, m->who->uid, m->who->gid, 0, &mine);
    while (next_key(m, &e)) {
        bool marker = e.key.len == m->from.len; /* goes last */

        done_key(m, &e, marker ? 1 : move_below(m, &mine, &e));
    }
    pthread_mutex_lock(&m->lock);
    if (mine.why.msg[0] != 0)
        m->who->why = mine.why;
    pthread_mutex_unlock(&m->lock);
    caller_end(&mine);
    return NULL;
}

static int move_page(struct moving *m, const struct list_result *page)
{
    pthread_t threads[MOVE_THREADS];
    unsigned n = 0, want = page->n < MOVE_THREADS ? page->n : MOVE_THREADS;

    m->entries = cursor_of(buf_span(&page->entries));
    while (n < want && pthread_create(&threads[n], NULL, move_some, m) == 0)
        n++;
    if (n == 0 && want > 0)
        return -EAGAIN;
    for (unsigned i = 0; i < n; i++)
        pthread_join(threads[i], NULL);
    return m->err;
}

/* Goes through all keys below the prefix once. */
static int move_pass(struct moving *m)
{
    struct buf position = {0};
    bool more = true;
    int err = 0;

    m->n_moved = m->n_kept = 0;
    while (err == 0 && more) {
        struct list_args args = {
            .prefix = m->from, .start_after = buf_span(&position), .limit = LIST_LIMIT_DEFAULT};
        struct list_result page = {0};

        err = core_list(m->fs, m->who, &args, &page);
        if (err == 0)
            err = move_page(m, &page);
        if (err == 0) {
            more = page.more;
            buf_clear(&position);
            buf_add_span(&position, buf_span(&page.next));
            err = position.err;
        }
        list_result_fini(&page);
    }
    buf_fini(&position);
    return err;
}

/* Until nothing is left that can be moved. -ENOTEMPTY: what stays. */
static int move_all(struct moving *m)
{
    int err = 0;

    m->n_moved = 1;
    for (int i = 0; i < TREE_PASSES_MAX && err == 0 && m->n_moved > 0; i++)
        err = move_pass(m);
    if (err == 0 && m->n_moved > 0)
        err = -EBUSY;
    if (err == 0 && m->n_kept > 0)
        err = -ENOTEMPTY;
    return err;
}

/* Would every key have room under the new prefix? Asked before anything moves. */
static int check_lengths(struct fs *fs, struct caller *who, struct span from, struct span to)
{
    struct buf position = {0};
    bool more = to.len > from.len;
    int err = 0;

    while (err == 0 && more) {
        struct list_args args = {
            .prefix = from, .start_after = buf_span(&position), .limit = LIST_LIMIT_DEFAULT};
        struct list_result page = {0};
        struct entry e;

        err = core_list(fs, who, &args, &page);
        if (err == 0) {
            struct cursor c = cursor_of(buf_span(&page.entries));

            while (err == 0 && entry_next(&c, &e) > 0) {
                if (e.key.len - from.len + to.len > KEY_LEN_MAX)
                    err = -ENAMETOOLONG;
            }
            more = page.more;
            buf_clear(&position);
            buf_add_span(&position, buf_span(&page.next));
        }
        list_result_fini(&page);
    }
    buf_fini(&position);
    return err;
}

static int move_tree(struct fs *fs, struct caller *who, struct span from, struct span to,
                     bool noreplace)
{
    struct moving m = {.fs = fs, .who = who, .from = from, .to = to};
    struct record_copy source = {0};
    int err = check_lengths(fs, who, from, to);

    if (err == 0)
        err = move_mark_source(fs, who, from, &source);
    if (err == 0)
        err = move_mark_target(fs, who, from, to, &source.rec, noreplace);
    if (err == 0) {
        pthread_mutex_init(&m.lock, NULL);
        pthread_cond_init(&m.changed, NULL);
        err = move_all(&m);
        pthread_cond_destroy(&m.changed);
        pthread_mutex_destroy(&m.lock);
    }
    if (err == 0)
        err = key_delete(fs, who, from, NULL);
    if (err == 0 || err == -ENOENT) {
        /* Whoever reads the rest of a mark that could not be taken off sees that it is void. */
        (void)move_mark_done(fs, who, to, &source.rec);
        err = 0;
    }
    record_copy_fini(&source);
    return err;
}

/* --- open files ------------------------------------------------------------------------------- */

/* Stores and holds all open files below; *files: those that are held, also when it fails. */
static int hold_tree(struct fs *fs, struct caller *who, struct span prefix, struct file ***files,
                     size_t *n_files, size_t *n_held)
{
    int err = inode_files_below(fs->inodes, prefix, files, n_files);

    *n_held = 0;
    for (size_t i = 0; err == 0 && i < *n_files; i++) {
        err = file_store(fs, who, (*files)[i]);
        if (err == 0 || err == -ESTALE) /* what is not to be stored does not hinder the others */
            err = file_hold(who, (*files)[i]);
        if (err == 0)
            (*n_held)++;
    }
    return err;
}

int fs_rename_dir(struct fs *fs, struct caller *who, struct inode *parent, struct span old,
                  struct span new, bool noreplace, bool into)
{
    struct file **files = NULL;
    size_t n_files = 0, n_held = 0;
    struct dir_move move;
    int err;

    if (new.len == 0 || span_has_prefix(new, old))
        return -EINVAL;
    if (old.data[old.len - 1] != '/' || new.data[new.len - 1] != '/')
        return -EPERM; /* a piece of a long name has no name of its own */
    err = dir_keep(fs, who, parent);
    if (err < 0)
        return err;
    err = dir_moves_begin(&fs->moves, who, &move, old);
    if (err < 0)
        return err;
    who->moves = true;
    err = hold_tree(fs, who, old, &files, &n_files, &n_held);
    if (err == 0)
        err = move_tree(fs, who, old, new, noreplace);
    if (err == 0 && into)
        inode_drop(fs->inodes, old, INODE_DIR); /* the kernel now has it in the new one, where it
                                                   is not; the new one stays what it is */
    if (err == 0)
        err = inode_move_tree(fs->inodes, old, new, into);
    for (size_t i = 0; i < n_files; i++) {
        if (i < n_held)
            file_unhold(files[i]);
        file_put(fs, files[i]);
    }
    who->moves = false;
    dir_moves_end(&fs->moves, &move);
    free(files);
    return err;
}

int fs_rename_is_resumed(struct fs *fs, struct caller *who, const struct name *from,
                         const struct name *to)
{
    struct span old = buf_span(&from->subdir), rest = buf_span(&to->prefix);

    if (old.len == 0 || rest.len == 0 || old.data[old.len - 1] != '/' ||
        rest.data[rest.len - 1] != '/' || span_has_prefix(rest, old))
        return 0;
    return move_mark_is_rest(fs, who, old, rest);
}

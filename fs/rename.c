/*
 * rename.c - moving names. A key cannot be renamed in the cluster: its record is copied to the new
 * key, and then the old one deleted, if it still is what was copied; else it is copied again. So
 * whenever this stops, each key is whole, under its old name, its new one, or both.
 *
 * A directory moves key by key: its marker is copied first, so that the new name is a directory
 * from then on; then all keys below it, several at a time; the old marker goes last, when nothing
 * is left below.
 */
#include "fs/core.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/limits.h"
#include "fs/file.h"

#define MOVE_TRIES_MAX 16
#define MOVE_THREADS 12u
#define MOVE_BYTES_MAX (64u << 20) /* of values under way at a time; one larger goes alone */
#define TREE_PASSES_MAX 8          /* over a directory into which others keep writing */

/* --- one key ---------------------------------------------------------------------------------- */

struct copy {
    const struct record *rec;
    struct value value;
    bool noreplace;
};

static int copy_edit(void *ctx, const struct record *cur, struct value cur_value,
                     struct draft *next)
{
    const struct copy *c = (const struct copy *)ctx;

    (void)cur_value;
    if (c->noreplace && record_is_live(cur))
        return -EEXIST;
    next->rec.mode = c->rec->mode;
    next->rec.uid = c->rec->uid;
    next->rec.gid = c->rec->gid;
    next->rec.rdev = c->rec->rdev;
    next->rec.mtime_ns = c->rec->mtime_ns;
    next->rec.atime_ns = c->rec->atime_ns;
    next->rec.ctime_ns = attr_now_ns();
    next->rec.attrs = c->rec->attrs;
    next->value = value_ref(c->value);
    return 0;
}

/* Reads `from` and writes it to `to`; *copied: what was read, for record_copy_fini(). */
static int copy_key(struct fs *fs, struct caller *who, struct span from, struct span to,
                    bool noreplace, struct record_copy *copied)
{
    struct read_args read = {.key = from, .want_value = true, .length = READ_ALL};
    struct read_result got = {0};
    struct write_result put = {0};
    int err = core_read(fs, who, &read, &got);

    if (err == 0 && !record_is_live(&got.rec.rec))
        err = -ENOENT;
    if (err == 0) {
        struct copy c = {.rec = &got.rec.rec, .value = got.value, .noreplace = noreplace};
        struct write_args write = {
            .key = to, .edit = copy_edit, .ctx = &c, .size_hint = got.value.len};

        err = core_write(fs, who, &write, &put);
        *copied = got.rec;
        got.rec = (struct record_copy){0};
    }
    write_result_fini(&put);
    read_result_fini(&got);
    return err;
}

/* Copies, and deletes what was copied; -ECANCELED: something else was written there meanwhile. */
static int move_once(struct fs *fs, struct caller *who, struct span from, struct span to,
                     bool noreplace)
{
    struct record_copy copied = {0};
    int err = copy_key(fs, who, from, to, noreplace, &copied);

    if (err == 0) {
        err = key_delete(fs, who, from, &copied.rec);
        if (err == -ENOENT)
            err = 0; /* somebody else was faster */
    }
    record_copy_fini(&copied);
    return err;
}

static int move_key(struct fs *fs, struct caller *who, struct span from, struct span to,
                    bool noreplace)
{
    for (int i = 0; i < MOVE_TRIES_MAX; i++) {
        int err = move_once(fs, who, from, to, noreplace && i == 0);

        if (err == -ENOENT && i > 0)
            return 0; /* deleted by somebody else since the first copy, which is what counts */
        if (err != -ECANCELED)
            return err;
    }
    return -EBUSY; /* somebody writes it all the time */
}

/* --- a file ----------------------------------------------------------------------------------- */

/*
 * Holds both names' open files, where they are, in the order of their ids: the one order in which
 * anybody holds more than one.
 */
static int hold_two(struct caller *who, struct file *a, struct file *b)
{
    bool swap = a != NULL && b != NULL && a->inode->id > b->inode->id;
    struct file *first = swap ? b : a, *second = swap ? a : b;
    int err = first != NULL ? file_hold(who, first) : 0;

    if (err == 0 && second != NULL) {
        err = file_hold(who, second);
        if (err < 0 && first != NULL)
            file_unhold(first);
    }
    return err;
}

static int rename_file(struct fs *fs, struct caller *who, const struct name *from,
                       const struct name *to, bool noreplace)
{
    struct span old = buf_span(&from->file), new = buf_span(&to->file);
    struct file *moved = fs_file_of_key(fs, old), *replaced = fs_file_of_key(fs, new);
    int err;

    err = new.len > 0 ? dir_keep(fs, who, from->dir) : -EINVAL;
    if (err == 0 && moved != NULL)
        err = file_store(fs, who, moved); /* so that the record which moves is what is seen here */
    if (err == 0)
        err = hold_two(who, moved, replaced);
    if (err < 0) {
        file_put(fs, moved);
        file_put(fs, replaced);
        return err;
    }
    /* Those who have one of them open go on with what they have. */
    if (moved != NULL)
        err = file_load_held(fs, who, moved);
    if (err == 0 && replaced != NULL)
        err = noreplace ? -EEXIST : file_load_held(fs, who, replaced);
    if (err == 0)
        err = move_key(fs, who, old, new, noreplace);
    if (err == 0)
        err = inode_move(fs->inodes, old, new, INODE_FILE);
    if (err == 0 && moved != NULL)
        file_moved_held(moved);
    fs_unhold(fs, moved);
    fs_unhold(fs, replaced);
    return err;
}

/* --- a directory ------------------------------------------------------------------------------ */

struct moving {
    struct fs *fs;
    struct caller *who;
    struct span from, to; /* prefixes */
    pthread_mutex_t lock; /* all below */
    pthread_cond_t changed;
    struct cursor entries; /* what is left of the page */
    uint64_t bytes;        /* under way */
    int err;               /* the first */
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
    if (err < 0 && m->err == 0)
        m->err = err;
    pthread_cond_broadcast(&m->changed);
    pthread_mutex_unlock(&m->lock);
}

static int move_below(struct moving *m, struct caller *who, struct span key)
{
    struct buf to = {0};
    int err;

    buf_add_span(&to, m->to);
    buf_add(&to, key.data + m->from.len, key.len - m->from.len);
    err = to.err;
    if (err == 0 && to.len > KEY_LEN_MAX)
        err = -ENAMETOOLONG;
    if (err == 0)
        err = move_key(m->fs, who, key, buf_span(&to), false);
    if (err == -ENOENT)
        err = 0; /* deleted since it was listed */
    else if (err == 0)
        err = inode_move(m->fs->inodes, key, buf_span(&to),
                         INODE_FILE); /* open files follow one by one, should the rest fail */
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
    caller_begin(m->who->callers, m->who->uid, m->who->gid, 0, &mine);
    while (next_key(m, &e))
        done_key(m, &e, e.key.len == m->from.len ? 0 : move_below(m, &mine, e.key));
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

/* Moves all keys below the prefix but the marker itself; *left: how many there were. */
static int move_pass(struct moving *m, unsigned *left)
{
    struct buf position = {0};
    bool more = true;
    int err = 0;

    *left = 0;
    while (err == 0 && more) {
        struct list_args args = {
            .prefix = m->from, .start_after = buf_span(&position), .limit = LIST_LIMIT_DEFAULT};
        struct list_result page = {0};

        err = core_list(m->fs, m->who, &args, &page);
        if (err == 0) {
            bool marker = page.n > 0 && position.len == 0;

            if (marker) {
                struct cursor c = cursor_of(buf_span(&page.entries));
                struct entry first;

                marker = entry_next(&c, &first) > 0 && first.key.len == m->from.len;
            }
            *left += page.n - marker;
            err = move_page(m, &page);
            more = page.more;
            buf_clear(&position);
            buf_add_span(&position, buf_span(&page.next));
            if (err == 0)
                err = position.err;
        }
        list_result_fini(&page);
    }
    buf_fini(&position);
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

/* The new name becomes a directory with the old one's attributes. */
static int copy_marker(struct fs *fs, struct caller *who, struct span from, struct span to,
                       bool noreplace)
{
    struct record_copy copied = {0};
    struct meta m;
    int err = copy_key(fs, who, from, to, noreplace, &copied);

    record_copy_fini(&copied);
    if (err != -ENOENT)
        return err;
    m = meta_of_implicit_dir(&fs->defaults, attr_now_ns());
    err = key_create(fs, who, to, &m, span_of(NULL, 0), NULL);
    return err == -EEXIST && !noreplace ? 0 : err;
}

static int move_tree(struct fs *fs, struct caller *who, struct span from, struct span to,
                     bool noreplace)
{
    struct moving m = {.fs = fs, .who = who, .from = from, .to = to};
    unsigned left = 1;
    int err = check_lengths(fs, who, from, to);

    if (err == 0)
        err = copy_marker(fs, who, from, to, noreplace);
    if (err < 0)
        return err;
    pthread_mutex_init(&m.lock, NULL);
    pthread_cond_init(&m.changed, NULL);
    for (int i = 0; i < TREE_PASSES_MAX && err == 0 && left > 0; i++)
        err = move_pass(&m, &left);
    pthread_cond_destroy(&m.changed);
    pthread_mutex_destroy(&m.lock);
    if (err == 0 && left > 0)
        err = -EBUSY;
    if (err == 0)
        err = key_delete(fs, who, from, NULL);
    return err == -ENOENT ? 0 : err;
}

/* Stores and holds all open files below; *files: those that are held, also when it fails. */
static int hold_tree(struct fs *fs, struct caller *who, struct span prefix, struct file ***files,
                     size_t *n_files, size_t *n_held)
{
    int err = inode_files_below(fs->inodes, prefix, files, n_files);

    *n_held = 0;
    for (size_t i = 0; err == 0 && i < *n_files; i++) {
        err = file_store(fs, who, (*files)[i]);
        if (err == 0)
            err = file_hold(who, (*files)[i]);
        if (err == 0)
            (*n_held)++;
        if (err == 0)
            err = file_load_held(fs, who, (*files)[i]);
    }
    return err;
}

static int rename_dir(struct fs *fs, struct caller *who, const struct name *from,
                      const struct name *to, bool noreplace)
{
    struct span old = buf_span(&from->subdir), new = buf_span(&to->subdir);
    struct file **files = NULL;
    size_t n_files = 0, n_held = 0;
    int err;

    if (new.len == 0 || span_has_prefix(new, old))
        return -EINVAL;
    if (old.data[old.len - 1] != '/' || new.data[new.len - 1] != '/')
        return -EPERM; /* a piece of a long name has no name of its own */
    err = fs_check_empty(fs, who, new);
    if (err == 0 && noreplace)
        err = -EEXIST;
    if (err == 0 || err == -ENOENT)
        err = dir_keep(fs, who, from->dir);
    if (err == 0)
        err = hold_tree(fs, who, old, &files, &n_files, &n_held);
    if (err == 0)
        err = move_tree(fs, who, old, new, noreplace);
    if (err == 0)
        err = inode_move_tree(fs->inodes, old, new);
    for (size_t i = 0; i < n_files; i++) {
        if (i < n_held) {
            file_moved_held(files[i]);
            file_unhold(files[i]);
        }
        file_put(fs, files[i]);
    }
    free(files);
    return err;
}

/* --- either ----------------------------------------------------------------------------------- */

static int rename_names(struct fs *fs, struct caller *who, const struct name *from,
                        const struct name *to, bool noreplace)
{
    struct found source, target;
    int err = fs_find(fs, who, from, &source);
    int there;

    if (err < 0)
        return err;
    there = fs_find(fs, who, to, &target);
    if (there < 0 && there != -ENOENT)
        return there;
    if (there == 0 && noreplace)
        return -EEXIST;
    if (there == 0 && source.kind != target.kind)
        return source.kind == INODE_DIR ? -ENOTDIR : -EISDIR;
    if (source.kind == INODE_DIR)
        return rename_dir(fs, who, from, to, noreplace);
    return rename_file(fs, who, from, to, noreplace);
}

int fs_rename(struct fs *fs, struct caller *who, uint64_t parent, const char *text,
              uint64_t new_parent, const char *new_text, bool noreplace)
{
    struct name from, to;
    int err = name_resolve(fs, parent, text, &from);

    if (err < 0)
        return err == -EINVAL ? -ENOENT : err;
    err = name_resolve(fs, new_parent, new_text, &to);
    if (err < 0) {
        name_fini(fs, &from);
        return err;
    }
    if (from.dir != to.dir || strcmp(text, new_text) != 0)
        err = rename_names(fs, who, &from, &to, noreplace);
    if (err == 0) {
        inode_set_changed(fs->inodes, from.dir, attr_now_ns());
        inode_set_changed(fs->inodes, to.dir, attr_now_ns());
    }
    name_fini(fs, &to);
    name_fini(fs, &from);
    return err;
}

/*
 * dir.c - reading a directory: from the cluster's listing, page by page.
 *
 * A handle keeps what it has read, so that an offset stays what it was while entries come and go:
 * offset i + 2 is entries[i].
 *
 * A key "a" and keys below "a/" show as one directory, which hides the file. In key order other
 * names may stand between the two ("a-b", "a.c"), and even a page's end. So a file is *held*, not
 * shown yet, until the listing has passed its name with a '/'; then it is either shown or hidden.
 * Held are at most as many as a name has bytes, since each key is the beginning of the next.
 */
#include "fs/core.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/keypath.h"
#include "common/limits.h"
#include "fs/dirtime.h"
#include "fs/file.h"

#define DOTS 2u

struct listed {
    uint32_t name;     /* where in names, with its NUL */
    bool held, hidden; /* see above */
    struct found found;
    uint64_t read_us; /* monotonic: it is no older than that */
    uint64_t id;      /* remembered for the kernel; 0: not */
};

struct held {
    struct buf key; /* the file's, and '/' */
    size_t entry;
};

struct dir_handle {
    struct list link;        /* fs->open_dirs */
    struct inode *in;        /* constant; referenced */
    pthread_mutex_t lock;    /* all below */
    struct buf prefix;       /* when the listing began */
    uint64_t moves;          /* so did the keys be called then */
    struct follow_mark mark; /* from before the first of its pages was asked for */
    uint64_t read_us;        /* when its last page was asked for */
    struct buf names;
    struct listed *entries;
    size_t n, cap;
    struct held *held; /* n_held of them; the buffers of the others are kept for later */
    size_t n_held, held_cap;
    size_t piece;        /* the last piece of a long name that was listed; its keys stand together.
                            SIZE_MAX: none */
    size_t n_pending;    /* the first entries are files that are not stored yet */
    size_t last;         /* the entry given out last */
    struct buf position; /* start_after of the next page */
    bool started, complete;
    int broken;  /* half a page was taken in: an error until the next start */
    bool exists; /* it has a marker, needs none, or has been removed here, and may be empty */
};

/* --- entries ---------------------------------------------------------------------------------- */

static const char *name_of(const struct dir_handle *d, size_t i)
{
    return (const char *)d->names.data + d->entries[i].name;
}

/* Takes the bytes behind `start` in names, just appended, as the name of a new entry. */
static int add_entry(struct dir_handle *d, size_t start, const struct found *found)
{
    if (d->n == d->cap) {
        size_t cap = d->cap > 0 ? 2 * d->cap : 64;
        struct listed *entries = realloc(d->entries, cap * sizeof(*entries));

        if (entries == NULL)
            return -ENOMEM;
        d->entries = entries;
        d->cap = cap;
    }
    buf_u8(&d->names, 0);
    if (d->names.err < 0)
        return d->names.err;
    if (d->names.len > UINT32_MAX)
        return -EOVERFLOW;
    d->entries[d->n++] =
        (struct listed){.name = (uint32_t)start, .found = *found, .read_us = d->read_us};
    return 0;
}

static bool is_pending(const struct dir_handle *d, const char *name)
{
    for (size_t i = 0; i < d->n_pending; i++) {
        if (strcmp(name_of(d, i), name) == 0)
            return true;
    }
    return false;
}

/* --- held files ------------------------------------------------------------------------------- */

static int hold_last(struct dir_handle *d, struct span key)
{
    struct held *h;

    if (d->n_held == d->held_cap) {
        struct held *held = realloc(d->held, (d->held_cap + 8) * sizeof(*held));

        if (held == NULL)
            return -ENOMEM;
        memset(held + d->held_cap, 0, 8 * sizeof(*held));
        d->held = held;
        d->held_cap += 8;
    }
    h = &d->held[d->n_held];
    buf_clear(&h->key);
    buf_add_span(&h->key, key);
    buf_u8(&h->key, '/');
    if (h->key.err < 0)
        return h->key.err;
    h->entry = d->n - 1;
    d->entries[h->entry].held = true;
    d->n_held++;
    return 0;
}

static void settle_at(struct dir_handle *d, size_t i, bool hidden)
{
    struct held h = d->held[i];

    d->entries[h.entry].held = false;
    d->entries[h.entry].hidden = hidden;
    memmove(&d->held[i], &d->held[i + 1], (d->n_held - i - 1) * sizeof(h));
    d->held[--d->n_held] = h;
}

/* The listing has come to `key`: what is held before it is decided. Returns whether it hides a
 * file. */
static bool settle(struct dir_handle *d, struct span key)
{
    bool hides = false;

    for (size_t i = d->n_held; i-- > 0;) {
        struct span dir = buf_span(&d->held[i].key);

        if (span_has_prefix(key, dir)) {
            settle_at(d, i, true);
            hides = true;
        } else if (span_cmp(key, dir) > 0) {
            settle_at(d, i, false);
        }
    }
    return hides;
}

/* --- listing ---------------------------------------------------------------------------------- */

static int add_listed(struct fs *fs, struct dir_handle *d, const struct entry *e)
{
    size_t start = d->names.len;
    struct found found;
    bool hides = settle(d, e->key);
    bool is_dir, marker;
    int err;

    err = key_name_in(&d->names, buf_span(&d->prefix), e->key, &is_dir);
    if (err == -ENOENT) {
        d->exists = true;
        return 0; /* the directory's own marker */
    }
    if (err < 0)
        return err;
    marker = e->prefix_len > 0 && e->key.len == e->prefix_len;
    found = (struct found){.kind = is_dir ? INODE_DIR : INODE_FILE,
                           .has_marker = marker,
                           .shadows = hides,
                           .followed = !(e->flags & ENTRY_DAMAGED)}; /* d->mark tells the rest */
    if (!is_dir || marker)
        found.version = e->version;
    if (!is_dir)
        found.meta = meta_of_entry(&fs->defaults, e, false);
    else
        found.meta = marker ? meta_of_entry(&fs->defaults, e, true)
                            : meta_of_implicit_dir(&fs->defaults, e->mtime_ns);
    err = add_entry(d, start, &found);
    if (err < 0)
        return err;
    if ((!is_dir && is_pending(d, name_of(d, d->n - 1))) ||
        (is_dir && d->piece != SIZE_MAX &&
         strcmp(name_of(d, d->piece), name_of(d, d->n - 1)) == 0)) {
        d->n--;
        d->names.len = start;
        return 0;
    }
    if (is_dir && e->prefix_len == 0)
        d->piece = d->n - 1;
    return is_dir ? 0 : hold_last(d, e->key);
}

static int take_page(struct fs *fs, struct dir_handle *d, const struct list_result *page)
{
    struct cursor c = cursor_of(buf_span(&page->entries));
    struct entry e;
    int err;

    while ((err = entry_next(&c, &e)) > 0) {
        err = add_listed(fs, d, &e);
        if (err < 0)
            return err;
    }
    if (err < 0)
        return err;
    buf_clear(&d->position);
    buf_add_span(&d->position, buf_span(&page->next));
    d->complete = !page->more;
    while (d->complete && d->n_held > 0)
        settle_at(d, d->n_held - 1, false);
    return d->position.err;
}

/* Puts another prefix in the place of one of that length. */
static int rebase_key(struct buf *key, size_t prefix_len, struct span to)
{
    struct buf moved = {0};

    if (key->len < prefix_len)
        return 0; /* nothing, yet */
    buf_add_span(&moved, to);
    buf_add(&moved, key->data + prefix_len, key->len - prefix_len);
    if (moved.err < 0)
        return moved.err;
    buf_fini(key);
    *key = moved;
    return 0;
}

/* The directory has moved: the listing goes on where it stands now. */
static int rebase(struct dir_handle *d, struct buf *prefix)
{
    size_t old_len = d->prefix.len;
    int err = rebase_key(&d->position, old_len, buf_span(prefix));

    for (size_t i = 0; i < d->n_held && err == 0; i++)
        err = rebase_key(&d->held[i].key, old_len, buf_span(prefix));
    if (err < 0)
        return d->broken = err;
    buf_fini(&d->prefix);
    d->prefix = *prefix;
    *prefix = (struct buf){0};
    return 0;
}

/* Waits while this mount moves the directory; nobody does until it is left. */
static int enter(struct fs *fs, struct caller *who, struct dir_handle *d, struct dir_use *use)
{
    uint64_t n_ended;
    int err;

    do {
        struct buf prefix = {0};

        n_ended = dir_moves_ended(&fs->moves);
        err = inode_key(fs->inodes, d->in, &prefix);
        if (err == 0 && !span_eq(buf_span(&prefix), buf_span(&d->prefix)))
            err = rebase(d, &prefix);
        buf_fini(&prefix);
        if (err < 0 && err != -ENOENT) /* removed meanwhile: by the name that it had */
            return err;
        use->prefix = buf_span(&d->prefix);
        err = dir_moves_enter(&fs->moves, n_ended, use, NULL);
    } while (fs_may_enter_again(fs, who, n_ended, &err));
    return err;
}

static int fetch_entered(struct fs *fs, struct caller *who, struct dir_handle *d)
{
    struct list_args args = {.prefix = buf_span(&d->prefix),
                             .start_after = buf_span(&d->position),
                             .delimiter = true,
                             .limit = LIST_LIMIT_DEFAULT};
    struct list_result page = {0};
    struct follow_mark mark;
    int err;

    d->read_us = core_now_us();
    err = core_list_dir(fs, who, &args, &page, &mark);
    if (args.start_after.len == 0 || mark.epoch == 0 || mark.at < d->mark.at)
        d->mark = mark;
    if (err == 0)
        err = d->broken = take_page(fs, d, &page);
    if (err == 0 && d->complete && d->n == 0 && !d->exists) {
        d->started = false; /* as if it had never been opened */
        err = -ENOENT;
    }
    list_result_fini(&page);
    return err;
}

static int fetch_page(struct fs *fs, struct caller *who, struct dir_handle *d)
{
    struct dir_use use;
    int err = d->broken;

    if (err == 0)
        err = enter(fs, who, d, &use);
    if (err == 0) {
        err = fetch_entered(fs, who, d);
        dir_moves_leave(&fs->moves, &use);
    }
    return err;
}

/* Files that were created here and are not stored yet. */
static int add_pending(struct fs *fs, struct dir_handle *d)
{
    struct file **files;
    size_t n_files;
    int err = inode_files_below(fs->inodes, buf_span(&d->prefix), &files, &n_files);

    if (err < 0)
        return err;
    for (size_t i = 0; i < n_files; i++) {
        struct found found = {.kind = INODE_FILE};
        size_t start = d->names.len;
        struct buf key = {0};
        bool is_dir;

        if (err == 0 && file_pending(files[i]) &&
            inode_key(fs->inodes, files[i]->inode, &key) == 0 &&
            key_name_in(&d->names, buf_span(&d->prefix), buf_span(&key), &is_dir) == 0) {
            file_meta(files[i], &found.meta);
            if (is_dir)
                d->names.len = start;
            else
                err = add_entry(d, start, &found);
        }
        buf_fini(&key);
        file_put(fs, files[i]);
    }
    free(files);
    d->n_pending = d->n;
    return err;
}

/* The file that this directory hides shows in it, under a name of its own. */
static int add_shadowed(struct fs *fs, struct caller *who, struct dir_handle *d)
{
    size_t start = d->names.len;
    struct found found;
    struct buf key = {0};
    int err = 0;

    if (!inode_dir_facts(fs->inodes, d->in).shadows)
        return 0;
    err = key_of_name(&key, buf_span(&d->prefix), span_str(KEY_SHADOWED), false);
    if (err == 0)
        err = key_find_file(fs, who, buf_span(&key), READ_MAJORITY, BALLOT_NONE, &found);
    if (err == 0) {
        found.followed = false; /* it was not read under d->mark */
        buf_add_str(&d->names, KEY_SHADOWED);
        err = add_entry(d, start, &found);
    }
    buf_fini(&key);
    return err == -ENOENT || err == -EINVAL ? 0 : err;
}

/* What was told to this reader for his next lookups is no longer fresh. */
static void drop_listed(struct fs *fs, struct dir_handle *d)
{
    for (size_t i = 0; i < d->n; i++) {
        if (d->entries[i].id != 0)
            inode_drop_listed(fs->inodes, d->entries[i].id);
    }
}

static int start(struct fs *fs, struct caller *who, struct dir_handle *d)
{
    int err;

    drop_listed(fs, d);
    d->n = d->n_held = d->n_pending = 0;
    d->piece = d->last = SIZE_MAX;
    d->complete = false;
    d->broken = 0;
    d->exists = d->in->id == INODE_ROOT;
    buf_clear(&d->names);
    buf_clear(&d->position);
    buf_clear(&d->prefix);
    d->moves = inode_moves(fs->inodes);
    d->read_us = core_now_us();
    err = inode_key(fs->inodes, d->in, &d->prefix);
    if (err == -ENOENT) { /* removed: it is empty */
        d->complete = true;
        err = 0;
    } else {
        if (err == 0)
            err = add_pending(fs, d);
        if (err == 0)
            err = add_shadowed(fs, who, d);
        if (err == 0) /* before "." and ".." are told: an error must have nothing before it */
            err = fetch_page(fs, who, d);
    }
    d->started = err == 0;
    return err;
}

/* --- handles ---------------------------------------------------------------------------------- */

int fs_opendir(struct fs *fs, struct caller *who, uint64_t id, struct dir_handle **out)
{
    struct inode *in = inode_get(fs->inodes, id);
    struct dir_handle *d = NULL;
    int err;

    if (in == NULL)
        return -ESTALE;
    err = in->kind == INODE_DIR ? fs_renew_dir(fs, who, in) : -ENOTDIR;
    if (err == 0) {
        d = (struct dir_handle *)calloc(1, sizeof(*d));
        err = d == NULL ? -ENOMEM : 0;
    }
    if (err < 0) {
        inode_put(fs->inodes, in);
        return err == -ENOENT ? -ESTALE : err; /* the kernel walks the path again */
    }
    d->in = in;
    d->piece = d->last = SIZE_MAX;
    pthread_mutex_init(&d->lock, NULL);
    pthread_mutex_lock(&fs->open_lock);
    list_insert(&fs->open_dirs, &d->link);
    pthread_mutex_unlock(&fs->open_lock);
    *out = d;
    return 0;
}

void fs_releasedir(struct fs *fs, struct dir_handle *d)
{
    pthread_mutex_lock(&fs->open_lock);
    list_remove(&d->link);
    pthread_mutex_unlock(&fs->open_lock);
    drop_listed(fs, d);
    for (size_t i = 0; i < d->held_cap; i++)
        buf_fini(&d->held[i].key);
    free(d->held);
    free(d->entries);
    buf_fini(&d->names);
    buf_fini(&d->position);
    buf_fini(&d->prefix);
    pthread_mutex_destroy(&d->lock);
    inode_put(fs->inodes, d->in);
    free(d);
}

int fs_fsyncdir(struct fs *fs, struct caller *who, struct dir_handle *d)
{
    return dirtime_store(fs, who, d->in);
}

void fs_close_dirs(struct fs *fs)
{
    while (!list_empty(&fs->open_dirs))
        fs_releasedir(fs, container_of(fs->open_dirs.next, struct dir_handle, link));
}

/* "." and ".." */
static void dot_entry(struct fs *fs, struct dir_handle *d, uint64_t off, struct fs_dirent *out)
{
    struct span prefix = buf_span(&d->prefix);

    if (off == 1 && prefix.len > 0) {
        const uint8_t *slash = (const uint8_t *)memrchr(prefix.data, '/', prefix.len - 1);

        prefix.len = slash != NULL ? (size_t)(slash + 1 - prefix.data) : 0;
    }
    *out = (struct fs_dirent){.name = off == 0 ? "." : "..", .next_off = off + 1, .dots = true};
    out->st.st_ino = inode_dir_ino(fs->inodes, prefix);
    out->st.st_mode = S_IFDIR;
}

/* The st_ino of entry i: of the key that it stands for. */
static int entry_key(const struct dir_handle *d, size_t i, struct buf *out)
{
    return key_of_name(out, buf_span(&d->prefix), span_str(name_of(d, i)),
                       d->entries[i].found.kind == INODE_DIR);
}

static int read_locked(struct fs *fs, struct caller *who, struct dir_handle *d, uint64_t off,
                       bool may_wait, struct fs_dirent *out)
{
    struct buf key = {0};
    size_t i = off - DOTS;
    int err = 0;

    /* To the first entry that is there to stay; a held one may be decided by the next page. */
    for (;;) {
        while (i < d->n && d->entries[i].hidden)
            i++;
        if (i < d->n && !d->entries[i].held)
            break;
        if (d->complete)
            return 0;
        if (!may_wait)
            return -EAGAIN;
        err = fetch_page(fs, who, d);
        if (err < 0)
            return err;
    }
    err = entry_key(d, i, &key);
    if (err == 0) {
        *out = (struct fs_dirent){.name = name_of(d, i), .next_off = i + DOTS + 1};
        meta_to_stat(&d->entries[i].found.meta, attr_st_ino(buf_span(&key)), 1, &out->st);
        d->last = i;
        err = 1;
    }
    buf_fini(&key);
    return err;
}

int fs_readdir(struct fs *fs, struct caller *who, struct dir_handle *d, uint64_t off, bool may_wait,
               struct fs_dirent *out)
{
    int err = 0;

    pthread_mutex_lock(&d->lock);
    if (off == 0 || !d->started)
        err = start(fs, who, d);
    if (err == 0 && off < DOTS) {
        dot_entry(fs, d, off, out);
        err = 1;
    } else if (err == 0) {
        err = read_locked(fs, who, d, off, may_wait, out);
    }
    pthread_mutex_unlock(&d->lock);
    return err;
}

/* What is listed of entry i holds while this does, as if a lookup had asked for it then. */
static int entry_mark(const struct dir_handle *d, size_t i, struct follow_mark *out)
{
    struct span prefix = buf_span(&d->prefix), name = span_str(name_of(d, i));
    struct buf file = {0}, subdir = {0};
    int err = key_of_name(&file, prefix, name, false);

    if (err != -ENOMEM)
        err = key_of_name(&subdir, prefix, name, true);
    if (err != -ENOMEM) {
        *out = file.len > 0 && subdir.len > 0
                   ? follow_mark_then(&d->mark, buf_span(&file), buf_span(&subdir))
                   : d->mark; /* not a name like any other */
        err = 0;
    }
    buf_fini(&subdir);
    buf_fini(&file);
    return err;
}

int fs_readdir_remember(struct fs *fs, struct caller *who, struct dir_handle *d,
                        struct fs_entry *out)
{
    struct follow_mark mark = {0};
    struct origin how = {.by = SEEN_LISTED, .mark = &mark};
    struct buf key = {0};
    struct listed *e;
    int err;

    pthread_mutex_lock(&d->lock);
    assert(d->last < d->n);
    e = &d->entries[d->last];
    err = entry_key(d, d->last, &key);
    if (err == 0)
        err = entry_mark(d, d->last, &mark);
    /* What is known to have changed since the lookup has to ask for. */
    if (d->mark.epoch == 0 || follow_holds(fs->follow, &mark))
        how.until_us = e->read_us + LISTED_US;
    if (err == 0)
        err = fs_entry_of(fs, who, buf_span(&key), &e->found, d->moves, &how, out);
    if (err == 0) {
        e->id = out->id;
        fs_hold_name(fs, &e->found, &mark, out);
    }
    pthread_mutex_unlock(&d->lock);
    buf_fini(&key);
    return err;
}

/* fs.c - the mounted file system: looking up names, reading and changing attributes. */
#include "fs/core.h"

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/health.h"
#include "common/limits.h"
#include "fs/dirtime.h"
#include "fs/file.h"
#include "fs/handle.h"

#define BLOCK_SIZE 4096u
/* A key has one name; of a directory it says that its subdirectories are not counted. */
#define NLINK 1u

int fs_new(const struct fs_opts *opts, struct fs **out)
{
    struct fs *fs = calloc(1, sizeof(*fs));
    int err;

    if (fs == NULL)
        return -ENOMEM;
    err = inode_table_new(&fs->inodes);
    if (err < 0) {
        free(fs);
        return err;
    }
    err = follow_new(fs->inodes, &fs->follow);
    if (err == 0)
        err = listings_new(fs->follow, LISTINGS_BYTES_MAX, &fs->listings);
    if (err == 0)
        err = dirtimes_new(fs, &fs->dirtimes);
    if (err < 0) {
        listings_free(fs->listings);
        follow_free(fs->follow);
        inode_table_free(fs->inodes);
        free(fs);
        return err;
    }
    fs->cluster = opts->cluster;
    fs->defaults = opts->defaults;
    fs->read_one = opts->read_one;
    fs->max_value_size = cluster_config(opts->cluster)->max_value_size;
    fs->pool.each_max = CONTENT_MEMORY_MAX;
    fs->pool.total_max = CONTENTS_MEMORY_MAX;
    pthread_mutex_init(&fs->root_lock, NULL);
    dir_moves_init(&fs->moves);
    pthread_mutex_init(&fs->open_lock, NULL);
    list_init(&fs->open_files);
    list_init(&fs->open_dirs);
    fs->root = meta_of_implicit_dir(&fs->defaults, attr_now_ns());
    *out = fs;
    return 0;
}

void fs_free(struct fs *fs)
{
    if (fs == NULL)
        return;
    fs_close_files(fs);
    fs_close_dirs(fs);
    dirtimes_free(fs->dirtimes);
    listings_free(fs->listings);
    follow_free(fs->follow);
    inode_table_free(fs->inodes);
    pthread_mutex_destroy(&fs->open_lock);
    pthread_mutex_destroy(&fs->root_lock);
    dir_moves_fini(&fs->moves);
    free(fs);
}

struct follow *fs_follow(struct fs *fs)
{
    return fs->follow;
}

/* --- attributes ------------------------------------------------------------------------------- */

/* What this mount knows better than the cluster: a dirty view, a directory in which it just changed
 * something. */
static void overlay(struct fs *fs, struct inode *in, const struct found *found, struct meta *m)
{
    struct file *f = in->kind == INODE_FILE ? inode_file(fs->inodes, in) : NULL;

    if (in->kind == INODE_DIR)
        dirtime_show(fs, in, found->version, m);
    else if (f != NULL)
        (void)file_dirty_meta(f, m);
    file_put(fs, f);
}

void fs_show(struct fs *fs, struct inode *in, const struct found *found, struct stat *out)
{
    struct meta m = found->meta;

    overlay(fs, in, found, &m);
    meta_to_stat(&m, inode_path_ino(fs->inodes, in), NLINK, out);
}

int fs_entry_of(struct fs *fs, struct caller *who, struct span key, const struct found *found,
                uint64_t moves, const struct origin *how, struct fs_entry *out)
{
    struct inode *in;
    int err = inode_remember(fs->inodes, key, found, moves, true, &in);

    if (err < 0)
        return err;
    if (how->mark != NULL)
        follow_keep(fs->follow, in, key, found, how->mark);
    if (how->until_us != 0)
        inode_set_seen(fs->inodes, in, who->pid, how->until_us, how->by, found);
    fs_show(fs, in, found, &out->st);
    out->id = in->id;
    out->name_holds = false;
    inode_put(fs->inodes, in);
    return 0;
}

/* A file that was created here and not stored yet: only this mount knows of it. */
bool fs_find_pending(struct fs *fs, const struct name *n, struct found *out)
{
    struct inode *in =
        n->file.len > 0 ? inode_find(fs->inodes, buf_span(&n->file), INODE_FILE) : NULL;
    struct file *f = in != NULL ? inode_file(fs->inodes, in) : NULL;
    bool pending = f != NULL && file_pending(f);

    if (pending) {
        *out = (struct found){.kind = INODE_FILE};
        file_meta(f, &out->meta);
    }
    file_put(fs, f);
    inode_put(fs->inodes, in);
    return pending;
}

int fs_find(struct fs *fs, struct caller *who, const struct name *n, struct found *out)
{
    if (fs_find_pending(fs, n, out))
        return 0;
    return name_find(fs, who, n, READ_MAJORITY, out);
}

/*
 * What a listing (`ls -l` lists a directory and then asks for each entry), or the caller's last
 * step, has told of a name already. Not so where the kernel may believe the name, and asks all the
 * same: then somebody wants to be the one who makes it.
 */
static bool take_seen(struct fs *fs, struct caller *who, const struct name *n, enum seen_by want,
                      struct found *out)
{
    const struct buf *keys[] = {[INODE_FILE] = &n->file, [INODE_DIR] = &n->subdir};
    bool there = false;

    for (int kind = INODE_DIR; kind >= INODE_FILE && !there;
         kind--) { /* a directory hides the file */
        struct inode *in = keys[kind]->len > 0
                               ? inode_find(fs->inodes, buf_span(keys[kind]), (enum inode_kind)kind)
                               : NULL;

        there = in != NULL && !follow_is_named(fs->follow, in) &&
                inode_take_seen(fs->inodes, in, who->pid, core_now_us(), want, out);
        inode_put(fs->inodes, in);
    }
    if (there)
        out->followed = false; /* it was asked for earlier */
    return there;
}

int fs_find_again(struct fs *fs, struct caller *who, const struct name *n, struct found *out)
{
    return take_seen(fs, who, n, SEEN_ASKED, out) ? 0 : fs_find(fs, who, n, out);
}

int fs_lookup(struct fs *fs, struct caller *who, uint64_t parent, const char *text,
              struct fs_entry *out)
{
    struct found found = {0};
    struct follow_mark mark;
    struct origin how = {.mark = &mark};
    struct name n;
    uint64_t moves;
    int err;

    do {
        moves = inode_moves(fs->inodes);
        err = name_resolve(fs, who, parent, text, &n);
        if (err < 0)
            return err == -EINVAL ? -ENOENT : err; /* what is no name cannot be there */
        mark = n.file.len > 0 ? follow_mark(fs->follow, buf_span(&n.file), buf_span(&n.subdir))
                              : follow_mark_dir(fs->follow, buf_span(&n.subdir));
        how.by = SEEN_TOLD;
        if (!take_seen(fs, who, &n, SEEN_LISTED, &found) && !fs_find_pending(fs, &n, &found)) {
            err = name_find(fs, who, &n, fs_from(fs, READ_ONE_IN_NEED), &found);
            how.by = found.lone ? SEEN_TOLD : SEEN_ASKED;
        }
        if (err == -ENOENT)
            err = fs_missed(fs, who, n.dir);
        how.until_us = core_now_us() + SEEN_US;
        if (err == 0)
            err = fs_entry_of(fs, who, buf_span(found.kind == INODE_DIR ? &n.subdir : &n.file),
                              &found, moves, &how, out);
        if (err == 0 && n.file.len > 0 && n.subdir.len > 0) /* a name like any other */
            fs_hold_name(fs, &found, &mark, out);
        name_fini(fs, &n);
    } while (err == -EAGAIN && !caller_stopped(who));
    return err;
}

void fs_forget(struct fs *fs, uint64_t id, uint64_t nlookup)
{
    inode_forget(fs->inodes, id, nlookup);
}

/*
 * Of one that has no name any more: what its handles see. Without any, it was replaced between the
 * lookup and now, and what has its name counts.
 */
static int getattr_gone(struct fs *fs, struct caller *who, struct inode *in, struct stat *out)
{
    struct file *f = in->kind == INODE_FILE ? inode_file(fs->inodes, in) : NULL;
    struct found found = {.meta = meta_of_implicit_dir(&fs->defaults, 0)};
    unsigned nlink = 0;
    int err = 0;

    if (f != NULL && file_known_meta(f, &found.meta)) {
        err = 0;
    } else if (in->kind == INODE_FILE) {
        err = fs_find_inode(fs, who, in, fs_from(fs, READ_ONE_IN_NEED), &found);
        nlink = NLINK;
    }
    if (err == 0)
        meta_to_stat(&found.meta, inode_path_ino(fs->inodes, in), nlink, out);
    file_put(fs, f);
    return err;
}

static void root_meta(struct fs *fs, struct meta *out)
{
    pthread_mutex_lock(&fs->root_lock);
    *out = fs->root;
    pthread_mutex_unlock(&fs->root_lock);
}

/* What a majority says can be kept while the feed lives, and costs less in the end. */
static enum read_from attr_from(struct fs *fs)
{
    return fs_from(fs, follow_is_live(fs->follow) ? READ_ONE_IN_NEED : READ_ONE);
}

/* The attributes of what has a name; h: as its open file sees them. */
static int inode_attrs(struct fs *fs, struct caller *who, struct inode *in, struct handle *h,
                       struct found *out)
{
    struct file *f = NULL;
    bool known;

    *out = (struct found){.kind = in->kind};
    if (in->id == INODE_ROOT) {
        root_meta(fs, &out->meta);
        return 0;
    }
    if (h != NULL) { /* the kernel may ask because it is about to read on at the end */
        file_grow(fs, who, h->file, UINT64_MAX);
        file_meta(h->file, &out->meta);
        return 0;
    }
    if (in->kind == INODE_FILE)
        f = inode_file(fs->inodes, in);
    known = f != NULL && file_dirty_meta(f, &out->meta);
    file_put(fs, f);
    if (known || inode_take_seen(fs->inodes, in, who->pid, core_now_us(), SEEN_TOLD, out) ||
        follow_recall(fs->follow, in, out))
        return 0;
    return fs_find_inode(fs, who, in, attr_from(fs), out);
}

int fs_getattr(struct fs *fs, struct caller *who, uint64_t id, struct handle *h, struct stat *out)
{
    struct inode *in = inode_get(fs->inodes, id);
    struct found found;
    int err;

    if (in == NULL)
        return -ESTALE;
    if (inode_is_gone(fs->inodes, in)) {
        err = getattr_gone(fs, who, in, out);
    } else {
        err = inode_attrs(fs, who, in, h, &found);
        if (err == 0)
            fs_show(fs, in, &found, out);
    }
    if (err == -ENOENT && h == NULL)
        err = -ESTALE; /* deleted elsewhere since the lookup: the kernel looks again */
    inode_put(fs->inodes, in);
    return err;
}

int fs_access(struct fs *fs, struct caller *who, uint64_t id, int mask)
{
    struct stat st;
    int err = fs_getattr(fs, who, id, NULL, &st);

    if (err == 0 && mask & X_OK && S_ISREG(st.st_mode) && (st.st_mode & 0111) == 0)
        err = -EACCES;
    return err;
}

/* --- changing attributes ---------------------------------------------------------------------- */

struct change_edit {
    struct fs *fs;
    struct inode *in;
    const struct attr_change *change;
    bool dir;
    struct ballot prev;         /* what the last try found, */
    struct meta made;           /* made of it, */
    struct dirtime_joined time; /* and took along */
};

static int change_edit(void *ctx, const struct record *cur, struct value cur_value,
                       struct draft *next)
{
    struct change_edit *e = (struct change_edit *)ctx;
    int64_t now_ns = attr_now_ns();
    struct meta m;

    (void)cur_value;
    e->prev = cur->version;
    if (record_is_live(cur)) {
        m = meta_of_record(&e->fs->defaults, cur, e->dir);
        next->same_value = true;
    } else if (e->dir) {
        m = meta_of_implicit_dir(&e->fs->defaults, now_ns); /* its attributes need a marker now */
    } else {
        return -ENOENT;
    }
    if (e->dir)
        (void)dirtime_join(e->fs, e->in, cur->version, &m, &e->time);
    meta_apply(&m, e->change, now_ns);
    meta_to_record(&m, &next->rec);
    e->made = m;
    return 0;
}

/* Stores a change of attributes at once; *out: all of them afterwards. */
static int change_stored(struct fs *fs, struct caller *who, struct inode *in,
                         const struct attr_change *ch, struct found *out)
{
    struct change_edit e = {.fs = fs, .in = in, .change = ch, .dir = in->kind == INODE_DIR};
    struct write_args args = {.edit = change_edit, .ctx = &e};
    struct write_result res = {0};
    struct file *f = inode_file(fs->inodes, in);
    struct follow_mark mark = {0};
    struct key_use k;
    bool sure; /* that the key holds just this now, or did a moment ago */
    int err = key_enter(fs, who, in, &k);

    args.key = buf_span(&k.key);
    if (err == 0)
        mark = follow_mark(fs->follow, args.key, args.key);
    if (err == 0 && e.dir && k.key.data[k.key.len - 1] != '/')
        err = -EPERM; /* a piece of a long name: there is no key that could have attributes */
    if (err == 0)
        err = core_write(fs, who, &args, &res);
    sure = err == 0 && res.rec_is == WRITE_AS_DRAFTED;
    if (err == 0)
        *out = (struct found){
            .kind = in->kind, .meta = e.made, .version = sure ? res.rec.rec.version : BALLOT_NONE};
    if (err == 0 && f != NULL)
        file_set_meta(f, ch, &out->meta, sure ? e.prev : BALLOT_NONE, out->version);
    if (sure && e.dir) {
        struct dir_facts facts = inode_dir_facts(fs->inodes, in);

        out->has_marker = true;
        out->shadows = facts.shadows;
        inode_set_dir(fs->inodes, in, out);
        dirtime_joined(fs, in, &e.time, out->version);
    }
    if (sure)
        follow_keep_own(fs->follow, in, args.key, out, &mark);
    write_result_fini(&res);
    file_put(fs, f);
    key_leave(fs, &k);
    return err;
}

/* Of a directory. Who sets its time wants to see that, whatever was changed in it before. */
static int change_dir(struct fs *fs, struct caller *who, struct inode *in,
                      const struct attr_change *ch, struct found *out)
{
    int64_t pending_ns = ch->set & CHANGE_MTIME ? dirtime_clear(fs, in) : 0;
    int err = 0;

    if (in->id == INODE_ROOT) {
        *out = (struct found){.kind = INODE_DIR};
        pthread_mutex_lock(&fs->root_lock);
        meta_apply(&fs->root, ch, attr_now_ns());
        out->meta = fs->root;
        pthread_mutex_unlock(&fs->root_lock);
        inode_set_dir(fs->inodes, in, out);
    } else {
        err = change_stored(fs, who, in, ch, out);
    }
    if (err < 0)
        dirtime_give_back(fs, in, pending_ns);
    return err;
}

static int change_file(struct fs *fs, struct caller *who, struct inode *in,
                       const struct attr_change *ch, struct found *out)
{
    struct file *f = inode_file(fs->inodes, in);
    bool done = false;
    int err = f != NULL ? file_change_fresh(who, f, ch, &done) : 0;

    *out = (struct found){.kind = INODE_FILE};
    if (err == 0 && !done && f != NULL && inode_is_gone(fs->inodes, in)) {
        struct meta m;

        file_meta(f, &m);
        meta_apply(&m, ch, attr_now_ns());
        file_set_meta(f, ch, &m, BALLOT_NONE, BALLOT_NONE);
        done = true;
    }
    if (done)
        file_meta(f, &out->meta);
    else if (err == 0)
        err = change_stored(fs, who, in, ch, out);
    file_put(fs, f);
    return err;
}

/* --- changing the size ------------------------------------------------------------------------ */

struct size_edit {
    const struct fs *fs;
    uint64_t size;
    bool unprivileged; /* by whom */
    struct meta made;  /* by the last try */
};

static int size_edit(void *ctx, const struct record *cur, struct value cur_value,
                     struct draft *next)
{
    struct size_edit *e = (struct size_edit *)ctx;
    struct content c = {0};
    int err;

    if (!record_is_live(cur))
        return -ENOENT;
    next->rec.mtime_ns = next->rec.ctime_ns = attr_now_ns();
    if (e->unprivileged)
        next->rec.mode = attr_drop_privileges(next->rec.mode);
    e->made = meta_of_record(&e->fs->defaults, &next->rec, false);
    e->made.size = e->size;
    if (cur->size == e->size) {
        next->same_value = true;
        return 0;
    }
    if (e->size == 0)
        return 0;
    content_set(&c, value_ref(cur_value));
    err = content_truncate(&c, e->size);
    if (err < 0)
        content_fini(&c);
    else
        next->value = c.v;
    return err;
}

/* truncate(2) of a file that nobody here has open: one write, decided on what is stored. */
static int truncate_stored(struct fs *fs, struct caller *who, struct inode *in, uint64_t size,
                           struct meta *out)
{
    struct size_edit e = {.fs = fs, .size = size, .unprivileged = !caller_keeps_privileges(who)};
    struct write_args args = {
        .edit = size_edit, .ctx = &e, .want_value = size > 0, .size_hint = size};
    struct write_result res = {0};
    struct buf key = {0};
    int err = inode_key(fs->inodes, in, &key);

    args.key = buf_span(&key);
    if (err == 0)
        err = core_write(fs, who, &args, &res);
    if (err == 0)
        *out = e.made;
    write_result_fini(&res);
    buf_fini(&key);
    return err;
}

/*
 * The same of one that is open here, or gets too large for memory: as a program would that opened
 * it. What others have stored since it was opened is what is cut.
 */
static int truncate_opened(struct fs *fs, struct caller *who, struct inode *in, uint64_t size,
                           struct meta *out)
{
    struct file *f;
    int closed, err = file_get(fs, in, &f);

    if (err < 0)
        return err;
    err = file_open(fs, who, f, &(struct open_mode){.write = true, .truncate = size == 0});
    if (err == 0) {
        err = size > 0 ? file_truncate(fs, who, f, size) : 0;
        if (err == 0)
            err = file_store(fs, who, f);
        if (err == 0)
            file_meta(f, out);
        closed = file_close(fs, who, f, true);
        err = err < 0 ? err : closed;
    }
    file_put(fs, f);
    return err;
}

/* By a handle: stored when that is closed, as a write is. By path: stored at once, also what is
 * dirty in the file already. */
static int change_size(struct fs *fs, struct caller *who, struct inode *in, struct handle *h,
                       uint64_t size, struct meta *out)
{
    struct file *f;
    int err;

    if (in->kind != INODE_FILE)
        return -EISDIR;
    if (size > fs->max_value_size)
        return -EFBIG;
    f = inode_file(fs->inodes, in);
    if (h == NULL && f == NULL && size <= fs->pool.each_max) {
        err = truncate_stored(fs, who, in, size, out);
    } else if (h == NULL) {
        err = truncate_opened(fs, who, in, size, out);
    } else {
        err = file_truncate(fs, who, f, size);
        if (err == 0)
            file_meta(f, out);
    }
    file_put(fs, f);
    return err;
}

int fs_setattr(struct fs *fs, struct caller *who, uint64_t id, struct handle *h,
               const struct attr_change *ch, uint64_t size, struct stat *out)
{
    struct inode *in = inode_get(fs->inodes, id);
    struct found now;
    bool have = false;
    int err = 0;

    if (in == NULL)
        return -ESTALE;
    now = (struct found){.kind = in->kind};
    inode_drop_seen(fs->inodes, in); /* what the lookup saw will be old */
    if (size != UINT64_MAX) {
        err = change_size(fs, who, in, h, size, &now.meta);
        have = true;
    }
    if (err == 0 && ch->set != 0) {
        err = in->kind == INODE_DIR ? change_dir(fs, who, in, ch, &now)
                                    : change_file(fs, who, in, ch, &now);
        have = true;
    }
    if (err == 0 && !have)
        err = fs_getattr(fs, who, id, h, out);
    else if (err == 0 && inode_is_gone(fs->inodes, in))
        meta_to_stat(&now.meta, inode_path_ino(fs->inodes, in), 0, out);
    else if (err == 0)
        fs_show(fs, in, &now, out);
    if (err == -ENOENT && h == NULL)
        err = -ESTALE; /* deleted elsewhere since the lookup: the kernel looks again */
    inode_put(fs->inodes, in);
    return err;
}

/* --- the rest --------------------------------------------------------------------------------- */

int fs_readlink(struct fs *fs, struct caller *who, uint64_t id, struct buf *out)
{
    struct read_args args = {.want_value = true, .length = READ_ALL, .from = fs_from(fs, READ_ONE)};
    struct inode *in = inode_get(fs->inodes, id);
    struct read_result res = {0};
    struct buf key = {0};
    int err;

    if (in == NULL)
        return -ESTALE;
    err = inode_key(fs->inodes, in, &key);
    args.key = buf_span(&key);
    args.at_least = follow_told(fs->follow, in, args.key);
    if (err == 0)
        err = core_read(fs, who, &args, &res);
    if (err == 0 && (!record_is_live(&res.rec.rec) || !S_ISLNK(res.rec.rec.mode)))
        err = -ESTALE;
    if (err == 0 && res.value.len >= PATH_MAX)
        err = -ENAMETOOLONG;
    if (err == 0) {
        buf_add_span(out, value_span(res.value));
        err = out->err;
    }
    read_result_fini(&res);
    buf_fini(&key);
    inode_put(fs->inodes, in);
    return err;
}

int fs_statfs(struct fs *fs, struct statvfs *out)
{
    const struct config *cfg = cluster_config(fs->cluster);
    uint64_t free_bytes = 0, total_bytes = 0;
    unsigned copies = ring_n_replicas(cfg->ring);

    for (unsigned i = 0; i < cfg->n_nodes; i++) {
        struct health_info info = health_get(cluster_health(fs->cluster), i);

        free_bytes += info.disk_free;
        total_bytes += info.disk_total;
    }
    *out = (struct statvfs){
        .f_bsize = BLOCK_SIZE,
        .f_frsize = BLOCK_SIZE,
        .f_blocks = total_bytes / copies / BLOCK_SIZE,
        .f_bfree = free_bytes / copies / BLOCK_SIZE,
        .f_bavail = free_bytes / copies / BLOCK_SIZE,
        .f_namemax = FILE_NAME_LEN_MAX,
    };
    return 0;
}

/* handle.c - open files: created, opened, read, written, closed. */
#include "fs/handle.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "common/limits.h"
#include "common/log.h"
#include "fs/core.h"
#include "fs/dirtime.h"

#define COPY_MAX (64u << 20) /* of one call, so that it can be interrupted; programs go on */

static struct open_mode open_mode_of(int flags)
{
    int access = flags & O_ACCMODE;

    return (struct open_mode){
        .read = access != O_WRONLY,
        .write = access != O_RDONLY,
        .append = (flags & O_APPEND) != 0,
        .truncate = (flags & O_TRUNC) != 0,
    };
}

/*
 * May the kernel use the pages that it has? If not, it drops them before it lets anybody use the
 * handle, so as soon as something comes through it, all that it has is of this version. (What is
 * appended goes past its pages.)
 */
static void look_at_pages(struct fs *fs, struct handle *h)
{
    struct file *f = h->file;

    pthread_mutex_lock(&f->lock);
    h->pages = follow_pages(fs->follow, f->inode);
    if (!h->append && !file_is_dirty_locked(f) && f->known && !ballot_is_none(f->version)) {
        h->keeps_pages = ballot_cmp(h->pages.version, f->version) == 0;
        h->dropping = !h->keeps_pages;
        h->pages.version = f->version;
    }
    pthread_mutex_unlock(&f->lock);
}

/* Something has come through the handle. */
static void pages_dropped(struct fs *fs, struct handle *h)
{
    struct file *f = h->file;

    pthread_mutex_lock(&f->lock);
    if (h->dropping && !file_is_dirty_locked(f))
        follow_set_pages(fs->follow, f->inode, &h->pages);
    h->dropping = false;
    pthread_mutex_unlock(&f->lock);
}

bool fs_pages_hold(struct fs *fs, const struct handle *h)
{
    (void)fs;
    return h->keeps_pages;
}

/* Opens f, whose reference it takes over also when it fails. fresh: as it was just created; NULL:
 * it was there. */
static int handle_new(struct fs *fs, struct caller *who, struct file *f,
                      const struct open_mode *mode, const struct found *fresh, struct handle **out)
{
    struct handle *h = calloc(1, sizeof(*h));
    int err = h == NULL ? -ENOMEM : 0;

    if (err == 0 && fresh != NULL)
        file_open_new(fs, who, f, fresh, mode);
    else if (err == 0)
        err = file_open(fs, who, f, mode);
    if (err < 0) {
        file_put(fs, f);
        free(h);
        return err;
    }
    *h = (struct handle){.file = f, .write = mode->write, .append = mode->append};
    if (fresh == NULL)
        look_at_pages(fs, h);
    pthread_mutex_lock(&fs->open_lock);
    list_insert(&fs->open_files, &h->link);
    pthread_mutex_unlock(&fs->open_lock);
    *out = h;
    return 0;
}

int fs_open(struct fs *fs, struct caller *who, uint64_t id, int flags, struct handle **out)
{
    struct open_mode mode = open_mode_of(flags);
    struct inode *in = inode_get(fs->inodes, id);
    struct file *f;
    int err;

    if (in == NULL)
        return -ESTALE;
    err = in->kind == INODE_DIR ? -EISDIR : file_get(fs, in, &f);
    if (err == 0)
        err = handle_new(fs, who, f, &mode, NULL, out);
    if (err == -ENOENT)
        err = -ESTALE; /* deleted elsewhere since the lookup: the kernel looks again */
    inode_put(fs->inodes, in);
    return err;
}

/* --- creating --------------------------------------------------------------------------------- */

/*
 * What open(O_CREAT) makes of a name: *isnew, with the version where it is stored already. O_EXCL
 * is decided in the cluster, at once. Otherwise the first flush stores the file. Whether somebody
 * else has just created it needs to be known only by those who would read it.
 */
static int create_key(struct fs *fs, struct caller *who, const struct name *n, int flags,
                      struct found *found, bool *isnew)
{
    struct open_mode mode = open_mode_of(flags);
    struct found there;
    int err;

    *isnew = true;
    if (flags & O_EXCL) {
        err = fs_find_pending(fs, n, &there) ? -EEXIST
                                             : key_create(fs, who, buf_span(&n->file), &found->meta,
                                                          span_of(NULL, 0), &found->version);
        found->made = err == 0;
        return err;
    }
    if (fs_find_pending(fs, n, &there))
        err = 0;
    else if (mode.truncate || (mode.append && !mode.read))
        return 0;
    else
        err = name_find(fs, who, n, READ_MAJORITY, &there);
    if (err == -ENOENT)
        return 0;
    if (err == 0 && there.kind == INODE_DIR)
        err = -EISDIR;
    if (err == 0) {
        *isnew = false;
        *found = there;
    }
    return err;
}

/* Finds or makes the inode of what create_key() found or made; loops when a directory above is
 * renamed meanwhile. */
static int create_inode(struct fs *fs, struct caller *who, uint64_t parent, const char *text,
                        int flags, struct found *found, bool *isnew, struct fs_entry *out)
{
    bool done = false, asked;
    uint64_t moves;
    struct name n;
    int err;

    do {
        moves = inode_moves(fs->inodes);
        err = name_resolve(fs, who, parent, text, &n);
        if (err < 0)
            return err;
        err = n.file_err; /* a name that only a directory can have? */
        if (err == 0 && !done)
            err = fs_check_dir(fs, who, n.dir);
        if (err == 0 && !done) {
            found->meta.gid = fs_inherit(fs, n.dir, &found->meta);
            err = create_key(fs, who, &n, flags, found, isnew);
        }
        done = err == 0;
        asked = !*isnew && !ballot_is_none(found->version); /* and not only here, unstored */
        if (err == 0)
            err = fs_entry_of(fs, who, buf_span(&n.file), found, moves,
                              &(struct origin){.by = asked ? SEEN_ASKED : SEEN_TOLD,
                                               .until_us = core_now_us() + SEEN_US},
                              out);
        if (err == 0 && *isnew)
            dirtime_touch(fs, n.dir);
        name_fini(fs, &n);
    } while (err == -EAGAIN && done);
    return err;
}

int fs_create(struct fs *fs, struct caller *who, uint64_t parent, const char *text, uint32_t mode,
              int flags, struct fs_entry *entry, struct handle **out)
{
    struct found found = {
        .kind = INODE_FILE,
        .meta = meta_new(S_IFREG | (mode & 07777u), 0, who->uid, who->gid, attr_now_ns())};
    struct open_mode how = open_mode_of(flags);
    struct inode *in;
    struct file *f;
    bool isnew = false;
    int err;

    err = create_inode(fs, who, parent, text, flags, &found, &isnew, entry);
    if (err < 0)
        return err;
    in = inode_get(fs->inodes, entry->id);
    err = file_get(fs, in, &f);
    if (err == 0)
        err = handle_new(fs, who, f, &how, isnew ? &found : NULL, out);
    inode_put(fs->inodes, in);
    if (err < 0)
        inode_forget(fs->inodes, entry->id, 1); /* the kernel is not told of it */
    if (err == -ENOENT)
        err = -ESTALE; /* deleted or moved since it was found: the kernel looks again */
    return err;
}

/* --- using ------------------------------------------------------------------------------------ */

int fs_read(struct fs *fs, struct caller *who, struct handle *h, uint64_t off, size_t len,
            struct value *out)
{
    pages_dropped(fs, h);
    file_grow(fs, who, h->file, off + len);
    return file_read(fs, who, h->file, off, len, out);
}

int fs_write(struct fs *fs, struct caller *who, struct handle *h, uint64_t off, struct span data,
             bool writeback)
{
    int err = file_write(fs, who, h->file, off, data, h->append && !writeback);

    if (err < 0 && writeback) /* the kernel keeps what could not be written, as if it were */
        follow_mix_pages(fs->follow, h->file->inode);
    return err;
}

bool handle_appends(const struct handle *h)
{
    return h->append;
}

int fs_fallocate(struct fs *fs, struct caller *who, struct handle *h, int mode, uint64_t off,
                 uint64_t len)
{
    bool keep_size = (mode & FALLOC_FL_KEEP_SIZE) != 0;
    int what = mode & ~FALLOC_FL_KEEP_SIZE;
    int err = 0;

    /* Room cannot be reserved in the cluster: what is left of the first is the size. */
    if (what != 0 && what != FALLOC_FL_ZERO_RANGE && !(what == FALLOC_FL_PUNCH_HOLE && keep_size))
        return -EOPNOTSUPP;
    if (what == FALLOC_FL_PUNCH_HOLE && off >= fs->max_value_size)
        return 0;
    if (what == FALLOC_FL_PUNCH_HOLE && len > fs->max_value_size - off)
        len = fs->max_value_size - off; /* there is nothing behind */
    if (off > fs->max_value_size || len > fs->max_value_size - off)
        return -EFBIG;
    if (what != 0)
        err = file_punch(fs, who, h->file, off, len);
    if (err == 0 && !keep_size)
        err = file_extend(fs, who, h->file, off + len);
    return err;
}

int fs_lseek(struct handle *h, uint64_t off, bool hole, uint64_t *out)
{
    return file_seek(h->file, off, hole, out);
}

int fs_copy_range(struct fs *fs, struct caller *who, struct handle *from, uint64_t from_off,
                  struct handle *to, uint64_t to_off, uint64_t len, uint64_t *done)
{
    uint64_t n = 0;
    int err = 0;

    if (len > COPY_MAX)
        len = COPY_MAX;
    while (err == 0 && n < len) {
        size_t want = len - n < CHUNK_SIZE ? (size_t)(len - n) : CHUNK_SIZE;
        struct value v;

        err = file_read(fs, who, from->file, from_off + n, want, &v);
        if (err < 0 || v.len == 0)
            break;
        err = file_write(fs, who, to->file, to_off + n, value_span(v), false);
        if (err == 0)
            n += v.len;
        value_fini(&v);
    }
    if (err < 0 && n == 0)
        return err;
    *done = n;
    return 0;
}

static uint64_t handle_st_ino(struct fs *fs, struct handle *h)
{
    struct meta m;

    file_meta(h->file, &m);
    return m.ino != 0 ? m.ino : inode_path_ino(fs->inodes, h->file->inode);
}

int fs_flush(struct fs *fs, struct caller *who, struct handle *h)
{
    pages_dropped(fs, h);
    if (!h->write)
        return 0;
    if (file_only_emptied(h->file) && caller_holds_open(who, handle_st_ino(fs, h)))
        return 0; /* `> file` of a shell: it has the file as another descriptor, and will close that
                     too */
    return file_store(fs, who, h->file);
}

int fs_fsync(struct fs *fs, struct caller *who, struct handle *h)
{
    return file_store(fs, who, h->file);
}

int fs_release(struct fs *fs, struct caller *who, struct handle *h)
{
    int err = file_close(fs, who, h->file, h->write);

    pthread_mutex_lock(&fs->open_lock);
    list_remove(&h->link);
    pthread_mutex_unlock(&fs->open_lock);
    file_put(fs, h->file);
    free(h);
    return err;
}

void fs_close_files(struct fs *fs)
{
    while (!list_empty(&fs->open_files)) {
        struct handle *h = container_of(fs->open_files.next, struct handle, link);

        list_remove(&h->link);
        file_put(fs, h->file);
        free(h);
    }
}

void fs_flush_all(struct fs *fs, struct caller *who)
{
    struct file **files;
    size_t n;

    if (inode_files_below(fs->inodes, span_of(NULL, 0), &files, &n) < 0)
        return;
    for (size_t i = 0; i < n; i++) {
        struct buf key = {0};
        int err = file_store(fs, who, files[i]);
        const char *why = caller_stopped(who) ? "there was no time left" : who->why.msg;

        if (err < 0 && inode_key(fs->inodes, files[i]->inode, &key) == 0)
            log_event(LOG_LEVEL_ERROR, "not_stored", "key=%s error=%s reason=%s",
                      log_quote(key.data, key.len), strerrorname_np(-err),
                      log_quote(why, strlen(why)));
        buf_fini(&key);
        file_put(fs, files[i]);
    }
    free(files);
    dirtimes_store_all(fs, who);
}

void fs_get_usage(struct fs *fs,
                  void (*dirty)(void *arg, struct span key, uint64_t size, int last_err), void *arg,
                  struct fs_usage *out)
{
    struct file **files;
    struct meta m;
    size_t n;

    *out = (struct fs_usage){.feed_live = follow_is_live(fs->follow)};
    if (inode_files_below(fs->inodes, span_of(NULL, 0), &files, &n) < 0)
        return;
    out->n_open = n;
    for (size_t i = 0; i < n; i++) {
        struct buf key = {0};

        if (file_dirty_meta(files[i], &m)) {
            out->n_dirty++;
            out->dirty_bytes += m.size;
            if (dirty != NULL && inode_key(fs->inodes, files[i]->inode, &key) == 0)
                dirty(arg, buf_span(&key), m.size, file_last_error(files[i]));
        }
        buf_fini(&key);
        file_put(fs, files[i]);
    }
    free(files);
}

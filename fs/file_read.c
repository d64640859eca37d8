/* file_read.c - reading an open file: from the loaded view, or through the window. */
#include "fs/file.h"

#include <errno.h>
#include <string.h>

#include "common/limits.h"
#include "fs/core.h"

static struct chunk *find_chunk_locked(struct file *f, uint64_t index)
{
    for (unsigned i = 0; i < WINDOW_CHUNKS; i++) {
        struct chunk *c = &f->window[i];

        if ((c->used > 0 || c->coming) && c->index == index)
            return c;
    }
    return NULL;
}

/* The chunk used longest ago; NULL while all are being fetched. */
static struct chunk *victim_locked(struct file *f)
{
    struct chunk *best = NULL;

    for (unsigned i = 0; i < WINDOW_CHUNKS; i++) {
        struct chunk *c = &f->window[i];

        if (!c->coming && (best == NULL || c->used < best->used))
            best = c;
    }
    return best;
}

/*
 * The pinned version is not there. Where the file is just being moved, it will be under another
 * name, and what is pinned moves on with it: 0, look again.
 */
static int gone_locked(struct caller *who, struct file *f, struct ballot version)
{
    int err = file_wait_idle_locked(who, f);

    return err < 0 ? err : ballot_cmp(version, f->version) == 0 ? -ESTALE : 0;
}

/* Fetches chunk `index` of the pinned version into c. The lock is held, but not while waiting. */
static int fetch_chunk_locked(struct fs *fs, struct caller *who, struct file *f, struct chunk *c,
                              uint64_t index)
{
    struct ballot version = f->version;
    struct read_args args = {
        .want_value = true, .offset = index * CHUNK_SIZE, .length = CHUNK_SIZE, .pin = version};
    struct read_result res = {0};
    struct buf key = {0};
    bool came;
    int err;

    value_fini(&c->v);
    c->index = index;
    c->used = 0;
    c->coming = true;
    pthread_mutex_unlock(&f->lock);
    err = inode_last_key(fs->inodes, f->inode, &key);
    args.key = buf_span(&key);
    if (err == 0)
        err = core_read(fs, who, &args, &res);
    came = err == 0;
    if (came && res.value_offset != args.offset)
        err = -EIO;
    pthread_mutex_lock(&f->lock);
    if (err == -ENOENT || err == -ESTALE)
        err = gone_locked(who, f, version);
    c->coming = false;
    if (err == 0 && came && ballot_cmp(version, f->version) == 0 && !f->loaded) {
        c->v = res.value;
        c->used = ++f->clock;
        res.value = (struct value){0};
    }
    pthread_cond_broadcast(&f->changed);
    read_result_fini(&res);
    buf_fini(&key);
    return err;
}

/* One step towards having the chunk: *out stays NULL when things have moved and must be looked at
 * again. */
static int want_chunk_locked(struct fs *fs, struct caller *who, struct file *f, uint64_t index,
                             struct chunk **out)
{
    struct chunk *c = find_chunk_locked(f, index);

    if (c != NULL && !c->coming) {
        c->used = ++f->clock;
        *out = c;
        return 0;
    }
    if (c == NULL)
        c = victim_locked(f);
    if (c != NULL && !c->coming)
        return fetch_chunk_locked(fs, who, f, c, index);
    if (caller_stopped(who))
        return -EINTR;
    file_wait_step_locked(f);
    return 0;
}

/* Reads through the window as far as one version, still not loaded, allows; *done counts what was
 * copied. */
static int read_window_locked(struct fs *fs, struct caller *who, struct file *f, uint64_t off,
                              size_t len, uint8_t *to, size_t *done)
{
    struct ballot version = f->version;
    int err = 0;

    while (err == 0 && *done < len && !f->loaded && ballot_cmp(version, f->version) == 0) {
        uint64_t at = off + *done;
        struct chunk *c = NULL;

        err = want_chunk_locked(fs, who, f, at / CHUNK_SIZE, &c);
        if (err == 0 && c != NULL) {
            size_t skip = at % CHUNK_SIZE;
            size_t n = skip < c->v.len ? c->v.len - skip : 0;

            if (n > len - *done)
                n = len - *done;
            if (n == 0)
                return -EIO; /* a chunk shorter than the size says */
            memcpy(to + *done, c->v.data + skip, n);
            *done += n;
        }
    }
    return err;
}

/* Copies what lies in the content from off on; *done as above. */
static int copy_locked(const struct content *c, uint64_t off, size_t len, uint8_t *to, size_t *done)
{
    struct value part;
    int err = content_read(c, off, len, &part);

    if (err < 0)
        return err;
    memcpy(to, part.data, part.len);
    *done += part.len;
    value_fini(&part);
    return 0;
}

/* Reads from base and tail; *done < len after 0: things have moved, and it is to be done again. */
static int read_parts_locked(struct fs *fs, struct caller *who, struct file *f, uint64_t off,
                             size_t len, uint8_t *to, size_t *done)
{
    uint64_t base = f->loaded ? content_size(&f->base) : f->base_size;
    size_t n = off >= base ? 0 : base - off < len ? (size_t)(base - off) : len;
    int err = 0;

    *done = 0;
    if (n > 0 && f->loaded)
        err = copy_locked(&f->base, off, n, to, done);
    else if (n > 0)
        err = read_window_locked(fs, who, f, off, n, to, done);
    if (err == 0 && *done == n && n < len)
        err = copy_locked(&f->tail, off + n - base, len - n, to + n, done);
    return err;
}

/* A small base is loaded once there is something behind it: whoever else appends meanwhile, it can
 * still be read. */
static int unify_locked(struct fs *fs, struct caller *who, struct file *f)
{
    if (f->loaded || content_size(&f->tail) == 0 || f->base_size > fs->pool.each_max)
        return 0;
    return file_load_locked(fs, who, f);
}

int file_read(struct fs *fs, struct caller *who, struct file *f, uint64_t off, size_t len,
              struct value *out)
{
    struct blob *b = NULL;
    size_t done = 0, n = 0;
    int err = 0;

    pthread_mutex_lock(&f->lock);
    do {
        uint64_t size;

        err = unify_locked(fs, who, f);
        size = file_size_locked(f);
        n = off >= size ? 0 : size - off < len ? (size_t)(size - off) : len;
        if (err < 0 || n == 0)
            break;
        if (f->loaded && off + n <= content_size(&f->base)) {
            err = content_read(&f->base, off, n, out);
            goto out;
        }
        if (b == NULL)
            b = blob_new(len);
        err = b == NULL ? -ENOMEM : read_parts_locked(fs, who, f, off, n, b->data, &done);
    } while (err == 0 && done < n);
    if (err == 0 && n > 0) {
        *out = (struct value){.blob = b, .data = b->data, .len = n};
        b = NULL;
    } else if (err == 0) {
        *out = (struct value){0};
    }
out:
    pthread_mutex_unlock(&f->lock);
    blob_unref(b);
    return err;
}

int file_seek(struct file *f, uint64_t off, bool hole, uint64_t *out)
{
    uint64_t base, size;
    int err = -ENXIO;

    pthread_mutex_lock(&f->lock);
    base = f->loaded ? content_size(&f->base) : f->base_size;
    size = file_size_locked(f);
    if (off < base && f->loaded)
        err = content_seek(&f->base, off, hole, out);
    else if (off < size) {
        *out = hole ? size : off;
        err = 0;
    }
    if (err == 0 && hole && *out == base)
        *out = size; /* the tail is data */
    if (err == -ENXIO && off < base && base < size) {
        *out = base; /* the first byte behind a hole at the end of the base */
        err = 0;
    }
    pthread_mutex_unlock(&f->lock);
    return err;
}

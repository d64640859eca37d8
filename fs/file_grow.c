/*
 * file_grow.c - an open file that another mount appends to: who reads on at its end gets what came
 * (`tail -f`).
 *
 * An open file stays at the version that it was opened at, so that nobody reads half of one and
 * half of another. But a version that only goes on where this one ends makes nothing untrue that
 * was read: the view moves on to it. What stands before the end is compared for that, a part of the
 * file where it is large.
 */
#include "fs/file.h"

#include <errno.h>
#include <string.h>

#include "common/limits.h"
#include "fs/core.h"

#define COMPARED_MAX (64u << 10)

/* Does a newer version hold these bytes, which end the view at `size`, and something behind? */
static bool goes_on(struct fs *fs, struct caller *who, struct span key, uint64_t size,
                    struct value end, struct found *out)
{
    uint64_t from = (size > 0 ? size - 1 : 0) / CHUNK_SIZE * CHUNK_SIZE, at;
    struct read_args args = {.key = key, .want_value = true, .offset = from, .length = CHUNK_SIZE};
    struct read_result res = {0};
    bool yes = false;

    if (core_read(fs, who, &args, &res) == 0 && record_is_live(&res.rec.rec)) {
        at = size - end.len - res.value_offset;
        yes = res.rec.rec.size > size && res.value_offset <= size - end.len &&
              at + end.len <= res.value.len &&
              (end.len == 0 || memcmp(res.value.data + at, end.data, end.len) == 0);
        out->meta = meta_of_record(&fs->defaults, &res.rec.rec, false);
        out->version = res.rec.rec.version;
    }
    read_result_fini(&res);
    return yes;
}

/*
 * Moves the view on to just that version: a still newer one may have been replaced by something
 * else.
 */
static void move_on(struct fs *fs, struct caller *who, struct file *f, struct span key,
                    uint64_t gen, bool loaded, const struct found *to)
{
    struct read_args args = {
        .key = key, .want_value = true, .length = CHUNK_SIZE, .pin = to->version};
    struct read_result res = {0};

    if (!loaded || core_read(fs, who, &args, &res) == 0)
        file_install(fs, f, gen, to, &res.value, loaded);
    read_result_fini(&res);
}

void file_grow(struct fs *fs, struct caller *who, struct file *f, uint64_t wanted)
{
    struct value end = {0};
    struct buf key = {0};
    struct found to = {0};
    uint64_t size, in_chunk, gen;
    size_t n;
    bool behind, loaded;

    pthread_mutex_lock(&f->lock);
    size = file_size_locked(f);
    loaded = f->loaded;
    gen = f->gen;
    behind = f->known && wanted > size && !file_is_dirty_locked(f) &&
             follow_is_behind(fs->follow, f->inode, f->version);
    pthread_mutex_unlock(&f->lock);
    if (!behind || inode_key(fs->inodes, f->inode, &key) < 0) {
        buf_fini(&key);
        return;
    }
    in_chunk = size > 0 ? (size - 1) % CHUNK_SIZE + 1 : 0;
    n = in_chunk < COMPARED_MAX ? in_chunk : COMPARED_MAX;
    /* What was replaced, and is there no longer, cannot be compared. */
    if ((n == 0 || (file_read(fs, who, f, size - n, n, &end) == 0 && end.len == n)) &&
        goes_on(fs, who, buf_span(&key), size, end, &to))
        move_on(fs, who, f, buf_span(&key), gen, loaded, &to);
    value_fini(&end);
    buf_fini(&key);
}

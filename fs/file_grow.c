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

/* Does the newer version hold these bytes, which end the view at `size`, and something behind? */
static bool goes_on(struct fs *fs, struct caller *who, struct file *f, uint64_t size,
                    struct value end)
{
    uint64_t from = (size > 0 ? size - 1 : 0) / CHUNK_SIZE * CHUNK_SIZE;
    struct read_args args = {.want_value = true, .offset = from, .length = CHUNK_SIZE};
    struct read_result res = {0};
    struct buf key = {0};
    bool yes = false;

    if (inode_key(fs->inodes, f->inode, &key) == 0) {
        args.key = buf_span(&key);
        if (core_read(fs, who, &args, &res) == 0) {
            uint64_t at = size - end.len - res.value_offset;

            yes = record_is_live(&res.rec.rec) && res.rec.rec.size > size &&
                  res.value_offset <= size - end.len && at + end.len <= res.value.len &&
                  (end.len == 0 || memcmp(res.value.data + at, end.data, end.len) == 0);
        }
    }
    read_result_fini(&res);
    buf_fini(&key);
    return yes;
}

void file_grow(struct fs *fs, struct caller *who, struct file *f, uint64_t wanted)
{
    struct value end = {0};
    uint64_t size, in_chunk;
    size_t n;
    bool behind, loaded;

    pthread_mutex_lock(&f->lock);
    size = file_size_locked(f);
    loaded = f->loaded;
    behind = f->known && wanted > size && !file_is_dirty_locked(f) &&
             follow_is_behind(fs->follow, f->inode, f->version);
    pthread_mutex_unlock(&f->lock);
    if (!behind || inode_is_gone(fs->inodes, f->inode))
        return;
    in_chunk = size > 0 ? (size - 1) % CHUNK_SIZE + 1 : 0;
    n = in_chunk < COMPARED_MAX ? in_chunk : COMPARED_MAX;
    if (n > 0 && (file_read(fs, who, f, size - n, n, &end) < 0 || end.len != n)) {
        value_fini(&end);
        return; /* it was replaced, and is there no longer to be compared */
    }
    if (goes_on(fs, who, f, size, end))
        (void)file_refresh(fs, who, f, loaded);
    value_fini(&end);
}

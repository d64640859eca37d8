/* tree.c - names made and removed: mknod, mkdir, symlink, unlink, rmdir. */
#include "fs/core.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "fs/dirtime.h"
#include "fs/file.h"

uint32_t fs_inherit(struct fs *fs, struct inode *dir, struct meta *m)
{
    struct dir_facts facts = inode_dir_facts(fs->inodes, dir);

    if (!(facts.mode & S_ISGID))
        return m->gid;
    if (S_ISDIR(m->mode))
        m->mode |= S_ISGID;
    return facts.gid;
}

/* --- making ----------------------------------------------------------------------------------- */

/* Stores a new key under a name, unless there is one; in the cluster exactly one of several who try
 * succeeds. */
static int make(struct fs *fs, struct caller *who, uint64_t parent, const char *text,
                struct found *found, struct span value, struct fs_entry *out)
{
    bool done = false;
    struct name n;
    uint64_t moves;
    int err;

    do {
        struct found pending;
        struct buf *key;

        moves = inode_moves(fs->inodes);
        err = name_resolve(fs, who, parent, text, &n);
        if (err < 0)
            return err;
        key = found->kind == INODE_DIR ? &n.subdir : &n.file;
        err = found->kind == INODE_DIR ? n.subdir_err : n.file_err;
        if (err == 0 && found->kind == INODE_DIR && key->data[key->len - 1] != '/')
            err = -EINVAL; /* a piece of a long name */
        else if (err == 0 && !done && fs_find_pending(fs, &n, &pending))
            err = -EEXIST;
        if (err == 0 && !done)
            err = fs_check_dir(fs, who, n.dir);
        if (err == 0 && !done) {
            found->meta.gid = fs_inherit(fs, n.dir, &found->meta);
            err = key_create(fs, who, buf_span(key), &found->meta, value, &found->version);
            found->made = err == 0;
        }
        done = err == 0;
        if (err == 0)
            err = fs_entry_of(
                fs, who, buf_span(key), found, moves,
                &(struct origin){.by = SEEN_TOLD, .until_us = core_now_us() + SEEN_US}, out);
        if (err == 0)
            dirtime_touch(fs, n.dir);
        name_fini(fs, &n);
    } while (err == -EAGAIN && done);
    return err;
}

int fs_mknod(struct fs *fs, struct caller *who, uint64_t parent, const char *name, uint32_t mode,
             uint64_t rdev, struct fs_entry *out)
{
    struct found found = {.kind = INODE_FILE,
                          .meta = meta_new(mode, rdev, who->uid, who->gid, attr_now_ns())};

    if ((mode & S_IFMT) == 0)
        found.meta.mode |= S_IFREG;
    return make(fs, who, parent, name, &found, span_of(NULL, 0), out);
}

int fs_mkdir(struct fs *fs, struct caller *who, uint64_t parent, const char *name, uint32_t mode,
             struct fs_entry *out)
{
    struct found found = {
        .kind = INODE_DIR,
        .has_marker = true,
        .meta = meta_new(S_IFDIR | (mode & 07777u), 0, who->uid, who->gid, attr_now_ns())};

    return make(fs, who, parent, name, &found, span_of(NULL, 0), out);
}

int fs_symlink(struct fs *fs, struct caller *who, const char *target, uint64_t parent,
               const char *name, struct fs_entry *out)
{
    struct found found = {.kind = INODE_FILE,
                          .meta = meta_new(S_IFLNK | 0777u, 0, who->uid, who->gid, attr_now_ns())};

    found.meta.size = strlen(target);
    return make(fs, who, parent, name, &found, span_str(target), out);
}

/* --- removing --------------------------------------------------------------------------------- */

struct file *fs_file_of_key(struct fs *fs, struct span key)
{
    struct inode *in = inode_find(fs->inodes, key, INODE_FILE);
    struct file *f = in != NULL ? inode_file(fs->inodes, in) : NULL;

    inode_put(fs->inodes, in);
    return f;
}

/* The open file of a key, held: nobody stores it meanwhile. *out NULL: it is not open here. */
static int hold_key(struct fs *fs, struct caller *who, struct span key, struct file **out)
{
    struct file *f = fs_file_of_key(fs, key);
    int err = f != NULL ? file_hold(who, f) : 0;

    if (err < 0)
        file_put(fs, f);
    else
        *out = f;
    return err;
}

void fs_unhold(struct fs *fs, struct file *f)
{
    if (f == NULL)
        return;
    file_unhold(f);
    file_put(fs, f);
}

/* An open file lives on in memory, so that is to have all of it before the key goes. */
static int unlink_key(struct fs *fs, struct caller *who, struct span key, struct file *f)
{
    bool pending = f != NULL && file_pending(f);
    int err = f != NULL ? file_load_held(fs, who, f) : 0;

    if (err == 0)
        err = key_delete(fs, who, key, NULL);
    if (err == -ENOENT && pending)
        err = 0; /* it never was stored */
    if (err == 0)
        inode_drop(fs->inodes, key, INODE_FILE);
    return err;
}

int fs_unlink(struct fs *fs, struct caller *who, uint64_t parent, const char *text)
{
    struct file *f = NULL;
    struct name n;
    int err = name_resolve(fs, who, parent, text, &n);

    if (err < 0)
        return err == -EINVAL ? -ENOENT : err;
    err = n.file.len == 0 ? -ENOENT : fs_check_dir(fs, who, n.dir);
    if (err == 0)
        err = dir_keep(fs, who, n.dir);
    if (err == 0)
        err = hold_key(fs, who, buf_span(&n.file), &f);
    if (err == 0)
        err = unlink_key(fs, who, buf_span(&n.file), f);
    if (err == 0)
        dirtime_touch(fs, n.dir);
    fs_unhold(fs, f);
    name_fini(fs, &n);
    return err;
}

/* Only what the cluster knows is empty, and has nothing that was created here and not stored, may
 * go. */
int fs_check_empty(struct fs *fs, struct caller *who, struct span prefix)
{
    struct file **files;
    bool pending = false;
    size_t n;
    int err = inode_files_below(fs->inodes, prefix, &files, &n);

    if (err < 0)
        return err;
    for (size_t i = 0; i < n; i++) {
        pending = pending || file_pending(files[i]);
        file_put(fs, files[i]);
    }
    free(files);
    return pending ? -ENOTEMPTY : dir_check_empty(fs, who, prefix);
}

/*
 * Somebody may have made something in the directory between the look and the removal: then it is
 * there still, through its keys, and gets its marker back. -ENOTEMPTY, or why that is not known.
 */
static int remove_dir(struct fs *fs, struct caller *who, struct span prefix)
{
    struct record_copy marker = {0};
    struct found found;
    int err = marker_take(fs, who, prefix, &marker);

    if (err == 0) {
        err = key_find_dir(fs, who, prefix, READ_MAJORITY, &found);
        if (err == -ENOENT) {
            err = 0;
        } else { /* also where it cannot be known */
            int given = marker_give_back(fs, who, prefix, &marker.rec);

            err = err < 0 ? err : given < 0 ? given : -ENOTEMPTY;
        }
    }
    record_copy_fini(&marker);
    return err;
}

int fs_rmdir(struct fs *fs, struct caller *who, uint64_t parent, const char *text)
{
    struct name n;
    int err = name_resolve(fs, who, parent, text, &n);

    if (err < 0)
        return err == -EINVAL ? -ENOENT : err;
    err = n.subdir.len == 0 ? -ENOTDIR : fs_check_dir(fs, who, n.dir);
    if (err == 0)
        err = fs_check_empty(fs, who, buf_span(&n.subdir));
    if (err == 0)
        err = dir_keep(fs, who, n.dir);
    if (err == 0)
        err = remove_dir(fs, who, buf_span(&n.subdir));
    if (err == 0) {
        inode_drop(fs->inodes, buf_span(&n.subdir), INODE_DIR);
        dirtime_touch(fs, n.dir);
    }
    name_fini(fs, &n);
    return err;
}

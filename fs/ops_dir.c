/* ops_dir.c - the handlers of names and directories. */
#include "fs/ops.h"

#include <errno.h>
#include <linux/fs.h>
#include <stdlib.h>

void on_mkdir(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode)
{
    struct caller who;
    struct fs_entry e;
    int err;

    request_begin(req, CALL_MKDIR, &who);
    err = fs_mkdir(mount_of(req)->fs, &who, parent, name, mode, &e);
    reply_entry(req, &who, err, &e);
}

void on_mknod(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode, dev_t rdev)
{
    struct caller who;
    struct fs_entry e;
    int err;

    request_begin(req, CALL_MKNOD, &who);
    err = fs_mknod(mount_of(req)->fs, &who, parent, name, mode, rdev, &e);
    reply_entry(req, &who, err, &e);
}

void on_symlink(fuse_req_t req, const char *target, fuse_ino_t parent, const char *name)
{
    struct caller who;
    struct fs_entry e;
    int err;

    request_begin(req, CALL_SYMLINK, &who);
    err = fs_symlink(mount_of(req)->fs, &who, target, parent, name, &e);
    reply_entry(req, &who, err, &e);
}

void on_link(fuse_req_t req, fuse_ino_t ino, fuse_ino_t parent, const char *name)
{
    (void)ino;
    (void)parent;
    (void)name;
    fuse_reply_err(req, EPERM); /* a key has one name */
}

void on_unlink(fuse_req_t req, fuse_ino_t parent, const char *name)
{
    struct caller who;
    int err;

    request_begin(req, CALL_UNLINK, &who);
    err = fs_unlink(mount_of(req)->fs, &who, parent, name);
    fuse_reply_err(req, request_end(req, &who, err));
}

void on_rmdir(fuse_req_t req, fuse_ino_t parent, const char *name)
{
    struct caller who;
    int err;

    request_begin(req, CALL_RMDIR, &who);
    err = fs_rmdir(mount_of(req)->fs, &who, parent, name);
    fuse_reply_err(req, request_end(req, &who, err));
}

void on_rename(fuse_req_t req, fuse_ino_t parent, const char *name, fuse_ino_t new_parent,
               const char *new_name, unsigned flags)
{
    struct caller who;
    int err = -EINVAL;

    request_begin(req, CALL_RENAME, &who);
    if ((flags & ~(unsigned)RENAME_NOREPLACE) == 0) /* two keys cannot be exchanged at once */
        err = fs_rename(mount_of(req)->fs, &who, parent, name, new_parent, new_name,
                        flags & RENAME_NOREPLACE);
    fuse_reply_err(req, request_end(req, &who, err));
}

/* --- reading directories ---------------------------------------------------------------------- */

static struct dir_handle *dir_of(const struct fuse_file_info *fi)
{
    return (struct dir_handle *)(uintptr_t)fi->fh;
}

void on_opendir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    struct mount *m = mount_of(req);
    struct dir_handle *d;
    struct caller who;
    int err;

    if (control_has(ino)) {
        on_control_opendir(req, ino, fi);
        return;
    }
    request_begin(req, CALL_OPENDIR, &who);
    err = fs_opendir(m->fs, &who, ino, &d);
    err = request_end(req, &who, err);
    if (err != 0) {
        fuse_reply_err(req, err);
        return;
    }
    fi->fh = (uintptr_t)d;
    if (fuse_reply_open(req, fi) == -ENOENT)
        fs_releasedir(m->fs, d);
}

/*
 * Fills buf with entries from off on. Returns the bytes used, or an error. It waits only for the
 * first: the kernel drops an error that comes behind entries, and the signal that caused it would
 * be forgotten.
 */
static ssize_t fill_dir(fuse_req_t req, struct caller *who, struct dir_handle *d, uint64_t off,
                        bool plus, char *buf, size_t size)
{
    struct mount *m = mount_of(req);
    struct fs_dirent e;
    size_t used = 0;
    int got;

    while ((got = fs_readdir(m->fs, who, d, off, used == 0, &e)) > 0) {
        struct fuse_entry_param param = {.attr = e.st}; /* id 0: the kernel gets a name only */
        struct fs_entry entry;
        size_t need = plus ? fuse_add_direntry_plus(req, NULL, 0, e.name, NULL, 0)
                           : fuse_add_direntry(req, NULL, 0, e.name, NULL, 0);

        if (need > size - used)
            break;
        if (!plus) {
            fuse_add_direntry(req, buf + used, size - used, e.name, &e.st, (off_t)e.next_off);
        } else {
            if (!e.dots && fs_readdir_remember(m->fs, who, d, &entry) == 0)
                fill_entry(m, &entry, &param);
            fuse_add_direntry_plus(req, buf + used, size - used, e.name, &param, (off_t)e.next_off);
        }
        used += need;
        off = e.next_off;
    }
    return got < 0 && used == 0 ? got : (ssize_t)used;
}

static void read_dir(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off,
                     struct fuse_file_info *fi, bool plus)
{
    char *buf;
    struct caller who;
    ssize_t used;
    int err;

    if (control_has(ino)) {
        on_control_readdir(req, ino, size, off, plus);
        return;
    }
    buf = malloc(size);
    request_begin(req, CALL_READDIR, &who);
    used = buf != NULL ? fill_dir(req, &who, dir_of(fi), (uint64_t)off, plus, buf, size) : -ENOMEM;
    err = request_end(req, &who, used < 0 ? (int)used : 0);
    if (err != 0)
        fuse_reply_err(req, err);
    else
        fuse_reply_buf(req, buf, (size_t)used);
    free(buf);
}

void on_readdir(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off, struct fuse_file_info *fi)
{
    read_dir(req, ino, size, off, fi, false);
}

void on_readdirplus(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off,
                    struct fuse_file_info *fi)
{
    read_dir(req, ino, size, off, fi, true);
}

void on_releasedir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    if (!control_has(ino))
        fs_releasedir(mount_of(req)->fs, dir_of(fi));
    fuse_reply_err(req, 0);
}

/* Names are stored already; fdatasync(2) does not ask for more. */
void on_fsyncdir(fuse_req_t req, fuse_ino_t ino, int datasync, struct fuse_file_info *fi)
{
    struct caller who;
    int err = 0;

    if (!control_has(ino) && !datasync) {
        request_begin(req, CALL_FSYNC, &who);
        err = fs_fsyncdir(mount_of(req)->fs, &who, dir_of(fi));
        err = request_end(req, &who, err);
    }
    fuse_reply_err(req, err);
}

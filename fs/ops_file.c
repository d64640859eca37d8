/* ops_file.c - the handlers of open files. */
#include "fs/ops.h"

#include <errno.h>
#include <unistd.h>

static struct handle *handle_of(const struct fuse_file_info *fi)
{
    return (struct handle *)(uintptr_t)fi->fh;
}

static void fill_info(const struct mount *m, struct handle *h, struct fuse_file_info *fi)
{
    fi->fh = (uintptr_t)h;
    /* Each open sees what was closed before it: pages of before go, unless they are just that. */
    fi->keep_cache = m->notifier != NULL && fs_pages_hold(m->fs, h);
    /* What is appended may come to stand elsewhere than the kernel thinks: its pages would be
     * wrong. */
    fi->direct_io = handle_appends(h);
}

void on_create(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode,
               struct fuse_file_info *fi)
{
    struct mount *m = mount_of(req);
    struct fuse_entry_param param;
    struct caller who;
    struct fs_entry e;
    struct handle *h;
    int err;

    request_begin(req, CALL_CREATE, &who);
    err = fs_create(m->fs, &who, parent, name, mode, fi->flags, &e, &h);
    err = request_end(req, &who, err);
    if (err != 0) {
        fuse_reply_err(req, err);
        return;
    }
    fill_info(m, h, fi);
    fill_entry(m, &e, &param);
    if (fuse_reply_create(req, &param, fi) == -ENOENT) { /* the caller is gone */
        struct caller nobody;

        caller_begin(m->callers, CALL_NONE, 0, 0, 0, &nobody);
        fs_release(m->fs, &nobody, h);
        caller_end(&nobody);
        fs_forget(m->fs, e.id, 1);
    }
}

void on_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    struct mount *m = mount_of(req);
    struct caller who;
    struct handle *h;
    int err;

    if (control_has(ino)) {
        on_control_open(req, ino, fi);
        return;
    }
    request_begin(req, CALL_OPEN, &who);
    err = fs_open(m->fs, &who, ino, fi->flags, &h);
    err = request_end(req, &who, err);
    if (err != 0) {
        fuse_reply_err(req, err);
        return;
    }
    fill_info(m, h, fi);
    if (fuse_reply_open(req, fi) == -ENOENT) {
        struct caller nobody;

        caller_begin(m->callers, CALL_NONE, 0, 0, 0, &nobody);
        fs_release(m->fs, &nobody, h);
        caller_end(&nobody);
    }
}

void on_read(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off, struct fuse_file_info *fi)
{
    struct value v = {0};
    struct caller who;
    int err;

    if (control_has(ino)) {
        on_control_read(req, size, off, fi);
        return;
    }
    request_begin(req, CALL_READ, &who);
    err = fs_read(mount_of(req)->fs, &who, handle_of(fi), (uint64_t)off, size, &v);
    err = request_end(req, &who, err);
    if (err != 0) {
        fuse_reply_err(req, err);
    } else {
        metrics_read(mount_of(req)->metrics, v.len);
        fuse_reply_buf(req, (const char *)v.data, v.len);
    }
    value_fini(&v);
}

void on_write(fuse_req_t req, fuse_ino_t ino, const char *data, size_t size, off_t off,
              struct fuse_file_info *fi)
{
    struct caller who;
    int err;

    (void)ino;
    request_begin(req, CALL_WRITE, &who);
    err = fs_write(mount_of(req)->fs, &who, handle_of(fi), (uint64_t)off, span_of(data, size),
                   fi->writepage);
    err = request_end(req, &who, err);
    if (err != 0) {
        fuse_reply_err(req, err);
    } else {
        metrics_written(mount_of(req)->metrics, size);
        fuse_reply_write(req, size);
    }
}

void on_flush(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    struct caller who;
    int err;

    request_begin(req, CALL_FLUSH, &who);
    err = control_has(ino) ? 0 : fs_flush(mount_of(req)->fs, &who, handle_of(fi));
    fuse_reply_err(req, request_end(req, &who, err));
}

void on_fsync(fuse_req_t req, fuse_ino_t ino, int datasync, struct fuse_file_info *fi)
{
    struct caller who;
    int err;

    (void)datasync;
    request_begin(req, CALL_FSYNC, &who);
    err = control_has(ino) ? 0 : fs_fsync(mount_of(req)->fs, &who, handle_of(fi));
    fuse_reply_err(req, request_end(req, &who, err));
}

void on_release(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    struct caller who;
    int err;

    if (control_has(ino)) {
        on_control_release(req, fi);
        return;
    }
    request_begin(req, CALL_RELEASE, &who);
    err = fs_release(mount_of(req)->fs, &who, handle_of(fi));
    fuse_reply_err(req, request_end(req, &who, err));
}

void on_fallocate(fuse_req_t req, fuse_ino_t ino, int mode, off_t off, off_t len,
                  struct fuse_file_info *fi)
{
    struct caller who;
    int err;

    (void)ino;
    request_begin(req, CALL_FALLOCATE, &who);
    err = fs_fallocate(mount_of(req)->fs, &who, handle_of(fi), mode, (uint64_t)off, (uint64_t)len);
    fuse_reply_err(req, request_end(req, &who, err));
}

void on_lseek(fuse_req_t req, fuse_ino_t ino, off_t off, int whence, struct fuse_file_info *fi)
{
    uint64_t found = 0;
    struct caller who;
    int err = -EINVAL;

    request_begin(req, CALL_LSEEK, &who);
    if (!control_has(ino) && off >= 0 && (whence == SEEK_DATA || whence == SEEK_HOLE))
        err = fs_lseek(handle_of(fi), (uint64_t)off, whence == SEEK_HOLE, &found);
    err = request_end(req, &who, err);
    if (err != 0)
        fuse_reply_err(req, err);
    else
        fuse_reply_lseek(req, (off_t)found);
}

void on_copy_file_range(fuse_req_t req, fuse_ino_t ino_in, off_t off_in,
                        struct fuse_file_info *fi_in, fuse_ino_t ino_out, off_t off_out,
                        struct fuse_file_info *fi_out, size_t len, int flags)
{
    uint64_t done = 0;
    struct caller who;
    int err = -EINVAL;

    (void)ino_out;
    request_begin(req, CALL_COPY, &who);
    if (control_has(ino_in)) /* nothing can be written there */
        err = -EXDEV;        /* the kernel copies */
    else if (flags == 0)
        err = fs_copy_range(mount_of(req)->fs, &who, handle_of(fi_in), (uint64_t)off_in,
                            handle_of(fi_out), (uint64_t)off_out, len, &done);
    err = request_end(req, &who, err);
    if (err != 0)
        fuse_reply_err(req, err);
    else
        fuse_reply_write(req, done);
}

/* ops_control.c - the handlers of .kvfs, where those of the core have nothing to say: its files are
 * texts, made when they are opened. */
#include "fs/ops.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

void on_control_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    struct buf text = {0};
    struct value v = {0};
    struct caller who;
    int err;

    request_begin(req, CALL_OPEN, &who);
    err = control_open(mount_of(req)->control, ino, fi->flags, &text);
    if (err == 0)
        err = value_copy(buf_span(&text), &v);
    buf_fini(&text);
    err = request_end(req, &who, err);
    assert(err != 0 || v.len > 0); /* there is always something to tell */
    fi->fh = (uintptr_t)v.blob;
    fi->direct_io = 1; /* its size is not known beforehand */
    if (err != 0)
        fuse_reply_err(req, err);
    if (err != 0 || fuse_reply_open(req, fi) == -ENOENT)
        value_fini(&v);
}

void on_control_read(fuse_req_t req, size_t size, off_t off, struct fuse_file_info *fi)
{
    /* Whoever has the answer may close the file at once: the text has to stay till it is sent. */
    struct blob *text = blob_ref((struct blob *)(uintptr_t)fi->fh);
    size_t at = (uint64_t)off < text->len ? (size_t)off : text->len;
    struct caller who;

    request_begin(req, CALL_READ, &who);
    request_end(req, &who, 0);
    fuse_reply_buf(req, (const char *)text->data + at,
                   size < text->len - at ? size : text->len - at);
    blob_unref(text);
}

void on_control_release(fuse_req_t req, struct fuse_file_info *fi)
{
    blob_unref((struct blob *)(uintptr_t)fi->fh);
    fuse_reply_err(req, 0);
}

void on_control_opendir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    struct caller who;
    int err;

    request_begin(req, CALL_OPENDIR, &who);
    err = control_opendir(mount_of(req)->control, &who, ino, fi->flags);
    err = request_end(req, &who, err);
    if (err != 0)
        fuse_reply_err(req, err);
    else
        fuse_reply_open(req, fi);
}

void on_control_readdir(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off, bool plus)
{
    struct mount *m = mount_of(req);
    char *buf = malloc(size);
    struct fs_dirent e;
    size_t used = 0;
    int got = buf != NULL ? 0 : -ENOMEM;

    while (buf != NULL && (got = control_readdir(m->control, ino, (uint64_t)off, &e)) > 0) {
        struct fuse_entry_param param = {.attr = e.st}; /* the kernel gets names only */
        size_t need = plus ? fuse_add_direntry_plus(req, buf + used, size - used, e.name, &param,
                                                    (off_t)e.next_off)
                           : fuse_add_direntry(req, buf + used, size - used, e.name, &e.st,
                                               (off_t)e.next_off);

        if (need > size - used)
            break;
        used += need;
        off = (off_t)e.next_off;
    }
    if (got < 0 && used == 0)
        fuse_reply_err(req, -got);
    else
        fuse_reply_buf(req, buf, used);
    free(buf);
}

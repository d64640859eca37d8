/* ops.c - the table of handlers, what they share, and those of inodes: lookup, attributes, extended
 * attributes. */
#include "fs/ops.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "common/log.h"
#include "fs/handle.h"

/* With a name the kernel may come to know an inode of which it was told already that it changed. */
#define NEW_ATTR_TIMEOUT_MAX_S 1.0

/* --- what all share --------------------------------------------------------------------------- */

/* A signal came to the caller; under the request's lock, so never after request_end(). */
static void on_interrupt(fuse_req_t req, void *arg)
{
    (void)req;
    caller_signalled(arg);
}

void request_begin(fuse_req_t req, enum fs_call call, struct caller *who)
{
    const struct fuse_ctx *ctx = fuse_req_ctx(req);

    caller_begin(mount_of(req)->callers, call, ctx->uid, ctx->gid, ctx->pid, who);
    fuse_req_interrupt_func(req, on_interrupt, who);
}

/* The one place where our meaning of errors becomes the kernel's. Trouble of the cluster must never
 * read as "not there". */
static int errno_for_kernel(int err)
{
    switch (-err) {
    case EBADMSG: /* damaged on every replica */
    case EBADE:   /* the nodes hold another ring */
    case EPROTO:
    case EREMCHG:
        return EIO;
    case EAGAIN: /* overloaded or recovering */
    case ECANCELED:
    case ETIMEDOUT:
    case ECONNREFUSED:
    case ECONNRESET:
    case EHOSTUNREACH:
        return EHOSTDOWN;
    default:
        return -err;
    }
}

int request_end(fuse_req_t req, struct caller *who, int err)
{
    int code = errno_for_kernel(err);

    fuse_req_interrupt_func(req, NULL, NULL);
    metrics_answered(mount_of(req)->metrics, who->call, code, caller_age_us(who));
    caller_end(who);
    if (code == EIO || code == ENOMEM || code == EHOSTDOWN)
        log_event(LOG_LEVEL_DEBUG, "failed", "error=%s reason=%s", strerrorname_np(code),
                  log_quote(who->why.msg, strlen(who->why.msg)));
    return code;
}

void fill_entry(const struct mount *m, const struct fs_entry *e, struct fuse_entry_param *out)
{
    /* Without a feed that tells of changes, no timeout: only a path walk that comes here sees what
     * other mounts have done. */
    double name_s = S_ISDIR(e->st.st_mode) ? FS_DIR_NAME_TIMEOUT_S : 0, attr_s = 0;

    if (e->name_holds)
        name_s = FS_NAME_TIMEOUT_S;
    if (m->attr_timeout_s > 0 && fs_attrs_hold(m->fs, e->id, &e->st))
        attr_s =
            m->attr_timeout_s < NEW_ATTR_TIMEOUT_MAX_S ? m->attr_timeout_s : NEW_ATTR_TIMEOUT_MAX_S;
    *out = (struct fuse_entry_param){
        .ino = e->id, .attr = e->st, .attr_timeout = attr_s, .entry_timeout = name_s};
}

/* The kernel has forgotten it, or was not told. */
static void forget(struct mount *m, uint64_t id, uint64_t nlookup)
{
    if (control_has(id))
        control_forget(m->control, id, nlookup);
    else
        fs_forget(m->fs, id, nlookup);
}

void reply_entry(fuse_req_t req, struct caller *who, int err, const struct fs_entry *e)
{
    struct mount *m = mount_of(req);
    struct fuse_entry_param param;
    int code = request_end(req, who, err);

    if (code != 0) {
        fuse_reply_err(req, code);
        return;
    }
    fill_entry(m, e, &param);
    if (fuse_reply_entry(req, &param) == -ENOENT)
        forget(m, e->id, 1); /* the caller is gone */
}

/* --- session ---------------------------------------------------------------------------------- */

static void on_statfs(fuse_req_t req, fuse_ino_t ino)
{
    struct statvfs st;
    struct caller who;

    (void)ino;
    request_begin(req, CALL_STATFS, &who);
    fs_statfs(mount_of(req)->fs, &st);
    request_end(req, &who, 0);
    fuse_reply_statfs(req, &st);
}

/* --- inodes ----------------------------------------------------------------------------------- */

static void on_lookup(fuse_req_t req, fuse_ino_t parent, const char *name)
{
    struct mount *m = mount_of(req);
    struct caller who;
    struct fs_entry e;
    int err;

    request_begin(req, CALL_LOOKUP, &who);
    if (control_has(parent) || control_is_name(parent, name))
        err = control_lookup(m->control, &who, parent, name, &e);
    else
        err = fs_lookup(m->fs, &who, parent, name, &e);
    reply_entry(req, &who, err, &e);
}

static void on_forget(fuse_req_t req, fuse_ino_t ino, uint64_t nlookup)
{
    forget(mount_of(req), ino, nlookup);
    fuse_reply_none(req);
}

static void on_forget_multi(fuse_req_t req, size_t count, struct fuse_forget_data *forgets)
{
    for (size_t i = 0; i < count; i++)
        forget(mount_of(req), forgets[i].ino, forgets[i].nlookup);
    fuse_reply_none(req);
}

static struct handle *handle_of(const struct fuse_file_info *fi)
{
    return fi != NULL ? (struct handle *)(uintptr_t)fi->fh : NULL;
}

/* asked: the kernel drops attributes that it asked for if it was told of a change meanwhile. Those
 * that a change of its own brings it takes without looking, so it must not believe them. */
static void reply_attr(fuse_req_t req, struct caller *who, int err, fuse_ino_t ino,
                       const struct stat *st, bool asked)
{
    struct mount *m = mount_of(req);
    int code = request_end(req, who, err);
    double attr_s = 0;

    if (asked && m->attr_timeout_s > 0 && fs_attrs_hold(m->fs, ino, st))
        attr_s = m->attr_timeout_s;
    if (code != 0)
        fuse_reply_err(req, code);
    else
        fuse_reply_attr(req, st, attr_s);
}

static void on_getattr(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    struct caller who;
    struct stat st;
    int err;

    request_begin(req, CALL_GETATTR, &who);
    if (control_has(ino))
        err = control_getattr(mount_of(req)->control, ino, &st);
    else
        err = fs_getattr(mount_of(req)->fs, &who, ino, handle_of(fi), &st);
    reply_attr(req, &who, err, ino, &st, true);
}

static void on_access(fuse_req_t req, fuse_ino_t ino, int mask)
{
    struct caller who;
    int err;

    request_begin(req, CALL_ACCESS, &who);
    if (control_has(ino))
        err = control_access(mount_of(req)->control, ino, mask);
    else
        err = fs_access(mount_of(req)->fs, &who, ino, mask);
    fuse_reply_err(req, request_end(req, &who, err));
}

static struct attr_change change_of(const struct stat *attr, int to_set)
{
    struct attr_change ch = {.mode = attr->st_mode, .uid = attr->st_uid, .gid = attr->st_gid};

    if (to_set & FUSE_SET_ATTR_MODE)
        ch.set |= CHANGE_MODE;
    if (to_set & FUSE_SET_ATTR_UID)
        ch.set |= CHANGE_UID;
    if (to_set & FUSE_SET_ATTR_GID)
        ch.set |= CHANGE_GID;
    if (to_set & (FUSE_SET_ATTR_MTIME | FUSE_SET_ATTR_MTIME_NOW))
        ch.set |= CHANGE_MTIME;
    if (to_set & (FUSE_SET_ATTR_ATIME | FUSE_SET_ATTR_ATIME_NOW))
        ch.set |= CHANGE_ATIME;
    ch.mtime_ns = to_set & FUSE_SET_ATTR_MTIME_NOW ? attr_now_ns() : attr_ns_of(attr->st_mtim);
    ch.atime_ns = to_set & FUSE_SET_ATTR_ATIME_NOW ? attr_now_ns() : attr_ns_of(attr->st_atim);
    return ch;
}

static void on_setattr(fuse_req_t req, fuse_ino_t ino, struct stat *attr, int to_set,
                       struct fuse_file_info *fi)
{
    struct attr_change ch = change_of(attr, to_set);
    uint64_t size = to_set & FUSE_SET_ATTR_SIZE ? (uint64_t)attr->st_size : UINT64_MAX;
    struct caller who;
    struct stat st;
    int err;

    request_begin(req, CALL_SETATTR, &who);
    err = control_has(ino)
              ? -EROFS
              : fs_setattr(mount_of(req)->fs, &who, ino, handle_of(fi), &ch, size, &st);
    reply_attr(req, &who, err, ino, &st, false);
}

static void on_readlink(fuse_req_t req, fuse_ino_t ino)
{
    struct buf target = {0};
    struct caller who;
    int err;

    request_begin(req, CALL_READLINK, &who);
    err = fs_readlink(mount_of(req)->fs, &who, ino, &target);
    buf_u8(&target, 0);
    if (err == 0)
        err = target.err;
    err = request_end(req, &who, err);
    if (err != 0)
        fuse_reply_err(req, err);
    else
        fuse_reply_readlink(req, (const char *)target.data);
    buf_fini(&target);
}

/* --- extended attributes ---------------------------------------------------------------------- */

/* size 0 asks for the length. */
static void reply_xattr(fuse_req_t req, struct caller *who, int err, const struct buf *b,
                        size_t size)
{
    int code;

    if (err == 0 && size > 0 && b->len > size)
        err = -ERANGE;
    code = request_end(req, who, err);
    if (code != 0)
        fuse_reply_err(req, code);
    else if (size == 0)
        fuse_reply_xattr(req, b->len);
    else
        fuse_reply_buf(req, (const char *)b->data, b->len);
}

static void on_getxattr(fuse_req_t req, fuse_ino_t ino, const char *name, size_t size)
{
    struct buf value = {0};
    struct caller who;
    int err;

    request_begin(req, CALL_GETXATTR, &who);
    err = control_has(ino) ? -ENODATA : fs_getxattr(mount_of(req)->fs, &who, ino, name, &value);
    reply_xattr(req, &who, err, &value, size);
    buf_fini(&value);
}

static void on_listxattr(fuse_req_t req, fuse_ino_t ino, size_t size)
{
    struct buf names = {0};
    struct caller who;
    int err;

    request_begin(req, CALL_LISTXATTR, &who);
    err = control_has(ino) ? 0 : fs_listxattr(mount_of(req)->fs, &who, ino, &names);
    reply_xattr(req, &who, err, &names, size);
    buf_fini(&names);
}

static void on_setxattr(fuse_req_t req, fuse_ino_t ino, const char *name, const char *value,
                        size_t size, int flags)
{
    struct caller who;
    int err;

    request_begin(req, CALL_SETXATTR, &who);
    err = control_has(ino)
              ? -EROFS
              : fs_setxattr(mount_of(req)->fs, &who, ino, name, span_of(value, size), flags);
    fuse_reply_err(req, request_end(req, &who, err));
}

static void on_removexattr(fuse_req_t req, fuse_ino_t ino, const char *name)
{
    struct caller who;
    int err;

    request_begin(req, CALL_REMOVEXATTR, &who);
    err = control_has(ino) ? -EROFS : fs_removexattr(mount_of(req)->fs, &who, ino, name);
    fuse_reply_err(req, request_end(req, &who, err));
}

const struct fuse_lowlevel_ops ops_table = {
    .init = on_init,
    .statfs = on_statfs,
    .lookup = on_lookup,
    .forget = on_forget,
    .forget_multi = on_forget_multi,
    .getattr = on_getattr,
    .access = on_access,
    .setattr = on_setattr,
    .readlink = on_readlink,
    .getxattr = on_getxattr,
    .listxattr = on_listxattr,
    .setxattr = on_setxattr,
    .removexattr = on_removexattr,
    .create = on_create,
    .open = on_open,
    .read = on_read,
    .write = on_write,
    .flush = on_flush,
    .fsync = on_fsync,
    .release = on_release,
    .fallocate = on_fallocate,
    .lseek = on_lseek,
    .copy_file_range = on_copy_file_range,
    .mkdir = on_mkdir,
    .mknod = on_mknod,
    .symlink = on_symlink,
    .link = on_link,
    .unlink = on_unlink,
    .rmdir = on_rmdir,
    .rename = on_rename,
    .opendir = on_opendir,
    .readdir = on_readdir,
    .readdirplus = on_readdirplus,
    .releasedir = on_releasedir,
    .fsyncdir = on_fsyncdir,
};

/*
 * xattr.c - extended attributes: user.*, kept in the record beside the value.
 *
 * What begins with user.kvfs. is told by the mount: the version that the cluster has, and who keeps
 * the key. It is not listed, so that what copies attributes leaves it alone, and cannot be set.
 */
#include "fs/core.h"

#include <errno.h>
#include <string.h>
#include <sys/xattr.h>

#include "common/limits.h"
#include "fs/dirtime.h"
#include "fs/file.h"
#include "fs/move_mark.h"

#define PREFIX "user."
#define OWN_PREFIX "user.kvfs."

/* 0, or why this name can have no value. */
static int check_name(const char *name)
{
    if (strncmp(name, PREFIX, strlen(PREFIX)) != 0)
        return -EOPNOTSUPP;
    if (name[strlen(PREFIX)] == 0)
        return -EINVAL;
    return strlen(name) <= ATTR_NAME_LEN_MAX ? 0 : -ERANGE;
}

/* --- reading ---------------------------------------------------------------------------------- */

/* The record that holds the attributes; an empty one of a directory without a marker, and of a file
 * that has no name any more: they went with it. */
static int read_record(struct fs *fs, struct caller *who, uint64_t id, struct read_result *out)
{
    struct inode *in = inode_get(fs->inodes, id);
    struct key_use k;
    int err;

    if (in == NULL)
        return -ESTALE;
    err = key_enter(fs, who, in, &k);
    if (err == -ENOENT) {
        struct file *f = inode_file(fs->inodes, in);

        err = f != NULL ? 0 : -ENOENT;
        file_put(fs, f);
    } else if (err == 0 && k.key.len > 0) { /* the root has no record, and so no attributes */
        struct read_args args = {.key = buf_span(&k.key), .from = fs_from(fs, READ_ONE_IN_NEED)};

        err = core_read(fs, who, &args, out);
    }
    key_leave(fs, &k);
    inode_put(fs->inodes, in);
    return err;
}

static bool is_own(const char *name)
{
    return strncmp(name, OWN_PREFIX, strlen(OWN_PREFIX)) == 0;
}

/* The JSON of GET /replicas/{key}; nobody needs to be asked. */
static int get_replicas(struct fs *fs, uint64_t id, struct buf *out)
{
    struct inode *in = inode_get(fs->inodes, id);
    struct buf key = {0}, json = {0};
    int err = in != NULL ? inode_key(fs->inodes, in, &key) : -ESTALE;

    if (err == -ENOENT || (err == 0 && key.len == 0))
        err = -ENODATA; /* it has no name any more, or is the root */
    if (err == 0) {
        config_owners_json(cluster_config(fs->cluster), buf_span(&key), &json);
        err = json.err;
    }
    if (err == 0) {
        buf_add(out, json.data, json.len - 1); /* without its newline */
        err = out->err;
    }
    inode_put(fs->inodes, in);
    buf_fini(&key);
    buf_fini(&json);
    return err;
}

/* As in the ETag of its value. */
static int get_version(struct fs *fs, struct caller *who, uint64_t id, struct buf *out)
{
    struct read_result res = {0};
    char text[BALLOT_TEXT_LEN];
    int err = read_record(fs, who, id, &res);

    if (err == -ENOENT || (err == 0 && !record_is_live(&res.rec.rec)))
        err = -ENODATA;
    if (err == 0) {
        ballot_text(res.rec.rec.version, text);
        buf_add_str(out, text);
        err = out->err;
    }
    read_result_fini(&res);
    return err;
}

static int get_own(struct fs *fs, struct caller *who, uint64_t id, const char *name,
                   struct buf *out)
{
    name += strlen(OWN_PREFIX);
    if (strcmp(name, "replicas") == 0)
        return get_replicas(fs, id, out);
    return strcmp(name, "version") == 0 ? get_version(fs, who, id, out) : -ENODATA;
}

int fs_getxattr(struct fs *fs, struct caller *who, uint64_t id, const char *name, struct buf *out)
{
    struct read_result res = {0};
    struct span value;
    int err = check_name(name);

    if (err == 0 && is_own(name))
        return get_own(fs, who, id, name, out);
    if (err < 0) /* as before each write (security.capability): no reason to go to the cluster */
        return err;
    err = read_record(fs, who, id, &res);
    if (err == 0)
        err = attr_find(res.rec.rec.attrs, ATTR_XATTR, span_str(name), &value);
    if (err == 0) {
        buf_add_span(out, value);
        err = out->err;
    }
    read_result_fini(&res);
    return err;
}

int fs_listxattr(struct fs *fs, struct caller *who, uint64_t id, struct buf *out)
{
    struct read_result res = {0};
    int err = read_record(fs, who, id, &res);

    if (err == 0) {
        struct span list = res.rec.rec.attrs, name, value;
        enum attr_kind kind;
        size_t pos = 0;

        while ((err = attr_next(list, &pos, &kind, &name, &value)) > 0) {
            if (kind != ATTR_XATTR || span_eq(name, span_str(MOVE_ATTR)))
                continue;
            buf_add_span(out, name);
            buf_u8(out, 0);
        }
        if (err == 0)
            err = out->err;
    }
    read_result_fini(&res);
    return err;
}

/* --- changing --------------------------------------------------------------------------------- */

struct xattr_edit {
    struct fs *fs;
    struct inode *in;
    struct span name, value;
    bool remove, dir;
    int flags;
    struct buf attrs; /* of the last try, as are: */
    struct ballot prev;
    struct dirtime_joined time;
};

/* All attributes but `name`; *had: it was there. */
static int copy_others(struct span list, struct span drop, struct buf *out, bool *had)
{
    struct span name, value;
    enum attr_kind kind;
    size_t pos = 0;
    int err;

    *had = false;
    while ((err = attr_next(list, &pos, &kind, &name, &value)) > 0) {
        if (kind == ATTR_XATTR && span_eq(name, drop))
            *had = true;
        else
            attr_add(out, kind, name, value);
    }
    return err < 0 ? err : out->err;
}

static int xattr_edit(void *ctx, const struct record *cur, struct value cur_value,
                      struct draft *next)
{
    struct xattr_edit *e = (struct xattr_edit *)ctx;
    struct meta m;
    bool had;
    int err;

    (void)cur_value;
    e->prev = cur->version;
    if (!record_is_live(cur) && !e->dir)
        return -ENOENT;
    buf_clear(&e->attrs);
    err = copy_others(cur->attrs, e->name, &e->attrs, &had);
    if (err < 0)
        return err;
    if ((e->remove || (e->flags & XATTR_REPLACE)) && !had)
        return -ENODATA;
    if ((e->flags & XATTR_CREATE) && had)
        return -EEXIST;
    if (!e->remove) {
        /* What the list may hold is limited; each attribute takes a few bytes beside its own. */
        if (e->attrs.len + e->name.len + e->value.len + 16 > ATTRS_LEN_MAX)
            return -ENOSPC;
        attr_add(&e->attrs, ATTR_XATTR, e->name, e->value);
    }
    if (e->attrs.err < 0)
        return e->attrs.err;
    m = record_is_live(cur) ? meta_of_record(&e->fs->defaults, cur, e->dir)
                            : meta_of_implicit_dir(&e->fs->defaults, attr_now_ns());
    if (e->dir)
        (void)dirtime_join(e->fs, e->in, cur->version, &m, &e->time);
    m.ctime_ns = attr_now_ns();
    meta_to_record(&m, &next->rec);
    next->rec.attrs = buf_span(&e->attrs);
    next->same_value = record_is_live(cur);
    return 0;
}

static int change(struct fs *fs, struct caller *who, uint64_t id, struct xattr_edit *e)
{
    struct write_args args = {.edit = xattr_edit, .ctx = e};
    struct inode *in = inode_get(fs->inodes, id);
    struct write_result res = {0};
    struct key_use k = {0};
    struct file *f = NULL;
    int err;

    if (in == NULL)
        return -ESTALE;
    e->fs = fs;
    e->in = in;
    e->dir = in->kind == INODE_DIR;
    f = e->dir ? NULL : inode_file(fs->inodes, in);
    /* It needs a record, which knows the file's attributes. */
    err = f != NULL && file_is_fresh(f) ? file_store(fs, who, f) : 0;
    if (err == 0)
        err = key_enter(fs, who, in, &k);
    if (err == 0 && (k.key.len == 0 || (e->dir && k.key.data[k.key.len - 1] != '/')))
        err = -EOPNOTSUPP;
    args.key = buf_span(&k.key);
    if (err == 0)
        err = core_write(fs, who, &args, &res);
    if (err == 0 && e->dir && res.rec_is == WRITE_AS_DRAFTED)
        dirtime_joined(fs, in, &e->time, res.rec.rec.version);
    if (err == 0 && f != NULL && res.rec_is == WRITE_AS_DRAFTED) {
        struct meta m = meta_of_record(&fs->defaults, &res.rec.rec, false);

        file_set_meta(f, &(struct attr_change){0}, &m, e->prev, res.rec.rec.version);
    }
    write_result_fini(&res);
    buf_fini(&e->attrs);
    key_leave(fs, &k);
    file_put(fs, f);
    inode_put(fs->inodes, in);
    return err;
}

int fs_setxattr(struct fs *fs, struct caller *who, uint64_t id, const char *name, struct span value,
                int flags)
{
    struct xattr_edit e = {.name = span_str(name), .value = value, .flags = flags};
    int err = check_name(name);

    if (err == 0 && is_own(name))
        err = -EPERM;
    if (err == 0 && value.len > ATTR_VALUE_LEN_MAX)
        err = -E2BIG;
    return err < 0 ? err : change(fs, who, id, &e);
}

int fs_removexattr(struct fs *fs, struct caller *who, uint64_t id, const char *name)
{
    struct xattr_edit e = {.name = span_str(name), .remove = true};
    int err = check_name(name);

    if (err == 0 && is_own(name))
        err = -EPERM;
    return err < 0 ? err : change(fs, who, id, &e);
}

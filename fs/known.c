/*
 * known.c - what is known of an inode: asked of the cluster and kept while it holds (follow.h), and
 * how far the kernel may believe it.
 */
#include "fs/core.h"

#include <errno.h>
#include <string.h>

#include "fs/file.h"

int fs_dir_ids(struct fs *fs, uint64_t **out, size_t *n)
{
    return inode_dir_ids(fs->inodes, out, n);
}

/* --- asking -------------------------------------------------------------------------------- */

static int find_dir(struct fs *fs, struct caller *who, struct inode *in, struct span prefix,
                    struct found *out)
{
    struct follow_mark mark = follow_mark_dir(fs->follow, prefix);
    int err = key_find_dir(fs, who, prefix, out);

    if (err == 0) {
        inode_set_dir(fs->inodes, in, out);
        follow_keep(fs->follow, in, prefix, out, &mark);
    }
    return err;
}

/*
 * Where the kernel came by the name without asking, a directory may have come to hide the file, or
 * something else to stand there: then it has to ask.
 */
static int find_file(struct fs *fs, struct caller *who, struct inode *in, struct span key,
                     struct found *out)
{
    struct follow_mark mark = follow_mark(fs->follow, key, key);
    bool named = follow_is_named(fs->follow, in, core_now_us());
    int err = named ? key_find_shown(fs, who, key, out) : key_find_file(fs, who, key, out);

    if (err == 0 &&
        (out->kind == INODE_DIR || (out->meta.mode & S_IFMT) != inode_type(fs->inodes, in))) {
        follow_set_named(fs->follow, in, 0);
        err = -ESTALE;
    }
    if (err == 0) {
        follow_saw(fs->follow, in, key, out->version);
        follow_keep(fs->follow, in, key, out, &mark);
    }
    return err;
}

int fs_find_inode(struct fs *fs, struct caller *who, struct inode *in, struct found *out)
{
    struct buf key = {0};
    int err = inode_last_key(fs->inodes, in, &key);

    if (err == 0 && in->kind == INODE_DIR)
        err = find_dir(fs, who, in, buf_span(&key), out);
    else if (err == 0)
        err = find_file(fs, who, in, buf_span(&key), out);
    buf_fini(&key);
    return err;
}

int fs_renew_dir(struct fs *fs, struct caller *who, struct inode *in)
{
    struct found found;

    if (in->id == INODE_ROOT || !follow_is_named(fs->follow, in, core_now_us()) ||
        inode_is_gone(fs->inodes, in) || follow_recall(fs->follow, in, &found))
        return 0;
    return fs_find_inode(fs, who, in, &found);
}

/* --- what the kernel may believe ----------------------------------------------------------- */

void fs_hold_name(struct fs *fs, const struct found *found, const struct follow_mark *mark,
                  struct fs_entry *e)
{
    struct inode *in = found->followed ? inode_get(fs->inodes, e->id) : NULL;
    struct found now;

    if (in == NULL)
        return;
    if (follow_recall(fs->follow, in, &now) && follow_holds(fs->follow, mark)) {
        e->name_holds = true;
        follow_set_named(fs->follow, in, core_now_us() + FS_NAME_TIMEOUT_S * 1000000ull);
    }
    inode_put(fs->inodes, in);
}

bool fs_attrs_hold(struct fs *fs, uint64_t id, const struct stat *st)
{
    struct inode *in = id != INODE_ROOT ? inode_get(fs->inodes, id) : NULL;
    struct found found;
    struct stat now;
    bool holds;

    if (in == NULL)
        return false;
    holds = in->kind == INODE_DIR && follow_recall(fs->follow, in, &found) &&
            !inode_is_gone(fs->inodes, in);
    if (holds) {
        fs_show(fs, in, &found.meta, &now);
        holds = memcmp(&now, st, sizeof(now)) == 0;
    }
    inode_put(fs->inodes, in);
    return holds;
}

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
                    enum read_from from, struct found *out)
{
    struct follow_mark mark = follow_mark_dir(fs->follow, prefix);
    /* Nearly all nodes would be asked for one's word of it. */
    int err = key_find_dir(fs, who, prefix, from == READ_ONE ? READ_ONE_IN_NEED : from, out);

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
                     enum read_from from, struct found *out)
{
    struct follow_mark mark = follow_mark(fs->follow, key, key);
    bool named = follow_is_named(fs->follow, in);
    struct ballot told = follow_told(fs->follow, in, key);
    int err = named ? key_find_shown(fs, who, key, from, out)
                    : key_find_file(fs, who, key, from, told, out);

    if (err == 0 &&
        (out->kind == INODE_DIR || (out->meta.mode & S_IFMT) != inode_type(fs->inodes, in))) {
        follow_set_named(fs->follow, in, 0);
        err = -ESTALE;
    }
    if (err == 0 && !out->lone) {
        follow_saw(fs->follow, in, key, out->version);
        follow_keep(fs->follow, in, key, out, &mark);
    }
    return err;
}

bool fs_is_moving(struct fs *fs, struct caller *who, struct inode *in)
{
    struct buf key = {0};
    bool moves = !who->moves && fs->moves.n > 0 && inode_key(fs->inodes, in, &key) == 0 &&
                 dir_moves_has(&fs->moves, buf_span(&key));

    buf_fini(&key);
    return moves;
}

bool fs_has_moved(struct fs *fs, struct caller *who, struct inode *in, uint64_t n_ended)
{
    uint64_t now = dir_moves_ended(&fs->moves);
    bool moved = now != n_ended;

    while (!caller_stopped(who) && fs_is_moving(fs, who, in)) {
        dir_moves_wait_step(&fs->moves, now);
        now = dir_moves_ended(&fs->moves);
        moved = true;
    }
    return moved && !caller_stopped(who);
}

int fs_find_inode(struct fs *fs, struct caller *who, struct inode *in, enum read_from from,
                  struct found *out)
{
    struct buf key = {0};
    uint64_t n_ended;
    int err;

    do {
        n_ended = dir_moves_ended(&fs->moves);
        buf_clear(&key);
        err = inode_last_key(fs->inodes, in, &key);
        if (err == 0 && in->kind == INODE_DIR)
            err = find_dir(fs, who, in, buf_span(&key), from, out);
        else if (err == 0)
            err = find_file(fs, who, in, buf_span(&key), from, out);
    } while (err == -ENOENT && fs_has_moved(fs, who, in, n_ended));
    buf_fini(&key);
    return err;
}

int fs_renew_dir(struct fs *fs, struct caller *who, struct inode *in)
{
    struct found found;

    if (in->id == INODE_ROOT || !follow_is_named(fs->follow, in) || inode_is_gone(fs->inodes, in) ||
        follow_recall(fs->follow, in, &found))
        return 0;
    return fs_find_inode(fs, who, in, READ_MAJORITY, &found);
}

int fs_check_dir(struct fs *fs, struct caller *who, struct inode *dir)
{
    return fs_renew_dir(fs, who, dir) == -ENOENT ? -ESTALE : 0; /* other errors come again */
}

/* Is the first thing on the way up from this prefix a file (a symlink, perhaps)? */
static bool is_replaced(struct fs *fs, struct caller *who, struct span prefix)
{
    struct found found;
    int err = -ENOENT;

    while (prefix.len > 0 && err == -ENOENT) {
        if (prefix.data[--prefix.len] == '/')
            err = key_find_shown(fs, who, prefix, READ_MAJORITY, &found);
    }
    return err == 0 && found.kind == INODE_FILE;
}

/* (That a directory is gone is not enough: who is about to make something in it gets the error of
 * the lookup from the kernel, which walks the path again only for the next step's.) */
int fs_missed(struct fs *fs, struct caller *who, struct inode *dir)
{
    struct buf prefix = {0};
    int err = -ENOENT;

    if (fs_renew_dir(fs, who, dir) == -ENOENT && inode_key(fs->inodes, dir, &prefix) == 0 &&
        is_replaced(fs, who, buf_span(&prefix)))
        err = -ESTALE;
    buf_fini(&prefix);
    return err;
}

/* --- what the kernel may believe ----------------------------------------------------------- */

void fs_hold_name(struct fs *fs, const struct found *found, const struct follow_mark *mark,
                  struct fs_entry *e)
{
    struct inode *in = inode_get(fs->inodes, e->id);
    struct found now;

    if (in == NULL)
        return;
    if (found->followed && follow_recall(fs->follow, in, &now) && follow_holds(fs->follow, mark)) {
        e->name_holds = true;
        follow_set_named(fs->follow, in, FS_NAME_TIMEOUT_S);
    } else if (in->kind == INODE_DIR && follow_is_live(fs->follow)) {
        follow_set_named(fs->follow, in, FS_DIR_NAME_TIMEOUT_S);
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
        fs_show(fs, in, &found, &now);
        holds = memcmp(&now, st, sizeof(now)) == 0;
    }
    inode_put(fs->inodes, in);
    return holds;
}

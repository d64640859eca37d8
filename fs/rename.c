/*
 * rename.c - names moved: files; rename_dir.c moves directories, move.c one key.
 *
 * Of several who move one key at the same time, exactly one gets it; the others end with -ENOENT.
 */
#include "fs/core.h"

#include <errno.h>
#include <string.h>

#include "fs/dirtime.h"
#include "fs/file.h"
#include "fs/move.h"

/* --- a file ----------------------------------------------------------------------------------- */

/*
 * Holds both names' open files, where they are, in the order of their ids: the one order in which
 * anybody holds more than one.
 */
static int hold_two(struct caller *who, struct file *a, struct file *b)
{
    bool swap = a != NULL && b != NULL && a->inode->id > b->inode->id;
    struct file *first = swap ? b : a, *second = swap ? a : b;
    int err = first != NULL ? file_hold(who, first) : 0;

    if (err == 0 && second != NULL) {
        err = file_hold(who, second);
        if (err < 0 && first != NULL)
            file_unhold(first);
    }
    return err;
}

static int rename_file(struct fs *fs, struct caller *who, const struct name *from,
                       const struct name *to, bool noreplace)
{
    struct span old = buf_span(&from->file), new = buf_span(&to->file);
    struct file *moved, *replaced;
    struct moved versions;
    int err;

    if (span_eq(old, new)) /* a file under its plain name, and under that which a directory hid */
        return 0;
    moved = fs_file_of_key(fs, old);
    replaced = fs_file_of_key(fs, new);
    err = to->file_err == 0 ? dir_keep(fs, who, from->dir) : to->file_err;
    if (err == 0 && moved != NULL)
        err = file_store(fs, who, moved); /* so that the record which moves is what is seen here */
    if (err == -ESTALE)
        err = 0; /* that is another's file now, which moves all the same */
    if (err == 0)
        err = hold_two(who, moved, replaced);
    if (err < 0) {
        file_put(fs, moved);
        file_put(fs, replaced);
        return err;
    }
    if (replaced != NULL && noreplace && file_pending(replaced))
        err = -EEXIST;
    else if (replaced != NULL) /* who has it open goes on with what was there */
        err = file_load_held(fs, who, replaced);
    if (err == 0)
        err = key_move(fs, who, old, new, BALLOT_NONE,
                       noreplace ? MOVE_OVER_NOTHING : MOVE_OVER_ANY, &versions);
    if (err == 0)
        err = inode_move(fs->inodes, old, new, INODE_FILE);
    if (err == 0 && moved != NULL)
        file_moved(moved, versions.from, versions.to);
    fs_unhold(fs, moved);
    fs_unhold(fs, replaced);
    return err;
}

/* --- either ----------------------------------------------------------------------------------- */

static int rename_names(struct fs *fs, struct caller *who, const struct name *from,
                        const struct name *to, bool noreplace, bool same_name)
{
    struct found source, target;
    int err = fs_find_again(fs, who, from, &source);
    int there;

    if (err < 0)
        return err;
    if (source.kind == INODE_DIR && same_name) {
        err = fs_rename_is_resumed(fs, who, from, to);
        if (err > 0)
            return fs_rename_dir(fs, who, from->dir, buf_span(&from->subdir), buf_span(&to->prefix),
                                 false, true);
        if (err < 0)
            return err;
    }
    there = fs_find_again(fs, who, to, &target);
    if (there < 0 && there != -ENOENT)
        return there;
    if (there == 0 && noreplace)
        return -EEXIST;
    if (there == 0 && source.kind != target.kind)
        return source.kind == INODE_DIR ? -ENOTDIR : -EISDIR;
    if (source.kind == INODE_DIR && to->subdir_err < 0)
        return to->subdir_err;
    if (source.kind == INODE_DIR)
        return fs_rename_dir(fs, who, from->dir, buf_span(&from->subdir), buf_span(&to->subdir),
                             noreplace, false);
    return rename_file(fs, who, from, to, noreplace);
}

int fs_rename(struct fs *fs, struct caller *who, uint64_t parent, const char *text,
              uint64_t new_parent, const char *new_text, bool noreplace)
{
    struct name from, to;
    bool same_name;
    int err = names_resolve(fs, who, parent, text, &from, new_parent, new_text, &to);

    if (err < 0)
        return err;
    same_name = strcmp(text, new_text) == 0;
    err = fs_check_dir(fs, who, to.dir);
    if (err == 0 && (from.dir != to.dir || !same_name))
        err = rename_names(fs, who, &from, &to, noreplace, same_name);
    if (err == 0) {
        dirtime_touch(fs, from.dir);
        dirtime_touch(fs, to.dir);
    }
    name_fini(fs, &to);
    name_fini(fs, &from);
    return err;
}

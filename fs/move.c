/* move.c - one key moved to another name: copied, then deleted. */
#include "fs/move.h"

#include <errno.h>

#define TRIES_LIMIT_US 10000000u /* for one key that others keep writing */

struct copy {
    const struct record *rec; /* what is copied */
    struct value value;
    enum move_over over;
    const struct record *mine; /* what an earlier try stored; version none: none did */
    bool dir;                  /* it is the marker of one */
    bool replaced;             /* by the last try: something that is not mine */
};

/* The same file with the same contents, which nobody has touched since it was copied. (Making
 * something in a directory moves its times, but makes no other of it.) */
static bool is_copy(const struct record *a, const struct record *b, bool dir)
{
    bool same_times = a->mtime_ns == b->mtime_ns && a->ctime_ns == b->ctime_ns;

    return a->size == b->size && a->mode == b->mode && a->uid == b->uid && a->gid == b->gid &&
           a->rdev == b->rdev && (same_times || (dir && a->rdev != 0)) &&
           span_eq(a->attrs, b->attrs) && span_eq(a->sums, b->sums);
}

static int copy_edit(void *ctx, const struct record *cur, struct value cur_value,
                     struct draft *next)
{
    struct copy *c = (struct copy *)ctx;
    bool live = record_is_live(cur);
    bool other = live && !record_same_write(c->mine, cur);
    bool same = live && is_copy(c->rec, cur, c->dir);

    (void)cur_value;
    if (other && (c->over == MOVE_OVER_NOTHING || (c->over == MOVE_OVER_COPY && !same)))
        return -EEXIST;
    c->replaced = other;
    next->rec.mode = c->rec->mode;
    next->rec.uid = c->rec->uid;
    next->rec.gid = c->rec->gid;
    next->rec.rdev = c->rec->rdev;
    next->rec.mtime_ns = c->rec->mtime_ns;
    next->rec.atime_ns = c->rec->atime_ns;
    /* What is in a directory that moves does not change by that. */
    next->rec.ctime_ns = c->over == MOVE_OVER_COPY ? c->rec->ctime_ns : attr_now_ns();
    if (c->dir && same && cur->ctime_ns > c->rec->ctime_ns) {
        next->rec.mtime_ns = cur->mtime_ns;
        next->rec.ctime_ns = cur->ctime_ns;
    }
    next->rec.attrs = c->rec->attrs;
    /* Also a copy that is there is stored anew: it is ours from now on, and who made it keeps his
     * hands off it, see give_up(). */
    next->same_value = same;
    if (!same)
        next->value = value_ref(c->value);
    return 0;
}

/* Reads what is to be moved. */
static int read_source(struct fs *fs, struct caller *who, struct span from, struct ballot version,
                       struct read_result *out)
{
    struct read_args args = {.key = from, .want_value = true, .length = READ_ALL, .pin = version};
    int err = core_read(fs, who, &args, out);

    if (err == -ESTALE && !ballot_is_none(version)) {
        read_result_fini(out);
        *out = (struct read_result){0};
        args.pin = BALLOT_NONE;
        err = core_read(fs, who, &args, out);
    }
    return err == 0 && !record_is_live(&out->rec.rec) ? -ENOENT : err;
}

/* Copies; *copied: what was read, *mine: what was stored, *replaced: something else was there. */
static int copy_key(struct fs *fs, struct caller *who, struct span from, struct span to,
                    struct ballot version, enum move_over over, struct record_copy *copied,
                    struct record_copy *mine, bool *replaced)
{
    struct read_result got = {0};
    struct write_result put = {0};
    int err = read_source(fs, who, from, version, &got);

    if (err == 0) {
        struct copy c = {.rec = &got.rec.rec,
                         .value = got.value,
                         .over = over,
                         .mine = &mine->rec,
                         .dir = from.len > 0 && from.data[from.len - 1] == '/'};
        struct write_args write = {
            .key = to, .edit = copy_edit, .ctx = &c, .size_hint = got.value.len};

        err = core_write(fs, who, &write, &put);
        if (err == 0) {
            *replaced = *replaced || c.replaced;
            record_copy_fini(copied);
            record_copy_fini(mine);
            *copied = got.rec;
            got.rec = (struct record_copy){0};
            if (put.rec_is != WRITE_SUPERSEDED) { /* else nothing there is ours any more */
                *mine = put.rec;
                put.rec = (struct record_copy){0};
            }
        }
    }
    write_result_fini(&put);
    read_result_fini(&got);
    return err;
}

/*
 * Somebody else moved or deleted the key while we copied it, so it is not ours to move: our copy
 * goes again, if it still is ours. Where it replaced something that cannot be brought back: both
 * have it.
 */
static int give_up(struct fs *fs, struct caller *who, struct span to, const struct record *mine,
                   bool replaced)
{
    int err = replaced ? -ECANCELED : key_delete(fs, who, to, mine);

    if (err == -ECANCELED) /* others have gone on with it */
        return 0;
    return err == 0 ? -ENOENT : err;
}

int key_move(struct fs *fs, struct caller *who, struct span from, struct span to,
             struct ballot version, enum move_over over, struct moved *out)
{
    struct record_copy copied = {0}, mine = {0};
    uint64_t until_us = core_now_us() + TRIES_LIMIT_US;
    bool replaced = false;
    int err;

    do {
        err = copy_key(fs, who, from, to, version, over, &copied, &mine, &replaced);
        if (err == 0)
            err = key_delete(fs, who, from, &copied.rec);
        if (err == -ENOENT && !ballot_is_none(mine.rec.version))
            err = give_up(fs, who, to, &mine.rec, replaced);
        version = BALLOT_NONE;
    } while (err == -ECANCELED && core_now_us() < until_us); /* written meanwhile: once more */
    if (err == 0)
        *out = (struct moved){copied.rec.version, mine.rec.version};
    record_copy_fini(&copied);
    record_copy_fini(&mine);
    return err == -ECANCELED ? -EBUSY : err;
}

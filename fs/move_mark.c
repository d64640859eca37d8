/* move_mark.c - what the marker of a directory tells of its move. */
#include "fs/move_mark.h"

#include <errno.h>

#include "common/limits.h"

#define TRIES_MAX 16
#define ATTR_OVERHEAD 16u /* an attribute takes a few bytes beside its name and value */

/* --- reading ---------------------------------------------------------------------------------- */

static int read_marker(struct fs *fs, struct caller *who, struct span prefix,
                       struct record_copy *out)
{
    struct read_args args = {.key = prefix};
    struct read_result res = {0};
    int err = core_read(fs, who, &args, &res);

    if (err == 0) {
        record_copy_fini(out);
        *out = res.rec;
        res.rec = (struct record_copy){0};
    }
    read_result_fini(&res);
    return err;
}

/* Whose number and name a marker tells: false: none's. from borrows from it. */
static bool moving_of(const struct record *marker, uint64_t *number, struct span *from)
{
    struct span value;
    struct cursor c;

    if (!record_is_live(marker) ||
        attr_find(marker->attrs, ATTR_XATTR, span_str(MOVE_ATTR), &value) < 0)
        return false;
    c = cursor_of(value);
    *number = cursor_u64(&c);
    *from = cursor_bytes(&c, cursor_left(&c));
    return c.err == 0;
}

static bool is_rest_of(const struct record *marker, uint64_t number)
{
    struct span from;
    uint64_t told;

    return moving_of(marker, &told, &from) && told == number;
}

/* Does another directory still move into the one that has this marker? 1, 0, or an error. */
static int is_taken(struct fs *fs, struct caller *who, const struct record *marker)
{
    struct record_copy source = {0};
    struct span from;
    uint64_t number;
    int err;

    if (!moving_of(marker, &number, &from))
        return 0;
    err = read_marker(fs, who, from, &source);
    if (err == 0)
        err = record_is_live(&source.rec) && source.rec.rdev == number;
    record_copy_fini(&source);
    return err;
}

int move_mark_is_rest(struct fs *fs, struct caller *who, struct span from, struct span to)
{
    struct record_copy marker = {0}, source = {0};
    int err = read_marker(fs, who, to, &marker);
    struct span told;
    uint64_t number;

    if (err == 0 && moving_of(&marker.rec, &number, &told)) {
        err = read_marker(fs, who, from, &source);
        if (err == 0)
            err = record_is_live(&source.rec) && source.rec.rdev == number;
    }
    record_copy_fini(&source);
    record_copy_fini(&marker);
    return err;
}

/* --- the old name ----------------------------------------------------------------------------- */

static int number_edit(void *ctx, const struct record *cur, struct value cur_value,
                       struct draft *next)
{
    const struct fs *fs = (const struct fs *)ctx;
    struct meta m = record_is_live(cur) ? meta_of_record(&fs->defaults, cur, true)
                                        : meta_of_implicit_dir(&fs->defaults, attr_now_ns());
    uint64_t number = meta_new(m.mode, 0, m.uid, m.gid, 0).ino;

    (void)cur_value;
    if (record_is_live(cur) && cur->rdev != 0)
        return -EALREADY;
    if (number == 0)
        return -EIO; /* no random numbers */
    m.ino = number;
    next->same_value = record_is_live(cur);
    if (next->same_value) {
        next->rec.rdev = number;
    } else {
        meta_to_record(&m, &next->rec);
        next->rec.attrs = span_of(NULL, 0);
    }
    return 0;
}

int move_mark_source(struct fs *fs, struct caller *who, struct span from, struct record_copy *out)
{
    struct write_args args = {.key = from, .edit = number_edit, .ctx = fs};
    int err = read_marker(fs, who, from, out);

    while (err == 0 && (!record_is_live(&out->rec) || out->rec.rdev == 0)) {
        struct write_result res = {0};

        err = core_write(fs, who, &args, &res);
        write_result_fini(&res);
        if (err == 0 || err == -EALREADY)
            err = read_marker(fs, who, from, out);
    }
    return err;
}

/* --- the new name ----------------------------------------------------------------------------- */

/* All attributes but that of a move. */
static int other_attrs(struct span list, struct buf *out)
{
    struct span name, value;
    enum attr_kind kind;
    size_t pos = 0;
    int err;

    while ((err = attr_next(list, &pos, &kind, &name, &value)) > 0) {
        if (kind != ATTR_XATTR || !span_eq(name, span_str(MOVE_ATTR)))
            attr_add(out, kind, name, value);
    }
    return err < 0 ? err : out->err;
}

struct claim {
    const struct record *source;
    const struct record *there; /* what is to be replaced: this, or if it is not live, nothing */
    struct span attrs;
};

static int claim_edit(void *ctx, const struct record *cur, struct value cur_value,
                      struct draft *next)
{
    const struct claim *c = (const struct claim *)ctx;

    (void)cur_value;
    if (record_is_live(cur) != record_is_live(c->there) ||
        (record_is_live(cur) && !record_same_write(cur, c->there)))
        return -ECANCELED;
    next->rec.mode = c->source->mode;
    next->rec.uid = c->source->uid;
    next->rec.gid = c->source->gid;
    next->rec.rdev = 0; /* two directories of one number would be taken for one by programs */
    next->rec.mtime_ns = c->source->mtime_ns;
    next->rec.atime_ns = c->source->atime_ns;
    next->rec.ctime_ns = attr_now_ns();
    next->rec.attrs = c->attrs;
    return 0;
}

static int claim(struct fs *fs, struct caller *who, struct span from, struct span to,
                 const struct record *source, const struct record *there)
{
    struct claim c = {.source = source, .there = there};
    struct write_args args = {.key = to, .edit = claim_edit, .ctx = &c};
    struct buf attrs = {0}, told = {0};
    struct write_result res = {0};
    int err = other_attrs(source->attrs, &attrs);

    buf_u64(&told, source->rdev);
    buf_add_span(&told, from);
    if (err == 0)
        err = told.err;
    if (err == 0 && attrs.len + told.len + sizeof(MOVE_ATTR) + ATTR_OVERHEAD > ATTRS_LEN_MAX)
        err = -ENOSPC;
    if (err == 0) {
        attr_add(&attrs, ATTR_XATTR, span_str(MOVE_ATTR), buf_span(&told));
        err = attrs.err;
    }
    c.attrs = buf_span(&attrs);
    if (err == 0)
        err = core_write(fs, who, &args, &res);
    write_result_fini(&res);
    buf_fini(&told);
    buf_fini(&attrs);
    return err;
}

/* One look at what is there, and the claim to it. -ECANCELED: it has changed since the look. */
static int mark_target_once(struct fs *fs, struct caller *who, struct span from, struct span to,
                            const struct record *source, bool noreplace)
{
    struct record_copy there = {0};
    int err = read_marker(fs, who, to, &there);

    if (err == 0 && is_rest_of(&there.rec, source->rdev))
        goto out;
    if (err == 0)
        err = is_taken(fs, who, &there.rec);
    if (err > 0)
        err = -ENOTEMPTY;
    if (err == 0)
        err = fs_check_empty(fs, who, to);
    if (err == 0 && noreplace)
        err = -EEXIST;
    if (err == 0 || err == -ENOENT)
        err = claim(fs, who, from, to, source, &there.rec);
out:
    record_copy_fini(&there);
    return err;
}

int move_mark_target(struct fs *fs, struct caller *who, struct span from, struct span to,
                     const struct record *source, bool noreplace)
{
    int err = -ECANCELED;

    for (int i = 0; i < TRIES_MAX && err == -ECANCELED; i++)
        err = mark_target_once(fs, who, from, to, source, noreplace);
    return err == -ECANCELED ? -EBUSY : err;
}

struct arrival {
    const struct record *source;
    struct buf attrs; /* of the last try */
};

static int arrival_edit(void *ctx, const struct record *cur, struct value cur_value,
                        struct draft *next)
{
    struct arrival *a = (struct arrival *)ctx;
    int err;

    (void)cur_value;
    if (!is_rest_of(cur, a->source->rdev))
        return -EALREADY;
    buf_clear(&a->attrs);
    err = other_attrs(cur->attrs, &a->attrs);
    next->rec.attrs = buf_span(&a->attrs);
    next->rec.rdev = a->source->rdev;
    next->same_value = true;
    return err;
}

int move_mark_done(struct fs *fs, struct caller *who, struct span to, const struct record *source)
{
    struct arrival a = {.source = source};
    struct write_args args = {.key = to, .edit = arrival_edit, .ctx = &a};
    struct write_result res = {0};
    int err = core_write(fs, who, &args, &res);

    write_result_fini(&res);
    buf_fini(&a.attrs);
    return err == -EALREADY ? 0 : err;
}

/* names.c - names in directories, as keys, and what the cluster has under them. */
#include "fs/core.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/health.h"
#include "common/keypath.h"
#include "fs/control.h"

#define HAS_DIR_MS 500u

/* --- names ------------------------------------------------------------------------------------ */

static void name_free(struct fs *fs, struct name *n)
{
    inode_put(fs->inodes, n->dir);
    buf_fini(&n->prefix);
    buf_fini(&n->file);
    buf_fini(&n->subdir);
    *n = (struct name){0};
}

/* As it is called just now. */
static int name_keys(struct fs *fs, uint64_t parent, const char *text, struct name *out)
{
    struct span name = span_str(text);
    int err;

    *out = (struct name){0};
    if (control_has(parent) || control_is_name(parent, text))
        return -EROFS;

    *out = (struct name){.dir = inode_get(fs->inodes, parent)};
    err = out->dir == NULL ? -ENOENT : inode_key(fs->inodes, out->dir, &out->prefix);
    if (err == 0) {
        int file = key_of_name(&out->file, buf_span(&out->prefix), name, false);
        int dir = key_of_name(&out->subdir, buf_span(&out->prefix), name, true);

        if (file < 0 && dir < 0)
            err = file == -ENAMETOOLONG || dir == -ENAMETOOLONG ? -ENAMETOOLONG : file;
        if (file == -ENOMEM || dir == -ENOMEM)
            err = -ENOMEM;
        out->file_err = file;
        out->subdir_err = dir;
    }
    if (err < 0)
        name_free(fs, out);
    return err;
}

bool fs_may_enter_again(struct fs *fs, struct caller *who, uint64_t n_ended, int *err)
{
    if (*err == -EBUSY)
        dir_moves_wait_step(&fs->moves, n_ended);
    if ((*err == -EBUSY || *err == -EAGAIN) && caller_stopped(who))
        *err = -EINTR;
    return *err == -EBUSY || *err == -EAGAIN;
}

int name_resolve(struct fs *fs, struct caller *who, uint64_t parent, const char *text,
                 struct name *out)
{
    uint64_t n_ended;
    int err;

    do {
        n_ended = dir_moves_ended(&fs->moves);
        err = name_keys(fs, parent, text, out);
        if (err < 0)
            return err;
        out->use.prefix = buf_span(&out->prefix);
        err = dir_moves_enter(&fs->moves, n_ended, &out->use, NULL);
        if (err < 0)
            name_free(fs, out);
    } while (fs_may_enter_again(fs, who, n_ended, &err));
    return err;
}

int names_resolve(struct fs *fs, struct caller *who, uint64_t parent, const char *text,
                  struct name *from, uint64_t to_parent, const char *to_text, struct name *to)
{
    uint64_t n_ended;
    int err;

    do {
        n_ended = dir_moves_ended(&fs->moves);
        err = name_keys(fs, parent, text, from);
        if (err < 0)
            return err == -EINVAL ? -ENOENT : err;
        err = name_keys(fs, to_parent, to_text, to);
        if (err < 0) {
            name_free(fs, from);
            return err;
        }
        from->use.prefix = buf_span(&from->prefix);
        to->use.prefix = buf_span(&to->prefix);
        err = dir_moves_enter(&fs->moves, n_ended, &from->use, &to->use);
        if (err < 0) {
            name_free(fs, to);
            name_free(fs, from);
        }
    } while (fs_may_enter_again(fs, who, n_ended, &err));
    return err;
}

void name_fini(struct fs *fs, struct name *n)
{
    dir_moves_leave(&fs->moves, &n->use);
    name_free(fs, n);
}

int key_enter(struct fs *fs, struct caller *who, struct inode *in, struct key_use *out)
{
    uint64_t n_ended;
    int err;

    *out = (struct key_use){0};
    do {
        n_ended = dir_moves_ended(&fs->moves);
        buf_clear(&out->key);
        err = inode_key(fs->inodes, in, &out->key);
        if (err < 0)
            return err;
        out->use.prefix = buf_span(&out->key);
        err = dir_moves_enter(&fs->moves, n_ended, &out->use, NULL);
    } while (fs_may_enter_again(fs, who, n_ended, &err));
    out->entered = err == 0;
    return err;
}

void key_leave(struct fs *fs, struct key_use *k)
{
    if (k->entered)
        dir_moves_leave(&fs->moves, &k->use);
    buf_fini(&k->key);
    k->entered = false;
}

/* --- finding ---------------------------------------------------------------------------------- */

/* The directory that a key or prefix below it proves; marker: that key is the directory's own. */
static struct found found_dir(struct fs *fs, const struct entry *e, bool marker, bool shadows)
{
    struct found f = {.kind = INODE_DIR, .has_marker = marker, .shadows = shadows};

    if (marker)
        f.version = e->version;
    f.meta = marker ? meta_of_entry(&fs->defaults, e, true)
                    : meta_of_implicit_dir(&fs->defaults, e->mtime_ns);
    return f;
}

/* The key that the directory `prefix` hides and that tells of it in one read: the prefix without
 * its '/'; false: there is none. */
static bool beside(struct span prefix, struct span *key)
{
    *key = prefix;
    if (prefix.len < 2 || prefix.data[prefix.len - 1] != '/')
        return false;
    key->len--;
    return true;
}

/* One read of `key` finds the file, the directory key + "/", or both; the directory wins where it
 * may. */
static int find_both(struct fs *fs, struct caller *who, const struct read_args *args,
                     bool want_file, struct found *out)
{
    struct span key = args->key;
    struct read_result res = {0};
    int err = core_read(fs, who, args, &res);
    bool live;

    if (err < 0)
        goto out;
    live = record_is_live(&res.rec.rec);
    if (res.has_child) {
        /* A key that ends in '/' is a marker itself, and nothing that could be shown as a file. */
        *out = found_dir(fs, &res.child, res.child.key.len == key.len + 1,
                         live && key.data[key.len - 1] != '/');
        out->has_marker = out->has_marker && !res.lone;
        out->followed = res.followed;
        out->lone = res.lone;
    } else if (live && want_file) {
        *out = (struct found){.kind = INODE_FILE,
                              .meta = meta_of_record(&fs->defaults, &res.rec.rec, false),
                              .version = res.rec.rec.version,
                              .followed = res.followed,
                              .lone = res.lone};
    } else {
        err = -ENOENT;
    }
out:
    read_result_fini(&res);
    return err;
}

int key_find_file(struct fs *fs, struct caller *who, struct span key, enum read_from from,
                  struct ballot at_least, struct found *out)
{
    struct read_args args = {.key = key, .from = from, .at_least = at_least};

    return find_both(fs, who, &args, true, out);
}

int key_find_shown(struct fs *fs, struct caller *who, struct span key, enum read_from from,
                   struct found *out)
{
    struct read_args args = {.key = key, .peek = true, .from = from};

    return find_both(fs, who, &args, true, out);
}

/* A directory that no single key stands beside: is anything listed below its prefix? */
static int find_by_listing(struct fs *fs, struct caller *who, struct span prefix, struct found *out)
{
    struct list_args args = {.prefix = prefix, .limit = 1};
    struct list_result res = {0};
    struct entry e;
    int err = core_list(fs, who, &args, &res);

    if (err == 0) {
        struct cursor c = cursor_of(buf_span(&res.entries));
        int got = entry_next(&c, &e);

        err = got < 0 ? got : got == 0 ? -ENOENT : 0;
        if (err == 0) {
            *out = found_dir(fs, &e, e.key.len == prefix.len && prefix.data[prefix.len - 1] == '/',
                             false);
            out->followed = res.followed;
        }
    }
    list_result_fini(&res);
    return err;
}

int key_find_dir(struct fs *fs, struct caller *who, struct span prefix, enum read_from from,
                 struct found *out)
{
    struct read_args args = {.peek = true, .from = from};

    if (beside(prefix, &args.key))
        return find_both(fs, who, &args, false, out);
    return find_by_listing(fs, who, prefix, out);
}

/* Could a read that asks all be answered now? */
static bool all_are_reachable(struct fs *fs)
{
    const struct config *cfg = cluster_config(fs->cluster);
    bool *up = calloc(cfg->n_nodes, sizeof(*up)), covered;

    if (up == NULL)
        return false;
    for (unsigned i = 0; i < cfg->n_nodes; i++)
        up[i] = health_fit(cluster_health(fs->cluster), i);
    covered = ring_covered(cfg->ring, up);
    free(up);
    return covered;
}

int fs_has_dir(struct fs *fs, struct caller *who, struct span prefix)
{
    struct inode *in = inode_find(fs->inodes, prefix, INODE_DIR);
    struct read_args args = {.peek = true, .timeout_ms = HAS_DIR_MS};
    struct read_result res = {0};
    int err;

    inode_put(fs->inodes, in);
    if (in != NULL)
        return 1;
    if (!beside(prefix, &args.key))
        return -EINVAL;
    if (!all_are_reachable(fs))
        return -EHOSTDOWN;
    err = core_read(fs, who, &args, &res);
    if (err == 0)
        err = res.has_child ? 1 : 0;
    read_result_fini(&res);
    return err;
}

int name_find(struct fs *fs, struct caller *who, const struct name *n, enum read_from from,
              struct found *out)
{
    struct read_args args = {.key = buf_span(&n->file), .peek = n->subdir.len > 0, .from = from};

    if (n->file.len == 0)
        return key_find_dir(fs, who, buf_span(&n->subdir), from, out);
    return find_both(fs, who, &args, true, out);
}

/* --- making and removing ---------------------------------------------------------------------- */

struct creation {
    const struct meta *meta;
    struct span value;
};

static int create_edit(void *ctx, const struct record *cur, struct value cur_value,
                       struct draft *next)
{
    const struct creation *c = (const struct creation *)ctx;

    (void)cur_value;
    if (record_is_live(cur))
        return -EEXIST;
    meta_to_record(c->meta, &next->rec);
    next->rec.attrs = span_of(NULL, 0);
    return value_copy(c->value, &next->value);
}

int key_create(struct fs *fs, struct caller *who, struct span key, const struct meta *m,
               struct span value, struct ballot *version)
{
    struct creation c = {.meta = m, .value = value};
    struct write_args args = {.key = key, .edit = create_edit, .ctx = &c, .size_hint = value.len};
    struct write_result res = {0};
    int err = core_write(fs, who, &args, &res);

    if (err == 0 && version != NULL)
        *version = write_version(&res);
    write_result_fini(&res);
    return err;
}

struct deletion {
    const struct record *only;
    struct record_copy *taken; /* by the last try; NULL: not wanted */
};

static int delete_edit(void *ctx, const struct record *cur, struct value cur_value,
                       struct draft *next)
{
    const struct deletion *d = (const struct deletion *)ctx;

    (void)cur_value;
    if (!record_is_live(cur))
        return -ENOENT;
    if (d->only != NULL && !record_same_write(d->only, cur))
        return -ECANCELED;
    next->rec = (struct record){.flags = RECORD_TOMBSTONE};
    if (d->taken == NULL)
        return 0;
    record_copy_fini(d->taken);
    return record_copy(cur, d->taken);
}

static int delete_key(struct fs *fs, struct caller *who, struct span key, struct deletion *d)
{
    struct write_args args = {.key = key, .edit = delete_edit, .ctx = d};
    struct write_result res = {0};
    int err = core_write(fs, who, &args, &res);

    write_result_fini(&res);
    return err;
}

int key_delete(struct fs *fs, struct caller *who, struct span key, const struct record *only)
{
    return delete_key(fs, who, key, &(struct deletion){.only = only});
}

int marker_take(struct fs *fs, struct caller *who, struct span prefix, struct record_copy *taken)
{
    return delete_key(fs, who, prefix, &(struct deletion){.taken = taken});
}

static int give_back_edit(void *ctx, const struct record *cur, struct value cur_value,
                          struct draft *next)
{
    const struct record *taken = (const struct record *)ctx;

    (void)cur_value;
    if (record_is_live(cur))
        return -EEXIST;
    next->rec.mode = taken->mode;
    next->rec.uid = taken->uid;
    next->rec.gid = taken->gid;
    next->rec.rdev = taken->rdev;
    next->rec.mtime_ns = taken->mtime_ns;
    next->rec.ctime_ns = taken->ctime_ns;
    next->rec.atime_ns = taken->atime_ns;
    next->rec.attrs = taken->attrs;
    return 0;
}

int marker_give_back(struct fs *fs, struct caller *who, struct span prefix, struct record *taken)
{
    struct write_args args = {.key = prefix, .edit = give_back_edit, .ctx = taken};
    struct write_result res = {0};
    int err = core_write(fs, who, &args, &res);

    write_result_fini(&res);
    return err == -EEXIST ? 0 : err;
}

int dir_keep(struct fs *fs, struct caller *who, struct inode *dir)
{
    struct dir_facts facts = inode_dir_facts(fs->inodes, dir);
    struct buf prefix = {0};
    struct meta m;
    int err;

    if (facts.has_marker)
        return 0;
    err = inode_key(fs->inodes, dir, &prefix);
    if (err < 0 || prefix.data[prefix.len - 1] !=
                       '/') /* pieces of long names have no marker: they go with what is in them */
        goto out;
    m = meta_of_implicit_dir(&fs->defaults, attr_now_ns());
    err = key_create(fs, who, buf_span(&prefix), &m, span_of(NULL, 0), NULL);
    if (err == -EEXIST) { /* another mount was faster: its attributes come with the next lookup */
        m.mode = facts.mode;
        m.gid = facts.gid;
        err = 0;
    }
    if (err == 0)
        inode_set_dir(
            fs->inodes, dir,
            &(struct found){
                .kind = INODE_DIR, .meta = m, .has_marker = true, .shadows = facts.shadows});
out:
    buf_fini(&prefix);
    return err;
}

int dir_check_empty(struct fs *fs, struct caller *who, struct span prefix)
{
    struct list_args args = {.prefix = prefix, .limit = 2};
    struct list_result res = {0};
    struct entry e;
    unsigned n = 0;
    bool marker = false;
    int err = core_list(fs, who, &args, &res);

    if (err == 0) {
        struct cursor c = cursor_of(buf_span(&res.entries));
        int got;

        while ((got = entry_next(&c, &e)) > 0) {
            n++;
            marker = marker || e.key.len == prefix.len;
        }
        if (got < 0)
            err = got;
        else if (n == 0)
            err = -ENOENT;
        else if (n > 1 || !marker)
            err = -ENOTEMPTY;
    }
    list_result_fini(&res);
    return err;
}

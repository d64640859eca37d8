/*
 * control.c - the directory .kvfs in the root: what the mount tells of itself.
 *
 * A name below replicas/ may be the end of a key or the beginning of one. The kernel has to be told
 * which before it says whether more follows, and while the cluster does not answer nobody knows. So
 * it is called a directory then, through which any path leads. One that is opened not as a
 * directory was the end of a key: that is told with ESTALE, upon which the kernel looks the path up
 * again, for the same thread, and then it is a file.
 */
#include "fs/control.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/config.h"
#include "common/hash.h"
#include "common/keypath.h"
#include "fs/inode.h"
#include "fs/report.h"

/*
 * Ids: the highest bit, and either the next one and what it is (the fixed ones), or the id of an
 * inode table of our own, in which a file is a key that somebody asked for, and a directory the
 * prefix of some. Its root is replicas/.
 */
#define ID_BIT (1ull << 63)
#define FIXED_BIT (1ull << 62)

enum fixed { FIXED_TOP, FIXED_VERSION, FIXED_STATUS, FIXED_METRICS, FIXED_CONFIG, N_FIXED };

static const char *const fixed_names[N_FIXED] = {
    [FIXED_VERSION] = "version",
    [FIXED_STATUS] = "status",
    [FIXED_METRICS] = "metrics",
    [FIXED_CONFIG] = "config",
};
#define REPLICAS "replicas"
#define REPLICAS_ID (ID_BIT | INODE_ROOT)
#define DOTS 2u
#define N_WISHES 64u
#define WISH_US 1000000u

/* Somebody wants to read this, as a file. */
struct wish {
    pid_t pid;         /* 0: nothing */
    uint64_t what;     /* the hash of its prefix */
    uint64_t until_us; /* monotonic */
};

struct control {
    struct control_opts opts;
    pthread_mutex_t lock; /* of the next two */
    struct wish wishes[N_WISHES];
    unsigned next_wish;
    struct inode_table *keys; /* below replicas/ */
    int64_t since_ns;         /* when all of it was made */
    uint64_t since_us;        /* the same, monotonic */
};

int control_new(const struct control_opts *opts, struct control **out)
{
    struct control *c = calloc(1, sizeof(*c));
    int err = c != NULL ? inode_table_new(&c->keys) : -ENOMEM;

    if (err < 0) {
        free(c);
        return err;
    }
    c->opts = *opts;
    pthread_mutex_init(&c->lock, NULL);
    c->since_ns = attr_now_ns();
    c->since_us = clock_real()->mono_us(clock_real());
    *out = c;
    return 0;
}

void control_free(struct control *c)
{
    if (c == NULL)
        return;
    inode_table_free(c->keys);
    pthread_mutex_destroy(&c->lock);
    free(c);
}

bool control_is_name(uint64_t parent, const char *name)
{
    return parent == INODE_ROOT && strcmp(name, KEY_CONTROL) == 0;
}

/* --- what an id is ---------------------------------------------------------------------------- */

struct item {
    bool dir;
    bool fixed_id;    /* then: */
    enum fixed fixed; /* else: */
    struct buf path;  /* the key, or prefix, of what is below replicas/ */
};

/* *out is to be finished. */
static int find_item(struct control *c, uint64_t id, struct item *out)
{
    struct inode *in;
    int err;

    *out = (struct item){.fixed_id = (id & FIXED_BIT) != 0};
    if (out->fixed_id) {
        out->fixed = (enum fixed)(id & ~(ID_BIT | FIXED_BIT));
        out->dir = out->fixed == FIXED_TOP;
        return (unsigned)out->fixed < N_FIXED ? 0 : -ESTALE;
    }
    in = inode_get(c->keys, id & ~ID_BIT);
    if (in == NULL)
        return -ESTALE;
    out->dir = in->kind == INODE_DIR;
    err = inode_key(c->keys, in, &out->path);
    inode_put(c->keys, in);
    return err;
}

static void item_fini(struct item *it)
{
    buf_fini(&it->path);
}

static int make_text(struct control *c, const struct item *it, struct buf *out)
{
    const struct config *cfg = cluster_config(c->opts.cluster);
    struct report_source src = {.fs = c->opts.fs,
                                .cluster = c->opts.cluster,
                                .callers = c->opts.callers,
                                .metrics = c->opts.metrics,
                                .mountpoint = c->opts.mountpoint,
                                .since_us = c->since_us};

    if (!it->fixed_id)
        config_owners_json(cfg, buf_span(&it->path), out);
    else if (it->fixed == FIXED_VERSION)
        buf_add_str(out, KVFS_VERSION "\n");
    else if (it->fixed == FIXED_STATUS)
        report_status(&src, out);
    else if (it->fixed == FIXED_METRICS)
        report_metrics(&src, out);
    else
        config_json(cfg, out);
    return out->err;
}

static bool changes_always(const struct item *it)
{
    return it->fixed_id && (it->fixed == FIXED_STATUS || it->fixed == FIXED_METRICS);
}

/* The size of what changes all the time is told as 0, as in /proc: a program that believed another
 * would read too little. */
static int size_of(struct control *c, const struct item *it, uint64_t *out)
{
    struct buf text = {0};
    int err = 0;

    *out = 0;
    if (!it->dir && !changes_always(it)) {
        err = make_text(c, it, &text);
        *out = text.len;
    }
    buf_fini(&text);
    return err;
}

static uint64_t ino_of(const struct item *it)
{
    struct buf path = {0};
    uint64_t ino;

    buf_add_str(&path, KEY_CONTROL "/");
    if (!it->fixed_id)
        buf_add_str(&path, REPLICAS "/");
    else if (it->fixed != FIXED_TOP)
        buf_add_str(&path, fixed_names[it->fixed]);
    buf_add_span(&path, buf_span(&it->path));
    ino = attr_st_ino(buf_span(&path));
    buf_fini(&path);
    return ino;
}

static int stat_item(struct control *c, const struct item *it, struct stat *out)
{
    struct meta m = meta_new(it->dir ? S_IFDIR | 0555 : S_IFREG | 0444, 0, c->opts.defaults.uid,
                             c->opts.defaults.gid, c->since_ns);
    int err = size_of(c, it, &m.size);

    m.ino = ino_of(it);
    if (changes_always(it))
        m.mtime_ns = m.ctime_ns = attr_now_ns();
    if (err == 0)
        meta_to_stat(&m, m.ino, 1, out);
    return err;
}

/* --- wishes ----------------------------------------------------------------------------------- */

static void make_wish(struct control *c, struct caller *who, struct span prefix)
{
    pthread_mutex_lock(&c->lock);
    c->wishes[c->next_wish++ % N_WISHES] =
        (struct wish){who->pid, hash_fnv1a(prefix), clock_real()->mono_us(clock_real()) + WISH_US};
    pthread_mutex_unlock(&c->lock);
}

static bool has_wish(struct control *c, struct caller *who, struct span prefix)
{
    uint64_t now_us = clock_real()->mono_us(clock_real()), what = hash_fnv1a(prefix);
    bool found = false;

    pthread_mutex_lock(&c->lock);
    for (unsigned i = 0; i < N_WISHES && !found; i++)
        found = c->wishes[i].pid == who->pid && c->wishes[i].what == what &&
                c->wishes[i].until_us > now_us;
    pthread_mutex_unlock(&c->lock);
    return found;
}

/* --- names ------------------------------------------------------------------------------------ */

static int entry_of(struct control *c, uint64_t id, struct fs_entry *out)
{
    struct fs_entry e = {.id = id};
    struct item it;
    int err = find_item(c, id, &it);

    if (err == 0)
        err = stat_item(c, &it, &e.st);
    if (err == 0)
        *out = e;
    item_fini(&it);
    return err;
}

static int lookup_fixed(struct control *c, const char *name, struct fs_entry *out)
{
    for (unsigned i = FIXED_TOP + 1; i < N_FIXED; i++)
        if (strcmp(name, fixed_names[i]) == 0)
            return entry_of(c, ID_BIT | FIXED_BIT | i, out);
    return strcmp(name, REPLICAS) == 0 ? entry_of(c, REPLICAS_ID, out) : -ENOENT;
}

/* Shows as a directory what is one in the mount, and what may be one as far as anybody knows. */
static bool shows_as_dir(struct control *c, struct caller *who, struct span prefix)
{
    int got = fs_has_dir(c->opts.fs, who, prefix);

    return got > 0 || (got < 0 && !has_wish(c, who, prefix));
}

/* A name below replicas/. */
static int lookup_key(struct control *c, struct caller *who, uint64_t parent, const char *name,
                      struct fs_entry *out)
{
    struct buf file = {0}, subdir = {0};
    struct found found = {.kind = INODE_FILE};
    struct inode *in;
    struct item dir;
    int err = find_item(c, parent, &dir), err_file, err_dir;

    if (err == 0 && !dir.dir)
        err = -ENOTDIR;
    if (err < 0)
        goto out;
    err_file = key_of_name(&file, buf_span(&dir.path), span_str(name), false);
    err_dir = key_of_name(&subdir, buf_span(&dir.path), span_str(name), true);
    if (err_file < 0 && err_dir < 0) {
        err = err_file == -EINVAL ? -ENOENT : err_file;
        goto out;
    }
    if (err_file < 0 || (err_dir == 0 && shows_as_dir(c, who, buf_span(&subdir))))
        found.kind = INODE_DIR;
    err = inode_remember(c->keys, buf_span(found.kind == INODE_DIR ? &subdir : &file), &found,
                         inode_moves(c->keys), true, &in);
    if (err < 0)
        goto out;
    err = entry_of(c, ID_BIT | in->id, out);
    if (err < 0)
        inode_forget(c->keys, in->id, 1);
    inode_put(c->keys, in);
out:
    item_fini(&dir);
    buf_fini(&file);
    buf_fini(&subdir);
    return err;
}

int control_lookup(struct control *c, struct caller *who, uint64_t parent, const char *name,
                   struct fs_entry *out)
{
    if (control_is_name(parent, name))
        return entry_of(c, ID_BIT | FIXED_BIT | FIXED_TOP, out);
    if (parent == (ID_BIT | FIXED_BIT | FIXED_TOP))
        return lookup_fixed(c, name, out);
    return parent & FIXED_BIT ? -ENOTDIR : lookup_key(c, who, parent, name, out);
}

void control_forget(struct control *c, uint64_t id, uint64_t nlookup)
{
    if (!(id & FIXED_BIT) && id != REPLICAS_ID)
        inode_forget(c->keys, id & ~ID_BIT, nlookup);
}

int control_getattr(struct control *c, uint64_t id, struct stat *out)
{
    struct fs_entry e;
    int err = entry_of(c, id, &e);

    if (err == 0)
        *out = e.st;
    return err;
}

int control_access(struct control *c, uint64_t id, int mask)
{
    struct stat st;
    int err = control_getattr(c, id, &st);

    if (err == 0 && (mask & W_OK))
        err = -EROFS;
    if (err == 0 && (mask & X_OK) && !S_ISDIR(st.st_mode))
        err = -EACCES;
    return err;
}

/* --- contents --------------------------------------------------------------------------------- */

int control_open(struct control *c, uint64_t id, int flags, struct buf *out)
{
    struct item it;
    int err = find_item(c, id, &it);

    if (err == 0 && it.dir)
        err = -EISDIR;
    if (err == 0 && ((flags & O_ACCMODE) != O_RDONLY || (flags & O_TRUNC)))
        err = -EROFS;
    if (err == 0)
        err = make_text(c, &it, out);
    item_fini(&it);
    return err;
}

int control_opendir(struct control *c, struct caller *who, uint64_t id, int flags)
{
    struct item it;
    int err = find_item(c, id, &it);

    if (err == 0 && !it.dir)
        err = -ENOTDIR;
    if (err == 0 && it.path.len > 0 && !(flags & O_DIRECTORY) &&
        !has_wish(c, who, buf_span(&it.path))) {
        make_wish(c, who, buf_span(&it.path));
        err = -ESTALE;
    }
    item_fini(&it);
    return err;
}

int control_readdir(struct control *c, uint64_t id, uint64_t off, struct fs_dirent *out)
{
    bool top = id == (ID_BIT | FIXED_BIT | FIXED_TOP);
    struct fs_entry e;
    int err;

    *out = (struct fs_dirent){.next_off = off + 1, .dots = off < DOTS};
    if (off < DOTS) {
        out->name = off == 0 ? "." : "..";
        out->st.st_mode = S_IFDIR;
        return control_getattr(c, id, &out->st) == 0; /* of ".." it does not matter */
    }
    if (!top || off - DOTS >= N_FIXED)
        return 0;
    /* The fixed files, and replicas behind them. */
    out->name = off - DOTS + 1 < N_FIXED ? fixed_names[off - DOTS + 1] : REPLICAS;
    err = lookup_fixed(c, out->name, &e);
    out->st = e.st;
    return err < 0 ? err : 1;
}

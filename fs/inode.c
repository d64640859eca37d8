/* inode.c - the table of inodes: found by id and by key, in one critical section each. */
#include "fs/inode.h"

#include <assert.h>
#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "common/hash.h"
#include "fs/file.h"

#define BUCKETS_MIN 1024u
#define SHRINK_MIN 1024u   /* inodes, from which on it is worth it to give memory back */
#define MOVED_BUCKETS 256u /* a power of two */

struct inode_table {
    pthread_mutex_t lock; /* all of it, and the inodes' fields */
    struct inode **by_id, **by_key;
    size_t n_buckets; /* a power of two */
    size_t n_inodes;
    size_t n_peak; /* of n_inodes, since memory was last given back */
    uint64_t next_id;
    uint64_t moves;                            /* grows with every rename */
    uint64_t tree_moved, moved[MOVED_BUCKETS]; /* moves at the last one of a directory; of a file,
                                                  by the hash of its old and new key */
    struct list files;                         /* struct file, the open ones */
};

static size_t id_bucket(const struct inode_table *t, uint64_t id)
{
    return hash_fmix64(id) & (t->n_buckets - 1);
}

static size_t key_bucket(const struct inode_table *t, struct span key, enum inode_kind kind)
{
    return (hash_xxh3(key) + kind) & (t->n_buckets - 1);
}

static struct span key_of(const struct inode *in)
{
    return span_of(in->key, in->key_len);
}

static uint64_t *moved_bucket(struct inode_table *t, struct span key)
{
    return &t->moved[hash_xxh3(key) & (MOVED_BUCKETS - 1)];
}

/* --- chains ----------------------------------------------------------------------------------- */

static void chain_id_locked(struct inode_table *t, struct inode *in)
{
    struct inode **head = &t->by_id[id_bucket(t, in->id)];

    in->next_by_id = *head;
    *head = in;
}

static void chain_key_locked(struct inode_table *t, struct inode *in)
{
    struct inode **head = &t->by_key[key_bucket(t, key_of(in), in->kind)];

    in->next_by_key = *head;
    *head = in;
}

static void unchain_key_locked(struct inode_table *t, struct inode *in)
{
    struct inode **p = &t->by_key[key_bucket(t, key_of(in), in->kind)];

    while (*p != in)
        p = &(*p)->next_by_key;
    *p = in->next_by_key;
}

static struct inode *find_id_locked(struct inode_table *t, uint64_t id)
{
    struct inode *in = t->by_id[id_bucket(t, id)];

    while (in != NULL && in->id != id)
        in = in->next_by_id;
    return in;
}

static struct inode *find_key_locked(struct inode_table *t, struct span key, enum inode_kind kind)
{
    struct inode *in = t->by_key[key_bucket(t, key, kind)];

    while (in != NULL && (in->kind != kind || !span_eq(key_of(in), key)))
        in = in->next_by_key;
    return in;
}

/* Another number of buckets; when there is no memory, longer chains do as well. */
static void rehash_locked(struct inode_table *t, size_t n_buckets)
{
    size_t n_old = t->n_buckets;
    struct inode **old = t->by_id;
    struct inode **by_id = calloc(n_buckets, sizeof(*by_id));
    struct inode **by_key = calloc(n_buckets, sizeof(*by_key));

    if (by_id == NULL || by_key == NULL) {
        free(by_id);
        free(by_key);
        return;
    }
    free(t->by_key);
    t->by_id = by_id;
    t->by_key = by_key;
    t->n_buckets = n_buckets;
    for (size_t i = 0; i < n_old; i++) {
        struct inode *in = old[i], *next;

        for (; in != NULL; in = next) {
            next = in->next_by_id;
            chain_id_locked(t, in);
            if (!in->gone)
                chain_key_locked(t, in);
        }
    }
    free(old);
}

/* The kernel has forgotten most of many: their buckets go. True: so may what malloc() holds. */
static bool shrink_locked(struct inode_table *t)
{
    size_t n_buckets = t->n_buckets;

    if (t->n_peak < SHRINK_MIN || t->n_inodes > t->n_peak / 4)
        return false;
    t->n_peak = t->n_inodes;
    while (n_buckets > BUCKETS_MIN && n_buckets / 4 > t->n_inodes)
        n_buckets /= 2;
    if (n_buckets < t->n_buckets)
        rehash_locked(t, n_buckets);
    return true;
}

static struct inode *add_locked(struct inode_table *t, struct span key, enum inode_kind kind)
{
    struct inode *in = calloc(1, sizeof(*in));

    if (in == NULL)
        return NULL;
    in->key = (uint8_t *)malloc(key.len + 1); /* never 0 bytes: the root's key is empty */
    if (in->key == NULL) {
        free(in);
        return NULL;
    }
    if (key.len > 0)
        memcpy(in->key, key.data, key.len);
    in->key_len = key.len;
    in->kind = kind;
    in->id = t->next_id++;
    if (t->n_inodes >= t->n_buckets)
        rehash_locked(t, 2 * t->n_buckets);
    chain_id_locked(t, in);
    chain_key_locked(t, in);
    t->n_inodes++;
    if (t->n_peak < t->n_inodes)
        t->n_peak = t->n_inodes;
    return in;
}

static void release_locked(struct inode_table *t, struct inode *in)
{
    struct inode **p = &t->by_id[id_bucket(t, in->id)];

    if (in->refs > 0 || in->nlookup > 0)
        return;
    assert(in->file == NULL);
    while (*p != in)
        p = &(*p)->next_by_id;
    *p = in->next_by_id;
    if (!in->gone)
        unchain_key_locked(t, in);
    t->n_inodes--;
    free(in->key);
    free(in);
}

static void drop_locked(struct inode_table *t, struct inode *in)
{
    if (in->gone)
        return;
    unchain_key_locked(t, in);
    in->gone = true;
    in->seen.pid = 0;
}

/* --- table ------------------------------------------------------------------------------------ */

int inode_table_new(struct inode_table **out)
{
    struct inode_table *t = calloc(1, sizeof(*t));
    struct inode *root;

    if (t == NULL)
        return -ENOMEM;
    t->n_buckets = BUCKETS_MIN;
    t->by_id = calloc(t->n_buckets, sizeof(*t->by_id));
    t->by_key = calloc(t->n_buckets, sizeof(*t->by_key));
    t->next_id = INODE_ROOT;
    list_init(&t->files);
    pthread_mutex_init(&t->lock, NULL);
    root =
        t->by_id != NULL && t->by_key != NULL ? add_locked(t, span_of(NULL, 0), INODE_DIR) : NULL;
    if (root == NULL) {
        inode_table_free(t);
        return -ENOMEM;
    }
    root->nlookup = 1;       /* the kernel never forgets it */
    root->has_marker = true; /* nor does it go when it is empty */
    *out = t;
    return 0;
}

void inode_table_free(struct inode_table *t)
{
    if (t == NULL)
        return;
    for (size_t i = 0; t->by_id != NULL && i < t->n_buckets; i++) {
        struct inode *in = t->by_id[i], *next;

        for (; in != NULL; in = next) {
            next = in->next_by_id;
            free(in->key);
            free(in);
        }
    }
    free(t->by_id);
    free(t->by_key);
    pthread_mutex_destroy(&t->lock);
    free(t);
}

struct inode *inode_get(struct inode_table *t, uint64_t id)
{
    struct inode *in;

    pthread_mutex_lock(&t->lock);
    in = find_id_locked(t, id);
    if (in != NULL)
        in->refs++;
    pthread_mutex_unlock(&t->lock);
    return in;
}

struct inode *inode_find(struct inode_table *t, struct span key, enum inode_kind kind)
{
    struct inode *in;

    pthread_mutex_lock(&t->lock);
    in = find_key_locked(t, key, kind);
    if (in != NULL)
        in->refs++;
    pthread_mutex_unlock(&t->lock);
    return in;
}

struct inode *inode_ref(struct inode_table *t, struct inode *in)
{
    pthread_mutex_lock(&t->lock);
    in->refs++;
    pthread_mutex_unlock(&t->lock);
    return in;
}

void inode_put(struct inode_table *t, struct inode *in)
{
    if (in == NULL)
        return;
    pthread_mutex_lock(&t->lock);
    assert(in->refs > 0);
    in->refs--;
    release_locked(t, in);
    pthread_mutex_unlock(&t->lock);
}

static void set_dir_locked(struct inode *in, const struct found *found)
{
    in->has_marker = found->has_marker || in->id == INODE_ROOT;
    in->shadows = found->shadows;
    in->ino = found->meta.ino;
    in->mode = found->meta.mode;
    in->gid = found->meta.gid;
    in->mtime_ns = found->meta.mtime_ns;
    in->ctime_ns = found->meta.ctime_ns;
}

static int remember_locked(struct inode_table *t, struct span key, const struct found *found,
                           bool lookup, struct inode **out)
{
    uint32_t type = found->meta.mode & S_IFMT;
    struct inode *in = find_key_locked(t, key, found->kind);

    /* Another type under the same name is another file, made by someone else meanwhile. So is what
     * was made here: nobody had the name, and what an open file had of it was deleted elsewhere. */
    if (in != NULL && in->kind == INODE_FILE &&
        (in->type != type || (found->made && in->ino != found->meta.ino))) {
        drop_locked(t, in);
        in = NULL;
    }
    if (in == NULL)
        in = add_locked(t, key, found->kind);
    if (in == NULL)
        return -ENOMEM;
    in->type = type;
    in->ino = found->meta.ino;
    if (in->kind == INODE_DIR)
        set_dir_locked(in, found);
    in->nlookup += lookup;
    in->refs++;
    *out = in;
    return 0;
}

int inode_remember(struct inode_table *t, struct span key, const struct found *found,
                   uint64_t moves, bool lookup, struct inode **out)
{
    int err;

    pthread_mutex_lock(&t->lock);
    if (moves < t->tree_moved || moves < *moved_bucket(t, key))
        err = -EAGAIN;
    else
        err = remember_locked(t, key, found, lookup, out);
    pthread_mutex_unlock(&t->lock);
    return err;
}

uint64_t inode_moves(struct inode_table *t)
{
    uint64_t moves;

    pthread_mutex_lock(&t->lock);
    moves = t->moves;
    pthread_mutex_unlock(&t->lock);
    return moves;
}

void inode_forget(struct inode_table *t, uint64_t id, uint64_t nlookup)
{
    struct inode *in;
    bool shrunk;

    pthread_mutex_lock(&t->lock);
    in = find_id_locked(t, id);
    if (in != NULL && id != INODE_ROOT) {
        in->nlookup -= nlookup < in->nlookup ? nlookup : in->nlookup;
        release_locked(t, in);
    }
    shrunk = shrink_locked(t);
    pthread_mutex_unlock(&t->lock);
    if (shrunk)
        malloc_trim(0);
}

/* --- keys ------------------------------------------------------------------------------------- */

int inode_key(struct inode_table *t, struct inode *in, struct buf *out)
{
    int err = -ENOENT;

    pthread_mutex_lock(&t->lock);
    if (!in->gone) {
        buf_add_span(out, key_of(in));
        err = out->err;
    }
    pthread_mutex_unlock(&t->lock);
    return err;
}

int inode_last_key(struct inode_table *t, struct inode *in, struct buf *out)
{
    pthread_mutex_lock(&t->lock);
    buf_add_span(out, key_of(in));
    pthread_mutex_unlock(&t->lock);
    return out->err;
}

uint32_t inode_type(struct inode_table *t, struct inode *in)
{
    uint32_t type;

    pthread_mutex_lock(&t->lock);
    type = in->type;
    pthread_mutex_unlock(&t->lock);
    return type;
}

bool inode_is_gone(struct inode_table *t, struct inode *in)
{
    bool gone;

    pthread_mutex_lock(&t->lock);
    gone = in->gone;
    pthread_mutex_unlock(&t->lock);
    return gone;
}

uint64_t inode_path_ino(struct inode_table *t, struct inode *in)
{
    uint64_t path_ino;

    pthread_mutex_lock(&t->lock);
    path_ino = attr_st_ino(key_of(in)); /* of one that is gone: as it was called last */
    pthread_mutex_unlock(&t->lock);
    return path_ino;
}

uint64_t inode_dir_ino(struct inode_table *t, struct span prefix)
{
    struct inode *in;
    uint64_t ino;

    pthread_mutex_lock(&t->lock);
    in = find_key_locked(t, prefix, INODE_DIR);
    ino = in != NULL && in->ino != 0 ? in->ino : attr_st_ino(prefix);
    pthread_mutex_unlock(&t->lock);
    return ino;
}

void inode_drop(struct inode_table *t, struct span key, enum inode_kind kind)
{
    struct inode *in;

    pthread_mutex_lock(&t->lock);
    in = find_key_locked(t, key, kind);
    if (in != NULL)
        drop_locked(t, in);
    pthread_mutex_unlock(&t->lock);
}

static int move_locked(struct inode_table *t, struct inode *in, struct span to)
{
    struct inode *old = find_key_locked(t, to, in->kind);
    uint8_t *key;

    if (old == in)
        return 0;
    key = (uint8_t *)malloc(to.len + 1);
    if (key == NULL)
        return -ENOMEM;
    memcpy(key, to.data, to.len);
    if (old != NULL)
        drop_locked(t, old);
    unchain_key_locked(t, in);
    free(in->key);
    in->key = key;
    in->key_len = to.len;
    in->seen.pid = 0;
    chain_key_locked(t, in);
    return 0;
}

int inode_move(struct inode_table *t, struct span from, struct span to, enum inode_kind kind)
{
    struct inode *in;
    int err = 0;

    pthread_mutex_lock(&t->lock);
    *moved_bucket(t, from) = *moved_bucket(t, to) = ++t->moves;
    in = find_key_locked(t, from, kind);
    if (in != NULL) {
        err = move_locked(t, in, to);
    } else {
        in = find_key_locked(t, to, kind);
        if (in != NULL)
            drop_locked(t, in);
    }
    pthread_mutex_unlock(&t->lock);
    return err;
}

int inode_move_tree(struct inode_table *t, struct span from, struct span to, bool keep)
{
    struct buf key = {0};
    int err = 0;

    pthread_mutex_lock(&t->lock);
    t->tree_moved = ++t->moves;
    for (size_t i = 0; i < t->n_buckets && err == 0; i++) {
        for (struct inode *in = t->by_id[i]; in != NULL && err == 0; in = in->next_by_id) {
            if (in->gone || in->id == INODE_ROOT || !span_has_prefix(key_of(in), from))
                continue;
            buf_clear(&key);
            buf_add_span(&key, to);
            buf_add(&key, in->key + from.len, in->key_len - from.len);
            err = key.err;
            if (err == 0 && keep && find_key_locked(t, buf_span(&key), in->kind) != NULL)
                drop_locked(t, in);
            else if (err == 0)
                err = move_locked(t, in, buf_span(&key));
        }
    }
    pthread_mutex_unlock(&t->lock);
    buf_fini(&key);
    return err;
}

/* --- notes ------------------------------------------------------------------------------------ */

void inode_set_seen(struct inode_table *t, struct inode *in, pid_t pid, uint64_t until_us,
                    enum seen_by by, const struct found *found)
{
    pthread_mutex_lock(&t->lock);
    in->seen = (struct seen){.pid = pid, .by = by, .until_us = until_us, .found = *found};
    pthread_mutex_unlock(&t->lock);
}

bool inode_take_seen(struct inode_table *t, struct inode *in, pid_t pid, uint64_t now_us,
                     enum seen_by want, struct found *out)
{
    bool there, good;

    pthread_mutex_lock(&t->lock);
    good = in->seen.by == want || (in->seen.by == SEEN_ASKED && want == SEEN_TOLD);
    there = good && in->seen.pid != 0 && in->seen.pid == pid && now_us < in->seen.until_us;
    if (there)
        *out = in->seen.found;
    if (there || want != SEEN_LISTED)
        in->seen.pid = 0;
    pthread_mutex_unlock(&t->lock);
    return there;
}

void inode_drop_seen(struct inode_table *t, struct inode *in)
{
    pthread_mutex_lock(&t->lock);
    in->seen.pid = 0;
    pthread_mutex_unlock(&t->lock);
}

void inode_drop_listed(struct inode_table *t, uint64_t id)
{
    struct inode *in;

    pthread_mutex_lock(&t->lock);
    in = find_id_locked(t, id);
    if (in != NULL && in->seen.by == SEEN_LISTED)
        in->seen.pid = 0;
    pthread_mutex_unlock(&t->lock);
}

void inode_set_dir(struct inode_table *t, struct inode *in, const struct found *found)
{
    pthread_mutex_lock(&t->lock);
    set_dir_locked(in, found);
    pthread_mutex_unlock(&t->lock);
}

struct dir_facts inode_dir_facts(struct inode_table *t, struct inode *in)
{
    struct dir_facts facts;

    pthread_mutex_lock(&t->lock);
    facts = (struct dir_facts){.has_marker = in->has_marker,
                               .shadows = in->shadows,
                               .mode = in->mode,
                               .gid = in->gid,
                               .mtime_ns = in->mtime_ns,
                               .ctime_ns = in->ctime_ns};
    pthread_mutex_unlock(&t->lock);
    return facts;
}

void inode_lost_marker(struct inode_table *t, struct inode *in)
{
    pthread_mutex_lock(&t->lock);
    in->has_marker = in->id == INODE_ROOT;
    pthread_mutex_unlock(&t->lock);
}

void inode_set_dir_times(struct inode_table *t, struct inode *in, int64_t mtime_ns,
                         int64_t ctime_ns)
{
    pthread_mutex_lock(&t->lock);
    in->mtime_ns = mtime_ns;
    in->ctime_ns = ctime_ns;
    pthread_mutex_unlock(&t->lock);
}

int inode_dir_ids(struct inode_table *t, uint64_t **out, size_t *n)
{
    uint64_t *ids;
    size_t count = 0;

    pthread_mutex_lock(&t->lock);
    ids = (uint64_t *)malloc((t->n_inodes + 1) * sizeof(*ids));
    for (size_t i = 0; ids != NULL && i < t->n_buckets; i++) {
        for (struct inode *in = t->by_id[i]; in != NULL; in = in->next_by_id)
            if (in->kind == INODE_DIR)
                ids[count++] = in->id;
    }
    pthread_mutex_unlock(&t->lock);
    if (ids == NULL)
        return -ENOMEM;
    *out = ids;
    *n = count;
    return 0;
}

/* --- open files ------------------------------------------------------------------------------- */

struct file *inode_file(struct inode_table *t, struct inode *in)
{
    struct file *f;

    pthread_mutex_lock(&t->lock);
    f = in->file;
    if (f != NULL)
        f->refs++;
    pthread_mutex_unlock(&t->lock);
    return f;
}

struct file *inode_attach(struct inode_table *t, struct inode *in, struct file *fresh)
{
    struct file *f;

    pthread_mutex_lock(&t->lock);
    if (in->file == NULL) {
        in->file = fresh;
        in->refs++;
        fresh->inode = in;
        list_insert(&t->files, &fresh->link);
    }
    f = in->file;
    f->refs++;
    pthread_mutex_unlock(&t->lock);
    return f;
}

bool inode_detach(struct inode_table *t, struct file *f)
{
    struct inode *in = f->inode;
    bool last;

    pthread_mutex_lock(&t->lock);
    assert(f->refs > 0);
    last = --f->refs == 0;
    if (last) {
        list_remove(&f->link);
        in->file = NULL;
        in->refs--;
        release_locked(t, in);
    }
    pthread_mutex_unlock(&t->lock);
    return last;
}

static int by_id(const void *a, const void *b)
{
    const struct file *const *x = (const struct file *const *)a, *const *y =
                                                                     (const struct file *const *)b;

    return (*x)->inode->id < (*y)->inode->id ? -1 : (*x)->inode->id > (*y)->inode->id;
}

int inode_files_below(struct inode_table *t, struct span prefix, struct file ***out, size_t *n)
{
    struct file **files = NULL;
    size_t n_files = 0, cap = 0;
    int err = 0;

    pthread_mutex_lock(&t->lock);
    for (struct list *l = t->files.next; l != &t->files; l = l->next)
        cap++;
    files = cap > 0 ? (struct file **)malloc(cap * sizeof(*files)) : NULL;
    if (cap > 0 && files == NULL)
        err = -ENOMEM;
    for (struct list *l = t->files.next; files != NULL && l != &t->files; l = l->next) {
        struct file *f = container_of(l, struct file, link);

        if (!f->inode->gone && span_has_prefix(key_of(f->inode), prefix)) {
            f->refs++;
            files[n_files++] = f;
        }
    }
    pthread_mutex_unlock(&t->lock);
    if (err < 0)
        return err;
    if (n_files > 1)
        qsort(files, n_files, sizeof(struct file *),
              by_id); /* f->inode does not change while referenced */
    *out = files;
    *n = n_files;
    return 0;
}

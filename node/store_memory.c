/*
 * store_memory.c - a store that forgets everything when closed, for tests and caches.
 *
 * The map is a persistent treap: a change copies the path from the root to what it changes and
 * shares all the rest, so an old root stays a complete, unchanging picture for as long as someone
 * holds it. That makes a consistent iterator one reference, and readers need the lock only to take
 * it.
 *
 *         old root --> D                D' <-- new root, after a put of F
 *                     / \              / \
 *                    B   G            /   G'
 *                   / \   \          /   /  \
 *                  A   C   H   (shares B)  F   (shares H)
 *
 * Sorted by key, a heap by the hash of the key: balanced as a random tree is, with no bookkeeping.
 */
#include "node/store.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include "common/hash.h"
#include "common/limits.h"
#include "common/list.h"

/* A large value: an anonymous file, so that it is read as the ones of the disk store are. */
struct store_file {
    _Atomic unsigned refs;
    int fd;
    uint64_t size, written;
};

/* Record and value of one key at one moment; immutable once it is in a tree. */
struct item {
    _Atomic unsigned refs;
    uint64_t priority;
    struct value value;
    struct store_file *file; /* a large value, or NULL */
    struct span key, record; /* in bytes */
    uint8_t bytes[];
};

struct tree {
    _Atomic unsigned refs;
    struct item *item;
    struct tree *left, *right;
};

struct state {
    struct list link;
    struct buf value;
    char name[];
};

struct memory {
    struct store base;
    pthread_mutex_t lock;
    struct tree *root; /* protected by lock, as are the next two */
    uint64_t n_keys, n_bytes;
    struct list states;
};

struct store_iter {
    struct tree *root;
    const struct item *at; /* NULL: at the end */
};

static struct memory *memory_of(struct store *s)
{
    return container_of(s, struct memory, base);
}

/* --- files ----------------------------------------------------------------------------- */

static int memory_file_begin(struct store *s, uint64_t size, struct store_file **out)
{
    struct store_file *f = calloc(1, sizeof(*f));
    int err;

    (void)s;
    if (f == NULL)
        return -ENOMEM;
    f->refs = 1;
    f->size = size;
    f->fd = memfd_create("kvnode-value", MFD_CLOEXEC);
    if (f->fd < 0) {
        err = -errno;
        free(f);
        return err;
    }
    *out = f;
    return 0;
}

static int memory_file_write(struct store_file *f, struct span part)
{
    int err;

    if (part.len > f->size - f->written)
        return -EFBIG;
    err = store_write_all(f->fd, part);
    if (err < 0)
        return err;
    f->written += part.len;
    return 0;
}

static int memory_file_finish(struct store_file *f)
{
    return f->written == f->size ? 0 : -EINVAL;
}

static void file_unref(struct store_file *f)
{
    if (f == NULL || atomic_fetch_sub(&f->refs, 1) > 1)
        return;
    close(f->fd);
    free(f);
}

/* --- items and trees ------------------------------------------------------------------- */

static struct item *item_new(struct span key, struct span record)
{
    struct item *item = calloc(1, sizeof(*item) + key.len + record.len);

    if (item == NULL)
        return NULL;
    item->refs = 1;
    item->priority = hash_fmix64(hash_fnv1a(key));
    memcpy(item->bytes, key.data, key.len);
    memcpy(item->bytes + key.len, record.data, record.len);
    item->key = span_of(item->bytes, key.len);
    item->record = span_of(item->bytes + key.len, record.len);
    return item;
}

static struct item *item_ref(struct item *item)
{
    atomic_fetch_add(&item->refs, 1);
    return item;
}

static void item_unref(struct item *item)
{
    if (item == NULL || atomic_fetch_sub(&item->refs, 1) > 1)
        return;
    value_fini(&item->value);
    file_unref(item->file);
    free(item);
}

/* NULL: nothing. */
static uint64_t item_size(const struct item *item)
{
    if (item == NULL)
        return 0;
    return item->key.len + item->record.len + item->value.len +
           (item->file != NULL ? item->file->size : 0);
}

static struct tree *tree_ref(struct tree *t)
{
    if (t != NULL)
        atomic_fetch_add(&t->refs, 1);
    return t;
}

static void tree_unref(struct tree *t)
{
    if (t == NULL || atomic_fetch_sub(&t->refs, 1) > 1)
        return;
    tree_unref(t->left);
    tree_unref(t->right);
    item_unref(t->item);
    free(t);
}

/* A node of its own; takes the references of left and right, also when it fails (NULL). */
static struct tree *tree_new(struct item *item, struct tree *left, struct tree *right)
{
    struct tree *t = calloc(1, sizeof(*t));

    if (t == NULL) {
        tree_unref(left);
        tree_unref(right);
        return NULL;
    }
    t->refs = 1;
    t->item = item_ref(item);
    t->left = left;
    t->right = right;
    return t;
}

/*
 * t with item in it (replacing one of the same key): always a fresh root, which may be changed.
 * NULL without memory.
 */
static struct tree *tree_put(struct tree *t, struct item *item)
{
    struct tree *n, *child;
    int c;

    if (t == NULL)
        return tree_new(item, NULL, NULL);
    c = span_cmp(item->key, t->item->key);
    if (c == 0)
        return tree_new(item, tree_ref(t->left), tree_ref(t->right));
    child = tree_put(c < 0 ? t->left : t->right, item);
    if (child == NULL)
        return NULL;
    n = c < 0 ? tree_new(t->item, child, tree_ref(t->right))
              : tree_new(t->item, tree_ref(t->left), child);
    if (n == NULL || child->item->priority <= n->item->priority)
        return n;
    /* The child must be above n: rotate. Both are fresh. */
    if (c < 0) {
        n->left = child->right;
        child->right = n;
    } else {
        n->right = child->left;
        child->left = n;
    }
    return child;
}

/*
 * All of a, then all of b, as one tree in *out, which is NULL when both are empty. a and b are
 * borrowed.
 */
static int tree_join(struct tree *a, struct tree *b, struct tree **out)
{
    struct tree *part;
    int err;

    if (a == NULL || b == NULL) {
        *out = tree_ref(a != NULL ? a : b);
        return 0;
    }
    if (a->item->priority >= b->item->priority) {
        err = tree_join(a->right, b, &part);
        if (err < 0)
            return err;
        part = tree_new(a->item, tree_ref(a->left), part);
    } else {
        err = tree_join(a, b->left, &part);
        if (err < 0)
            return err;
        part = tree_new(b->item, part, tree_ref(b->right));
    }
    if (part == NULL)
        return -ENOMEM;
    *out = part;
    return 0;
}

/* t, in which key is, without it. */
static int tree_drop(struct tree *t, struct span key, struct tree **out)
{
    int c = span_cmp(key, t->item->key), err;
    struct tree *part;

    if (c == 0)
        return tree_join(t->left, t->right, out);
    err = tree_drop(c < 0 ? t->left : t->right, key, &part);
    if (err < 0)
        return err;
    part = c < 0 ? tree_new(t->item, part, tree_ref(t->right))
                 : tree_new(t->item, tree_ref(t->left), part);
    if (part == NULL)
        return -ENOMEM;
    *out = part;
    return 0;
}

/* The first item whose key is >= key (above: > key), NULL when there is none. Borrowed from t. */
static struct item *tree_seek(const struct tree *t, struct span key, bool above)
{
    struct item *best = NULL;

    while (t != NULL) {
        int c = span_cmp(t->item->key, key);

        if (c > 0 || (c == 0 && !above)) {
            best = t->item;
            t = t->left;
        } else {
            t = t->right;
        }
    }
    return best;
}

static struct item *tree_find(const struct tree *t, struct span key)
{
    struct item *item = tree_seek(t, key, false);

    return item != NULL && span_eq(item->key, key) ? item : NULL;
}

static struct tree *memory_snapshot(struct memory *m)
{
    struct tree *root;

    pthread_mutex_lock(&m->lock);
    root = tree_ref(m->root);
    pthread_mutex_unlock(&m->lock);
    return root;
}

/* --- keys ------------------------------------------------------------------------------ */

static int memory_get(struct store *s, struct span key, bool want_value, struct store_item *out)
{
    struct tree *root = memory_snapshot(memory_of(s));
    const struct item *item = tree_find(root, key);
    struct store_item got = STORE_ITEM_NONE;
    int err = 0;

    if (item == NULL)
        goto out;
    buf_add_span(&got.record, item->record);
    err = got.record.err;
    if (err == 0 && want_value && item->file != NULL) {
        int fd = fcntl(item->file->fd, F_DUPFD_CLOEXEC, 0);

        err = fd < 0 ? -errno : store_reader_of_fd(fd, &got.large);
    } else if (err == 0 && want_value) {
        got.value = value_ref(item->value);
    }
out:
    tree_unref(root);
    if (err < 0)
        store_item_fini(&got);
    else
        *out = got;
    return err;
}

/*
 * Gives a new item its value. A file becomes the item's only once it is in the tree: file stays the
 * caller's on failure.
 */
static int item_set_value(struct item *item, struct span value, const struct item *kept, bool keep)
{
    if (!keep)
        return value_copy(value, &item->value);
    if (kept == NULL)
        return -ENOENT;
    item->value = value_ref(kept->value);
    item->file = kept->file;
    if (item->file != NULL)
        atomic_fetch_add(&item->file->refs, 1);
    return 0;
}

static int memory_put(struct store *s, struct span key, struct span record, struct span value,
                      struct store_file *file, bool keep)
{
    struct memory *m = memory_of(s);
    struct tree *root = NULL, *old = NULL;
    struct item *item, *present;
    int err;

    if (value.len > INLINE_VALUE_MAX)
        return -EFBIG;
    item = item_new(key, record);
    if (item == NULL)
        return -ENOMEM;
    pthread_mutex_lock(&m->lock);
    present = tree_find(m->root, key);
    err = item_set_value(item, value, present, keep);
    if (err < 0)
        goto out;
    root = tree_put(m->root, item);
    if (root == NULL) {
        err = -ENOMEM;
        goto out;
    }
    if (file != NULL)
        item->file = file;
    m->n_keys += present == NULL;
    m->n_bytes += item_size(item) - item_size(present);
    old = m->root;
    m->root = root;
out:
    pthread_mutex_unlock(&m->lock);
    tree_unref(old);
    item_unref(item);
    return err;
}

static int memory_drop(struct store *s, struct span key)
{
    struct memory *m = memory_of(s);
    struct tree *root = NULL, *old = NULL;
    const struct item *present;
    int err = 0;

    pthread_mutex_lock(&m->lock);
    present = tree_find(m->root, key);
    if (present != NULL)
        err = tree_drop(m->root, key, &root);
    else
        root = tree_ref(m->root);
    if (err == 0) {
        m->n_keys -= present != NULL;
        m->n_bytes -= item_size(present);
        old = m->root;
        m->root = root;
    }
    pthread_mutex_unlock(&m->lock);
    tree_unref(old);
    return err;
}

/* --- iterators ------------------------------------------------------------------------- */

static int memory_iter_new(struct store *s, struct store_iter **out)
{
    struct store_iter *it = calloc(1, sizeof(*it));

    if (it == NULL)
        return -ENOMEM;
    it->root = memory_snapshot(memory_of(s));
    *out = it;
    return 0;
}

static void memory_iter_seek(struct store_iter *it, struct span key)
{
    it->at = tree_seek(it->root, key, false);
}

static bool memory_iter_valid(struct store_iter *it)
{
    return it->at != NULL;
}

static void memory_iter_next(struct store_iter *it)
{
    it->at = tree_seek(it->root, it->at->key, true);
}

static struct span memory_iter_key(struct store_iter *it)
{
    return it->at->key;
}

static struct span memory_iter_record(struct store_iter *it)
{
    return it->at->record;
}

static int memory_iter_err(struct store_iter *it)
{
    (void)it;
    return 0;
}

static void memory_iter_free(struct store_iter *it)
{
    if (it == NULL)
        return;
    tree_unref(it->root);
    free(it);
}

/* --- values of the node ---------------------------------------------------------------- */

static struct state *state_find_locked(struct memory *m, const char *name)
{
    for (struct list *l = m->states.next; l != &m->states; l = l->next) {
        struct state *st = container_of(l, struct state, link);

        if (strcmp(st->name, name) == 0)
            return st;
    }
    return NULL;
}

static int memory_state_get(struct store *s, const char *name, struct buf *out)
{
    struct memory *m = memory_of(s);
    struct state *st;
    int err = -ENOENT;

    pthread_mutex_lock(&m->lock);
    st = state_find_locked(m, name);
    if (st != NULL) {
        buf_add_span(out, buf_span(&st->value));
        err = out->err;
    }
    pthread_mutex_unlock(&m->lock);
    return err;
}

static int memory_state_put(struct store *s, const char *name, struct span value)
{
    struct memory *m = memory_of(s);
    struct state *fresh = calloc(1, sizeof(*fresh) + strlen(name) + 1), *old;

    if (fresh == NULL)
        return -ENOMEM;
    memcpy(fresh->name, name, strlen(name) + 1);
    buf_add_span(&fresh->value, value);
    if (fresh->value.err < 0) {
        free(fresh);
        return -ENOMEM;
    }
    pthread_mutex_lock(&m->lock);
    old = state_find_locked(m, name);
    if (old != NULL)
        list_remove(&old->link);
    list_insert(&m->states, &fresh->link);
    pthread_mutex_unlock(&m->lock);
    if (old != NULL)
        buf_fini(&old->value);
    free(old);
    return 0;
}

static int memory_stats(struct store *s, struct store_stats *out)
{
    struct memory *m = memory_of(s);
    struct sysinfo info;

    if (sysinfo(&info) < 0)
        return -errno;
    pthread_mutex_lock(&m->lock);
    out->n_keys = m->n_keys;
    out->n_bytes = m->n_bytes;
    pthread_mutex_unlock(&m->lock);
    out->disk_free = (uint64_t)info.freeram * info.mem_unit;
    out->disk_total = (uint64_t)info.totalram * info.mem_unit;
    return 0;
}

static int memory_probe(struct store *s)
{
    (void)s;
    return 0;
}

static int memory_damage(struct store *s, struct err *why)
{
    (void)s;
    (void)why;
    return 0;
}

static void memory_close(struct store *s)
{
    struct memory *m = memory_of(s);

    while (!list_empty(&m->states)) {
        struct state *st = container_of(m->states.next, struct state, link);

        list_remove(&st->link);
        buf_fini(&st->value);
        free(st);
    }
    tree_unref(m->root);
    pthread_mutex_destroy(&m->lock);
    free(m);
}

static const struct store_ops memory_ops = {
    .get = memory_get,
    .put = memory_put,
    .drop = memory_drop,
    .file_begin = memory_file_begin,
    .file_write = memory_file_write,
    .file_finish = memory_file_finish,
    .file_abort = file_unref,
    .iter_new = memory_iter_new,
    .iter_seek = memory_iter_seek,
    .iter_valid = memory_iter_valid,
    .iter_next = memory_iter_next,
    .iter_key = memory_iter_key,
    .iter_record = memory_iter_record,
    .iter_err = memory_iter_err,
    .iter_free = memory_iter_free,
    .state_get = memory_state_get,
    .state_put = memory_state_put,
    .stats = memory_stats,
    .probe = memory_probe,
    .damage = memory_damage,
    .close = memory_close,
    .kind = "memory",
};

int store_memory_open(struct store **out)
{
    struct memory *m = calloc(1, sizeof(*m));

    if (m == NULL)
        return -ENOMEM;
    m->base.ops = &memory_ops;
    list_init(&m->states);
    pthread_mutex_init(&m->lock, NULL);
    *out = &m->base;
    return 0;
}

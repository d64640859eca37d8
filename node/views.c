/* views.c - moments of a store that has no snapshots of its own. */
#include "node/views.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "common/hash.h"

#define GOLDEN 0x9e3779b97f4a7c15u /* 2^64 by the golden ratio */

enum entry_state { PENDING, KNOWN, UNKNOWN };

/*
 * A key that was changed, as it was: a node of a treap, by key and by a random number. That is not
 * the key's hash: whoever writes keys could choose such that the tree is a list.
 */
struct entry {
    struct entry *left, *right;
    struct list link; /* of its change, while PENDING */
    struct view *view;
    uint64_t priority;
    enum entry_state state;
    struct buf before;
    size_t key_len;
    uint8_t key[];
};

struct view {
    struct list link;
    struct entry *root;
    size_t bytes;
    bool given_up;
};

struct views {
    pthread_mutex_t lock;
    pthread_cond_t settled; /* some entry is no longer pending */
    uint64_t random;        /* the last priority */
    struct list open;
    size_t bytes, bytes_max;
};

static struct span key_of(const struct entry *e)
{
    return span_of(e->key, e->key_len);
}

/* --- the treap ------------------------------------------------------------------------------ */

/* The first entry from `from` on, or behind it. */
static struct entry *seek(struct entry *e, struct span from, bool above)
{
    struct entry *best = NULL;

    while (e != NULL) {
        int c = span_cmp(key_of(e), from);

        if (c > 0 || (c == 0 && !above)) {
            best = e;
            e = e->left;
        } else {
            e = e->right;
        }
    }
    return best;
}

/* Puts fresh, whose key is not there, below root: returns the new root. */
static struct entry *insert(struct entry *root, struct entry *fresh)
{
    if (root == NULL)
        return fresh;
    if (span_cmp(key_of(fresh), key_of(root)) < 0) {
        struct entry *child = insert(root->left, fresh);

        root->left = child;
        if (child->priority <= root->priority)
            return root;
        root->left = child->right;
        child->right = root;
        return child;
    }
    root->right = insert(root->right, fresh);
    if (root->right->priority > root->priority) {
        struct entry *child = root->right;

        root->right = child->left;
        child->left = root;
        return child;
    }
    return root;
}

/* All of a, then all of b. */
static struct entry *join(struct entry *a, struct entry *b)
{
    if (a == NULL || b == NULL)
        return a != NULL ? a : b;
    if (a->priority >= b->priority) {
        a->right = join(a->right, b);
        return a;
    }
    b->left = join(a, b->left);
    return b;
}

/* root without gone, which is below it. */
static struct entry *without(struct entry *root, const struct entry *gone)
{
    if (root == gone)
        return join(root->left, root->right);
    if (span_cmp(key_of(gone), key_of(root)) < 0)
        root->left = without(root->left, gone);
    else
        root->right = without(root->right, gone);
    return root;
}

static void free_below(struct entry *e)
{
    if (e == NULL)
        return;
    free_below(e->left);
    free_below(e->right);
    list_remove(&e->link);
    buf_fini(&e->before);
    free(e);
}

/* --- life ----------------------------------------------------------------------------------- */

int views_new(size_t bytes_max, struct views **out)
{
    struct views *vs = calloc(1, sizeof(*vs));

    if (vs == NULL)
        return -ENOMEM;
    pthread_mutex_init(&vs->lock, NULL);
    pthread_cond_init(&vs->settled, NULL);
    list_init(&vs->open);
    vs->bytes_max = bytes_max;
    if (getrandom(&vs->random, sizeof(vs->random), 0) != (ssize_t)sizeof(vs->random))
        vs->random = (uint64_t)(uintptr_t)vs;
    *out = vs;
    return 0;
}

void views_free(struct views *vs)
{
    if (vs == NULL)
        return;
    pthread_cond_destroy(&vs->settled);
    pthread_mutex_destroy(&vs->lock);
    free(vs);
}

struct view *views_open(struct views *vs)
{
    struct view *v = calloc(1, sizeof(*v));

    if (v == NULL)
        return NULL;
    pthread_mutex_lock(&vs->lock);
    list_insert(&vs->open, &v->link);
    pthread_mutex_unlock(&vs->lock);
    return v;
}

/* Its entries go; those of changes under way are no longer asked for. */
static void empty_locked(struct views *vs, struct view *v)
{
    free_below(v->root);
    v->root = NULL;
    vs->bytes -= v->bytes;
    v->bytes = 0;
}

void views_close(struct views *vs, struct view *v)
{
    pthread_mutex_lock(&vs->lock);
    empty_locked(vs, v);
    list_remove(&v->link);
    pthread_mutex_unlock(&vs->lock);
    free(v);
}

/* --- changes -------------------------------------------------------------------------------- */

static void give_up_locked(struct views *vs, struct view *v)
{
    empty_locked(vs, v);
    v->given_up = true;
    pthread_cond_broadcast(&vs->settled);
}

static void give_up_most_locked(struct views *vs)
{
    struct view *most = NULL;

    for (struct list *l = vs->open.next; l != &vs->open; l = l->next) {
        struct view *v = container_of(l, struct view, link);

        if (most == NULL || v->bytes > most->bytes)
            most = v;
    }
    if (most != NULL)
        give_up_locked(vs, most);
}

static void count_locked(struct views *vs, struct view *v, size_t bytes)
{
    v->bytes += bytes;
    vs->bytes += bytes;
}

/* True: v needs to be told what was there. */
static bool note_locked(struct views *vs, struct view *v, struct span key, struct views_change *c)
{
    struct entry *e = seek(v->root, key, false);

    if (v->given_up || (e != NULL && span_eq(key_of(e), key)))
        return false;
    e = calloc(1, sizeof(*e) + key.len);
    if (e == NULL) {
        give_up_locked(vs, v);
        return false;
    }
    e->view = v;
    e->priority = vs->random = hash_fmix64(vs->random + GOLDEN);
    e->key_len = key.len;
    memcpy(e->key, key.data, key.len);
    list_insert(&c->entries, &e->link);
    v->root = insert(v->root, e);
    count_locked(vs, v, sizeof(*e) + key.len);
    return true;
}

bool views_begin(struct views *vs, struct span key, struct views_change *c)
{
    bool wanted = false;

    list_init(&c->entries);
    pthread_mutex_lock(&vs->lock);
    for (struct list *l = vs->open.next; l != &vs->open; l = l->next)
        wanted |= note_locked(vs, container_of(l, struct view, link), key, c);
    while (vs->bytes > vs->bytes_max)
        give_up_most_locked(vs);
    pthread_mutex_unlock(&vs->lock);
    return wanted;
}

static void settle_locked(struct views *vs, struct entry *e, enum views_outcome outcome,
                          struct span before)
{
    struct view *v = e->view;

    list_remove(&e->link);
    if (outcome == VIEWS_UNCHANGED) { /* a later change shall be noted anew */
        v->root = without(v->root, e);
        v->bytes -= sizeof(*e) + e->key_len;
        vs->bytes -= sizeof(*e) + e->key_len;
        free(e);
        return;
    }
    if (outcome == VIEWS_CHANGED)
        buf_add_span(&e->before, before);
    e->state = outcome == VIEWS_CHANGED && e->before.err == 0 ? KNOWN : UNKNOWN;
    count_locked(vs, v, e->before.cap);
}

void views_end(struct views *vs, struct views_change *c, enum views_outcome outcome,
               struct span before)
{
    bool any;

    pthread_mutex_lock(&vs->lock);
    any = !list_empty(&c->entries);
    while (!list_empty(&c->entries))
        settle_locked(vs, container_of(c->entries.next, struct entry, link), outcome, before);
    if (any)
        pthread_cond_broadcast(&vs->settled);
    while (vs->bytes > vs->bytes_max)
        give_up_most_locked(vs);
    pthread_mutex_unlock(&vs->lock);
}

int views_next(struct views *vs, struct view *v, struct span from, bool above, struct buf *key,
               struct buf *before)
{
    struct entry *e;
    int ret = 0;

    buf_clear(key);
    buf_clear(before);
    pthread_mutex_lock(&vs->lock);
    /* It is sought anew each time: its view may be given up meanwhile. */
    while ((e = seek(v->root, from, above)) != NULL && e->state == PENDING)
        pthread_cond_wait(&vs->settled, &vs->lock);
    if (v->given_up) {
        ret = -ENOBUFS;
    } else if (e != NULL && e->state == UNKNOWN) {
        ret = -EIO;
    } else if (e != NULL) {
        buf_add_span(key, key_of(e));
        buf_add_span(before, buf_span(&e->before));
        ret = key->err < 0 ? key->err : before->err < 0 ? before->err : 1;
    }
    pthread_mutex_unlock(&vs->lock);
    return ret;
}

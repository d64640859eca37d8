/* follow.c - what was read and still holds, see follow.h. */
#include "fs/follow.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/hash.h"
#include "common/limits.h"

#define SLOTS 8192u /* of changes, by hash: sharing one costs a fill that is not kept */
#define OWN_SLOTS 1024u

/* A write of this mount, as the feed will tell of it. */
struct own {
    uint64_t hash;
    struct ballot version;
};

struct follow {
    struct inode_table *inodes;
    struct follow_kernel kernel;
    void (*below)(void *arg, struct span prefix);
    void (*below_all)(void *arg);
    void *below_arg;

    pthread_mutex_t lock; /* all below, and `kept` of all inodes; innermost */
    uint64_t epoch;       /* 0: not live */
    uint64_t last_epoch;
    uint64_t n_changes;
    uint64_t changed[SLOTS]; /* n_changes at the last one of such a key or prefix */
    struct own own[OWN_SLOTS];
};

int follow_new(struct inode_table *inodes, struct follow **out)
{
    struct follow *f = calloc(1, sizeof(*f));

    if (f == NULL)
        return -ENOMEM;
    f->inodes = inodes;
    pthread_mutex_init(&f->lock, NULL);
    *out = f;
    return 0;
}

void follow_free(struct follow *f)
{
    if (f == NULL)
        return;
    pthread_mutex_destroy(&f->lock);
    free(f);
}

void follow_set_kernel(struct follow *f, const struct follow_kernel *kernel)
{
    f->kernel = kernel != NULL ? *kernel : (struct follow_kernel){0};
}

void follow_set_below(struct follow *f, void (*below)(void *arg, struct span prefix),
                      void (*all)(void *arg), void *arg)
{
    f->below = below;
    f->below_all = all;
    f->below_arg = arg;
}

static bool ends_in_slash(struct span key)
{
    return key.len > 0 && key.data[key.len - 1] == '/';
}

/* What is kept of in, as of a key: nothing, if that was another key before a rename. */
static struct kept *kept_locked(struct inode *in, uint64_t hash)
{
    struct kept *k = &in->kept;

    if (k->hash != hash) {
        k->hash = hash;
        k->epoch = 0;
        k->found = (struct found){0};
        k->told = BALLOT_NONE;
    }
    return k;
}

/* --- changes ---------------------------------------------------------------------------------- */

struct change {
    struct span key;
    struct ballot version; /* none: unknown */
    bool deleted, own;
};

static void tell_kernel(struct follow *f, const struct change *c, const struct inode *in)
{
    if (!c->own && f->kernel.forget != NULL && in->kind == INODE_DIR && in->id != INODE_ROOT)
        f->kernel.forget(f->kernel.arg, in->id);
}

static struct inode *inode_of(struct follow *f, struct span key)
{
    return inode_find(f->inodes, key, ends_in_slash(key) ? INODE_DIR : INODE_FILE);
}

/* Has this mount written that version, or a later one? Then follow_wrote() has dropped all that it
 * touches. */
static bool is_own(struct follow *f, const struct change *c, uint64_t hash)
{
    const struct own *own = &f->own[hash % OWN_SLOTS];
    bool is;

    pthread_mutex_lock(&f->lock);
    is = own->hash == hash && ballot_cmp(c->version, own->version) <= 0;
    pthread_mutex_unlock(&f->lock);
    return is;
}

/* Is what was read of the key as new? What was read of its directory may be older all the same. */
static bool is_seen(const struct kept *k, const struct change *c)
{
    return !c->own && ballot_cmp(c->version, k->found.version) <= 0;
}

/* Before the inode is looked for: who fills it meanwhile must see that its mark no longer holds. */
static void count(struct follow *f, uint64_t hash)
{
    pthread_mutex_lock(&f->lock);
    f->changed[hash % SLOTS] = ++f->n_changes;
    pthread_mutex_unlock(&f->lock);
}

/* The directory of the same name, which hides the file if there is one. */
static void change_hiding(struct follow *f, const struct change *c)
{
    uint8_t prefix[KEY_LEN_MAX + 1];
    struct inode *in;

    if (c->key.len > KEY_LEN_MAX)
        return;
    memcpy(prefix, c->key.data, c->key.len);
    prefix[c->key.len] = '/';
    in = inode_find(f->inodes, span_of(prefix, c->key.len + 1), INODE_DIR);
    if (in == NULL)
        return;
    pthread_mutex_lock(&f->lock);
    in->kept.epoch = 0;
    pthread_mutex_unlock(&f->lock);
    inode_put(f->inodes, in);
}

/* The key itself has changed. */
static void change_key(struct follow *f, const struct change *c, uint64_t hash)
{
    struct inode *in;
    struct kept *k;
    bool seen;

    count(f, hash);
    if (!ends_in_slash(c->key))
        change_hiding(f, c);
    in = inode_of(f, c->key);
    if (in == NULL)
        return;
    pthread_mutex_lock(&f->lock);
    k = kept_locked(in, hash);
    seen = is_seen(k, c);
    if (!seen) {
        k->epoch = 0;
        k->told = ballot_max(k->told, c->version);
    }
    pthread_mutex_unlock(&f->lock);
    if (!seen && c->deleted && in->kind == INODE_DIR)
        inode_lost_marker(f->inodes, in);
    if (!seen)
        tell_kernel(f, c, in);
    inode_put(f->inodes, in);
}

/* A file of this key, if there is one, may have come to be hidden by a directory, or to show. */
static void change_hidden(struct follow *f, const struct change *c, struct span key)
{
    struct inode *in;

    count(f, hash_xxh3(key));
    in = inode_find(f->inodes, key, INODE_FILE);
    if (in == NULL)
        return;
    pthread_mutex_lock(&f->lock);
    in->kept.epoch = 0;
    pthread_mutex_unlock(&f->lock);
    tell_kernel(f, c, in);
    inode_put(f->inodes, in);
}

/*
 * Something below the prefix has changed. Returns whether the directory itself may have, so that
 * what is above it may show it differently: not, if it has a marker and that is not what changed.
 */
static bool change_dir(struct follow *f, const struct change *c, struct span prefix)
{
    struct inode *in;
    bool touched = true;

    count(f, hash_xxh3(prefix));
    if (f->below != NULL && (prefix.len < c->key.len || c->deleted || ballot_is_none(c->version)))
        f->below(f->below_arg, prefix); /* what is listed in it stays, when its marker is stored */
    in = inode_find(f->inodes, prefix, INODE_DIR);
    if (in == NULL)
        return true;
    pthread_mutex_lock(&f->lock);
    if (prefix.len < c->key.len && in->kept.epoch != 0 && in->kept.epoch == f->epoch &&
        in->kept.found.has_marker)
        touched = false;
    else if (prefix.len < c->key.len)
        in->kept.epoch = 0;
    pthread_mutex_unlock(&f->lock);
    if (touched && prefix.len < c->key.len)
        tell_kernel(f, c, in);
    inode_put(f->inodes, in);
    return touched;
}

static void apply(struct follow *f, const struct change *c, uint64_t hash)
{
    struct span rest = c->key;
    bool up = true;

    change_key(f, c, hash);
    for (; rest.len > 0 && up; rest.len--) {
        if (rest.data[rest.len - 1] != '/')
            continue;
        up = change_dir(f, c, rest);
        if (up)
            change_hidden(f, c, span_of(rest.data, rest.len - 1));
    }
    if (up)
        (void)change_dir(f, c, span_of(c->key.data, 0));
}

void follow_changed(void *arg, struct span key, struct ballot version, enum feed_kind kind)
{
    struct follow *f = (struct follow *)arg;
    struct change c = {.key = key, .version = version, .deleted = kind == FEED_DELETE};
    uint64_t hash = hash_xxh3(key);

    if (!is_own(f, &c, hash))
        apply(f, &c, hash);
}

void follow_wrote(struct follow *f, struct span key, struct ballot version)
{
    struct change c = {.key = key, .version = version, .own = true};
    uint64_t hash = hash_xxh3(key);
    struct own *own = &f->own[hash % OWN_SLOTS];

    apply(f, &c, hash);
    pthread_mutex_lock(&f->lock);
    if (!ballot_is_none(version) && (own->hash != hash || ballot_cmp(own->version, version) < 0))
        *own = (struct own){.hash = hash, .version = version};
    pthread_mutex_unlock(&f->lock);
}

void follow_live(void *arg, bool live)
{
    struct follow *f = (struct follow *)arg;

    pthread_mutex_lock(&f->lock);
    f->epoch = live ? ++f->last_epoch : 0;
    pthread_mutex_unlock(&f->lock);
    if (live)
        return;
    if (f->below_all != NULL)
        f->below_all(f->below_arg);
    if (f->kernel.forget_all != NULL)
        f->kernel.forget_all(f->kernel.arg);
}

bool follow_is_live(struct follow *f)
{
    bool live;

    pthread_mutex_lock(&f->lock);
    live = f->epoch != 0;
    pthread_mutex_unlock(&f->lock);
    return live;
}

/* --- keeping ---------------------------------------------------------------------------------- */

struct follow_mark follow_mark(struct follow *f, struct span key, struct span prefix)
{
    struct follow_mark now;

    pthread_mutex_lock(&f->lock);
    now = (struct follow_mark){.epoch = f->epoch, .at = f->n_changes};
    pthread_mutex_unlock(&f->lock);
    return follow_mark_then(&now, key, prefix);
}

struct follow_mark follow_mark_then(const struct follow_mark *m, struct span key,
                                    struct span prefix)
{
    return (struct follow_mark){.epoch = m->epoch,
                                .at = m->at,
                                .slot = {hash_xxh3(key) % SLOTS, hash_xxh3(prefix) % SLOTS}};
}

struct follow_mark follow_mark_dir(struct follow *f, struct span prefix)
{
    struct span key = prefix;

    if (prefix.len > 0 && !ends_in_slash(prefix))
        return (struct follow_mark){0}; /* a piece of a long name: changes are not told by it */
    if (prefix.len > 0)
        key.len--;
    return follow_mark(f, key, prefix);
}

static bool holds_locked(const struct follow *f, const struct follow_mark *m)
{
    return m->epoch != 0 && m->epoch == f->epoch && f->changed[m->slot[0]] <= m->at &&
           f->changed[m->slot[1]] <= m->at;
}

bool follow_holds(struct follow *f, const struct follow_mark *m)
{
    bool holds;

    pthread_mutex_lock(&f->lock);
    holds = holds_locked(f, m);
    pthread_mutex_unlock(&f->lock);
    return holds;
}

/* Older than what was heard of? (A directory without a marker has no version.) */
static bool is_old(const struct kept *k, const struct found *found)
{
    return !ballot_is_none(found->version) && ballot_cmp(found->version, k->told) < 0;
}

static void keep_locked(struct follow *f, struct inode *in, struct span key,
                        const struct found *found)
{
    struct kept *k = kept_locked(in, hash_xxh3(key));

    /* Changes below a piece of a long name do not lead to it. */
    if (is_old(k, found) || (in->kind == INODE_DIR && !ends_in_slash(key)))
        return;
    k->found = *found;
    k->epoch = f->epoch;
    k->told = ballot_max(k->told, found->version);
}

void follow_keep(struct follow *f, struct inode *in, struct span key, const struct found *found,
                 const struct follow_mark *m)
{
    pthread_mutex_lock(&f->lock);
    if (found->followed && holds_locked(f, m))
        keep_locked(f, in, key, found);
    pthread_mutex_unlock(&f->lock);
}

void follow_keep_own(struct follow *f, struct inode *in, struct span key, const struct found *found,
                     const struct follow_mark *m)
{
    pthread_mutex_lock(&f->lock);
    if (m->epoch != 0 && m->epoch == f->epoch)
        keep_locked(f, in, key, found);
    pthread_mutex_unlock(&f->lock);
}

bool follow_recall(struct follow *f, struct inode *in, struct found *out)
{
    bool there;

    pthread_mutex_lock(&f->lock);
    there = in->kept.epoch != 0 && in->kept.epoch == f->epoch &&
            !is_old(&in->kept, &in->kept.found); /* an open saw a newer one before it was told */
    if (there)
        *out = in->kept.found;
    pthread_mutex_unlock(&f->lock);
    return there;
}

void follow_saw(struct follow *f, struct inode *in, struct span key, struct ballot version)
{
    uint64_t hash = hash_xxh3(key);
    struct kept *k;

    pthread_mutex_lock(&f->lock);
    k = kept_locked(in, hash);
    k->told = ballot_max(k->told, version);
    pthread_mutex_unlock(&f->lock);
}

bool follow_is_behind(struct follow *f, struct inode *in, struct ballot version)
{
    bool behind;

    pthread_mutex_lock(&f->lock);
    behind = !ballot_is_none(version) && ballot_cmp(version, in->kept.told) < 0;
    pthread_mutex_unlock(&f->lock);
    return behind;
}

struct ballot follow_told(struct follow *f, struct inode *in, struct span key)
{
    uint64_t hash = hash_xxh3(key);
    const struct own *own = &f->own[hash % OWN_SLOTS];
    struct ballot told;

    pthread_mutex_lock(&f->lock);
    told = kept_locked(in, hash)->told;
    if (own->hash == hash)
        told = ballot_max(told, own->version);
    pthread_mutex_unlock(&f->lock);
    return told;
}

/* --- what the kernel holds ------------------------------------------------------------------- */

/* The kernel counts from when it has the answer, by ticks of a clock that stands still in suspend,
 * and rounds up. */
#define NAMED_MARGIN_S 1u

void follow_set_named(struct follow *f, struct inode *in, unsigned for_s)
{
    uint64_t until_us =
        for_s > 0 ? clock_awake_us() + (for_s + NAMED_MARGIN_S) * (uint64_t)1000000 : 0;

    pthread_mutex_lock(&f->lock);
    if (until_us == 0 || until_us > in->kept.named_until_us)
        in->kept.named_until_us = until_us;
    pthread_mutex_unlock(&f->lock);
}

bool follow_is_named(struct follow *f, struct inode *in)
{
    uint64_t now_us = clock_awake_us();
    bool named;

    pthread_mutex_lock(&f->lock);
    named = now_us < in->kept.named_until_us;
    pthread_mutex_unlock(&f->lock);
    return named;
}

struct follow_pages follow_pages(struct follow *f, struct inode *in)
{
    struct follow_pages pages;

    pthread_mutex_lock(&f->lock);
    pages = (struct follow_pages){.version = in->kept.pages, .n_mixed = in->kept.n_mixed};
    pthread_mutex_unlock(&f->lock);
    return pages;
}

void follow_mix_pages(struct follow *f, struct inode *in)
{
    pthread_mutex_lock(&f->lock);
    in->kept.pages = BALLOT_NONE;
    in->kept.n_mixed++;
    pthread_mutex_unlock(&f->lock);
}

void follow_set_pages(struct follow *f, struct inode *in, const struct follow_pages *pages)
{
    pthread_mutex_lock(&f->lock);
    if (in->kept.n_mixed == pages->n_mixed && f->kernel.forget != NULL)
        in->kept.pages = pages->version;
    pthread_mutex_unlock(&f->lock);
}

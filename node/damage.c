/* damage.c - which keys of this node are known to be damaged. */
#include "node/damage.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "common/hash.h"

#define TELL_AGAIN_US 10000000u /* for the first one to be told may have been too busy */
#define SLOTS_MIN 64u

/* An open-addressed table of hashes, at most half full; hash 0 is an empty slot. */
struct slot {
    uint64_t hash, told_us;
    bool uncounted;
};

struct damage {
    _Atomic uint64_t n; /* read without the lock; all else under it */
    pthread_mutex_t lock;
    struct slot *slots;
    size_t n_slots; /* a power of two */
};

int damage_new(struct damage **out)
{
    struct damage *d = calloc(1, sizeof(*d));

    if (d == NULL)
        return -ENOMEM;
    pthread_mutex_init(&d->lock, NULL);
    *out = d;
    return 0;
}

void damage_free(struct damage *d)
{
    if (d == NULL)
        return;
    pthread_mutex_destroy(&d->lock);
    free(d->slots);
    free(d);
}

static uint64_t hash_of(struct span key)
{
    uint64_t h = hash_xxh3(key);

    return h != 0 ? h : 1;
}

/* Where the hash is, or the empty slot where it would be. There is always an empty one. */
static struct slot *find_locked(const struct damage *d, uint64_t hash)
{
    size_t i = hash & (d->n_slots - 1);

    while (d->slots[i].hash != 0 && d->slots[i].hash != hash)
        i = (i + 1) & (d->n_slots - 1);
    return &d->slots[i];
}

static struct slot *find_key_locked(const struct damage *d, struct span key)
{
    struct slot *s = d->n_slots > 0 ? find_locked(d, hash_of(key)) : NULL;

    return s != NULL && s->hash != 0 ? s : NULL;
}

bool damage_has(struct damage *d, struct span key)
{
    bool has;

    if (atomic_load(&d->n) == 0)
        return false;
    pthread_mutex_lock(&d->lock);
    has = find_key_locked(d, key) != NULL;
    pthread_mutex_unlock(&d->lock);
    return has;
}

static int grow_locked(struct damage *d)
{
    size_t n_old = d->n_slots, n = n_old == 0 ? SLOTS_MIN : 2 * n_old;
    struct slot *old = d->slots, *slots;

    if (2 * (atomic_load(&d->n) + 1) <= n_old)
        return 0;
    slots = calloc(n, sizeof(*slots));
    if (slots == NULL)
        return -ENOMEM;
    d->slots = slots;
    d->n_slots = n;
    for (size_t i = 0; i < n_old; i++) {
        if (old[i].hash != 0)
            *find_locked(d, old[i].hash) = old[i];
    }
    free(old);
    return 0;
}

static int add_locked(struct damage *d, uint64_t hash, uint64_t now_us)
{
    struct slot *s;
    int err = grow_locked(d);

    if (err < 0)
        return err;
    s = find_locked(d, hash);
    if (s->hash != 0 && now_us - s->told_us < TELL_AGAIN_US)
        return 0;
    if (s->hash == 0) {
        if (atomic_load(&d->n) >= DAMAGE_MAX)
            return -ENOSPC;
        s->hash = hash;
        s->uncounted = false;
        atomic_fetch_add(&d->n, 1);
    }
    s->told_us = now_us;
    return 1;
}

int damage_add(struct damage *d, struct span key, uint64_t now_us)
{
    int ret;

    pthread_mutex_lock(&d->lock);
    ret = add_locked(d, hash_of(key), now_us);
    pthread_mutex_unlock(&d->lock);
    return ret;
}

/* Moves back those behind it that would no longer be found, as Knuth's Algorithm 6.4R does. */
static void close_gap_locked(struct damage *d, size_t gap)
{
    size_t mask = d->n_slots - 1;

    for (size_t i = (gap + 1) & mask; d->slots[i].hash != 0; i = (i + 1) & mask) {
        size_t home = d->slots[i].hash & mask;

        if (((i - home) & mask) >= ((i - gap) & mask)) {
            d->slots[gap] = d->slots[i];
            gap = i;
        }
    }
    d->slots[gap] = (struct slot){0};
}

void damage_remove(struct damage *d, struct span key)
{
    struct slot *s;

    if (atomic_load(&d->n) == 0)
        return;
    pthread_mutex_lock(&d->lock);
    s = find_key_locked(d, key);
    if (s != NULL) {
        close_gap_locked(d, (size_t)(s - d->slots));
        atomic_fetch_sub(&d->n, 1);
    }
    pthread_mutex_unlock(&d->lock);
}

uint64_t damage_n(const struct damage *d)
{
    return atomic_load(&d->n);
}

void damage_uncount(struct damage *d, struct span key)
{
    struct slot *s;

    pthread_mutex_lock(&d->lock);
    s = find_key_locked(d, key);
    if (s != NULL)
        s->uncounted = true;
    pthread_mutex_unlock(&d->lock);
}

bool damage_uncounted(struct damage *d, struct span key)
{
    struct slot *s;
    bool uncounted;

    pthread_mutex_lock(&d->lock);
    s = find_key_locked(d, key);
    uncounted = s != NULL && s->uncounted;
    pthread_mutex_unlock(&d->lock);
    return uncounted;
}

void damage_recount(struct damage *d)
{
    pthread_mutex_lock(&d->lock);
    for (size_t i = 0; i < d->n_slots; i++)
        d->slots[i].uncounted = false;
    pthread_mutex_unlock(&d->lock);
}

/*
 * promises.c - what this node promised for each key, and the durable floor below which it counts as
 * having promised everything.
 */
#include "node/promises.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "common/hash.h"

#define N_SLOTS (64u << 10)
#define N_STRIPES 1024u

_Static_assert(N_SLOTS % N_STRIPES == 0, "a slot belongs to one stripe");

struct promises {
    struct store *store;
    uint64_t ahead_us;
    struct ballot base;     /* the floor at the start; read under any stripe, changed under all */
    _Atomic uint64_t floor; /* durable; changed under floor_lock */
    pthread_mutex_t floor_lock;
    pthread_mutex_t stripes[N_STRIPES];
    /* Each protected by its stripe; lower than base: base counts. */
    struct ballot slots[N_SLOTS];
};

static int floor_read(struct store *store, uint64_t *out, struct err *err)
{
    struct buf text = {0};
    int ret = store->ops->state_get(store, "floor", &text);
    struct cursor c = cursor_of(buf_span(&text));

    if (ret == -ENOENT) {
        *out = 0;
        ret = 0;
    } else if (ret < 0) {
        err_set(err, ret, "cannot read the floor of promises: %s", strerror(-ret));
    } else {
        uint64_t floor = cursor_u64(&c);

        if (c.err < 0 || cursor_left(&c) > 0)
            ret = err_set(err, -EBADMSG, "the floor of promises is damaged: %zu bytes", text.len);
        else
            *out = floor;
    }
    buf_fini(&text);
    return ret;
}

int promises_open(struct store *store, uint64_t ahead_us, struct promises **out, struct err *err)
{
    struct promises *p;
    uint64_t floor = 0;
    int ret = floor_read(store, &floor, err);

    if (ret < 0)
        return ret;
    p = calloc(1, sizeof(*p));
    if (p == NULL)
        return err_set(err, -ENOMEM, "no memory for the table of promises");
    p->store = store;
    p->ahead_us = ahead_us;
    p->floor = floor;
    p->base = (struct ballot){floor, BALLOT_PROPOSER_MAX};
    pthread_mutex_init(&p->floor_lock, NULL);
    for (unsigned i = 0; i < N_STRIPES; i++)
        pthread_mutex_init(&p->stripes[i], NULL);
    *out = p;
    return 0;
}

void promises_close(struct promises *p)
{
    if (p == NULL)
        return;
    for (unsigned i = 0; i < N_STRIPES; i++)
        pthread_mutex_destroy(&p->stripes[i]);
    pthread_mutex_destroy(&p->floor_lock);
    free(p);
}

unsigned promises_lock(struct promises *p, struct span key)
{
    unsigned slot = (unsigned)(hash_fmix64(hash_fnv1a(key)) % N_SLOTS);

    pthread_mutex_lock(&p->stripes[slot % N_STRIPES]);
    return slot;
}

void promises_unlock(struct promises *p, unsigned slot)
{
    pthread_mutex_unlock(&p->stripes[slot % N_STRIPES]);
}

void promises_lock_all(struct promises *p)
{
    for (unsigned i = 0; i < N_STRIPES; i++)
        pthread_mutex_lock(&p->stripes[i]);
}

void promises_unlock_all(struct promises *p)
{
    for (unsigned i = 0; i < N_STRIPES; i++)
        pthread_mutex_unlock(&p->stripes[i]);
}

struct ballot promises_get(const struct promises *p, unsigned slot)
{
    return ballot_max(p->slots[slot], p->base);
}

static int floor_write_locked(struct promises *p, uint64_t floor)
{
    struct buf text = {0};
    int err;

    buf_u64(&text, floor);
    err = text.err;
    if (err == 0)
        err = p->store->ops->state_put(p->store, "floor", buf_span(&text));
    if (err == 0)
        atomic_store(&p->floor, floor);
    buf_fini(&text);
    return err;
}

/*
 * Makes the floor reach counter. It is raised already when half of what was reserved ahead is used
 * up: whoever notices first does it while all others go on, so that nobody waits for that sync but
 * one request in a few seconds.
 */
static int floor_cover(struct promises *p, uint64_t counter)
{
    uint64_t floor = atomic_load(&p->floor);
    bool needed = counter > floor;
    int err = 0;

    if (!needed && floor - counter >= p->ahead_us / 2)
        return 0;
    if (needed)
        pthread_mutex_lock(&p->floor_lock);
    else if (pthread_mutex_trylock(&p->floor_lock) != 0)
        return 0;
    floor = atomic_load(&p->floor);
    if (counter > floor || floor - counter < p->ahead_us / 2) {
        floor = counter;
        if (p->ahead_us <= BALLOT_COUNTER_MAX - counter)
            floor += p->ahead_us;
        err = floor_write_locked(p, floor);
    }
    pthread_mutex_unlock(&p->floor_lock);
    return needed ? err : 0;
}

int promises_raise(struct promises *p, unsigned slot, struct ballot b)
{
    int err;

    assert(b.counter <= BALLOT_COUNTER_MAX);
    err = floor_cover(p, b.counter);
    if (err == 0)
        p->slots[slot] = ballot_max(p->slots[slot], b);
    return err;
}

int promises_raise_all(struct promises *p, uint64_t counter)
{
    int err = 0;

    assert(counter <= BALLOT_COUNTER_MAX);
    pthread_mutex_lock(&p->floor_lock);
    if (counter > atomic_load(&p->floor))
        err = floor_write_locked(p, counter);
    pthread_mutex_unlock(&p->floor_lock);
    if (err == 0)
        p->base = ballot_max(p->base, (struct ballot){counter, BALLOT_PROPOSER_MAX});
    return err;
}

uint64_t promises_floor(const struct promises *p)
{
    return atomic_load(&p->floor);
}

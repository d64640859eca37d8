/*
 * changes.c - the last changes, in a ring of bytes.
 *
 * Places in the ring are counted on for ever, from 0; a change lies behind the one before it, and
 * goes on at the ring's start where it meets its end. at[] tells where the change with a number
 * begins.
 */
#include "node/changes.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/limits.h"

/* number, version, deleted, length of the key */
#define CHANGE_HEAD_LEN (8u + 16u + 1u + 2u)
#define CHANGE_LEN_MAX (CHANGE_HEAD_LEN + KEY_LEN_MAX)

_Static_assert(KEY_LEN_MAX <= UINT16_MAX, "the length of a key fits");
_Static_assert(CHANGES_BYTES_MAX >= 100 * CHANGE_LEN_MAX, "room for many of the longest");

struct changes {
    uint64_t life;
    unsigned n_max;
    size_t bytes_max;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    /* lock: */
    uint64_t latest, n; /* the last one's number, how many are kept */
    uint64_t end;       /* the place behind the last one */
    uint64_t *at;       /* by number % n_max */
    uint8_t *ring;
    uint64_t
        awaited; /* whose number is above: wakes who waits; UINT64_MAX: nobody, or not for it */
    bool kicked;
};

int changes_new(uint64_t life, unsigned n_max, size_t bytes_max, struct changes **out)
{
    struct changes *c = calloc(1, sizeof(*c));

    assert(n_max > 0 && bytes_max >= CHANGE_LEN_MAX);
    if (c == NULL)
        return -ENOMEM;
    *c = (struct changes){.life = life, .n_max = n_max, .bytes_max = bytes_max};
    c->awaited = UINT64_MAX;
    c->at = calloc(n_max, sizeof(*c->at));
    c->ring = calloc(1, bytes_max); /* rather than malloc: only what is used takes memory */
    pthread_mutex_init(&c->lock, NULL);
    pthread_cond_init(&c->wake, NULL);
    if (c->at == NULL || c->ring == NULL) {
        changes_free(c);
        return -ENOMEM;
    }
    *out = c;
    return 0;
}

void changes_free(struct changes *c)
{
    if (c == NULL)
        return;
    pthread_cond_destroy(&c->wake);
    pthread_mutex_destroy(&c->lock);
    free(c->at);
    free(c->ring);
    free(c);
}

uint64_t changes_life(const struct changes *c)
{
    return c->life;
}

/* --- the ring --------------------------------------------------------------------------------- */

static void put_locked(struct changes *c, const void *data, size_t len)
{
    size_t at = (size_t)(c->end % c->bytes_max), first = c->bytes_max - at;

    if (first > len)
        first = len;
    memcpy(c->ring + at, data, first);
    if (len > first)
        memcpy(c->ring, (const uint8_t *)data + first, len - first);
    c->end += len;
}

static void copy_locked(const struct changes *c, uint64_t from, size_t len, uint8_t *out)
{
    size_t at = (size_t)(from % c->bytes_max), first = c->bytes_max - at;

    if (first > len)
        first = len;
    memcpy(out, c->ring + at, first);
    if (len > first)
        memcpy(out + first, c->ring, len - first);
}

static uint64_t place_locked(const struct changes *c, uint64_t number)
{
    return number > c->latest ? c->end : c->at[number % c->n_max];
}

static void make_room_locked(struct changes *c, size_t len)
{
    while (c->n == c->n_max ||
           (c->n > 0 && c->end + len - place_locked(c, c->latest - c->n + 1) > c->bytes_max))
        c->n--;
}

void changes_add(struct changes *c, struct span key, struct ballot version, bool deleted)
{
    uint8_t head[CHANGE_HEAD_LEN];
    struct buf b = {.data = head, .cap = sizeof(head)};

    assert(key.len <= KEY_LEN_MAX);
    pthread_mutex_lock(&c->lock);
    buf_u64(&b, c->latest + 1); /* within head: nothing is allocated */
    buf_u64(&b, version.counter);
    buf_u64(&b, version.proposer);
    buf_u8(&b, deleted);
    buf_u16(&b, (uint16_t)key.len);
    assert(b.data == head && b.len == sizeof(head));
    make_room_locked(c, sizeof(head) + key.len);
    c->latest++;
    c->n++;
    c->at[c->latest % c->n_max] = c->end;
    put_locked(c, head, sizeof(head));
    put_locked(c, key.data, key.len);
    if (c->latest > c->awaited) {
        c->awaited = UINT64_MAX;
        pthread_cond_signal(&c->wake);
    }
    pthread_mutex_unlock(&c->lock);
}

uint64_t changes_latest(struct changes *c)
{
    uint64_t latest;

    pthread_mutex_lock(&c->lock);
    latest = c->latest;
    pthread_mutex_unlock(&c->lock);
    return latest;
}

int changes_read(struct changes *c, uint64_t after, size_t max, struct buf *out, uint64_t *upto)
{
    uint64_t from, to;
    uint8_t *room;
    int err = 0;

    pthread_mutex_lock(&c->lock);
    if (after > c->latest || after < c->latest - c->n) {
        err = -ENODATA;
        goto out;
    }
    from = place_locked(c, after + 1);
    to = after;
    while (to < c->latest && (to == after || place_locked(c, to + 2) - from <= max))
        to++;
    max = (size_t)(place_locked(c, to + 1) - from);
    room = buf_reserve(out, max);
    if (room == NULL) {
        err = -ENOMEM;
        goto out;
    }
    copy_locked(c, from, max, room);
    out->len += max;
    *upto = to;
out:
    pthread_mutex_unlock(&c->lock);
    return err;
}

bool changes_next(struct cursor *from, struct change *out)
{
    if (cursor_left(from) == 0)
        return false;
    out->number = cursor_u64(from);
    out->version.counter = cursor_u64(from);
    out->version.proposer = cursor_u64(from);
    out->deleted = cursor_u8(from);
    out->key = cursor_bytes16(from);
    assert(from->err == 0);
    return true;
}

/* --- waiting ---------------------------------------------------------------------------------- */

void changes_await(struct changes *c, uint64_t seen, uint64_t for_us)
{
    struct timespec due = clock_after_us(for_us == UINT64_MAX ? 0 : for_us);
    int err = 0;

    pthread_mutex_lock(&c->lock);
    while (!c->kicked && c->latest <= seen && err == 0) {
        c->awaited = seen;
        if (for_us == UINT64_MAX)
            err = pthread_cond_wait(&c->wake, &c->lock);
        else
            err = pthread_cond_clockwait(&c->wake, &c->lock, CLOCK_MONOTONIC, &due);
    }
    c->awaited = UINT64_MAX;
    c->kicked = false;
    pthread_mutex_unlock(&c->lock);
}

void changes_kick(struct changes *c)
{
    pthread_mutex_lock(&c->lock);
    c->kicked = true;
    pthread_cond_signal(&c->wake);
    pthread_mutex_unlock(&c->lock);
}

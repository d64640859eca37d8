/* watchers.c - wakes those who watch. */
#include "node/watchers.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

/*
 * No more often are they woken for changes: under a flood of them each gets many at once, and one
 * that comes alone is not held up.
 */
#define PACE_US 1000u
/* One that was woken and has not come to look yet is tried again then. */
#define AGAIN_US 100000u
/* From the stop to the cut of one whose client takes nothing. */
#define STOP_US 200000u

struct watchers {
    struct changes *changes;
    struct clock *clock;
    unsigned max;
    pthread_t thread;
    pthread_mutex_t lock;
    struct list all; /* lock */
    unsigned n;      /* lock */
    _Atomic bool stopped, end;
};

/* Wakes those for whom there is something; returns in how long to look again. */
static uint64_t wake_locked(struct watchers *ws, uint64_t latest, uint64_t now)
{
    uint64_t next = UINT64_MAX;

    for (struct list *l = ws->all.next; l != &ws->all; l = l->next) {
        struct watcher *w = container_of(l, struct watcher, link);
        uint64_t due = atomic_load(&w->due_us);

        if (atomic_load(&w->seen) < latest || due <= now) {
            exchange_wake(w->x);
            due = now + AGAIN_US;
        }
        next = due - now < next ? due - now : next;
    }
    return next;
}

/* How much of us is left since then. */
static uint64_t left_us(const struct watchers *ws, uint64_t since, uint64_t us)
{
    uint64_t passed = ws->clock->mono_us(ws->clock) - since;

    return passed < us ? us - passed : 0;
}

static void *watchers_thread(void *arg)
{
    struct watchers *ws = arg;

    while (!atomic_load(&ws->end)) {
        uint64_t now = ws->clock->mono_us(ws->clock), latest = changes_latest(ws->changes), next;
        bool any;

        pthread_mutex_lock(&ws->lock);
        next = wake_locked(ws, latest, now);
        any = ws->n > 0;
        pthread_mutex_unlock(&ws->lock);
        changes_await(ws->changes, any ? latest : UINT64_MAX, next);
        if (any)
            changes_await(ws->changes, UINT64_MAX, left_us(ws, now, PACE_US));
    }
    return NULL;
}

int watchers_new(struct changes *changes, struct clock *clock, unsigned max, struct watchers **out)
{
    struct watchers *ws = calloc(1, sizeof(*ws));
    int err;

    if (ws == NULL)
        return -ENOMEM;
    ws->changes = changes;
    ws->clock = clock;
    ws->max = max;
    list_init(&ws->all);
    pthread_mutex_init(&ws->lock, NULL);
    err = pthread_create(&ws->thread, NULL, watchers_thread, ws);
    if (err != 0) {
        pthread_mutex_destroy(&ws->lock);
        free(ws);
        return -err;
    }
    pthread_setname_np(ws->thread, "kv-watchers");
    *out = ws;
    return 0;
}

void watchers_free(struct watchers *ws)
{
    if (ws == NULL)
        return;
    atomic_store(&ws->end, true);
    changes_kick(ws->changes);
    pthread_join(ws->thread, NULL);
    assert(list_empty(&ws->all));
    pthread_mutex_destroy(&ws->lock);
    free(ws);
}

int watchers_add(struct watchers *ws, struct watcher *w)
{
    int err = 0;

    pthread_mutex_lock(&ws->lock);
    if (atomic_load(&ws->stopped))
        err = -ESHUTDOWN;
    else if (ws->n >= ws->max)
        err = -EBUSY;
    if (err == 0) {
        list_insert(&ws->all, &w->link);
        ws->n++;
    }
    pthread_mutex_unlock(&ws->lock);
    if (err == 0)
        changes_kick(ws->changes); /* its due_us may be the next */
    return err;
}

void watchers_remove(struct watchers *ws, struct watcher *w)
{
    pthread_mutex_lock(&ws->lock);
    list_remove(&w->link);
    ws->n--;
    pthread_mutex_unlock(&ws->lock);
}

unsigned watchers_count(struct watchers *ws)
{
    unsigned n;

    pthread_mutex_lock(&ws->lock);
    n = ws->n;
    pthread_mutex_unlock(&ws->lock);
    return n;
}

void watchers_stop(struct watchers *ws)
{
    if (ws == NULL)
        return;
    pthread_mutex_lock(&ws->lock);
    atomic_store(&ws->stopped, true);
    for (struct list *l = ws->all.next; l != &ws->all; l = l->next) {
        struct watcher *w = container_of(l, struct watcher, link);

        exchange_hurry(w->x, STOP_US);
        exchange_wake(w->x);
    }
    pthread_mutex_unlock(&ws->lock);
}

bool watchers_stopped(const struct watchers *ws)
{
    return atomic_load(&ws->stopped);
}

/*
 * watchers.h - who watches the changes of this node (GET /watch), and the thread that wakes them:
 * when there is a change, or when it is time for a heartbeat. It sleeps while nobody watches. (Not
 * to be confused with watch.h, which looks after the store.)
 */
#ifndef KVFS_NODE_WATCHERS_H
#define KVFS_NODE_WATCHERS_H

#include <stdatomic.h>

#include "common/clock.h"
#include "common/list.h"
#include "node/changes.h"
#include "node/server.h"

struct watchers;

/* The watcher's own memory, from watchers_add() to watchers_remove(). */
struct watcher {
    struct exchange *x; /* woken by exchange_wake() */
    struct list link;   /* the lock of watchers */
    /*
     * What it has seen of the changes, and when it is to be woken if there are none. Both set
     * before watchers_add(); due_us only grows.
     */
    _Atomic uint64_t seen, due_us;
};

/* changes: borrowed. 0 or -errno. */
int watchers_new(struct changes *changes, struct clock *clock, unsigned max, struct watchers **out);
void watchers_free(struct watchers *ws); /* NULL is allowed; none may be left */

/* 0; -EBUSY: there are `max` already; -ESHUTDOWN: after watchers_stop(). Any thread. */
int watchers_add(struct watchers *ws, struct watcher *w);
/* Not woken any more from here on. */
void watchers_remove(struct watchers *ws, struct watcher *w);
unsigned watchers_count(struct watchers *ws);

/*
 * They are to end: all are woken, and find watchers_stopped(); those that do not fetch what they
 * are sent are cut soon.
 */
void watchers_stop(struct watchers *ws);
bool watchers_stopped(const struct watchers *ws);

#endif

/* watch.c - the thread that probes the store. */
#include "node/watch.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/log.h"

struct watch {
    struct store *store;
    struct clock *clock;
    void (*on_unfit)(void *arg);
    void *arg;
    bool unfit_told; /* the watch's thread's */
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    bool stop; /* lock */
    _Atomic int state;
    _Atomic uint64_t since_us; /* when that last came to be 0, or to be not */
    _Atomic uint64_t begun_us; /* of the probe under way; 0: none */
};

static void probe(struct watch *w)
{
    int was = atomic_load(&w->state), now;

    atomic_store(&w->begun_us, w->clock->mono_us(w->clock));
    if (w->store->ops->tend != NULL)
        w->store->ops->tend(w->store);
    now = w->store->ops->probe(w->store);
    atomic_store(&w->begun_us, 0);
    atomic_store(&w->state, now);
    if ((now == 0) != (was == 0))
        atomic_store(&w->since_us, w->clock->mono_us(w->clock));
    if (now != 0 && was == 0) {
        struct err why;

        store_explain(w->store, now, &why);
        log_event(LOG_LEVEL_ERROR, "store-failed", "error=%s", log_quote(why.msg, strlen(why.msg)));
    }
    if (now == 0 && was != 0)
        log_event(LOG_LEVEL_INFO, "store-well-again", "probe=ok");
    if (!w->unfit_told && (w->store->ops->damage(w->store, NULL) < 0 || store_is_stuck(w->store))) {
        w->unfit_told = true;
        w->on_unfit(w->arg);
    }
}

static void *watch_thread(void *arg)
{
    struct watch *w = arg;

    pthread_mutex_lock(&w->lock);
    while (!w->stop) {
        struct timespec ts;

        clock_gettime(CLOCK_MONOTONIC, &ts);
        ts.tv_sec += WATCH_PERIOD_US / 1000000;
        if (pthread_cond_clockwait(&w->wake, &w->lock, CLOCK_MONOTONIC, &ts) != ETIMEDOUT)
            continue;
        pthread_mutex_unlock(&w->lock);
        probe(w);
        pthread_mutex_lock(&w->lock);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

int watch_new(struct store *store, struct clock *clock, void (*on_unfit)(void *arg), void *arg,
              struct watch **out)
{
    struct watch *w = calloc(1, sizeof(*w));
    int r;

    if (w == NULL)
        return -ENOMEM;
    w->store = store;
    w->clock = clock;
    w->on_unfit = on_unfit;
    w->arg = arg;
    w->since_us = clock->mono_us(clock);
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->wake, NULL);
    probe(w);
    r = pthread_create(&w->thread, NULL, watch_thread, w);
    if (r != 0) {
        pthread_cond_destroy(&w->wake);
        pthread_mutex_destroy(&w->lock);
        free(w);
        return -r;
    }
    pthread_setname_np(w->thread, "kv-store-watch");
    *out = w;
    return 0;
}

void watch_free(struct watch *w)
{
    if (w == NULL)
        return;
    pthread_mutex_lock(&w->lock);
    w->stop = true;
    pthread_cond_signal(&w->wake);
    pthread_mutex_unlock(&w->lock);
    pthread_join(w->thread, NULL);
    pthread_cond_destroy(&w->wake);
    pthread_mutex_destroy(&w->lock);
    free(w);
}

int watch_state(struct watch *w)
{
    uint64_t begun = atomic_load(&w->begun_us);

    if (begun != 0 && w->clock->mono_us(w->clock) - begun > WATCH_STUCK_US)
        return -ETIMEDOUT;
    return w->store->ops->damage(w->store, NULL) < 0 ? -EBADMSG : atomic_load(&w->state);
}

int watch_explain(struct watch *w, struct err *why)
{
    int err = watch_state(w);

    if (err == -EBADMSG)
        err_set(why, err, "it is damaged, and is about to be set aside");
    else if (err == -ETIMEDOUT)
        err_set(why, err, "a write has not come back for %u s", WATCH_STUCK_US / 1000000);
    else if (err < 0)
        store_explain(w->store, err, why);
    return err;
}

uint64_t watch_since_us(struct watch *w)
{
    return atomic_load(&w->since_us);
}

/*
 * scrub.c - a thread that reads the whole store once in a period: a step of some bytes, and a pause
 * as long as makes the pass take the period.
 */
#include "node/scrub.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "common/log.h"

#define STEP_BYTES (1u << 20)
/* How large the store is, before the first pass has found out. */
#define SIZE_GUESS (1ull << 40)
#define AGAIN_US 10000000u  /* after an error */
#define NO_ROOM_US 1000000u /* until a look whether there is room again */

struct scrub {
    struct scrub_opts opts;
    pthread_t thread;
    _Atomic bool stop;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    bool stale; /* lock, as are: the digests must be counted anew */
    struct scrub_progress progress;

    /* Of the pass under way; the thread's. */
    struct buf pos;
    uint64_t begun_us, n_bytes;
    uint64_t size; /* of the pass before */
    bool failing;  /* logged already */
};

static uint64_t mono_us(const struct scrub *s)
{
    return s->opts.clock->mono_us(s->opts.clock);
}

/* Until then, or until somebody wants something of the thread. */
static void scrub_wait(struct scrub *s, uint64_t us)
{
    struct timespec ts = clock_after_us(us);

    pthread_mutex_lock(&s->lock);
    while (!atomic_load(&s->stop) && !s->stale &&
           pthread_cond_clockwait(&s->wake, &s->lock, CLOCK_MONOTONIC, &ts) != ETIMEDOUT)
        ;
    pthread_mutex_unlock(&s->lock);
}

/* Logs the first error of a row. */
static void scrub_failed(struct scrub *s, const char *what, int err)
{
    if (err != -EINTR && !s->failing)
        log_event(LOG_LEVEL_ERROR, "scrub-failed", "what=%s error=%s", what,
                  log_quote(strerror(-err), strlen(strerror(-err))));
    s->failing = err != -EINTR;
    scrub_wait(s, AGAIN_US);
}

static bool take_stale(struct scrub *s)
{
    bool stale;

    pthread_mutex_lock(&s->lock);
    stale = s->stale;
    s->stale = false;
    pthread_mutex_unlock(&s->lock);
    return stale;
}

static void scrub_index(struct scrub *s)
{
    int err;

    while (!atomic_load(&s->stop)) {
        (void)take_stale(s);
        err = replica_index(s->opts.replica, &s->stop);
        if (err == 0) {
            s->failing = false;
            s->opts.on_indexed(s->opts.arg);
            return;
        }
        scrub_failed(s, "index", err);
    }
}

static void note_step(struct scrub *s, const struct scrub_result *res)
{
    struct clock *clock = s->opts.clock;

    pthread_mutex_lock(&s->lock);
    s->progress.n_keys += res->n_keys;
    s->progress.n_bytes += res->n_bytes;
    s->progress.n_damaged += res->n_damaged;
    if (res->done) {
        s->progress.n_passes++;
        s->progress.last_us = clock->wall_us(clock);
    }
    pthread_mutex_unlock(&s->lock);
}

/* Returns how long to pause then. */
static uint64_t scrub_step(struct scrub *s)
{
    struct scrub_result res = {0};
    uint64_t now, old = s->opts.old_counter(s->opts.arg);
    int err;

    if (s->pos.len == 0)
        s->begun_us = mono_us(s);
    err = replica_scrub(s->opts.replica, &s->pos, STEP_BYTES, old, s->opts.on_tombstone,
                        s->opts.arg, &res);
    if (err != 0) {
        scrub_failed(s, "scrub", err);
        return 0;
    }
    s->failing = false;
    s->n_bytes += res.n_bytes;
    note_step(s, &res);
    if (!res.done)
        return (uint64_t)((double)s->opts.period_us * STEP_BYTES / (double)s->size);
    s->size = s->n_bytes > STEP_BYTES ? s->n_bytes : STEP_BYTES;
    s->n_bytes = 0;
    buf_clear(&s->pos);
    now = mono_us(s);
    return now < s->begun_us + s->opts.period_us ? s->begun_us + s->opts.period_us - now : 0;
}

static void *scrub_thread(void *arg)
{
    struct scrub *s = arg;

    scrub_index(s);
    while (!atomic_load(&s->stop)) {
        if (take_stale(s))
            scrub_index(s);
        else if (!s->opts.has_room(s->opts.arg))
            scrub_wait(s, NO_ROOM_US);
        else
            scrub_wait(s, scrub_step(s));
    }
    return NULL;
}

int scrub_new(const struct scrub_opts *opts, struct scrub **out)
{
    struct scrub *s = calloc(1, sizeof(*s));
    int err;

    if (s == NULL)
        return -ENOMEM;
    s->opts = *opts;
    s->size = SIZE_GUESS;
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->wake, NULL);
    err = pthread_create(&s->thread, NULL, scrub_thread, s);
    if (err != 0) {
        pthread_cond_destroy(&s->wake);
        pthread_mutex_destroy(&s->lock);
        free(s);
        return -err;
    }
    pthread_setname_np(s->thread, "kv-scrub");
    *out = s;
    return 0;
}

void scrub_stop(struct scrub *s)
{
    pthread_mutex_lock(&s->lock);
    atomic_store(&s->stop, true);
    pthread_cond_signal(&s->wake);
    pthread_mutex_unlock(&s->lock);
    pthread_join(s->thread, NULL);
}

void scrub_free(struct scrub *s)
{
    if (s == NULL)
        return;
    pthread_cond_destroy(&s->wake);
    pthread_mutex_destroy(&s->lock);
    buf_fini(&s->pos);
    free(s);
}

void scrub_reindex(struct scrub *s)
{
    pthread_mutex_lock(&s->lock);
    s->stale = true;
    pthread_cond_signal(&s->wake);
    pthread_mutex_unlock(&s->lock);
}

void scrub_get_progress(struct scrub *s, struct scrub_progress *out)
{
    pthread_mutex_lock(&s->lock);
    *out = s->progress;
    pthread_mutex_unlock(&s->lock);
}

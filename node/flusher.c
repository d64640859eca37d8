/*
 * flusher.c - the thread of --fsync everysec: syncs the log once a second when something was
 * written.
 */
#include "node/flusher.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#define FLUSH_EVERY_S 1

struct flusher {
    struct rocks *rocks;
    struct value_dir *values;
    pthread_t thread;
    pthread_cond_t wake;
    pthread_mutex_t lock; /* of the fields below */
    bool stopping, dirty;
    /* U64 ids of files that only the unsynced end of the log has forgotten. */
    struct buf doomed;
};

/* Syncs the log, then removes the files that it has forgotten. The lock is given up meanwhile. */
static void flush_locked(struct flusher *f)
{
    struct buf doomed = f->doomed;
    struct cursor c = cursor_of(buf_span(&doomed));
    int err;

    f->doomed = (struct buf){0};
    f->dirty = false;
    pthread_mutex_unlock(&f->lock);
    err = rocks_sync(f->rocks);
    /* After a failure they stay until the next start sweeps them. */
    while (err == 0 && cursor_left(&c) > 0)
        value_dir_remove(f->values, cursor_u64(&c));
    buf_fini(&doomed);
    pthread_mutex_lock(&f->lock);
}

static void *flusher_main(void *arg)
{
    struct flusher *f = arg;
    struct timespec due;

    pthread_mutex_lock(&f->lock);
    while (!f->stopping) {
        clock_gettime(CLOCK_MONOTONIC, &due);
        due.tv_sec += FLUSH_EVERY_S;
        while (!f->stopping && pthread_cond_timedwait(&f->wake, &f->lock, &due) != ETIMEDOUT)
            continue;
        if (f->dirty)
            flush_locked(f);
    }
    pthread_mutex_unlock(&f->lock);
    return NULL;
}

static void flusher_free(struct flusher *f)
{
    buf_fini(&f->doomed);
    pthread_cond_destroy(&f->wake);
    pthread_mutex_destroy(&f->lock);
    free(f);
}

int flusher_start(struct rocks *rocks, struct value_dir *values, struct flusher **out)
{
    struct flusher *f = calloc(1, sizeof(*f));
    pthread_condattr_t attr;
    int err;

    if (f == NULL)
        return -ENOMEM;
    f->rocks = rocks;
    f->values = values;
    pthread_mutex_init(&f->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&f->wake, &attr);
    pthread_condattr_destroy(&attr);
    err = -pthread_create(&f->thread, NULL, flusher_main, f);
    if (err < 0) {
        flusher_free(f);
        return err;
    }
    (void)pthread_setname_np(f->thread, "kv-flush");
    *out = f;
    return 0;
}

void flusher_stop(struct flusher *f)
{
    if (f == NULL)
        return;
    pthread_mutex_lock(&f->lock);
    f->stopping = true;
    pthread_cond_signal(&f->wake);
    pthread_mutex_unlock(&f->lock);
    pthread_join(f->thread, NULL);
    flusher_free(f);
}

void flusher_wrote(struct flusher *f)
{
    pthread_mutex_lock(&f->lock);
    f->dirty = true;
    pthread_mutex_unlock(&f->lock);
}

void flusher_forget(struct flusher *f, uint64_t id)
{
    pthread_mutex_lock(&f->lock);
    f->dirty = true;
    if (f->doomed.err == 0)
        buf_u64(&f->doomed, id); /* without memory for it: it stays until the next start */
    pthread_mutex_unlock(&f->lock);
}

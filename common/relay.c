/* relay.c - bytes handed on to a worker. */
#include "common/relay.h"

#include <errno.h>
#include <stdlib.h>

struct relay {
    struct workers *workers;
    const struct relay_ops *ops;
    void *arg;
    struct loop_job job;
    struct buf taking; /* the worker's */

    pthread_mutex_t lock; /* all below */
    struct buf filling;
    int err;
    bool busy; /* the job is posted or runs */
    bool full, ending, dropped;
    unsigned refs; /* its owner's, and of the job while busy */
};

static void relay_unref_unlock(struct relay *r)
{
    bool last = --r->refs == 0;

    pthread_mutex_unlock(&r->lock);
    if (!last)
        return;
    r->ops->free(r->arg);
    pthread_mutex_destroy(&r->lock);
    buf_fini(&r->taking);
    buf_fini(&r->filling);
    free(r);
}

static void post_locked(struct relay *r)
{
    if (r->busy)
        return;
    r->busy = true;
    r->refs++;
    workers_post(r->workers, &r->job);
}

/* Takes what has come. The lock is given up meanwhile. */
static void take_locked(struct relay *r)
{
    struct buf come = r->filling;
    bool room = r->full && !r->dropped, take;
    int err = 0;

    r->filling = r->taking;
    r->taking = come;
    r->full = false;
    if (r->err == 0 && workers_hurried(r->workers))
        r->err = -ECANCELED;
    take = r->err == 0 && !r->dropped && come.len > 0;
    pthread_mutex_unlock(&r->lock);
    if (room) /* more may come while this is being taken */
        r->ops->room(r->arg);
    if (take)
        err = r->ops->take(r->arg, buf_span(&r->taking));
    buf_clear(&r->taking);
    pthread_mutex_lock(&r->lock);
    if (r->err == 0)
        r->err = err;
}

static void on_job(struct loop_job *job)
{
    struct relay *r = container_of(job, struct relay, job);
    int err;

    pthread_mutex_lock(&r->lock);
    take_locked(r);
    if (r->filling.len > 0 && !r->dropped) {
        /* Behind the others that wait: each gets its turn. */
        workers_post(r->workers, &r->job);
        pthread_mutex_unlock(&r->lock);
        return;
    }
    if (r->ending && !r->dropped) {
        r->ending = false;
        err = r->err;
        pthread_mutex_unlock(&r->lock);
        r->ops->ended(r->arg, err);
        pthread_mutex_lock(&r->lock);
    }
    r->busy = false;
    relay_unref_unlock(r);
}

int relay_new(struct workers *w, const struct relay_ops *ops, void *arg, struct relay **out)
{
    struct relay *r = calloc(1, sizeof(*r));

    if (r == NULL)
        return -ENOMEM;
    *r = (struct relay){.workers = w, .ops = ops, .arg = arg, .job.fn = on_job, .refs = 1};
    pthread_mutex_init(&r->lock, NULL);
    *out = r;
    return 0;
}

int relay_add(struct relay *r, struct span part)
{
    int ret;

    pthread_mutex_lock(&r->lock);
    if (r->err == 0 && workers_hurried(r->workers))
        r->err = -ECANCELED;
    if (r->err == 0) {
        buf_add_span(&r->filling, part);
        r->err = r->filling.err;
    }
    ret = r->err;
    if (ret == 0) {
        post_locked(r);
        r->full = r->filling.len >= RELAY_LEN;
        ret = r->full ? RELAY_FULL : 0;
    }
    pthread_mutex_unlock(&r->lock);
    return ret;
}

void relay_end(struct relay *r)
{
    pthread_mutex_lock(&r->lock);
    r->ending = true;
    post_locked(r);
    pthread_mutex_unlock(&r->lock);
}

void relay_free(struct relay *r)
{
    if (r == NULL)
        return;
    pthread_mutex_lock(&r->lock);
    r->dropped = true;
    relay_unref_unlock(r);
}

/* workers.c - a few threads for what waits for a disk. */
#include "common/workers.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>

struct workers {
    pthread_mutex_t lock;
    pthread_cond_t wake;
    struct list jobs;    /* lock, as are the next two */
    unsigned n_sleeping; /* threads; */
    bool ending;
    _Atomic bool hurried;
    unsigned n;
    pthread_t threads[];
};

static void *worker_main(void *arg)
{
    struct workers *w = arg;

    pthread_mutex_lock(&w->lock);
    for (;;) {
        struct loop_job *job;

        while (list_empty(&w->jobs) && !w->ending) {
            w->n_sleeping++;
            pthread_cond_wait(&w->wake, &w->lock);
            w->n_sleeping--;
        }
        if (list_empty(&w->jobs))
            break;
        job = container_of(w->jobs.next, struct loop_job, link);
        list_remove(&job->link);
        pthread_mutex_unlock(&w->lock);
        job->fn(job);
        pthread_mutex_lock(&w->lock);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

int workers_new(unsigned n, const char *name, struct workers **out)
{
    struct workers *w = calloc(1, sizeof(*w) + n * sizeof(w->threads[0]));
    sigset_t all, before;
    int err = 0;

    if (w == NULL)
        return -ENOMEM;
    list_init(&w->jobs);
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->wake, NULL);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* signals are for the program's other threads */
    while (err == 0 && w->n < n) {
        err = -pthread_create(&w->threads[w->n], NULL, worker_main, w);
        if (err == 0)
            (void)pthread_setname_np(w->threads[w->n++], name);
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (err < 0) {
        workers_free(w);
        return err;
    }
    *out = w;
    return 0;
}

void workers_post(struct workers *w, struct loop_job *job)
{
    pthread_mutex_lock(&w->lock);
    list_insert(&w->jobs, &job->link);
    if (w->n_sleeping > 0)
        pthread_cond_signal(&w->wake);
    pthread_mutex_unlock(&w->lock);
}

void workers_hurry(struct workers *w)
{
    atomic_store(&w->hurried, true);
}

bool workers_hurried(const struct workers *w)
{
    return atomic_load(&w->hurried);
}

void workers_free(struct workers *w)
{
    if (w == NULL)
        return;
    pthread_mutex_lock(&w->lock);
    w->ending = true;
    pthread_cond_broadcast(&w->wake);
    pthread_mutex_unlock(&w->lock);
    for (unsigned i = 0; i < w->n; i++)
        pthread_join(w->threads[i], NULL);
    pthread_cond_destroy(&w->wake);
    pthread_mutex_destroy(&w->lock);
    free(w);
}

/* dir_moves.c - the directories that this mount is just moving. */
#include "fs/dir_moves.h"

#include <time.h>

#define WAIT_STEP_NS 100000000l

void dir_moves_init(struct dir_moves *d)
{
    pthread_condattr_t attr;

    d->n = 0;
    list_init(&d->moves);
    pthread_mutex_init(&d->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&d->ended, &attr);
    pthread_condattr_destroy(&attr);
}

void dir_moves_fini(struct dir_moves *d)
{
    pthread_cond_destroy(&d->ended);
    pthread_mutex_destroy(&d->lock);
}

void dir_moves_begin(struct dir_moves *d, struct dir_move *m, struct span from)
{
    m->from = from;
    pthread_mutex_lock(&d->lock);
    list_insert(&d->moves, &m->link);
    d->n++;
    pthread_mutex_unlock(&d->lock);
}

void dir_moves_end(struct dir_moves *d, struct dir_move *m)
{
    pthread_mutex_lock(&d->lock);
    list_remove(&m->link);
    d->n--;
    pthread_cond_broadcast(&d->ended);
    pthread_mutex_unlock(&d->lock);
}

bool dir_moves_has(struct dir_moves *d, struct span key)
{
    bool has = false;

    if (d->n == 0)
        return false;
    pthread_mutex_lock(&d->lock);
    for (struct list *at = d->moves.next; at != &d->moves && !has; at = at->next)
        has = span_has_prefix(key, container_of(at, struct dir_move, link)->from);
    pthread_mutex_unlock(&d->lock);
    return has;
}

void dir_moves_wait_step(struct dir_moves *d)
{
    struct timespec until;

    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += WAIT_STEP_NS;
    if (until.tv_nsec >= 1000000000l) {
        until.tv_nsec -= 1000000000l;
        until.tv_sec++;
    }
    pthread_mutex_lock(&d->lock);
    if (d->n > 0)
        pthread_cond_timedwait(&d->ended, &d->lock, &until);
    pthread_mutex_unlock(&d->lock);
}

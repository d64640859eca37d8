/* dir_moves.c - the directories that this mount is just moving, and those that are being used. */
#include "fs/dir_moves.h"

#include <errno.h>
#include <time.h>

#define WAIT_STEP_NS 100000000l

void dir_moves_init(struct dir_moves *d)
{
    pthread_condattr_t attr;

    d->n = 0;
    d->n_ended = 0;
    list_init(&d->moves);
    list_init(&d->uses);
    pthread_mutex_init(&d->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&d->changed, &attr);
    pthread_condattr_destroy(&attr);
}

void dir_moves_fini(struct dir_moves *d)
{
    pthread_cond_destroy(&d->changed);
    pthread_mutex_destroy(&d->lock);
}

static void wait_changed_locked(struct dir_moves *d)
{
    struct timespec until;

    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += WAIT_STEP_NS;
    if (until.tv_nsec >= 1000000000l) {
        until.tv_nsec -= 1000000000l;
        until.tv_sec++;
    }
    pthread_cond_timedwait(&d->changed, &d->lock, &until);
}

/* --- moving ----------------------------------------------------------------------------------- */

static bool is_used_locked(const struct dir_moves *d, struct span prefix)
{
    bool used = false;

    for (struct list *at = d->uses.next; at != &d->uses && !used; at = at->next)
        used = span_has_prefix(container_of(at, struct dir_use, link)->prefix, prefix);
    return used;
}

static void end_locked(struct dir_moves *d, struct dir_move *m)
{
    list_remove(&m->link);
    d->n--;
    d->n_ended++;
    pthread_cond_broadcast(&d->changed);
}

int dir_moves_begin(struct dir_moves *d, struct caller *who, struct dir_move *m, struct span from)
{
    m->from = from;
    pthread_mutex_lock(&d->lock);
    list_insert(&d->moves, &m->link);
    d->n++;
    while (is_used_locked(d, from) && !caller_stopped(who))
        wait_changed_locked(d);
    m->alone = !is_used_locked(d, from);
    if (!m->alone)
        end_locked(d, m);
    pthread_mutex_unlock(&d->lock);
    return m->alone ? 0 : -EINTR;
}

void dir_moves_end(struct dir_moves *d, struct dir_move *m)
{
    pthread_mutex_lock(&d->lock);
    end_locked(d, m);
    pthread_mutex_unlock(&d->lock);
}

/* alone: in one from which nobody is waited for to leave; who is in it goes on to the end. */
static bool has_locked(const struct dir_moves *d, struct span key, bool alone)
{
    bool has = false;

    for (struct list *at = d->moves.next; at != &d->moves && !has; at = at->next) {
        const struct dir_move *m = container_of(at, struct dir_move, link);

        has = (m->alone || !alone) && span_has_prefix(key, m->from);
    }
    return has;
}

bool dir_moves_has(struct dir_moves *d, struct span key)
{
    bool has;

    if (d->n == 0)
        return false;
    pthread_mutex_lock(&d->lock);
    has = has_locked(d, key, true);
    pthread_mutex_unlock(&d->lock);
    return has;
}

/* --- using ------------------------------------------------------------------------------------ */

uint64_t dir_moves_ended(struct dir_moves *d)
{
    uint64_t n_ended;

    pthread_mutex_lock(&d->lock);
    n_ended = d->n_ended;
    pthread_mutex_unlock(&d->lock);
    return n_ended;
}

int dir_moves_enter(struct dir_moves *d, uint64_t n_ended, struct dir_use *a, struct dir_use *b)
{
    int err = 0;

    pthread_mutex_lock(&d->lock);
    if (d->n_ended != n_ended)
        err = -EAGAIN;
    else if (has_locked(d, a->prefix, false) || (b != NULL && has_locked(d, b->prefix, false)))
        err = -EBUSY;
    if (err == 0)
        list_insert(&d->uses, &a->link);
    if (err == 0 && b != NULL)
        list_insert(&d->uses, &b->link);
    pthread_mutex_unlock(&d->lock);
    return err;
}

void dir_moves_leave(struct dir_moves *d, struct dir_use *u)
{
    pthread_mutex_lock(&d->lock);
    list_remove(&u->link);
    if (d->n > 0)
        pthread_cond_broadcast(&d->changed);
    pthread_mutex_unlock(&d->lock);
}

void dir_moves_wait_step(struct dir_moves *d, uint64_t n_ended)
{
    pthread_mutex_lock(&d->lock);
    if (d->n > 0 && d->n_ended == n_ended)
        wait_changed_locked(d);
    pthread_mutex_unlock(&d->lock);
}

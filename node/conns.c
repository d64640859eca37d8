/* conns.c - the open connections and the thread that ends those past their deadline. */
#include "node/conns.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/socket.h>

#include "common/list.h"

enum conn_state { WAITS, WORKS, EVICTED };

struct conn {
    struct conns *owner;
    struct list link; /* lock */
    int fd;
    _Atomic enum conn_state state; /* EVICTED is the last, and set under lock */
    _Atomic bool linger, keep;
    _Atomic uint64_t since_us;    /* when it began to wait */
    _Atomic uint64_t deadline_us; /* 0: none */
};

struct conns {
    struct clock *clock;
    unsigned soft_max; /* lock */
    struct span farewell;
    _Atomic bool closing; /* conns_close_waiting() */
    bool closing_kept;    /* lock */
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    struct list all;          /* lock */
    unsigned n, n_evicted;    /* lock; n_evicted: shut down for room, not yet removed */
    bool stop;                /* lock */
    _Atomic uint64_t next_us; /* when the thread looks again; UINT64_MAX: when woken */
};

/* Shuts down what is past its deadline; returns the earliest deadline of the rest. */
static uint64_t expire_locked(struct conns *cs, uint64_t now)
{
    uint64_t next = UINT64_MAX;

    for (struct list *l = cs->all.next; l != &cs->all; l = l->next) {
        struct conn *c = container_of(l, struct conn, link);
        uint64_t due = atomic_load(&c->deadline_us);

        if (due == 0)
            continue;
        if (due > now) {
            if (due < next)
                next = due;
        } else if (atomic_compare_exchange_strong(&c->deadline_us, &due, 0)) {
            shutdown(c->fd, SHUT_RDWR);
        }
    }
    return next;
}

static struct conn *longest_waiting_locked(struct conns *cs)
{
    struct conn *found = NULL;

    for (struct list *l = cs->all.next; l != &cs->all; l = l->next) {
        struct conn *c = container_of(l, struct conn, link);

        if (atomic_load(&c->state) != WAITS || (atomic_load(&c->keep) && !cs->closing_kept))
            continue;
        if (found == NULL || atomic_load(&c->since_us) < atomic_load(&found->since_us))
            found = c;
    }
    return found;
}

static void make_room_locked(struct conns *cs)
{
    while (cs->n - cs->n_evicted > cs->soft_max) {
        struct conn *c = longest_waiting_locked(cs);
        enum conn_state waits = WAITS;

        if (c == NULL)
            return;
        if (!atomic_compare_exchange_strong(&c->state, &waits, EVICTED))
            continue; /* its request has just come */
        cs->n_evicted++;
        if (!atomic_load(&cs->closing)) {
            /* A request that is on its way is answered with this. */
            (void)send(c->fd, cs->farewell.data, cs->farewell.len, MSG_DONTWAIT | MSG_NOSIGNAL);
            conn_linger(c);
        }
        shutdown(c->fd, SHUT_RDWR);
    }
}

static void *conns_thread(void *arg)
{
    struct conns *cs = arg;

    pthread_mutex_lock(&cs->lock);
    while (!cs->stop) {
        uint64_t now, next;

        /*
         * Far away first: a deadline that is set while we look must not find an old, nearer value
         * and stay silent.
         */
        atomic_store(&cs->next_us, UINT64_MAX);
        now = cs->clock->mono_us(cs->clock);
        next = expire_locked(cs, now);
        make_room_locked(cs);
        atomic_store(&cs->next_us, next);
        if (next == UINT64_MAX) {
            pthread_cond_wait(&cs->wake, &cs->lock);
        } else {
            struct timespec ts = clock_after_us(next - now);

            pthread_cond_clockwait(&cs->wake, &cs->lock, CLOCK_MONOTONIC, &ts);
        }
    }
    pthread_mutex_unlock(&cs->lock);
    return NULL;
}

int conns_new(struct clock *clock, unsigned soft_max, struct span farewell, struct conns **out)
{
    struct conns *cs = calloc(1, sizeof(*cs));
    int err;

    if (cs == NULL)
        return -ENOMEM;
    cs->clock = clock;
    cs->soft_max = soft_max;
    cs->farewell = farewell;
    atomic_store(&cs->next_us, UINT64_MAX);
    list_init(&cs->all);
    pthread_mutex_init(&cs->lock, NULL);
    pthread_cond_init(&cs->wake, NULL);
    err = pthread_create(&cs->thread, NULL, conns_thread, cs);
    if (err != 0) {
        pthread_cond_destroy(&cs->wake);
        pthread_mutex_destroy(&cs->lock);
        free(cs);
        return -err;
    }
    pthread_setname_np(cs->thread, "kv-deadlines");
    *out = cs;
    return 0;
}

void conns_free(struct conns *cs)
{
    if (cs == NULL)
        return;
    pthread_mutex_lock(&cs->lock);
    cs->stop = true;
    pthread_cond_signal(&cs->wake);
    pthread_mutex_unlock(&cs->lock);
    pthread_join(cs->thread, NULL);
    assert(list_empty(&cs->all));
    pthread_cond_destroy(&cs->wake);
    pthread_mutex_destroy(&cs->lock);
    free(cs);
}

bool conns_have_room(struct conns *cs, unsigned max)
{
    bool room;

    pthread_mutex_lock(&cs->lock);
    make_room_locked(cs);
    room = cs->n - cs->n_evicted < max;
    pthread_mutex_unlock(&cs->lock);
    return room;
}

void conns_close_waiting(struct conns *cs, bool kept)
{
    pthread_mutex_lock(&cs->lock);
    atomic_store(&cs->closing, true);
    cs->closing_kept = kept;
    cs->soft_max = 0;
    make_room_locked(cs);
    pthread_mutex_unlock(&cs->lock);
}

unsigned conns_count(struct conns *cs)
{
    unsigned n;

    pthread_mutex_lock(&cs->lock);
    n = cs->n;
    pthread_mutex_unlock(&cs->lock);
    return n;
}

static void set_deadline(struct conn *c, uint64_t deadline_us)
{
    struct conns *cs = c->owner;

    atomic_store(&c->deadline_us, deadline_us);
    if (deadline_us == 0 || deadline_us >= atomic_load(&cs->next_us))
        return;
    /*
     * Under the lock, so that the thread is either before its look at this deadline or in its wait.
     */
    pthread_mutex_lock(&cs->lock);
    pthread_cond_signal(&cs->wake);
    pthread_mutex_unlock(&cs->lock);
}

static bool become(struct conn *c, enum conn_state state, uint64_t deadline_us)
{
    enum conn_state now = atomic_load(&c->state);

    do {
        if (now == EVICTED) {
            /* Whoever closes it now must not be faster than the farewell, which goes out under: */
            pthread_mutex_lock(&c->owner->lock);
            pthread_mutex_unlock(&c->owner->lock);
            return false;
        }
    } while (!atomic_compare_exchange_weak(&c->state, &now, state));
    set_deadline(c, deadline_us);
    if (state == WAITS && atomic_load(&c->owner->closing)) {
        pthread_mutex_lock(&c->owner->lock);
        make_room_locked(c->owner);
        pthread_mutex_unlock(&c->owner->lock);
    }
    return true;
}

struct conn *conn_add(struct conns *cs, int fd, uint64_t deadline_us)
{
    struct conn *c = calloc(1, sizeof(*c));

    if (c == NULL)
        return NULL;
    c->owner = cs;
    c->fd = fd;
    atomic_init(&c->since_us, cs->clock->mono_us(cs->clock)); /* before it can be seen */
    list_init(&c->link);
    pthread_mutex_lock(&cs->lock);
    list_insert(&cs->all, &c->link);
    if (++cs->n - cs->n_evicted > cs->soft_max)
        pthread_cond_signal(&cs->wake);
    pthread_mutex_unlock(&cs->lock);
    (void)become(c, WAITS, deadline_us);
    return c;
}

void conn_remove(struct conn *c)
{
    struct conns *cs = c->owner;

    pthread_mutex_lock(&cs->lock);
    list_remove(&c->link);
    cs->n--;
    if (atomic_load(&c->state) == EVICTED)
        cs->n_evicted--;
    pthread_mutex_unlock(&cs->lock);
    free(c);
}

void conn_waits(struct conn *c, uint64_t deadline_us)
{
    atomic_store(&c->since_us, c->owner->clock->mono_us(c->owner->clock));
    (void)become(c, WAITS, deadline_us);
}

void conn_unwanted(struct conn *c, uint64_t deadline_us)
{
    atomic_store(&c->since_us, 0);
    (void)become(c, WAITS, deadline_us);
}

bool conn_works(struct conn *c, uint64_t deadline_us)
{
    return become(c, WORKS, deadline_us);
}

void conn_keep(struct conn *c)
{
    atomic_store(&c->keep, true);
}

int conn_fd(const struct conn *c)
{
    return c->fd;
}

void conn_linger(struct conn *c)
{
    atomic_store(&c->linger, true);
}

bool conn_lingers(const struct conn *c)
{
    return atomic_load(&c->linger);
}

/* loop.c - an event loop for one thread: epoll, timers, posted jobs. */
#include "common/loop.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define EVENTS_PER_TURN 64
#define WAIT_MAX_MS 60000

int loop_init(struct loop *l, struct clock *clock, loop_event_fn *on_event, void *arg)
{
    struct epoll_event ev = {.events = EPOLLIN};
    int err;

    *l = (struct loop){.clock = clock, .on_event = on_event, .arg = arg};
    list_init(&l->jobs);
    pthread_mutex_init(&l->lock, NULL);
    l->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    l->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    ev.data.fd = l->wake_fd;
    if (l->epoll_fd < 0 || l->wake_fd < 0 ||
        epoll_ctl(l->epoll_fd, EPOLL_CTL_ADD, l->wake_fd, &ev) < 0) {
        err = -errno;
        loop_fini(l);
        return err;
    }
    return 0;
}

void loop_fini(struct loop *l)
{
    assert(list_empty(&l->jobs));
    if (l->wake_fd >= 0)
        close(l->wake_fd);
    if (l->epoll_fd >= 0)
        close(l->epoll_fd);
    timer_heap_fini(&l->timers);
    pthread_mutex_destroy(&l->lock);
}

static void wake(struct loop *l)
{
    uint64_t one = 1;
    ssize_t n = write(l->wake_fd, &one, sizeof(one));

    (void)n; /* fails only when the counter is full, and then the loop wakes anyway */
}

void loop_stop(struct loop *l)
{
    atomic_store(&l->stop, true);
    wake(l);
}

void loop_post(struct loop *l, struct loop_job *job)
{
    bool must_wake;

    pthread_mutex_lock(&l->lock);
    list_insert(&l->jobs, &job->link);
    must_wake = l->sleeping;
    l->sleeping = false;
    pthread_mutex_unlock(&l->lock);
    if (must_wake)
        wake(l);
}

void loop_run_jobs(struct loop *l)
{
    struct list now;

    list_init(&now);
    pthread_mutex_lock(&l->lock);
    if (!list_empty(&l->jobs)) {
        /* `now` takes the place of the head. */
        list_insert(&l->jobs, &now);
        list_remove(&l->jobs);
    }
    pthread_mutex_unlock(&l->lock);
    while (!list_empty(&now)) {
        struct loop_job *job = container_of(now.next, struct loop_job, link);

        list_remove(&job->link);
        job->fn(job);
    }
}

void loop_timer_set(struct loop *l, struct timer *t, uint64_t due_us)
{
    /*
     * Without its timer an operation might never end, and there is nobody to tell: where a few
     * bytes are not to be had, give up.
     */
    if (timer_heap_set(&l->timers, t, due_us) < 0)
        abort();
}

void loop_timer_clear(struct loop *l, struct timer *t)
{
    timer_heap_clear(&l->timers, t);
}

static void run_timers(struct loop *l)
{
    uint64_t now = l->clock->mono_us(l->clock);
    size_t most =
        l->timers.len; /* a timer that always arms itself again must not keep the loop here */
    struct timer *t;

    while (most-- > 0 && (t = timer_heap_first(&l->timers)) != NULL && t->due_us <= now) {
        timer_heap_clear(&l->timers, t);
        t->fire(t);
    }
}

void loop_watch(struct loop *l, int fd, uint32_t watched, uint32_t wanted)
{
    struct epoll_event ev = {.events = wanted, .data.fd = fd};

    if (wanted == 0)
        (void)epoll_ctl(l->epoll_fd, EPOLL_CTL_DEL, fd, NULL);
    else if (watched != 0)
        (void)epoll_ctl(l->epoll_fd, EPOLL_CTL_MOD, fd, &ev);
    else if (epoll_ctl(l->epoll_fd, EPOLL_CTL_ADD, fd, &ev) < 0 && errno == EEXIST)
        (void)epoll_ctl(l->epoll_fd, EPOLL_CTL_MOD, fd, &ev);
}

/*
 * How long epoll may wait, and whether it will. A job posted before `sleeping` is set is seen here;
 * one posted after it writes to wake_fd. Rounded up: rather a timer that is late by less than 1 ms
 * than a loop that spins for it.
 */
static int wait_ms(struct loop *l)
{
    struct timer *first = timer_heap_first(&l->timers);
    uint64_t now = l->clock->mono_us(l->clock), ms = WAIT_MAX_MS;
    bool idle;

    if (first != NULL && first->due_us <= now)
        return 0;
    pthread_mutex_lock(&l->lock);
    idle = list_empty(&l->jobs) && !atomic_load(&l->stop);
    l->sleeping = idle;
    pthread_mutex_unlock(&l->lock);
    if (!idle)
        return 0;
    if (first != NULL && (first->due_us - now) / 1000 < WAIT_MAX_MS)
        ms = (first->due_us - now + 999) / 1000;
    return (int)ms;
}

static void turn(struct loop *l)
{
    struct epoll_event events[EVENTS_PER_TURN];
    int n = epoll_wait(l->epoll_fd, events, EVENTS_PER_TURN, wait_ms(l));

    assert(n >= 0 || errno == EINTR);
    pthread_mutex_lock(&l->lock);
    l->sleeping = false;
    pthread_mutex_unlock(&l->lock);
    for (int i = 0; i < n; i++) {
        uint64_t count;

        if (events[i].data.fd != l->wake_fd)
            l->on_event(l->arg, events[i].data.fd, events[i].events);
        else if (read(l->wake_fd, &count, sizeof(count)) < 0)
            assert(errno == EAGAIN || errno == EINTR);
    }
    loop_run_jobs(l);
    run_timers(l);
}

void loop_run(struct loop *l)
{
    while (!atomic_load(&l->stop))
        turn(l);
}

/*
 * loop.h - an event loop for one thread: descriptors (epoll), timers, and jobs that other threads
 * post. Knows nothing of what it is used for.
 *
 * All but loop_post() and loop_stop() is for the loop's thread, or for whoever owns the loop while
 * it does not run.
 */
#ifndef KVFS_COMMON_LOOP_H
#define KVFS_COMMON_LOOP_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "common/timer_heap.h"

/* Something to be done on the loop's thread. The poster's memory, until fn begins. */
struct loop_job {
    void (*fn)(struct loop_job *job);
    struct list link;
};

/* events: EPOLLIN, EPOLLOUT, EPOLLERR, EPOLLHUP */
typedef void loop_event_fn(void *arg, int fd, uint32_t events);

struct loop {
    struct clock *clock;
    loop_event_fn *on_event;
    void *arg;
    int epoll_fd, wake_fd;
    struct timer_heap timers;

    _Atomic bool stop;
    pthread_mutex_t lock;
    struct list jobs; /* under lock, as is: */
    bool sleeping;    /* the loop may be inside epoll_wait(), so that a job must wake it */
};

/* clock and arg must outlive it. 0 or -errno. */
int loop_init(struct loop *l, struct clock *clock, loop_event_fn *on_event, void *arg);
void loop_fini(struct loop *l);

/* Until loop_stop(). */
void loop_run(struct loop *l);
/* Any thread, signal-safe. For good: loop_run() returns soon, and at once when called again. */
void loop_stop(struct loop *l);
/*
 * Any thread. Jobs run in the order posted. One system call (a write to an eventfd), and none while
 * the loop is awake.
 */
void loop_post(struct loop *l, struct loop_job *job);
/*
 * Runs the jobs there are, as a turn of the loop does: for the end, when it does not run any more.
 */
void loop_run_jobs(struct loop *l);

/*
 * Arms or moves a timer. Those that are due fire once a turn, the first due first; ones armed with
 * due_us 0 go before all others.
 */
void loop_timer_set(struct loop *l, struct timer *t, uint64_t due_us);
void loop_timer_clear(struct loop *l, struct timer *t);

/*
 * Changes what epoll watches fd for, from one set of EPOLLIN and EPOLLOUT (0: fd is not in it) to
 * another. Failures are not told: whoever waits for a descriptor has a timer, too.
 */
void loop_watch(struct loop *l, int fd, uint32_t watched, uint32_t wanted);

#endif

/*
 * io.h - the inside of cluster.c and cluster_call.c: an I/O thread and the tasks posted to it.
 *
 * A call to the cluster is a task. It is posted to one of the I/O threads, which starts the
 * client's operation and hands over its result. What a task knows of its operation belongs to that
 * thread alone; other threads only post to it. The end comes in this order, so that nothing is left
 * hanging:
 *
 *   1. no I/O thread accepts another task (so that every one posted stands before step 2),
 *   2. each ends what its client does in the background, and cancels its operations, the prober's
 *      and the guest's; when the last has ended, its loop stops,
 *   3. the threads are joined,
 *   4. transports end the requests that outlived their operations; then all is freed.
 *
 * Lock ranks: waiter > io > the loop's own; ready and log are leaves. None is held during a wait
 * for the network.
 */
#ifndef KVFS_COMMON_IO_H
#define KVFS_COMMON_IO_H

#include <pthread.h>
#include <stdatomic.h>

#include "common/cluster.h"
#include "common/loop.h"
#include "common/prober.h"

struct io {
    struct cluster *c;
    struct transport *transport;
    struct client *client;
    pthread_t thread;
    bool started;
    struct loop_job drain;

    struct list active; /* tasks whose operation is under way; this thread's, as is: */
    bool draining;
    bool guest_idle; /* or there is none here */

    pthread_mutex_t lock;
    bool accepting; /* under lock, which is held while a task is posted */
};

/* What the last probe of a node said. */
struct sign {
    struct err why; /* it is none to count on; empty: it is one, or was not heard of yet */
};

struct cluster {
    struct cluster_opts opts;
    struct health *health;
    struct prober *prober; /* on ios[0], as is the guest */
    _Atomic unsigned next_io;

    pthread_mutex_t ready_lock;
    pthread_cond_t ready_changed;
    bool *answers; /* by node; under ready_lock, as are: */
    bool *akin;    /* by node: not known to hold another ring */
    struct sign *signs;
    bool closing;

    pthread_mutex_t log_lock;
    bool *logged_up;        /* by node; under log_lock, as is: */
    uint64_t *went_down_us; /* mono */

    unsigned n_ios;
    struct io ios[];
};

enum task_kind { TASK_READ, TASK_WRITE, TASK_LIST };

struct task {
    enum task_kind kind;
    const void *args;
    union {
        read_done_fn *read;
        write_done_fn *write;
        list_done_fn *list;
    } done;
    void *arg;
    void (*release)(struct task *task); /* after done(): its memory may go */

    struct io *io;
    struct loop_job start;
    struct list link; /* in io->active; the I/O thread's, as are: */
    struct op *op;    /* while under way */
    bool interrupted; /* by its waiter: -EINTR is what was wanted */
};

/* On its thread: ends the loop when it is draining and nothing is under way any more. */
void io_stop_if_drained(struct io *io);

#endif

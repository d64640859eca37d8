/*
 * cluster_call.c - calls to the cluster: tasks for its I/O threads, and callers that wait for them.
 */
#include "common/io.h"

#include <assert.h>
#include <errno.h>
#include <semaphore.h>
#include <stdlib.h>

#include "common/hash.h"
#include "common/transport_http.h"

/* --- tasks ------------------------------------------------------------------------------------ */

void io_stop_if_drained(struct io *io)
{
    struct cluster *c = io->c;

    bool idle = list_empty(&io->active) && io->guest_idle;

    if (io == &c->ios[0])
        idle = idle && prober_idle(c->prober);
    if (io->draining && idle)
        transport_http_stop(io->transport);
}

/* Before done(): says of an operation that cluster_close() cancelled what the caller will see. */
static void task_ended(struct task *task, int *err, struct err *why)
{
    task->op = NULL;
    list_remove(&task->link);
    if (*err == -EINTR && task->io->draining && !task->interrupted)
        *err = err_set(why, -EHOSTDOWN, "the connection to the cluster is being closed");
}

/* After done(). */
static void task_release(struct task *task)
{
    struct io *io = task->io;

    task->release(task);
    io_stop_if_drained(io);
}

static void on_read(void *arg, struct read_result *res)
{
    struct task *task = arg;

    task_ended(task, &res->err, &res->why);
    task->done.read(task->arg, res);
    task_release(task);
}

static void on_write(void *arg, struct write_result *res)
{
    struct task *task = arg;

    task_ended(task, &res->err, &res->why);
    task->done.write(task->arg, res);
    task_release(task);
}

static void on_list(void *arg, struct list_result *res)
{
    struct task *task = arg;

    task_ended(task, &res->err, &res->why);
    task->done.list(task->arg, res);
    task_release(task);
}

/* The operation could not even be made: there is no memory. */
static void task_fail(struct task *task)
{
    struct read_result read = {.err = -ENOMEM};
    struct write_result write = {.err = -ENOMEM, .certain = true};
    struct list_result list = {.err = -ENOMEM};

    switch (task->kind) {
    case TASK_READ:
        on_read(task, &read);
        break;
    case TASK_WRITE:
        on_write(task, &write);
        break;
    case TASK_LIST:
        on_list(task, &list);
        break;
    }
}

static void task_start(struct loop_job *job)
{
    struct task *task = container_of(job, struct task, start);
    struct io *io = task->io;

    list_insert(&io->active, &task->link);
    switch (task->kind) {
    case TASK_READ:
        task->op = client_read(io->client, task->args, on_read, task);
        break;
    case TASK_WRITE:
        task->op = client_write(io->client, task->args, on_write, task);
        break;
    case TASK_LIST:
        task->op = client_list(io->client, task->args, on_list, task);
        break;
    }
    if (task->op == NULL)
        task_fail(task);
}

/* Writes of one key meet in one client, which has them take turns; all else goes round. */
static unsigned io_for(struct cluster *c, const struct task *task)
{
    if (task->kind == TASK_WRITE)
        return (unsigned)(hash_fnv1a(((const struct write_args *)task->args)->key) % c->n_ios);
    return atomic_fetch_add(&c->next_io, 1) % c->n_ios;
}

/*
 * Hands the task to an I/O thread. 0 or -EHOSTDOWN: the cluster is closing, and the task is still
 * the caller's.
 */
static int task_submit(struct cluster *c, struct task *task)
{
    struct io *io = &c->ios[io_for(c, task)];
    int err = 0;

    task->io = io;
    task->start.fn = task_start;
    list_init(&task->link);
    pthread_mutex_lock(&io->lock);
    if (io->accepting)
        transport_http_post(io->transport, &task->start);
    else
        err = -EHOSTDOWN;
    pthread_mutex_unlock(&io->lock);
    return err;
}

static void task_free(struct task *task)
{
    free(task);
}

static int task_submit_copy(struct cluster *c, const struct task *from)
{
    struct task *task = malloc(sizeof(*task));
    int err;

    if (task == NULL)
        return -ENOMEM;
    *task = *from;
    task->release = task_free;
    err = task_submit(c, task);
    if (err < 0)
        free(task);
    return err;
}

int cluster_read_async(struct cluster *c, const struct read_args *args, read_done_fn *done,
                       void *arg)
{
    return task_submit_copy(
        c, &(struct task){.kind = TASK_READ, .args = args, .done.read = done, .arg = arg});
}

int cluster_write_async(struct cluster *c, const struct write_args *args, write_done_fn *done,
                        void *arg)
{
    return task_submit_copy(
        c, &(struct task){.kind = TASK_WRITE, .args = args, .done.write = done, .arg = arg});
}

int cluster_list_async(struct cluster *c, const struct list_args *args, list_done_fn *done,
                       void *arg)
{
    return task_submit_copy(
        c, &(struct task){.kind = TASK_LIST, .args = args, .done.list = done, .arg = arg});
}

/* --- waiting ---------------------------------------------------------------------------------- */

struct waiter {
    pthread_mutex_t lock;
    bool interrupted;     /* under lock, as is: */
    struct wait *current; /* the call under way; NULL once its operation has ended */
};

/*
 * A blocking call, on its caller's stack. Two things on the I/O thread may still come to it: the
 * end of its task, and a cancel that waiter_interrupt() posted. Each posts `came` as the last thing
 * it does, and the caller waits for both. No cancel is posted after the task's end, for that takes
 * the call out of the waiter before it posts.
 */
struct wait {
    struct task task;
    struct waiter *waiter; /* or NULL */
    struct loop_job cancel;
    bool cancelling; /* cancel was posted; under waiter->lock until the task has ended */
    sem_t came;
};

static void wait_ended(struct task *task)
{
    struct wait *wait = container_of(task, struct wait, task);
    struct waiter *w = wait->waiter;

    if (w != NULL) {
        pthread_mutex_lock(&w->lock);
        w->current = NULL;
        pthread_mutex_unlock(&w->lock);
    }
    sem_post(&wait->came);
}

static void wait_cancel(struct loop_job *job)
{
    struct wait *wait = container_of(job, struct wait, cancel);

    if (wait->task.op != NULL) {
        wait->task.interrupted = true;
        op_cancel(wait->task.op);
    }
    sem_post(&wait->came);
}

static int wait_submit(struct cluster *c, struct wait *wait, struct waiter *w)
{
    int err;

    if (w == NULL)
        return task_submit(c, &wait->task);
    pthread_mutex_lock(&w->lock);
    assert(w->current == NULL); /* one call at a time */
    err = w->interrupted ? -EINTR : task_submit(c, &wait->task);
    if (err == 0)
        w->current = wait; /* still under the lock: a cancel is posted behind the start */
    pthread_mutex_unlock(&w->lock);
    return err;
}

static void await(sem_t *sem)
{
    while (sem_wait(sem) < 0)
        assert(errno == EINTR); /* by a signal handler: waiting goes on */
}

/* Submits the task and waits until it has ended. 0, or why there is no result. */
static int wait_for(struct cluster *c, struct wait *wait, struct waiter *w)
{
    int err;

    wait->task.release = wait_ended;
    wait->waiter = w;
    wait->cancel.fn = wait_cancel;
    sem_init(&wait->came, 0, 0);
    err = wait_submit(c, wait, w);
    if (err == 0) {
        await(&wait->came);
        if (wait->cancelling)
            await(&wait->came);
    }
    sem_destroy(&wait->came);
    return err;
}

static int explain_unsent(struct err *why, int err)
{
    return err_set(why, err,
                   err == -EINTR ? "interrupted" : "the connection to the cluster is being closed");
}

static void keep_read(void *arg, struct read_result *res)
{
    *(struct read_result *)arg = *res;
    *res = (struct read_result){0};
}

int cluster_read(struct cluster *c, const struct read_args *args, struct waiter *w,
                 struct read_result *out)
{
    struct wait wait = {
        .task = {.kind = TASK_READ, .args = args, .done.read = keep_read, .arg = out}};
    int err = wait_for(c, &wait, w);

    if (err < 0) {
        *out = (struct read_result){.err = err};
        explain_unsent(&out->why, err);
    }
    return out->err;
}

static void keep_write(void *arg, struct write_result *res)
{
    struct write_result *out = arg;

    *out = *res;
    out->n_reports = 0; /* they do not outlive this callback */
    out->reports = NULL;
    *res = (struct write_result){0};
}

int cluster_write(struct cluster *c, const struct write_args *args, struct waiter *w,
                  struct write_result *out)
{
    struct wait wait = {
        .task = {.kind = TASK_WRITE, .args = args, .done.write = keep_write, .arg = out}};
    int err = wait_for(c, &wait, w);

    if (err < 0) {
        *out = (struct write_result){.err = err, .certain = true};
        explain_unsent(&out->why, err);
    }
    return out->err;
}

static void keep_list(void *arg, struct list_result *res)
{
    *(struct list_result *)arg = *res;
    *res = (struct list_result){0};
}

int cluster_list(struct cluster *c, const struct list_args *args, struct waiter *w,
                 struct list_result *out)
{
    struct wait wait = {
        .task = {.kind = TASK_LIST, .args = args, .done.list = keep_list, .arg = out}};
    int err = wait_for(c, &wait, w);

    if (err < 0) {
        *out = (struct list_result){.err = err};
        explain_unsent(&out->why, err);
    }
    return out->err;
}

int waiter_new(struct waiter **out)
{
    struct waiter *w = calloc(1, sizeof(*w));

    if (w == NULL)
        return -ENOMEM;
    pthread_mutex_init(&w->lock, NULL);
    *out = w;
    return 0;
}

void waiter_free(struct waiter *w)
{
    if (w == NULL)
        return;
    assert(w->current == NULL);
    pthread_mutex_destroy(&w->lock);
    free(w);
}

void waiter_interrupt(struct waiter *w)
{
    pthread_mutex_lock(&w->lock);
    w->interrupted = true;
    if (w->current != NULL && !w->current->cancelling) {
        w->current->cancelling = true;
        transport_http_post(w->current->task.io->transport, &w->current->cancel);
    }
    pthread_mutex_unlock(&w->lock);
}

/* test_workers.c - jobs all run, at most so many at a time, in their order. */
#include "common/workers.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#define N_JOBS 1000

struct world {
    struct workers *workers;
    pthread_mutex_t lock; /* all below */
    pthread_cond_t changed;
    unsigned n_begun, n_running, most_running, n_done, next;
    bool in_order, gate_open;
};

struct job {
    struct loop_job job;
    struct world *w;
    unsigned number;
    bool again;
};

static void begin(struct world *w, unsigned n_threads)
{
    memset(w, 0, sizeof(*w));
    w->in_order = true;
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->changed, NULL);
    assert_int_equal(workers_new(n_threads, "kv-test", &w->workers), 0);
}

static void end(struct world *w)
{
    workers_free(w->workers);
    pthread_cond_destroy(&w->changed);
    pthread_mutex_destroy(&w->lock);
}

static void count(struct loop_job *job)
{
    struct job *j = container_of(job, struct job, job);
    struct world *w = j->w;

    pthread_mutex_lock(&w->lock);
    w->in_order &= j->number == w->next++;
    w->n_done++;
    pthread_mutex_unlock(&w->lock);
    if (j->again) {
        j->again = false;
        j->number += N_JOBS;
        workers_post(w->workers, job);
    }
}

/* Stays until the gate is opened. */
static void stay(struct loop_job *job)
{
    struct world *w = container_of(job, struct job, job)->w;

    pthread_mutex_lock(&w->lock);
    w->n_begun++;
    if (++w->n_running > w->most_running)
        w->most_running = w->n_running;
    pthread_cond_broadcast(&w->changed);
    while (!w->gate_open)
        pthread_cond_wait(&w->changed, &w->lock);
    w->n_running--;
    w->n_done++;
    pthread_mutex_unlock(&w->lock);
}

static void open_gate(struct world *w)
{
    pthread_mutex_lock(&w->lock);
    w->gate_open = true;
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock);
}

static void jobs_of_one_thread_run_in_order_also_those_that_post_themselves_again(void **state)
{
    static struct job jobs[N_JOBS];
    struct job first;
    struct world w;

    (void)state;
    begin(&w, 1);
    first = (struct job){{.fn = stay}, &w, 0, false};
    workers_post(w.workers, &first.job);
    for (unsigned i = 0; i < N_JOBS; i++) {
        jobs[i] = (struct job){{.fn = count}, &w, i, true};
        workers_post(w.workers, &jobs[i].job);
    }
    open_gate(&w);
    end(&w);
    assert_int_equal(w.n_done, 1 + 2 * N_JOBS);
    assert_true(w.in_order);
}

static void as_many_run_at_a_time_as_there_are_threads(void **state)
{
    struct job jobs[10];
    struct world w;

    (void)state;
    begin(&w, 3);
    for (unsigned i = 0; i < 10; i++) {
        jobs[i] = (struct job){{.fn = stay}, &w, i, false};
        workers_post(w.workers, &jobs[i].job);
    }
    pthread_mutex_lock(&w.lock);
    while (w.n_begun < 3)
        pthread_cond_wait(&w.changed, &w.lock);
    assert_int_equal(w.n_done, 0);
    pthread_mutex_unlock(&w.lock);
    open_gate(&w);
    end(&w);
    assert_int_equal(w.n_done, 10);
    assert_true(w.most_running <= 3);
}

static void what_was_posted_runs_though_the_end_has_come(void **state)
{
    struct job jobs[N_JOBS];
    struct world w;

    (void)state;
    begin(&w, 2);
    assert_false(workers_hurried(w.workers));
    workers_hurry(w.workers);
    assert_true(workers_hurried(w.workers));
    for (unsigned i = 0; i < N_JOBS; i++) {
        jobs[i] = (struct job){{.fn = count}, &w, i, i % 2 == 0};
        workers_post(w.workers, &jobs[i].job);
    }
    end(&w);
    assert_int_equal(w.n_done, N_JOBS + N_JOBS / 2);
}

static void no_workers_are_freed_for_nothing(void **state)
{
    (void)state;
    workers_free(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(jobs_of_one_thread_run_in_order_also_those_that_post_themselves_again),
        cmocka_unit_test(as_many_run_at_a_time_as_there_are_threads),
        cmocka_unit_test(what_was_posted_runs_though_the_end_has_come),
        cmocka_unit_test(no_workers_are_freed_for_nothing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

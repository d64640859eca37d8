/*
 * test_guest.c - what lives beside the prober on a cluster's I/O thread, and jobs posted to it.
 */
#include "common/cluster.h"

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "common/log.h"
#include "common/transport_http.h"
#include "tests/lib/live.h"

/* --- fixture ---------------------------------------------------------------------------------- */

/* Lives beside the prober: always has one READ under way. Its thread's, but for: */
struct guest {
    struct client *client;
    struct timer begin;
    struct transport *transport;
    struct op *op;
    bool stopping;
    void (*idle)(void *idle_arg);
    void *idle_arg;
    pthread_t thread;
    _Atomic unsigned n_reads, n_stops; /* any thread's, as are: */
    _Atomic bool is_idle;
    sem_t began;
};

static void guest_read(struct timer *t);

static void on_guest_read(void *arg, struct read_result *res)
{
    struct guest *g = arg;

    (void)res;
    g->op = NULL;
    atomic_fetch_add(&g->n_reads, 1);
    if (!g->stopping) {
        guest_read(&g->begin);
        return;
    }
    atomic_store(&g->is_idle, true);
    g->idle(g->idle_arg);
}

static void guest_read(struct timer *t)
{
    struct guest *g = container_of(t, struct guest, begin);
    struct read_args args = {.key = span_str("a guest's")};

    g->thread = pthread_self();
    g->op = client_read(g->client, &args, on_guest_read, g);
    if (atomic_load(&g->n_reads) == 0)
        sem_post(&g->began);
}

static int guest_start(void *arg, struct client *client, struct transport *transport)
{
    struct guest *g = ((struct live *)arg)->guest;

    g->client = client;
    g->transport = transport;
    g->begin.fire = guest_read;
    transport->ops->timer_set(transport, &g->begin, 0);
    return 0;
}

static void guest_stop(void *arg, void (*idle)(void *idle_arg), void *idle_arg)
{
    struct guest *g = ((struct live *)arg)->guest;

    atomic_fetch_add(&g->n_stops, 1);
    g->stopping = true;
    g->idle = idle;
    g->idle_arg = idle_arg;
    op_cancel(g->op); /* it ends later: so does the loop */
}

/* Nodes, a guest, and no cluster yet. */
static int setup_apart(void **state)
{
    struct guest *g = calloc(1, sizeof(*g));
    struct live *w;

    assert_non_null(g);
    assert_int_equal(sem_init(&g->began, 0, 0), 0);
    live_setup_dead(state);
    w = *state;
    w->guest = g;
    w->opts.guest_start = guest_start;
    w->opts.guest_stop = guest_stop;
    for (unsigned i = 0; i < LIVE_N_NODES; i++)
        live_node_listen(&w->nodes[i]);
    return 0;
}

static int setup(void **state)
{
    struct live *w;

    setup_apart(state);
    w = *state;
    live_open(w);
    live_await_ready(w);
    tiny_wait(&((struct guest *)w->guest)->began);
    return 0;
}

static int teardown(void **state)
{
    struct guest *g = ((struct live *)*state)->guest;

    live_teardown(state);
    sem_destroy(&g->began);
    free(g);
    return 0;
}

/* --- tests ------------------------------------------------------------------------------------ */

struct visit {
    struct loop_job job;
    pthread_t thread;
    sem_t came;
};

static void on_visit(struct loop_job *job)
{
    struct visit *v = container_of(job, struct visit, job);

    v->thread = pthread_self();
    sem_post(&v->came);
}

static void a_job_that_is_posted_runs_on_the_guest_s_thread(void **state)
{
    struct live *w = *state;
    const struct guest *g = w->guest;
    struct visit v = {.job.fn = on_visit};

    assert_int_equal(sem_init(&v.came, 0, 0), 0);
    assert_true(cluster_post(w->c, &v.job));
    tiny_wait(&v.came);
    assert_true(pthread_equal(v.thread, g->thread));
    cluster_stop(w->c);
    assert_false(cluster_post(w->c, &v.job));
    assert_int_equal(sem_trywait(&v.came), -1); /* and it does not run */
    sem_destroy(&v.came);
}

struct later {
    struct delayed_job job;
    struct clock *clock;
    uint64_t at_us;
    pthread_t thread;
    sem_t came;
};

static void on_later(struct delayed_job *job)
{
    struct later *v = container_of(job, struct later, job);

    v->thread = pthread_self();
    v->at_us = v->clock->mono_us(v->clock);
    sem_post(&v->came);
}

static void a_job_for_later_runs_there_when_its_time_has_come(void **state)
{
    struct live *w = *state;
    const struct guest *g = w->guest;
    static struct later v; /* until the cluster is closed */
    struct later late = {.job.fn = on_later};
    uint64_t begun_us;

    v = (struct later){.job.fn = on_later, .clock = clock_real()};
    begun_us = v.clock->mono_us(v.clock);
    assert_int_equal(sem_init(&v.came, 0, 0), 0);
    assert_true(cluster_post_after(w->c, &v.job, 30));
    tiny_wait(&v.came);
    assert_true(pthread_equal(v.thread, g->thread));
    assert_true(v.at_us >= begun_us + 30000);
    assert_true(cluster_post_after(w->c, &v.job, 600000)); /* the end does not wait for it */
    cluster_stop(w->c);
    assert_false(cluster_post_after(w->c, &late.job, 0));
    assert_int_equal(sem_trywait(&v.came), -1);
    sem_destroy(&v.came);
}

static void the_end_waits_until_the_guest_has_nothing_under_way(void **state)
{
    struct live *w = *state;
    struct guest *g = w->guest;

    live_silence(w);
    tiny_wait(&w->nodes[0].asked);
    assert_false(atomic_load(&g->is_idle));
    cluster_stop(w->c);
    assert_true(atomic_load(&g->is_idle));
    assert_int_equal(atomic_load(&g->n_stops), 1);
}

static int refuse_to_start(void *arg, struct client *client, struct transport *transport)
{
    (void)arg;
    (void)client;
    (void)transport;
    return -ENOMEM;
}

static void a_guest_that_cannot_start_is_not_stopped_and_there_is_no_cluster(void **state)
{
    struct live *w = *state;
    const struct guest *g = w->guest;
    struct err err;

    w->opts.guest_start = refuse_to_start;
    assert_int_equal(cluster_open(&w->opts, &w->c, &err), -ENOMEM);
    assert_null(w->c);
    assert_int_equal(atomic_load(&g->n_stops), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_job_that_is_posted_runs_on_the_guest_s_thread, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(a_job_for_later_runs_there_when_its_time_has_come, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(the_end_waits_until_the_guest_has_nothing_under_way, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(
            a_guest_that_cannot_start_is_not_stopped_and_there_is_no_cluster, setup_apart,
            teardown),
    };

    log_open("test_guest", LOG_LEVEL_ERROR);
    if (transport_http_setup() < 0)
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}

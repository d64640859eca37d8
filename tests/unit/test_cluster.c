/*
 * test_cluster.c - the running client against three replicas in this process, behind real sockets:
 * calls that block and calls that do not, interrupts, nodes that come and go, and the end.
 */
#include "common/cluster.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/log.h"
#include "common/transport_http.h"
#include "tests/lib/live.h"

/* --- helpers ---------------------------------------------------------------------------------- */

static uint64_t now_us(void)
{
    return clock_real()->mono_us(clock_real());
}

/* An edit: ctx is the struct span of what is to be stored. */
static int put_text(void *ctx, const struct record *cur, struct value cur_value, struct draft *next)
{
    (void)cur;
    (void)cur_value;
    return value_copy(*(const struct span *)ctx, &next->value);
}

static int put(struct live *w, const char *key, const char *text, struct waiter *waiter)
{
    struct span bytes = span_str(text);
    struct write_args args = {.key = span_str(key), .edit = put_text, .ctx = &bytes};
    struct write_result res;
    int err = cluster_write(w->c, &args, waiter, &res);

    assert_int_equal(err, res.err);
    write_result_fini(&res);
    return err;
}

static void assert_reads(struct live *w, const char *key, const char *text)
{
    struct read_args args = {.key = span_str(key), .want_value = true, .length = READ_ALL};
    struct read_result res;

    assert_int_equal(cluster_read(w->c, &args, NULL, &res), 0);
    assert_true(record_is_live(&res.rec.rec));
    assert_true(span_eq(value_span(res.value), span_str(text)));
    read_result_fini(&res);
}

static int get(struct live *w, const char *key, struct waiter *waiter, struct err *why)
{
    struct read_args args = {.key = span_str(key)};
    struct read_result res;
    int err = cluster_read(w->c, &args, waiter, &res);

    if (why != NULL)
        *why = res.why;
    read_result_fini(&res);
    return err;
}

/* A blocking get on a thread of its own. */
struct getter {
    struct live *w;
    struct waiter *waiter;
    pthread_t thread;
    int err;
    struct err why;
};

static void *get_thread(void *arg)
{
    struct getter *g = arg;

    g->err = get(g->w, "some key", g->waiter, &g->why);
    return NULL;
}

static void getter_start(struct getter *g, struct live *w)
{
    g->w = w;
    assert_int_equal(pthread_create(&g->thread, NULL, get_thread, g), 0);
}

static void getter_join(struct getter *g)
{
    assert_int_equal(pthread_join(g->thread, NULL), 0);
}

/* --- calls ------------------------------------------------------------------------------------ */

static void what_was_written_is_read_and_listed(void **state)
{
    struct live *w = *state;
    struct list_args args = {.limit = 10, .timeout_ms = LIVE_TIMEOUT_MS};
    struct list_result list;
    struct cursor at;
    struct entry e;

    assert_int_equal(put(w, "a", "first", NULL), 0);
    assert_int_equal(put(w, "b", "second", NULL), 0);
    assert_int_equal(put(w, "a", "third", NULL), 0);
    assert_reads(w, "a", "third");
    assert_reads(w, "b", "second");

    assert_int_equal(cluster_list(w->c, &args, NULL, &list), 0);
    assert_int_equal(list.n, 2);
    at = cursor_of(buf_span(&list.entries));
    assert_int_equal(entry_next(&at, &e), 1);
    assert_true(span_eq(e.key, span_str("a")));
    list_result_fini(&list);
}

struct async {
    struct write_args args;
    char key[16];
    sem_t *ended;
    _Atomic unsigned n_done;
    int err;
    bool certain;
};

static void on_written(void *arg, struct write_result *res)
{
    struct async *a = arg;

    a->err = res->err;
    a->certain = res->certain;
    atomic_fetch_add(&a->n_done, 1);
    sem_post(a->ended);
}

static void asyncs_start(struct live *w, struct async *as, unsigned n, sem_t *ended)
{
    assert_int_equal(sem_init(ended, 0, 0), 0);
    for (unsigned i = 0; i < n; i++) {
        snprintf(as[i].key, sizeof(as[i].key), "key %u", i);
        as[i].args = (struct write_args){.key = span_str(as[i].key), .edit = put_text};
        as[i].args.ctx = &as[i].args.key; /* its value is its name */
        as[i].ended = ended;
        assert_int_equal(cluster_write_async(w->c, &as[i].args, on_written, &as[i]), 0);
    }
}

static void many_calls_at_once_end_each_once(void **state)
{
    struct live *w = *state;
    enum { N = 100 };
    struct async *as = calloc(N, sizeof(*as));
    sem_t ended;

    assert_non_null(as);
    asyncs_start(w, as, N, &ended);
    for (unsigned i = 0; i < N; i++)
        tiny_wait(&ended);
    for (unsigned i = 0; i < N; i++) {
        assert_int_equal(as[i].n_done, 1);
        assert_int_equal(as[i].err, 0);
        assert_reads(w, as[i].key, as[i].key);
    }
    sem_destroy(&ended);
    free(as);
}

/* --- interrupts ------------------------------------------------------------------------------- */

static void an_interrupt_ends_a_waiting_call_at_once_and_every_later_one(void **state)
{
    struct live *w = *state;
    struct getter g = {0};
    uint64_t began;

    assert_int_equal(waiter_new(&g.waiter), 0);
    live_silence(w);
    getter_start(&g, w);
    tiny_wait(&w->nodes[0].asked);
    began = now_us();
    waiter_interrupt(g.waiter);
    waiter_interrupt(g.waiter); /* twice is harmless */
    getter_join(&g);
    assert_int_equal(g.err, -EINTR);
    assert_true(now_us() - began < 1000000);

    assert_int_equal(get(w, "some key", g.waiter, NULL), -EINTR);
    assert_int_equal(put(w, "some key", "text", g.waiter), -EINTR);
    waiter_free(g.waiter);
}

static void an_interrupt_may_come_at_any_moment(void **state)
{
    struct live *w = *state;
    unsigned n_interrupted = 0;

    for (unsigned i = 0; i < 300; i++) {
        struct getter g = {0};
        uint64_t until;

        assert_int_equal(waiter_new(&g.waiter), 0);
        getter_start(&g, w);
        for (until = now_us() + i * 3; now_us() < until;)
            ; /* from before the call begins to after it has ended */
        waiter_interrupt(g.waiter);
        getter_join(&g);
        assert_true(g.err == 0 || g.err == -EINTR);
        n_interrupted += g.err == -EINTR;
        waiter_free(g.waiter);
    }
    assert_in_range(n_interrupted, 1, 300);
}

/* --- readiness and health --------------------------------------------------------------------- */

static void readiness_says_whom_it_misses_and_comes_with_the_quorum(void **state)
{
    struct live *w = *state;
    struct err err;
    char want[64];

    live_node_listen(&w->nodes[0]);
    live_open(w);
    assert_int_equal(cluster_wait_ready(w->c, 300, &err), -EHOSTDOWN);
    snprintf(want, sizeof(want), "node-2 at 127.0.0.1:%u: Connection refused", w->nodes[1].port);
    assert_non_null(strstr(err.msg, want));
    assert_non_null(strstr(err.msg, "node-3"));
    assert_null(strstr(err.msg, "node-1"));

    live_node_listen(&w->nodes[1]);
    live_await_ready(w);
    assert_int_equal(put(w, "k", "with two of three", NULL), 0);
    assert_reads(w, "k", "with two of three");
}

static void a_node_with_another_ring_is_named(void **state)
{
    struct live *w = *state;
    struct err err;

    for (unsigned i = 0; i < 2; i++) {
        live_node_close(&w->nodes[i]);
        live_node_open(w, i, 2);
        live_node_listen(&w->nodes[i]);
    }
    live_node_listen(&w->nodes[2]);
    live_open(w);
    assert_int_equal(cluster_wait_ready(w->c, 10000, &err), -EBADE);
    assert_non_null(strstr(err.msg, "node-1 at 127.0.0.1:"));
    assert_non_null(strstr(err.msg, ": another ring: replication_factor: 2 there, 3 in "));
    assert_null(strstr(err.msg, "node-3"));
}

/* A mount must not begin on nodes that do not vote yet. */
static void a_node_that_recovers_does_not_count_for_readiness(void **state)
{
    struct live *w = *state;
    struct err err;

    for (unsigned i = 0; i < 2; i++) {
        live_node_close(&w->nodes[i]);
        live_node_open_new(w, i, 3);
    }
    for (unsigned i = 0; i < LIVE_N_NODES; i++)
        live_node_listen(&w->nodes[i]);
    live_open(w);
    assert_int_equal(cluster_wait_ready(w->c, 500, &err), -EHOSTDOWN);
    assert_non_null(strstr(err.msg, "node-1 at 127.0.0.1:"));
    assert_non_null(strstr(err.msg, ": recovering"));
    assert_null(strstr(err.msg, "node-3"));
    assert_true(health_up(cluster_health(w->c), 0));
    assert_int_equal(replica_found(w->nodes[1].replica, NULL, 0), 0);
    live_await_ready(w);
}

static void every_result_of_a_probe_is_told_and_each_says_who_asks(void **state)
{
    struct live *w = *state;
    uint64_t limit = now_us() + 10000000;

    live_node_listen(&w->nodes[0]);
    live_open(w);
    while (atomic_load(&w->n_hellos[0]) == 0 || atomic_load(&w->n_failed[1]) < 2) {
        assert_true(now_us() < limit);
        poll(NULL, 0, 5);
    }
    assert_int_equal(atomic_load(&w->n_failed[0]), 0);
    assert_int_equal(atomic_load(&w->n_hellos[1]), 0);
    assert_true(atomic_load(&w->n_said) >= 3);
}

static bool up(struct live *w, unsigned node)
{
    return health_up(cluster_health(w->c), node);
}

static void await_up(struct live *w, unsigned node, bool want)
{
    uint64_t limit = now_us() + 10000000;

    while (up(w, node) != want) {
        assert_true(now_us() < limit);
        poll(NULL, 0, 5);
    }
}

static void a_node_without_traffic_is_missed_and_found_again_by_probes(void **state)
{
    struct live *w = *state;
    uint64_t began;
    unsigned n_hellos;

    assert_true(atomic_load(&w->n_hellos[2]) > 0 || atomic_load(&w->n_hellos[1]) > 0);
    live_node_die(&w->nodes[2]);
    await_up(w, 2, false);
    assert_int_not_equal(health_get(cluster_health(w->c), 2).last_err, 0);
    assert_true(up(w, 0) && up(w, 1));
    n_hellos = atomic_load(&w->n_hellos[2]);

    live_node_listen(&w->nodes[2]);
    began = now_us();
    await_up(w, 2, true);
    assert_true(now_us() - began < 2 * HEALTH_PROBE_US);
    while (atomic_load(&w->n_hellos[2]) == n_hellos) {
        assert_true(now_us() - began < 10000000);
        poll(NULL, 0, 5);
    }
}

static void a_node_that_answers_other_traffic_is_still_asked_for_its_state(void **state)
{
    struct live *w = *state;
    unsigned n_hellos = atomic_load(&w->n_hellos[0]);
    uint64_t limit = now_us() + 10000000;

    /* The first may have been on its way. */
    while (atomic_load(&w->n_hellos[0]) < n_hellos + 2) {
        assert_true(now_us() < limit);
        assert_int_equal(put(w, "k", "traffic to all three", NULL), 0);
    }
}

/* --- the end ---------------------------------------------------------------------------------- */

static void closing_ends_whoever_waits(void **state)
{
    struct live *w = *state;
    enum { N_GETTERS = 4, N_ASYNCS = 100 };
    struct getter getters[N_GETTERS] = {0};
    struct async *as = calloc(N_ASYNCS, sizeof(*as));
    uint64_t began;
    sem_t ended;

    assert_non_null(as);
    live_silence(w);
    for (unsigned i = 0; i < N_GETTERS; i++) {
        assert_int_equal(waiter_new(&getters[i].waiter), 0);
        getter_start(&getters[i], w);
    }
    asyncs_start(w, as, N_ASYNCS, &ended);
    for (unsigned i = 0; i < 2 * N_GETTERS; i++)
        tiny_wait(&w->nodes[0].asked);
    began = now_us();
    waiter_interrupt(getters[0].waiter);
    cluster_close(w->c);
    w->c = NULL;
    assert_true(now_us() - began < 2000000);
    for (unsigned i = 0; i < N_GETTERS; i++) {
        getter_join(&getters[i]);
        assert_true(getters[i].err == -EHOSTDOWN || (i == 0 && getters[i].err == -EINTR));
        waiter_free(getters[i].waiter);
    }
    for (unsigned i = 0; i < N_ASYNCS; i++) {
        assert_int_equal(as[i].n_done, 1);
        assert_int_equal(as[i].err, -EHOSTDOWN);
    }
    sem_destroy(&ended);
    free(as);
}

static void calls_after_the_stop_fail_until_it_is_closed(void **state)
{
    struct live *w = *state;
    struct read_args args = {.key = span_str("k")};
    struct read_result res;

    cluster_stop(w->c);
    assert_int_equal(cluster_read_async(w->c, &args, NULL, NULL), -EHOSTDOWN);
    assert_int_equal(cluster_read(w->c, &args, NULL, &res), -EHOSTDOWN);
    read_result_fini(&res);
    assert_true(health_get(cluster_health(w->c), 0).up);
}

static void a_cluster_that_nobody_answers_closes_as_well(void **state)
{
    struct live *w = *state;
    struct err err;

    live_open(w);
    assert_int_equal(cluster_wait_ready(w->c, 1, &err), -EHOSTDOWN);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(what_was_written_is_read_and_listed, live_setup,
                                        live_teardown),
        cmocka_unit_test_setup_teardown(many_calls_at_once_end_each_once, live_setup,
                                        live_teardown),
        cmocka_unit_test_setup_teardown(
            an_interrupt_ends_a_waiting_call_at_once_and_every_later_one, live_setup,
            live_teardown),
        cmocka_unit_test_setup_teardown(an_interrupt_may_come_at_any_moment, live_setup,
                                        live_teardown),
        cmocka_unit_test_setup_teardown(readiness_says_whom_it_misses_and_comes_with_the_quorum,
                                        live_setup_dead, live_teardown),
        cmocka_unit_test_setup_teardown(a_node_with_another_ring_is_named, live_setup_dead,
                                        live_teardown),
        cmocka_unit_test_setup_teardown(a_node_without_traffic_is_missed_and_found_again_by_probes,
                                        live_setup, live_teardown),
        cmocka_unit_test_setup_teardown(
            a_node_that_answers_other_traffic_is_still_asked_for_its_state, live_setup,
            live_teardown),
        cmocka_unit_test_setup_teardown(a_node_that_recovers_does_not_count_for_readiness,
                                        live_setup_dead, live_teardown),
        cmocka_unit_test_setup_teardown(every_result_of_a_probe_is_told_and_each_says_who_asks,
                                        live_setup_dead, live_teardown),
        cmocka_unit_test_setup_teardown(closing_ends_whoever_waits, live_setup, live_teardown),
        cmocka_unit_test_setup_teardown(calls_after_the_stop_fail_until_it_is_closed, live_setup,
                                        live_teardown),
        cmocka_unit_test_setup_teardown(a_cluster_that_nobody_answers_closes_as_well,
                                        live_setup_dead, live_teardown),
    };

    log_open("test_cluster", LOG_LEVEL_ERROR);
    if (transport_http_setup() < 0)
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}

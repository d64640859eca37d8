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
#include "node/replica.h"
#include "tests/lib/tiny_http.h"

#define N_NODES 3
#define TIMEOUT_MS 10000u

/* --- nodes ------------------------------------------------------------------------------------ */

enum mood { MOOD_WELL, MOOD_SILENT };

struct node {
    struct config *cfg; /* its own: it may know another ring */
    struct store *store;
    struct replica *replica;
    struct tiny_http srv;
    uint16_t port;
    bool listens;
    _Atomic int mood;
    sem_t asked; /* one for every request that a silent node keeps */
};

struct world {
    struct config *cfg;
    struct node nodes[N_NODES];
    struct cluster *c;
    _Atomic unsigned n_hellos[N_NODES];
};

static bool send_reply(struct tiny_conn *c, struct reply *reply)
{
    struct blob *bytes = blob_new(reply_len(reply));
    char status[32];
    bool sent;

    if (bytes == NULL || reply_read(reply, 0, bytes->data, bytes->len) != (int64_t)bytes->len)
        abort(); /* small values in memory: always whole */
    snprintf(status, sizeof(status), "%u Some reason", reply->status);
    sent = tiny_send_answer(c, status, span_of(bytes->data, bytes->len));
    blob_unref(bytes);
    return sent;
}

static bool answer(void *arg, struct tiny_conn *c)
{
    struct node *n = arg;
    struct replica_request *rq;
    struct reply reply = REPLY_NONE;
    bool sent;

    if (atomic_load(&n->mood) == MOOD_SILENT) {
        sem_post(&n->asked);
        tiny_await_close(c);
        return false;
    }
    if (replica_begin(n->replica, c->in.len, &rq) < 0)
        abort();
    (void)replica_feed(rq, buf_span(&c->in));
    replica_end(rq, &reply);
    sent = send_reply(c, &reply);
    reply_fini(&reply);
    return sent;
}

static struct config *make_config(const struct world *w, unsigned replication_factor)
{
    struct config *cfg;
    struct err err;
    char text[512];

    snprintf(text, sizeof(text),
             "{\"nodes\":[{\"id\":\"node-1\",\"addr\":\"127.0.0.1:%u\"},"
             "{\"id\":\"node-2\",\"addr\":\"127.0.0.1:%u\"},"
             "{\"id\":\"node-3\",\"addr\":\"127.0.0.1:%u\"}],\"replication_factor\":%u}",
             w->nodes[0].port, w->nodes[1].port, w->nodes[2].port, replication_factor);
    assert_int_equal(config_parse("test.json", span_str(text), &cfg, &err), 0);
    return cfg;
}

static void node_listen(struct node *n)
{
    tiny_http_start(&n->srv, n->port, answer, n);
    n->listens = true;
}

static void node_die(struct node *n)
{
    if (n->listens)
        tiny_http_stop(&n->srv);
    n->listens = false;
}

static void node_open(struct world *w, unsigned i, unsigned replication_factor)
{
    struct node *n = &w->nodes[i];
    struct replica_opts opts = {.self = i, .clock = clock_real(), .seed = i + 1};
    struct err err;

    n->cfg = make_config(w, replication_factor);
    opts.ring = n->cfg->ring;
    opts.cfg = n->cfg;
    assert_int_equal(store_memory_open(&n->store), 0);
    opts.store = n->store;
    assert_int_equal(replica_open(&opts, &n->replica, &err), 0);
}

static void node_close(struct node *n)
{
    node_die(n);
    replica_close(n->replica);
    n->store->ops->close(n->store);
    config_free(n->cfg);
}

/* --- fixture ---------------------------------------------------------------------------------- */

static void on_hello(void *arg, unsigned node, const struct answer *a)
{
    struct world *w = arg;

    if (a->kind == ANS_HELLO)
        atomic_fetch_add(&w->n_hellos[node], 1);
}

static void world_open_cluster(struct world *w)
{
    struct cluster_opts opts = {
        .cfg = w->cfg,
        .n_threads = 2,
        .timeout_ms = TIMEOUT_MS,
        .self = MESSAGE_NODE_NONE,
        .on_hello = on_hello,
        .on_hello_arg = w,
    };
    struct err err;

    assert_int_equal(cluster_open(&opts, &w->c, &err), 0);
}

static void world_await_ready(struct world *w)
{
    struct err err;

    assert_int_equal(cluster_wait_ready(w->c, TIMEOUT_MS, &err), 0);
}

/* Nodes that are there but do not listen, and no cluster yet. */
static int setup_dead(void **state)
{
    struct world *w = calloc(1, sizeof(*w));

    assert_non_null(w);
    for (unsigned i = 0; i < N_NODES; i++) {
        w->nodes[i].port = tiny_refusing_port();
        assert_int_equal(sem_init(&w->nodes[i].asked, 0, 0), 0);
    }
    w->cfg = make_config(w, 3);
    for (unsigned i = 0; i < N_NODES; i++)
        node_open(w, i, 3);
    *state = w;
    return 0;
}

static int setup(void **state)
{
    struct world *w;

    setup_dead(state);
    w = *state;
    for (unsigned i = 0; i < N_NODES; i++)
        node_listen(&w->nodes[i]);
    world_open_cluster(w);
    world_await_ready(w);
    return 0;
}

static int teardown(void **state)
{
    struct world *w = *state;

    cluster_close(w->c);
    for (unsigned i = 0; i < N_NODES; i++) {
        node_close(&w->nodes[i]);
        sem_destroy(&w->nodes[i].asked);
    }
    config_free(w->cfg);
    free(w);
    return 0;
}

/* --- helpers ---------------------------------------------------------------------------------- */

static uint64_t now_us(void)
{
    return clock_real()->mono_us(clock_real());
}

static void all_silent(struct world *w)
{
    for (unsigned i = 0; i < N_NODES; i++)
        atomic_store(&w->nodes[i].mood, MOOD_SILENT);
}

/* An edit: ctx is the struct span of what is to be stored. */
static int put_text(void *ctx, const struct record *cur, struct value cur_value, struct draft *next)
{
    (void)cur;
    (void)cur_value;
    return value_copy(*(const struct span *)ctx, &next->value);
}

static int put(struct world *w, const char *key, const char *text, struct waiter *waiter)
{
    struct span bytes = span_str(text);
    struct write_args args = {.key = span_str(key), .edit = put_text, .ctx = &bytes};
    struct write_result res;
    int err = cluster_write(w->c, &args, waiter, &res);

    assert_int_equal(err, res.err);
    write_result_fini(&res);
    return err;
}

static void assert_reads(struct world *w, const char *key, const char *text)
{
    struct read_args args = {.key = span_str(key), .want_value = true, .length = READ_ALL};
    struct read_result res;

    assert_int_equal(cluster_read(w->c, &args, NULL, &res), 0);
    assert_true(record_is_live(&res.rec.rec));
    assert_true(span_eq(value_span(res.value), span_str(text)));
    read_result_fini(&res);
}

static int get(struct world *w, const char *key, struct waiter *waiter, struct err *why)
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
    struct world *w;
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

static void getter_start(struct getter *g, struct world *w)
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
    struct world *w = *state;
    struct list_args args = {.limit = 10, .timeout_ms = TIMEOUT_MS};
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

static void asyncs_start(struct world *w, struct async *as, unsigned n, sem_t *ended)
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
    struct world *w = *state;
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
    struct world *w = *state;
    struct getter g = {0};
    uint64_t began;

    assert_int_equal(waiter_new(&g.waiter), 0);
    all_silent(w);
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
    struct world *w = *state;
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
    struct world *w = *state;
    struct err err;
    char want[64];

    node_listen(&w->nodes[0]);
    world_open_cluster(w);
    assert_int_equal(cluster_wait_ready(w->c, 300, &err), -EHOSTDOWN);
    snprintf(want, sizeof(want), "node-2 at 127.0.0.1:%u: Connection refused", w->nodes[1].port);
    assert_non_null(strstr(err.msg, want));
    assert_non_null(strstr(err.msg, "node-3"));
    assert_null(strstr(err.msg, "node-1"));

    node_listen(&w->nodes[1]);
    world_await_ready(w);
    assert_int_equal(put(w, "k", "with two of three", NULL), 0);
    assert_reads(w, "k", "with two of three");
}

static void a_node_with_another_ring_is_named(void **state)
{
    struct world *w = *state;
    struct err err;

    for (unsigned i = 0; i < 2; i++) {
        node_close(&w->nodes[i]);
        node_open(w, i, 2);
        node_listen(&w->nodes[i]);
    }
    node_listen(&w->nodes[2]);
    world_open_cluster(w);
    assert_int_equal(cluster_wait_ready(w->c, 500, &err), -EHOSTDOWN);
    assert_non_null(strstr(err.msg, "node-1 at 127.0.0.1:"));
    assert_non_null(strstr(err.msg, ": another ring"));
    assert_null(strstr(err.msg, "node-3"));
}

static bool up(struct world *w, unsigned node)
{
    return health_up(cluster_health(w->c), node);
}

static void await_up(struct world *w, unsigned node, bool want)
{
    uint64_t limit = now_us() + 10000000;

    while (up(w, node) != want) {
        assert_true(now_us() < limit);
        poll(NULL, 0, 5);
    }
}

static void a_node_without_traffic_is_missed_and_found_again_by_probes(void **state)
{
    struct world *w = *state;
    uint64_t began;
    unsigned n_hellos;

    assert_true(atomic_load(&w->n_hellos[2]) > 0 || atomic_load(&w->n_hellos[1]) > 0);
    node_die(&w->nodes[2]);
    await_up(w, 2, false);
    assert_int_not_equal(health_get(cluster_health(w->c), 2).last_err, 0);
    assert_true(up(w, 0) && up(w, 1));
    n_hellos = atomic_load(&w->n_hellos[2]);

    node_listen(&w->nodes[2]);
    began = now_us();
    await_up(w, 2, true);
    assert_true(now_us() - began < 2 * HEALTH_PROBE_US);
    while (atomic_load(&w->n_hellos[2]) == n_hellos) {
        assert_true(now_us() - began < 10000000);
        poll(NULL, 0, 5);
    }
}

/* --- the end ---------------------------------------------------------------------------------- */

static void closing_ends_whoever_waits(void **state)
{
    struct world *w = *state;
    enum { N_GETTERS = 4, N_ASYNCS = 100 };
    struct getter getters[N_GETTERS] = {0};
    struct async *as = calloc(N_ASYNCS, sizeof(*as));
    uint64_t began;
    sem_t ended;

    assert_non_null(as);
    all_silent(w);
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
    struct world *w = *state;
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
    struct world *w = *state;
    struct err err;

    world_open_cluster(w);
    assert_int_equal(cluster_wait_ready(w->c, 1, &err), -EHOSTDOWN);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(what_was_written_is_read_and_listed, setup, teardown),
        cmocka_unit_test_setup_teardown(many_calls_at_once_end_each_once, setup, teardown),
        cmocka_unit_test_setup_teardown(
            an_interrupt_ends_a_waiting_call_at_once_and_every_later_one, setup, teardown),
        cmocka_unit_test_setup_teardown(an_interrupt_may_come_at_any_moment, setup, teardown),
        cmocka_unit_test_setup_teardown(readiness_says_whom_it_misses_and_comes_with_the_quorum,
                                        setup_dead, teardown),
        cmocka_unit_test_setup_teardown(a_node_with_another_ring_is_named, setup_dead, teardown),
        cmocka_unit_test_setup_teardown(a_node_without_traffic_is_missed_and_found_again_by_probes,
                                        setup, teardown),
        cmocka_unit_test_setup_teardown(closing_ends_whoever_waits, setup, teardown),
        cmocka_unit_test_setup_teardown(calls_after_the_stop_fail_until_it_is_closed, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(a_cluster_that_nobody_answers_closes_as_well, setup_dead,
                                        teardown),
    };

    log_open("test_cluster", LOG_LEVEL_ERROR);
    if (transport_http_setup() < 0)
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}

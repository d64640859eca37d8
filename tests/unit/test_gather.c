/*
 * test_gather.c - answers too large for memory come over HTTP whole, and the loop that hears them
 * never waits for who writes them.
 */
#include "common/gather.h"

#include <errno.h>
#include <semaphore.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/limits.h"
#include "common/transport_http.h"
#include "tests/lib/tiny_http.h"

#define LARGE ((size_t)MEMORY_BLOB_MAX + 3 * CHUNK_SIZE + 17)
#define PERIOD 65521u /* of the bytes that come: no power of two */

static uint8_t period[2 * PERIOD];

static struct span bytes_from(size_t at, size_t len)
{
    size_t skip = at % PERIOD;

    return span_of(period + skip, len < PERIOD ? len : PERIOD);
}

static bool answer(void *arg, struct tiny_conn *c)
{
    char head[80];
    size_t at = 0;

    (void)arg;
    if (!span_has_prefix(buf_span(&c->in), span_str("large")))
        return tiny_send_answer(c, "200 OK", buf_span(&c->in));
    (void)snprintf(head, sizeof(head), "HTTP/1.1 200 OK\r\nContent-Length: %zu\r\n\r\n", LARGE);
    if (!tiny_send_text(c, head))
        return false;
    while (at < LARGE) {
        struct span part = bytes_from(at, LARGE - at);

        if (span_eq(buf_span(&c->in), span_str("large, cut")) && at > LARGE / 2)
            return false;
        if (!tiny_send(c, part))
            return false;
        at += part.len;
    }
    return true;
}

/* --- fixture ---------------------------------------------------------------------------------- */

struct world {
    struct tiny_http srv;
    struct config_node node;
    struct config cfg;
    struct workers *workers;
    struct transport *t;
    pthread_t thread;
    bool runs;
    /* A job that keeps the only worker until the gate is opened. */
    struct loop_job keeper;
    sem_t kept, gate;
};

static void *run(void *arg)
{
    transport_http_run(arg);
    return NULL;
}

static int setup(void **state)
{
    static char loopback[] = "127.0.0.1";
    struct world *w = calloc(1, sizeof(*w));

    assert_non_null(w);
    for (size_t i = 0; i < sizeof(period); i++)
        period[i] = (uint8_t)(i % PERIOD * 31 + (i % PERIOD >> 7));
    tiny_http_start(&w->srv, 0, answer, NULL);
    w->node = (struct config_node){.host = loopback, .port = w->srv.port};
    w->cfg = (struct config){.n_nodes = 1, .nodes = &w->node, .max_value_size = LARGE};
    sem_init(&w->kept, 0, 0);
    sem_init(&w->gate, 0, 0);
    assert_int_equal(workers_new(1, "kv-test", &w->workers), 0);
    assert_int_equal(transport_http_new(&w->cfg, clock_real(), w->workers, &w->t), 0);
    assert_int_equal(pthread_create(&w->thread, NULL, run, w->t), 0);
    w->runs = true;
    *state = w;
    return 0;
}

static void halt(struct world *w)
{
    if (w->runs) {
        transport_http_stop(w->t);
        pthread_join(w->thread, NULL);
    }
    w->runs = false;
    transport_http_free(w->t);
    w->t = NULL;
}

static int teardown(void **state)
{
    struct world *w = *state;

    halt(w);
    workers_free(w->workers);
    tiny_http_stop(&w->srv);
    sem_destroy(&w->kept);
    sem_destroy(&w->gate);
    free(w);
    return 0;
}

static void keep(struct loop_job *job)
{
    struct world *w = container_of(job, struct world, keeper);

    sem_post(&w->kept);
    tiny_wait(&w->gate);
}

static void keep_worker(struct world *w)
{
    w->keeper.fn = keep;
    workers_post(w->workers, &w->keeper);
    tiny_wait(&w->kept);
}

struct request {
    struct loop_job job;
    struct call call;
    struct world *w;
    sem_t ended;
    int err;
    struct blob *answer;
    size_t arrived; /* the last that was told of */
    bool in_order;
};

static void on_done(struct call *c, int err, struct blob *b)
{
    struct request *rq = container_of(c, struct request, call);

    rq->err = err;
    rq->answer = b;
    sem_post(&rq->ended);
}

static bool is_right(const uint8_t *data, size_t from, size_t to)
{
    while (from < to) {
        struct span want = bytes_from(from, to - from);

        if (memcmp(data + from, want.data, want.len) != 0)
            return false;
        from += want.len;
    }
    return true;
}

static void on_arrived(struct call *c, struct blob *b, size_t len)
{
    struct request *rq = container_of(c, struct request, call);

    rq->in_order &= len > rq->arrived && len <= b->len && is_right(b->data, rq->arrived, len);
    rq->arrived = len;
}

static void send_job(struct loop_job *job)
{
    struct request *rq = container_of(job, struct request, job);

    rq->w->t->ops->send(rq->w->t, &rq->call);
}

static void begin(struct world *w, struct request *rq, const char *what, uint64_t timeout_us)
{
    *rq = (struct request){.w = w, .job.fn = send_job, .in_order = true};
    rq->call = (struct call){.head = span_str(what), .done = on_done, .arrived = on_arrived};
    rq->call.deadline_us = clock_real()->mono_us(clock_real()) + timeout_us;
    sem_init(&rq->ended, 0, 0);
    transport_http_post(w->t, &rq->job);
}

static void end(struct request *rq, int err)
{
    tiny_wait(&rq->ended);
    sem_destroy(&rq->ended);
    assert_int_equal(rq->err, err);
    assert_int_equal(rq->answer == NULL, err != 0);
    if (err == 0 && rq->answer->len == LARGE) {
        assert_true(is_right(rq->answer->data, 0, LARGE));
        assert_true(rq->in_order);
        assert_int_equal(rq->arrived, LARGE);
    }
    blob_unref(rq->answer);
}

static void small_one(struct world *w)
{
    struct request rq;

    begin(w, &rq, "small", 20000000);
    end(&rq, 0);
}

/* --- tests ------------------------------------------------------------------------------------ */

static void large_answers_come_whole_several_at_once(void **state)
{
    struct world *w = *state;
    struct request rqs[5];

    for (unsigned i = 0; i < 5; i++)
        begin(w, &rqs[i], "large", 20000000);
    small_one(w);
    for (unsigned i = 0; i < 5; i++)
        end(&rqs[i], 0);
}

static void small_ones_go_on_while_nobody_writes_the_large(void **state)
{
    struct world *w = *state;
    struct request rqs[3];

    keep_worker(w);
    for (unsigned i = 0; i < 3; i++)
        begin(w, &rqs[i], "large", 20000000);
    for (unsigned i = 0; i < 50; i++)
        small_one(w);
    sem_post(&w->gate);
    for (unsigned i = 0; i < 3; i++)
        end(&rqs[i], 0);
}

static void a_deadline_comes_all_the_same(void **state)
{
    struct world *w = *state;
    struct request rq;

    keep_worker(w);
    begin(w, &rq, "large", 200000);
    end(&rq, -ETIMEDOUT);
    small_one(w);
    sem_post(&w->gate);
    begin(w, &rq, "large", 20000000);
    end(&rq, 0);
}

static void one_that_is_cut_short_is_a_reset(void **state)
{
    struct world *w = *state;
    struct request rq;

    begin(w, &rq, "large, cut", 20000000);
    end(&rq, -ECONNRESET);
    begin(w, &rq, "large", 20000000);
    end(&rq, 0);
}

static void freeing_the_transport_ends_them_though_nobody_writes(void **state)
{
    struct world *w = *state;
    struct request rqs[3];

    keep_worker(w);
    for (unsigned i = 0; i < 3; i++)
        begin(w, &rqs[i], "large", 20000000);
    small_one(w);
    halt(w);
    for (unsigned i = 0; i < 3; i++)
        end(&rqs[i], -ECANCELED);
    sem_post(&w->gate); /* only now the workers come to it, and find that nobody cares */
}

static void hurried_workers_end_them(void **state)
{
    struct world *w = *state;
    struct request rqs[3];

    keep_worker(w);
    for (unsigned i = 0; i < 3; i++)
        begin(w, &rqs[i], "large", 20000000);
    small_one(w);
    workers_hurry(w->workers);
    sem_post(&w->gate);
    for (unsigned i = 0; i < 3; i++)
        end(&rqs[i], -ECANCELED);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(large_answers_come_whole_several_at_once, setup, teardown),
        cmocka_unit_test_setup_teardown(small_ones_go_on_while_nobody_writes_the_large, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(a_deadline_comes_all_the_same, setup, teardown),
        cmocka_unit_test_setup_teardown(one_that_is_cut_short_is_a_reset, setup, teardown),
        cmocka_unit_test_setup_teardown(freeing_the_transport_ends_them_though_nobody_writes, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(hurried_workers_end_them, setup, teardown),
    };

    if (transport_http_setup() < 0)
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/*
 * test_streams.c - answers that go on, over HTTP, against a small server that does what the target
 * says.
 */
#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/transport_http.h"
#include "tests/lib/tiny_http.h"

#define LARGE_SIZE (3u << 20)

enum { NODE_SERVER, NODE_REFUSING, N_NODES };

struct world {
    struct tiny_http srv;
    sem_t go; /* the server goes on */
    struct config_node nodes[N_NODES];
    struct config cfg;
    struct transport *t;
    pthread_t thread;
    bool runs;
};

/* --- the server ------------------------------------------------------------------------------- */

static bool is(const struct tiny_conn *c, const char *target)
{
    return span_eq(buf_span(&c->in), span_str(target));
}

static bool send_chunk(struct tiny_conn *c, struct span bytes)
{
    char head[32];

    (void)snprintf(head, sizeof(head), "%zx\r\n", bytes.len);
    return tiny_send_text(c, head) && tiny_send(c, bytes) && tiny_send_text(c, "\r\n");
}

static bool send_large(struct tiny_conn *c)
{
    char text[1000];

    for (size_t at = 0; at < LARGE_SIZE; at += sizeof(text)) {
        memset(text, 'a' + (int)(at / sizeof(text) % 26), sizeof(text));
        if (!send_chunk(c, span_of(text, sizeof(text))))
            return false;
    }
    return tiny_send_text(c, "0\r\n\r\n");
}

static bool answer(void *arg, struct tiny_conn *c)
{
    struct world *w = arg;

    if (is(c, "/missing"))
        return tiny_send_answer(c, "404 Not Found", span_str("nothing"));
    if (is(c, "/busy"))
        return tiny_send_answer(c, "503 Too Many", span_str(""));
    if (is(c, "/empty"))
        return tiny_send_answer(c, "200 OK", span_str(""));
    if (!tiny_send_text(c, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"))
        return false;
    if (is(c, "/large"))
        return send_large(c);
    if (!send_chunk(c, span_str("one\n")))
        return false;
    if (is(c, "/cut"))
        return false;
    if (is(c, "/silent")) {
        tiny_await_close(c);
        return false;
    }
    tiny_wait(&w->go); /* "/two" */
    return send_chunk(c, span_str("two\n")) && tiny_send_text(c, "0\r\n\r\n");
}

/* --- fixture ---------------------------------------------------------------------------------- */

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
    assert_int_equal(sem_init(&w->go, 0, 0), 0);
    tiny_http_start(&w->srv, 0, answer, w);
    w->nodes[NODE_SERVER] = (struct config_node){.host = loopback, .port = w->srv.port};
    w->nodes[NODE_REFUSING] = (struct config_node){.host = loopback, .port = tiny_refusing_port()};
    w->cfg = (struct config){.n_nodes = N_NODES, .nodes = w->nodes, .max_value_size = 1 << 20};
    assert_int_equal(transport_http_new(&w->cfg, clock_real(), NULL, &w->t), 0);
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
        w->runs = false;
    }
    transport_http_free(w->t);
    w->t = NULL;
}

static int teardown(void **state)
{
    struct world *w = *state;

    halt(w);
    tiny_http_stop(&w->srv);
    sem_destroy(&w->go);
    free(w);
    return 0;
}

/* A stream from the test's thread: opened, and closed, by jobs on the loop. */
struct listener {
    struct loop_job job;
    struct stream stream;
    struct world *w;
    struct listener *other; /* data() closes this one, too */
    bool inside, close_in_data;
    sem_t came, ended;
    unsigned n_ended;
    int err;
    struct buf text;
};

static void on_data(struct stream *s, struct span bytes)
{
    struct listener *l = container_of(s, struct listener, stream);
    struct transport *t = l->w->t;

    assert_false(l->inside);
    assert_true(bytes.len > 0);
    buf_add_span(&l->text, bytes);
    if (l->close_in_data)
        t->ops->stream_close(t, s);
    if (l->other != NULL)
        t->ops->stream_close(t, &l->other->stream);
    sem_post(&l->came);
}

static void on_ended(struct stream *s, int err)
{
    struct listener *l = container_of(s, struct listener, stream);

    assert_false(l->inside);
    l->n_ended++;
    l->err = err;
    sem_post(&l->ended);
}

static void open_job(struct loop_job *job)
{
    struct listener *l = container_of(job, struct listener, job);

    l->inside = true;
    assert_int_equal(l->w->t->ops->stream_open(l->w->t, &l->stream), 0);
    l->inside = false;
}

static void start(struct world *w, struct listener *l, unsigned node, const char *target)
{
    l->w = w;
    l->job.fn = open_job;
    l->stream = (struct stream){.node = node, .target = target, .data = on_data, .ended = on_ended};
    assert_int_equal(sem_init(&l->came, 0, 0), 0);
    assert_int_equal(sem_init(&l->ended, 0, 0), 0);
    transport_http_post(w->t, &l->job);
}

static void fini(struct listener *l)
{
    buf_fini(&l->text);
    sem_destroy(&l->came);
    sem_destroy(&l->ended);
}

/* Runs one to its end: why it ended. */
static int run_out(struct world *w, unsigned node, const char *target, struct listener *l)
{
    start(w, l, node, target);
    tiny_wait(&l->ended);
    assert_int_equal(l->n_ended, 1);
    return l->err;
}

static void signal_job(struct loop_job *job)
{
    sem_post(&container_of(job, struct listener, job)->came);
}

/* Until what the loop has begun by now is done. */
static void pass_loop(struct world *w, struct listener *l)
{
    while (sem_trywait(&l->came) == 0)
        ;
    l->job.fn = signal_job;
    transport_http_post(w->t, &l->job);
    tiny_wait(&l->came);
}

/* --- claims ----------------------------------------------------------------------------------- */

static void bytes_are_told_as_they_come(void **state)
{
    struct world *w = *state;
    struct listener l = {0};

    start(w, &l, NODE_SERVER, "/two");
    tiny_wait(&l.came);
    assert_true(span_eq(buf_span(&l.text), span_str("one\n")));
    assert_int_equal(l.n_ended, 0);
    sem_post(&w->go);
    tiny_wait(&l.ended);
    assert_int_equal(l.err, 0);
    assert_true(span_eq(buf_span(&l.text), span_str("one\ntwo\n")));
    fini(&l);
}

static void a_flood_comes_whole(void **state)
{
    struct world *w = *state;
    struct listener l = {0};

    assert_int_equal(run_out(w, NODE_SERVER, "/large", &l), 0);
    assert_int_equal(l.text.len, (LARGE_SIZE + 999) / 1000 * 1000);
    for (size_t i = 0; i < l.text.len; i++)
        assert_int_equal(l.text.data[i], 'a' + i / 1000 % 26);
    fini(&l);
}

static void another_status_is_an_error_without_bytes(void **state)
{
    static const struct {
        const char *target;
        int err;
    } cases[] = {{"/missing", -ENOENT}, {"/busy", -EHOSTDOWN}, {"/empty", 0}};
    struct world *w = *state;

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct listener l = {0};

        assert_int_equal(run_out(w, NODE_SERVER, cases[i].target, &l), cases[i].err);
        assert_int_equal(l.text.len, 0);
        fini(&l);
    }
}

static void a_cut_is_a_reset_behind_all_that_came(void **state)
{
    struct world *w = *state;
    struct listener l = {0};

    assert_int_equal(run_out(w, NODE_SERVER, "/cut", &l), -ECONNRESET);
    assert_true(span_eq(buf_span(&l.text), span_str("one\n")));
    fini(&l);
}

static void a_node_that_refuses_is_told_as_such(void **state)
{
    struct world *w = *state;
    struct listener l = {0};

    assert_int_equal(run_out(w, NODE_REFUSING, "/two", &l), -ECONNREFUSED);
    fini(&l);
}

static void one_may_close_itself_and_others_while_it_is_told(void **state)
{
    struct world *w = *state;
    struct listener a = {0}, b = {.close_in_data = true};

    start(w, &a, NODE_SERVER, "/silent");
    tiny_wait(&a.came);
    b.other = &a;
    start(w, &b, NODE_SERVER, "/silent");
    tiny_wait(&b.came);
    tiny_wait(&w->srv.closed); /* both connections end */
    tiny_wait(&w->srv.closed);
    pass_loop(w, &b);
    assert_int_equal(a.n_ended + b.n_ended, 0);
    fini(&a);
    fini(&b);
}

static void freeing_ends_each_once_as_canceled(void **state)
{
    struct world *w = *state;
    struct listener l[3] = {{.n_ended = 0}};

    for (unsigned i = 0; i < 3; i++)
        start(w, &l[i], NODE_SERVER, "/silent");
    for (unsigned i = 0; i < 3; i++)
        tiny_wait(&l[i].came);
    halt(w);
    for (unsigned i = 0; i < 3; i++) {
        assert_int_equal(l[i].n_ended, 1);
        assert_int_equal(l[i].err, -ECANCELED);
        fini(&l[i]);
    }
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(bytes_are_told_as_they_come),
        TEST(a_flood_comes_whole),
        TEST(another_status_is_an_error_without_bytes),
        TEST(a_cut_is_a_reset_behind_all_that_came),
        TEST(a_node_that_refuses_is_told_as_such),
        TEST(one_may_close_itself_and_others_while_it_is_told),
        TEST(freeing_ends_each_once_as_canceled),
    };

    assert_int_equal(transport_http_setup(), 0);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

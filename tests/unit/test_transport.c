/*
 * test_transport.c - calls over HTTP against a small server that does what the request tells it,
 * the good and the bad; the loop's timers and jobs.
 */
#include "common/payload.h"

#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include <cmocka.h>

#include "common/transport_http.h"
#include "tests/lib/rng.h"
#include "tests/lib/tiny_http.h"

#define LARGE_SIZE (5u << 20)

/* --- the server ------------------------------------------------------------------------------- */

static bool send_chunks(struct tiny_conn *c, bool endless)
{
    size_t step = 100000;

    if (!tiny_send_text(c, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"))
        return false;
    for (size_t at = 0; at < c->in.len; at += endless ? 0 : step) {
        size_t n = c->in.len - at < step ? c->in.len - at : step;
        char head[32];

        snprintf(head, sizeof(head), "%zx\r\n", n);
        if (!tiny_send_text(c, head) || !tiny_send(c, span_of(c->in.data + at, n)) ||
            !tiny_send_text(c, "\r\n"))
            return false;
    }
    return tiny_send_text(c, "0\r\n\r\n");
}

static bool is(const struct tiny_conn *c, const char *word)
{
    return span_has_prefix(buf_span(&c->in), span_str(word));
}

/* The first word of a request's body says what to do with it. */
static bool answer(void *arg, struct tiny_conn *c)
{
    struct span body = buf_span(&c->in);

    (void)arg;
    if (is(c, "echo"))
        return tiny_send_answer(c, "200 OK", body);
    if (is(c, "missing"))
        return tiny_send_answer(c, "404 Not Found", body);
    if (is(c, "redirect"))
        return tiny_send_answer(c, "301 Moved\r\nLocation: http://127.0.0.1:1/replica", body);
    if (is(c, "empty"))
        return tiny_send_answer(c, "200 OK", span_str(""));
    if (is(c, "chunked"))
        return send_chunks(c, false);
    if (is(c, "endless"))
        return send_chunks(c, true);
    if (is(c, "huge")) /* announces 2^40 bytes */
        return tiny_send_text(c, "HTTP/1.1 200 OK\r\nContent-Length: 1099511627776\r\n\r\nabc");
    if (is(c, "once") && c->n_requests == 1) /* and closes on the second */
        return tiny_send_answer(c, "200 OK", body);
    if (is(c, "cut"))
        (void)tiny_send_text(c, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n0123456789");
    else if (is(c, "last")) /* closes behind an answer that did not say so */
        (void)tiny_send_answer(c, "200 OK", body);
    else if (is(c, "garbage"))
        (void)tiny_send_text(c, "what do you want\r\n\r\n");
    else if (is(c, "silent"))
        tiny_await_close(c);
    return false; /* also "hangup" */
}

/* --- fixture ---------------------------------------------------------------------------------- */

enum { NODE_SERVER, NODE_REFUSING, NODE_NAMELESS, N_NODES };

struct world {
    struct tiny_http srv;
    struct config_node nodes[N_NODES];
    struct config cfg;
    struct transport *t;
    pthread_t thread;
    bool runs;
    struct buf large; /* starts with "echo " */
};

static void *run(void *arg)
{
    transport_http_run(arg);
    return NULL;
}

static void world_run(struct world *w)
{
    assert_int_equal(pthread_create(&w->thread, NULL, run, w->t), 0);
    w->runs = true;
}

static void world_halt(struct world *w)
{
    if (!w->runs)
        return;
    transport_http_stop(w->t);
    pthread_join(w->thread, NULL);
    w->runs = false;
}

static int setup(void **state)
{
    struct world *w = calloc(1, sizeof(*w));
    static char loopback[] = "127.0.0.1", nameless[] = "no-such-host.invalid";
    struct rng rng;

    assert_non_null(w);
    tiny_http_start(&w->srv, 0, answer, NULL);
    w->nodes[NODE_SERVER] = (struct config_node){.host = loopback, .port = w->srv.port};
    w->nodes[NODE_REFUSING] = (struct config_node){.host = loopback, .port = tiny_refusing_port()};
    w->nodes[NODE_NAMELESS] = (struct config_node){.host = nameless, .port = 18149};
    w->cfg = (struct config){.n_nodes = N_NODES, .nodes = w->nodes, .max_value_size = LARGE_SIZE};
    rng = (struct rng){7};
    buf_add_str(&w->large, "echo ");
    while (w->large.len < LARGE_SIZE)
        buf_u64(&w->large, rng_next(&rng));
    assert_int_equal(w->large.err, 0);
    assert_int_equal(transport_http_new(&w->cfg, clock_real(), NULL, &w->t), 0);
    *state = w;
    return 0;
}

static int setup_running(void **state)
{
    int err = setup(state);

    world_run(*state);
    return err;
}

static int teardown(void **state)
{
    struct world *w = *state;

    world_halt(w);
    transport_http_free(w->t);
    tiny_http_stop(&w->srv);
    buf_fini(&w->large);
    free(w);
    return 0;
}

/* --- helpers ---------------------------------------------------------------------------------- */

static uint64_t now_us(void)
{
    return clock_real()->mono_us(clock_real());
}

/* A call from the test's thread: sent by a job on the loop, awaited here. */
struct request {
    struct loop_job job;
    struct call call;
    struct world *w;
    sem_t ended;
    bool sending;
    bool again; /* done() sends it once more */
    unsigned n_done, n_done_inside_send;
    int err;
    struct blob *answer;
    uint64_t began_us, took_us;
};

static void on_done(struct call *c, int err, struct blob *blob)
{
    struct request *rq = container_of(c, struct request, call);

    rq->n_done++;
    if (rq->sending)
        rq->n_done_inside_send++;
    rq->err = err;
    rq->took_us = now_us() - rq->began_us;
    if (rq->again) {
        rq->again = false;
        blob_unref(blob);
        rq->w->t->ops->send(rq->w->t, c);
        return;
    }
    rq->answer = blob;
    sem_post(&rq->ended);
}

static void send_job(struct loop_job *job)
{
    struct request *rq = container_of(job, struct request, job);

    rq->sending = true;
    rq->w->t->ops->send(rq->w->t, &rq->call);
    rq->sending = false;
}

static void begin(struct world *w, struct request *rq, unsigned node, struct span head,
                  struct span body, uint64_t timeout_us)
{
    *rq = (struct request){.w = w, .job.fn = send_job, .began_us = now_us()};
    rq->call = (struct call){
        .node = node, .head = head, .body = {.data = body.data, .len = body.len}, .done = on_done};
    rq->call.deadline_us = rq->began_us + timeout_us;
    assert_int_equal(sem_init(&rq->ended, 0, 0), 0);
    transport_http_post(w->t, &rq->job);
}

static void end(struct request *rq)
{
    tiny_wait(&rq->ended);
    assert_int_equal(rq->n_done, 1);
    assert_int_equal(rq->n_done_inside_send, 0);
    assert_int_equal(rq->answer == NULL, rq->err != 0);
    sem_destroy(&rq->ended);
}

/* Calls and returns its error; of a success the answer must be `want`. */
static int call_node(struct world *w, unsigned node, struct span head, struct span body,
                     struct span want, uint64_t timeout_us)
{
    struct request rq;

    begin(w, &rq, node, head, body, timeout_us);
    end(&rq);
    if (rq.err == 0)
        assert_true(span_eq(span_of(rq.answer->data, rq.answer->len), want));
    blob_unref(rq.answer);
    return rq.err;
}

static int call_text(struct world *w, const char *text, const char *want)
{
    return call_node(w, NODE_SERVER, span_str(text), span_str(""), span_str(want), 10000000);
}

static void assert_echo(struct world *w, const char *text)
{
    assert_int_equal(call_text(w, text, text), 0);
}

/* --- bytes ------------------------------------------------------------------------------------ */

static struct value borrowed(const char *s)
{
    return (struct value){.data = (const uint8_t *)s, .len = strlen(s)};
}

static void a_body_is_given_out_in_any_pieces_and_again_from_any_place(void **state)
{
    struct payload x = {
        .head = span_str("head"), .body = borrowed("and "), .tail = borrowed("body")};
    char all[16];

    (void)state;
    for (size_t from = 0; from <= 12; from++) {
        for (size_t piece = 1; piece <= 13; piece++) {
            size_t got = 0, n;

            assert_int_equal(payload_seek(&x, from), 0);
            while ((n = payload_read(&x, all + got, piece)) > 0)
                got += n;
            assert_int_equal(got, 12 - from);
            assert_memory_equal(all, &"headand body"[from], got);
        }
    }
    assert_int_equal(payload_seek(&x, 13), -EINVAL);
}

static void an_announced_answer_takes_exactly_its_room(void **state)
{
    struct payload x = {.answer_len_max = 100};
    struct blob *answer;

    (void)state;
    assert_int_equal(payload_write(&x, span_str("abc"), 7), 0);
    assert_int_equal(x.answer->len, 7);
    assert_int_equal(payload_write(&x, span_str("defg"), 7), 0);
    assert_int_equal(payload_take_answer(&x, &answer), 0);
    assert_true(span_eq(span_of(answer->data, answer->len), span_str("abcdefg")));
    blob_unref(answer);
    payload_fini(&x);

    x = (struct payload){.answer_len_max = 5};
    assert_int_equal(payload_write(&x, span_str("abc"), 6), -EFBIG);
    assert_int_equal(payload_write(&x, span_str("abc"), -1), 0);
    assert_int_equal(payload_write(&x, span_str("de"), -1), 0);
    assert_int_equal(payload_write(&x, span_str("f"), -1), -EFBIG);
    payload_fini(&x);
}

/* --- answers ---------------------------------------------------------------------------------- */

static void an_answer_is_the_whole_body_whatever_its_status(void **state)
{
    struct world *w = *state;

    assert_echo(w, "echo hello");
    assert_int_equal(call_text(w, "missing", "missing"), 0);
    assert_int_equal(call_text(w, "empty", ""), 0);
    assert_int_equal(call_text(w, "redirect", "redirect"), 0);
}

static void head_and_body_arrive_as_one_at_every_size(void **state)
{
    struct world *w = *state;
    static const size_t sizes[] = {6, 100, 65534, 65535, 65536, 65537, 1000000, LARGE_SIZE};

    for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
        for (size_t cut = 5; cut <= sizes[i]; cut += sizes[i] - 5) {
            struct span head = span_of(w->large.data, cut),
                        body = span_of(w->large.data + cut, sizes[i] - cut);

            assert_int_equal(
                call_node(w, NODE_SERVER, head, body, span_of(w->large.data, sizes[i]), 20000000),
                0);
        }
    }
}

static void an_answer_in_chunks_is_put_together(void **state)
{
    struct world *w = *state;
    struct span all = span_of(w->large.data, w->large.len);

    memcpy(w->large.data, "chunked", 7);
    assert_int_equal(call_node(w, NODE_SERVER, span_of(all.data, 20), span_of(all.data, 0),
                               span_of(all.data, 20), 10000000),
                     0);
    assert_int_equal(call_node(w, NODE_SERVER, all, span_str(""), all, 20000000), 0);
}

static void an_answer_cut_short_is_a_reset_and_never_a_short_answer(void **state)
{
    assert_int_equal(call_text(*state, "cut", ""), -ECONNRESET);
    assert_int_equal(call_text(*state, "hangup", ""), -ECONNRESET);
}

static void an_answer_larger_than_any_value_is_refused(void **state)
{
    struct world *w = *state;

    assert_int_equal(call_text(w, "huge", ""), -EFBIG);
    memcpy(w->large.data, "endless", 7);
    assert_int_equal(
        call_node(w, NODE_SERVER, buf_span(&w->large), span_str(""), span_str(""), 20000000),
        -EFBIG);
}

static void what_is_not_http_is_a_protocol_error(void **state)
{
    assert_int_equal(call_text(*state, "garbage", ""), -EPROTO);
}

/* --- connections ------------------------------------------------------------------------------ */

static void calls_one_after_the_other_share_a_connection(void **state)
{
    struct world *w = *state;

    for (unsigned i = 0; i < 200; i++)
        assert_echo(w, "echo again");
    assert_int_equal(tiny_http_connections(&w->srv), 1);
}

static void a_kept_connection_that_the_node_closed_costs_no_call(void **state)
{
    struct world *w = *state;

    for (unsigned i = 0; i < 20; i++) {
        assert_int_equal(call_text(w, "last", "last"), 0);
        if (i % 2 == 0)
            tiny_wait(&w->srv.closed); /* else the call races with the close */
        assert_echo(w, "echo again");
    }
    assert_int_equal(call_text(w, "last", "last"), 0);
    assert_int_equal(
        call_node(w, NODE_SERVER, buf_span(&w->large), span_str(""), buf_span(&w->large), 20000000),
        0);
}

static void a_call_that_meets_a_closing_connection_is_sent_again_however_often(void **state)
{
    struct world *w = *state;

    for (unsigned i = 0; i < 20; i++)
        assert_int_equal(call_text(w, "once", "once"), 0);
    memcpy(w->large.data, "once", 4);
    for (unsigned i = 0; i < 20; i++)
        assert_int_equal(call_node(w, NODE_SERVER, buf_span(&w->large), span_str(""),
                                   buf_span(&w->large), 20000000),
                         0);
}

static void calls_at_once_use_a_bounded_number_of_connections(void **state)
{
    struct world *w = *state;
    enum { N = 200 };
    struct request *rqs = calloc(N, sizeof(*rqs));

    assert_non_null(rqs);
    for (unsigned i = 0; i < N; i++)
        begin(w, &rqs[i], NODE_SERVER, span_str("echo "), span_of(w->large.data, 1000), 20000000);
    for (unsigned i = 0; i < N; i++) {
        end(&rqs[i]);
        assert_int_equal(rqs[i].err, 0);
        assert_int_equal(rqs[i].answer->len, 1005);
        blob_unref(rqs[i].answer);
    }
    assert_true(tiny_http_connections(&w->srv) <= 32);
    free(rqs);
}

static void refusal_and_unknown_names_are_told_apart(void **state)
{
    struct world *w = *state;
    struct span hello = span_str("echo"), none = span_str("");
    int err;

    assert_int_equal(call_node(w, NODE_REFUSING, hello, none, none, 10000000), -ECONNREFUSED);
    err = call_node(w, NODE_NAMELESS, hello, none, none, 500000);
    assert_true(err == -EHOSTUNREACH ||
                err == -ETIMEDOUT); /* by how fast the name server answers, if there is one */
}

static void without_a_descriptor_the_node_is_not_to_blame(void **state)
{
    struct world *w = *state;
    struct span hello = span_str("echo"), none = span_str("");
    struct rlimit limit, lower;
    int err;

    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    lower = (struct rlimit){0, limit.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &lower), 0);
    err = call_node(w, NODE_REFUSING, hello, none, none, 10000000);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
    assert_int_equal(err, -EMFILE);
    assert_false(transport_err_of_node(err));
    assert_int_equal(call_node(w, NODE_REFUSING, hello, none, none, 10000000), -ECONNREFUSED);
    assert_true(transport_err_of_node(-ECONNREFUSED));
}

static void a_proxy_of_the_environment_is_not_asked(void **state)
{
    assert_int_equal(setenv("http_proxy", "http://127.0.0.1:1", 1), 0);
    assert_int_equal(setenv("all_proxy", "http://127.0.0.1:1", 1), 0);
    assert_echo(*state, "echo direct");
    unsetenv("http_proxy");
    unsetenv("all_proxy");
}

/* --- deadlines -------------------------------------------------------------------------------- */

static void a_silent_node_ends_at_the_deadline_and_its_connection_is_not_used_again(void **state)
{
    struct world *w = *state;
    struct request rq;

    begin(w, &rq, NODE_SERVER, span_str("silent"), span_str(""), 150000);
    end(&rq);
    assert_int_equal(rq.err, -ETIMEDOUT);
    assert_true(rq.took_us >= 150000 && rq.took_us < 2000000);
    tiny_wait(&w->srv.closed);
    assert_echo(w, "echo after");
    assert_int_equal(tiny_http_connections(&w->srv), 2);
}

static void calls_that_wait_for_a_connection_keep_their_deadlines(void **state)
{
    struct world *w = *state;
    enum { N_HOLDING = 32, N = 40 };
    struct request *rqs = calloc(N, sizeof(*rqs));

    assert_non_null(rqs);
    for (unsigned i = 0; i < N; i++)
        begin(w, &rqs[i], NODE_SERVER, span_str("silent"), span_str(""),
              i < N_HOLDING ? 600000 : 100000);
    for (unsigned i = N; i-- > 0;) {
        end(&rqs[i]);
        assert_int_equal(rqs[i].err, -ETIMEDOUT);
        if (i >= N_HOLDING)
            assert_true(rqs[i].took_us < 590000);
    }
    free(rqs);
    assert_echo(w, "echo after");
}

static void a_deadline_that_has_passed_is_told_later_like_any_end(void **state)
{
    assert_int_equal(
        call_node(*state, NODE_SERVER, span_str("echo"), span_str(""), span_str("echo"), 0),
        -ETIMEDOUT);
}

static void a_name_that_takes_long_holds_up_nobody(void **state)
{
    struct world *w = *state;
    struct request rq;

    begin(w, &rq, NODE_NAMELESS, span_str("echo"), span_str(""), 1000);
    assert_echo(w, "echo meanwhile");
    end(&rq);
    assert_true(rq.err == -ETIMEDOUT || rq.err == -EHOSTUNREACH);
    assert_true(rq.took_us < 2000000);
}

/* --- the end ---------------------------------------------------------------------------------- */

static void freeing_ends_every_call_once_as_canceled(void **state)
{
    struct world *w = *state;
    enum { N = 50 };
    struct request *rqs = calloc(N, sizeof(*rqs));

    /* Those that the loop begun, those that wait for a connection, and jobs that never ran. */
    assert_non_null(rqs);
    for (unsigned i = 0; i < N - 1; i++)
        begin(w, &rqs[i], NODE_SERVER, span_str("silent"), span_str(""), 20000000);
    assert_int_equal(
        call_node(w, NODE_REFUSING, span_str("echo"), span_str(""), span_str(""), 10000000),
        -ECONNREFUSED);
    world_halt(w);
    begin(w, &rqs[N - 1], NODE_SERVER, span_str("silent"), span_str(""), 20000000);
    rqs[0].again = true;
    rqs[N - 2].again = true;
    transport_http_free(w->t);
    w->t = NULL;
    for (unsigned i = 0; i < N; i++) {
        tiny_wait(&rqs[i].ended);
        assert_int_equal(rqs[i].err, -ECANCELED);
        assert_int_equal(rqs[i].n_done, i == 0 || i == N - 2 ? 2 : 1);
        sem_destroy(&rqs[i].ended);
    }
    free(rqs);
}

/* --- the loop --------------------------------------------------------------------------------- */

struct post {
    struct loop_job job;
    struct posts *all;
    unsigned from, i;
};

struct posts {
    struct world *w;
    unsigned next[2]; /* which job of each poster comes next; the loop's */
    bool in_order;
    sem_t ran;
    struct post posts[2][500];
};

static void run_post(struct loop_job *job)
{
    struct post *p = container_of(job, struct post, job);

    if (p->i != p->all->next[p->from]++)
        p->all->in_order = false;
    sem_post(&p->all->ran);
}

static void *post_all(void *arg)
{
    struct post *posts = arg;

    for (unsigned i = 0; i < 500; i++) {
        posts[i].i = i;
        transport_http_post(posts[i].all->w->t, &posts[i].job);
        if (i % 16 == 0)
            sched_yield(); /* so that the loop falls asleep in between */
    }
    return NULL;
}

static void jobs_of_other_threads_wake_the_loop_and_run_in_order(void **state)
{
    struct world *w = *state;
    struct posts *all = calloc(1, sizeof(*all));
    pthread_t threads[2];

    assert_non_null(all);
    *all = (struct posts){.w = w, .in_order = true};
    assert_int_equal(sem_init(&all->ran, 0, 0), 0);
    for (unsigned from = 0; from < 2; from++) {
        for (unsigned i = 0; i < 500; i++)
            all->posts[from][i] = (struct post){.job.fn = run_post, .all = all, .from = from};
        assert_int_equal(pthread_create(&threads[from], NULL, post_all, all->posts[from]), 0);
    }
    for (unsigned i = 0; i < 1000; i++)
        tiny_wait(&all->ran);
    for (unsigned from = 0; from < 2; from++)
        pthread_join(threads[from], NULL);
    assert_true(all->in_order);
    sem_destroy(&all->ran);
    free(all);
}

struct alarm {
    struct loop_job job;
    struct timer timer;
    struct world *w;
    sem_t rang;
    uint64_t wait_us, due_us, rang_us, cpu_began_us, cpu_us;
};

static uint64_t thread_cpu_us(void)
{
    struct timespec t;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

static void ring(struct timer *t)
{
    struct alarm *a = container_of(t, struct alarm, timer);

    a->rang_us = now_us();
    a->cpu_us = thread_cpu_us() - a->cpu_began_us;
    sem_post(&a->rang);
}

static void arm(struct loop_job *job)
{
    struct alarm *a = container_of(job, struct alarm, job);
    struct transport *t = a->w->t;

    a->due_us = transport_now_us(t) + a->wait_us;
    a->cpu_began_us = thread_cpu_us();
    t->ops->timer_set(t, &a->timer, a->due_us);
}

static void alarm_wait(struct world *w, struct alarm *a, uint64_t wait_us)
{
    *a = (struct alarm){.job.fn = arm, .timer.fire = ring, .w = w, .wait_us = wait_us};
    assert_int_equal(sem_init(&a->rang, 0, 0), 0);
    transport_http_post(w->t, &a->job);
    tiny_wait(&a->rang);
    sem_destroy(&a->rang);
}

static void a_timer_fires_when_due_and_not_before(void **state)
{
    struct alarm a;

    alarm_wait(*state, &a, 30000);
    assert_true(a.rang_us >= a.due_us && a.rang_us < a.due_us + 1000000);
}

static void an_idle_connection_closed_by_its_node_does_not_keep_the_loop_busy(void **state)
{
    struct world *w = *state;
    struct alarm a;

    assert_int_equal(call_text(w, "last", "last"), 0);
    tiny_wait(&w->srv.closed);
    alarm_wait(w, &a, 200000);
    assert_true(a.cpu_us < 50000);
}

static void timers_come_in_the_order_of_their_time_however_they_are_moved(void **state)
{
    enum { N = 300 };
    struct timer_heap heap = {0};
    struct timer timers[N];
    struct rng rng;
    uint64_t last = 0;
    size_t armed = 0;

    (void)state;
    memset(timers, 0, sizeof(timers));
    rng = (struct rng){42};
    for (unsigned i = 0; i < 5000; i++) {
        struct timer *t = &timers[rng_next(&rng) % N];

        armed += t->slot == 0;
        if (rng_next(&rng) % 3 != 0) {
            assert_int_equal(timer_heap_set(&heap, t, rng_next(&rng) % 1000), 0);
        } else {
            timer_heap_clear(&heap, t);
            armed--;
        }
        assert_int_equal(heap.len, armed);
    }
    assert_true(armed > N / 3);
    for (struct timer *t; (t = timer_heap_first(&heap)) != NULL; armed--) {
        assert_true(t->due_us >= last);
        last = t->due_us;
        timer_heap_clear(&heap, t);
        assert_int_equal(t->slot, 0);
    }
    assert_int_equal(armed, 0);
    timer_heap_fini(&heap);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_body_is_given_out_in_any_pieces_and_again_from_any_place),
        cmocka_unit_test(an_announced_answer_takes_exactly_its_room),
        cmocka_unit_test_setup_teardown(an_answer_is_the_whole_body_whatever_its_status,
                                        setup_running, teardown),
        cmocka_unit_test_setup_teardown(head_and_body_arrive_as_one_at_every_size, setup_running,
                                        teardown),
        cmocka_unit_test_setup_teardown(an_answer_in_chunks_is_put_together, setup_running,
                                        teardown),
        cmocka_unit_test_setup_teardown(an_answer_cut_short_is_a_reset_and_never_a_short_answer,
                                        setup_running, teardown),
        cmocka_unit_test_setup_teardown(an_answer_larger_than_any_value_is_refused, setup_running,
                                        teardown),
        cmocka_unit_test_setup_teardown(what_is_not_http_is_a_protocol_error, setup_running,
                                        teardown),
        cmocka_unit_test_setup_teardown(calls_one_after_the_other_share_a_connection, setup_running,
                                        teardown),
        cmocka_unit_test_setup_teardown(a_kept_connection_that_the_node_closed_costs_no_call,
                                        setup_running, teardown),
        cmocka_unit_test_setup_teardown(
            a_call_that_meets_a_closing_connection_is_sent_again_however_often, setup_running,
            teardown),
        cmocka_unit_test_setup_teardown(calls_at_once_use_a_bounded_number_of_connections,
                                        setup_running, teardown),
        cmocka_unit_test_setup_teardown(refusal_and_unknown_names_are_told_apart, setup_running,
                                        teardown),
        cmocka_unit_test_setup_teardown(without_a_descriptor_the_node_is_not_to_blame,
                                        setup_running, teardown),
        cmocka_unit_test_setup_teardown(a_proxy_of_the_environment_is_not_asked, setup_running,
                                        teardown),
        cmocka_unit_test_setup_teardown(
            a_silent_node_ends_at_the_deadline_and_its_connection_is_not_used_again, setup_running,
            teardown),
        cmocka_unit_test_setup_teardown(calls_that_wait_for_a_connection_keep_their_deadlines,
                                        setup_running, teardown),
        cmocka_unit_test_setup_teardown(a_deadline_that_has_passed_is_told_later_like_any_end,
                                        setup_running, teardown),
        cmocka_unit_test_setup_teardown(a_name_that_takes_long_holds_up_nobody, setup_running,
                                        teardown),
        cmocka_unit_test_setup_teardown(freeing_ends_every_call_once_as_canceled, setup_running,
                                        teardown),
        cmocka_unit_test_setup_teardown(jobs_of_other_threads_wake_the_loop_and_run_in_order,
                                        setup_running, teardown),
        cmocka_unit_test_setup_teardown(a_timer_fires_when_due_and_not_before, setup_running,
                                        teardown),
        cmocka_unit_test_setup_teardown(
            an_idle_connection_closed_by_its_node_does_not_keep_the_loop_busy, setup_running,
            teardown),
        cmocka_unit_test(timers_come_in_the_order_of_their_time_however_they_are_moved),
    };

    if (transport_http_setup() < 0)
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}

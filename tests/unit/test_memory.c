/*
 * test_memory.c - operations of the client on three replicas while memory runs out: the n-th
 * allocation fails, and all after it for a while, for n = 0, 1, 2 ... until everything gets
 * through. Each operation ends exactly once, and what it says is true afterwards.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/client.h"
#include "common/config.h"
#include "node/replica.h"

#define N_NODES 3u
#define QUEUE_MAX 256u
#define SWEEP_MAX 5000u

/* --- memory that runs out ------------------------------------------------------------------- */

void *__real_malloc(size_t size);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t size);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *p, size_t size);

static unsigned until_failure = UINT32_MAX, n_failures; /* how many fail then */

static bool fails(void)
{
    if (until_failure == UINT32_MAX)
        return false;
    if (until_failure > 0) {
        until_failure--;
        return false;
    }
    if (n_failures == 0)
        return false;
    n_failures--;
    return true;
}

void *__wrap_malloc(size_t size)
{
    return fails() ? NULL : __real_malloc(size);
}

void *__wrap_calloc(size_t n, size_t size)
{
    return fails() ? NULL : __real_calloc(n, size);
}

void *__wrap_realloc(void *p, size_t size)
{
    return fails() ? NULL : __real_realloc(p, size);
}

/* --- a world ---------------------------------------------------------------------------------- */

/* The calls and timers of one client, served one after the other; time is what the timers say. */
struct world {
    struct transport transport;
    struct clock clock;
    uint64_t now_us;
    struct config *cfg;
    struct health *health;
    struct client *client;
    struct store *stores[N_NODES];
    struct replica *replicas[N_NODES];
    struct call *calls[QUEUE_MAX];
    unsigned n_calls;
    struct timer *timers[QUEUE_MAX];
};

static uint64_t now_us(struct clock *c)
{
    return container_of(c, struct world, clock)->now_us;
}

static void keep_call(struct transport *t, struct call *call)
{
    struct world *w = container_of(t, struct world, transport);

    assert_true(w->n_calls < QUEUE_MAX);
    w->calls[w->n_calls++] = call;
}

static void timer_clear(struct transport *t, struct timer *timer)
{
    struct world *w = container_of(t, struct world, transport);

    if (timer->slot > 0)
        w->timers[timer->slot - 1] = NULL;
    timer->slot = 0;
}

static void timer_set(struct transport *t, struct timer *timer, uint64_t due_us)
{
    struct world *w = container_of(t, struct world, transport);
    unsigned i = 0;

    timer_clear(t, timer);
    while (w->timers[i] != NULL)
        assert_true(++i < QUEUE_MAX);
    w->timers[i] = timer;
    timer->slot = i + 1;
    timer->due_us = due_us;
}

static const struct transport_ops served = {
    .send = keep_call, .timer_set = timer_set, .timer_clear = timer_clear};

static void world_open(struct world *w)
{
    struct client_opts opts = {.seed = 1, .proposer = 1, .timeout_ms = 1000};
    struct err err = {""};

    *w = (struct world){.clock = {now_us, now_us}, .now_us = 1000000};
    w->transport = (struct transport){&served, &w->clock};
    assert_int_equal(
        config_parse("test",
                     span_str("{\"nodes\":[{\"id\":\"n0\",\"addr\":\"h0:1\"},{\"id\":\"n1\","
                              "\"addr\":\"h1:1\"},{\"id\":\"n2\",\"addr\":\"h2:1\"}],"
                              "\"replication_factor\":3}"),
                     &w->cfg, &err),
        0);
    assert_int_equal(health_new(N_NODES, &w->health), 0);
    for (unsigned i = 0; i < N_NODES; i++) {
        struct replica_opts ro = {.ring = w->cfg->ring, .self = i, .clock = &w->clock, .seed = i};

        assert_int_equal(store_memory_open(&w->stores[i]), 0);
        ro.store = w->stores[i];
        assert_int_equal(replica_open(&ro, &w->replicas[i], &err), 0);
        assert_int_equal(replica_found(w->replicas[i], NULL, 0), 0);
    }
    opts.ring = w->cfg->ring;
    opts.transport = &w->transport;
    opts.health = w->health;
    assert_int_equal(client_new(&opts, &w->client), 0);
}

static void world_close(struct world *w)
{
    client_free(w->client);
    health_free(w->health);
    for (unsigned i = 0; i < N_NODES; i++) {
        replica_close(w->replicas[i]);
        w->stores[i]->ops->close(w->stores[i]);
    }
    config_free(w->cfg);
}

static int read_all(struct reply *reply, struct blob *out)
{
    for (uint64_t pos = 0; pos < out->len;) {
        int64_t n = reply_read(reply, pos, out->data + pos, out->len - pos);

        if (n < 0)
            return (int)n;
        pos += (uint64_t)n;
    }
    return 0;
}

/* What the node answers. As over a wire, an answer for which there is no memory is none. */
static void serve(struct world *w, struct call *call)
{
    struct replica_request *rq;
    struct reply reply = REPLY_NONE;
    struct blob *blob = NULL;
    size_t len = call->head.len + call->body.len + call->tail.len;
    int err = replica_begin(w->replicas[call->node], len, &rq);

    if (err == 0) {
        if (replica_feed(rq, call->head) == 0 && replica_feed(rq, value_span(call->body)) == 0)
            (void)replica_feed(rq, value_span(call->tail));
        replica_end(rq, &reply);
        blob = reply_len(&reply) > 0 ? blob_new(reply_len(&reply)) : NULL;
        err = blob == NULL ? -ENOMEM : read_all(&reply, blob);
        reply_fini(&reply);
    }
    if (err < 0) {
        blob_unref(blob);
        call->done(call, -ECONNRESET, NULL);
    } else {
        call->done(call, 0, blob);
    }
}

/* The next thing to happen. False: nothing will. */
static bool world_step(struct world *w)
{
    struct timer *next = NULL;
    struct call *call;

    if (w->n_calls > 0) {
        call = w->calls[0];
        memmove(w->calls, w->calls + 1, --w->n_calls * sizeof(w->calls[0]));
        w->now_us += 100;
        serve(w, call);
        return true;
    }
    for (unsigned i = 0; i < QUEUE_MAX; i++)
        if (w->timers[i] != NULL && (next == NULL || w->timers[i]->due_us < next->due_us))
            next = w->timers[i];
    if (next == NULL)
        return false;
    if (next->due_us > w->now_us)
        w->now_us = next->due_us;
    timer_clear(&w->transport, next);
    next->fire(next);
    return true;
}

/* --- operations ------------------------------------------------------------------------------- */

struct outcome {
    unsigned n_done;
    int err;
    bool certain;
    struct value value;
    unsigned n_listed;
};

static void on_written(void *arg, struct write_result *res)
{
    *(struct outcome *)arg = (struct outcome){
        .n_done = ((struct outcome *)arg)->n_done + 1, .err = res->err, .certain = res->certain};
}

static void on_read(void *arg, struct read_result *res)
{
    struct outcome *o = arg;

    o->n_done++;
    o->err = res->err;
    o->value = res->value;
    res->value = (struct value){0};
}

static void on_listed(void *arg, struct list_result *res)
{
    struct outcome *o = arg;

    o->n_done++;
    o->err = res->err;
    o->n_listed = res->n;
}

/* Adds the byte after the last one to the value. */
static int edit_append(void *ctx, const struct record *cur, struct value cur_value,
                       struct draft *next)
{
    struct buf bytes = {0};
    int err;

    (void)ctx, (void)cur;
    buf_add_span(&bytes, value_span(cur_value));
    buf_u8(&bytes, cur_value.len == 0 ? 'a' : (uint8_t)(cur_value.data[cur_value.len - 1] + 1));
    err = bytes.err < 0 ? bytes.err : value_copy(buf_span(&bytes), &next->value);
    buf_fini(&bytes);
    return err;
}

/* Runs what was started to its end; NULL: it could not even begin. */
static void finish(struct world *w, const struct op *op, struct outcome *o)
{
    if (op == NULL) {
        assert_int_equal(o->n_done, 0);
        *o = (struct outcome){.n_done = 1, .err = -ENOMEM, .certain = true};
    }
    while (world_step(w))
        continue;
    assert_int_equal(o->n_done, 1);
}

static struct outcome append(struct world *w)
{
    struct write_args args = {.key = span_str("k"), .edit = edit_append, .want_value = true};
    struct outcome o = {0};

    finish(w, client_write(w->client, &args, on_written, &o), &o);
    return o;
}

static struct outcome read_value(struct world *w)
{
    struct read_args args = {
        .key = span_str("k"), .want_value = true, .length = READ_ALL, .peek = true};
    struct outcome o = {0};

    finish(w, client_read(w->client, &args, on_read, &o), &o);
    return o;
}

static struct outcome list_keys(struct world *w)
{
    struct list_args args = {.limit = 10, .delimiter = true};
    struct outcome o = {0};

    finish(w, client_list(w->client, &args, on_listed, &o), &o);
    return o;
}

/*
 * Three appends, a read and a listing with memory running out somewhere; then, with memory again, a
 * look at what is there: "abc" without what surely failed. True: nothing ran out any more.
 */
static bool sweep_once(unsigned n, unsigned failures)
{
    struct world w;
    struct outcome got;
    unsigned least = 0, most = 0;
    bool through;

    world_open(&w);
    until_failure = n;
    n_failures = failures;
    for (unsigned i = 0; i < 3; i++) {
        got = append(&w);
        least += got.err == 0;
        most += got.err == 0 || !got.certain;
    }
    got = read_value(&w);
    assert_true(got.err < 0 || (got.value.len >= least && got.value.len <= most));
    value_fini(&got.value);
    got = list_keys(&w);
    assert_true(got.err < 0 || got.n_listed <= 1);
    through = n_failures == failures;
    until_failure = UINT32_MAX;

    got = read_value(&w);
    assert_int_equal(got.err, 0);
    assert_true(got.value.len >= least && got.value.len <= most);
    assert_memory_equal(got.value.data, "abc", got.value.len);
    value_fini(&got.value);
    world_close(&w);
    return through;
}

static void sweep(unsigned failures)
{
    unsigned n = 0;

    while (!sweep_once(n, failures))
        assert_true(++n < SWEEP_MAX);
    assert_true(n > 100); /* a sweep without allocations proves nothing */
}

static void every_operation_bears_any_one_allocation_that_fails(void **state)
{
    (void)state;
    sweep(1);
}

static void and_a_row_of_them(void **state)
{
    (void)state;
    sweep(30);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_operation_bears_any_one_allocation_that_fails),
        cmocka_unit_test(and_a_row_of_them),
    };

    return cmocka_run_group_tests_name("memory", tests, NULL, NULL);
}

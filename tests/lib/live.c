/* live.c - the running client of a cluster and three replicas in this process. */
#include "tests/lib/live.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

/* --- nodes ------------------------------------------------------------------------------------ */

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
    struct live_node *n = arg;
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

static struct config *make_config(const struct live *w, unsigned replication_factor)
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

void live_node_listen(struct live_node *n)
{
    tiny_http_start(&n->srv, n->port, answer, n);
    n->listens = true;
}

void live_node_die(struct live_node *n)
{
    if (n->listens)
        tiny_http_stop(&n->srv);
    n->listens = false;
}

void live_node_open_new(struct live *w, unsigned i, unsigned replication_factor)
{
    struct live_node *n = &w->nodes[i];
    struct replica_opts opts = {.self = i, .clock = clock_real(), .seed = i + 1};
    struct err err;

    n->cfg = make_config(w, replication_factor);
    opts.ring = n->cfg->ring;
    opts.cfg = n->cfg;
    assert_int_equal(store_memory_open(&n->store), 0);
    opts.store = n->store;
    assert_int_equal(replica_open(&opts, &n->replica, &err), 0);
}

void live_node_open(struct live *w, unsigned i, unsigned replication_factor)
{
    live_node_open_new(w, i, replication_factor);
    assert_int_equal(replica_found(w->nodes[i].replica, NULL, 0), 0);
}

void live_node_close(struct live_node *n)
{
    live_node_die(n);
    replica_close(n->replica);
    n->store->ops->close(n->store);
    config_free(n->cfg);
}

void live_silence(struct live *w)
{
    for (unsigned i = 0; i < LIVE_N_NODES; i++)
        atomic_store(&w->nodes[i].mood, MOOD_SILENT);
}

/* --- cluster ---------------------------------------------------------------------------------- */

static void on_hello(void *arg, unsigned node, const struct hello_result *res)
{
    struct live *w = arg;

    atomic_fetch_add(res->err == 0 ? &w->n_hellos[node] : &w->n_failed[node], 1);
}

static void self_state(void *arg, uint64_t *incarnation, uint8_t *state)
{
    struct live *w = arg;

    atomic_fetch_add(&w->n_said, 1);
    *incarnation = 42;
    *state = NODE_WHOLE;
}

void live_open(struct live *w)
{
    struct err err;

    assert_int_equal(cluster_open(&w->opts, &w->c, &err), 0);
}

void live_await_ready(struct live *w)
{
    struct err err;

    assert_int_equal(cluster_wait_ready(w->c, LIVE_TIMEOUT_MS, &err), 0);
}

/* Nodes that are there but do not listen, and no cluster yet. */
int live_setup_dead(void **state)
{
    struct live *w = calloc(1, sizeof(*w));
    uint16_t ports[LIVE_N_NODES];

    assert_non_null(w);
    tiny_refusing_ports(ports, LIVE_N_NODES);
    for (unsigned i = 0; i < LIVE_N_NODES; i++) {
        w->nodes[i].port = ports[i];
        assert_int_equal(sem_init(&w->nodes[i].asked, 0, 0), 0);
    }
    w->cfg = make_config(w, 3);
    for (unsigned i = 0; i < LIVE_N_NODES; i++)
        live_node_open(w, i, 3);
    w->opts = (struct cluster_opts){.cfg = w->cfg,
                                    .n_threads = 2,
                                    .timeout_ms = LIVE_TIMEOUT_MS,
                                    .self = MESSAGE_NODE_NONE,
                                    .self_state = self_state,
                                    .on_hello = on_hello,
                                    .arg = w};
    *state = w;
    return 0;
}

int live_setup(void **state)
{
    struct live *w;

    live_setup_dead(state);
    w = *state;
    for (unsigned i = 0; i < LIVE_N_NODES; i++)
        live_node_listen(&w->nodes[i]);
    live_open(w);
    live_await_ready(w);
    return 0;
}

int live_teardown(void **state)
{
    struct live *w = *state;

    cluster_close(w->c);
    for (unsigned i = 0; i < LIVE_N_NODES; i++) {
        live_node_close(&w->nodes[i]);
        sem_destroy(&w->nodes[i].asked);
    }
    config_free(w->cfg);
    free(w);
    return 0;
}

/* hand.c - a client whose network and time are the test's hands. */
#include "tests/lib/hand.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "common/status.h"

#define LIFE 5u /* the incarnation of every node, where the test does not care */

/* --- transport and time ----------------------------------------------------------------------- */

static uint64_t now_us(struct clock *c)
{
    return container_of(c, struct hand, clock)->now_us;
}

static void keep_call(struct transport *t, struct call *call)
{
    struct hand *h = container_of(t, struct hand, transport);

    assert_true(h->n_calls < HAND_CALLS_MAX);
    h->calls[h->n_calls++] = call;
}

static void timer_set(struct transport *t, struct timer *timer, uint64_t due_us)
{
    struct hand *h = container_of(t, struct hand, transport);
    unsigned i = 0;

    while (h->timers[i] != NULL && h->timers[i] != timer)
        assert_true(++i < HAND_TIMERS_MAX);
    if (timer->slot > 0)
        h->timers[timer->slot - 1] = NULL;
    h->timers[i] = timer;
    timer->slot = i + 1;
    timer->due_us = due_us;
}

static void timer_clear(struct transport *t, struct timer *timer)
{
    struct hand *h = container_of(t, struct hand, transport);

    if (timer->slot > 0)
        h->timers[timer->slot - 1] = NULL;
    timer->slot = 0;
}

static int keep_stream(struct transport *t, struct stream *s)
{
    struct hand *h = container_of(t, struct hand, transport);

    assert_true(s->node < HAND_NODES_MAX);
    assert_null(h->streams[s->node]);
    h->streams[s->node] = s;
    (void)snprintf(h->targets[s->node], sizeof(h->targets[0]), "%s", s->target);
    h->n_streams++;
    return 0;
}

static void drop_stream(struct transport *t, struct stream *s)
{
    struct hand *h = container_of(t, struct hand, transport);

    if (h->streams[s->node] == s)
        h->streams[s->node] = NULL;
}

static const struct transport_ops by_hand = {.send = keep_call,
                                             .stream_open = keep_stream,
                                             .stream_close = drop_stream,
                                             .timer_set = timer_set,
                                             .timer_clear = timer_clear};

void hand_run_until(struct hand *h, uint64_t until_us)
{
    for (;;) {
        struct timer *next = NULL;

        for (unsigned i = 0; i < HAND_TIMERS_MAX; i++)
            if (h->timers[i] != NULL && h->timers[i]->due_us <= until_us &&
                (next == NULL || h->timers[i]->due_us < next->due_us))
                next = h->timers[i];
        if (next == NULL)
            break;
        if (next->due_us > h->now_us)
            h->now_us = next->due_us;
        timer_clear(&h->transport, next);
        next->fire(next);
    }
    h->now_us = until_us;
}

void hand_run(struct hand *h)
{
    hand_run_until(h, h->now_us);
}

void hand_run_out(struct hand *h)
{
    hand_run_until(h, h->now_us + 3600000000u);
}

/* --- fixture ---------------------------------------------------------------------------------- */

void hand_init(struct hand *h, unsigned n_nodes, unsigned replication_factor, uint32_t timeout_ms)
{
    struct client_opts opts = {.seed = 1, .proposer = 1, .timeout_ms = timeout_ms};
    struct buf json = {0};
    struct err err = {""};

    *h = (struct hand){.now_us = HAND_START_US, .clock = {now_us, now_us}};
    h->transport = (struct transport){&by_hand, &h->clock};
    buf_addf(&json, "{\"nodes\":[");
    for (unsigned i = 0; i < n_nodes; i++)
        buf_addf(&json, "%s{\"id\":\"n%u\",\"addr\":\"h%u:1\"}", i > 0 ? "," : "", i, i);
    buf_addf(&json, "],\"replication_factor\":%u}", replication_factor);
    assert_int_equal(config_parse("test", buf_span(&json), &h->cfg, &err), 0);
    buf_fini(&json);
    assert_int_equal(health_new(n_nodes, &h->health), 0);
    opts.ring = h->cfg->ring;
    opts.transport = &h->transport;
    opts.health = h->health;
    assert_int_equal(client_new(&opts, &h->client), 0);
}

void hand_fini(struct hand *h)
{
    for (unsigned i = 0; i < h->n_calls; i++)
        if (h->calls[i] != NULL)
            h->calls[i]->done(h->calls[i], -ECANCELED, NULL);
    client_stop_background(h->client);
    client_free(h->client);
    health_free(h->health);
    config_free(h->cfg);
}

/* --- looking ---------------------------------------------------------------------------------- */

struct message hand_message(const struct hand *h, unsigned i)
{
    struct message m;
    size_t head_len;

    assert_true(i < h->n_calls && h->calls[i] != NULL);
    assert_int_equal(message_decode(h->calls[i]->head, &m, &head_len), 0);
    return m;
}

unsigned hand_place(const struct hand *h, unsigned i)
{
    struct message m = hand_message(h, i);
    const unsigned *replicas = ring_replicas(h->cfg->ring, m.key);
    unsigned place = 0;

    while (replicas[place] != h->calls[i]->node)
        assert_true(++place < ring_n_replicas(h->cfg->ring));
    return place;
}

unsigned hand_find(const struct hand *h, enum message_kind kind, unsigned node)
{
    for (unsigned i = 0; i < h->n_calls; i++)
        if (h->calls[i] != NULL && h->calls[i]->node == node && hand_message(h, i).kind == kind)
            return i;
    fail_msg("no message of kind %d is under way to node %u", (int)kind, node);
    return 0;
}

unsigned hand_n_open(const struct hand *h)
{
    unsigned n = 0;

    for (unsigned i = 0; i < h->n_calls; i++)
        n += h->calls[i] != NULL;
    return n;
}

/* --- answering -------------------------------------------------------------------------------- */

void hand_answer_bytes(struct hand *h, unsigned i, struct span bytes)
{
    struct call *call = h->calls[i];
    struct blob *blob = blob_new(bytes.len);

    assert_non_null(call);
    assert_non_null(blob);
    memcpy(blob->data, bytes.data, bytes.len);
    h->calls[i] = NULL;
    call->done(call, 0, blob);
}

static void answer_with(struct hand *h, unsigned i, struct answer a, uint64_t incarnation,
                        struct span value)
{
    bool has_record = a.kind == ANS_STATE || a.kind == ANS_PROMISE;
    struct message m = hand_message(h, i);
    struct buf bytes = {0};

    a.clock_ms = h->now_us / 1000;
    a.incarnation = incarnation;
    answer_encode(&bytes, has_record ? m.key : span_of(NULL, 0), &a);
    buf_add_span(&bytes, value);
    assert_int_equal(bytes.err, 0);
    hand_answer_bytes(h, i, buf_span(&bytes));
    buf_fini(&bytes);
}

void hand_answer(struct hand *h, unsigned i, struct answer a, uint64_t incarnation)
{
    answer_with(h, i, a, incarnation, span_of(NULL, 0));
}

void hand_answer_value(struct hand *h, unsigned i, struct answer a, struct span value)
{
    a.has_value = a.kind != ANS_LIST && a.kind != ANS_KEYS;
    answer_with(h, i, a, LIFE, value);
}

void hand_say(struct hand *h, unsigned i, enum answer_kind kind)
{
    hand_answer(h, i, (struct answer){.kind = kind}, LIFE);
}

void hand_refuse(struct hand *h, unsigned i, struct ballot ballot)
{
    hand_answer(h, i, (struct answer){.kind = ANS_REFUSE, .ballot = ballot}, LIFE);
}

void hand_damaged(struct hand *h, unsigned i)
{
    struct answer a = {.kind = ANS_ERROR, .status = status_from_errno(-EBADMSG)};

    hand_answer(h, i, a, LIFE);
}

void hand_stream_text(struct hand *h, unsigned node, const char *text)
{
    assert_non_null(h->streams[node]);
    h->streams[node]->data(h->streams[node], span_str(text));
}

void hand_stream_end(struct hand *h, unsigned node, int err)
{
    struct stream *s = h->streams[node];

    assert_non_null(s);
    h->streams[node] = NULL;
    s->ended(s, err);
}

void hand_fail(struct hand *h, unsigned i, int err)
{
    struct call *call = h->calls[i];

    assert_non_null(call);
    h->calls[i] = NULL;
    call->done(call, err, NULL);
}

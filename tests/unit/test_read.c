/*
 * test_read.c - READ against answers given by hand: what the simulated cluster has no occasion for.
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
#include "common/status.h"

#define CALLS_MAX 16u

/* A client whose calls wait in a row for the test to answer them; time stands still. */
struct fixture {
    struct transport transport;
    struct clock clock;
    struct config *cfg;
    struct health *health;
    struct client *client;
    struct call *calls[CALLS_MAX];
    unsigned n_calls; /* sent so far */
    struct timer *timers[CALLS_MAX];
    unsigned n_done;
    int err;
    struct ballot version;
};

static uint64_t now_us(struct clock *c)
{
    (void)c;
    return 1000000;
}

static void keep_call(struct transport *t, struct call *call)
{
    struct fixture *f = container_of(t, struct fixture, transport);

    assert_true(f->n_calls < CALLS_MAX);
    f->calls[f->n_calls++] = call;
}

static void timer_set(struct transport *t, struct timer *timer, uint64_t due_us)
{
    struct fixture *f = container_of(t, struct fixture, transport);
    unsigned i = 0;

    while (f->timers[i] != NULL && f->timers[i] != timer)
        assert_true(++i < CALLS_MAX);
    f->timers[i] = timer;
    timer->slot = i + 1;
    timer->due_us = due_us;
}

static void timer_clear(struct transport *t, struct timer *timer)
{
    struct fixture *f = container_of(t, struct fixture, transport);

    if (timer->slot > 0)
        f->timers[timer->slot - 1] = NULL;
    timer->slot = 0;
}

static const struct transport_ops by_hand = {keep_call, timer_set, timer_clear};

static int setup_with(void **state, const char *json)
{
    struct fixture *f = calloc(1, sizeof *f);
    struct client_opts opts = {.seed = 1, .proposer = 1, .timeout_ms = 1000};
    struct err err = {""};

    f->clock = (struct clock){now_us, now_us};
    f->transport = (struct transport){&by_hand, &f->clock};
    assert_int_equal(config_parse("test", span_str(json), &f->cfg, &err), 0);
    assert_int_equal(health_new(3, &f->health), 0);
    opts.ring = f->cfg->ring;
    opts.transport = &f->transport;
    opts.health = f->health;
    assert_int_equal(client_new(&opts, &f->client), 0);
    *state = f;
    return 0;
}

static int setup(void **state)
{
    return setup_with(state, "{\"nodes\":[{\"id\":\"n0\",\"addr\":\"h0:1\"},{\"id\":\"n1\","
                             "\"addr\":\"h1:1\"},{\"id\":\"n2\",\"addr\":\"h2:1\"}],"
                             "\"replication_factor\":3}");
}

static int setup_single(void **state)
{
    return setup_with(state, "{\"nodes\":[{\"id\":\"n0\",\"addr\":\"h0:1\"}],"
                             "\"replication_factor\":1}");
}

static int teardown(void **state)
{
    struct fixture *f = *state;

    client_free(f->client);
    health_free(f->health);
    config_free(f->cfg);
    free(f);
    return 0;
}

/* Ends the i-th call with these bytes. */
static void answer_bytes(struct fixture *f, unsigned i, struct span bytes)
{
    struct call *call = f->calls[i];
    struct blob *blob = blob_new(bytes.len);

    memcpy(blob->data, bytes.data, bytes.len);
    f->calls[i] = NULL;
    call->done(call, 0, blob);
}

/* Ends the i-th call with this answer of a node in its life number `incarnation`. */
static void answer(struct fixture *f, unsigned i, struct answer a, uint64_t incarnation)
{
    struct buf bytes = {0};

    a.clock_ms = 1000;
    a.incarnation = incarnation;
    answer_encode(&bytes, a.kind == ANS_STATE ? span_str("k") : span_of(NULL, 0), &a);
    assert_int_equal(bytes.err, 0);
    answer_bytes(f, i, buf_span(&bytes));
    buf_fini(&bytes);
}

/* Ends all that is under way, so that the client can be freed. */
static void give_up(struct fixture *f, struct op *op)
{
    if (f->n_done == 0)
        op_cancel(op);
    for (unsigned i = 0; i < CALLS_MAX; i++) {
        if (f->timers[i] != NULL && f->timers[i]->due_us == 0) {
            struct timer *t = f->timers[i];

            timer_clear(&f->transport, t);
            t->fire(t);
        }
    }
    for (unsigned i = 0; i < f->n_calls; i++)
        if (f->calls[i] != NULL)
            f->calls[i]->done(f->calls[i], -ECANCELED, NULL);
}

static void on_read(void *arg, struct read_result *res)
{
    struct fixture *f = arg;

    f->n_done++;
    f->err = res->err;
    f->version = res->rec.rec.version;
}

static const struct record newer = {.version = {10, 7}, .seq = 1, .n_recent = 1, .recent = {3}};
static const struct record older = {.version = {5, 7}, .seq = 0};

/* One replica has the newer record, another the older one: that one is sent the newer. */
static struct op *read_up_to_mending(struct fixture *f)
{
    struct read_args args = {.key = span_str("k")};
    struct op *op = client_read(f->client, &args, on_read, f);

    assert_int_equal(f->n_calls, 2);
    answer(f, 0, (struct answer){.kind = ANS_STATE, .record = newer}, 5);
    answer(f, 1, (struct answer){.kind = ANS_STATE, .record = older}, 6);
    assert_int_equal(f->n_calls, 3);
    assert_int_equal(f->n_done, 0);
    return op;
}

static void a_read_brings_the_newest_record_to_a_majority(void **state)
{
    struct fixture *f = *state;
    struct op *op = read_up_to_mending(f);

    answer(f, 2, (struct answer){.kind = ANS_ACCEPTED}, 6);
    assert_int_equal(f->n_done, 1);
    assert_int_equal(f->err, 0);
    assert_int_equal(f->version.counter, 10);
    give_up(f, op);
}

/*
 * Between its answer and the other's acceptance a node lost its disk: its new life may have begun
 * from replicas that did not have the record yet.
 */
static void who_lost_its_disk_meanwhile_does_not_count_for_the_majority(void **state)
{
    struct fixture *f = *state;
    struct op *op = read_up_to_mending(f);
    struct buf known = {0};

    answer_add_known(&known, ring_replicas(f->cfg->ring, span_str("k"))[0], 50);
    answer(f, 2, (struct answer){.kind = ANS_ACCEPTED, .n_known = 1, .known = buf_span(&known)}, 6);
    assert_int_equal(f->n_done, 0);
    buf_fini(&known);
    give_up(f, op);
    assert_int_equal(f->err, -EINTR);
}

/* A proxy, a server that has run out of memory, another program at that address: who knows. */
static void bytes_that_are_no_answer_are_not_taken_for_damaged_data(void **state)
{
    struct fixture *f = *state;
    struct read_args args = {.key = span_str("k")};
    struct op *op = client_read(f->client, &args, on_read, f);

    answer_bytes(f, 0, span_str("{\"status\":503,\"detail\":\"out of memory\"}"));
    assert_int_equal(f->n_done, 0); /* it tries again, until its time is up */
    give_up(f, op);
    assert_int_equal(f->err, -EINTR);
}

/* Not a quorum out of reach: asking again is in vain, and nobody but a person can help. */
static void a_key_that_every_replica_finds_damaged_is_told_so_at_once(void **state)
{
    struct fixture *f = *state;
    struct read_args args = {.key = span_str("k")};
    struct op *op = client_read(f->client, &args, on_read, f);
    struct answer damaged = {.kind = ANS_ERROR, .status = status_from_errno(-EBADMSG)};

    for (unsigned i = 0; i < 3; i++) {
        assert_int_equal(f->n_done, 0);
        assert_int_equal(f->n_calls, i == 0 ? 2 : 3);
        answer(f, i, damaged, 5 + i);
    }
    assert_int_equal(f->n_done, 1);
    assert_int_equal(f->err, -EBADMSG);
    give_up(f, op);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_read_brings_the_newest_record_to_a_majority, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(who_lost_its_disk_meanwhile_does_not_count_for_the_majority,
                                        setup, teardown),
        cmocka_unit_test_setup_teardown(bytes_that_are_no_answer_are_not_taken_for_damaged_data,
                                        setup_single, teardown),
        cmocka_unit_test_setup_teardown(a_key_that_every_replica_finds_damaged_is_told_so_at_once,
                                        setup, teardown),
    };

    return cmocka_run_group_tests_name("read", tests, NULL, NULL);
}

/* test_relay.c - bytes come over whole and in order, bounded, and nobody waits for ever. */
#include "common/relay.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

struct sink {
    pthread_mutex_t lock; /* all below */
    pthread_cond_t changed;
    uint64_t len;
    bool in_order, gate_shut, taking, ended, freed;
    unsigned n_room;
    int fail, err; /* fail: what take() says */
};

static void sink_init(struct sink *k, bool gate_shut)
{
    memset(k, 0, sizeof(*k));
    k->in_order = true;
    k->gate_shut = gate_shut;
    pthread_mutex_init(&k->lock, NULL);
    pthread_cond_init(&k->changed, NULL);
}

static void sink_fini(struct sink *k)
{
    pthread_cond_destroy(&k->changed);
    pthread_mutex_destroy(&k->lock);
}

/* Byte i of what goes over. */
static uint8_t byte_at(uint64_t i)
{
    return (uint8_t)(i * 7 + (i >> 8));
}

static int take(void *arg, struct span part)
{
    struct sink *k = arg;
    int fail;

    pthread_mutex_lock(&k->lock);
    k->taking = true;
    pthread_cond_broadcast(&k->changed);
    while (k->gate_shut)
        pthread_cond_wait(&k->changed, &k->lock);
    for (size_t i = 0; i < part.len; i++)
        k->in_order &= part.data[i] == byte_at(k->len + i);
    k->len += part.len;
    fail = k->fail;
    pthread_mutex_unlock(&k->lock);
    return fail;
}

static void room(void *arg)
{
    struct sink *k = arg;

    pthread_mutex_lock(&k->lock);
    k->n_room++;
    pthread_cond_broadcast(&k->changed);
    pthread_mutex_unlock(&k->lock);
}

static void ended(void *arg, int err)
{
    struct sink *k = arg;

    pthread_mutex_lock(&k->lock);
    assert_false(k->ended);
    k->ended = true;
    k->err = err;
    pthread_cond_broadcast(&k->changed);
    pthread_mutex_unlock(&k->lock);
}

static void sink_free(void *arg)
{
    struct sink *k = arg;

    pthread_mutex_lock(&k->lock);
    assert_false(k->freed);
    k->freed = true;
    pthread_cond_broadcast(&k->changed);
    pthread_mutex_unlock(&k->lock);
}

static const struct relay_ops ops = {take, room, ended, sink_free};

static void await_flag(struct sink *k, const bool *flag)
{
    pthread_mutex_lock(&k->lock);
    while (!*flag)
        pthread_cond_wait(&k->changed, &k->lock);
    pthread_mutex_unlock(&k->lock);
}

static void open_gate(struct sink *k)
{
    pthread_mutex_lock(&k->lock);
    k->gate_shut = false;
    pthread_cond_broadcast(&k->changed);
    pthread_mutex_unlock(&k->lock);
}

/* Adds bytes from at on. */
static int add(struct relay *r, uint64_t at, size_t len)
{
    uint8_t *bytes = malloc(len);
    int ret;

    assert_non_null(bytes);
    for (size_t i = 0; i < len; i++)
        bytes[i] = byte_at(at + i);
    ret = relay_add(r, span_of(bytes, len));
    free(bytes);
    return ret;
}

/* Adds until it is full; where it stands then. */
static uint64_t fill(struct relay *r, uint64_t at)
{
    int ret;

    do {
        ret = add(r, at, 32768);
        at += 32768;
    } while (ret == 0);
    assert_int_equal(ret, RELAY_FULL);
    return at;
}

static void all_comes_over_in_order(void **state)
{
    static const size_t pieces[] = {1, 4096, 32768, 1000000};
    struct workers *w;

    (void)state;
    assert_int_equal(workers_new(3, "kv-test", &w), 0);
    for (size_t i = 0; i < sizeof(pieces) / sizeof(pieces[0]); i++) {
        uint64_t at = 0, total = pieces[i] == 1 ? 1000 : 5000000;
        unsigned n_full = 0;
        struct relay *r;
        struct sink k;

        sink_init(&k, false);
        assert_int_equal(relay_new(w, &ops, &k, &r), 0);
        while (at < total) {
            int ret = add(r, at, pieces[i]);

            at += pieces[i];
            if (ret == RELAY_FULL) { /* as its users do */
                n_full++;
                pthread_mutex_lock(&k.lock);
                while (k.n_room < n_full)
                    pthread_cond_wait(&k.changed, &k.lock);
                pthread_mutex_unlock(&k.lock);
            } else {
                assert_int_equal(ret, 0);
            }
        }
        relay_end(r);
        await_flag(&k, &k.ended);
        relay_free(r);
        await_flag(&k, &k.freed);
        assert_int_equal(k.err, 0);
        assert_int_equal(k.len, at);
        assert_true(k.in_order);
        assert_int_equal(k.n_room, n_full);
        sink_fini(&k);
    }
    workers_free(w);
}

static void it_says_full_while_the_worker_is_behind_and_then_that_there_is_room(void **state)
{
    struct workers *w;
    struct relay *r;
    struct sink k;
    uint64_t at;

    (void)state;
    sink_init(&k, true);
    assert_int_equal(workers_new(1, "kv-test", &w), 0);
    assert_int_equal(relay_new(w, &ops, &k, &r), 0);
    assert_int_equal(add(r, 0, 1), 0);
    await_flag(&k, &k.taking);
    at = fill(r, 1);
    assert_in_range(at, RELAY_LEN, RELAY_LEN + 65536);
    assert_int_equal(k.n_room, 0);
    relay_end(r);
    open_gate(&k);
    await_flag(&k, &k.ended);
    assert_int_equal(k.n_room, 1);
    assert_int_equal(k.len, at);
    assert_true(k.in_order);
    relay_free(r);
    workers_free(w);
    assert_true(k.freed);
    sink_fini(&k);
}

static void an_error_ends_it_and_is_told_once_more_at_the_end(void **state)
{
    struct workers *w;
    struct relay *r;
    struct sink k;
    int ret;

    (void)state;
    sink_init(&k, true);
    k.fail = -ENOSPC;
    assert_int_equal(workers_new(1, "kv-test", &w), 0);
    assert_int_equal(relay_new(w, &ops, &k, &r), 0);
    assert_int_equal(add(r, 0, 1), 0);
    await_flag(&k, &k.taking);
    (void)fill(r, 1);
    open_gate(&k);
    do { /* also who was told to wait hears of it, and of the room */
        ret = add(r, 0, 1);
    } while (ret >= 0);
    assert_int_equal(ret, -ENOSPC);
    assert_int_equal(k.len, 1);
    relay_end(r);
    await_flag(&k, &k.ended);
    assert_int_equal(k.err, -ENOSPC);
    assert_int_equal(k.n_room, 1);
    relay_free(r);
    workers_free(w);
    assert_true(k.freed);
    sink_fini(&k);
}

static void one_that_is_dropped_while_a_worker_is_at_it_takes_no_more(void **state)
{
    struct workers *w;
    struct relay *r;
    struct sink k;

    (void)state;
    sink_init(&k, true);
    assert_int_equal(workers_new(1, "kv-test", &w), 0);
    assert_int_equal(relay_new(w, &ops, &k, &r), 0);
    assert_int_equal(add(r, 0, 1), 0);
    await_flag(&k, &k.taking);
    (void)fill(r, 1);
    relay_free(r);
    assert_false(k.freed);
    open_gate(&k);
    workers_free(w);
    assert_int_equal(k.len, 1);
    assert_int_equal(k.n_room, 0);
    assert_false(k.ended);
    assert_true(k.freed);
    sink_fini(&k);
}

static void one_without_bytes_ends(void **state)
{
    struct workers *w;
    struct relay *r;
    struct sink k;

    (void)state;
    sink_init(&k, false);
    assert_int_equal(workers_new(1, "kv-test", &w), 0);
    assert_int_equal(relay_new(w, &ops, &k, &r), 0);
    relay_end(r);
    await_flag(&k, &k.ended);
    assert_int_equal(k.err, 0);
    relay_free(r);
    workers_free(w);
    relay_free(NULL);
    assert_true(k.freed);
    sink_fini(&k);
}

static void hurried_workers_take_nothing_any_more_and_say_so(void **state)
{
    struct workers *w;
    struct relay *r;
    struct sink k;

    (void)state;
    sink_init(&k, true);
    assert_int_equal(workers_new(1, "kv-test", &w), 0);
    assert_int_equal(relay_new(w, &ops, &k, &r), 0);
    assert_int_equal(add(r, 0, 1), 0);
    await_flag(&k, &k.taking);
    (void)fill(r, 1);
    workers_hurry(w);
    assert_int_equal(add(r, 0, 1), -ECANCELED);
    open_gate(&k);
    relay_end(r);
    await_flag(&k, &k.ended);
    assert_int_equal(k.err, -ECANCELED);
    assert_int_equal(k.n_room, 1); /* nobody waits for ever */
    assert_int_equal(k.len, 1);
    relay_free(r);
    workers_free(w);
    assert_true(k.freed);
    sink_fini(&k);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_comes_over_in_order),
        cmocka_unit_test(it_says_full_while_the_worker_is_behind_and_then_that_there_is_room),
        cmocka_unit_test(an_error_ends_it_and_is_told_once_more_at_the_end),
        cmocka_unit_test(one_that_is_dropped_while_a_worker_is_at_it_takes_no_more),
        cmocka_unit_test(one_without_bytes_ends),
        cmocka_unit_test(hurried_workers_take_nothing_any_more_and_say_so),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* test_changes.c - the ring of the last changes: order, bounds, and who is woken. */
#include "node/changes.h"

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "common/limits.h"

#define BYTES (16u << 10)

static struct changes *make(unsigned n_max)
{
    struct changes *c;

    assert_int_equal(changes_new(77, n_max, BYTES, &c), 0);
    assert_int_equal(changes_life(c), 77);
    return c;
}

/* The i-th: a key of that length that begins with i. */
static void add(struct changes *c, uint64_t i, size_t len)
{
    char key[KEY_LEN_MAX];

    memset(key, 'k', sizeof(key));
    memcpy(key, &i, sizeof(i));
    changes_add(c, span_of(key, len), (struct ballot){i, 2 * i}, i % 3 == 0);
}

/* Reads everything behind `after`, max bytes at a time, and checks that each is the i-th. */
static uint64_t read_all(struct changes *c, uint64_t after, size_t max, unsigned *n_reads)
{
    struct buf b = {0};
    struct change ch;
    uint64_t upto = after;
    int err;

    *n_reads = 0;
    do {
        struct cursor from;

        buf_clear(&b);
        after = upto;
        err = changes_read(c, after, max, &b, &upto);
        assert_int_equal(err, 0);
        from = cursor_of(buf_span(&b));
        while (changes_next(&from, &ch)) {
            uint64_t i;

            memcpy(&i, ch.key.data, sizeof(i));
            assert_int_equal(ch.number, ++after);
            assert_int_equal(i, ch.number);
            assert_int_equal(ch.version.counter, i);
            assert_int_equal(ch.version.proposer, 2 * i);
            assert_int_equal(ch.deleted, i % 3 == 0);
        }
        assert_int_equal(after, upto);
        ++*n_reads;
    } while (b.len > 0);
    buf_fini(&b);
    return upto;
}

static void changes_come_back_in_order_and_once(void **state)
{
    struct changes *c = make(1000);
    unsigned n;

    (void)state;
    assert_int_equal(read_all(c, 0, 100, &n), 0);
    for (uint64_t i = 1; i <= 100; i++)
        add(c, i, 8 + i % 5);
    assert_int_equal(changes_latest(c), 100);
    assert_int_equal(read_all(c, 0, 1 << 20, &n), 100);
    assert_int_equal(n, 2);
    assert_int_equal(read_all(c, 0, 100, &n), 100); /* a few at a time */
    assert_true(n > 30);
    assert_int_equal(read_all(c, 99, 1, &n), 100); /* one is told however little room there is */
    assert_int_equal(read_all(c, 100, 100, &n), 100);
    changes_free(c);
}

static void what_is_forgotten_or_never_was_is_told(void **state)
{
    struct changes *c = make(10);
    struct buf b = {0};
    uint64_t upto = 0;
    unsigned n;

    (void)state;
    for (uint64_t i = 1; i <= 25; i++)
        add(c, i, 8);
    assert_int_equal(read_all(c, 15, 100, &n), 25);
    assert_int_equal(changes_read(c, 14, 100, &b, &upto), -ENODATA);
    assert_int_equal(changes_read(c, 26, 100, &b, &upto), -ENODATA);
    assert_int_equal(b.len, 0);
    changes_free(c);
}

static void memory_is_bounded_in_bytes_too_and_the_ring_goes_round(void **state)
{
    struct changes *c = make(1000);
    struct buf b = {0};
    uint64_t oldest, upto;
    unsigned n;

    (void)state;
    for (uint64_t i = 1; i <= 500; i++) {
        add(c, i, 8 + (i * 131) % (KEY_LEN_MAX - 8));
        /* Whatever is kept, up to the last, can be read. */
        for (oldest = 0; changes_read(c, oldest, 1 << 20, &b, &upto) == -ENODATA;)
            oldest++;
        assert_true(b.len <= BYTES);
        buf_clear(&b);
        assert_int_equal(read_all(c, oldest, 1 << 20, &n), i);
    }
    assert_true(oldest > 490);
    add(c, 501, KEY_LEN_MAX);
    assert_int_equal(read_all(c, 500, 1, &n), 501);
    buf_fini(&b);
    changes_free(c);
}

static uint64_t now_us(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000 + (uint64_t)ts.tv_nsec / 1000;
}

static void *add_one(void *arg)
{
    add(arg, 1, 8);
    return NULL;
}

static void *kick(void *arg)
{
    changes_kick(arg);
    return NULL;
}

static void waiting_ends_with_a_change_a_kick_or_its_time(void **state)
{
    struct changes *c = make(10);
    uint64_t start = now_us();
    pthread_t t;

    (void)state;
    changes_await(c, 0, 20000);
    assert_true(now_us() >= start + 20000);
    assert_int_equal(pthread_create(&t, NULL, add_one, c), 0);
    changes_await(c, 0, UINT64_MAX);
    assert_int_equal(changes_latest(c), 1);
    pthread_join(t, NULL);
    changes_await(c, 0, UINT64_MAX); /* there is one already */
    assert_int_equal(pthread_create(&t, NULL, kick, c), 0);
    changes_await(c, 1, UINT64_MAX);
    pthread_join(t, NULL);
    changes_kick(c); /* remembered */
    changes_await(c, UINT64_MAX, UINT64_MAX);
    changes_free(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(changes_come_back_in_order_and_once),
        cmocka_unit_test(what_is_forgotten_or_never_was_is_told),
        cmocka_unit_test(memory_is_bounded_in_bytes_too_and_the_ring_goes_round),
        cmocka_unit_test(waiting_ends_with_a_change_a_kick_or_its_time),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* test_placement.c - the ring that data was placed by stays with the data. */
#include "node/placement.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>

#define THREE(more) "{\"nodes\": [" NODE("a") "," NODE("b") "," NODE("c") "], " more "}"
#define NODE(id) "{\"id\": \"" id "\", \"addr\": \"" id ":1\"}"

static const char *const usual = THREE("\"replication_factor\": 3");
static const char *const two = THREE("\"replication_factor\": 2");

static int setup(void **state)
{
    struct store *s;

    assert_int_equal(store_memory_open(&s), 0);
    *state = s;
    return 0;
}

static int teardown(void **state)
{
    struct store *s = *state;

    s->ops->close(s);
    return 0;
}

/* Starts on the store with that cluster.json. Returns placement_check()'s, *foreign: its length. */
static int start(struct store *s, const char *text, size_t *foreign)
{
    struct config *cfg;
    struct buf placed_by = {0};
    struct err err;
    int ret;

    assert_int_equal(config_parse("cluster.json", span_str(text), &cfg, &err), 0);
    ret = placement_check(s, cfg, &placed_by, &err);
    *foreign = placed_by.len;
    if (placed_by.len > 0) {
        config_ring_compare(cfg, buf_span(&placed_by), &err);
        assert_string_equal(err.msg,
                            "another ring: replication_factor: 3 there, 2 in cluster.json");
    }
    buf_fini(&placed_by);
    config_free(cfg);
    return ret;
}

static void put_a_key(struct store *s)
{
    assert_int_equal(s->ops->put(s, span_str("k"), span_str("r"), span_str(""), NULL, false), 0);
}

static void data_under_another_ring_is_told_with_what_has_changed(void **state)
{
    size_t foreign;

    assert_int_equal(start(*state, usual, &foreign), 0);
    assert_int_equal(foreign, 0);
    put_a_key(*state);
    for (int again = 0; again < 2; again++) { /* asking changes nothing */
        assert_int_equal(start(*state, two, &foreign), 0);
        assert_true(foreign > 0);
    }
    assert_int_equal(start(*state, usual, &foreign), 0);
    assert_int_equal(foreign, 0);
}

static void data_of_before_rings_were_kept_is_of_the_ring_it_is_started_with(void **state)
{
    size_t foreign;

    put_a_key(*state);
    assert_int_equal(start(*state, usual, &foreign), 0);
    assert_int_equal(foreign, 0);
    assert_int_equal(start(*state, two, &foreign), 0);
    assert_true(foreign > 0);
}

/* A first start with a wrong file must not spoil the directory. */
static void a_store_without_keys_takes_another_ring(void **state)
{
    size_t foreign;

    assert_int_equal(start(*state, two, &foreign), 0);
    assert_int_equal(start(*state, usual, &foreign), 0);
    assert_int_equal(foreign, 0);
    put_a_key(*state);
    assert_int_equal(start(*state, two, &foreign), 0);
    assert_true(foreign > 0);
}

static void what_is_no_ring_is_damage(void **state)
{
    struct store *s = *state;
    size_t foreign;

    assert_int_equal(s->ops->state_put(s, "ring", span_str("short")), 0);
    assert_int_equal(start(s, usual, &foreign), -EBADMSG);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(data_under_another_ring_is_told_with_what_has_changed,
                                        setup, teardown),
        cmocka_unit_test_setup_teardown(
            data_of_before_rings_were_kept_is_of_the_ring_it_is_started_with, setup, teardown),
        cmocka_unit_test_setup_teardown(a_store_without_keys_takes_another_ring, setup, teardown),
        cmocka_unit_test_setup_teardown(what_is_no_ring_is_damage, setup, teardown),
    };

    return cmocka_run_group_tests_name("placement", tests, NULL, NULL);
}

/* test_err.c - error text: set, wrapped outward, cut at its end. */
#include "common/err.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

/* An err between two guards that an overflow would hit. */
struct guarded {
    char before[16];
    struct err err;
    char after[16];
};

static void guard(struct guarded *g)
{
    memset(g, 0x5a, sizeof(*g));
    g->err.msg[0] = '\0';
}

static void assert_guarded(const struct guarded *g)
{
    for (size_t i = 0; i < sizeof(g->before); i++) {
        assert_int_equal(g->before[i], 0x5a);
        assert_int_equal(g->after[i], 0x5a);
    }
    assert_true(strnlen(g->err.msg, sizeof(g->err.msg)) < sizeof(g->err.msg));
}

static void set_replaces_the_message_and_returns_the_code(void **state)
{
    struct err e = {{0}};

    (void)state;
    assert_int_equal(err_set(&e, -EINVAL, "port %d is above %d", 70000, 65535), -EINVAL);
    assert_string_equal(e.msg, "port 70000 is above 65535");
    assert_int_equal(err_set(&e, -EIO, "other"), -EIO);
    assert_string_equal(e.msg, "other");
}

static void wrap_puts_what_the_caller_knows_in_front(void **state)
{
    struct err e = {{0}};

    (void)state;
    err_set(&e, -EINVAL, "port 70000 is above 65535");
    assert_int_equal(err_wrap(&e, -EINVAL, "nodes[%d].addr", 2), -EINVAL);
    assert_int_equal(err_wrap(&e, -EIO, "%s", "cluster.json"), -EIO);
    assert_string_equal(e.msg, "cluster.json: nodes[2].addr: port 70000 is above 65535");
}

static void wrapping_no_message_leaves_no_dangling_colon(void **state)
{
    struct err e = {{0}};

    (void)state;
    err_wrap(&e, -EIO, "cluster.json");
    assert_string_equal(e.msg, "cluster.json");
}

static void without_an_err_only_the_code_is_returned(void **state)
{
    (void)state;
    assert_int_equal(err_set(NULL, -ENOENT, "%s", "nobody reads this"), -ENOENT);
    assert_int_equal(err_wrap(NULL, -ENOENT, "%s", "nobody reads this"), -ENOENT);
}

static void the_old_message_may_be_part_of_the_new_one(void **state)
{
    struct err e = {{0}};

    (void)state;
    err_set(&e, -EIO, "inner");
    err_set(&e, -EIO, "[%s]", e.msg);
    assert_string_equal(e.msg, "[inner]");
    err_wrap(&e, -EIO, "%s again", e.msg);
    assert_string_equal(e.msg, "[inner] again: [inner]");
}

static void a_long_message_is_cut_at_its_end(void **state)
{
    char text[2 * sizeof(((struct err *)0)->msg)];
    struct guarded g;

    (void)state;
    memset(text, 'x', sizeof(text) - 1);
    text[sizeof(text) - 1] = '\0';
    guard(&g);
    err_set(&g.err, -EIO, "%s", text);
    assert_guarded(&g);
    assert_int_equal(strlen(g.err.msg), sizeof(g.err.msg) - 1);

    guard(&g);
    err_set(&g.err, -EIO, "the reason");
    err_wrap(&g.err, -EIO, "%s", text);
    assert_guarded(&g);
    assert_int_equal(strlen(g.err.msg), sizeof(g.err.msg) - 1);
}

static void wrapping_cuts_the_reason_and_keeps_the_place_at_every_length(void **state)
{
    char text[sizeof(((struct err *)0)->msg) + 8];
    struct guarded g;

    (void)state;
    for (size_t len = 1; len < sizeof(text); len++) {
        size_t got;

        memset(text, 'x', len);
        text[len] = '\0';
        guard(&g);
        err_set(&g.err, -EIO, "%s", text);
        err_wrap(&g.err, -EIO, "place");
        assert_guarded(&g);
        got = strlen(g.err.msg);
        assert_int_equal(got, len + 7 < sizeof(g.err.msg) ? len + 7 : sizeof(g.err.msg) - 1);
        assert_memory_equal(g.err.msg, "place: x", 8);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(set_replaces_the_message_and_returns_the_code),
        cmocka_unit_test(wrap_puts_what_the_caller_knows_in_front),
        cmocka_unit_test(wrapping_no_message_leaves_no_dangling_colon),
        cmocka_unit_test(without_an_err_only_the_code_is_returned),
        cmocka_unit_test(the_old_message_may_be_part_of_the_new_one),
        cmocka_unit_test(a_long_message_is_cut_at_its_end),
        cmocka_unit_test(wrapping_cuts_the_reason_and_keeps_the_place_at_every_length),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

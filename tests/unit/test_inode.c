/* test_inode.c - the table of inodes: one per key, counted, renamed, gone. */
#include "fs/inode.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define N_MANY 5000

static const struct found a_file = {.kind = INODE_FILE, .meta.mode = S_IFREG | 0644};
static const struct found a_dir = {.kind = INODE_DIR, .meta.mode = S_IFDIR | 0755};

static int fixture(void **state)
{
    return inode_table_new((struct inode_table **)state);
}

static int unfixture(void **state)
{
    inode_table_free(*state);
    return 0;
}

/* Looked up once by the kernel; without a reference of ours. */
static uint64_t look_up(struct inode_table *t, const char *key, const struct found *found)
{
    struct inode *in;
    uint64_t id;

    assert_int_equal(inode_remember(t, span_str(key), found, inode_moves(t), true, &in), 0);
    id = in->id;
    inode_put(t, in);
    return id;
}

static void assert_key(struct inode_table *t, uint64_t id, const char *want)
{
    struct inode *in = inode_get(t, id);
    struct buf key = {0};

    assert_non_null(in);
    assert_int_equal(inode_key(t, in, &key), 0);
    assert_true(span_eq(buf_span(&key), span_str(want)));
    buf_fini(&key);
    inode_put(t, in);
}

static void one_key_is_one_inode_while_the_kernel_knows_it(void **state)
{
    struct inode_table *t = *state;
    uint64_t id = look_up(t, "a", &a_file);

    assert_int_equal(look_up(t, "a", &a_file), id);
    assert_true(look_up(t, "a/", &a_dir) != id);
    inode_forget(t, id, 1);
    assert_key(t, id, "a");
    inode_forget(t, id, 1);
    assert_null(inode_get(t, id));
    assert_true(look_up(t, "a", &a_file) != id); /* an id is never used twice */
}

static void a_reference_keeps_what_the_kernel_forgot(void **state)
{
    struct inode_table *t = *state;
    uint64_t id = look_up(t, "a", &a_file);
    struct inode *in = inode_get(t, id);

    inode_forget(t, id, 1);
    assert_key(t, id, "a");
    inode_put(t, in);
    assert_null(inode_get(t, id));
}

static void the_root_is_never_forgotten(void **state)
{
    struct inode_table *t = *state;

    inode_forget(t, INODE_ROOT, 1000);
    assert_key(t, INODE_ROOT, "");
}

static void a_dropped_inode_is_gone_and_its_key_free(void **state)
{
    struct inode_table *t = *state;
    uint64_t id = look_up(t, "a", &a_file);
    struct inode *in = inode_get(t, id);
    struct buf key = {0};

    inode_drop(t, span_str("a"), INODE_FILE);
    assert_int_equal(inode_key(t, in, &key), -ENOENT);
    assert_true(look_up(t, "a", &a_file) != id);
    assert_int_equal(inode_last_key(t, in, &key), 0);
    assert_true(span_eq(buf_span(&key), span_str("a")));
    buf_fini(&key);
    inode_put(t, in);
}

static void a_rename_takes_the_place_of_what_was_there(void **state)
{
    struct inode_table *t = *state;
    uint64_t a = look_up(t, "a", &a_file), b = look_up(t, "b", &a_file);
    struct inode *old = inode_get(t, b);

    assert_int_equal(inode_move(t, span_str("a"), span_str("b"), INODE_FILE), 0);
    assert_key(t, a, "b");
    assert_true(inode_is_gone(t, old));
    assert_int_equal(look_up(t, "b", &a_file), a);
    inode_put(t, old);
}

static void a_directory_takes_all_below_it_along_and_nothing_else(void **state)
{
    struct inode_table *t = *state;
    uint64_t dir = look_up(t, "d/", &a_dir), sub = look_up(t, "d/s/", &a_dir),
             in = look_up(t, "d/s/f", &a_file);
    uint64_t beside = look_up(t, "d", &a_file), other = look_up(t, "dd/f", &a_file);

    assert_int_equal(inode_move_tree(t, span_str("d/"), span_str("longer/name/"), false), 0);
    assert_key(t, dir, "longer/name/");
    assert_key(t, sub, "longer/name/s/");
    assert_key(t, in, "longer/name/s/f");
    assert_key(t, beside, "d");
    assert_key(t, other, "dd/f");
}

static void what_was_looked_up_before_a_rename_is_looked_up_again(void **state)
{
    struct inode_table *t = *state;
    uint64_t moves = inode_moves(t);
    struct inode *in;

    assert_int_equal(inode_move(t, span_str("x"), span_str("y"), INODE_FILE), 0);
    assert_int_equal(inode_remember(t, span_str("x"), &a_file, moves, true, &in), -EAGAIN);
    assert_int_equal(inode_remember(t, span_str("y"), &a_file, moves, true, &in), -EAGAIN);
    /* Others need not: or all would be looked up again and again while many are moved. */
    assert_int_equal(inode_remember(t, span_str("z"), &a_file, moves, true, &in), 0);
    inode_put(t, in);
    assert_int_equal(inode_move_tree(t, span_str("d/"), span_str("e/"), false), 0);
    assert_int_equal(inode_remember(t, span_str("z"), &a_file, moves, true, &in), -EAGAIN);
}

static void another_type_under_the_same_key_is_another_inode(void **state)
{
    static const struct found a_link = {.kind = INODE_FILE, .meta.mode = S_IFLNK | 0777};
    struct inode_table *t = *state;
    uint64_t id = look_up(t, "a", &a_file);

    assert_true(look_up(t, "a", &a_link) != id);
}

static void what_was_made_here_is_not_what_had_the_name_before(void **state)
{
    struct found found = {.kind = INODE_FILE, .meta = {.mode = S_IFREG | 0644, .ino = 5}};
    struct inode_table *t = *state;
    uint64_t id = look_up(t, "a", &found);
    struct inode *in = inode_get(t, id);

    found.meta.ino = 6; /* replaced by somebody else: the name counts */
    assert_int_equal(look_up(t, "a", &found), id);
    found.made = true; /* it was looked up before its maker came here */
    assert_int_equal(look_up(t, "a", &found), id);
    found.meta.ino = 7;
    assert_true(look_up(t, "a", &found) != id);
    assert_true(inode_is_gone(t, in));
    inode_put(t, in);
}

static void what_was_seen_serves_its_caller_once_and_in_time(void **state)
{
    struct inode_table *t = *state;
    struct inode *in = inode_get(t, look_up(t, "a", &a_file));
    struct found found;

    inode_set_seen(t, in, 42, 1000, SEEN_ASKED, &a_file);
    assert_false(inode_take_seen(t, in, 43, 10, SEEN_ASKED, &found));
    inode_set_seen(t, in, 42, 1000, SEEN_ASKED, &a_file);
    assert_false(inode_take_seen(t, in, 42, 1000, SEEN_ASKED, &found));
    inode_set_seen(t, in, 42, 1000, SEEN_ASKED, &a_file);
    assert_true(inode_take_seen(t, in, 42, 999, SEEN_ASKED, &found));
    assert_int_equal(found.meta.mode, S_IFREG | 0644);
    assert_false(inode_take_seen(t, in, 42, 999, SEEN_ASKED, &found));
    inode_put(t, in);
}

/* Is the word that `by` left good for `want`? */
static bool serves(struct inode_table *t, struct inode *in, enum seen_by by, enum seen_by want)
{
    struct found found;

    inode_set_seen(t, in, 42, 1000, by, &a_file);
    return inode_take_seen(t, in, 42, 10, want, &found);
}

static void only_who_asked_the_cluster_leaves_word_for_an_open(void **state)
{
    struct inode_table *t = *state;
    struct inode *in = inode_get(t, look_up(t, "a", &a_file));
    struct found found;

    assert_true(serves(t, in, SEEN_ASKED, SEEN_ASKED));
    assert_true(serves(t, in, SEEN_ASKED, SEEN_TOLD));
    assert_false(serves(t, in, SEEN_ASKED, SEEN_LISTED));
    assert_false(serves(t, in, SEEN_TOLD, SEEN_ASKED));
    assert_true(serves(t, in, SEEN_TOLD, SEEN_TOLD));
    assert_false(serves(t, in, SEEN_TOLD, SEEN_LISTED));
    assert_false(serves(t, in, SEEN_LISTED, SEEN_ASKED));
    assert_false(serves(t, in, SEEN_LISTED, SEEN_TOLD));
    assert_true(serves(t, in, SEEN_LISTED, SEEN_LISTED));
    inode_set_seen(t, in, 42, 1000, SEEN_LISTED, &a_file);
    inode_drop_listed(t, in->id);
    assert_false(inode_take_seen(t, in, 42, 10, SEEN_LISTED, &found));
    inode_put(t, in);
}

static void thousands_are_found_by_id_and_key(void **state)
{
    struct inode_table *t = *state;
    uint64_t *ids = calloc(N_MANY, sizeof(*ids));
    char key[32];

    assert_non_null(ids);
    for (int i = 0; i < N_MANY; i++) {
        snprintf(key, sizeof(key), "k%d", i);
        ids[i] = look_up(t, key, &a_file);
    }
    for (int i = 0; i < N_MANY; i++) {
        snprintf(key, sizeof(key), "k%d", i);
        assert_key(t, ids[i], key);
        assert_int_equal(look_up(t, key, &a_file), ids[i]);
        inode_forget(t, ids[i], 2);
        assert_null(inode_get(t, ids[i]));
    }
    free(ids);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(one_key_is_one_inode_while_the_kernel_knows_it, fixture,
                                        unfixture),
        cmocka_unit_test_setup_teardown(a_reference_keeps_what_the_kernel_forgot, fixture,
                                        unfixture),
        cmocka_unit_test_setup_teardown(the_root_is_never_forgotten, fixture, unfixture),
        cmocka_unit_test_setup_teardown(a_dropped_inode_is_gone_and_its_key_free, fixture,
                                        unfixture),
        cmocka_unit_test_setup_teardown(a_rename_takes_the_place_of_what_was_there, fixture,
                                        unfixture),
        cmocka_unit_test_setup_teardown(a_directory_takes_all_below_it_along_and_nothing_else,
                                        fixture, unfixture),
        cmocka_unit_test_setup_teardown(what_was_looked_up_before_a_rename_is_looked_up_again,
                                        fixture, unfixture),
        cmocka_unit_test_setup_teardown(another_type_under_the_same_key_is_another_inode, fixture,
                                        unfixture),
        cmocka_unit_test_setup_teardown(what_was_made_here_is_not_what_had_the_name_before, fixture,
                                        unfixture),
        cmocka_unit_test_setup_teardown(what_was_seen_serves_its_caller_once_and_in_time, fixture,
                                        unfixture),
        cmocka_unit_test_setup_teardown(only_who_asked_the_cluster_leaves_word_for_an_open, fixture,
                                        unfixture),
        cmocka_unit_test_setup_teardown(thousands_are_found_by_id_and_key, fixture, unfixture),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

/*
 * test_file.c - an open file, and what another mount, another thread or a failing cluster does to
 * it meanwhile. Two mounts over one cluster in memory.
 */
#include "tests/lib/mounts.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/limits.h"
#include "fs/core.h"

#define LARGE (5u << 20) /* not fetched whole at open */

/* --- helpers ---------------------------------------------------------------------------------- */

static void assert_holds(struct world *w, const char *name, const char *want)
{
    struct span value;

    assert_int_equal(fake_cluster_get(w->cluster, name, &value), want != NULL);
    assert_true(want == NULL || span_eq(value, span_str(want)));
}

static void assert_reads(struct mounted *m, struct handle *h, const char *want)
{
    struct value v = {0};

    assert_int_equal(fs_read(m->fs, &m->root, h, 0, 4096, &v), 0);
    assert_true(span_eq(value_span(v), span_str(want)));
    value_fini(&v);
}

static void assert_opens_with(struct mounted *m, const char *name, const char *want)
{
    struct handle *h = mounted_open(m, name, O_RDONLY, NULL);

    assert_reads(m, h, want);
    mounted_close(m, h);
}

static int cut(struct mounted *m, const char *name, uint64_t size)
{
    struct attr_change none = {0};
    struct fs_entry e;
    struct stat st;

    assert_int_equal(fs_lookup(m->fs, &m->root, 1, name, &e), 0);
    return fs_setattr(m->fs, &m->root, e.id, NULL, &none, size, &st);
}

static void put_large(struct mounted *m, const char *name, char fill)
{
    struct handle *h = mounted_create(m, name, 0644, O_TRUNC, NULL);
    char *bytes = malloc(LARGE);

    assert_non_null(bytes);
    memset(bytes, fill, LARGE);
    assert_int_equal(fs_write(m->fs, &m->root, h, 0, span_of((uint8_t *)bytes, LARGE), false), 0);
    mounted_close(m, h);
    free(bytes);
}

/* One byte of it, at off. */
static int read_at(struct mounted *m, struct handle *h, uint64_t off, char *out)
{
    struct value v = {0};
    int err = fs_read(m->fs, &m->root, h, off, 1, &v);

    if (err == 0 && v.len == 1)
        *out = (char)v.data[0];
    value_fini(&v);
    return err;
}

static int rename_it(struct mounted *m, const char *from, const char *to)
{
    return fs_rename(m->fs, &m->root, 1, from, 1, to, false);
}

/* --- what others stored ----------------------------------------------------------------------- */

static void a_truncate_by_path_cuts_what_is_stored_also_where_an_older_one_is_open(void **state)
{
    struct world *w = *state;
    struct handle *h;

    mounted_put(&w->a, "f", "1111");
    h = mounted_open(&w->b, "f", O_RDONLY, NULL);
    mounted_put(&w->a, "f", "2222");
    assert_int_equal(cut(&w->b, "f", 2), 0);
    assert_holds(w, "f", "22");
    mounted_close(&w->b, h);
}

static void a_name_can_go_while_an_old_large_version_of_it_is_being_read(void **state)
{
    struct world *w = *state;
    struct handle *h;
    char byte = 0;

    for (int renamed = 0; renamed < 2; renamed++) {
        put_large(&w->a, "f", '1');
        h = mounted_open(&w->b, "f", O_RDONLY, NULL);
        assert_int_equal(read_at(&w->b, h, 0, &byte), 0);
        put_large(&w->a, "f", '2');
        mounted_put(&w->b, "g", "new");
        assert_int_equal(
            renamed ? rename_it(&w->b, "g", "f") : fs_unlink(w->b.fs, &w->b.root, 1, "f"), 0);
        assert_int_equal(read_at(&w->b, h, LARGE - 1, &byte), -ESTALE);
        mounted_close(&w->b, h);
        assert_holds(w, "f", renamed ? "new" : NULL);
    }
}

static void a_large_file_is_read_on_under_its_new_name(void **state)
{
    struct world *w = *state;
    struct handle *h;
    char byte = 0;

    put_large(&w->a, "f", '1');
    h = mounted_open(&w->b, "f", O_RDONLY, NULL);
    assert_int_equal(read_at(&w->b, h, 0, &byte), 0);
    assert_int_equal(rename_it(&w->b, "f", "g"), 0);
    assert_int_equal(read_at(&w->b, h, LARGE - 1, &byte), 0);
    assert_int_equal(byte, '1');
    mounted_close(&w->b, h);
}

static void what_was_renamed_here_and_is_deleted_elsewhere_does_not_come_back(void **state)
{
    struct world *w = *state;
    struct handle *h;

    for (int replaced = 0; replaced < 2; replaced++) {
        mounted_put(&w->a, "f", "old");
        mounted_put(&w->b, "h", "theirs");
        h = mounted_open(&w->a, "f", O_RDWR, NULL);
        assert_int_equal(rename_it(&w->a, "f", "g"), 0);
        assert_int_equal(
            replaced ? rename_it(&w->b, "h", "g") : fs_unlink(w->b.fs, &w->b.root, 1, "g"), 0);
        mounted_write(&w->a, h, 0, "NEW");
        assert_int_equal(fs_flush(w->a.fs, &w->a.root, h), -ESTALE);
        (void)fs_release(w->a.fs, &w->a.root, h);
        assert_holds(w, "g", replaced ? "theirs" : NULL);
    }
}

static void a_file_made_anew_here_is_stored_though_the_one_before_was_a_change(void **state)
{
    struct world *w = *state;
    struct handle *old, *made;

    mounted_put(&w->a, "f", "old");
    old = mounted_open(&w->a, "f", O_RDWR, NULL);
    mounted_write(&w->a, old, 0, "OLD");
    assert_int_equal(fs_fsync(w->a.fs, &w->a.root, old), 0);
    assert_int_equal(fs_unlink(w->b.fs, &w->b.root, 1, "f"), 0);
    made = mounted_create(&w->a, "f", 0644, O_TRUNC, NULL);
    mounted_write(&w->a, made, 0, "x");
    mounted_close(&w->a, made);
    assert_holds(w, "f", "x");
    mounted_close(&w->a, old);
}

static void no_replace_goes_by_what_is_stored(void **state)
{
    struct world *w = *state;
    struct handle *h;

    mounted_put(&w->a, "f", "f");
    mounted_put(&w->a, "g", "g");
    h = mounted_open(&w->a, "g", O_RDONLY, NULL);
    assert_int_equal(fs_unlink(w->b.fs, &w->b.root, 1, "g"), 0);
    assert_int_equal(fs_rename(w->a.fs, &w->a.root, 1, "f", 1, "g", true), 0);
    assert_holds(w, "g", "f");
    mounted_close(&w->a, h);
}

/* --- stores whose end comes late, or tells of another's ------------------------------------------
 */

static void who_was_replaced_at_once_shows_what_replaced_it(void **state)
{
    struct world *w = *state;

    for (int append = 0; append < 2; append++) {
        struct handle *h, *kept;

        mounted_put(&w->a, "f", "0");
        kept = mounted_open(&w->a, "f", O_RDONLY, NULL);
        h = mounted_open(&w->a, "f", append ? O_WRONLY | O_APPEND : O_RDWR, NULL);
        mounted_write(&w->a, h, 0, "mine");
        fake_cluster_supersede(w->cluster, "theirs!");
        mounted_close(&w->a, h);
        assert_opens_with(&w->a, "f", "theirs!");
        h = mounted_open(&w->a, "f", O_RDWR, NULL);
        mounted_write(&w->a, h, 0, "T");
        mounted_close(&w->a, h);
        assert_holds(w, "f", "Theirs!");
        mounted_close(&w->a, kept);
    }
}

static void who_was_deleted_at_once_does_not_come_back(void **state)
{
    struct world *w = *state;
    struct handle *h;

    mounted_put(&w->a, "f", "0");
    h = mounted_open(&w->a, "f", O_RDWR, NULL);
    mounted_write(&w->a, h, 0, "mine");
    fake_cluster_supersede(w->cluster, NULL);
    assert_int_equal(fs_fsync(w->a.fs, &w->a.root, h), 0);
    assert_reads(&w->a, h, "mine");
    mounted_write(&w->a, h, 0, "more");
    assert_int_equal(fs_flush(w->a.fs, &w->a.root, h), -ESTALE);
    (void)fs_release(w->a.fs, &w->a.root, h);
    assert_holds(w, "f", NULL);
}

static void what_was_made_here_and_deleted_at_once_does_not_come_back(void **state)
{
    struct world *w = *state;
    struct handle *h;

    fake_cluster_supersede(w->cluster, NULL);
    mounted_close(&w->a, mounted_create(&w->a, "f", 0644, O_EXCL, NULL));
    assert_holds(w, "f", NULL);
    fake_cluster_supersede(w->cluster, NULL);
    h = mounted_create(&w->a, "g", 0644, O_EXCL, NULL);
    mounted_write(&w->a, h, 0, "mine");
    assert_int_equal(fs_flush(w->a.fs, &w->a.root, h), -ESTALE);
    (void)fs_release(w->a.fs, &w->a.root, h);
    assert_holds(w, "g", NULL);
}

static void what_was_made_here_and_written_by_others_at_once_is_theirs(void **state)
{
    struct world *w = *state;
    struct handle *h;

    fake_cluster_supersede(w->cluster, "theirs");
    h = mounted_create(&w->a, "f", 0644, O_EXCL, NULL);
    mounted_close(&w->a, h);
    assert_holds(w, "f", "theirs");
    assert_opens_with(&w->a, "f", "theirs");
    fake_cluster_supersede(w->cluster, "theirs");
    h = mounted_create(&w->a, "g", 0644, O_EXCL, NULL);
    mounted_write(&w->a, h, 0, "mine"); /* the last close counts */
    mounted_close(&w->a, h);
    assert_holds(w, "g", "mine");
}

static void a_copy_replaced_at_once_is_not_taken_for_ours(void **state)
{
    struct world *w = *state;

    mounted_put(&w->a, "f", "f");
    /* Another mount moves f away between our copy and our deletion: a copy is taken back then. */
    fake_cluster_supersede(w->cluster, "theirs");
    fake_cluster_meddle(w->cluster, 4, "f", NULL);
    (void)rename_it(&w->a, "f", "g");
    assert_holds(w, "g", "theirs");
}

static void an_append_still_under_way_when_its_view_is_given_up_does_no_harm(void **state)
{
    struct world *w = *state;
    struct handle *h, *other;

    mounted_put(&w->a, "f", "0");
    h = mounted_open(&w->a, "f", O_WRONLY | O_APPEND, NULL);
    mounted_write(&w->a, h, 0, "1");
    fake_cluster_fail(w->cluster, 0, -EHOSTDOWN, true, false);
    assert_int_equal(fs_fsync(w->a.fs, &w->a.root, h), -EHOSTDOWN);
    fake_cluster_heal(w->cluster);
    fake_cluster_hold(w->cluster);
    caller_stop(&w->a.root); /* the process is killed */
    assert_int_equal(fs_flush(w->a.fs, &w->a.root, h), -EINTR);
    (void)fs_release(w->a.fs, &w->a.root, h);
    caller_end(&w->a.root);
    caller_begin(w->callers, CALL_NONE, 0, 0, 0, &w->a.root);
    other = mounted_open(&w->a, "f", O_RDWR | O_APPEND, NULL);
    mounted_write(&w->a, other, 0, "2");
    fake_cluster_deliver(w->cluster);
    mounted_close(&w->a, other);
    assert_holds(w, "f", "012");
}

static void unfold(void *arg)
{
    struct world *w = arg;
    struct handle *h = mounted_open(&w->a, "f", O_RDWR, NULL);

    mounted_write(&w->a, h, 8, "!"); /* behind the tail */
    assert_int_equal(fs_release(w->a.fs, &w->a.root, h), 0);
}

static void an_append_of_unknown_outcome_that_was_unfolded_takes_no_later_one_with_it(void **state)
{
    struct world *w = *state;
    struct handle *h;

    mounted_put(&w->a, "f", "base");
    h = mounted_open(&w->a, "f", O_RDWR | O_APPEND, NULL);
    mounted_write(&w->a, h, 0, "tail");
    fake_cluster_fail(w->cluster, 0, -EHOSTDOWN, false, true);
    fake_cluster_meanwhile(w->cluster, unfold, w);
    assert_int_equal(fs_fsync(w->a.fs, &w->a.root, h), -EHOSTDOWN);
    assert_int_equal(fs_fsync(w->a.fs, &w->a.root, h), 0);
    assert_holds(w, "f", "basetail!");
    mounted_write(&w->a, h, 0, "later");
    mounted_close(&w->a, h);
    assert_holds(w, "f", "basetail!later");
}

static void an_append_of_unknown_outcome_is_known_by_its_id_and_not_by_its_bytes(void **state)
{
    struct world *w = *state;

    for (int applied = 0; applied < 2; applied++) {
        struct handle *h, *other;

        mounted_put(&w->a, "f", "-");
        h = mounted_open(&w->a, "f", O_WRONLY | O_APPEND, NULL);
        mounted_write(&w->a, h, 0, "tick");
        fake_cluster_fail(w->cluster, 0, -EHOSTDOWN, false, applied);
        assert_int_equal(fs_fsync(w->a.fs, &w->a.root, h), -EHOSTDOWN);
        other = mounted_open(&w->b, "f", O_WRONLY | O_APPEND, NULL);
        mounted_write(&w->b, other, 0, "tick");
        mounted_close(&w->b, other);
        mounted_close(&w->a, h);
        assert_holds(w, "f", "-ticktick");
    }
}

static void an_append_of_unknown_outcome_is_found_behind_many_later_ones(void **state)
{
    struct world *w = *state;
    struct handle *h, *other;
    struct span value;

    mounted_put(&w->a, "f", "-");
    h = mounted_open(&w->a, "f", O_WRONLY | O_APPEND, NULL);
    mounted_write(&w->a, h, 0, "mine");
    fake_cluster_fail(w->cluster, 0, -EHOSTDOWN, false, true);
    assert_int_equal(fs_fsync(w->a.fs, &w->a.root, h), -EHOSTDOWN);
    other = mounted_open(&w->b, "f", O_WRONLY | O_APPEND, NULL);
    for (unsigned i = 0; i < 2 * RECENT_MAX; i++) {
        mounted_write(&w->b, other, 0, "x");
        assert_int_equal(fs_fsync(w->b.fs, &w->b.root, other), 0);
    }
    mounted_close(&w->b, other);
    mounted_close(&w->a, h);
    assert_true(fake_cluster_get(w->cluster, "f", &value));
    assert_int_equal(value.len, sizeof("-mine") - 1 + 2 * RECENT_MAX);
}

struct closing {
    struct mounted *m;
    struct handle *h;
};

static void *close_in_thread(void *arg)
{
    struct closing *c = arg;

    mounted_close(c->m, c->h);
    return NULL;
}

static void what_is_stored_in_a_directory_that_moves_waits_for_its_new_name(void **state)
{
    struct world *w = *state;
    struct fs_entry dir, e;
    struct closing c = {.m = &w->a};
    struct dir_move move;
    pthread_t thread;

    assert_int_equal(fs_mkdir(w->a.fs, &w->a.root, 1, "d", 0700, &dir), 0);
    assert_int_equal(fs_create(w->a.fs, &w->a.root, dir.id, "f", 0600, O_CREAT | O_RDWR, &e, &c.h),
                     0);
    mounted_write(&w->a, c.h, 0, "late");
    assert_int_equal(dir_moves_begin(&w->a.fs->moves, &w->a.root, &move, span_str("d/")), 0);
    assert_int_equal(pthread_create(&thread, NULL, close_in_thread, &c), 0);
    assert_false(ended_early(thread));
    assert_int_equal(inode_move_tree(w->a.fs->inodes, span_str("d/"), span_str("n/"), false), 0);
    dir_moves_end(&w->a.fs->moves, &move);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_holds(w, "d/f", NULL);
    assert_holds(w, "n/f", "late");
}

/* --- the rest --------------------------------------------------------------------------------- */

static void a_hole_to_beyond_every_file_is_punched_up_to_its_end(void **state)
{
    struct world *w = *state;
    struct handle *h = mounted_create(&w->a, "f", 0644, 0, NULL);
    char byte = 1;

    mounted_write(&w->a, h, 0, "123");
    assert_int_equal(fs_fallocate(w->a.fs, &w->a.root, h,
                                  FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 1, UINT64_MAX >> 1),
                     0);
    assert_int_equal(read_at(&w->a, h, 2, &byte), 0);
    assert_int_equal(byte, 0);
    mounted_close(&w->a, h);
}

static void a_rmdir_that_cannot_look_again_leaves_the_directory(void **state)
{
    struct world *w = *state;
    struct fs_entry e;

    for (unsigned n = 0; n < 20; n++) {
        int err;

        assert_int_equal(fs_mkdir(w->a.fs, &w->a.root, 1, "d", 0700, &e), 0);
        fake_cluster_fail(w->cluster, n, -EHOSTDOWN, false, false);
        err = fs_rmdir(w->a.fs, &w->a.root, 1, "d");
        fake_cluster_heal(w->cluster);
        if (err == 0)
            return;
        assert_int_equal(fs_lookup(w->b.fs, &w->b.root, 1, "d", &e), 0);
        assert_int_equal(e.st.st_mode, S_IFDIR | 0700);
        assert_int_equal(fs_rmdir(w->a.fs, &w->a.root, 1, "d"), 0);
    }
    fail();
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, mounts_setup, mounts_teardown)

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        TEST(a_truncate_by_path_cuts_what_is_stored_also_where_an_older_one_is_open),
        TEST(a_name_can_go_while_an_old_large_version_of_it_is_being_read),
        TEST(a_large_file_is_read_on_under_its_new_name),
        TEST(what_was_renamed_here_and_is_deleted_elsewhere_does_not_come_back),
        TEST(a_file_made_anew_here_is_stored_though_the_one_before_was_a_change),
        TEST(no_replace_goes_by_what_is_stored),
        TEST(who_was_replaced_at_once_shows_what_replaced_it),
        TEST(who_was_deleted_at_once_does_not_come_back),
        TEST(what_was_made_here_and_deleted_at_once_does_not_come_back),
        TEST(what_was_made_here_and_written_by_others_at_once_is_theirs),
        TEST(a_copy_replaced_at_once_is_not_taken_for_ours),
        TEST(an_append_still_under_way_when_its_view_is_given_up_does_no_harm),
        TEST(an_append_of_unknown_outcome_that_was_unfolded_takes_no_later_one_with_it),
        TEST(an_append_of_unknown_outcome_is_known_by_its_id_and_not_by_its_bytes),
        TEST(an_append_of_unknown_outcome_is_found_behind_many_later_ones),
        TEST(what_is_stored_in_a_directory_that_moves_waits_for_its_new_name),
        TEST(a_hole_to_beyond_every_file_is_punched_up_to_its_end),
        TEST(a_rmdir_that_cannot_look_again_leaves_the_directory),
    };

    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

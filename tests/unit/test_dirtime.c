/*
 * test_dirtime.c - the times of directories: when they are stored, and what must not come of it.
 * Their moment comes when a test says so.
 */
#include "tests/lib/mounts.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/log.h"

#define ROOT 1u
#define KEEP UINT64_MAX /* the size */
#define NS_PER_S 1000000000ll

static uint64_t dir; /* the directory d, as mount a knows it */

/* --- helpers ---------------------------------------------------------------------------------- */

static uint64_t make_dir(struct mounted *m, uint64_t parent, const char *name)
{
    struct fs_entry e;

    assert_int_equal(fs_mkdir(m->fs, &m->root, parent, name, 0755, &e), 0);
    return e.id;
}

/* Something is made in it. */
static void make_in(struct mounted *m, uint64_t parent, const char *name)
{
    struct fs_entry e;

    assert_int_equal(fs_symlink(m->fs, &m->root, "to", parent, name, &e), 0);
}

static struct fs_entry look(struct mounted *m, uint64_t parent, const char *name)
{
    struct fs_entry e;

    assert_int_equal(fs_lookup(m->fs, &m->root, parent, name, &e), 0);
    return e;
}

static int64_t ns_of(struct timespec ts)
{
    return ts.tv_sec * NS_PER_S + ts.tv_nsec;
}

static int64_t mtime_of(struct mounted *m, const char *name)
{
    return ns_of(look(m, ROOT, name).st.st_mtim);
}

static void change(struct mounted *m, uint64_t id, struct attr_change ch)
{
    struct stat st;

    assert_int_equal(fs_setattr(m->fs, &m->root, id, NULL, &ch, KEEP, &st), 0);
}

static struct attr_change time_of(int64_t mtime_ns)
{
    return (struct attr_change){.set = CHANGE_MTIME, .mtime_ns = mtime_ns};
}

/* How many writes and reads it costs when its time comes. */
static unsigned cost_of_round(struct world *w)
{
    unsigned before = fake_cluster_n_calls(w->cluster);

    (void)fake_cluster_run_delayed(w->cluster);
    return fake_cluster_n_calls(w->cluster) - before;
}

/* A directory d, whose time is stored. */
static int fixture(void **state)
{
    struct world *w;

    mounts_setup(state);
    w = *state;
    dir = make_dir(&w->a, ROOT, "d");
    (void)fake_cluster_run_delayed(w->cluster);
    return 0;
}

/* --- when ------------------------------------------------------------------------------------- */

static void all_that_changes_in_a_moment_is_stored_by_one_write(void **state)
{
    struct world *w = *state;
    int64_t before = mtime_of(&w->b, "d"), here;

    make_in(&w->a, dir, "1");
    make_in(&w->a, dir, "2");
    assert_int_equal(fs_unlink(w->a.fs, &w->a.root, dir, "1"), 0);
    here = mtime_of(&w->a, "d");
    assert_true(here > before);
    assert_true(mtime_of(&w->b, "d") == before);
    assert_int_equal(cost_of_round(w), 1);
    assert_true(mtime_of(&w->b, "d") == here);
    assert_true(ns_of(look(&w->b, ROOT, "d").st.st_ctim) == here);
    assert_true(mtime_of(&w->a, "d") == here);
    assert_int_equal(cost_of_round(w), 0);
    make_in(&w->a, dir, "3");
    assert_int_equal(cost_of_round(w), 1);
    assert_true(mtime_of(&w->b, "d") > here);
}

static void a_rename_touches_both_directories(void **state)
{
    struct world *w = *state;
    uint64_t e = make_dir(&w->a, ROOT, "e");
    int64_t d_before, e_before = mtime_of(&w->b, "e");

    make_in(&w->a, dir, "x");
    (void)cost_of_round(w);
    d_before = mtime_of(&w->b, "d");
    assert_int_equal(fs_rename(w->a.fs, &w->a.root, dir, "x", e, "y", false), 0);
    assert_int_equal(cost_of_round(w), 2);
    assert_true(mtime_of(&w->b, "d") > d_before);
    assert_true(mtime_of(&w->b, "e") > e_before);
}

static void fsync_and_the_end_of_the_mount_store_it_at_once(void **state)
{
    struct world *w = *state;
    int64_t before = mtime_of(&w->b, "d");
    struct dir_handle *h;

    make_in(&w->a, dir, "1");
    assert_int_equal(fs_opendir(w->a.fs, &w->a.root, dir, &h), 0);
    assert_int_equal(fs_fsyncdir(w->a.fs, &w->a.root, h), 0);
    assert_true(mtime_of(&w->b, "d") > before);
    before = mtime_of(&w->b, "d");
    assert_int_equal(cost_of_round(w), 0);
    make_in(&w->a, dir, "2");
    fs_flush_all(w->a.fs, &w->a.root);
    assert_true(mtime_of(&w->b, "d") > before);
    assert_int_equal(cost_of_round(w), 0);
    fs_releasedir(w->a.fs, h);
}

static void what_could_not_be_stored_is_tried_again(void **state)
{
    struct world *w = *state;
    int64_t before = mtime_of(&w->b, "d");
    struct dir_handle *h;

    make_in(&w->a, dir, "1");
    fake_cluster_fail(w->cluster, 0, -EHOSTDOWN, true, false);
    assert_int_equal(cost_of_round(w), 1);
    assert_int_equal(cost_of_round(w), 1);
    assert_int_equal(fs_opendir(w->a.fs, &w->a.root, dir, &h), 0);
    assert_int_equal(fs_fsyncdir(w->a.fs, &w->a.root, h), 0); /* it costs only the time */
    fs_releasedir(w->a.fs, h);
    fake_cluster_heal(w->cluster);
    assert_true(mtime_of(&w->b, "d") == before);
    assert_int_equal(cost_of_round(w), 1);
    assert_true(mtime_of(&w->b, "d") > before);
    make_in(&w->a, dir, "2");
    fake_cluster_fail(w->cluster, 0, -EHOSTDOWN, true, false);
    fs_flush_all(w->a.fs, &w->a.root); /* but not for ever */
    fake_cluster_heal(w->cluster);
    assert_int_equal(cost_of_round(w), 0);
}

static void a_file_that_others_see_later_than_the_time_moves_it_again(void **state)
{
    struct world *w = *state;
    struct fs_entry e;
    struct handle *h;
    int64_t made;

    assert_int_equal(fs_create(w->a.fs, &w->a.root, dir, "f", 0644, O_WRONLY | O_CREAT, &e, &h), 0);
    assert_int_equal(cost_of_round(w), 1);
    made = mtime_of(&w->b, "d");
    assert_int_equal(fs_flush(w->a.fs, &w->a.root, h), 0); /* now there is one */
    assert_int_equal(fs_release(w->a.fs, &w->a.root, h), 0);
    assert_int_equal(cost_of_round(w), 1);
    assert_true(mtime_of(&w->b, "d") > made);
    /* Who is quicker than that has one time. */
    assert_int_equal(fs_create(w->a.fs, &w->a.root, dir, "g", 0644, O_WRONLY | O_CREAT, &e, &h), 0);
    made = mtime_of(&w->a, "d");
    assert_int_equal(fs_flush(w->a.fs, &w->a.root, h), 0);
    assert_int_equal(fs_release(w->a.fs, &w->a.root, h), 0);
    assert_true(mtime_of(&w->a, "d") == made);
    /* And one that was set stays. */
    assert_int_equal(fs_create(w->a.fs, &w->a.root, dir, "h", 0644, O_WRONLY | O_CREAT, &e, &h), 0);
    assert_int_equal(cost_of_round(w), 1);
    change(&w->a, dir, time_of(5));
    assert_int_equal(fs_flush(w->a.fs, &w->a.root, h), 0);
    assert_int_equal(fs_release(w->a.fs, &w->a.root, h), 0);
    assert_true(mtime_of(&w->a, "d") == 5);
}

/* --- what is gone stays gone ------------------------------------------------------------------ */

static void a_directory_that_was_removed_does_not_come_back(void **state)
{
    struct world *w = *state;

    make_in(&w->a, dir, "x");
    assert_int_equal(fs_unlink(w->a.fs, &w->a.root, dir, "x"), 0);
    assert_int_equal(fs_rmdir(w->b.fs, &w->b.root, ROOT, "d"), 0); /* elsewhere */
    assert_int_equal(cost_of_round(w), 1);
    assert_false(fake_cluster_get(w->cluster, "d/", NULL));
    assert_int_equal(cost_of_round(w), 0);
    dir = make_dir(&w->a, ROOT, "e");
    make_in(&w->a, dir, "x");
    assert_int_equal(fs_unlink(w->a.fs, &w->a.root, dir, "x"), 0);
    assert_int_equal(fs_rmdir(w->a.fs, &w->a.root, ROOT, "e"), 0); /* and here */
    assert_int_equal(cost_of_round(w), 0);
    assert_false(fake_cluster_run_delayed(w->cluster));
    assert_false(fake_cluster_get(w->cluster, "e/", NULL));
}

static void the_time_goes_to_who_has_the_name_by_then(void **state)
{
    struct world *w = *state;
    uint64_t b;
    int64_t made;

    for (int set = 0; set < 2; set++) {
        assert_int_equal(fs_rmdir(w->b.fs, &w->b.root, ROOT, "d"), 0);
        b = make_dir(&w->b, ROOT, "d"); /* a knows nothing of it */
        if (set)
            change(&w->b, b, time_of(5));
        made = mtime_of(&w->b, "d");
        make_in(&w->a, dir, "x");
        (void)cost_of_round(w);
        assert_true(mtime_of(&w->b, "d") > made);
        assert_int_equal(fs_unlink(w->a.fs, &w->a.root, dir, "x"), 0);
    }
}

static void run_round(void *arg)
{
    struct world *w = arg;

    (void)fake_cluster_run_delayed(w->cluster);
}

/* Its time comes after the move, or before the n-th call of it. */
static bool move_it(struct world *w, unsigned n)
{
    uint64_t sub = make_dir(&w->a, dir, "sub");
    unsigned n_calls;
    int64_t here[2];

    (void)cost_of_round(w);
    make_in(&w->a, dir, "x");
    make_in(&w->a, sub, "x");
    here[0] = mtime_of(&w->a, "d");
    here[1] = ns_of(look(&w->a, dir, "sub").st.st_mtim);
    fake_cluster_before(w->cluster, n, run_round, w);
    n_calls = fake_cluster_n_calls(w->cluster);
    assert_int_equal(fs_rename(w->a.fs, &w->a.root, ROOT, "d", ROOT, "e", false), 0);
    n_calls = fake_cluster_n_calls(w->cluster) - n_calls;
    fake_cluster_before(w->cluster, 0, NULL, NULL);
    (void)cost_of_round(w);
    (void)cost_of_round(w);
    assert_int_equal(cost_of_round(w), 0);
    assert_false(fake_cluster_get(w->cluster, "d/", NULL));
    assert_false(fake_cluster_get(w->cluster, "d/sub/", NULL));
    assert_true(mtime_of(&w->b, "e") == here[0]);
    assert_true(ns_of(look(&w->b, look(&w->b, ROOT, "e").id, "sub").st.st_mtim) == here[1]);
    return n < n_calls;
}

static void what_moves_takes_its_time_along(void **state)
{
    unsigned n = 0;
    bool more = true;

    while (more) {
        void *w;

        mounts_teardown(state);
        fixture(&w);
        *state = w;
        more = move_it(w, n++);
    }
    assert_true(n > 10);
}

static void a_directory_of_keys_alone_gets_no_record(void **state)
{
    struct world *w = *state;
    uint64_t k;

    fake_cluster_put(w->cluster, "k/1", "");
    k = look(&w->a, ROOT, "k").id;
    make_in(&w->a, k, "2");
    assert_int_equal(cost_of_round(w), 1);
    assert_int_equal(cost_of_round(w), 0);
    assert_false(fake_cluster_get(w->cluster, "k/", NULL));
    assert_false(fake_cluster_run_delayed(w->cluster));
    assert_true(mtime_of(&w->a, "k") > 0); /* it shows here */
}

/* --- others' changes of the record ------------------------------------------------------------ */

static void a_time_that_is_set_later_stays(void **state)
{
    struct world *w = *state;

    make_in(&w->a, dir, "1");
    change(&w->a, dir, time_of(5)); /* here */
    assert_int_equal(cost_of_round(w), 0);
    assert_true(mtime_of(&w->a, "d") == 5 && mtime_of(&w->b, "d") == 5);
    make_in(&w->a, dir, "2");
    change(&w->a, dir, time_of(5)); /* the same again */
    assert_int_equal(cost_of_round(w), 0);
    assert_true(mtime_of(&w->a, "d") == 5 && mtime_of(&w->b, "d") == 5);
    make_in(&w->a, dir, "3");
    change(&w->b, look(&w->b, ROOT, "d").id, time_of(7)); /* elsewhere */
    (void)cost_of_round(w);
    assert_true(mtime_of(&w->a, "d") == 7 && mtime_of(&w->b, "d") == 7);
    make_in(&w->a, dir, "4"); /* and one that was set earlier does not */
    assert_int_equal(cost_of_round(w), 1);
    assert_true(mtime_of(&w->b, "d") > 7);
}

static void a_time_whose_setting_failed_is_not_lost(void **state)
{
    struct world *w = *state;
    int64_t before = mtime_of(&w->b, "d");
    struct attr_change ch = time_of(5);
    struct stat st;

    make_in(&w->a, dir, "1");
    fake_cluster_fail(w->cluster, 0, -EHOSTDOWN, true, false);
    assert_int_equal(fs_setattr(w->a.fs, &w->a.root, dir, NULL, &ch, KEEP, &st), -EHOSTDOWN);
    fake_cluster_heal(w->cluster);
    assert_int_equal(cost_of_round(w), 1);
    assert_true(mtime_of(&w->b, "d") > before);
}

static void changes_of_mode_and_attributes_lose_nothing(void **state)
{
    struct world *w = *state;
    uint64_t b = look(&w->b, ROOT, "d").id;
    struct buf value = {0};
    int64_t here;

    make_in(&w->a, dir, "1");
    here = mtime_of(&w->a, "d");
    change(&w->b, b, (struct attr_change){.set = CHANGE_MODE, .mode = 0700});
    assert_int_equal(fs_setxattr(w->b.fs, &w->b.root, b, "user.x", span_str("y"), 0), 0);
    assert_int_equal(cost_of_round(w), 1);
    assert_true(mtime_of(&w->b, "d") == here);
    assert_int_equal(look(&w->b, ROOT, "d").st.st_mode & 07777, 0700);
    assert_int_equal(fs_getxattr(w->b.fs, &w->b.root, b, "user.x", &value), 0);
    buf_fini(&value);
    /* Those of this mount take the time along. */
    make_in(&w->a, dir, "2");
    here = mtime_of(&w->a, "d");
    change(&w->a, dir, (struct attr_change){.set = CHANGE_MODE, .mode = 0711});
    assert_true(mtime_of(&w->b, "d") == here);
    make_in(&w->a, dir, "3");
    here = mtime_of(&w->a, "d");
    assert_int_equal(fs_removexattr(w->a.fs, &w->a.root, dir, "user.x"), 0);
    assert_true(mtime_of(&w->b, "d") == here);
    assert_int_equal(cost_of_round(w), 0);
}

static void make_more(void *arg)
{
    struct world *w = arg;

    make_in(&w->a, dir, "more");
}

static void what_changes_while_it_is_stored_is_stored_later(void **state)
{
    struct world *w = *state;
    int64_t here;

    make_in(&w->a, dir, "1");
    fake_cluster_meanwhile(w->cluster, make_more, w);
    assert_int_equal(cost_of_round(w), 2); /* one made it */
    here = mtime_of(&w->a, "d");
    assert_true(mtime_of(&w->b, "d") < here);
    assert_int_equal(cost_of_round(w), 1);
    assert_true(mtime_of(&w->b, "d") == here);
}

static void a_store_that_others_replace_at_once_is_looked_at_again(void **state)
{
    struct world *w = *state;
    int64_t here;

    make_in(&w->a, dir, "1");
    here = mtime_of(&w->a, "d");
    fake_cluster_supersede(w->cluster, "");
    assert_int_equal(cost_of_round(w), 1);
    assert_true(mtime_of(&w->b, "d") != here);
    assert_int_equal(cost_of_round(w), 1);
    assert_true(mtime_of(&w->b, "d") == here);
    assert_false(fake_cluster_run_delayed(w->cluster));
}

static void set_it(void *arg)
{
    struct world *w = arg;

    change(&w->a, dir, time_of(5));
}

static void a_time_that_is_set_while_it_is_stored_stays(void **state)
{
    struct world *w = *state;

    make_in(&w->a, dir, "1");
    fake_cluster_meanwhile(w->cluster, set_it, w);
    (void)cost_of_round(w);
    (void)cost_of_round(w);
    assert_true(mtime_of(&w->a, "d") == 5 && mtime_of(&w->b, "d") == 5);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, fixture, mounts_teardown)
    const struct CMUnitTest tests[] = {
        TEST(all_that_changes_in_a_moment_is_stored_by_one_write),
        TEST(a_rename_touches_both_directories),
        TEST(fsync_and_the_end_of_the_mount_store_it_at_once),
        TEST(what_could_not_be_stored_is_tried_again),
        TEST(a_file_that_others_see_later_than_the_time_moves_it_again),
        TEST(a_directory_that_was_removed_does_not_come_back),
        TEST(the_time_goes_to_who_has_the_name_by_then),
        TEST(what_moves_takes_its_time_along),
        TEST(a_directory_of_keys_alone_gets_no_record),
        TEST(a_time_that_is_set_later_stays),
        TEST(a_time_whose_setting_failed_is_not_lost),
        TEST(changes_of_mode_and_attributes_lose_nothing),
        TEST(what_changes_while_it_is_stored_is_stored_later),
        TEST(a_store_that_others_replace_at_once_is_looked_at_again),
        TEST(a_time_that_is_set_while_it_is_stored_stays),
    };

    log_open("test_dirtime", LOG_LEVEL_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

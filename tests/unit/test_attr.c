/* test_attr.c - records and entries as struct stat, and changes of attributes. */
#include "fs/attr.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const struct attr_defaults defaults = {.uid = 7, .gid = 8, .umask = 022};

static void a_key_without_attributes_is_a_plain_file_of_the_mounts_owner(void **state)
{
    struct record r = {.version = {1, 1}, .size = 5, .mtime_ns = 1500000000};
    struct meta m = meta_of_record(&defaults, &r, false);
    struct stat st;

    (void)state;
    meta_to_stat(&m, 99, 1, &st);
    assert_int_equal(st.st_mode, S_IFREG | 0644);
    assert_int_equal(st.st_uid, 7);
    assert_int_equal(st.st_gid, 8);
    assert_int_equal(st.st_size, 5);
    assert_int_equal(st.st_blocks, 1);
    assert_int_equal(st.st_mtim.tv_sec, 1);
    assert_int_equal(st.st_mtim.tv_nsec, 500000000);
    assert_int_equal(st.st_ctim.tv_sec, 1);
    assert_int_equal(st.st_ino, 99);
}

static void what_was_set_is_shown_and_goes_back_into_a_record(void **state)
{
    struct meta m = meta_new(S_IFCHR | 04640, 259, 1, 2, -1);
    struct record r = {.version = {1, 1}};
    struct stat st;

    (void)state;
    meta_to_record(&m, &r);
    m = meta_of_record(&defaults, &r, false);
    meta_to_stat(&m, 2, 1, &st);
    assert_int_equal(st.st_mode, S_IFCHR | 04640);
    assert_int_equal(st.st_rdev, 259);
    assert_int_equal(st.st_mtim.tv_sec, -1); /* before 1970 */
    assert_int_equal(st.st_mtim.tv_nsec, 999999999);
}

static void a_marker_is_a_directory_whatever_its_mode_says(void **state)
{
    struct record r = {.version = {1, 1}, .mode = S_IFREG | 0700};
    struct meta m;

    (void)state;
    m = meta_of_record(&defaults, &r, true);
    assert_int_equal(m.mode, S_IFDIR | 0700);
    r.mode = 0;
    m = meta_of_record(&defaults, &r, true);
    assert_int_equal(m.mode, S_IFDIR | 0755);
    r.mode = S_IFDIR | 0711; /* and no file is one */
    m = meta_of_record(&defaults, &r, false);
    assert_int_equal(m.mode, S_IFREG | 0711);
}

static void a_change_keeps_the_type_and_moves_ctime(void **state)
{
    struct meta m = meta_new(S_IFLNK | 0777, 0, 1, 2, 10);
    struct attr_change ch = {.set = CHANGE_MODE | CHANGE_GID | CHANGE_MTIME,
                             .mode = S_IFREG | 0600,
                             .gid = 9,
                             .mtime_ns = 3};

    (void)state;
    meta_apply(&m, &ch, 20);
    assert_int_equal(m.mode, S_IFLNK | 0600);
    assert_int_equal(m.uid, 1);
    assert_int_equal(m.gid, 9);
    assert_int_equal(m.mtime_ns, 3);
    assert_int_equal(m.atime_ns, 10);
    assert_int_equal(m.ctime_ns, 20);
}

static void a_change_of_owner_takes_a_programs_privileges(void **state)
{
    struct attr_change own = {.set = CHANGE_UID, .uid = 9};
    struct attr_change both = {.set = CHANGE_UID | CHANGE_MODE, .uid = 9, .mode = 06711};
    struct meta m = meta_new(S_IFREG | 06751, 0, 1, 2, 10);

    (void)state;
    meta_apply(&m, &own, 20);
    assert_int_equal(m.mode, S_IFREG | 0751);
    meta_apply(&m, &both, 20); /* what was asked for counts */
    assert_int_equal(m.mode, S_IFREG | 06711);
    assert_int_equal(attr_drop_privileges(S_IFREG | 02741), S_IFREG | 02741);
    assert_int_equal(attr_drop_privileges(S_IFREG | 06750), S_IFREG | 0750);
    assert_int_equal(attr_drop_privileges(S_IFDIR | 06777), S_IFDIR | 06777);
}

static void changes_add_up(void **state)
{
    const struct attr_change each[] = {
        {.set = CHANGE_MODE, .mode = 04755},
        {.set = CHANGE_UID | CHANGE_MTIME, .uid = 5, .mtime_ns = 1},
        {.set = CHANGE_GID | CHANGE_MTIME | CHANGE_ATIME, .gid = 6, .mtime_ns = 2, .atime_ns = 3},
    };
    struct meta one = meta_new(S_IFREG | 0600, 0, 1, 2, 10), other = one;
    struct attr_change sum = {0};

    (void)state;
    for (unsigned i = 0; i < sizeof(each) / sizeof(each[0]); i++) {
        meta_apply(&one, &each[i], 20);
        attr_change_add(&sum, &each[i]);
    }
    meta_apply(&other, &sum, 20);
    assert_memory_equal(&one, &other, sizeof(one));
    assert_int_equal(one.mode, S_IFREG | 0755);
}

static void what_changes_in_a_directory_moves_its_times_on(void **state)
{
    static const struct {
        int64_t mtime, ctime, seen, now; /* in which now is the time of the change */
        int64_t new_mtime, new_ctime;
    } cases[] = {
        {10, 10, 10, 20, 20, 20}, /* made, then changed */
        {10, 10, 10, 10, 10, 10}, /* that was stored already */
        {30, 30, 10, 20, 31, 31}, /* others changed something in it, later or by another clock */
        {5, 10, 5, 20, 20, 20},   /* an mtime had been asked for before */
        {99, 10, 99, 20, 20, 20}, /* also one to come */
        {5, 30, 10, 20, 5, 30},   /* one was asked for since */
        {10, 30, 10, 20, 20, 30}, /* the mode changed since */
        {5, 10, 7, 20, 20, 20},   /* one had been asked for that was not seen */
        {INT64_MAX, INT64_MAX, 0, 20, INT64_MAX, INT64_MAX},
    };

    (void)state;
    for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct meta m = {.mtime_ns = cases[i].mtime, .ctime_ns = cases[i].ctime};
        bool moved = meta_touch(&m, cases[i].seen, cases[i].now);

        assert_int_equal(m.mtime_ns, cases[i].new_mtime);
        assert_int_equal(m.ctime_ns, cases[i].new_ctime);
        assert_int_equal(moved, cases[i].mtime != m.mtime_ns || cases[i].ctime != m.ctime_ns);
    }
}

static void times_that_no_record_can_hold_become_the_nearest(void **state)
{
    (void)state;
    assert_true(attr_ns_of((struct timespec){-1, 999999999}) == -1);
    assert_true(attr_ns_of((struct timespec){4294967296, 5}) == 4294967296000000005);
    assert_true(attr_ns_of((struct timespec){INT64_MAX / 1000000000, 854775807}) == INT64_MAX);
    assert_true(attr_ns_of((struct timespec){INT64_MAX / 1000000000, 854775808}) == INT64_MAX);
    assert_true(attr_ns_of((struct timespec){INT64_MAX, 0}) == INT64_MAX);
    assert_true(attr_ns_of((struct timespec){INT64_MIN, 0}) == INT64_MIN);
}

static void an_inode_number_goes_with_the_record(void **state)
{
    static const uint32_t types[] = {S_IFREG, S_IFLNK, S_IFIFO, S_IFCHR, S_IFBLK, S_IFSOCK};

    (void)state;
    for (unsigned i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
        struct meta a = meta_new(types[i] | 0600, 259, 1, 2, 3),
                    b = meta_new(types[i], 259, 1, 2, 3);
        struct record r = {.version = {1, 1}};
        struct stat before, after;

        meta_to_stat(&a, 77, 1, &before);
        assert_true(a.ino > 1 && a.ino != b.ino);
        meta_to_record(&a, &r);
        a = meta_of_record(&defaults, &r, false);
        meta_to_stat(&a, 78, 1, &after);
        assert_true(before.st_ino == after.st_ino);
        assert_true(before.st_rdev == after.st_rdev);
    }
}

static void what_has_no_number_shows_its_paths(void **state)
{
    (void)state;
    assert_int_equal(attr_st_ino(span_str("")), 1);
    assert_true(attr_st_ino(span_str("a")) > 1);
    assert_true(attr_st_ino(span_str("a")) == attr_st_ino(span_str("a")));
    assert_true(attr_st_ino(span_str("a")) != attr_st_ino(span_str("a/")));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_key_without_attributes_is_a_plain_file_of_the_mounts_owner),
        cmocka_unit_test(what_was_set_is_shown_and_goes_back_into_a_record),
        cmocka_unit_test(a_marker_is_a_directory_whatever_its_mode_says),
        cmocka_unit_test(a_change_keeps_the_type_and_moves_ctime),
        cmocka_unit_test(a_change_of_owner_takes_a_programs_privileges),
        cmocka_unit_test(changes_add_up),
        cmocka_unit_test(what_changes_in_a_directory_moves_its_times_on),
        cmocka_unit_test(times_that_no_record_can_hold_become_the_nearest),
        cmocka_unit_test(an_inode_number_goes_with_the_record),
        cmocka_unit_test(what_has_no_number_shows_its_paths),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

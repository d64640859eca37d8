/*
 * test_dir_moves.c - a directory moves, key by key, while programs of the same mount go on in it:
 * before each call of the cluster in turn one of them begins, and is given a moment.
 */
#include "tests/lib/mounts.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/log.h"
#include "fs/core.h"

#define ROOT 1u
#define FIRST_LINE_MAX 256u

/* One who works in the directory d, which moves to e. */
struct worker {
    struct world *w;
    struct caller who;
    uint64_t d, sub; /* directories */
    int (*work)(struct worker *k);
    pthread_t thread;
    bool began, joined;
    int err;
    char seen[FIRST_LINE_MAX];
};

/* --- helpers ---------------------------------------------------------------------------------- */

static void *work_in_thread(void *arg)
{
    struct worker *k = arg;

    k->err = k->work(k);
    return NULL;
}

static void begin_work(void *arg)
{
    struct worker *k = arg;

    k->began = true;
    assert_int_equal(pthread_create(&k->thread, NULL, work_in_thread, k), 0);
    k->joined = ended_early(k->thread);
}

static void put(struct world *w, const char *key)
{
    fake_cluster_put(w->cluster, key, "v");
}

static uint64_t look(struct world *w, uint64_t parent, const char *name)
{
    struct fs_entry e;

    assert_int_equal(fs_lookup(w->a.fs, &w->a.root, parent, name, &e), 0);
    return e.id;
}

static bool is_there(struct world *w, const char *key)
{
    return fake_cluster_get(w->cluster, key, NULL);
}

/* Moves d to e; before its n-th call the work begins. False: there were not so many. */
static bool move_while(struct world *w, unsigned n, int (*work)(struct worker *k), struct worker *k)
{
    *k = (struct worker){.w = w, .work = work};
    for (const char *const *key =
             (const char *const[]){"d/", "d/f", "d/g", "d/sub/", "d/sub/x", NULL};
         *key != NULL; key++)
        put(w, *key);
    k->d = look(w, ROOT, "d");
    k->sub = look(w, k->d, "sub");
    caller_begin(w->callers, CALL_NONE, 0, 0, 0, &k->who);
    fake_cluster_before(w->cluster, n, begin_work, k);
    assert_int_equal(fs_rename(w->a.fs, &w->a.root, ROOT, "d", ROOT, "e", false), 0);
    fake_cluster_before(w->cluster, 0, NULL, NULL);
    if (k->began && !k->joined)
        assert_int_equal(pthread_join(k->thread, NULL), 0);
    caller_end(&k->who);
    return k->began;
}

/* Does the work at each moment of a move, and then looks at what has become of it. */
static void sweep(int (*work)(struct worker *k), void (*check)(struct world *w, struct worker *k))
{
    struct worker k;
    bool began = true;

    for (unsigned n = 0; began; n++) {
        void *state = NULL;
        struct world *w;

        assert_int_equal(mounts_setup(&state), 0);
        w = state;
        began = move_while(w, n, work, &k);
        if (began) {
            check(w, &k);
            assert_false(is_there(w, "d/"));
            assert_false(is_there(w, "d/sub/"));
        }
        assert_int_equal(mounts_teardown(&state), 0);
    }
}

/* --- what is made ----------------------------------------------------------------------------- */

static int make_dir(struct worker *k)
{
    return fs_mkdir(k->w->a.fs, &k->who, k->d, "new", 0700, &(struct fs_entry){0});
}

static int make_dir_deep(struct worker *k)
{
    return fs_mkdir(k->w->a.fs, &k->who, k->sub, "new", 0700, &(struct fs_entry){0});
}

static int make_link(struct worker *k)
{
    return fs_symlink(k->w->a.fs, &k->who, "to", k->d, "new", &(struct fs_entry){0});
}

static int make_node(struct worker *k)
{
    return fs_mknod(k->w->a.fs, &k->who, k->sub, "new", S_IFIFO | 0600, 0, &(struct fs_entry){0});
}

static int make_exclusively(struct worker *k)
{
    struct handle *h;
    int err = fs_create(k->w->a.fs, &k->who, k->sub, "new", 0600, O_CREAT | O_EXCL | O_WRONLY,
                        &(struct fs_entry){0}, &h);

    return err < 0 ? err : fs_release(k->w->a.fs, &k->who, h);
}

static void is_in_e(struct world *w, struct worker *k)
{
    assert_int_equal(k->err, 0);
    assert_true(is_there(w, "e/new/") || is_there(w, "e/new") || is_there(w, "e/sub/new/") ||
                is_there(w, "e/sub/new"));
    assert_int_equal(fake_cluster_n_live(w->cluster), 6);
}

static void what_is_made_in_a_directory_that_moves_moves_along(void **state)
{
    (void)state;
    sweep(make_dir, is_in_e);
    sweep(make_dir_deep, is_in_e);
    sweep(make_link, is_in_e);
    sweep(make_node, is_in_e);
    sweep(make_exclusively, is_in_e);
}

/* --- what is removed and moved ---------------------------------------------------------------- */

static int remove_file(struct worker *k)
{
    return fs_unlink(k->w->a.fs, &k->who, k->d, "g");
}

static void g_is_gone(struct world *w, struct worker *k)
{
    assert_int_equal(k->err, 0);
    assert_false(is_there(w, "e/g"));
    assert_int_equal(fake_cluster_n_live(w->cluster), 4);
}

static int remove_dir(struct worker *k)
{
    int err = fs_unlink(k->w->a.fs, &k->who, k->sub, "x");

    return err < 0 ? err : fs_rmdir(k->w->a.fs, &k->who, k->d, "sub");
}

static void sub_is_gone(struct world *w, struct worker *k)
{
    assert_int_equal(k->err, 0);
    assert_false(is_there(w, "e/sub/"));
    assert_int_equal(fake_cluster_n_live(w->cluster), 3);
}

static int rename_within(struct worker *k)
{
    return fs_rename(k->w->a.fs, &k->who, k->d, "f", k->sub, "new", true);
}

static void f_is_new(struct world *w, struct worker *k)
{
    assert_int_equal(k->err, 0);
    assert_true(is_there(w, "e/sub/new"));
    assert_false(is_there(w, "e/f"));
    assert_int_equal(fake_cluster_n_live(w->cluster), 5);
}

static int rename_into(struct worker *k)
{
    put(k->w, "other");
    return fs_rename(k->w->a.fs, &k->who, ROOT, "other", k->sub, "new", true);
}

static int rename_dir_within(struct worker *k)
{
    return fs_rename(k->w->a.fs, &k->who, k->d, "sub", k->d, "new", true);
}

static void sub_is_new(struct world *w, struct worker *k)
{
    assert_int_equal(k->err, 0);
    assert_true(is_there(w, "e/new/x"));
    assert_false(is_there(w, "e/sub/"));
    assert_int_equal(fake_cluster_n_live(w->cluster), 5);
}

static void what_is_removed_or_moved_in_a_directory_that_moves_is_found(void **state)
{
    (void)state;
    sweep(remove_file, g_is_gone);
    sweep(remove_dir, sub_is_gone);
    sweep(rename_within, f_is_new);
    sweep(rename_into, is_in_e);
    sweep(rename_dir_within, sub_is_new);
}

/* --- what is looked at, and changed ----------------------------------------------------------- */

static int look_at_all(struct worker *k)
{
    static const char *const names[] = {"f", "g", "sub"};
    struct fs *fs = k->w->a.fs;
    struct fs_entry e = {0};
    struct stat st;
    int err = 0;

    for (unsigned i = 0; i < sizeof(names) / sizeof(names[0]) && err == 0; i++)
        err = fs_lookup(fs, &k->who, k->d, names[i], &e);
    if (err == 0)
        err = fs_lookup(fs, &k->who, k->sub, "x", &e);
    if (err == 0)
        err = fs_getattr(fs, &k->who, k->d, NULL, &st);
    return err < 0 ? err : fs_getattr(fs, &k->who, k->sub, NULL, &st);
}

static void all_was_there(struct world *w, struct worker *k)
{
    assert_int_equal(k->err, 0);
    assert_int_equal(fake_cluster_n_live(w->cluster), 5);
}

static int list(struct worker *k)
{
    struct fs_dirent e = {.next_off = 0};
    struct dir_handle *d;
    int err = fs_opendir(k->w->a.fs, &k->who, k->d, &d);

    if (err < 0)
        return err;
    while ((err = fs_readdir(k->w->a.fs, &k->who, d, e.next_off, true, &e)) > 0) {
        if (!e.dots)
            strncat(k->seen, e.name, FIRST_LINE_MAX - strlen(k->seen) - 1);
    }
    fs_releasedir(k->w->a.fs, d);
    return err;
}

static void all_was_listed(struct world *w, struct worker *k)
{
    assert_string_equal(k->seen, "fgsub");
    all_was_there(w, k);
}

static int change_mode(struct worker *k)
{
    struct attr_change ch = {.set = CHANGE_MODE, .mode = 0711};
    struct stat st;
    int err = fs_setattr(k->w->a.fs, &k->who, k->d, NULL, &ch, UINT64_MAX, &st);

    return err < 0 ? err : fs_setattr(k->w->a.fs, &k->who, k->sub, NULL, &ch, UINT64_MAX, &st);
}

static void modes_are_changed(struct world *w, struct worker *k)
{
    struct stat st;
    uint64_t e = look(w, ROOT, "e");

    all_was_there(w, k);
    assert_int_equal(fs_getattr(w->a.fs, &w->a.root, e, NULL, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0711);
    assert_int_equal(fs_getattr(w->a.fs, &w->a.root, look(w, e, "sub"), NULL, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0711);
}

static int set_attr(struct worker *k)
{
    return fs_setxattr(k->w->a.fs, &k->who, k->sub, "user.a", span_str("1"), 0);
}

static void attr_is_set(struct world *w, struct worker *k)
{
    struct buf value = {0};

    all_was_there(w, k);
    assert_int_equal(fs_getxattr(w->a.fs, &w->a.root, k->sub, "user.a", &value), 0);
    assert_true(span_eq(buf_span(&value), span_str("1")));
    buf_fini(&value);
}

static int get_attr(struct worker *k)
{
    struct buf value = {0};
    int err = fs_getxattr(k->w->a.fs, &k->who, k->sub, "user.none", &value);

    buf_fini(&value);
    return err == -ENODATA ? 0 : err;
}

/* Twice, as the kernel does upon ESTALE. */
static int open_there(struct worker *k)
{
    struct handle *h;
    int err = -ESTALE;

    for (int i = 0; i < 2 && err == -ESTALE; i++)
        err = fs_create(k->w->a.fs, &k->who, k->d, "g", 0600, O_CREAT | O_RDWR,
                        &(struct fs_entry){0}, &h);
    return err < 0 ? err : fs_release(k->w->a.fs, &k->who, h);
}

static void a_directory_that_moves_is_whole_to_who_looks_and_changes_with_it(void **state)
{
    (void)state;
    sweep(look_at_all, all_was_there);
    sweep(list, all_was_listed);
    sweep(get_attr, all_was_there);
    sweep(open_there, all_was_there);
    sweep(change_mode, modes_are_changed);
    sweep(set_attr, attr_is_set);
}

static void who_waits_for_a_move_can_be_stopped(void **state)
{
    struct world *w = *state;
    struct worker k = {.w = w, .work = make_dir};
    struct dir_move move;

    put(w, "d/");
    k.d = look(w, ROOT, "d");
    caller_begin(w->callers, CALL_NONE, 0, 0, 0, &k.who);
    assert_int_equal(dir_moves_begin(&w->a.fs->moves, &w->a.root, &move, span_str("d/")), 0);
    begin_work(&k);
    assert_false(k.joined);
    caller_stop(&k.who);
    assert_int_equal(pthread_join(k.thread, NULL), 0);
    assert_int_equal(k.err, -EINTR);
    caller_end(&k.who);
    dir_moves_end(&w->a.fs->moves, &move);
}

static void who_moves_a_directory_that_is_in_use_can_be_stopped(void **state)
{
    struct world *w = *state;
    struct dir_use use = {.prefix = span_str("d/sub/")};
    struct dir_move move;
    struct caller who;

    assert_int_equal(dir_moves_enter(&w->a.fs->moves, 0, &use, NULL), 0);
    caller_begin(w->callers, CALL_NONE, 0, 0, 0, &who);
    caller_stop(&who);
    assert_int_equal(dir_moves_begin(&w->a.fs->moves, &who, &move, span_str("d/")), -EINTR);
    caller_end(&who);
    dir_moves_leave(&w->a.fs->moves, &use);
    assert_int_equal(dir_moves_enter(&w->a.fs->moves, 0, &use, NULL), -EAGAIN); /* one has ended */
    assert_int_equal(dir_moves_enter(&w->a.fs->moves, 1, &use, NULL), 0);
    dir_moves_leave(&w->a.fs->moves, &use);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_made_in_a_directory_that_moves_moves_along),
        cmocka_unit_test(what_is_removed_or_moved_in_a_directory_that_moves_is_found),
        cmocka_unit_test(a_directory_that_moves_is_whole_to_who_looks_and_changes_with_it),
        cmocka_unit_test_setup_teardown(who_waits_for_a_move_can_be_stopped, mounts_setup,
                                        mounts_teardown),
        cmocka_unit_test_setup_teardown(who_moves_a_directory_that_is_in_use_can_be_stopped,
                                        mounts_setup, mounts_teardown),
    };

    log_open("test_dir_moves", LOG_LEVEL_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

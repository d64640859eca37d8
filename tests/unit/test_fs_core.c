/*
 * test_fs_core.c - the mount's core without a mount: over a cluster in memory whose calls fail one
 * after the other. Each operation is swept: its n-th call of the cluster fails, for n = 0, 1, 2
 * ..., until it gets through; after each run the world is looked at.
 */
#include "fs/follow.h"
#include "fs/fs.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/log.h"
#include "tests/lib/fake_cluster.h"

#define SWEEP_MAX 400u
#define VALUE_MAX (8u << 20)

struct world {
    struct cluster *cluster;
    struct callers *callers;
    struct fs *fs;
    struct caller who;
};

/* --- fixture ------------------------------------------------------------------------------------
 */

static struct world *world_new(void)
{
    struct world *w = calloc(1, sizeof(*w));

    assert_non_null(w);
    w->cluster = fake_cluster_new(VALUE_MAX);
    assert_int_equal(callers_new(&w->callers), 0);
    assert_int_equal(fs_new(&(struct fs_opts){.cluster = w->cluster}, &w->fs), 0);
    caller_begin(w->callers, CALL_NONE, 10, 20, 0, &w->who);
    return w;
}

static void world_free(struct world *w)
{
    caller_end(&w->who);
    fs_free(w->fs);
    callers_free(w->callers);
    fake_cluster_free(w->cluster);
    free(w);
}

/* --- helpers
 * -------------------------------------------------------------------------------------- */

/* The id of a path, through lookups; the error of the last. */
static int find(struct world *w, const char *path, uint64_t *id)
{
    char name[256];
    struct fs_entry e = {.id = 1};
    int err = 0;

    while (*path != 0 && err == 0) {
        size_t n = strcspn(path, "/");

        memcpy(name, path, n);
        name[n] = 0;
        path += n + (path[n] == '/');
        err = fs_lookup(w->fs, &w->who, e.id, name, &e);
    }
    *id = e.id;
    return err;
}

static int write_file(struct world *w, const char *name, const char *text, int flags)
{
    struct fs_entry e;
    struct handle *h;
    int err, released;

    err = fs_create(w->fs, &w->who, 1, name, 0644, O_WRONLY | O_CREAT | flags, &e, &h);
    if (err < 0)
        return err;
    err = fs_write(w->fs, &w->who, h, 0, span_str(text), false);
    if (err == 0)
        err = fs_flush(w->fs, &w->who, h);
    released = fs_release(w->fs, &w->who, h);
    return err == 0 ? released : err;
}

static int read_file(struct world *w, const char *path, char *out, size_t size)
{
    struct value v = {0};
    struct handle *h;
    uint64_t id;
    int err = find(w, path, &id);

    if (err == 0)
        err = fs_open(w->fs, &w->who, id, O_RDONLY, &h);
    if (err < 0)
        return err;
    err = fs_read(w->fs, &w->who, h, 0, size - 1, &v);
    if (err == 0) {
        if (v.len > 0)
            memcpy(out, v.data, v.len);
        out[v.len] = 0;
    }
    value_fini(&v);
    fs_release(w->fs, &w->who, h);
    return err;
}

static int list_dir(struct world *w, const char *path, struct buf *names)
{
    struct dir_handle *d;
    struct fs_dirent e = {.next_off = 0};
    uint64_t id;
    int err = find(w, path, &id);

    if (err == 0)
        err = fs_opendir(w->fs, &w->who, id, &d);
    if (err < 0)
        return err;
    buf_clear(names);
    while ((err = fs_readdir(w->fs, &w->who, d, e.next_off, true, &e)) > 0) {
        if (!e.dots)
            buf_addf(names, "%s ", e.name);
    }
    buf_u8(names, 0);
    fs_releasedir(w->fs, d);
    return err;
}

static void assert_stored(struct world *w, const char *key, const char *want)
{
    struct span got;

    assert_true(fake_cluster_get(w->cluster, key, &got));
    assert_int_equal(got.len, strlen(want));
    if (got.len > 0)
        assert_memory_equal(got.data, want, got.len);
}

/* Runs op in a fresh world each time with its n-th call failing (on: and all later ones), until it
 * gets through; checks each. */
static void sweep(void (*prepare)(struct world *), int (*op)(struct world *),
                  void (*check)(struct world *, int), bool on, bool applied)
{
    unsigned n = 0;
    int err;

    do {
        struct world *w = world_new();

        assert_true(n < SWEEP_MAX); /* the sweep must end in a success */
        prepare(w);
        fake_cluster_fail(w->cluster, n, -EHOSTDOWN, on, applied);
        err = op(w);
        fake_cluster_heal(w->cluster);
        if (err != 0 && err != -EHOSTDOWN)
            print_message("call %u: %d\n", n, err);
        assert_true(err == 0 ||
                    err == -EHOSTDOWN); /* trouble is never "not there", nor anything else */
        check(w, err);
        world_free(w);
        n++;
    } while (err != 0 || n < 2);
}

static void sweep_all(void (*prepare)(struct world *), int (*op)(struct world *),
                      void (*check)(struct world *, int))
{
    sweep(prepare, op, check, false, false);
    sweep(prepare, op, check, true, false);
    sweep(prepare, op, check, true, true);
}

/* --- files
 * ---------------------------------------------------------------------------------------- */

static void put_old(struct world *w)
{
    fake_cluster_put(w->cluster, "f", "old");
}

static int overwrite(struct world *w)
{
    return write_file(w, "f", "new", O_TRUNC);
}

static void old_or_new(struct world *w, int err)
{
    char text[100];

    assert_int_equal(read_file(w, "f", text, sizeof(text)), 0);
    if (err == 0)
        assert_string_equal(text, "new");
    else
        assert_true(strcmp(text, "old") == 0 || strcmp(text, "new") == 0);
    assert_stored(w, "f", text);
}

static void an_overwrite_leaves_the_old_or_the_new_value_after_any_failure(void **state)
{
    (void)state;
    sweep_all(put_old, overwrite, old_or_new);
}

static int read_old(struct world *w)
{
    char text[100];
    int err = read_file(w, "f", text, sizeof(text));

    if (err == 0)
        assert_string_equal(text, "old");
    return err;
}

static void nothing(struct world *w, int err)
{
    (void)w;
    (void)err;
}

static void a_read_gives_the_value_or_the_clusters_error(void **state)
{
    (void)state;
    sweep_all(put_old, read_old, nothing);
}

static void prepare_dir(struct world *w)
{
    fake_cluster_put(w->cluster, "d/", "");
    fake_cluster_put(w->cluster, "d/a", "1");
    fake_cluster_put(w->cluster, "d/b/c", "2");
}

static int list_d(struct world *w)
{
    struct buf names = {0};
    int err = list_dir(w, "d", &names);

    if (err == 0)
        assert_string_equal((const char *)names.data, "a b ");
    buf_fini(&names);
    return err;
}

static void a_listing_is_whole_or_an_error(void **state)
{
    (void)state;
    sweep_all(prepare_dir, list_d, nothing);
}

static void a_failed_flush_keeps_the_data_for_the_next(void **state)
{
    struct world *w = world_new();
    struct fs_entry e;
    struct handle *h;

    (void)state;
    assert_int_equal(fs_create(w->fs, &w->who, 1, "f", 0600, O_WRONLY | O_CREAT | O_TRUNC, &e, &h),
                     0);
    assert_int_equal(fs_write(w->fs, &w->who, h, 0, span_str("data"), false), 0);
    fake_cluster_fail(w->cluster, 0, -EHOSTDOWN, true, false);
    assert_int_equal(fs_flush(w->fs, &w->who, h), -EHOSTDOWN);
    assert_int_equal(fs_fsync(w->fs, &w->who, h), -EHOSTDOWN);
    fake_cluster_heal(w->cluster);
    assert_int_equal(fs_fsync(w->fs, &w->who, h), 0);
    assert_stored(w, "f", "data");
    assert_int_equal(fs_release(w->fs, &w->who, h), 0);
    world_free(w);
}

static void what_failed_at_close_is_not_stored_behind_the_programs_back(void **state)
{
    struct world *w = world_new();
    struct fs_entry e;
    struct handle *h;

    (void)state;
    assert_int_equal(fs_create(w->fs, &w->who, 1, "f", 0600, O_WRONLY | O_CREAT | O_TRUNC, &e, &h),
                     0);
    assert_int_equal(fs_write(w->fs, &w->who, h, 0, span_str("data"), false), 0);
    fake_cluster_fail(w->cluster, 0, -EHOSTDOWN, false, false);
    assert_int_equal(fs_flush(w->fs, &w->who, h), -EHOSTDOWN);
    assert_int_equal(fs_release(w->fs, &w->who, h), -EHOSTDOWN);
    assert_false(fake_cluster_get(w->cluster, "f", NULL));
    assert_int_equal(find(w, "f", &e.id), -ENOENT);
    world_free(w);
}

static void an_append_of_unknown_outcome_is_not_appended_twice(void **state)
{
    (void)state;
    for (int applied = 0; applied < 2; applied++) {
        struct world *w = world_new();
        struct handle *h;
        uint64_t id;

        fake_cluster_put(w->cluster, "f", "1");
        assert_int_equal(find(w, "f", &id), 0);
        assert_int_equal(fs_open(w->fs, &w->who, id, O_WRONLY | O_APPEND, &h), 0);
        assert_int_equal(fs_write(w->fs, &w->who, h, 0, span_str("2"), false), 0);
        fake_cluster_fail(w->cluster, 0, -EHOSTDOWN, false, applied);
        assert_int_equal(fs_fsync(w->fs, &w->who, h), -EHOSTDOWN);
        assert_int_equal(fs_write(w->fs, &w->who, h, 0, span_str("3"), false), 0);
        assert_int_equal(fs_fsync(w->fs, &w->who, h), 0);
        assert_stored(w, "f", "123");
        assert_int_equal(fs_release(w->fs, &w->who, h), 0);
        world_free(w);
    }
}

/*
 * A file is opened with these flags and written to; another mount deletes it (or replaces it by a
 * file of its own); what is then stored under the name, "": nothing.
 */
static int store_after_loss(int flags, bool replaced, const char *want)
{
    struct world *w = world_new();
    struct fs *other;
    struct handle *h;
    uint64_t id;
    int err;

    assert_int_equal(fs_new(&(struct fs_opts){.cluster = w->cluster}, &other), 0);
    assert_int_equal(write_file(w, "f", "old", O_TRUNC), 0);
    assert_int_equal(find(w, "f", &id), 0);
    assert_int_equal(fs_open(w->fs, &w->who, id, flags, &h), 0);
    assert_int_equal(fs_write(w->fs, &w->who, h, 0, span_str("new"), false), 0);
    assert_int_equal(fs_unlink(other, &w->who, 1, "f"), 0);
    if (replaced) {
        struct fs_entry e;

        assert_int_equal(fs_mknod(other, &w->who, 1, "f", S_IFREG | 0644, 0, &e), 0);
    }
    err = fs_flush(w->fs, &w->who, h);
    assert_int_equal(fs_fsync(w->fs, &w->who, h), err);
    assert_int_equal(fs_release(w->fs, &w->who, h), err);
    if (want != NULL)
        assert_stored(w, "f", want);
    else
        assert_false(fake_cluster_get(w->cluster, "f", NULL));
    fs_free(other);
    world_free(w);
    return err;
}

static void a_change_of_a_file_that_another_mount_removed_does_not_bring_it_back(void **state)
{
    (void)state;
    assert_int_equal(store_after_loss(O_RDWR, false, NULL), -ESTALE);
    assert_int_equal(store_after_loss(O_RDWR, true, ""), -ESTALE);
    assert_int_equal(store_after_loss(O_WRONLY | O_TRUNC, false, "new"), 0);
    assert_int_equal(store_after_loss(O_WRONLY | O_TRUNC, true, "new"), 0);
    assert_int_equal(store_after_loss(O_WRONLY | O_APPEND, false, "new"), 0);
    assert_int_equal(store_after_loss(O_WRONLY | O_APPEND, true, "new"), 0);
}

static void a_new_file_is_stored_once_with_its_owner_and_mode(void **state)
{
    struct world *w = world_new();
    struct stat st;
    uint64_t id;
    unsigned before;

    (void)state;
    before = fake_cluster_n_calls(w->cluster);
    assert_int_equal(write_file(w, "f", "x", O_TRUNC), 0);
    assert_int_equal(fake_cluster_n_calls(w->cluster) - before, 1);
    assert_int_equal(find(w, "f", &id), 0);
    assert_int_equal(fs_getattr(w->fs, &w->who, id, NULL, &st), 0);
    assert_int_equal(st.st_mode, S_IFREG | 0644);
    assert_int_equal(st.st_uid, 10);
    assert_int_equal(st.st_gid, 20);
    world_free(w);
}

/* --- renames
 * ---------------------------------------------------------------------------------------- */

static int rename_f(struct world *w)
{
    return fs_rename(w->fs, &w->who, 1, "f", 1, "g", false);
}

static void renamed_or_not(struct world *w, int err)
{
    struct span v;

    if (err == 0)
        assert_false(fake_cluster_get(w->cluster, "f", NULL));
    if (fake_cluster_get(w->cluster, "f", &v))
        assert_stored(w, "f", "old");
    else
        assert_stored(w, "g", "old");
    if (err != 0 && fake_cluster_get(w->cluster, "f", NULL))
        assert_int_equal(rename_f(w), 0);
    assert_stored(w, "g", "old");
    assert_int_equal(fake_cluster_n_live(w->cluster), 1);
}

static void an_extended_attribute_of_a_new_file_leaves_its_owner_and_mode(void **state)
{
    const struct attr_change ch = {
        .set = CHANGE_UID | CHANGE_GID | CHANGE_MODE, .uid = 11, .gid = 21, .mode = 0751};
    struct world *w = world_new();
    struct fs_entry e;
    struct handle *h;
    struct stat st;

    (void)state;
    assert_int_equal(fs_create(w->fs, &w->who, 1, "f", 0600, O_RDWR | O_CREAT | O_EXCL, &e, &h), 0);
    assert_int_equal(fs_write(w->fs, &w->who, h, 0, span_str("x"), false), 0);
    assert_int_equal(fs_setattr(w->fs, &w->who, e.id, h, &ch, UINT64_MAX, &st), 0);
    assert_int_equal(fs_setxattr(w->fs, &w->who, e.id, "user.k", span_str("v"), 0), 0);
    assert_int_equal(fs_release(w->fs, &w->who, h), 0);
    assert_int_equal(find(w, "f", &e.id), 0);
    assert_int_equal(fs_getattr(w->fs, &w->who, e.id, NULL, &st), 0);
    assert_int_equal(st.st_mode, S_IFREG | 0751);
    assert_int_equal(st.st_uid, 11);
    assert_int_equal(st.st_gid, 21);
    assert_stored(w, "f", "x");
    world_free(w);
}

static void a_file_is_whole_under_one_name_or_both_after_a_rename_fails_anywhere(void **state)
{
    (void)state;
    sweep_all(put_old, rename_f, renamed_or_not);
}

/* A second copy would undo what others have written to the new name since the first. */
static void a_rename_copies_once_also_when_its_file_is_settled_meanwhile(void **state)
{
    struct world *w = world_new();
    unsigned before, n_calls;

    (void)state;
    put_old(w);
    before = fake_cluster_n_calls(w->cluster);
    assert_int_equal(rename_f(w), 0);
    n_calls = fake_cluster_n_calls(w->cluster) - before;
    fake_cluster_delete(w->cluster, "g");
    put_old(w);
    fake_cluster_settle_reads(w->cluster);
    before = fake_cluster_n_calls(w->cluster);
    assert_int_equal(rename_f(w), 0);
    assert_int_equal(fake_cluster_n_calls(w->cluster) - before, n_calls);
    assert_stored(w, "g", "old");
    assert_int_equal(fake_cluster_n_live(w->cluster), 1);
    world_free(w);
}

#define N_KEYS 20

static void prepare_tree(struct world *w)
{
    char key[32], value[32];

    fake_cluster_put(w->cluster, "d/", "");
    for (int i = 0; i < N_KEYS; i++) {
        snprintf(key, sizeof(key), "d/%d/k%d", i % 3, i);
        snprintf(value, sizeof(value), "v%d", i);
        fake_cluster_put(w->cluster, key, value);
    }
}

static int rename_d(struct world *w)
{
    return fs_rename(w->fs, &w->who, 1, "d", 1, "e", false);
}

static void each_key_is_somewhere(struct world *w, int err)
{
    char old[32], new[32], value[32];

    for (int i = 0; i < N_KEYS; i++) {
        bool there;

        snprintf(old, sizeof(old), "d/%d/k%d", i % 3, i);
        snprintf(new, sizeof(new), "e/%d/k%d", i % 3, i);
        snprintf(value, sizeof(value), "v%d", i);
        there = fake_cluster_get(w->cluster, old, NULL);
        assert_true(err != 0 || !there);
        assert_stored(w, there ? old : new, value);
    }
    if (err != 0 && rename_d(w) != 0) { /* once more completes it */
        assert_false(fake_cluster_get(w->cluster, "d/", NULL));
        for (int i = 0; i < N_KEYS; i++) {
            snprintf(old, sizeof(old), "d/%d/k%d", i % 3, i);
            assert_false(fake_cluster_get(w->cluster, old, NULL));
        }
    }
    assert_false(fake_cluster_get(w->cluster, "d/", NULL));
    for (int i = 0; i < N_KEYS; i++) {
        snprintf(new, sizeof(new), "e/%d/k%d", i % 3, i);
        snprintf(value, sizeof(value), "v%d", i);
        assert_stored(w, new, value);
    }
    assert_int_equal(fake_cluster_n_live(w->cluster), N_KEYS + 1);
}

static void a_directory_move_that_fails_anywhere_leaves_each_key_whole_and_completes(void **state)
{
    (void)state;
    sweep_all(prepare_tree, rename_d, each_key_is_somewhere);
}

/* Moves d to e until the n-th call fails; only_part: some keys have moved, and some not. */
static struct world *interrupted(unsigned n)
{
    struct world *w = world_new();

    prepare_tree(w);
    fake_cluster_fail(w->cluster, n, -EHOSTDOWN, true, false);
    assert_int_equal(rename_d(w), -EHOSTDOWN);
    fake_cluster_heal(w->cluster);
    assert_true(fake_cluster_get(w->cluster, "d/", NULL));
    assert_true(fake_cluster_get(w->cluster, "e/", NULL));
    return w;
}

#define MID_MOVE 40u /* calls until some of the keys have moved */

static void a_move_into_what_it_had_begun_to_make_completes_it(void **state)
{
    struct world *w = interrupted(MID_MOVE);
    struct stat st;
    uint64_t e, in_e;

    (void)state;
    assert_int_equal(find(w, "e", &e), 0);
    assert_int_equal(find(w, "e/0", &in_e), 0);
    assert_int_equal(fs_rename(w->fs, &w->who, 1, "d", e, "d", true), 0);
    each_key_is_somewhere(w, 0);
    assert_int_equal(fs_getattr(w->fs, &w->who, e, NULL, &st), 0);
    assert_int_equal(st.st_nlink, 1);
    assert_int_equal(fs_getattr(w->fs, &w->who, in_e, NULL, &st), 0);
    assert_int_equal(st.st_nlink, 1);
    world_free(w);
}

static void a_directory_that_is_not_empty_is_moved_onto_only_by_what_began_it(void **state)
{
    struct world *w = interrupted(MID_MOVE);

    (void)state;
    fake_cluster_put(w->cluster, "other/", "");
    fake_cluster_put(w->cluster, "other/x", "");
    assert_int_equal(fs_rename(w->fs, &w->who, 1, "other", 1, "e", false), -ENOTEMPTY);
    assert_stored(w, "other/x", "");
    /* Also while nothing has arrived there yet. */
    world_free(w);
    w = interrupted(8);
    fake_cluster_put(w->cluster, "other/", "");
    assert_int_equal(fs_rename(w->fs, &w->who, 1, "other", 1, "e", false), -ENOTEMPTY);
    /* But not for ever: the old one has another number, when it is made anew. */
    for (int i = 0; i < N_KEYS; i++) {
        char key[32];

        snprintf(key, sizeof(key), "d/%d/k%d", i % 3, i);
        fake_cluster_delete(w->cluster, key);
        snprintf(key, sizeof(key), "e/%d/k%d", i % 3, i);
        fake_cluster_delete(w->cluster, key);
    }
    fake_cluster_delete(w->cluster, "d/");
    fake_cluster_put(w->cluster, "d/", "");
    assert_int_equal(fs_rename(w->fs, &w->who, 1, "other", 1, "e", false), 0);
    world_free(w);
}

static int64_t mtime_ns_of(struct world *w, const char *path)
{
    struct stat st;
    uint64_t id;

    assert_int_equal(find(w, path, &id), 0);
    assert_int_equal(fs_getattr(w->fs, &w->who, id, NULL, &st), 0);
    return st.st_mtim.tv_sec * 1000000000ll + st.st_mtim.tv_nsec;
}

static void a_move_goes_on_past_a_directory_in_which_something_was_made(void **state)
{
    unsigned n = 0, n_both = 0;
    int err;

    (void)state;
    do {
        struct world *w = world_new();
        struct fs_entry d, sub, x;
        int64_t time_ns = 0;

        assert_int_equal(fs_mkdir(w->fs, &w->who, 1, "d", 0755, &d), 0);
        assert_int_equal(fs_mkdir(w->fs, &w->who, d.id, "sub", 0755, &sub), 0);
        fake_cluster_fail(w->cluster, n++, -EHOSTDOWN, true, false);
        err = rename_d(w);
        fake_cluster_heal(w->cluster);
        if (err != 0 && fake_cluster_get(w->cluster, "d/sub/", NULL) &&
            fake_cluster_get(w->cluster, "e/sub/", NULL)) {
            n_both++;
            assert_int_equal(find(w, "e/sub", &sub.id), 0);
            assert_int_equal(fs_symlink(w->fs, &w->who, "to", sub.id, "x", &x), 0);
            (void)fake_cluster_run_delayed(w->cluster);
            time_ns = mtime_ns_of(w, "e/sub");
        }
        if (err != 0)
            assert_int_equal(rename_d(w), 0);
        assert_false(fake_cluster_get(w->cluster, "d/sub/", NULL));
        assert_true(mtime_ns_of(w, "e/sub") >= time_ns);
        world_free(w);
    } while (err != 0);
    assert_true(n_both > 0);
}

static void what_others_stored_in_an_unfinished_move_is_not_replaced(void **state)
{
    char old[32], new[32], value[32];
    struct world *w = interrupted(MID_MOVE);
    int at = -1;

    (void)state;
    for (int i = 0; i < N_KEYS && at < 0; i++) {
        snprintf(old, sizeof(old), "d/%d/k%d", i % 3, i);
        snprintf(new, sizeof(new), "e/%d/k%d", i % 3, i);
        snprintf(value, sizeof(value), "v%d", i);
        if (fake_cluster_get(w->cluster, old, NULL))
            at = i;
    }
    assert_true(at >= 0);
    fake_cluster_put(w->cluster, new, "theirs");
    assert_int_equal(rename_d(w), -ENOTEMPTY);
    assert_stored(w, old, value);
    assert_stored(w, new, "theirs");
    assert_int_equal(fake_cluster_n_live(w->cluster), N_KEYS + 3);
    fake_cluster_delete(w->cluster, new);
    assert_int_equal(rename_d(w), 0);
    assert_stored(w, new, value);
    world_free(w);
}

/* Two mounts move one file to two names: exactly one has it, and the other was told. */
static void of_two_who_move_one_file_exactly_one_gets_it(void **state)
{
    unsigned n_calls;

    (void)state;
    for (unsigned n = 0;; n++) {
        struct world *w = world_new();
        int err;

        put_old(w);
        n_calls = fake_cluster_n_calls(w->cluster);
        fake_cluster_meddle(w->cluster, n, "f", NULL); /* the other was faster */
        err = rename_f(w);
        n_calls = fake_cluster_n_calls(w->cluster) - n_calls;
        assert_int_equal(err, n < n_calls ? -ENOENT : 0);
        assert_int_equal(fake_cluster_n_live(w->cluster), err == 0);
        world_free(w);
        if (err == 0)
            break;
    }
}

static void a_move_copies_again_what_was_written_meanwhile(void **state)
{
    struct world *w = world_new();
    unsigned n_calls;

    (void)state;
    put_old(w);
    n_calls = fake_cluster_n_calls(w->cluster);
    assert_int_equal(rename_f(w), 0);
    n_calls = fake_cluster_n_calls(w->cluster) - n_calls;
    fake_cluster_delete(w->cluster, "g");
    put_old(w);
    fake_cluster_meddle(w->cluster, n_calls - 1, "f", "newer"); /* so it is copied again */
    assert_int_equal(rename_f(w), 0);
    assert_stored(w, "g", "newer");
    world_free(w);
}

/* --- directories
 * --------------------------------------------------------------------------------------- */

static void a_directory_hides_the_file_of_its_name_across_pages(void **state)
{
    struct world *w = world_new();
    struct buf names = {0};
    char key[32];
    unsigned n = 0;

    (void)state;
    fake_cluster_put(w->cluster, "a", "file");
    for (int i = 0; i < 2500; i++) { /* between "a" and "a/", over more than one page */
        snprintf(key, sizeof(key), "a-%04d", i);
        fake_cluster_put(w->cluster, key, "");
    }
    fake_cluster_put(w->cluster, "a/x", "in");
    assert_int_equal(list_dir(w, "", &names), 0);
    for (const char *p = (const char *)names.data; *p != 0; p++)
        n += *p == ' ';
    assert_int_equal(n, 2501);
    assert_non_null(strstr((const char *)names.data, "a-2499 a "));
    assert_int_equal(list_dir(w, "a", &names), 0);
    assert_string_equal((const char *)names.data, "%00key x ");
    buf_fini(&names);
    world_free(w);
}

static void offsets_stay_while_entries_come_and_go(void **state)
{
    struct world *w = world_new();
    struct dir_handle *d;
    struct fs_dirent e, again;

    (void)state;
    prepare_dir(w);
    assert_int_equal(fs_opendir(w->fs, &w->who, 1, &d), 0);
    assert_int_equal(fs_readdir(w->fs, &w->who, d, 0, true, &e), 1);
    assert_int_equal(fs_readdir(w->fs, &w->who, d, 2, true, &e), 1);
    assert_string_equal(e.name, "d");
    fake_cluster_put(w->cluster, "c", "before it");
    assert_int_equal(fs_readdir(w->fs, &w->who, d, 2, true, &again), 1);
    assert_string_equal(again.name, "d");
    assert_int_equal(fs_readdir(w->fs, &w->who, d, again.next_off, true, &again), 0);
    assert_int_equal(fs_readdir(w->fs, &w->who, d, 0, true, &again), 1); /* rewinddir */
    assert_int_equal(fs_readdir(w->fs, &w->who, d, 2, true, &again), 1);
    assert_string_equal(again.name, "c");
    fs_releasedir(w->fs, d);
    world_free(w);
}

static void a_directory_in_which_something_is_made_while_it_is_removed_stays(void **state)
{
    bool removed = false;

    (void)state;
    for (unsigned n = 0; !removed; n++) {
        struct world *w = world_new();
        struct stat before, after;
        uint64_t id;
        int err;

        assert_int_equal(fs_mkdir(w->fs, &w->who, 1, "d", 0750, &(struct fs_entry){0}), 0);
        assert_int_equal(find(w, "d", &id), 0);
        assert_int_equal(fs_getattr(w->fs, &w->who, id, NULL, &before), 0);
        fake_cluster_meddle(w->cluster, n, "d/new", "theirs");
        err = fs_rmdir(w->fs, &w->who, 1, "d");
        removed = fake_cluster_n_live(w->cluster) == 0;
        assert_int_equal(err, removed ? 0 : -ENOTEMPTY);
        if (!removed) {
            assert_stored(w, "d/new", "theirs");
            assert_int_equal(find(w, "d", &id), 0);
            assert_int_equal(fs_getattr(w->fs, &w->who, id, NULL, &after), 0);
            assert_int_equal(after.st_mode, S_IFDIR | 0750);
            assert_true(after.st_ino == before.st_ino);
        }
        world_free(w);
    }
}

static void a_stopped_caller_ends_with_eintr(void **state)
{
    struct world *w = world_new();
    uint64_t id;

    (void)state;
    put_old(w);
    caller_stop(&w->who);
    assert_int_equal(find(w, "f", &id), -EINTR);
    world_free(w);
}

/* Reads all of an open file, and ends it. */
static void assert_reads(struct world *w, struct handle *h, const char *want)
{
    struct value v = {0};

    assert_int_equal(fs_read(w->fs, &w->who, h, 0, 4096, &v), 0);
    assert_true(span_eq(value_span(v), span_str(want)));
    value_fini(&v);
}

/* The feed tells that another mount has stored it. */
static void put_elsewhere(struct world *w, const char *key, const char *value)
{
    fake_cluster_put(w->cluster, key, value);
    follow_changed(fs_follow(w->fs), span_str(key),
                   (struct ballot){.counter = UINT64_MAX, .proposer = 1}, FEED_PUT);
}

static void an_open_file_follows_what_only_grows_and_nothing_else(void **state)
{
    struct world *w = world_new();
    struct handle *h;
    uint64_t id;

    (void)state;
    fake_cluster_put(w->cluster, "f", "one");
    assert_int_equal(find(w, "f", &id), 0);
    assert_int_equal(fs_open(w->fs, &w->who, id, O_RDONLY, &h), 0);
    put_elsewhere(w, "f", "one two");
    assert_reads(w, h, "one two");
    put_elsewhere(w, "f", "other than that");
    assert_reads(w, h, "one two");
    put_elsewhere(w, "f", "one");
    assert_reads(w, h, "one two");
    /* It grows when it is looked at, and is another when it is fetched. */
    put_elsewhere(w, "f", "one two three");
    fake_cluster_meddle(w->cluster, 1, "f", "x");
    assert_reads(w, h, "one two");
    assert_int_equal(fs_release(w->fs, &w->who, h), 0);
    world_free(w);
}

static uint64_t size_of(struct world *w, uint64_t id, struct handle *h)
{
    struct stat st;

    assert_int_equal(fs_getattr(w->fs, &w->who, id, h, &st), 0);
    return (uint64_t)st.st_size;
}

/* The kernel asks for the size before it reads on at the end. */
static void the_size_of_an_open_file_follows_what_only_grows(void **state)
{
    struct world *w = world_new();
    struct handle *h;
    uint64_t id;

    (void)state;
    fake_cluster_put(w->cluster, "f", "one");
    assert_int_equal(find(w, "f", &id), 0);
    assert_int_equal(fs_open(w->fs, &w->who, id, O_RDONLY, &h), 0);
    assert_int_equal(size_of(w, id, h), 3);
    put_elsewhere(w, "f", "one two");
    assert_int_equal(size_of(w, id, h), 7);
    assert_reads(w, h, "one two");
    put_elsewhere(w, "f", "other than that");
    assert_int_equal(size_of(w, id, h), 7);
    assert_int_equal(fs_release(w->fs, &w->who, h), 0);
    world_free(w);
}

static bool pages_hold(struct world *w, uint64_t id)
{
    struct handle *h;
    struct value v;
    bool hold;

    assert_int_equal(fs_open(w->fs, &w->who, id, O_RDONLY, &h), 0);
    hold = fs_pages_hold(w->fs, h);
    assert_int_equal(fs_read(w->fs, &w->who, h, 0, 10, &v), 0);
    value_fini(&v);
    assert_int_equal(fs_release(w->fs, &w->who, h), 0);
    return hold;
}

static void forget_nothing(void *arg, uint64_t id)
{
    (void)arg;
    (void)id;
}

static void pages_that_could_not_be_written_back_are_not_kept(void **state)
{
    struct world *w = world_new();
    struct handle *h;
    uint64_t id;

    (void)state;
    follow_set_kernel(fs_follow(w->fs), &(struct follow_kernel){.forget = forget_nothing});
    fake_cluster_put(w->cluster, "f", "one");
    assert_int_equal(find(w, "f", &id), 0);
    assert_false(pages_hold(w, id));
    assert_true(pages_hold(w, id));
    assert_int_equal(fs_open(w->fs, &w->who, id, O_RDWR, &h), 0);
    assert_int_equal(fs_write(w->fs, &w->who, h, VALUE_MAX, span_str("x"), true), -EFBIG);
    assert_int_equal(fs_release(w->fs, &w->who, h), 0);
    assert_false(pages_hold(w, id));
    assert_true(pages_hold(w, id));
    world_free(w);
}

/* Reads the directory as `ls` does: each entry is told to the kernel. *d stays open. */
static void list_for_kernel(struct world *w, struct caller *who, struct dir_handle *d)
{
    struct fs_dirent e = {.next_off = 0};
    struct fs_entry told;

    while (fs_readdir(w->fs, who, d, e.next_off, true, &e) > 0) {
        if (!e.dots)
            assert_int_equal(fs_readdir_remember(w->fs, who, d, &told), 0);
    }
}

static void an_open_after_a_listing_asks_the_cluster(void **state)
{
    struct world *w = world_new();
    struct dir_handle *d;
    struct fs_entry e;
    struct handle *h;
    struct caller who;
    unsigned n;

    (void)state;
    caller_begin(w->callers, CALL_NONE, 10, 20, 77, &who);
    fake_cluster_put(w->cluster, "d/f", "");
    assert_int_equal(fs_lookup(w->fs, &who, 1, "d", &e), 0);
    assert_int_equal(fs_opendir(w->fs, &who, e.id, &d), 0);
    list_for_kernel(w, &who, d);
    fake_cluster_put(w->cluster, "d/f", "stored meanwhile");
    n = fake_cluster_n_calls(w->cluster);
    assert_int_equal(fs_lookup(w->fs, &who, e.id, "f", &e), 0);
    assert_int_equal(fake_cluster_n_calls(w->cluster), n); /* the entry served it */
    assert_int_equal(fs_open(w->fs, &who, e.id, O_RDONLY, &h), 0);
    assert_reads(w, h, "stored meanwhile");
    assert_int_equal(fs_release(w->fs, &who, h), 0);
    fs_releasedir(w->fs, d);
    caller_end(&who);
    world_free(w);
}

/* A world in which what is read is kept, with a directory that the kernel knows by its name. */
static struct world *world_with_known_dir(uint64_t *dir)
{
    struct world *w = world_new();
    struct fs_entry e;

    fake_cluster_follow(w->cluster);
    follow_live(fs_follow(w->fs), true);
    fake_cluster_put(w->cluster, "d/", "");
    fake_cluster_put(w->cluster, "d/f", "x");
    fake_cluster_put(w->cluster, "e", "y");
    assert_int_equal(fs_lookup(w->fs, &w->who, 1, "d", &e), 0);
    assert_true(e.name_holds);
    *dir = e.id;
    return w;
}

static void delete_elsewhere(struct world *w, const char *key)
{
    fake_cluster_delete(w->cluster, key);
    follow_changed(fs_follow(w->fs), span_str(key),
                   (struct ballot){.counter = UINT64_MAX, .proposer = 1}, FEED_DELETE);
}

static void in_a_directory_that_another_mount_removed_nothing_is_made_found_or_removed(void **state)
{
    uint64_t dir;
    struct world *w = world_with_known_dir(&dir);
    struct caller *who = &w->who;
    struct fs_entry e;
    struct handle *h;

    (void)state;
    delete_elsewhere(w, "d/f");
    delete_elsewhere(w, "d/");
    assert_int_equal(fs_lookup(w->fs, who, dir, "f", &e), -ENOENT);
    /* Upon which the kernel walks the path again. */
    assert_int_equal(fs_mkdir(w->fs, who, dir, "n", 0755, &e), -ESTALE);
    assert_int_equal(fs_mknod(w->fs, who, dir, "n", 0644, 0, &e), -ESTALE);
    assert_int_equal(fs_symlink(w->fs, who, "to", dir, "n", &e), -ESTALE);
    assert_int_equal(fs_create(w->fs, who, dir, "n", 0644, O_WRONLY, &e, &h), -ESTALE);
    assert_int_equal(fs_rename(w->fs, who, 1, "e", dir, "n", false), -ESTALE);
    assert_int_equal(fs_unlink(w->fs, who, dir, "f"), -ESTALE);
    assert_int_equal(fs_rmdir(w->fs, who, dir, "f"), -ESTALE);
    assert_int_equal(fake_cluster_n_live(w->cluster), 1);
    assert_stored(w, "e", "y");
    world_free(w);
}

static void
what_is_looked_for_in_a_directory_that_something_else_replaced_is_looked_for_again(void **state)
{
    uint64_t dir;
    struct world *w = world_with_known_dir(&dir);
    struct fs_entry e;

    (void)state;
    fake_cluster_put(w->cluster, "d/sub/", "");
    assert_int_equal(fs_lookup(w->fs, &w->who, dir, "sub", &e), 0);
    delete_elsewhere(w, "d/sub/");
    delete_elsewhere(w, "d/f");
    delete_elsewhere(w, "d/");
    put_elsewhere(w, "d", "where to");
    assert_int_equal(fs_lookup(w->fs, &w->who, dir, "f", &e), -ESTALE);
    assert_int_equal(fs_lookup(w->fs, &w->who, e.id, "f", &e), -ESTALE);
    world_free(w);
}

static void what_is_looked_for_in_a_directory_known_to_be_there_costs_one_question(void **state)
{
    uint64_t dir;
    struct world *w = world_with_known_dir(&dir);
    struct fs_entry e;
    unsigned n = fake_cluster_n_calls(w->cluster);

    (void)state;
    assert_int_equal(fs_lookup(w->fs, &w->who, dir, "n", &e), -ENOENT);
    assert_int_equal(fake_cluster_n_calls(w->cluster), n + 1);
    assert_int_equal(fs_mknod(w->fs, &w->who, dir, "n", 0644, 0, &e), 0);
    assert_int_equal(fake_cluster_n_calls(w->cluster), n + 2);
    /* It may have gone, and has not: that is asked once. */
    fake_cluster_put(w->cluster, "d/", "");
    follow_changed(fs_follow(w->fs), span_str("d/"), (struct ballot){.counter = 5, .proposer = 1},
                   FEED_PUT); /* the fifth store */
    n = fake_cluster_n_calls(w->cluster);
    assert_int_equal(fs_lookup(w->fs, &w->who, dir, "m", &e), -ENOENT);
    assert_int_equal(fs_lookup(w->fs, &w->who, dir, "m", &e), -ENOENT);
    assert_int_equal(fake_cluster_n_calls(w->cluster), n + 3);
    world_free(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_open_file_follows_what_only_grows_and_nothing_else),
        cmocka_unit_test(the_size_of_an_open_file_follows_what_only_grows),
        cmocka_unit_test(pages_that_could_not_be_written_back_are_not_kept),
        cmocka_unit_test(an_open_after_a_listing_asks_the_cluster),
        cmocka_unit_test(
            in_a_directory_that_another_mount_removed_nothing_is_made_found_or_removed),
        cmocka_unit_test(
            what_is_looked_for_in_a_directory_that_something_else_replaced_is_looked_for_again),
        cmocka_unit_test(what_is_looked_for_in_a_directory_known_to_be_there_costs_one_question),
        cmocka_unit_test(an_overwrite_leaves_the_old_or_the_new_value_after_any_failure),
        cmocka_unit_test(a_read_gives_the_value_or_the_clusters_error),
        cmocka_unit_test(a_listing_is_whole_or_an_error),
        cmocka_unit_test(a_failed_flush_keeps_the_data_for_the_next),
        cmocka_unit_test(what_failed_at_close_is_not_stored_behind_the_programs_back),
        cmocka_unit_test(an_append_of_unknown_outcome_is_not_appended_twice),
        cmocka_unit_test(a_change_of_a_file_that_another_mount_removed_does_not_bring_it_back),
        cmocka_unit_test(a_new_file_is_stored_once_with_its_owner_and_mode),
        cmocka_unit_test(an_extended_attribute_of_a_new_file_leaves_its_owner_and_mode),
        cmocka_unit_test(a_file_is_whole_under_one_name_or_both_after_a_rename_fails_anywhere),
        cmocka_unit_test(a_rename_copies_once_also_when_its_file_is_settled_meanwhile),
        cmocka_unit_test(a_directory_move_that_fails_anywhere_leaves_each_key_whole_and_completes),
        cmocka_unit_test(a_move_into_what_it_had_begun_to_make_completes_it),
        cmocka_unit_test(a_directory_that_is_not_empty_is_moved_onto_only_by_what_began_it),
        cmocka_unit_test(a_move_goes_on_past_a_directory_in_which_something_was_made),
        cmocka_unit_test(what_others_stored_in_an_unfinished_move_is_not_replaced),
        cmocka_unit_test(of_two_who_move_one_file_exactly_one_gets_it),
        cmocka_unit_test(a_move_copies_again_what_was_written_meanwhile),
        cmocka_unit_test(a_directory_hides_the_file_of_its_name_across_pages),
        cmocka_unit_test(offsets_stay_while_entries_come_and_go),
        cmocka_unit_test(a_directory_in_which_something_is_made_while_it_is_removed_stays),
        cmocka_unit_test(a_stopped_caller_ends_with_eintr),
    };

    log_open("test_fs_core", LOG_LEVEL_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

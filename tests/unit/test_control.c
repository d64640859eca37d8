/* test_control.c - the control directory without a mount: names, texts, and what is refused. */
#include "fs/control.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/lib/fake_cluster.h"

struct world {
    struct cluster *cluster;
    struct callers *callers;
    struct metrics *metrics;
    struct fs *fs;
    struct control *control;
    struct caller who;
};

/* --- fixture ---------------------------------------------------------------------------------- */

static struct world *world_new(void)
{
    struct world *w = calloc(1, sizeof(*w));
    struct control_opts opts;

    assert_non_null(w);
    w->cluster = fake_cluster_new(1 << 20);
    w->metrics = metrics_new();
    assert_int_equal(callers_new(&w->callers), 0);
    assert_int_equal(fs_new(&(struct fs_opts){.cluster = w->cluster}, &w->fs), 0);
    opts = (struct control_opts){.fs = w->fs,
                                 .cluster = w->cluster,
                                 .callers = w->callers,
                                 .metrics = w->metrics,
                                 .mountpoint = "/mnt"};
    assert_int_equal(control_new(&opts, &w->control), 0);
    caller_begin(w->callers, CALL_OPEN, 10, 20, 0, &w->who);
    return w;
}

static void world_free(struct world *w)
{
    caller_end(&w->who);
    control_free(w->control);
    fs_free(w->fs);
    callers_free(w->callers);
    metrics_free(w->metrics);
    fake_cluster_free(w->cluster);
    free(w);
}

/* --- helpers ---------------------------------------------------------------------------------- */

/* Through .kvfs along the names of path; the error of the last. */
static int find(struct world *w, const char *path, struct fs_entry *e)
{
    char name[300];
    int err = control_lookup(w->control, &w->who, 1, ".kvfs", e);

    while (*path != 0 && err == 0) {
        size_t n = strcspn(path, "/");

        memcpy(name, path, n);
        name[n] = 0;
        path += n + (path[n] == '/');
        err = control_lookup(w->control, &w->who, e->id, name, e);
    }
    return err;
}

/* What stands in the file, with a NUL; its size is as told, unless that is 0. */
static char *text_of(struct world *w, const char *path)
{
    struct fs_entry e;
    struct buf text = {0};

    assert_int_equal(find(w, path, &e), 0);
    assert_true(S_ISREG(e.st.st_mode));
    assert_int_equal(control_open(w->control, e.id, O_RDONLY, &text), 0);
    assert_true(e.st.st_size == 0 || (size_t)e.st.st_size == text.len);
    buf_u8(&text, 0);
    return (char *)text.data;
}

static void assert_text_has(struct world *w, const char *path, const char *part)
{
    char *text = text_of(w, path);

    if (strstr(text, part) == NULL)
        fail_msg("%s has no %s: %s", path, part, text);
    free(text);
}

/* --- tests ------------------------------------------------------------------------------------ */

static void the_directory_lists_what_it_has(void **state)
{
    static const char *const want[] = {".",       "..",     "version", "status",
                                       "metrics", "config", "replicas"};
    struct world *w = world_new();
    struct fs_dirent d;
    struct fs_entry e, again;
    unsigned n = 0;

    (void)state;
    assert_int_equal(find(w, "", &e), 0);
    assert_int_equal(find(w, "replicas", &again), 0);
    assert_int_not_equal(e.st.st_ino, again.st.st_ino);
    assert_true(S_ISDIR(e.st.st_mode) && control_has(e.id));
    for (uint64_t off = 0; control_readdir(w->control, e.id, off, &d) > 0; off = d.next_off) {
        assert_true(n < sizeof(want) / sizeof(want[0]));
        assert_string_equal(d.name, want[n++]);
        if (!d.dots) {
            assert_int_equal(find(w, d.name, &again), 0);
            assert_int_equal(again.st.st_ino, d.st.st_ino);
        }
    }
    assert_int_equal(n, sizeof(want) / sizeof(want[0]));
    assert_int_equal(find(w, "nothing", &e), -ENOENT);
    assert_int_equal(find(w, "status/x", &e), -ENOTDIR);
    world_free(w);
}

static void the_texts_tell_of_the_mount(void **state)
{
    struct world *w = world_new();

    (void)state;
    assert_text_has(w, "version", KVFS_VERSION "\n");
    assert_text_has(w, "status", "\"mountpoint\":\"/mnt\"");
    assert_text_has(w, "status", "\"calls\":[{\"call\":\"open\"");
    assert_text_has(w, "status", "\"n_dirty\":0");
    assert_text_has(w, "metrics", "kvfs_calls_in_flight 1\n");
    assert_text_has(w, "config", "\"replication_factor\":");
    world_free(w);
}

static void files_that_are_not_stored_are_told(void **state)
{
    struct world *w = world_new();
    struct fs_entry e;
    struct handle *h;

    (void)state;
    assert_int_equal(fs_create(w->fs, &w->who, 1, "f", 0644, O_WRONLY | O_CREAT, &e, &h), 0);
    assert_int_equal(fs_write(w->fs, &w->who, h, 0, span_str("12345"), false), 0);
    assert_text_has(w, "status",
                    "\"dirty\":[{\"key\":\"f\",\"size\":5}],\"n_dirty\":1,\"dirty_bytes\":5");
    assert_text_has(w, "metrics", "kvfs_dirty_bytes 5\n");
    fake_cluster_fail(w->cluster, 0, -EHOSTDOWN, true, false);
    assert_int_equal(fs_flush(w->fs, &w->who, h), -EHOSTDOWN);
    assert_text_has(w, "status", "\"last_error\":\"Host is down\"");
    fake_cluster_heal(w->cluster);
    assert_int_equal(fs_flush(w->fs, &w->who, h), 0);
    assert_text_has(w, "status", "\"dirty\":[],\"n_dirty\":0,\"dirty_bytes\":0,\"n_open\":1");
    fs_release(w->fs, &w->who, h);
    world_free(w);
}

static void replicas_takes_the_paths_of_files_and_keys_that_were_never_stored(void **state)
{
    struct world *w = world_new();
    struct fs_entry e;

    (void)state;
    fake_cluster_put(w->cluster, "a/b", "1");
    fake_cluster_put(w->cluster, "x//y", "1");
    assert_text_has(w, "replicas/user:42", "{\"key\":\"user:42\",\"replicas\":[{\"id\":");
    assert_text_has(w, "replicas/a/b", "{\"key\":\"a/b\",");
    assert_text_has(w, "replicas/a/%00key", "{\"key\":\"a\",");
    assert_text_has(w, "replicas/x/%00/y", "{\"key\":\"x//y\",");
    assert_text_has(w, "replicas/%2E", "{\"key\":\".\",");
    assert_text_has(w, "replicas/%2Ekvfs", "{\"key\":\".kvfs\",");
    assert_int_equal(find(w, "replicas/a", &e), 0);
    assert_true(S_ISDIR(e.st.st_mode));
    assert_int_equal(find(w, "replicas/.kvfs", &e), -ENOENT); /* the name of no key */
    assert_int_equal(find(w, "replicas/c/d", &e), -ENOTDIR);  /* c is no directory */
    world_free(w);
}

static void what_does_not_need_the_cluster_does_not_ask_it(void **state)
{
    static const char *const paths[] = {"version", "status", "metrics", "config"};
    struct world *w = world_new();

    (void)state;
    fake_cluster_fail(w->cluster, 0, -EHOSTDOWN, true, false);
    for (unsigned i = 0; i < sizeof(paths) / sizeof(paths[0]); i++)
        free(text_of(w, paths[i]));
    world_free(w);
}

/* Through `c` leads the way to c/d and to c itself, as the kernel would go. */
static void what_nobody_knows_is_what_is_made_of_it(void **state)
{
    struct world *w = world_new();
    struct fs_entry c, d, again;

    (void)state;
    fake_cluster_fail(w->cluster, 0, -EHOSTDOWN, true, false);
    assert_int_equal(find(w, "replicas/c/d", &d), 0);
    assert_int_equal(control_opendir(w->control, &w->who, d.id, O_RDONLY), -ESTALE);
    assert_text_has(w, "replicas/c/d", "{\"key\":\"c/d\",");
    assert_int_equal(find(w, "replicas/c", &c), 0);
    assert_true(S_ISDIR(c.st.st_mode));
    assert_int_equal(control_opendir(w->control, &w->who, c.id, O_RDONLY), -ESTALE);
    assert_text_has(w, "replicas/c", "{\"key\":\"c\",");

    fake_cluster_heal(w->cluster);
    fake_cluster_put(w->cluster, "c/d", "1");
    assert_int_equal(find(w, "replicas/c", &again), 0); /* now it is known */
    assert_true(S_ISDIR(again.st.st_mode));
    assert_int_equal(control_opendir(w->control, &w->who, again.id, O_RDONLY), 0);
    assert_int_equal(find(w, "replicas", &again), 0);
    assert_int_equal(control_opendir(w->control, &w->who, again.id, O_RDONLY), 0);
    world_free(w);
}

static void ids_last_as_long_as_the_kernel_remembers_them(void **state)
{
    struct world *w = world_new();
    struct fs_entry a, b;
    struct buf text = {0};

    (void)state;
    assert_int_equal(find(w, "replicas/k", &a), 0);
    assert_int_equal(find(w, "replicas/k", &b), 0);
    assert_int_equal(a.id, b.id);
    control_forget(w->control, a.id, 1);
    assert_int_equal(control_getattr(w->control, a.id, &a.st), 0);
    control_forget(w->control, a.id, 1);
    assert_int_equal(control_getattr(w->control, a.id, &a.st), -ESTALE);
    assert_int_equal(control_open(w->control, a.id, O_RDONLY, &text), -ESTALE);
    assert_int_equal(find(w, "", &a), 0);
    control_forget(w->control, a.id, 1000); /* what is always there is not counted */
    assert_int_equal(find(w, "status", &a), 0);
    world_free(w);
}

static void nothing_can_be_changed(void **state)
{
    struct world *w = world_new();
    struct fs_entry top, e;
    struct buf text = {0};
    struct handle *h;

    (void)state;
    assert_int_equal(find(w, "", &top), 0);
    assert_int_equal(find(w, "status", &e), 0);
    assert_int_equal(control_open(w->control, e.id, O_WRONLY, &text), -EROFS);
    assert_int_equal(control_open(w->control, e.id, O_RDWR, &text), -EROFS);
    assert_int_equal(control_open(w->control, e.id, O_RDONLY | O_TRUNC, &text), -EROFS);
    assert_int_equal(control_open(w->control, top.id, O_RDONLY, &text), -EISDIR);
    assert_int_equal(control_access(w->control, e.id, W_OK), -EROFS);
    assert_int_equal(control_access(w->control, e.id, X_OK), -EACCES);
    assert_int_equal(control_access(w->control, e.id, R_OK), 0);

    assert_int_equal(fs_create(w->fs, &w->who, top.id, "f", 0644, O_WRONLY, &e, &h), -EROFS);
    assert_int_equal(fs_mkdir(w->fs, &w->who, top.id, "d", 0755, &e), -EROFS);
    assert_int_equal(fs_unlink(w->fs, &w->who, top.id, "status"), -EROFS);
    assert_int_equal(fs_rmdir(w->fs, &w->who, 1, ".kvfs"), -EROFS);
    assert_int_equal(fs_rename(w->fs, &w->who, 1, ".kvfs", 1, "x", false), -EROFS);
    assert_int_equal(fs_mkdir(w->fs, &w->who, 1, "x", 0755, &e), 0);
    assert_int_equal(fs_rename(w->fs, &w->who, 1, "x", 1, ".kvfs", false), -EROFS);
    assert_int_equal(fs_rename(w->fs, &w->who, 1, "x", top.id, "x", false), -EROFS);
    assert_int_equal(fs_mkdir(w->fs, &w->who, e.id, ".kvfs", 0755, &e),
                     0); /* elsewhere it is free */
    world_free(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_directory_lists_what_it_has),
        cmocka_unit_test(the_texts_tell_of_the_mount),
        cmocka_unit_test(files_that_are_not_stored_are_told),
        cmocka_unit_test(replicas_takes_the_paths_of_files_and_keys_that_were_never_stored),
        cmocka_unit_test(what_does_not_need_the_cluster_does_not_ask_it),
        cmocka_unit_test(what_nobody_knows_is_what_is_made_of_it),
        cmocka_unit_test(ids_last_as_long_as_the_kernel_remembers_them),
        cmocka_unit_test(nothing_can_be_changed),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

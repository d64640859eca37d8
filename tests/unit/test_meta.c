/*
 * test_meta.c - attributes through the core of the mount: what is kept, what goes, and whose they
 * are when two mounts make one name. Two mounts over one cluster in memory.
 */
#include "tests/lib/mounts.h"

#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#define OLD_NS 1000
#define KEEP UINT64_MAX /* the size */

/* --- helpers ---------------------------------------------------------------------------------- */

static struct handle *create(struct mounted *m, uint32_t mode, int flags, uint64_t *id)
{
    return mounted_create(m, "f", mode, flags, id);
}

static struct handle *open_it(struct mounted *m, int flags, uint64_t *id)
{
    return mounted_open(m, "f", flags, id);
}

static void put(struct mounted *m, struct caller *who, struct handle *h, const char *text)
{
    assert_int_equal(fs_write(m->fs, who, h, 0, span_str(text), false), 0);
}

static void change(struct mounted *m, uint64_t id, struct handle *h, struct attr_change ch)
{
    struct stat st;

    assert_int_equal(fs_setattr(m->fs, &m->root, id, h, &ch, KEEP, &st), 0);
}

static struct stat look(struct mounted *m)
{
    struct fs_entry e;

    assert_int_equal(fs_lookup(m->fs, &m->root, 1, "f", &e), 0);
    return e.st;
}

/* A stored file of this mode, last written long ago. */
static void stored(struct world *w, uint32_t mode)
{
    uint64_t id;
    struct handle *h = create(&w->a, mode, 0, &id);

    put(&w->a, &w->a.root, h, "stored");
    mounted_close(&w->a, h);
    change(&w->a, id, NULL, (struct attr_change){.set = CHANGE_MTIME, .mtime_ns = OLD_NS});
}

static void assert_holds(struct world *w, const char *want)
{
    struct span value;

    assert_true(fake_cluster_get(w->cluster, "f", &value));
    assert_true(span_eq(value, span_str(want)));
}

/* --- tests ------------------------------------------------------------------------------------ */

static void a_change_of_attributes_leaves_the_time_of_what_is_not_stored_yet(void **state)
{
    struct world *w = *state;
    struct handle *h;
    uint64_t id;

    stored(w, 0644);
    h = open_it(&w->a, O_RDWR, &id);
    put(&w->a, &w->a.root, h, "new");
    change(&w->a, id, h, (struct attr_change){.set = CHANGE_MODE, .mode = 0600});
    assert_int_equal(fs_setxattr(w->a.fs, &w->a.root, id, "user.x", span_str("y"), 0), 0);
    assert_true(look(&w->a).st_mtim.tv_sec > 0);
    mounted_close(&w->a, h);
    assert_true(look(&w->b).st_mtim.tv_sec > 0);
    assert_int_equal(look(&w->b).st_mode, S_IFREG | 0600);
}

static void who_is_not_root_takes_the_privileges_of_what_he_changes(void **state)
{
    static const int flags[] = {O_RDWR, O_RDWR | O_APPEND};
    struct world *w = *state;

    for (unsigned i = 0; i < 2; i++) {
        struct handle *h, *other;
        uint64_t id;

        stored(w, 0644);
        h = open_it(&w->a, flags[i], &id);
        other = open_it(&w->b, O_RDONLY, &id);
        change(&w->b, id, NULL, (struct attr_change){.set = CHANGE_MODE, .mode = 06755});
        mounted_close(&w->b, other);
        put(&w->a, &w->a.user, h, "x");
        mounted_close(&w->a, h);
        assert_int_equal(look(&w->b).st_mode, S_IFREG | 0755);
    }
}

static void a_mode_set_behind_a_write_stays(void **state)
{
    struct world *w = *state;
    struct handle *h;
    uint64_t id;

    stored(w, 04755);
    h = open_it(&w->a, O_RDWR, &id);
    put(&w->a, &w->a.user, h, "x");
    change(&w->a, id, h, (struct attr_change){.set = CHANGE_MODE, .mode = 04711});
    mounted_close(&w->a, h);
    assert_int_equal(look(&w->b).st_mode, S_IFREG | 04711);
}

static void who_creates_a_name_first_decides_on_its_attributes(void **state)
{
    struct world *w = *state;
    uint64_t a, b;
    struct handle *first = create(&w->a, 0600, 0, &a), *then = create(&w->b, 0666, 0, &b);
    uint64_t ino;

    put(&w->a, &w->a.root, first, "1");
    mounted_close(&w->a, first);
    ino = look(&w->a).st_ino;
    put(&w->b, &w->b.root, then, "2");
    mounted_close(&w->b, then);
    assert_holds(w, "2");
    assert_int_equal(look(&w->b).st_mode, S_IFREG | 0600);
    assert_true(look(&w->b).st_ino == ino);
}

static void a_chmod_of_who_creates_it_later_holds_all_the_same(void **state)
{
    struct world *w = *state;
    uint64_t a, b;
    struct handle *first = create(&w->a, 0666, 0, &a), *then = create(&w->b, 0666, 0, &b);

    put(&w->a, &w->a.root, first, "1");
    mounted_close(&w->a, first);
    change(&w->b, b, then, (struct attr_change){.set = CHANGE_MODE, .mode = 0600});
    mounted_close(&w->b, then); /* without a write: the other's contents stay */
    assert_holds(w, "1");
    assert_int_equal(look(&w->a).st_mode, S_IFREG | 0600);
    assert_int_equal(look(&w->b).st_size, 1);
}

static void what_o_excl_made_gets_its_attributes_with_the_first_store(void **state)
{
    struct world *w = *state;
    uint64_t id;
    struct handle *h = create(&w->a, 0666, O_EXCL, &id);
    const struct attr_change ch = {
        .set = CHANGE_MODE | CHANGE_UID | CHANGE_MTIME, .mode = 0640, .uid = 5, .mtime_ns = OLD_NS};

    put(&w->a, &w->a.root, h, "1");
    change(&w->a, id, h, ch);
    mounted_close(&w->a, h);
    assert_int_equal(look(&w->b).st_mode, S_IFREG | 0640);
    assert_int_equal(look(&w->b).st_uid, 5);
    assert_int_equal(look(&w->b).st_mtim.tv_nsec, OLD_NS);
}

struct meanwhile {
    struct mounted *m;
    struct handle *h;
    uint64_t id;
    pthread_t thread;
    bool joined;
};

static void *chmod_it(void *arg)
{
    struct meanwhile *w = arg;

    change(w->m, w->id, w->h, (struct attr_change){.set = CHANGE_MODE, .mode = 0600});
    return NULL;
}

/* It waits for the store, so it is another thread that does it. */
static void begin_chmod(void *arg)
{
    struct meanwhile *w = arg;

    assert_int_equal(pthread_create(&w->thread, NULL, chmod_it, w), 0);
    w->joined = ended_early(w->thread);
}

static void a_chmod_during_the_first_store_is_not_lost(void **state)
{
    struct world *w = *state;
    enum { NOTHING, APPENDED, WRITTEN, LOST, N }; /* the last: the creation, to the other mount */

    for (int what = NOTHING; what < N; what++) {
        struct meanwhile chmod = {.m = &w->a};
        struct handle *other;
        uint64_t id;

        chmod.h = create(&w->a, 0666, what == APPENDED ? O_APPEND : 0, &chmod.id);
        if (what == LOST) {
            other = create(&w->b, 0644, 0, &id);
            put(&w->b, &w->b.root, other, "theirs");
            mounted_close(&w->b, other);
        } else if (what != NOTHING) {
            put(&w->a, &w->a.root, chmod.h, "ours");
        }
        fake_cluster_meanwhile(w->cluster, begin_chmod, &chmod);
        assert_int_equal(fs_fsync(w->a.fs, &w->a.root, chmod.h), 0);
        if (!chmod.joined)
            assert_int_equal(pthread_join(chmod.thread, NULL), 0);
        mounted_close(&w->a, chmod.h);
        assert_holds(w, what == NOTHING ? "" : what == LOST ? "theirs" : "ours");
        assert_int_equal(look(&w->b).st_mode, S_IFREG | 0600);
        assert_int_equal(fs_unlink(w->a.fs, &w->a.root, 1, "f"), 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(
            a_change_of_attributes_leaves_the_time_of_what_is_not_stored_yet, mounts_setup,
            mounts_teardown),
        cmocka_unit_test_setup_teardown(who_is_not_root_takes_the_privileges_of_what_he_changes,
                                        mounts_setup, mounts_teardown),
        cmocka_unit_test_setup_teardown(a_mode_set_behind_a_write_stays, mounts_setup,
                                        mounts_teardown),
        cmocka_unit_test_setup_teardown(who_creates_a_name_first_decides_on_its_attributes,
                                        mounts_setup, mounts_teardown),
        cmocka_unit_test_setup_teardown(a_chmod_of_who_creates_it_later_holds_all_the_same,
                                        mounts_setup, mounts_teardown),
        cmocka_unit_test_setup_teardown(what_o_excl_made_gets_its_attributes_with_the_first_store,
                                        mounts_setup, mounts_teardown),
        cmocka_unit_test_setup_teardown(a_chmod_during_the_first_store_is_not_lost, mounts_setup,
                                        mounts_teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

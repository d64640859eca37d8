/* mounts.c - two mounts of one cluster in memory, without a kernel. */
#include "tests/lib/mounts.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <time.h>

#include <cmocka.h>

#define MOMENT_NS 20000000

static void mount_one(struct world *w, struct mounted *m)
{
    assert_int_equal(fs_new(&(struct fs_opts){.cluster = w->cluster}, &m->fs), 0);
    caller_begin(w->callers, CALL_NONE, 0, 0, 0, &m->root);
    caller_begin(w->callers, CALL_NONE, 10, 20, 0, &m->user);
}

int mounts_setup(void **state)
{
    struct world *w = calloc(1, sizeof(*w));

    assert_non_null(w);
    w->cluster = fake_cluster_new(MOUNTS_VALUE_MAX);
    assert_int_equal(callers_new(&w->callers), 0);
    mount_one(w, &w->a);
    mount_one(w, &w->b);
    *state = w;
    return 0;
}

static void unmount_one(struct mounted *m)
{
    caller_end(&m->root);
    caller_end(&m->user);
    fs_free(m->fs);
}

int mounts_teardown(void **state)
{
    struct world *w = *state;

    unmount_one(&w->a);
    unmount_one(&w->b);
    callers_free(w->callers);
    fake_cluster_free(w->cluster);
    free(w);
    return 0;
}

struct handle *mounted_create(struct mounted *m, const char *name, uint32_t mode, int flags,
                              uint64_t *id)
{
    struct fs_entry e;
    struct handle *h;

    assert_int_equal(fs_create(m->fs, &m->root, 1, name, mode, O_RDWR | O_CREAT | flags, &e, &h),
                     0);
    if (id != NULL)
        *id = e.id;
    return h;
}

struct handle *mounted_open(struct mounted *m, const char *name, int flags, uint64_t *id)
{
    struct fs_entry e;
    struct handle *h;

    assert_int_equal(fs_lookup(m->fs, &m->root, 1, name, &e), 0);
    assert_int_equal(fs_open(m->fs, &m->root, e.id, flags, &h), 0);
    if (id != NULL)
        *id = e.id;
    return h;
}

void mounted_write(struct mounted *m, struct handle *h, uint64_t off, const char *text)
{
    assert_int_equal(fs_write(m->fs, &m->root, h, off, span_str(text), false), 0);
}

void mounted_close(struct mounted *m, struct handle *h)
{
    assert_int_equal(fs_flush(m->fs, &m->root, h), 0);
    assert_int_equal(fs_release(m->fs, &m->root, h), 0);
}

void mounted_put(struct mounted *m, const char *name, const char *text)
{
    struct handle *h = mounted_create(m, name, 0644, O_TRUNC, NULL);

    mounted_write(m, h, 0, text);
    mounted_close(m, h);
}

bool ended_early(pthread_t thread)
{
    struct timespec until;

    (void)clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += MOMENT_NS;
    if (until.tv_nsec >= 1000000000) {
        until.tv_nsec -= 1000000000;
        until.tv_sec++;
    }
    return pthread_timedjoin_np(thread, NULL, &until) == 0;
}

/*
 * test_spool.c - blobs too large for memory are in a file that has its space before they are used,
 * and whatever call fails on the way, it is an error and nothing is lost or left.
 */
#include "common/spool.h"

#include <dirent.h>
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/limits.h"

#define LARGE ((size_t)MEMORY_BLOB_MAX + 100000)
#define SWEEP_MAX 50u

/* --- calls that fail -------------------------------------------------------------------------- */

void *__real_malloc(size_t size);
void *__wrap_malloc(size_t size);
void *__real_calloc(size_t n, size_t size);
void *__wrap_calloc(size_t n, size_t size);
void *__real_mmap64(void *at, size_t len, int prot, int flags, int fd, off_t off);
void *__wrap_mmap64(void *at, size_t len, int prot, int flags, int fd, off_t off);
void *__real_mremap(void *at, size_t old, size_t len, int flags);
void *__wrap_mremap(void *at, size_t old, size_t len, int flags);
int __real_posix_fallocate64(int fd, off_t off, off_t len);
int __wrap_posix_fallocate64(int fd, off_t off, off_t len);
ssize_t __real_pwrite64(int fd, const void *bytes, size_t n, off_t off);
ssize_t __wrap_pwrite64(int fd, const void *bytes, size_t n, off_t off);

static unsigned until_failure = UINT32_MAX;

static bool fails(void)
{
    return until_failure != UINT32_MAX && until_failure-- == 0;
}

void *__wrap_malloc(size_t size)
{
    return fails() ? NULL : __real_malloc(size);
}

void *__wrap_calloc(size_t n, size_t size)
{
    return fails() ? NULL : __real_calloc(n, size);
}

void *__wrap_mmap64(void *at, size_t len, int prot, int flags, int fd, off_t off)
{
    errno = ENOMEM;
    return fails() ? MAP_FAILED : __real_mmap64(at, len, prot, flags, fd, off);
}

void *__wrap_mremap(void *at, size_t old, size_t len, int flags)
{
    errno = ENOMEM;
    return fails() ? MAP_FAILED : __real_mremap(at, old, len, flags);
}

int __wrap_posix_fallocate64(int fd, off_t off, off_t len)
{
    return fails() ? ENOSPC : __real_posix_fallocate64(fd, off, len);
}

ssize_t __wrap_pwrite64(int fd, const void *bytes, size_t n, off_t off)
{
    errno = EIO;
    return fails() ? -1 : __real_pwrite64(fd, bytes, n, off);
}

/* --- fixture ---------------------------------------------------------------------------------- */

static char dir[] = "/tmp/kvtest-spool-XXXXXX";

static int make_dir(void **state)
{
    (void)state;
    if (mkdtemp(dir) == NULL)
        return -1;
    spool_set_dir(dir);
    return 0;
}

static int remove_dir(void **state)
{
    (void)state;
    return rmdir(dir); /* fails where something was left */
}

static unsigned n_fds(void)
{
    DIR *d = opendir("/proc/self/fd");
    unsigned n = 0;

    assert_non_null(d);
    while (readdir(d) != NULL)
        n++;
    closedir(d);
    return n;
}

/* Bytes that tell where they are. */
static uint8_t pattern(size_t at)
{
    return (uint8_t)(at * 7 + (at >> 12));
}

static void assert_pattern(const struct blob *b, size_t len)
{
    for (size_t i = 0; i < len; i += 997)
        assert_int_equal(b->data[i], pattern(i));
}

/* Puts len patterned bytes at off, in pieces. 0 or the error. */
static int write_pattern(struct blob *b, size_t off, size_t len)
{
    static uint8_t piece[1000001];
    int err = 0;

    while (err == 0 && len > 0) {
        size_t n = len < sizeof(piece) ? len : sizeof(piece);

        for (size_t i = 0; i < n; i++)
            piece[i] = pattern(off + i);
        err = spool_write(b, off, span_of(piece, n));
        off += n;
        len -= n;
    }
    return err;
}

/* --- claims ----------------------------------------------------------------------------------- */

static void small_ones_are_memory_and_large_ones_are_not(void **state)
{
    struct blob *b = NULL;

    (void)state;
    assert_int_equal(spool_reserve(&b, 0, 1000), 0);
    assert_false(b->mapped);
    assert_int_equal(write_pattern(b, 0, 1000), 0);
    assert_int_equal(spool_reserve(&b, 1000, MEMORY_BLOB_MAX), 0);
    assert_false(b->mapped);
    assert_int_equal(spool_reserve(&b, 1000, LARGE), 0);
    assert_true(b->mapped);
    assert_int_equal(b->len, LARGE);
    assert_pattern(b, 1000);
    blob_unref(b);
}

static void what_was_written_stays_while_it_grows_and_when_it_was_passed(void **state)
{
    struct blob *b = NULL;
    struct value v;

    (void)state;
    assert_int_equal(spool_reserve(&b, 0, LARGE), 0);
    assert_int_equal(write_pattern(b, 0, LARGE), 0);
    assert_int_equal(spool_reserve(&b, LARGE, 2 * LARGE), 0);
    assert_int_equal(write_pattern(b, LARGE, LARGE), 0);
    assert_pattern(b, 2 * LARGE);
    v = (struct value){b, b->data + 3, 2 * LARGE - 3};
    for (size_t at = 0; at + CHUNK_SIZE <= v.len; at += CHUNK_SIZE)
        spool_pass(v, at, at + CHUNK_SIZE);
    assert_pattern(b, 2 * LARGE);
    b->data[5] = 'x'; /* the mapping takes bytes as well */
    spool_pass(v, 0, v.len);
    assert_int_equal(b->data[5], 'x');
    blob_unref(b);
}

static void passing_what_is_not_mapped_changes_nothing(void **state)
{
    struct value v;

    (void)state;
    assert_int_equal(value_copy(span_str("some bytes"), &v), 0);
    spool_pass(v, 0, v.len);
    assert_memory_equal(v.data, "some bytes", v.len);
    value_fini(&v);
    spool_pass(v, 0, 0);
}

static void more_than_the_disk_has_is_an_error_at_once(void **state)
{
    struct blob *b = NULL;

    (void)state;
    assert_int_equal(spool_reserve(&b, 0, (size_t)1 << 60), -ENOSPC);
    assert_null(b);
    assert_int_equal(spool_reserve(&b, 0, LARGE), 0);
    assert_int_equal(write_pattern(b, 0, LARGE), 0);
    assert_int_equal(spool_reserve(&b, LARGE, (size_t)1 << 60), -ENOSPC);
    assert_int_equal(b->len, LARGE);
    assert_pattern(b, LARGE);
    blob_unref(b);
}

static void a_directory_that_is_not_there_is_an_error(void **state)
{
    struct blob *b = NULL;

    (void)state;
    spool_set_dir("/nowhere/at/all");
    assert_int_equal(spool_reserve(&b, 0, LARGE), -ENOENT);
    spool_set_dir(dir);
    assert_null(b);
}

/* From memory to a file that grows. 0 or the first error; what is in *b then is whole. */
static int live(struct blob **b, size_t *len)
{
    static const size_t caps[] = {100000, LARGE, LARGE + 200000};
    int err = 0;

    for (size_t i = 0; err == 0 && i < 3; i++) {
        err = spool_reserve(b, *len, caps[i]);
        if (err == 0)
            err = write_pattern(*b, *len, caps[i] - *len);
        if (err == 0)
            *len = caps[i];
    }
    return err;
}

static void any_one_failure_is_an_error_that_loses_and_leaves_nothing(void **state)
{
    unsigned before = n_fds();
    int err = -1;

    (void)state;
    for (unsigned n = 0; err != 0; n++) {
        struct blob *b = NULL;
        size_t len = 0;

        assert_true(n < SWEEP_MAX); /* the sweep must end in a success */
        until_failure = n;
        err = live(&b, &len);
        until_failure = UINT32_MAX;
        assert_true(err == 0 || err == -ENOMEM || err == -ENOSPC || err == -EIO);
        if (b != NULL)
            assert_pattern(b, len);
        blob_unref(b);
        assert_int_equal(n_fds(), before);
    }
}

/* Keeps its thread until the other side, in arg, is closed. */
struct keeper {
    struct loop_job job;
    int gate[2];
};

static void keep(struct loop_job *job)
{
    char byte;

    (void)!read(container_of(job, struct keeper, job)->gate[0], &byte, 1);
}

static void a_large_one_is_given_back_by_workers_where_there_are_some(void **state)
{
    struct keeper k = {.job.fn = keep};
    struct blob *b = NULL;
    struct workers *w;
    unsigned before;

    (void)state;
    assert_int_equal(pipe(k.gate), 0);
    assert_int_equal(workers_new(1, "kv-test", &w), 0);
    spool_set_workers(w);
    before = n_fds();
    workers_post(w, &k.job);
    assert_int_equal(spool_reserve(&b, 0, LARGE), 0);
    blob_unref(b);
    assert_int_equal(n_fds(), before + 1); /* they are at something else */
    close(k.gate[1]);
    spool_set_workers(NULL);
    workers_free(w);
    assert_int_equal(n_fds(), before - 1); /* the gate's */
    close(k.gate[0]);
    b = NULL;
    before = n_fds();
    assert_int_equal(spool_reserve(&b, 0, LARGE), 0);
    blob_unref(b);
    assert_int_equal(n_fds(), before);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(small_ones_are_memory_and_large_ones_are_not),
        cmocka_unit_test(what_was_written_stays_while_it_grows_and_when_it_was_passed),
        cmocka_unit_test(passing_what_is_not_mapped_changes_nothing),
        cmocka_unit_test(more_than_the_disk_has_is_an_error_at_once),
        cmocka_unit_test(a_directory_that_is_not_there_is_an_error),
        cmocka_unit_test(any_one_failure_is_an_error_that_loses_and_leaves_nothing),
        cmocka_unit_test(a_large_one_is_given_back_by_workers_where_there_are_some),
    };

    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}

/*
 * test_power.c - the power goes at any moment of a store's work: what was acknowledged, and how
 * much of it may be lost in each mode.
 *
 * This program once more is the store at work, its calls on the disk written down; then the
 * directory is made as it may be after a loss of power at some moment, many times, and opened.
 *
 * POWER_CUTS=5000 cuts more often; POWER_SEED repeats the choices.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <ftw.h>
#include <libgen.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "common/hash.h"
#include "common/limits.h"
#include "node/store.h"
#include "tests/lib/power.h"

#define N_THREADS 2u
#define N_KEYS 6u /* of each thread */
#define N_LIVES 3u
#define FLOOR_KEY 999u
#define EVERYSEC_MAX_US 2500000u /* a second, and a slow machine */

/* One acknowledgement, as the worker writes it down. */
struct ack {
    uint32_t key, version;
    uint64_t us;
};

struct fixture {
    char top[64], trace[80], cut[80];
    enum store_fsync mode;
    struct power *power;
};

static uint64_t now_us(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000 + (uint64_t)ts.tv_nsec / 1000;
}

/* --- what is stored -------------------------------------------------------------------- */

static size_t size_of(uint32_t key, uint32_t version)
{
    uint64_t r = hash_fmix64(key * 7919ull + version);

    if (r % 16 == 0)
        return INLINE_VALUE_MAX + 1 + r % 50000;
    return r % 5 == 0 ? 0 : r % (r % 3 == 0 ? 20000 : 300);
}

static void fill(uint8_t *out, uint32_t key, uint32_t version)
{
    for (size_t i = 0; i < size_of(key, version); i++)
        out[i] = (uint8_t)(hash_fmix64((uint64_t)key << 32 | version) + i * 31);
}

static int put(struct store *s, uint32_t key, uint32_t version)
{
    static _Thread_local uint8_t bytes[2 * INLINE_VALUE_MAX];
    uint32_t rec[2] = {key, version};
    struct span value = span_of(bytes, size_of(key, version)), k = span_of(&key, sizeof(key));
    struct store_file *file = NULL;
    int err;

    fill(bytes, key, version);
    if (value.len <= INLINE_VALUE_MAX)
        return s->ops->put(s, k, span_of(rec, sizeof(rec)), value, NULL, false);
    err = s->ops->file_begin(s, value.len, &file);
    if (err < 0)
        return err;
    err = s->ops->file_write(file, value);
    if (err == 0)
        err = s->ops->file_finish(file);
    if (err == 0)
        err = s->ops->put(s, k, span_of(rec, sizeof(rec)), (struct span){0}, file, false);
    if (err < 0)
        s->ops->file_abort(file);
    return err;
}

/* The version that is there; 0: none. -EBADMSG: its value is another. */
static int64_t look(struct store *s, uint32_t key)
{
    static uint8_t want[2 * INLINE_VALUE_MAX], got[2 * INLINE_VALUE_MAX];
    struct store_item item = STORE_ITEM_NONE;
    struct span value;
    uint32_t rec[2];
    int64_t ret = s->ops->get(s, span_of(&key, sizeof(key)), true, &item);

    if (ret < 0 || item.record.len == 0)
        return ret;
    assert_int_equal(item.record.len, sizeof(rec));
    memcpy(rec, item.record.data, sizeof(rec));
    assert_int_equal(rec[0], key);
    value = value_span(item.value);
    if (item.large != NULL) {
        size_t n = item.large->size < sizeof(got) ? (size_t)item.large->size : sizeof(got);

        value = span_of(got, item.large->ops->read(item.large, got, n, 0) < 0 ? 0 : n);
    }
    fill(want, key, rec[1]);
    ret = span_eq(value, span_of(want, size_of(key, rec[1]))) ? (int64_t)rec[1] : -EBADMSG;
    store_item_fini(&item);
    return ret;
}

/* --- the store at work, as a program of its own ---------------------------------------- */

#define WORK "--work"

struct worker {
    struct store *store;
    int acks;
    unsigned number, n;
    uint32_t *versions; /* of its keys */
    uint64_t end_us;
};

static void acknowledge(const struct worker *w, uint32_t key, uint32_t version)
{
    struct ack a = {key, version, now_us()};

    if (write(w->acks, &a, sizeof(a)) != sizeof(a))
        abort();
}

static void *work_thread(void *arg)
{
    struct worker *w = arg;

    for (unsigned i = 0; i < w->n || now_us() < w->end_us; i++) {
        uint32_t k = (uint32_t)(hash_fmix64(i * 31 + w->number) % N_KEYS);
        uint32_t key = w->number * N_KEYS + k, version = ++w->versions[k];

        if (put(w->store, key, version) < 0)
            abort();
        acknowledge(w, key, version);
        if (w->number == 0 && i % (w->n > 0 ? 16 : 400) == 0) {
            uint32_t floor = ++w->versions[N_KEYS];

            if (w->store->ops->state_put(w->store, "floor", span_of(&floor, sizeof(floor))) < 0)
                abort();
            acknowledge(w, FLOOR_KEY, floor);
        }
        if (w->n == 0) { /* time is what counts: not too much of it */
            const struct timespec pause = {.tv_nsec = 4000000};

            (void)nanosleep(&pause, NULL);
        }
    }
    return NULL;
}

/* n operations a thread and life; 0: for some seconds. */
static int work(const char *top, enum store_fsync mode, unsigned n)
{
    uint32_t versions[N_THREADS][N_KEYS + 1] = {0};
    char dir[80], path[80];
    int acks;

    snprintf(dir, sizeof(dir), "%s/data", top);
    snprintf(path, sizeof(path), "%s/acks", top);
    acks = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    for (unsigned life = 0; life < (n == 0 ? 1 : N_LIVES); life++) {
        struct worker workers[N_THREADS];
        pthread_t threads[N_THREADS];
        bool fresh, distrusted;
        struct store *s;
        struct err err;

        if (store_rocksdb_open(dir, "node-1", mode, &s, &fresh, &distrusted, &err) < 0)
            return 1;
        for (unsigned i = 0; i < N_THREADS; i++) {
            workers[i] =
                (struct worker){s, acks, i, n, versions[i], n == 0 ? now_us() + 3500000 : 0};
            if (pthread_create(&threads[i], NULL, work_thread, &workers[i]) != 0)
                abort();
        }
        for (unsigned i = 0; i < N_THREADS; i++)
            (void)pthread_join(threads[i], NULL);
        if (life + 1 < N_LIVES && n > 0)
            s->ops->close(s);
    }
    return 0; /* the last life does not end in good order */
}

/* Runs it with the shim preloaded. */
static void record_work(struct fixture *f, unsigned n)
{
    char self[300] = "", shim[320], mode[12], count[12];
    int status;
    pid_t pid;

    assert_true(readlink("/proc/self/exe", self, sizeof(self) - 1) > 0);
    snprintf(shim, sizeof(shim), "%s/libkvdisk.so", dirname(self));
    snprintf(mode, sizeof(mode), "%d", (int)f->mode);
    snprintf(count, sizeof(count), "%u", n);
    pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        (void)setenv("LD_PRELOAD", shim, 1);
        (void)setenv("DISK_DIR", f->top, 1);
        (void)setenv("DISK_TRACE", f->trace, 1);
        (void)execl("/proc/self/exe", "test_power", WORK, f->top, mode, count, (char *)NULL);
        _exit(127);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    f->power = power_load(f->trace);
    assert_true(power_n(f->power) > 200);
}

/* --- fixture --------------------------------------------------------------------------- */

static int setup(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));
    const char *in = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";

    assert_non_null(f);
    snprintf(f->top, sizeof(f->top), "%s/test-power-XXXXXX", in);
    assert_non_null(mkdtemp(f->top));
    snprintf(f->trace, sizeof(f->trace), "%s.trace", f->top);
    snprintf(f->cut, sizeof(f->cut), "%s.cut", f->top);
    *state = f;
    return 0;
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void)st;
    (void)type;
    (void)ftw;
    return remove(path);
}

static int teardown(void **state)
{
    struct fixture *f = *state;

    power_free(f->power);
    (void)nftw(f->top, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    if (getenv("POWER_KEEP") == NULL)
        (void)nftw(f->cut, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    (void)unlink(f->trace);
    free(f);
    return 0;
}

/* --- after the loss -------------------------------------------------------------------- */

struct after {
    unsigned n_lost, n_damaged, n_set_aside;
    uint64_t oldest_us; /* how long before the loss the oldest lost one was acknowledged */
};

/* What was acknowledged of a key by then: at all, and the newest version before a time. */
static uint32_t newest_ack(const struct ack *acks, size_t n, uint32_t key, uint64_t before_us)
{
    uint32_t version = 0;

    for (size_t i = 0; i < n; i++)
        if (acks[i].key == key && acks[i].us < before_us && acks[i].version > version)
            version = acks[i].version;
    return version;
}

static void judge(uint32_t key, int64_t found, const struct ack *acks, size_t n, uint64_t cut_us,
                  struct after *after)
{
    if (found < 0) {
        after->n_damaged++;
        return;
    }
    if (found > (int64_t)newest_ack(acks, n, key, UINT64_MAX) + 1)
        fail_msg("key %u has version %lld, which was never tried", key, (long long)found);
    for (size_t i = 0; i < n; i++) {
        if (acks[i].key != key || acks[i].version <= found)
            continue;
        after->n_lost++;
        if (cut_us - acks[i].us > after->oldest_us)
            after->oldest_us = cut_us - acks[i].us;
    }
}

/* The mark names the boot of now: as if it had been another. */
static void other_boot(struct fixture *f)
{
    char path[120];
    int fd;

    snprintf(path, sizeof(path), "%s/data/in-use", f->cut);
    fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return;
    assert_int_equal(pwrite(fd, "x", 1, 0), 1);
    close(fd);
}

static void cut_and_look(struct fixture *f, size_t at, enum power_mode mode, struct rng *rng,
                         struct after *after)
{
    struct store *s;
    struct err err;
    char dir[100];
    size_t len;
    struct ack *acks = (struct ack *)(void *)power_written(f->power, at, "acks", &len);
    size_t n = len / sizeof(*acks);
    uint64_t cut_us = power_us(f->power, at);
    struct buf floor = {0};
    bool fresh, distrusted;
    uint32_t value = 0;

    power_cut(f->power, at, mode, rng, f->cut);
    other_boot(f);
    snprintf(dir, sizeof(dir), "%s/data", f->cut);
    if (store_rocksdb_open(dir, "node-1", f->mode, &s, &fresh, &distrusted, &err) < 0)
        fail_msg("%s", err.msg);
    after->n_set_aside += fresh && n > 0;
    for (uint32_t key = 0; key < N_THREADS * N_KEYS; key++)
        judge(key, look(s, key), acks, n, cut_us, after);
    if ((!distrusted || f->mode == STORE_FSYNC_ALWAYS) && !fresh)
        assert_int_equal(after->n_lost + after->n_damaged, 0); /* what is trusted is whole */
    if (s->ops->state_get(s, "floor", &floor) == 0)
        memcpy(&value, floor.data, sizeof(value));
    if (value < newest_ack(acks, n, FLOOR_KEY, UINT64_MAX) && !fresh)
        fail_msg("the floor is %u", value);
    buf_fini(&floor);
    s->ops->close(s);
    (void)nftw(f->cut, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    free(acks);
}

static struct after cut_often(struct fixture *f, unsigned n)
{
    const char *more = getenv("POWER_CUTS"), *again = getenv("POWER_SEED");
    uint64_t seed = again != NULL ? strtoull(again, NULL, 10) : (uint64_t)time(NULL);
    struct after sum = {0};

    if (more != NULL)
        n = (unsigned)strtoul(more, NULL, 10);
    for (unsigned i = 0; i < n; i++) {
        struct rng rng = {seed + i};
        size_t at = 1 + rng_below(&rng, power_n(f->power));
        enum power_mode mode = (enum power_mode)(i % POWER_N_MODES);
        struct after after = {0};

        cut_and_look(f, at, mode, &rng, &after);
        if (f->mode == STORE_FSYNC_ALWAYS &&
            (after.n_lost > 0 || after.n_damaged > 0 || after.n_set_aside > 0))
            fail_msg("seed %llu: cut at %zu of %zu, mode %u: %u lost, %u damaged, %u set aside",
                     (unsigned long long)seed + i, at, power_n(f->power), mode, after.n_lost,
                     after.n_damaged, after.n_set_aside);
        sum.n_lost += after.n_lost;
        sum.n_damaged += after.n_damaged;
        sum.n_set_aside += after.n_set_aside;
        if (after.oldest_us > sum.oldest_us)
            sum.oldest_us = after.oldest_us;
    }
    print_message("%u cuts of %zu calls: %u lost, %u damaged, %u set aside, oldest %.3f s\n", n,
                  power_n(f->power), sum.n_lost, sum.n_damaged, sum.n_set_aside,
                  (double)sum.oldest_us / 1e6);
    return sum;
}

/* --- claims ---------------------------------------------------------------------------- */

static void with_always_nothing_acknowledged_is_lost(void **state)
{
    struct fixture *f = *state;

    f->mode = STORE_FSYNC_ALWAYS;
    record_work(f, 60);
    (void)cut_often(f, 60);
}

static void with_everysec_about_a_second_is_lost_and_nothing_is_damaged(void **state)
{
    struct fixture *f = *state;
    struct after after;

    f->mode = STORE_FSYNC_EVERYSEC;
    record_work(f, 0);
    after = cut_often(f, 40);
    assert_true(after.n_lost > 0); /* or the test loses nothing, and proves nothing */
    assert_true(after.oldest_us < EVERYSEC_MAX_US);
    assert_int_equal(after.n_damaged, 0);
    assert_int_equal(after.n_set_aside, 0);
}

static void with_never_old_values_may_return_but_no_others_come(void **state)
{
    struct fixture *f = *state;

    f->mode = STORE_FSYNC_NEVER;
    record_work(f, 60);
    (void)cut_often(f, 24);
}

#define CUT "--cut"

/* For scripts: --cut TRACE US MODE SEED DIR makes DIR as a loss of power at that time leaves it. */
static int cut_for_script(char **argv)
{
    struct power *p = power_load(argv[0]);
    uint64_t us = strtoull(argv[1], NULL, 10);
    struct rng rng = {strtoull(argv[3], NULL, 10)};
    size_t at = power_n(p);

    while (at > 0 && power_us(p, at) > us)
        at--;
    power_cut(p, at, (enum power_mode)(strtoul(argv[2], NULL, 10) % POWER_N_MODES), &rng, argv[4]);
    power_free(p);
    return 0;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(with_always_nothing_acknowledged_is_lost, setup, teardown),
        cmocka_unit_test_setup_teardown(with_everysec_about_a_second_is_lost_and_nothing_is_damaged,
                                        setup, teardown),
        cmocka_unit_test_setup_teardown(with_never_old_values_may_return_but_no_others_come, setup,
                                        teardown),
    };

    if (argc == 5 && strcmp(argv[1], WORK) == 0)
        _exit(work(argv[2], (enum store_fsync)strtoul(argv[3], NULL, 10),
                   (unsigned)strtoul(argv[4], NULL, 10)));
    if (argc == 7 && strcmp(argv[1], CUT) == 0)
        return cut_for_script(argv + 2);
    return cmocka_run_group_tests_name("power", tests, NULL, NULL);
}

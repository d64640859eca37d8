/*
 * test_store.c - the stores. One table of claims is run for each of them, in a directory of its
 * own; then what only the one on disk promises: that it is all there after a crash, and that damage
 * shows.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "common/hash.h"
#include "common/limits.h"
#include "node/rocks.h"
#include "node/store.h"
#include "node/store_redis.h"
#include "tests/lib/redis_server.h"

/* --- fixture --------------------------------------------------------------------------- */

enum kind { MEMORY, ON_DISK, ON_DISK_EVERYSEC, IN_A_REDIS };

struct fixture {
    enum kind kind;
    char dir[64]; /* "" for memory */
    struct redis_server redis;
    struct redis_url url;
    struct store *s;
    bool fresh, distrusted;
};

static enum store_fsync mode_of(const struct fixture *f)
{
    return f->kind == ON_DISK_EVERYSEC ? STORE_FSYNC_EVERYSEC
           : f->kind == IN_A_REDIS     ? STORE_FSYNC_NEVER
                                       : STORE_FSYNC_ALWAYS;
}

static void open_store(struct fixture *f)
{
    struct store_redis_opts opts = {
        .url = &f->url, .dir = f->dir, .node_id = "node-1", .mode = mode_of(f)};
    struct err err = {""};
    int ret;

    if (f->kind == MEMORY)
        ret = store_memory_open(&f->s);
    else if (f->kind == IN_A_REDIS)
        ret = store_redis_open(&opts, &f->s, &f->fresh, &f->distrusted, &err);
    else
        ret = store_rocksdb_open(f->dir, "node-1", mode_of(f), &f->s, &f->fresh, &f->distrusted,
                                 &err);
    if (ret < 0)
        fail_msg("%s", err.msg);
}

static void start_redis(struct fixture *f)
{
    static const char *const no_sync[] = {"--appendfsync", "no", NULL};
    char dir[80];

    (void)snprintf(dir, sizeof(dir), "%s/redis-server", f->dir);
    redis_server_start(&f->redis, dir, no_sync);
    f->url = redis_server_url(&f->redis);
}

static void close_store(struct fixture *f)
{
    if (f->s != NULL)
        f->s->ops->close(f->s);
    f->s = NULL;
}

static int setup(void **state, enum kind kind)
{
    struct fixture *f = calloc(1, sizeof(*f));

    assert_non_null(f);
    f->kind = kind;
    if (kind != MEMORY) {
        snprintf(f->dir, sizeof(f->dir), "/tmp/test-store-XXXXXX");
        assert_non_null(mkdtemp(f->dir));
    }
    if (kind == IN_A_REDIS)
        start_redis(f);
    open_store(f);
    *state = f;
    return 0;
}

static int setup_memory(void **state)
{
    return setup(state, MEMORY);
}

static int setup_disk(void **state)
{
    return setup(state, ON_DISK);
}

static int setup_everysec(void **state)
{
    return setup(state, ON_DISK_EVERYSEC);
}

static int setup_redis(void **state)
{
    return setup(state, IN_A_REDIS);
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

    close_store(f);
    redis_server_kill(&f->redis, SIGKILL);
    redis_url_fini(&f->url);
    if (f->dir[0] != '\0')
        (void)nftw(f->dir, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    free(f);
    return 0;
}

/* --- helpers --------------------------------------------------------------------------- */

/* Bytes that a number stands for; the caller frees them. */
static struct span bytes_of(uint64_t seed, size_t len)
{
    uint8_t *p = malloc(len + 1);

    assert_non_null(p);
    for (size_t i = 0; i < len; i++)
        p[i] = (uint8_t)(hash_fmix64(seed * 1000003 + i / 8) >> (i % 8 * 8));
    return span_of(p, len);
}

static void span_free(struct span s)
{
    free((void *)(uintptr_t)s.data);
}

static int put_file(struct store *s, struct span key, struct span record, struct span value)
{
    struct store_file *file;
    int err = s->ops->file_begin(s, value.len, &file);

    if (err < 0)
        return err;
    for (size_t at = 0; err == 0 && at < value.len; at += 100000)
        err = s->ops->file_write(
            file, span_of(value.data + at, value.len - at < 100000 ? value.len - at : 100000));
    if (err == 0)
        err = s->ops->file_finish(file);
    if (err == 0)
        err = s->ops->put(s, key, record, (struct span){0}, file, false);
    if (err < 0)
        s->ops->file_abort(file);
    return err;
}

/* As the replica does: large values through a file. */
static int put_bytes(struct store *s, struct span key, struct span record, struct span value)
{
    if (value.len > INLINE_VALUE_MAX)
        return put_file(s, key, record, value);
    return s->ops->put(s, key, record, value, NULL, false);
}

static void put(struct store *s, const char *key, const char *record, struct span value)
{
    assert_int_equal(put_bytes(s, span_str(key), span_str(record), value), 0);
}

static void put_text(struct store *s, const char *key, const char *record, const char *value)
{
    put(s, key, record, span_str(value));
}

/* Does the item hold this value, wherever it is? */
static bool item_holds(const struct store_item *item, struct span value)
{
    struct store_reader *large = item->large;
    uint8_t *bytes;
    bool same;

    if (large == NULL)
        return span_eq(value_span(item->value), value);
    bytes = malloc(value.len + 1);
    same = bytes != NULL && large->size == value.len &&
           large->ops->read(large, bytes, value.len, 0) == 0 &&
           span_eq(span_of(bytes, value.len), value);
    free(bytes);
    return same;
}

static void assert_holds(struct store *s, const char *key, const char *record, struct span value)
{
    struct store_item item = STORE_ITEM_NONE;

    assert_int_equal(s->ops->get(s, span_str(key), true, &item), 0);
    assert_true(span_eq(buf_span(&item.record), span_str(record)));
    assert_true(item_holds(&item, value));
    store_item_fini(&item);
}

static void assert_text(struct store *s, const char *key, const char *record, const char *value)
{
    assert_holds(s, key, record, span_str(value));
}

static void assert_absent(struct store *s, const char *key)
{
    struct store_item item = STORE_ITEM_NONE;

    assert_int_equal(s->ops->get(s, span_str(key), true, &item), 0);
    assert_int_equal(item.record.len, 0);
    assert_null(item.large);
    store_item_fini(&item);
}

static uint64_t now_ms(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000 + (uint64_t)ts.tv_nsec / 1000000;
}

/* Calls fn for every regular file below DIR/sub whose name ends so; returns how many. */
static unsigned each_file(const struct fixture *f, const char *sub, const char *end,
                          void (*fn)(const char *path))
{
    char path[400];
    struct dirent *e;
    unsigned n = 0;
    DIR *dir;

    snprintf(path, sizeof(path), "%s/%s", f->dir, sub);
    dir = opendir(path);
    assert_non_null(dir);
    while ((e = readdir(dir)) != NULL) {
        size_t len = strlen(e->d_name), end_len = strlen(end);

        if (e->d_name[0] == '.')
            continue;
        snprintf(path, sizeof(path), "%s/%s", sub, e->d_name);
        if (e->d_type == DT_DIR)
            n += each_file(f, path, end, fn);
        if (e->d_type != DT_REG || len < end_len || strcmp(e->d_name + len - end_len, end) != 0)
            continue;
        snprintf(path, sizeof(path), "%s/%s/%s", f->dir, sub, e->d_name);
        n++;
        if (fn != NULL)
            fn(path);
    }
    closedir(dir);
    return n;
}

static unsigned n_value_files(const struct fixture *f)
{
    return each_file(f, "values", "", NULL);
}

/* --- claims for every store ------------------------------------------------------------ */

static void a_key_never_put_has_no_record(void **state)
{
    struct fixture *f = *state;

    assert_absent(f->s, "k");
}

static void what_was_put_last_is_there(void **state)
{
    struct fixture *f = *state;

    put_text(f->s, "k", "r1", "v1");
    assert_text(f->s, "k", "r1", "v1");
    put_text(f->s, "k", "record two", "");
    assert_text(f->s, "k", "record two", "");
    put_text(f->s, "k", "r3", "a longer value");
    put_text(f->s, "kk", "other", "another");
    assert_text(f->s, "k", "r3", "a longer value");
    assert_text(f->s, "kk", "other", "another");
}

static void values_of_all_sizes_replace_each_other(void **state)
{
    static const size_t sizes[] = {
        0, 1, INLINE_VALUE_MAX, INLINE_VALUE_MAX + 1, 5, CHUNK_SIZE + 3, 2 * CHUNK_SIZE, 0};
    struct fixture *f = *state;

    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        struct span value = bytes_of(i, sizes[i]);

        put(f->s, "k", "r", value);
        assert_holds(f->s, "k", "r", value);
        span_free(value);
    }
}

static void a_record_changes_without_its_value(void **state)
{
    struct fixture *f = *state;
    const struct store_ops *ops = f->s->ops;
    struct span large = bytes_of(1, INLINE_VALUE_MAX + 1);

    assert_int_equal(ops->put(f->s, span_str("none"), span_str("r"), (struct span){0}, NULL, true),
                     -ENOENT);
    put_text(f->s, "small", "r1", "value");
    put(f->s, "large", "r1", large);
    for (unsigned i = 0; i < 3; i++) {
        assert_int_equal(
            ops->put(f->s, span_str("small"), span_str("r2"), (struct span){0}, NULL, true), 0);
        assert_int_equal(
            ops->put(f->s, span_str("large"), span_str("r2"), (struct span){0}, NULL, true), 0);
        assert_text(f->s, "small", "r2", "value");
        assert_holds(f->s, "large", "r2", large);
    }
    span_free(large);
}

static void a_value_too_large_for_the_database_is_refused(void **state)
{
    struct fixture *f = *state;
    struct span value = bytes_of(1, INLINE_VALUE_MAX + 1);

    assert_int_equal(f->s->ops->put(f->s, span_str("k"), span_str("r"), value, NULL, false),
                     -EFBIG);
    assert_absent(f->s, "k");
    span_free(value);
}

static void a_file_has_exactly_the_size_announced(void **state)
{
    struct fixture *f = *state;
    const struct store_ops *ops = f->s->ops;
    struct store_file *file;

    assert_int_equal(ops->file_begin(f->s, 10, &file), 0);
    assert_int_equal(ops->file_write(file, span_str("12345")), 0);
    assert_int_equal(ops->file_finish(file), -EINVAL);
    assert_int_equal(ops->file_write(file, span_str("678901")), -EFBIG);
    ops->file_abort(file);
    ops->file_abort(NULL);
    assert_absent(f->s, "k");
}

static void an_open_file_can_be_read_after_its_value_was_replaced(void **state)
{
    struct fixture *f = *state;
    struct span large = bytes_of(1, CHUNK_SIZE);
    struct store_item item = STORE_ITEM_NONE;

    put(f->s, "k", "r1", large);
    assert_int_equal(f->s->ops->get(f->s, span_str("k"), true, &item), 0);
    put_text(f->s, "k", "r2", "new");
    assert_true(item_holds(&item, large));
    store_item_fini(&item);
    span_free(large);
}

static void a_dropped_key_is_gone(void **state)
{
    struct fixture *f = *state;
    struct span large = bytes_of(1, CHUNK_SIZE);

    put_text(f->s, "a", "r", "v");
    put(f->s, "b", "r", large);
    assert_int_equal(f->s->ops->drop(f->s, span_str("a")), 0);
    assert_int_equal(f->s->ops->drop(f->s, span_str("b")), 0);
    assert_int_equal(f->s->ops->drop(f->s, span_str("never there")), 0);
    assert_absent(f->s, "a");
    assert_absent(f->s, "b");
    put_text(f->s, "a", "r2", "");
    assert_text(f->s, "a", "r2", "");
    span_free(large);
}

#define N_KEYS 500

static int key_cmp(const void *a, const void *b)
{
    const struct span *x = a, *y = b;

    return span_cmp(*x, *y);
}

static void keys_of_any_bytes_come_in_byte_order(void **state)
{
    struct fixture *f = *state;
    const struct store_ops *ops = f->s->ops;
    struct span keys[N_KEYS];
    struct store_iter *it;

    for (unsigned i = 0; i < N_KEYS; i++) {
        uint64_t r = hash_fmix64(i + 1);

        keys[i] = bytes_of(i, i % 50 == 0 ? KEY_LEN_MAX : 1 + r % 12);
        /* Long common beginnings. */
        memset((void *)(uintptr_t)keys[i].data, i % 3 == 0 ? 0xff : 0x7f, r % (keys[i].len + 1));
        assert_int_equal(put_bytes(f->s, keys[i], span_of(&i, sizeof(i)), span_str("v")), 0);
    }
    qsort(keys, N_KEYS, sizeof(keys[0]), key_cmp);
    assert_int_equal(ops->iter_new(f->s, &it), 0);
    ops->iter_seek(it, (struct span){0});
    for (unsigned i = 0; i < N_KEYS; i++) {
        if (i > 0 && span_eq(keys[i], keys[i - 1]))
            continue;
        assert_true(ops->iter_valid(it));
        assert_true(span_eq(ops->iter_key(it), keys[i]));
        assert_int_equal(ops->iter_record(it).len, sizeof(i));
        ops->iter_next(it);
    }
    assert_false(ops->iter_valid(it));
    assert_int_equal(ops->iter_err(it), 0);
    for (unsigned i = 1; i < N_KEYS; i += 7) { /* from between two keys to the second of them */
        struct buf between = {0};

        if (span_eq(keys[i], keys[i - 1]))
            continue;
        buf_add_span(&between, keys[i - 1]);
        buf_u8(&between, 0);
        ops->iter_seek(it, buf_span(&between));
        assert_true(span_eq(ops->iter_key(it), keys[i]));
        buf_fini(&between);
    }
    ops->iter_free(it);
    for (unsigned i = 0; i < N_KEYS; i++)
        span_free(keys[i]);
}

static void an_iterator_sees_one_moment(void **state)
{
    struct fixture *f = *state;
    const struct store_ops *ops = f->s->ops;
    struct store_iter *it;

    put_text(f->s, "a", "old", "");
    put_text(f->s, "c", "old", "");
    assert_int_equal(ops->iter_new(f->s, &it), 0);
    put_text(f->s, "b", "new", "");
    put_text(f->s, "c", "new", "");
    assert_int_equal(ops->drop(f->s, span_str("a")), 0);
    ops->iter_seek(it, span_str("a"));
    assert_true(ops->iter_valid(it));
    assert_true(span_eq(ops->iter_key(it), span_str("a")));
    ops->iter_next(it);
    assert_true(ops->iter_valid(it));
    assert_true(span_eq(ops->iter_key(it), span_str("c")));
    assert_true(span_eq(ops->iter_record(it), span_str("old")));
    ops->iter_next(it);
    assert_false(ops->iter_valid(it));
    ops->iter_free(it);
}

static void random_puts_and_drops_agree_with_a_plain_array(void **state)
{
    struct fixture *f = *state;
    const struct store_ops *ops = f->s->ops;
    uint64_t values[64] = {0}; /* 0: absent */
    struct store_iter *it;

    for (uint64_t i = 1; i <= 1500; i++) {
        uint64_t r = hash_fmix64(i);
        uint8_t key = r % 64;

        if (r >> 32 & 1) {
            values[key] = i;
            assert_int_equal(ops->put(f->s, span_of(&key, 1), span_of(&i, sizeof(i)),
                                      span_of(&i, i % 9), NULL, false),
                             0);
        } else {
            values[key] = 0;
            assert_int_equal(ops->drop(f->s, span_of(&key, 1)), 0);
        }
    }
    assert_int_equal(ops->iter_new(f->s, &it), 0);
    ops->iter_seek(it, (struct span){0});
    for (uint8_t key = 0; key < 64; key++) {
        if (values[key] == 0)
            continue;
        assert_true(ops->iter_valid(it));
        assert_int_equal(ops->iter_key(it).data[0], key);
        assert_memory_equal(ops->iter_record(it).data, &values[key], sizeof(values[key]));
        ops->iter_next(it);
    }
    assert_false(ops->iter_valid(it));
    ops->iter_free(it);
}

static void values_of_the_node_are_kept_by_name(void **state)
{
    struct fixture *f = *state;
    const struct store_ops *ops = f->s->ops;
    struct buf out = {0};

    assert_int_equal(ops->state_get(f->s, "floor", &out), -ENOENT);
    assert_int_equal(ops->state_put(f->s, "floor", span_str("one")), 0);
    assert_int_equal(ops->state_put(f->s, "floor", span_str("two")), 0);
    assert_int_equal(ops->state_put(f->s, "known", span_str("")), 0);
    assert_int_equal(ops->state_get(f->s, "floor", &out), 0);
    assert_true(span_eq(buf_span(&out), span_str("two")));
    buf_clear(&out);
    assert_int_equal(ops->state_get(f->s, "known", &out), 0);
    assert_int_equal(out.len, 0);
    assert_absent(f->s, "floor"); /* no key of a user */
    buf_fini(&out);
}

static void it_tells_its_size_and_that_it_works(void **state)
{
    struct fixture *f = *state;
    struct store_stats stats;

    for (unsigned i = 0; i < 20; i++)
        assert_int_equal(f->s->ops->put(f->s, span_of(&i, sizeof(i)), span_str("r"),
                                        (struct span){0}, NULL, false),
                         0);
    assert_int_equal(f->s->ops->stats(f->s, &stats), 0);
    assert_int_equal(stats.n_keys, 20);
    assert_true(stats.n_bytes >= 20 * (sizeof(unsigned) + 1) && stats.n_bytes < 10000000);
    assert_true(strlen(f->s->ops->kind) > 0);
    assert_true(stats.disk_free > 0 && stats.disk_free <= stats.disk_total);
    assert_int_equal(f->s->ops->probe(f->s), 0);
}

static void a_hundred_thousand_keys_in_order_stay_quick(void **state)
{
    struct fixture *f = *state;
    uint64_t start_ms = now_ms();
    struct store_stats stats;

    for (uint32_t i = 0; i < 100000; i++) {
        uint8_t key[] = {(uint8_t)(i >> 16), (uint8_t)(i >> 8), (uint8_t)i};

        assert_int_equal(f->s->ops->put(f->s, span_of(key, sizeof(key)), span_str("r"),
                                        (struct span){0}, NULL, false),
                         0);
    }
    assert_int_equal(f->s->ops->stats(f->s, &stats), 0);
    assert_int_equal(stats.n_keys, 100000);
    assert_true(now_ms() - start_ms < 20000);
}

/* One key changed by one thread between sizes that live in different places, read by another. */
struct race {
    struct store *s;
    atomic_bool stop;
    int err;
};

static size_t race_size(uint8_t i)
{
    static const size_t sizes[] = {10, 2000, 9000, INLINE_VALUE_MAX + 10, 3000, 0, 7, 2001};

    return sizes[i % 8];
}

static void *race_writer(void *arg)
{
    struct race *race = arg;

    for (uint8_t i = 0; !atomic_load(&race->stop) && race->err == 0; i++) {
        struct span value = bytes_of(i, race_size(i));

        race->err = put_bytes(race->s, span_str("k"), span_of(&i, 1), value);
        span_free(value);
    }
    return NULL;
}

static void record_and_value_read_while_they_change_belong_together(void **state)
{
    struct fixture *f = *state;
    struct race race = {.s = f->s};
    pthread_t writer;
    unsigned n_seen = 0, n_wanted = f->kind == ON_DISK || f->kind == IN_A_REDIS ? 100 : 400,
             n_torn = 0;
    uint8_t last = 0;
    uint64_t end_ms = now_ms() + 30000;
    int err = 0;

    assert_int_equal(pthread_create(&writer, NULL, race_writer, &race), 0);
    while (n_seen < n_wanted && n_torn == 0 && err == 0 && now_ms() < end_ms) {
        struct store_item item = STORE_ITEM_NONE;
        struct span value;

        err = f->s->ops->get(f->s, span_str("k"), true, &item);
        if (item.record.len == 1) {
            n_seen += item.record.data[0] != last;
            last = item.record.data[0];
            value = bytes_of(last, race_size(last));
            n_torn += !item_holds(&item, value);
            span_free(value);
        }
        store_item_fini(&item);
    }
    atomic_store(&race.stop, true);
    pthread_join(writer, NULL);
    assert_int_equal(err, 0);
    assert_int_equal(race.err, 0);
    assert_int_equal(n_torn, 0);
    assert_true(n_seen >= n_wanted);
}

/* --- claims for the store on disk ------------------------------------------------------ */

static void all_is_there_after_reopening(void **state)
{
    struct fixture *f = *state;
    struct span large = bytes_of(1, CHUNK_SIZE + 1);
    struct buf out = {0};

    assert_true(f->fresh);
    put_text(f->s, "a", "ra", "small");
    put(f->s, "b", "rb", large);
    put_text(f->s, "c", "rc", "");
    assert_int_equal(f->s->ops->state_put(f->s, "floor", span_str("9")), 0);
    for (unsigned i = 0; i < 3; i++) {
        close_store(f);
        open_store(f);
        assert_false(f->fresh);
        assert_text(f->s, "a", "ra", "small");
        assert_holds(f->s, "b", "rb", large);
        assert_text(f->s, "c", "rc", "");
        buf_clear(&out);
        assert_int_equal(f->s->ops->state_get(f->s, "floor", &out), 0);
        assert_true(span_eq(buf_span(&out), span_str("9")));
    }
    buf_fini(&out);
    span_free(large);
}

static void it_is_open_once_and_for_one_node(void **state)
{
    struct fixture *f = *state;
    struct store *other;
    struct stat st;
    struct err err = {""};
    bool fresh, distrusted;

    assert_int_equal(stat(f->dir, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0700);
    assert_int_equal(
        store_rocksdb_open(f->dir, "node-1", STORE_FSYNC_ALWAYS, &other, &fresh, &distrusted, &err),
        -EBUSY);
    assert_non_null(strstr(err.msg, f->dir));
    close_store(f);
    assert_int_equal(
        store_rocksdb_open(f->dir, "node-2", STORE_FSYNC_ALWAYS, &other, &fresh, &distrusted, &err),
        -EINVAL);
    assert_non_null(strstr(err.msg, "node-1"));
    assert_non_null(strstr(err.msg, "node-2"));
    open_store(f);
}

static void a_directory_is_made_with_its_parents(void **state)
{
    struct fixture *f = *state;
    struct store *s;
    struct err err = {""};
    struct stat st;
    char dir[100];
    bool fresh = false, distrusted;

    snprintf(dir, sizeof(dir), "%s/a/b/", f->dir);
    assert_int_equal(
        store_rocksdb_open(dir, "node-1", STORE_FSYNC_NEVER, &s, &fresh, &distrusted, &err), 0);
    assert_true(fresh);
    assert_int_equal(stat(dir, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0700);
    s->ops->close(s);
    snprintf(dir, sizeof(dir), "%s/kvnode.lock/x", f->dir);
    assert_int_equal(
        store_rocksdb_open(dir, "node-1", STORE_FSYNC_NEVER, &s, &fresh, &distrusted, &err),
        -ENOTDIR);
    assert_non_null(strstr(err.msg, dir));
}

static void replaced_and_given_up_values_leave_no_file(void **state)
{
    struct fixture *f = *state;
    struct span large = bytes_of(1, INLINE_VALUE_MAX + 1);
    struct store_file *file;
    uint64_t end_ms = now_ms() + 10000;

    put(f->s, "a", "r", large);
    put(f->s, "b", "r", large);
    put(f->s, "c", "r", large);
    assert_int_equal(n_value_files(f), 3);
    assert_int_equal(f->s->ops->file_begin(f->s, 100, &file), 0);
    f->s->ops->file_abort(file);
    put(f->s, "a", "r2", large);
    put_text(f->s, "b", "r2", "small");
    assert_int_equal(f->s->ops->drop(f->s, span_str("c")), 0);
    /* Everysec removes them with its next sync. */
    while (n_value_files(f) != 1 && now_ms() < end_ms)
        (void)poll(NULL, 0, 20);
    assert_int_equal(n_value_files(f), 1);
    assert_holds(f->s, "a", "r2", large);
    span_free(large);
}

static void orphaned_files_are_swept_and_named_ones_stay(void **state)
{
    struct fixture *f = *state;
    struct span large = bytes_of(1, INLINE_VALUE_MAX + 1);
    char path[100];
    int fd;

    put(f->s, "a", "r", large);
    close_store(f);
    snprintf(path, sizeof(path), "%s/values/34/0123456789abcd34", f->dir);
    fd = open(path, O_CREAT | O_WRONLY, 0600);
    assert_true(fd >= 0);
    close(fd);
    assert_int_equal(n_value_files(f), 2);
    open_store(f);
    assert_int_equal(n_value_files(f), 1);
    assert_holds(f->s, "a", "r", large);
    span_free(large);
}

#define PUTTER "--put-until-killed"

/*
 * This program as a child: puts one key after the other, tells on stdout of each that was
 * acknowledged, until it is killed.
 */
static int put_until_killed(const char *dir, const char *everysec)
{
    enum store_fsync mode = strcmp(everysec, "1") == 0 ? STORE_FSYNC_EVERYSEC : STORE_FSYNC_ALWAYS;
    struct store *s;
    struct err err;
    bool fresh, distrusted;

    if (store_rocksdb_open(dir, "node-1", mode, &s, &fresh, &distrusted, &err) < 0)
        return 1;
    for (uint32_t i = 0;; i++) {
        struct span value = bytes_of(i, i % 10 == 9 ? INLINE_VALUE_MAX + i : i % 3000);
        uint32_t key = i % 50; /* also replaces */

        if (put_bytes(s, span_of(&key, sizeof(key)), span_of(&i, sizeof(i)), value) < 0 ||
            write(STDOUT_FILENO, &i, sizeof(i)) != sizeof(i))
            return 2;
        span_free(value);
    }
}

/* Starts it; *out: where its tellings are read. */
static pid_t start_putter(const struct fixture *f, int *out)
{
    int fds[2];
    pid_t pid;

    assert_int_equal(pipe(fds), 0);
    pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) { /* a fresh program: RocksDB's threads do not survive a fork */
        (void)dup2(fds[1], STDOUT_FILENO);
        (void)close(fds[0]);
        (void)close(fds[1]);
        (void)execl("/proc/self/exe", "test_store", PUTTER, f->dir,
                    f->kind == ON_DISK_EVERYSEC ? "1" : "0", (char *)NULL);
        _exit(127);
    }
    close(fds[1]);
    *out = fds[0];
    return pid;
}

/* Every key holds what was acknowledged last, or the one that was under way. */
static void assert_survived(struct fixture *f, uint32_t n_acked)
{
    unsigned n_files = 0;

    for (uint32_t key = 0; key < 50; key++) {
        struct store_item item = STORE_ITEM_NONE;
        uint32_t last = n_acked > key ? key + (n_acked - 1 - key) / 50 * 50 : UINT32_MAX, i;
        struct span value;

        assert_int_equal(f->s->ops->get(f->s, span_of(&key, sizeof(key)), true, &item), 0);
        if (item.record.len == 0) {
            assert_int_equal(last, UINT32_MAX);
            continue;
        }
        assert_int_equal(item.record.len, sizeof(i));
        memcpy(&i, item.record.data, sizeof(i));
        /* N_acked: the one that may have been stored without being told. */
        assert_true(i == last || i == n_acked);
        value = bytes_of(i, i % 10 == 9 ? INLINE_VALUE_MAX + i : i % 3000);
        assert_true(item_holds(&item, value));
        n_files += item.large != NULL;
        span_free(value);
        store_item_fini(&item);
    }
    assert_int_equal(n_value_files(f), n_files);
}

static void everything_acknowledged_survives_kill_9(void **state)
{
    struct fixture *f = *state;

    for (unsigned round = 0; round < 3; round++) {
        uint32_t i, n_acked = 0;
        int fd, status;
        pid_t pid;

        close_store(f);
        pid = start_putter(f, &fd);
        while (n_acked < 130 + 77 * round && read(fd, &i, sizeof(i)) == sizeof(i))
            n_acked = i + 1;
        assert_int_equal(kill(pid, SIGKILL), 0);
        while (read(fd, &i, sizeof(i)) == sizeof(i))
            n_acked = i + 1;
        close(fd);
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFSIGNALED(status));
        open_store(f);
        assert_survived(f, n_acked);
    }
}

/* --- damage ---------------------------------------------------------------------------- */

static void flip_middle(const char *path)
{
    struct stat st;
    uint8_t byte;
    int fd = open(path, O_RDWR);

    assert_true(fd >= 0 && fstat(fd, &st) == 0);
    assert_int_equal(pread(fd, &byte, 1, st.st_size / 2), 1);
    byte ^= 1;
    assert_int_equal(pwrite(fd, &byte, 1, st.st_size / 2), 1);
    close(fd);
}

/* The data's table: the small ones hold little but what is read when they are opened. */
static void flip_middle_of_large(const char *path)
{
    struct stat st;

    assert_int_equal(stat(path, &st), 0);
    if (st.st_size > 50000)
        flip_middle(path);
}

static void cut_end(const char *path)
{
    struct stat st;

    assert_int_equal(stat(path, &st), 0);
    if (st.st_size > 10)
        assert_int_equal(truncate(path, st.st_size - 10), 0);
}

static void a_flipped_bit_in_a_table_is_an_error_and_no_other_bytes(void **state)
{
    struct fixture *f = *state;
    struct store_item item = STORE_ITEM_NONE;
    struct span value = bytes_of(1, 50000);

    put(f->s, "k", "r", value);
    close_store(f);
    open_store(f); /* moves what is in the log to a table */
    close_store(f);
    assert_true(each_file(f, "db", ".sst", flip_middle_of_large) > 0);
    open_store(f);
    assert_int_equal(f->s->ops->get(f->s, span_str("k"), true, &item), -EBADMSG);
    assert_int_equal(f->s->ops->get(f->s, span_str("k"), false, &item), 0);
    store_item_fini(&item);
    put(f->s, "k", "r", value); /* and can be mended */
    assert_holds(f->s, "k", "r", value);
    span_free(value);
}

static void a_log_cut_short_loses_only_what_was_not_whole(void **state)
{
    struct fixture *f = *state;

    put_text(f->s, "a", "r", "first");
    put_text(f->s, "b", "r", "second");
    put_text(f->s, "c", "r", "last");
    close_store(f);
    assert_true(each_file(f, "db", ".log", cut_end) > 0);
    open_store(f);
    assert_text(f->s, "a", "r", "first");
    assert_text(f->s, "b", "r", "second");
    assert_absent(f->s, "c");
}

static void a_log_damaged_before_its_end_is_not_read_on(void **state)
{
    struct fixture *f = *state;
    struct span value = bytes_of(1, 3000);

    put(f->s, "a", "r", value);
    put(f->s, "b", "r", value);
    put(f->s, "c", "r", value);
    close_store(f);
    assert_true(each_file(f, "db", ".log", flip_middle) > 0);
    open_store(f);
    assert_true(f->fresh); /* and the damaged one is set aside: test_store_damage.c */
    assert_absent(f->s, "a");
    assert_absent(f->s, "c");
    span_free(value);
}

static void a_record_of_no_bytes_is_damage_and_not_absence(void **state)
{
    struct fixture *f = *state;
    struct store_item item = STORE_ITEM_NONE;
    struct rocks_batch *batch;
    struct rocks *rocks;
    char path[PATH_MAX];
    atomic_bool broken = false;
    struct err err;

    put_text(f->s, "k", "r", "v");
    close_store(f);
    snprintf(path, sizeof(path), "%s/db", f->dir);
    assert_int_equal(rocks_open(path, false, &broken, &rocks, &err), 0);
    batch = rocks_batch_new(rocks);
    rocks_batch_put(batch, ROCKS_META, span_str("k"), span_of("", 1), (struct span){0});
    assert_int_equal(rocks_write(batch, true), 0);
    rocks_batch_free(batch);
    rocks_close(rocks);
    open_store(f);
    assert_int_equal(f->s->ops->get(f->s, span_str("k"), false, &item), -EBADMSG);
    put_text(f->s, "k", "r", "v"); /* and can be mended */
    assert_text(f->s, "k", "r", "v");
}

static void remove_file(const char *path)
{
    assert_int_equal(unlink(path), 0);
}

static void a_lost_file_is_damage_and_not_absence(void **state)
{
    struct fixture *f = *state;
    struct store_item item = STORE_ITEM_NONE;
    struct span large = bytes_of(1, INLINE_VALUE_MAX + 1);

    put(f->s, "k", "r", large);
    assert_int_equal(each_file(f, "values", "", remove_file), 1);
    assert_int_equal(f->s->ops->get(f->s, span_str("k"), true, &item), -EBADMSG);
    assert_int_equal(f->s->ops->get(f->s, span_str("k"), false, &item), 0);
    store_item_fini(&item);
    put(f->s, "k", "r", large); /* and can be mended */
    assert_holds(f->s, "k", "r", large);
    span_free(large);
}

/* --- disks that fail ------------------------------------------------------------------- */

static int put_numbered(struct store *s, uint32_t i)
{
    struct span value = bytes_of(i, 16000);
    int err = put_bytes(s, span_of(&i, sizeof(i)), span_str("r"), value);

    span_free(value);
    return err;
}

/* How many of these are not there as they were put. */
static uint32_t n_lost(struct store *s, uint32_t n)
{
    uint32_t lost = 0;

    for (uint32_t i = 0; i < n; i++) {
        struct store_item item = STORE_ITEM_NONE;
        struct span value = bytes_of(i, 16000);

        if (s->ops->get(s, span_of(&i, sizeof(i)), true, &item) < 0 || !item_holds(&item, value))
            lost++;
        store_item_fini(&item);
        span_free(value);
    }
    return lost;
}

static void after_a_failed_write_every_later_one_fails_until_reopened(void **state)
{
    struct fixture *f = *state;
    struct rlimit limit, old;
    struct store_file *file;
    uint32_t n = 0;
    int err = 0;

    (void)signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    limit = old;
    /* The log cannot become longer: a write error that is no full disk. */
    limit.rlim_cur = 1u << 20;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    while (n < 1000 && (err = put_numbered(f->s, n)) == 0)
        n++;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    assert_int_equal(err, -EIO);
    assert_true(n > 10);
    assert_int_equal(put_numbered(f->s, n), -EIO);
    assert_int_equal(f->s->ops->probe(f->s), -EIO);
    assert_int_equal(f->s->ops->state_put(f->s, "floor", span_str("9")), -EIO);
    assert_int_equal(f->s->ops->file_begin(f->s, 100000, &file), -EIO);
    assert_int_equal(n_lost(f->s, n), 0);
    close_store(f);
    open_store(f);
    assert_int_equal(n_lost(f->s, n), 0);
    assert_int_equal(put_numbered(f->s, n), 0);
}

#define FULL_DISK "--full-disk"
#define SKIPPED 77

/* Fills what is left of the file system but for some bytes. */
static int fill_disk(const char *path, off_t but)
{
    int fd = open(path, O_CREAT | O_WRONLY, 0600);
    struct span block = bytes_of(1, 1u << 16);
    off_t len = 0;
    ssize_t n;

    while ((n = write(fd, block.data, block.len)) > 0)
        len += n;
    n = ftruncate(fd, len > but ? len - but : 0);
    close(fd);
    span_free(block);
    return (int)n;
}

/* A tombstone is a record without a value. How many of them are not refused. */
/*
 * Where the database itself ran into the end of the disk, in the background, it takes some seconds
 * to notice that there is room.
 */
static bool works_soon(struct store *s)
{
    uint64_t end_ms = now_ms() + 30000;

    for (s->ops->tend(s); s->ops->probe(s) != 0; s->ops->tend(s)) {
        if (now_ms() > end_ms)
            return false;
        (void)poll(NULL, 0, 50);
    }
    return true;
}

/* One that meets the database at the end of the disk goes on when that has noticed the reserve. */
static bool delete_numbered(struct store *s, uint32_t i)
{
    int ret = -ENOSPC;

    for (unsigned tries = 0; ret == -ENOSPC && tries < 3 && works_soon(s); tries++)
        ret =
            s->ops->put(s, span_of(&i, sizeof(i)), span_str("gone"), (struct span){0}, NULL, false);
    return ret == 0;
}

static uint32_t n_deleted(struct store *s, uint32_t n)
{
    uint32_t deleted = 0;

    for (uint32_t i = 0; i < n; i++)
        deleted += delete_numbered(s, i);
    return deleted;
}

#define N_GONE 1000u

/*
 * This program as a child, with a small disk that nobody else sees: returns the line of what went
 * wrong, or 0.
 */
static int full_disk(const char *dir)
{
    char filler[100], rest[100], data[100];
    struct store *s = NULL;
    struct store_file *file;
    struct err err;
    bool fresh, distrusted;
    uint32_t n = 0;
    int ret = 0;

    if (unshare(CLONE_NEWNS) < 0 || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
        mount("none", dir, "tmpfs", 0, "size=256m") < 0)
        return SKIPPED;
    snprintf(filler, sizeof(filler), "%s/filler", dir);
    snprintf(rest, sizeof(rest), "%s/rest", dir);
    snprintf(data, sizeof(data), "%s/data", dir);
    if (store_rocksdb_open(data, "node-1", STORE_FSYNC_ALWAYS, &s, &fresh, &distrusted, &err) < 0 ||
        fill_disk(filler, 60 << 20) < 0)
        return __LINE__;
    while (n < 5000 && (ret = put_numbered(s, n)) == 0)
        n++;
    if (ret != -ENOSPC || put_numbered(s, n) != -ENOSPC || n < N_GONE)
        return __LINE__;
    if (s->ops->file_begin(s, 4u << 20, &file) != -ENOSPC)
        return __LINE__;
    /* Others take all the rest: values are refused, and nothing else. */
    if (fill_disk(rest, 0) < 0 || !works_soon(s) || n_deleted(s, N_GONE) != N_GONE)
        return __LINE__;
    if (fill_disk(rest, 0) < 0 || put_numbered(s, n) != -ENOSPC)
        return __LINE__;
    if (unlink(rest) < 0 || unlink(filler) < 0 || !works_soon(s) || put_numbered(s, n) < 0)
        return __LINE__;
    for (uint32_t i = 0; i < N_GONE; i++)
        if (put_numbered(s, i) < 0)
            return __LINE__;
    if (n_lost(s, n + 1) > 0)
        return __LINE__;
    s->ops->close(s);
    if (fill_disk(filler, 0) < 0)
        return __LINE__;
    /* Opening may fail, in words: it takes some room to read the log. */
    if (store_rocksdb_open(data, "node-1", STORE_FSYNC_ALWAYS, &s, &fresh, &distrusted, &err) == 0)
        s->ops->close(s);
    if (unlink(filler) < 0 ||
        store_rocksdb_open(data, "node-1", STORE_FSYNC_ALWAYS, &s, &fresh, &distrusted, &err) < 0)
        return __LINE__;
    ret = n_lost(s, n + 1) > 0 ? __LINE__ : 0;
    s->ops->close(s);
    return ret;
}

static int full_disk_told(const char *dir)
{
    int line = full_disk(dir);

    if (line > 0 && line != SKIPPED)
        (void)fprintf(stderr, "test_store.c:%d: so it was not\n", line);
    return line > 0 && line != SKIPPED ? 1 : line;
}

static void a_full_disk_refuses_values_but_not_deletes_and_passes(void **state)
{
    struct fixture *f = *state;
    pid_t pid;
    int status;

    close_store(f);
    pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        (void)execl("/proc/self/exe", "test_store", FULL_DISK, f->dir, (char *)NULL);
        _exit(127);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == SKIPPED)
        skip(); /* only root may mount a small disk */
    assert_int_equal(WEXITSTATUS(status), 0);
}

#define IN_MEMORY(claim)                                                                           \
    {                                                                                              \
        "memory: " #claim, claim, setup_memory, teardown, NULL                                     \
    }
#define IN_DIR(claim)                                                                              \
    {                                                                                              \
        "disk: " #claim, claim, setup_disk, teardown, NULL                                         \
    }
#define IN_REDIS(claim)                                                                            \
    {                                                                                              \
        "redis: " #claim, claim, setup_redis, teardown, NULL                                       \
    }
#define IN_EVERYSEC(claim)                                                                         \
    {                                                                                              \
        "everysec: " #claim, claim, setup_everysec, teardown, NULL                                 \
    }
#define IN_ALL(claim) IN_MEMORY(claim), IN_DIR(claim), IN_REDIS(claim)

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        IN_ALL(a_key_never_put_has_no_record),
        IN_ALL(what_was_put_last_is_there),
        IN_ALL(values_of_all_sizes_replace_each_other),
        IN_ALL(a_record_changes_without_its_value),
        IN_ALL(a_value_too_large_for_the_database_is_refused),
        IN_ALL(a_file_has_exactly_the_size_announced),
        IN_ALL(an_open_file_can_be_read_after_its_value_was_replaced),
        IN_ALL(a_dropped_key_is_gone),
        IN_ALL(keys_of_any_bytes_come_in_byte_order),
        IN_ALL(an_iterator_sees_one_moment),
        IN_ALL(random_puts_and_drops_agree_with_a_plain_array),
        IN_ALL(values_of_the_node_are_kept_by_name),
        IN_ALL(it_tells_its_size_and_that_it_works),
        IN_ALL(record_and_value_read_while_they_change_belong_together),
        IN_MEMORY(a_hundred_thousand_keys_in_order_stay_quick),
        IN_DIR(all_is_there_after_reopening),
        IN_DIR(it_is_open_once_and_for_one_node),
        IN_DIR(a_directory_is_made_with_its_parents),
        IN_DIR(replaced_and_given_up_values_leave_no_file),
        IN_DIR(orphaned_files_are_swept_and_named_ones_stay),
        IN_DIR(everything_acknowledged_survives_kill_9),
        IN_DIR(a_flipped_bit_in_a_table_is_an_error_and_no_other_bytes),
        IN_DIR(a_log_cut_short_loses_only_what_was_not_whole),
        IN_DIR(a_log_damaged_before_its_end_is_not_read_on),
        IN_DIR(a_lost_file_is_damage_and_not_absence),
        IN_DIR(a_record_of_no_bytes_is_damage_and_not_absence),
        IN_DIR(after_a_failed_write_every_later_one_fails_until_reopened),
        IN_DIR(a_full_disk_refuses_values_but_not_deletes_and_passes),
        IN_REDIS(all_is_there_after_reopening),
        IN_EVERYSEC(all_is_there_after_reopening),
        IN_EVERYSEC(replaced_and_given_up_values_leave_no_file),
        IN_EVERYSEC(everything_acknowledged_survives_kill_9),
        IN_EVERYSEC(record_and_value_read_while_they_change_belong_together),
    };

    if (argc == 4 && strcmp(argv[1], PUTTER) == 0)
        return put_until_killed(argv[2], argv[3]);
    if (argc == 3 && strcmp(argv[1], FULL_DISK) == 0)
        return full_disk_told(argv[2]);
    return cmocka_run_group_tests_name("store", tests, NULL, NULL);
}

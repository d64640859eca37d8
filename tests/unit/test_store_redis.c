/*
 * test_store_redis.c - what only the store in a Redis can meet: connections that break, a Redis
 * that dies, forgets or is full, a second process, people at its prompt. (test_store.c has what it
 * has in common with the others.) Each claim has a real redis-server of its own.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <ftw.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "common/hash.h"
#include "common/limits.h"
#include "node/redis_scripts.h"
#include "node/store_redis.h"
#include "tests/lib/redis_server.h"

#define SOON_MS 20000u
#define LARGE (600u << 10) /* some pieces */

/* --- fixture -------------------------------------------------------------------------------- */

struct fixture {
    char dir[64], data[80];
    struct redis_server redis;
    struct redis_url url;
    enum store_fsync mode;
    struct store *s;
    bool fresh, distrusted;
};

/* For one that loads its data. */
static bool may_wait(void *arg, int err, const char *why)
{
    (void)arg;
    (void)why;
    return err == -EAGAIN;
}

static int try_open(struct fixture *f, const char *dir, const char *id, struct store **out,
                    struct err *err)
{
    struct store_redis_opts opts = {.url = &f->url,
                                    .dir = dir,
                                    .node_id = id,
                                    .mode = f->mode,
                                    .shows_ms = 1500,
                                    .may_wait = may_wait};

    err->msg[0] = '\0';
    return store_redis_open(&opts, out, &f->fresh, &f->distrusted, err);
}

static void open_store(struct fixture *f)
{
    struct err err;

    if (try_open(f, f->data, "node-1", &f->s, &err) < 0)
        fail_msg("%s", err.msg);
}

static void close_store(struct fixture *f)
{
    if (f->s != NULL)
        f->s->ops->close(f->s);
    f->s = NULL;
}

static int setup_with(void **state, const char *const *extra)
{
    struct fixture *f = calloc(1, sizeof(*f));
    char dir[80];

    assert_non_null(f);
    (void)snprintf(f->dir, sizeof(f->dir), "/tmp/test-redis-XXXXXX");
    assert_non_null(mkdtemp(f->dir));
    (void)snprintf(dir, sizeof(dir), "%s/redis", f->dir);
    (void)snprintf(f->data, sizeof(f->data), "%s/data", f->dir);
    redis_server_start(&f->redis, dir, extra);
    f->url = redis_server_url(&f->redis);
    *state = f;
    return 0;
}

/* Most claims need no disk, which may be slow. */
static int setup(void **state)
{
    static const char *const no_sync[] = {"--appendfsync", "no", NULL};
    struct fixture *f;

    setup_with(state, no_sync);
    f = *state;
    f->mode = STORE_FSYNC_NEVER;
    open_store(f);
    return 0;
}

static int setup_closed(void **state)
{
    return setup_with(state, NULL);
}

static int setup_synced(void **state)
{
    setup_closed(state);
    open_store(*state);
    return 0;
}

static const char *const everysec[] = {"--appendfsync", "everysec", NULL};

static int setup_everysec(void **state)
{
    struct fixture *f;

    setup_with(state, everysec);
    f = *state;
    f->mode = STORE_FSYNC_EVERYSEC;
    open_store(f);
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

    close_store(f);
    redis_server_kill(&f->redis, SIGKILL);
    redis_url_fini(&f->url);
    (void)nftw(f->dir, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    free(f);
    return 0;
}

/* --- helpers -------------------------------------------------------------------------------- */

static uint64_t now_ms(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000 + (uint64_t)ts.tv_nsec / 1000000;
}

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

static int put(struct store *s, const char *key, const char *record, const char *value)
{
    return s->ops->put(s, span_str(key), span_str(record), span_str(value), NULL, false);
}

static int put_large(struct store *s, const char *key, const char *record, uint64_t seed,
                     size_t len)
{
    struct span value = bytes_of(seed, len);
    struct store_file *file;
    int err = s->ops->file_begin(s, len, &file);

    if (err == 0) {
        err = s->ops->file_write(file, value);
        if (err == 0)
            err = s->ops->file_finish(file);
        if (err == 0)
            err = s->ops->put(s, span_str(key), span_str(record), (struct span){0}, file, false);
        if (err < 0)
            s->ops->file_abort(file);
    }
    span_free(value);
    return err;
}

/* The record, or "" for none, or "-ERRNO". */
static const char *record_of(struct store *s, const char *key)
{
    static char text[64];
    struct store_item item = STORE_ITEM_NONE;
    int err = s->ops->get(s, span_str(key), true, &item);

    if (err < 0)
        (void)snprintf(text, sizeof(text), "%d", err);
    else
        (void)snprintf(text, sizeof(text), "%.*s", (int)item.record.len,
                       item.record.len > 0 ? (char *)item.record.data : "");
    store_item_fini(&item);
    return text;
}

static bool holds_large(struct store *s, const char *key, uint64_t seed, size_t len)
{
    struct span value = bytes_of(seed, len);
    struct store_item item = STORE_ITEM_NONE;
    uint8_t *got = malloc(len);
    bool same = got != NULL && s->ops->get(s, span_str(key), true, &item) == 0 &&
                item.large != NULL && item.large->size == len &&
                item.large->ops->read(item.large, got, len, 0) == 0 &&
                memcmp(got, value.data, len) == 0;

    store_item_fini(&item);
    free(got);
    span_free(value);
    return same;
}

static bool works_soon(struct store *s)
{
    uint64_t end = now_ms() + SOON_MS;

    while (s->ops->probe(s) != 0) {
        if (now_ms() > end)
            return false;
        (void)poll(NULL, 0, 20);
    }
    return true;
}

static bool damaged_soon(struct store *s, struct err *why)
{
    uint64_t end = now_ms() + SOON_MS;

    while (s->ops->damage(s, why) == 0) {
        if (now_ms() > end)
            return false;
        (void)s->ops->probe(s);
        (void)poll(NULL, 0, 20);
    }
    return true;
}

static int64_t n_pieces(struct fixture *f)
{
    struct redis_reply *r = redis_server_ask(&f->redis, "KEYS", "kvfs:f:*", NULL);
    int64_t n = (int64_t)redis_reply_len(r);

    redis_reply_free(r);
    return n;
}

static bool pieces_soon(struct fixture *f, int64_t want)
{
    uint64_t end = now_ms() + SOON_MS;

    while (n_pieces(f) != want) {
        if (now_ms() > end)
            return false;
        (void)f->s->ops->probe(f->s);
        (void)poll(NULL, 0, 20);
    }
    return true;
}

static void ask(struct fixture *f, const char *a, const char *b, const char *c, const char *d)
{
    struct redis_reply *r = redis_server_ask(&f->redis, a, b, c, d, NULL);

    if (redis_reply_kind(r) == REDIS_ERROR)
        fail_msg("%s: %.*s", a, (int)redis_reply_bytes(r).len,
                 (const char *)redis_reply_bytes(r).data);
    redis_reply_free(r);
}

/* How often Redis read from its connections so far. */
static uint64_t n_reads(struct fixture *f)
{
    struct redis_reply *r = redis_server_ask(&f->redis, "INFO", "stats", NULL);
    const char *at = strstr((const char *)redis_reply_bytes(r).data, "total_reads_processed:");
    uint64_t n;

    assert_non_null(at);
    n = strtoull(strchr(at, ':') + 1, NULL, 10);
    redis_reply_free(r);
    return n;
}

/* --- round trips ---------------------------------------------------------------------------- */

static void a_get_and_a_put_are_one_round_trip_each(void **state)
{
    struct fixture *f = *state;
    uint64_t before, own;

    assert_int_equal(put(f->s, "k", "r", "v"), 0); /* a connection is there */
    before = n_reads(f);
    own = n_reads(f) - before; /* of asking */
    before = n_reads(f);
    for (unsigned i = 0; i < 100; i++)
        assert_int_equal(put(f->s, "k", "r", "v"), 0);
    assert_int_equal(n_reads(f) - before - own, 100);
    before = n_reads(f);
    for (unsigned i = 0; i < 100; i++)
        assert_string_equal(record_of(f->s, "k"), "r");
    assert_int_equal(n_reads(f) - before - own, 100);
}

/* --- connections ---------------------------------------------------------------------------- */

static void connections_that_redis_closes_are_no_failure(void **state)
{
    struct fixture *f = *state;

    for (unsigned i = 0; i < 5; i++) {
        assert_int_equal(put(f->s, "k", "r", "v"), 0);
        ask(f, "CLIENT", "KILL", "SKIPME", "yes");
        assert_string_equal(record_of(f->s, "k"), "r");
    }
}

static void forgotten_scripts_are_told_again(void **state)
{
    struct fixture *f = *state;

    assert_int_equal(put(f->s, "k", "r1", "v"), 0);
    ask(f, "SCRIPT", "FLUSH", "SYNC", NULL);
    assert_int_equal(put(f->s, "k", "r2", "v"), 0);
    assert_string_equal(record_of(f->s, "k"), "r2");
}

static void a_frozen_redis_is_an_error_in_time_and_then_one_at_once(void **state)
{
    struct fixture *f = *state;
    uint64_t start;
    struct err why = {""};

    assert_int_equal(put(f->s, "k", "r1", "v"), 0);
    redis_server_freeze(&f->redis);
    start = now_ms();
    assert_int_equal(put(f->s, "k", "r2", "v"), -EHOSTDOWN);
    assert_int_equal(put(f->s, "k", "r3", "v"), -EHOSTDOWN);
    assert_true(now_ms() - start < 12000);
    start = now_ms();
    assert_int_equal(put(f->s, "k", "r4", "v"), -EHOSTDOWN);
    assert_string_equal(record_of(f->s, "k"), "-112"); /* EHOSTDOWN */
    assert_true(now_ms() - start < 1000);
    f->s->ops->explain(f->s, &why);
    assert_non_null(strstr(why.msg, f->url.shown));
    redis_server_thaw(&f->redis);
    assert_true(works_soon(f->s));
    /* Either is right: r2 was sent. But what is read now stays. */
    assert_int_equal(put(f->s, "k", "r5", "v"), 0);
    for (unsigned i = 0; i < 20; i++)
        assert_string_equal(record_of(f->s, "k"), "r5");
    f->s->ops->explain(f->s, &why);
    assert_string_equal(why.msg, "");
}

static void what_was_sent_in_an_earlier_session_is_refused(void **state)
{
    struct fixture *f = *state;
    struct redis_reply *old = redis_server_ask(&f->redis, "GET", "kvfs:session", NULL), *r;
    char session[64];

    (void)snprintf(session, sizeof(session), "%s", (const char *)redis_reply_bytes(old).data);
    redis_reply_free(old);
    assert_int_equal(put(f->s, "k", "r1", "v"), 0);
    redis_server_freeze(&f->redis);
    assert_int_equal(put(f->s, "k", "r2", "v"), -EHOSTDOWN);
    redis_server_thaw(&f->redis);
    assert_true(works_soon(f->s));
    assert_int_equal(put(f->s, "k", "r3", "v"), 0);
    /* As it would be found in some buffer, late: */
    r = redis_server_ask(&f->redis, "EVAL", redis_script_text(REDIS_PUT), "0", session, "0", "k",
                         "\1", "r2", "value", "v", "0", NULL);
    assert_true(redis_reply_is_error(r, "KVFSSESSION"));
    redis_reply_free(r);
    assert_string_equal(record_of(f->s, "k"), "r3");
}

static void a_redis_killed_and_started_again_has_all_that_was_acknowledged(void **state)
{
    struct fixture *f = *state;
    struct store_stats stats;
    uint64_t start;

    for (unsigned round = 0; round < 3; round++) {
        char record[16];

        (void)snprintf(record, sizeof(record), "r%u", round);
        assert_int_equal(put(f->s, "k", record, "v"), 0);
        assert_int_equal(put_large(f->s, "large", record, round, LARGE), 0);
        redis_server_kill(&f->redis, SIGKILL);
        start = now_ms();
        assert_int_equal(put(f->s, "lost", "r", "v"), -EHOSTDOWN);
        assert_int_equal(f->s->ops->probe(f->s), -EHOSTDOWN);
        assert_int_equal(f->s->ops->stats(f->s, &stats), 0); /* as it was last seen */
        assert_int_equal(stats.n_keys, 2);
        assert_true(now_ms() - start < 3000);
        redis_server_again(&f->redis, NULL);
        assert_true(works_soon(f->s));
        assert_string_equal(record_of(f->s, "k"), record);
        assert_true(holds_large(f->s, "large", round, LARGE));
        assert_string_equal(record_of(f->s, "lost"), "");
        assert_int_equal(f->s->ops->damage(f->s, NULL), 0);
    }
    assert_true(pieces_soon(f, 3));
}

/* --- who uses it ---------------------------------------------------------------------------- */

#define OPEN_AND_DIE "--open-and-die"

/* This program as a child: opens the store and dies, without a word to Redis. */
static int open_and_die(char **args)
{
    struct redis_url url;
    struct store_redis_opts opts = {.url = &url,
                                    .dir = args[1],
                                    .node_id = "node-1",
                                    .mode = (enum store_fsync)(args[2][0] - '0'),
                                    .shows_ms = 500};
    struct store *s;
    struct err err;
    bool fresh, distrusted;

    if (redis_url_parse(args[0], &url, &err) < 0 ||
        store_redis_open(&opts, &s, &fresh, &distrusted, &err) < 0)
        return 1;
    if (put(s, "k", "by the dead", "v") < 0 || put_large(s, "big", "r", 1, LARGE) < 0)
        return 2;
    _exit(0); /* nothing is closed */
}

static void let_one_die(struct fixture *f, const char *dir)
{
    char mode[4];
    int status;
    pid_t pid;

    (void)snprintf(mode, sizeof(mode), "%d", (int)f->mode);
    pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        (void)execl("/proc/self/exe", "test_store_redis", OPEN_AND_DIE, f->url.shown, dir, mode,
                    (char *)NULL);
        _exit(127);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

struct prober {
    struct store *s;
    atomic_bool stop;
};

static void *probe_on(void *arg)
{
    struct prober *p = arg;

    while (!atomic_load(&p->stop)) {
        (void)p->s->ops->probe(p->s);
        (void)poll(NULL, 0, 100);
    }
    return NULL;
}

static void a_second_process_and_another_node_are_refused(void **state)
{
    struct fixture *f = *state;
    char other[100];
    struct prober p = {.s = f->s};
    pthread_t thread;
    struct store *s;
    struct err err;

    (void)snprintf(other, sizeof(other), "%s/other", f->dir);
    assert_int_equal(try_open(f, f->data, "node-1", &s, &err), -EBUSY); /* the directory is */
    assert_int_equal(pthread_create(&thread, NULL, probe_on, &p), 0);
    assert_int_equal(try_open(f, other, "node-1", &s, &err), -EBUSY);
    assert_non_null(strstr(err.msg, "another kvnode"));
    assert_non_null(strstr(err.msg, f->url.shown));
    atomic_store(&p.stop, true);
    pthread_join(thread, NULL);
    (void)snprintf(other, sizeof(other), "%s/third", f->dir);
    assert_int_equal(try_open(f, other, "node-2", &s, &err), -EINVAL);
    assert_non_null(strstr(err.msg, "node-1"));
    assert_non_null(strstr(err.msg, "node-2"));
    assert_int_equal(put(f->s, "k", "r", "v"), 0);
}

static void after_a_crash_it_is_taken_at_once_by_its_own_directory(void **state)
{
    struct fixture *f = *state;
    uint64_t start;

    let_one_die(f, f->data);
    start = now_ms();
    open_store(f);
    assert_true(now_ms() - start < 5000);
    assert_false(f->fresh);
    assert_false(f->distrusted);
    assert_string_equal(record_of(f->s, "k"), "by the dead");
    assert_true(holds_large(f->s, "big", 1, LARGE));
}

static void a_silent_one_is_taken_over_and_then_knows(void **state)
{
    struct fixture *f = *state;
    struct store *old = f->s;
    char other[100];
    struct err why = {""};

    assert_int_equal(put(old, "k", "r1", "v"), 0);
    (void)snprintf(other, sizeof(other), "%s/other", f->dir);
    if (try_open(f, other, "node-1", &f->s, &why) < 0) /* nobody probes: it looks dead */
        fail_msg("%s", why.msg);
    assert_false(f->fresh);
    assert_true(put(old, "k", "r2", "v") < 0);
    assert_true(damaged_soon(old, &why));
    assert_non_null(strstr(why.msg, "taken over"));
    assert_int_equal(store_redis_condemn(f->data, old, &why), -EBUSY);
    assert_string_equal(record_of(f->s, "k"), "r1");
    old->ops->close(old);
    assert_string_equal(record_of(f->s, "k"), "r1");
}

/* --- lost data ------------------------------------------------------------------------------ */

static void a_flushed_redis_is_a_lost_disk_and_no_empty_one(void **state)
{
    struct fixture *f = *state;
    struct err why = {""};
    struct buf out = {0};

    assert_int_equal(put(f->s, "k", "r1", "v"), 0);
    assert_int_equal(f->s->ops->state_put(f->s, "floor", span_str("9")), 0);
    ask(f, "FLUSHALL", NULL, NULL, NULL);
    assert_string_equal(record_of(f->s, "k"), "-5"); /* EIO */
    assert_true(f->s->ops->state_get(f->s, "floor", &out) != -ENOENT);
    assert_true(put(f->s, "k", "r2", "v") < 0);
    assert_true(damaged_soon(f->s, &why));
    assert_non_null(strstr(why.msg, "lost"));
    assert_int_equal(store_redis_condemn(f->data, f->s, &why), 0);
    close_store(f);
    open_store(f);
    assert_true(f->fresh);
}

/* The log of Redis as it was some changes ago. */
static void set_back(struct fixture *f, const char *how)
{
    char command[300];

    (void)snprintf(command, sizeof(command), "cd %s && rm -rf %s && cp -a %s %s", f->redis.dir,
                   strcmp(how, "save") == 0 ? "saved" : "appendonlydir",
                   strcmp(how, "save") == 0 ? "appendonlydir" : "saved",
                   strcmp(how, "save") == 0 ? "saved" : "appendonlydir");
    assert_int_equal(system(command), 0);
}

static void a_redis_that_was_set_back_is_noticed_at_once_and_at_the_next_start(void **state)
{
    struct fixture *f = *state;
    struct err why = {""};

    assert_int_equal(put(f->s, "k", "r1", "v"), 0);
    set_back(f, "save");
    assert_int_equal(put(f->s, "k", "r2", "v"), 0);
    redis_server_kill(&f->redis, SIGKILL);
    set_back(f, "restore");
    redis_server_again(&f->redis, NULL);
    assert_true(damaged_soon(f->s, &why));
    assert_non_null(strstr(why.msg, "the last 1 changes"));
    assert_string_equal(record_of(f->s, "k"), "-5");
    close_store(f);
    for (unsigned i = 0; i < 2; i++) { /* until it is taken to heart */
        open_store(f);
        assert_false(f->fresh);
        assert_true(f->distrusted);
        assert_string_equal(record_of(f->s, "k"), "r1");
        if (i == 1)
            assert_int_equal(store_redis_trust(f->s), 0);
        close_store(f);
    }
    open_store(f);
    assert_false(f->distrusted);
}

static void a_loss_that_the_directory_could_not_note_is_known_to_redis(void **state)
{
    struct fixture *f = *state;
    struct err why = {""};
    char path[120];

    (void)snprintf(path, sizeof(path), "%s/redis.new", f->data);
    set_back(f, "save");
    assert_int_equal(put(f->s, "k", "r2", "v"), 0);
    assert_int_equal(mkdir(path, 0700), 0); /* as on a full disk nothing can be written there */
    redis_server_kill(&f->redis, SIGKILL);
    set_back(f, "restore");
    redis_server_again(&f->redis, NULL);
    assert_true(damaged_soon(f->s, &why));
    assert_true(store_redis_condemn(f->data, f->s, &why) < 0);
    close_store(f);
    assert_int_equal(rmdir(path), 0);
    for (unsigned i = 0; i < 2; i++) { /* until it is taken to heart */
        open_store(f);
        assert_true(f->distrusted);
        if (i == 1)
            assert_int_equal(store_redis_trust(f->s), 0);
        close_store(f);
    }
    open_store(f);
    assert_false(f->distrusted);
}

static void one_that_was_set_back_while_the_node_was_away_is_noticed(void **state)
{
    struct fixture *f = *state;

    assert_int_equal(put(f->s, "k", "r1", "v"), 0);
    set_back(f, "save");
    close_store(f);
    open_store(f);
    assert_int_equal(put(f->s, "k", "r2", "v"), 0);
    close_store(f);
    redis_server_kill(&f->redis, SIGKILL);
    set_back(f, "restore");
    redis_server_again(&f->redis, NULL);
    open_store(f);
    assert_true(f->distrusted);
}

static void without_fsync_a_crash_of_both_is_distrusted_and_of_one_is_not(void **state)
{
    struct fixture *f = *state;

    close_store(f);
    let_one_die(f, f->data);
    open_store(f); /* Redis lives on */
    assert_false(f->distrusted);
    close_store(f);
    redis_server_kill(&f->redis, SIGTERM);
    redis_server_again(&f->redis, everysec);
    open_store(f); /* both stopped in good order */
    assert_false(f->distrusted);
    redis_server_kill(&f->redis, SIGTERM);
    redis_server_again(&f->redis, everysec);
    assert_true(works_soon(f->s)); /* Redis alone, and all is there */
    assert_int_equal(f->s->ops->damage(f->s, NULL), 0);
    close_store(f);
    let_one_die(f, f->data);
    redis_server_kill(&f->redis, SIGKILL);
    redis_server_again(&f->redis, everysec);
    open_store(f);
    assert_true(f->distrusted);
}

/* --- people at its prompt ------------------------------------------------------------------- */

static void what_people_removed_is_damage_and_not_absence(void **state)
{
    struct fixture *f = *state;
    struct store_item item = STORE_ITEM_NONE;
    struct store_iter *it;

    assert_int_equal(put(f->s, "k", "r", "v"), 0);
    ask(f, "DEL", "kvfs:r:k", NULL, NULL);
    assert_string_equal(record_of(f->s, "k"), "-74"); /* EBADMSG */
    assert_int_equal(f->s->ops->iter_new(f->s, &it), 0);
    f->s->ops->iter_seek(it, (struct span){0});
    assert_true(f->s->ops->iter_valid(it));
    assert_int_equal(f->s->ops->iter_record(it).len, 0);
    f->s->ops->iter_free(it);
    assert_int_equal(put(f->s, "k", "r", "v"), 0); /* and can be mended */
    assert_string_equal(record_of(f->s, "k"), "r");
    ask(f, "ZREM", "kvfs:keys", "k", NULL);
    assert_string_equal(record_of(f->s, "k"), "-74");
    assert_int_equal(put(f->s, "k", "r", "v"), 0);
    assert_string_equal(record_of(f->s, "k"), "r");
    ask(f, "DEL", "kvfs:v:k", NULL, NULL);
    assert_string_equal(record_of(f->s, "k"), "-74");
    assert_int_equal(f->s->ops->get(f->s, span_str("k"), false, &item), 0);
    store_item_fini(&item);
}

static void a_lost_piece_is_damage(void **state)
{
    struct fixture *f = *state;
    struct redis_reply *r;
    char name[100];

    assert_int_equal(put_large(f->s, "k", "r", 1, LARGE), 0);
    assert_true(holds_large(f->s, "k", 1, LARGE));
    r = redis_server_ask(&f->redis, "KEYS", "kvfs:f:*:1", NULL);
    assert_int_equal(redis_reply_len(r), 1);
    (void)snprintf(name, sizeof(name), "%s",
                   (const char *)redis_reply_bytes(redis_reply_at(r, 0)).data);
    redis_reply_free(r);
    ask(f, "DEL", name, NULL, NULL);
    assert_false(holds_large(f->s, "k", 1, LARGE));
    assert_int_equal(put_large(f->s, "k", "r", 1, LARGE), 0);
    assert_true(holds_large(f->s, "k", 1, LARGE));
}

static void a_value_of_the_node_that_was_changed_is_damaged(void **state)
{
    struct fixture *f = *state;
    struct buf out = {0};

    assert_int_equal(f->s->ops->state_put(f->s, "floor", span_str("one")), 0);
    ask(f, "HSET", "kvfs:state", "floor", "another value");
    assert_int_equal(f->s->ops->state_get(f->s, "floor", &out), -EBADMSG);
    buf_fini(&out);
}

/* --- large values --------------------------------------------------------------------------- */

static void values_that_nobody_names_leave_nothing(void **state)
{
    struct fixture *f = *state;
    struct store_file *file;
    struct span bytes = bytes_of(1, LARGE);

    assert_int_equal(put_large(f->s, "a", "r1", 1, LARGE), 0);
    assert_int_equal(n_pieces(f), 3);
    assert_int_equal(put_large(f->s, "a", "r2", 2, LARGE), 0);
    assert_true(pieces_soon(f, 3));
    assert_int_equal(put(f->s, "a", "r3", "small"), 0);
    assert_true(pieces_soon(f, 0));
    assert_int_equal(f->s->ops->file_begin(f->s, LARGE, &file), 0);
    assert_int_equal(f->s->ops->file_write(file, span_of(bytes.data, LARGE - 1)), 0);
    assert_int_equal(n_pieces(f), 2);
    f->s->ops->file_abort(file);
    assert_true(pieces_soon(f, 0));
    assert_int_equal(put_large(f->s, "b", "r", 1, LARGE), 0);
    assert_int_equal(f->s->ops->drop(f->s, span_str("b")), 0);
    assert_true(pieces_soon(f, 0));
    /* A process that ended in the midst of it: */
    assert_int_equal(put_large(f->s, "c", "r", 3, LARGE), 0);
    ask(f, "SET", "kvfs:f:0123456789abcdef0123456789abcdef:0", "left", NULL);
    ask(f, "SADD", "kvfs:loose", "0123456789abcdef0123456789abcdef0000000000000004", NULL);
    close_store(f);
    open_store(f);
    assert_true(pieces_soon(f, 3));
    assert_true(holds_large(f->s, "c", 3, LARGE));
    span_free(bytes);
}

static void a_value_that_is_read_stays_until_it_is_closed(void **state)
{
    struct fixture *f = *state;
    struct store_item item = STORE_ITEM_NONE;
    struct span value = bytes_of(1, LARGE);
    uint8_t *got = malloc(LARGE);

    assert_int_equal(put_large(f->s, "k", "r1", 1, LARGE), 0);
    assert_int_equal(f->s->ops->get(f->s, span_str("k"), true, &item), 0);
    assert_int_equal(put(f->s, "k", "r2", "small"), 0);
    assert_int_equal(f->s->ops->probe(f->s), 0);
    assert_int_equal(item.large->ops->read(item.large, got, 1000, LARGE - 1000), 0);
    assert_memory_equal(got, value.data + LARGE - 1000, 1000);
    assert_int_equal(item.large->ops->read(item.large, got, 1000, LARGE - 999), -EBADMSG);
    store_item_fini(&item);
    assert_true(pieces_soon(f, 0));
    free(got);
    span_free(value);
}

/* --- memory --------------------------------------------------------------------------------- */

static void a_full_redis_refuses_values_but_not_deletes(void **state)
{
    struct fixture *f = *state;
    char *value = calloc(1, 50001);
    struct err why = {""};
    unsigned n = 0;
    int err = 0;

    memset(value, 'x', 50000);
    ask(f, "CONFIG", "SET", "maxmemory", "6mb");
    for (; err == 0 && n < 1000; n += err == 0) {
        char key[16];

        (void)snprintf(key, sizeof(key), "k%u", n);
        err = put(f->s, key, "r", value);
    }
    assert_int_equal(err, -ENOSPC);
    f->s->ops->explain(f->s, &why);
    assert_non_null(strstr(why.msg, "maxmemory"));
    assert_int_equal(put_large(f->s, "large", "r", 1, LARGE), -ENOSPC);
    assert_string_equal(record_of(f->s, "k0"), "r");
    assert_int_equal(f->s->ops->state_put(f->s, "floor", span_str("9")), 0);
    assert_int_equal(f->s->ops->probe(f->s), 0);
    for (unsigned i = 0; i < n; i++) {
        char key[16];

        (void)snprintf(key, sizeof(key), "k%u", i);
        assert_int_equal(put(f->s, key, "gone", ""), 0);
    }
    assert_int_equal(put(f->s, "k0", "r2", value), 0);
    assert_string_equal(record_of(f->s, "k1"), "gone");
    free(value);
}

/* --- a walk while it changes ---------------------------------------------------------------- */

#define N_WALK 2500u

struct changer {
    struct store *s;
    atomic_bool stop;
    _Atomic unsigned n;
    int err;
};

static void *change_on(void *arg)
{
    struct changer *c = arg;

    for (uint64_t i = 1; !atomic_load(&c->stop) && c->err == 0; i++) {
        uint32_t key = __builtin_bswap32((uint32_t)(hash_fmix64(i) % (2 * N_WALK)));

        if (i % 3 == 0)
            c->err = c->s->ops->drop(c->s, span_of(&key, sizeof(key)));
        else
            c->err = c->s->ops->put(c->s, span_of(&key, sizeof(key)), span_str("changed"),
                                    (struct span){0}, NULL, false);
        atomic_fetch_add(&c->n, 1);
    }
    return NULL;
}

static void a_walk_sees_its_moment_whatever_is_changed_meanwhile(void **state)
{
    struct fixture *f = *state;
    const struct store_ops *ops = f->s->ops;
    struct changer c = {.s = f->s};
    struct store_iter *it;
    uint64_t end_ms;
    pthread_t thread;

    for (uint32_t i = 0; i < N_WALK; i++) { /* every second one */
        uint32_t key = __builtin_bswap32(2 * i);

        assert_int_equal(ops->put(f->s, span_of(&key, sizeof(key)), span_str("old"),
                                  (struct span){0}, NULL, false),
                         0);
    }
    assert_int_equal(ops->iter_new(f->s, &it), 0);
    assert_int_equal(pthread_create(&thread, NULL, change_on, &c), 0);
    end_ms = now_ms() + SOON_MS;
    for (unsigned round = 0; round < 3 || (atomic_load(&c.n) < 50 && now_ms() < end_ms); round++) {
        ops->iter_seek(it, (struct span){0});
        for (uint32_t i = 0; i < N_WALK; i++) {
            uint32_t key = __builtin_bswap32(2 * i);

            assert_true(ops->iter_valid(it));
            assert_true(span_eq(ops->iter_key(it), span_of(&key, sizeof(key))));
            assert_true(span_eq(ops->iter_record(it), span_str("old")));
            ops->iter_next(it);
        }
        assert_false(ops->iter_valid(it));
        assert_int_equal(ops->iter_err(it), 0);
    }
    atomic_store(&c.stop, true);
    pthread_join(thread, NULL);
    assert_int_equal(c.err, 0);
    assert_true(atomic_load(&c.n) >= 50);
    ops->iter_free(it);
}

/* --- what is refused ------------------------------------------------------------------------ */

static void refused(struct fixture *f, int want, const char *word)
{
    struct store *s;
    struct err err;
    int ret = try_open(f, f->data, "node-1", &s, &err);

    if (ret == 0)
        s->ops->close(s);
    if (ret != want || strstr(err.msg, word) == NULL || strstr(err.msg, f->url.shown) == NULL)
        fail_msg("%d, not %d: %s (%s)", ret, want, err.msg, word);
}

static void a_redis_that_does_not_keep_the_promise_is_refused(void **state)
{
    struct fixture *f = *state;

    ask(f, "CONFIG", "SET", "appendfsync", "everysec");
    refused(f, -EINVAL, "appendfsync always");
    ask(f, "CONFIG", "SET", "appendfsync", "always");
    ask(f, "CONFIG", "SET", "no-appendfsync-on-rewrite", "yes");
    refused(f, -EINVAL, "no-appendfsync-on-rewrite");
    ask(f, "CONFIG", "SET", "no-appendfsync-on-rewrite", "no");
    ask(f, "CONFIG", "SET", "maxmemory-policy", "allkeys-lru");
    refused(f, -EINVAL, "noeviction");
    ask(f, "CONFIG", "SET", "maxmemory-policy", "noeviction");
    ask(f, "CONFIG", "SET", "appendonly", "no");
    refused(f, -EINVAL, "appendonly yes");
    f->mode = STORE_FSYNC_EVERYSEC;
    refused(f, -EINVAL, "appendonly yes");
    f->mode = STORE_FSYNC_NEVER;
    open_store(f);
    close_store(f);
    f->mode = STORE_FSYNC_ALWAYS;
    ask(f, "CONFIG", "SET", "appendonly", "yes");
    open_store(f);
}

static void a_replica_is_refused(void **state)
{
    struct fixture *f = *state;

    ask(f, "REPLICAOF", "127.0.0.1", "1", NULL);
    refused(f, -EROFS, "READONLY");
}

static void passwords_are_asked_for_and_checked(void **state)
{
    struct fixture *f = *state;

    ask(f, "CONFIG", "SET", "requirepass", "s3cret");
    refused(f, -EACCES, "NOAUTH");
    f->url.password = strdup("guess");
    refused(f, -EACCES, "WRONGPASS");
    free(f->url.password);
    f->url.password = strdup("s3cret");
    open_store(f);
    assert_int_equal(put(f->s, "k", "r", "v"), 0);
}

static void data_without_an_owner_is_refused(void **state)
{
    struct fixture *f = *state;

    assert_int_equal(put(f->s, "k", "r", "v"), 0);
    close_store(f);
    ask(f, "DEL", "kvfs:owner", NULL, NULL);
    refused(f, -EINVAL, "kvfs:owner");
    ask(f, "FLUSHDB", NULL, NULL, NULL);
    open_store(f);
    assert_true(f->fresh);
}

static void nobody_there_is_told_with_the_address(void **state)
{
    struct fixture *f = *state;

    redis_server_kill(&f->redis, SIGKILL);
    refused(f, -EHOSTDOWN, "refused");
}

#define CLAIM(claim) cmocka_unit_test_setup_teardown(claim, setup, teardown)
#define SYNCED(claim) cmocka_unit_test_setup_teardown(claim, setup_synced, teardown)
#define CLOSED(claim) cmocka_unit_test_setup_teardown(claim, setup_closed, teardown)

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        CLAIM(a_get_and_a_put_are_one_round_trip_each),
        CLAIM(connections_that_redis_closes_are_no_failure),
        CLAIM(forgotten_scripts_are_told_again),
        CLAIM(a_frozen_redis_is_an_error_in_time_and_then_one_at_once),
        CLAIM(what_was_sent_in_an_earlier_session_is_refused),
        SYNCED(a_redis_killed_and_started_again_has_all_that_was_acknowledged),
        CLAIM(a_second_process_and_another_node_are_refused),
        CLOSED(after_a_crash_it_is_taken_at_once_by_its_own_directory),
        CLAIM(a_silent_one_is_taken_over_and_then_knows),
        CLAIM(a_flushed_redis_is_a_lost_disk_and_no_empty_one),
        SYNCED(a_redis_that_was_set_back_is_noticed_at_once_and_at_the_next_start),
        SYNCED(a_loss_that_the_directory_could_not_note_is_known_to_redis),
        SYNCED(one_that_was_set_back_while_the_node_was_away_is_noticed),
        cmocka_unit_test_setup_teardown(
            without_fsync_a_crash_of_both_is_distrusted_and_of_one_is_not, setup_everysec,
            teardown),
        CLAIM(what_people_removed_is_damage_and_not_absence),
        CLAIM(a_lost_piece_is_damage),
        CLAIM(a_value_of_the_node_that_was_changed_is_damaged),
        CLAIM(values_that_nobody_names_leave_nothing),
        CLAIM(a_value_that_is_read_stays_until_it_is_closed),
        CLAIM(a_full_redis_refuses_values_but_not_deletes),
        CLAIM(a_walk_sees_its_moment_whatever_is_changed_meanwhile),
        CLOSED(a_redis_that_does_not_keep_the_promise_is_refused),
        CLOSED(a_replica_is_refused),
        CLOSED(passwords_are_asked_for_and_checked),
        SYNCED(data_without_an_owner_is_refused),
        CLOSED(nobody_there_is_told_with_the_address),
    };

    if (argc == 5 && strcmp(argv[1], OPEN_AND_DIE) == 0)
        return open_and_die(argv + 2);
    return cmocka_run_group_tests_name("store_redis", tests, NULL, NULL);
}

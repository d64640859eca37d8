/*
 * test_redis_refusals.c - a Redis that answers, and refuses: by an ACL, without memory, with a disk
 * that fails, as a replica, while it loads, or because it would throw data away. Each claim has a
 * real redis-server of its own, or (for old versions) the bytes that one says.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <arpa/inet.h>
#include <cmocka.h>
#include <errno.h>
#include <ftw.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

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
    struct err why;
};

static int setup_with(void **state, const char *const *extra, enum store_fsync mode)
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
    f->mode = mode;
    *state = f;
    return 0;
}

/* Most claims need no disk, which may be slow. */
static int setup(void **state)
{
    static const char *const no_sync[] = {"--appendfsync", "no", NULL};

    return setup_with(state, no_sync, STORE_FSYNC_NEVER);
}

static int setup_synced(void **state)
{
    return setup_with(state, NULL, STORE_FSYNC_ALWAYS);
}

/* For one that loads its data. */
static bool may_wait(void *arg, int err, const char *why)
{
    (void)arg;
    (void)why;
    return err == -EAGAIN;
}

static int try_open(struct fixture *f)
{
    struct store_redis_opts opts = {.url = &f->url,
                                    .dir = f->data,
                                    .node_id = "node-1",
                                    .mode = f->mode,
                                    .shows_ms = 500,
                                    .may_wait = may_wait};
    bool fresh, distrusted;

    f->why.msg[0] = '\0';
    return store_redis_open(&opts, &f->s, &fresh, &distrusted, &f->why);
}

static void open_store(struct fixture *f)
{
    if (try_open(f) < 0)
        fail_msg("%s", f->why.msg);
}

static void close_store(struct fixture *f)
{
    if (f->s != NULL)
        f->s->ops->close(f->s);
    f->s = NULL;
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

static void ask(struct fixture *f, const char *a, const char *b, const char *c, const char *d)
{
    struct redis_reply *r = redis_server_ask(&f->redis, a, b, c, d, NULL);

    if (redis_reply_kind(r) == REDIS_ERROR)
        fail_msg("%s: %.*s", a, (int)redis_reply_bytes(r).len,
                 (const char *)redis_reply_bytes(r).data);
    redis_reply_free(r);
}

static bool info_has(struct fixture *f, const char *line)
{
    struct redis_reply *r = redis_server_ask(&f->redis, "INFO", NULL);
    bool has = strstr((const char *)redis_reply_bytes(r).data, line) != NULL;

    redis_reply_free(r);
    return has;
}

static int put(struct store *s, const char *key, const char *record, const char *value)
{
    return s->ops->put(s, span_str(key), span_str(record), span_str(value), NULL, false);
}

static int put_large(struct store *s, const char *key)
{
    uint8_t *value = calloc(1, LARGE);
    struct store_file *file;
    int err = s->ops->file_begin(s, LARGE, &file);

    assert_non_null(value);
    assert_int_equal(err, 0);
    err = s->ops->file_write(file, span_of(value, LARGE));
    if (err == 0)
        err = s->ops->file_finish(file);
    if (err == 0)
        err = s->ops->put(s, span_str(key), span_str("r"), (struct span){0}, file, false);
    if (err < 0)
        s->ops->file_abort(file);
    free(value);
    return err;
}

/* What a get says, and then the reading of a large value. */
static int get(struct store *s, const char *key)
{
    struct store_item item = STORE_ITEM_NONE;
    uint8_t *bytes = malloc(LARGE);
    int err = s->ops->get(s, span_str(key), true, &item);

    assert_non_null(bytes);
    if (err == 0 && item.record.len == 0)
        err = -ENOENT;
    if (err == 0 && item.large != NULL)
        err = item.large->ops->read(item.large, bytes, LARGE, 0);
    store_item_fini(&item);
    free(bytes);
    return err;
}

/* Probes until it says `want`, and explain() has the word. */
static void says_soon(struct fixture *f, int want, const char *word)
{
    uint64_t end = now_ms() + SOON_MS;
    struct err why = {""};
    int err;

    for (;;) {
        err = f->s->ops->probe(f->s);
        why.msg[0] = '\0';
        if (err < 0)
            store_explain(f->s, err, &why);
        if (err == want && strstr(why.msg, word) != NULL)
            return;
        if (now_ms() > end)
            fail_msg("%d, not %d: %s (%s)", err, want, why.msg, word);
        (void)poll(NULL, 0, 20);
    }
}

/* --- users ---------------------------------------------------------------------------------- */

/* The user of that (encoded) name who may do all, but for what `but` says, to keys below kvfs:. */
static void be_user(struct fixture *f, const char *name, const char *encoded, const char *but)
{
    char text[200];

    ask(f, "ACL", "DELUSER", name, NULL);
    redis_reply_free(redis_server_ask(&f->redis, "ACL", "SETUSER", name, "on", ">pass word",
                                      "~kvfs:*", "+@all", but, NULL));
    redis_url_fini(&f->url);
    (void)snprintf(text, sizeof(text), "redis://%s@127.0.0.1:%u/0", encoded, f->redis.port);
    assert_int_equal(redis_url_parse(text, &f->url, &f->why), 0);
    f->url.password = strdup("pass word");
}

static void a_user_with_the_least_rights_keeps_all_promises(void **state)
{
    struct fixture *f = *state;
    struct store_iter *it;

    be_user(f, "kv@fs/1:x%", "kv%40fs%2F1%3ax%25", "-@dangerous"); /* neither INFO nor CONFIG */
    open_store(f);
    assert_int_equal(put(f->s, "k", "r", "v"), 0);
    assert_int_equal(put_large(f->s, "large"), 0);
    assert_int_equal(get(f->s, "k"), 0);
    assert_int_equal(get(f->s, "large"), 0);
    assert_int_equal(get(f->s, "none"), -ENOENT);
    assert_int_equal(f->s->ops->state_put(f->s, "floor", span_str("9")), 0);
    assert_int_equal(f->s->ops->iter_new(f->s, &it), 0);
    f->s->ops->iter_seek(it, (struct span){0});
    assert_true(f->s->ops->iter_valid(it));
    f->s->ops->iter_free(it);
    assert_int_equal(f->s->ops->drop(f->s, span_str("large")), 0);
    assert_int_equal(f->s->ops->probe(f->s), 0);
    close_store(f);
    redis_server_kill(&f->redis, SIGKILL); /* users are not kept: the default one is asked again */
    redis_server_again(&f->redis, NULL);
    be_user(f, "kv", "kv", "-@dangerous");
    open_store(f);
    assert_int_equal(get(f->s, "k"), 0);
}

static void what_throws_data_away_is_refused_whoever_may_tell_it(void **state)
{
    struct fixture *f = *state;

    ask(f, "CONFIG", "SET", "maxmemory-policy", "allkeys-random");
    be_user(f, "kv", "kv", "-info");
    assert_int_equal(try_open(f), -EINVAL);
    assert_non_null(strstr(f->why.msg, "noeviction"));
    be_user(f, "kv", "kv", "-config");
    assert_int_equal(try_open(f), -EINVAL);
    assert_non_null(strstr(f->why.msg, "noeviction"));
    be_user(f, "kv", "kv", "-@dangerous"); /* as docs/redis.md has it */
    ask(f, "ACL", "SETUSER", "kv", "+config|get");
    assert_int_equal(try_open(f), -EINVAL);
    assert_non_null(strstr(f->why.msg, "noeviction"));
}

static void a_command_that_is_forbidden_is_no_damage(void **state)
{
    struct fixture *f = *state;

    be_user(f, "kv", "kv", "+ping");
    open_store(f);
    assert_int_equal(put(f->s, "k", "r", "v"), 0);
    assert_int_equal(put_large(f->s, "large"), 0);
    ask(f, "ACL", "SETUSER", "kv", "-zscore");
    assert_int_equal(get(f->s, "k"), -EIO);
    store_explain(f->s, -EIO, &f->why);
    assert_non_null(strstr(f->why.msg, "NOPERM"));
    ask(f, "ACL", "SETUSER", "kv", "+zscore");
    ask(f, "ACL", "SETUSER", "kv", "-getrange");
    assert_int_equal(get(f->s, "k"), 0);
    assert_int_equal(get(f->s, "large"), -EIO);
    store_explain(f->s, -EIO, &f->why);
    assert_non_null(strstr(f->why.msg, "NOPERM"));
    ask(f, "ACL", "SETUSER", "kv", "+getrange");
    assert_int_equal(get(f->s, "large"), 0);
}

/* --- memory --------------------------------------------------------------------------------- */

static void a_policy_that_throws_data_away_is_refused_when_it_is_set_later(void **state)
{
    struct fixture *f = *state;

    open_store(f);
    assert_int_equal(put(f->s, "k", "r", "v"), 0);
    ask(f, "CONFIG", "SET", "maxmemory-policy", "allkeys-lru");
    says_soon(f, -EHOSTDOWN, "noeviction");
    assert_int_equal(put(f->s, "k", "r", "v"), -EHOSTDOWN);
    ask(f, "CONFIG", "SET", "maxmemory-policy", "volatile-lru"); /* nothing of ours expires */
    says_soon(f, 0, "");
    assert_int_equal(get(f->s, "k"), 0);
}

static void without_memory_nothing_grows_that_is_not_smaller_than_before(void **state)
{
    struct fixture *f = *state;
    char *attributes = calloc(1, 50001);

    assert_non_null(attributes);
    memset(attributes, 'a', 50000);
    open_store(f);
    assert_int_equal(put(f->s, "k", "record", "v"), 0);
    assert_int_equal(put_large(f->s, "large"), 0);
    ask(f, "CONFIG", "SET", "maxmemory", "1");
    assert_int_equal(put(f->s, "k", "record", "w"), -ENOSPC);
    store_explain(f->s, -ENOSPC, &f->why);
    assert_non_null(strstr(f->why.msg, "maxmemory"));
    assert_int_equal(put(f->s, "empty", "record", ""), -ENOSPC);
    assert_int_equal(put(f->s, "k", attributes, ""), -ENOSPC);
    assert_int_equal(
        f->s->ops->put(f->s, span_str("k"), span_str(attributes), (struct span){0}, NULL, true),
        -ENOSPC);
    assert_int_equal(put_large(f->s, "other"), -ENOSPC);
    assert_int_equal(get(f->s, "empty"), -ENOENT);
    /* A session begins, attributes change, and deletes go on. */
    close_store(f);
    open_store(f);
    assert_int_equal(
        f->s->ops->put(f->s, span_str("k"), span_str("changed"), (struct span){0}, NULL, true), 0);
    assert_int_equal(put(f->s, "large", "deleted", ""), 0);
    assert_int_equal(f->s->ops->drop(f->s, span_str("k")), 0);
    assert_int_equal(f->s->ops->probe(f->s), 0);
    ask(f, "CONFIG", "SET", "maxmemory", "0");
    assert_int_equal(put(f->s, "k", "record", "w"), 0);
    free(attributes);
}

static void what_does_not_keep_the_promise_is_refused_when_it_is_set_later(void **state)
{
    struct fixture *f = *state;

    open_store(f);
    assert_int_equal(put(f->s, "k", "r", "v"), 0);
    ask(f, "CONFIG", "SET", "appendfsync", "everysec");
    says_soon(f, -EHOSTDOWN, "appendfsync always");
    assert_int_equal(put(f->s, "k", "r", "v"), -EHOSTDOWN);
    ask(f, "CONFIG", "SET", "appendfsync", "always");
    says_soon(f, 0, "");
    ask(f, "CONFIG", "SET", "appendonly", "no");
    says_soon(f, -EHOSTDOWN, "appendonly yes");
    ask(f, "CONFIG", "SET", "appendonly", "yes");
    says_soon(f, 0, "");
    assert_int_equal(get(f->s, "k"), 0);
}

static void a_log_that_is_only_being_begun_keeps_nothing_yet(void **state)
{
    struct fixture *f = *state;

    ask(f, "CONFIG", "SET", "appendonly", "no");
    ask(f, "CONFIG", "SET", "rdb-key-save-delay", "100000");
    for (unsigned i = 0; i < 12; i++) {
        char key[8];

        (void)snprintf(key, sizeof(key), "x%u", i);
        ask(f, "SET", key, "v", NULL);
    }
    ask(f, "CONFIG", "SET", "appendonly", "yes");
    open_store(f);
    assert_true(info_has(f, "aof_rewrite_in_progress:0"));
    ask(f, "CONFIG", "SET", "appendonly", "no");
    says_soon(f, -EHOSTDOWN, "appendonly yes");
    ask(f, "CONFIG", "SET", "appendonly", "yes");
    says_soon(f, -EHOSTDOWN, "begun");
    says_soon(f, 0, "");
    assert_true(info_has(f, "aof_rewrite_in_progress:0"));
    ask(f, "BGREWRITEAOF", NULL, NULL, NULL); /* which is no reason to wait again */
    assert_int_equal(f->s->ops->probe(f->s), 0);
    assert_int_equal(put(f->s, "k", "r", "v"), 0);
    assert_true(info_has(f, "aof_rewrite_in_progress:1"));
}

/* --- disks, replicas ------------------------------------------------------------------------ */

static void a_redis_whose_disk_fails_refuses_changes_and_is_read(void **state)
{
    struct fixture *f = *state;
    char path[200];

    open_store(f);
    assert_int_equal(put(f->s, "k", "r", "v"), 0);
    (void)snprintf(path, sizeof(path), "%s/dump.rdb", f->redis.dir);
    assert_int_equal(mkdir(path, 0700), 0); /* where a file is to be */
    ask(f, "CONFIG", "SET", "save", "3600 1");
    ask(f, "BGSAVE", NULL, NULL, NULL);
    says_soon(f, -EIO, "MISCONF");
    assert_int_equal(put(f->s, "k", "r2", "v"), -EIO);
    assert_int_equal(put_large(f->s, "large"), -EIO);
    assert_int_equal(get(f->s, "k"), 0);
    assert_int_equal(f->s->ops->damage(f->s, NULL), 0);
    ask(f, "CONFIG", "SET", "save", "");
    says_soon(f, 0, "");
    assert_int_equal(put(f->s, "k", "r2", "v"), 0);
}

static void one_that_becomes_a_replica_refuses_changes_until_it_is_none(void **state)
{
    struct fixture *f = *state;

    open_store(f);
    assert_int_equal(put(f->s, "k", "r", "v"), 0);
    ask(f, "REPLICAOF", "127.0.0.1", "1", NULL);
    assert_int_equal(put(f->s, "k", "r2", "v"), -EIO);
    store_explain(f->s, -EIO, &f->why);
    assert_non_null(strstr(f->why.msg, "READONLY"));
    ask(f, "CLIENT", "KILL", "TYPE", "normal");
    says_soon(f, -EIO, "READONLY");
    ask(f, "REPLICAOF", "NO", "ONE", NULL);
    says_soon(f, 0, "");
    assert_int_equal(get(f->s, "k"), 0);
}

/* How often Redis looks at its connections while it loads depends on the bytes of a snapshot. */
static const char *const slow[] = {"--appendfsync",
                                   "no",
                                   "--rdbcompression",
                                   "no",
                                   "--key-load-delay",
                                   "100000",
                                   "--loading-process-events-interval-bytes",
                                   "1024",
                                   NULL};

static void one_that_loads_its_data_is_waited_for(void **state)
{
    struct fixture *f = *state;
    char value[2001], key[8];
    uint64_t end = now_ms() + SOON_MS;

    memset(value, 'v', sizeof(value));
    value[sizeof(value) - 1] = '\0';
    open_store(f);
    for (unsigned i = 0; i < 8; i++) {
        (void)snprintf(key, sizeof(key), "k%u", i);
        assert_int_equal(put(f->s, key, value, value), 0);
    }
    ask(f, "CONFIG", "SET", "rdbcompression", "no");
    ask(f, "BGREWRITEAOF", NULL, NULL, NULL);
    while (!info_has(f, "aof_rewrite_in_progress:0") || !info_has(f, "aof_rewrites:1"))
        assert_true(now_ms() < end && poll(NULL, 0, 20) == 0);
    redis_server_kill(&f->redis, SIGKILL);
    redis_server_again(&f->redis, slow);
    says_soon(f, -EHOSTDOWN, "LOADING");
    says_soon(f, 0, "");
    assert_int_equal(get(f->s, "k4"), 0);
    close_store(f);
    redis_server_kill(&f->redis, SIGKILL);
    redis_server_again(&f->redis, slow);
    open_store(f); /* longer than for one that is not there */
    assert_int_equal(get(f->s, "k4"), 0);
}

/* --- odd ones ------------------------------------------------------------------------------- */

static void one_is_reached_by_ipv6(void **state)
{
    static const char *const both[] = {"--appendfsync", "no", "--bind", "127.0.0.1", "::1", NULL};
    struct sockaddr_in6 a = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct fixture *f = *state;
    bool has = fd >= 0 && bind(fd, (struct sockaddr *)(void *)&a, sizeof(a)) == 0;
    char text[64];

    if (fd >= 0)
        close(fd);
    if (!has)
        skip();
    redis_server_kill(&f->redis, SIGTERM);
    redis_server_again(&f->redis, both);
    redis_url_fini(&f->url);
    (void)snprintf(text, sizeof(text), "redis://[::1]:%u/3", f->redis.port);
    assert_int_equal(redis_url_parse(text, &f->url, &f->why), 0);
    open_store(f);
    assert_int_equal(put(f->s, "k", "r", "v"), 0);
    assert_int_equal(get(f->s, "k"), 0);
    assert_int_equal(redis_server_number(&f->redis, "EXISTS", "kvfs:r:k", NULL), 0); /* in 0 */
    redis_server_kill(&f->redis, SIGKILL);
    (void)f->s->ops->probe(f->s);
    store_explain(f->s, -EHOSTDOWN, &f->why);
    assert_non_null(strstr(f->why.msg, f->url.shown));
}

static void without_the_number_of_changes_nothing_is_read(void **state)
{
    struct fixture *f = *state;

    open_store(f);
    assert_int_equal(put(f->s, "k", "r", "v"), 0);
    ask(f, "DEL", "kvfs:seq", NULL, NULL);
    assert_true(get(f->s, "k") < 0);
    assert_true(get(f->s, "none") != -ENOENT);
}

static void names_in_the_list_that_are_no_keys_are_passed_over(void **state)
{
    struct fixture *f = *state;
    struct store_iter *it;
    char *name = calloc(1, 5001);

    assert_non_null(name);
    memset(name, 'm', 5000);
    open_store(f);
    assert_int_equal(put(f->s, "a", "r", "v"), 0);
    assert_int_equal(put(f->s, "z", "r", "v"), 0);
    ask(f, "ZADD", "kvfs:keys", "0", name);
    ask(f, "ZADD", "kvfs:keys", "0", "");
    assert_int_equal(f->s->ops->iter_new(f->s, &it), 0);
    f->s->ops->iter_seek(it, (struct span){0});
    assert_true(f->s->ops->iter_valid(it));
    assert_true(span_eq(f->s->ops->iter_key(it), span_str("a")));
    f->s->ops->iter_next(it);
    assert_true(f->s->ops->iter_valid(it));
    assert_true(span_eq(f->s->ops->iter_key(it), span_str("z")));
    f->s->ops->iter_next(it);
    assert_false(f->s->ops->iter_valid(it));
    assert_int_equal(f->s->ops->iter_err(it), 0);
    f->s->ops->iter_free(it);
    /* One that does not stand in its place: neither in the wrong place nor left out. */
    ask(f, "ZADD", "kvfs:keys", "5", "a");
    assert_int_equal(f->s->ops->iter_new(f->s, &it), 0);
    f->s->ops->iter_seek(it, (struct span){0});
    while (f->s->ops->iter_valid(it))
        f->s->ops->iter_next(it);
    assert_int_equal(f->s->ops->iter_err(it), -EIO);
    f->s->ops->iter_free(it);
    assert_int_equal(put(f->s, "a", "r", "v"), 0); /* and is mended */
    assert_int_equal(redis_server_number(&f->redis, "ZSCORE", "kvfs:keys", "a", NULL), 0);
    free(name);
}

/* --- old versions --------------------------------------------------------------------------- */

struct sayer {
    int fd;
    const char *bytes;
};

/* Says the bytes to the first who connects, and waits until that one has left. */
static void *say(void *arg)
{
    const struct sayer *s = arg;
    int conn = accept(s->fd, NULL, NULL);
    char got[256];

    if (conn < 0)
        return NULL;
    (void)!write(conn, s->bytes, strlen(s->bytes));
    while (read(conn, got, sizeof(got)) > 0)
        ;
    close(conn);
    return NULL;
}

/* What one command is told by a Redis that says error. */
static int told(const char *error, struct err *why)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct sayer s = {.fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
    socklen_t len = sizeof(a);
    struct redis_link *l;
    struct redis_reply *r;
    struct redis_url url;
    char text[600];
    pthread_t thread;
    int ret;

    assert_true(s.fd >= 0);
    assert_int_equal(bind(s.fd, (struct sockaddr *)(void *)&a, sizeof(a)), 0);
    assert_int_equal(getsockname(s.fd, (struct sockaddr *)(void *)&a, &len), 0);
    assert_int_equal(listen(s.fd, 1), 0);
    (void)snprintf(text, sizeof(text), "redis://127.0.0.1:%u/0", (unsigned)ntohs(a.sin_port));
    assert_int_equal(redis_url_parse(text, &url, why), 0);
    (void)snprintf(text, sizeof(text), "+OK\r\n+OK\r\n-%s\r\n", error);
    s.bytes = text;
    assert_int_equal(pthread_create(&thread, NULL, say, &s), 0);
    assert_int_equal(redis_link_open(&url, "test", &l, why), 0);
    assert_int_equal(redis_link_add_text(l, "PING", NULL), 0);
    assert_int_equal(redis_link_next(l, &r, why), 0);
    ret = redis_reply_errno(r, why);
    redis_reply_free(r);
    redis_link_close(l);
    pthread_join(thread, NULL);
    close(s.fd);
    redis_url_fini(&url);
    return ret;
}

static void what_a_script_was_refused_is_known_from_versions_before_7_too(void **state)
{
    struct err why = {""};

    (void)state;
    assert_int_equal(told("OOM command not allowed when used memory > 'maxmemory'.", &why),
                     -ENOSPC);
    assert_int_equal(told("ERR Error running script (call to f_0123456789abcdef): "
                          "@user_script:9: @user_script: 9: -OOM command not allowed when used "
                          "memory > 'maxmemory'.",
                          &why),
                     -ENOSPC);
    assert_non_null(strstr(why.msg, "maxmemory"));
    assert_int_equal(told("ERR Error running script (call to f_0123456789abcdef): "
                          "@user_script:9: @user_script: 9: -NOPERM no",
                          &why),
                     -EACCES);
    assert_int_equal(told("ERR syntax error: -OOM", &why), -EIO);
    assert_int_equal(told("MISCONF no disk", &why), -EIO);
}

#define CLAIM(claim) cmocka_unit_test_setup_teardown(claim, setup, teardown)
#define SYNCED(claim) cmocka_unit_test_setup_teardown(claim, setup_synced, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        SYNCED(a_user_with_the_least_rights_keeps_all_promises),
        CLAIM(what_throws_data_away_is_refused_whoever_may_tell_it),
        CLAIM(a_command_that_is_forbidden_is_no_damage),
        CLAIM(a_policy_that_throws_data_away_is_refused_when_it_is_set_later),
        SYNCED(what_does_not_keep_the_promise_is_refused_when_it_is_set_later),
        SYNCED(a_log_that_is_only_being_begun_keeps_nothing_yet),
        CLAIM(without_memory_nothing_grows_that_is_not_smaller_than_before),
        CLAIM(a_redis_whose_disk_fails_refuses_changes_and_is_read),
        CLAIM(one_that_becomes_a_replica_refuses_changes_until_it_is_none),
        CLAIM(one_that_loads_its_data_is_waited_for),
        CLAIM(one_is_reached_by_ipv6),
        CLAIM(without_the_number_of_changes_nothing_is_read),
        CLAIM(names_in_the_list_that_are_no_keys_are_passed_over),
        cmocka_unit_test(what_a_script_was_refused_is_known_from_versions_before_7_too),
    };

    return cmocka_run_group_tests_name("redis_refusals", tests, NULL, NULL);
}

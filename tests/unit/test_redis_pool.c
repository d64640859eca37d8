/*
 * test_redis_pool.c - answers of a Redis that come late: after the session that asked has ended.
 * Between the store and a real redis-server stands a proxy that holds them back.
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
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "node/store_redis.h"
#include "tests/lib/redis_server.h"

#define TRIES 1000 /* of 20 ms */

/* --- the proxy ------------------------------------------------------------------------------ */

#define PAIRS_MAX 40u

struct pair {
    int client, server; /* -1: none */
    bool held;
};

struct proxy {
    int listener;
    unsigned port, to;
    struct pair pairs[PAIRS_MAX]; /* the thread's */
    unsigned n;
    atomic_bool stop;
    atomic_bool hold_next; /* nothing of what is answered to whoever asks next goes on, until */
    atomic_bool release;
    atomic_bool cut_next; /* whoever asks next is cut off, and Redis never hears of it */
    pthread_t thread;
};

static int loopback(unsigned port, bool listens)
{
    struct sockaddr_in a = {.sin_family = AF_INET,
                            .sin_port = htons((uint16_t)port),
                            .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int r = listens ? bind(fd, (struct sockaddr *)(void *)&a, sizeof(a))
                    : connect(fd, (struct sockaddr *)(void *)&a, sizeof(a));

    if (r == 0 && listens)
        r = listen(fd, 16);
    if (r < 0) {
        close(fd);
        return -1;
    }
    return fd;
}

static void end_pair(struct pair *p)
{
    close(p->client);
    close(p->server);
    p->client = p->server = -1;
}

/* What has come at `from` goes on to `to`. */
static void pass(struct pair *p, int from, int to)
{
    char bytes[16384];
    ssize_t n = read(from, bytes, sizeof(bytes));

    if (n <= 0 || write(to, bytes, (size_t)n) != n)
        end_pair(p);
}

static void serve_pair(struct proxy *x, struct pair *p, const struct pollfd *client,
                       const struct pollfd *server)
{
    if (p->client >= 0 && client->revents != 0) {
        if (atomic_exchange(&x->cut_next, false)) {
            end_pair(p);
            return;
        }
        p->held |= atomic_exchange(&x->hold_next, false);
        pass(p, p->client, p->server);
    }
    if (p->client >= 0 && server->revents != 0)
        pass(p, p->server, p->client);
}

static void *proxy_thread(void *arg)
{
    struct proxy *x = arg;

    while (!atomic_load(&x->stop)) {
        struct pollfd fds[2 * PAIRS_MAX + 1];
        unsigned n = x->n;

        for (unsigned i = 0; i < n; i++) {
            struct pair *p = &x->pairs[i];

            if (atomic_load(&x->release))
                p->held = false;
            fds[2 * i] = (struct pollfd){.fd = p->client, .events = POLLIN};
            fds[2 * i + 1] = (struct pollfd){.fd = p->held ? -1 : p->server, .events = POLLIN};
        }
        fds[2 * n] = (struct pollfd){.fd = x->listener, .events = POLLIN};
        if (poll(fds, 2 * n + 1, 20) <= 0)
            continue;
        for (unsigned i = 0; i < n; i++)
            serve_pair(x, &x->pairs[i], &fds[2 * i], &fds[2 * i + 1]);
        if (fds[2 * n].revents != 0 && n < PAIRS_MAX) {
            int client = accept(x->listener, NULL, NULL), server = loopback(x->to, false);

            x->pairs[x->n++] = (struct pair){.client = client, .server = server};
            if (client < 0 || server < 0)
                end_pair(&x->pairs[x->n - 1]);
        }
    }
    for (unsigned i = 0; i < x->n; i++)
        if (x->pairs[i].client >= 0)
            end_pair(&x->pairs[i]);
    return NULL;
}

static void proxy_start(struct proxy *x, unsigned to)
{
    struct sockaddr_in a;
    socklen_t len = sizeof(a);

    x->to = to;
    x->listener = loopback(0, true);
    assert_true(x->listener >= 0);
    assert_int_equal(getsockname(x->listener, (struct sockaddr *)(void *)&a, &len), 0);
    x->port = ntohs(a.sin_port);
    assert_int_equal(pthread_create(&x->thread, NULL, proxy_thread, x), 0);
}

static void proxy_end(struct proxy *x)
{
    atomic_store(&x->stop, true);
    pthread_join(x->thread, NULL);
    close(x->listener);
}

/* --- fixture -------------------------------------------------------------------------------- */

struct fixture {
    char dir[64], data[80];
    struct redis_server redis;
    struct proxy proxy;
    struct redis_url url;
    struct store *s;
};

static int setup(void **state)
{
    static const char *const no_sync[] = {"--appendfsync", "no", NULL};
    struct fixture *f = calloc(1, sizeof(*f));
    struct store_redis_opts opts = {.node_id = "node-1", .mode = STORE_FSYNC_NEVER};
    bool fresh, distrusted;
    struct err err;
    char text[80];

    assert_non_null(f);
    (void)snprintf(f->dir, sizeof(f->dir), "/tmp/test-redis-XXXXXX");
    assert_non_null(mkdtemp(f->dir));
    (void)snprintf(text, sizeof(text), "%s/redis", f->dir);
    redis_server_start(&f->redis, text, no_sync);
    proxy_start(&f->proxy, f->redis.port);
    (void)snprintf(text, sizeof(text), "redis://127.0.0.1:%u/0", f->proxy.port);
    assert_int_equal(redis_url_parse(text, &f->url, &err), 0);
    (void)snprintf(f->data, sizeof(f->data), "%s/data", f->dir);
    opts.url = &f->url;
    opts.dir = f->data;
    if (store_redis_open(&opts, &f->s, &fresh, &distrusted, &err) < 0)
        fail_msg("%s", err.msg);
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

    f->s->ops->close(f->s);
    proxy_end(&f->proxy);
    redis_server_kill(&f->redis, SIGKILL);
    redis_url_fini(&f->url);
    (void)nftw(f->dir, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    free(f);
    return 0;
}

/* --- claims --------------------------------------------------------------------------------- */

struct call {
    struct store *s;
    bool reads;
    int err;
};

static void *make_call(void *arg)
{
    struct call *c = arg;
    struct store_item item = STORE_ITEM_NONE;

    if (c->reads)
        c->err = c->s->ops->get(c->s, span_str("k"), true, &item);
    else
        c->err = c->s->ops->put(c->s, span_str("k"), span_str("r"), span_str("v"), NULL, false);
    store_item_fini(&item);
    return NULL;
}

/* A call whose answer is held back until another connection broke, and a new session has begun. */
static int answered_late(struct fixture *f, bool reads)
{
    struct call c = {.s = f->s, .reads = reads}, other = {.s = f->s, .reads = true};
    pthread_t thread;
    int i;

    atomic_store(&f->proxy.release, false);
    atomic_store(&f->proxy.hold_next, true);
    assert_int_equal(pthread_create(&thread, NULL, make_call, &c), 0);
    for (i = 0; atomic_load(&f->proxy.hold_next) && i < TRIES; i++)
        (void)poll(NULL, 0, 20);
    for (; !reads && redis_server_number(&f->redis, "EXISTS", "kvfs:r:k", NULL) == 0 && i < TRIES;
         i++)
        (void)poll(NULL, 0, 20);
    assert_true(i < TRIES);
    atomic_store(&f->proxy.cut_next, true);
    make_call(&other);
    for (i = 0; f->s->ops->probe(f->s) < 0 && i < TRIES; i++)
        (void)poll(NULL, 0, 20);
    assert_true(i < TRIES);
    atomic_store(&f->proxy.release, true);
    pthread_join(thread, NULL);
    return c.err;
}

/* That Redis may have been another by then, which has lost it. */
static void an_answer_from_an_ended_session_acknowledges_nothing(void **state)
{
    struct fixture *f = *state;
    struct call again = {.s = f->s, .reads = true};

    assert_int_equal(answered_late(f, false), -EHOSTDOWN);
    make_call(&again); /* what it is, is said by the next call */
    assert_int_equal(again.err, 0);
}

static void a_read_from_an_ended_session_is_made_anew(void **state)
{
    struct fixture *f = *state;

    assert_int_equal(answered_late(f, true), 0);
}

#define CLAIM(claim) cmocka_unit_test_setup_teardown(claim, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CLAIM(an_answer_from_an_ended_session_acknowledges_nothing),
        CLAIM(a_read_from_an_ended_session_is_made_anew),
    };

    (void)signal(SIGPIPE, SIG_IGN);
    return cmocka_run_group_tests_name("redis_pool", tests, NULL, NULL);
}

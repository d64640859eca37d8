/* backing.c - the store that a node keeps its data in. */
#include "node/backing.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "common/log.h"
#include "common/spool.h"
#include "node/store_redis.h"

static int name_dir(struct backing *b, struct err *err)
{
    const struct options *o = b->opts;
    int n = o->data != NULL ? snprintf(b->dir, sizeof(b->dir), "%s", o->data)
                            : snprintf(b->dir, sizeof(b->dir), "data-%s", o->id);

    if (n < 0 || (size_t)n >= sizeof(b->dir))
        return err_set(err, -ENAMETOOLONG, "the name of the data directory is too long");
    spool_set_dir(b->dir);
    return 0;
}

/* Signals are blocked until the node serves: is one waiting that ends it? */
static bool is_stopped(void)
{
    sigset_t set;

    return sigpending(&set) == 0 && (sigismember(&set, SIGTERM) || sigismember(&set, SIGINT));
}

/* Who is told of it, in words. */
struct waiting {
    backing_waits_fn *waits;
    void *arg;
};

/* A Redis is waited for until it is there. */
static bool may_wait(void *arg, int err, const char *why)
{
    const struct waiting *w = arg;

    (void)err;
    w->waits(w->arg, why);
    return true;
}

static int open_redis(struct backing *b, backing_waits_fn *waits, void *arg, bool *fresh,
                      struct err *err)
{
    struct waiting waiting = {waits, arg};
    struct store_redis_opts opts = {.url = &b->redis,
                                    .dir = b->dir,
                                    .node_id = b->opts->id,
                                    .mode = b->opts->fsync,
                                    .stopped = is_stopped,
                                    .may_wait = may_wait,
                                    .may_wait_arg = &waiting};
    int ret = redis_url_parse(b->opts->redis, &b->redis, err);

    if (ret == 0)
        ret = redis_url_password(&b->redis, b->opts->redis_password_file, err);
    return ret < 0 ? ret : store_redis_open(&opts, &b->store, fresh, &b->distrusted, err);
}

int backing_open(struct backing *b, const struct options *opts, backing_waits_fn *waits, void *arg,
                 struct err *err)
{
    bool fresh = false;
    int ret;

    *b = (struct backing){.opts = opts};
    if (opts->store == STORE_KIND_MEMORY) {
        ret = store_memory_open(&b->store);
        return ret == 0 ? 0 : err_set(err, ret, "cannot open the store: %s", strerror(-ret));
    }
    ret = name_dir(b, err);
    if (ret == 0 && opts->store == STORE_KIND_REDIS)
        ret = open_redis(b, waits, arg, &fresh, err);
    else if (ret == 0)
        ret = store_rocksdb_open(b->dir, opts->id, opts->fsync, &b->store, &fresh, &b->distrusted,
                                 err);
    if (ret == 0 && fresh)
        log_event(LOG_LEVEL_INFO, "new-data-directory", "dir=%s",
                  log_quote(backing_name(b), strlen(backing_name(b))));
    if (ret == 0 && b->distrusted)
        log_event(LOG_LEVEL_WARN, "power-loss",
                  "dir=%s effect=\"what it acknowledged last may be lost here: it recovers\"",
                  log_quote(backing_name(b), strlen(backing_name(b))));
    return ret;
}

void backing_fini(struct backing *b)
{
    redis_url_fini(&b->redis);
}

const char *backing_name(const struct backing *b)
{
    return b->redis.host != NULL ? b->redis.shown : b->dir;
}

int backing_trust(struct backing *b)
{
    return b->opts->store == STORE_KIND_REDIS ? store_redis_trust(b->store)
                                              : store_rocksdb_trust(b->store);
}

bool backing_renewable(const struct backing *b, struct err *err)
{
    struct err what = *err;

    if (b->opts->store == STORE_KIND_REDIS)
        err_set(err, 0, "%s: %s (empty this database, FLUSHDB, and the node recovers)",
                backing_name(b), what.msg);
    return b->opts->store == STORE_KIND_ROCKSDB;
}

int backing_condemn(struct backing *b, const char *why, struct err *err)
{
    return b->opts->store == STORE_KIND_REDIS ? store_redis_condemn(b->dir, b->store, err)
                                              : store_rocksdb_condemn(b->dir, why, err);
}

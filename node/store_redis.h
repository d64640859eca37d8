/*
 * store_redis.h - the store in a Redis of this node's own: redis://HOST:PORT/DB. docs/redis.md has
 * what is kept under which key, and what it promises when.
 */
#ifndef KVFS_NODE_STORE_REDIS_H
#define KVFS_NODE_STORE_REDIS_H

#include "node/redis_url.h"
#include "node/store.h"

struct store_redis_opts {
    const struct redis_url *url; /* borrowed for the life of the store */
    const char *dir;             /* for what must be known of this Redis outside of it */
    const char *node_id;
    enum store_fsync mode;
    unsigned shows_ms;     /* how long to look for another process that uses it; 0: 10 s */
    bool (*stopped)(void); /* asked while it waits: shall it give up (-ECANCELED)? May be NULL */
    /* As of redis_pool_opts. */
    bool (*may_wait)(void *arg, int err, const char *why);
    void *may_wait_arg;
};

/*
 * dir is made, locked, and bound to node_id as by store_rocksdb_open(), whose fresh and distrusted
 * are these. It waits for a Redis that does not answer yet as long as it may.
 *
 * -EBUSY: another kvnode uses it; -EINVAL: another node's data, or a Redis that does not keep what
 * the mode promises; -EHOSTDOWN; -EACCES; err says what Redis said.
 */
int store_redis_open(const struct store_redis_opts *opts, struct store **out, bool *fresh,
                     bool *distrusted, struct err *err);
/* As store_rocksdb_trust(). */
int store_redis_trust(struct store *s);
/*
 * What is in the Redis of DIR is not to be trusted: the next store_redis_open() says so. -EBUSY:
 * another kvnode has it now.
 */
int store_redis_condemn(const char *dir, struct store *s, struct err *err);

#endif

/*
 * redis_claim.h - whose data is in a Redis, which kvnode uses it, and whether all that it told is
 * still there.
 *
 * The hash kvfs:owner names the node, the store (made once, with the data), and the *life*: one
 * process that uses it, by a random token. A second process, or another node, is refused. So is a
 * Redis that may lose what --fsync says is kept.
 *
 * The file DIR/redis says which life was the last here. By it a node that was killed knows that it
 * is its own that stands in Redis, and need not wait whether another process shows itself; and that
 * a Redis which tells of an earlier one was set back.
 */
#ifndef KVFS_NODE_REDIS_CLAIM_H
#define KVFS_NODE_REDIS_CLAIM_H

#include "node/redis_info.h"
#include "node/redis_pool.h"
#include "node/store_redis.h"

struct redis_claim;

/*
 * dir, a node's data directory, is locked by the caller. Borrows dir and node_id. Of opts: mode,
 * stopped, and shows_ms, within which another process shows itself (they probe every 3 s).
 */
int redis_claim_new(const struct store_redis_opts *opts, const char *dir, const char *node_id,
                    struct redis_claim **out, struct err *err);
void redis_claim_free(struct redis_claim *c);

/*
 * begin() of redis_pool.h; arg is a claim. The first one takes the data for this process: -EBUSY,
 * another process uses it (which takes some seconds to find out); -EINVAL: another node's data, or
 * a configuration that loses data; *fresh and *distrusted as for store_rocksdb_open().
 */
int redis_claim_begin(void *arg, struct redis_link *l, uint64_t number, uint64_t *seq,
                      char session[REDIS_SESSION_LEN], struct err *err);

/* Of the first session. */
bool redis_claim_fresh(const struct redis_claim *c);
bool redis_claim_distrusted(const struct redis_claim *c);
/* Has another process taken over? Then there is no session any more. */
bool redis_claim_taken(const struct redis_claim *c);
uint64_t redis_claim_token(const struct redis_claim *c);
/* When the session of that number began, there were so many keys. */
uint64_t redis_claim_keys(struct redis_claim *c, uint64_t *number);
struct redis_memory redis_claim_memory(struct redis_claim *c);
/*
 * Is it still what it was taken for? Asks l, and takes the memory. -EINVAL, -EROFS: it was
 * configured otherwise since; -EAGAIN, -EHOSTDOWN; err says what.
 */
int redis_claim_look(struct redis_claim *c, struct redis_link *l, struct err *err);

/* What distrusted told has been taken to heart, durably. */
int redis_claim_trust(struct redis_claim *c);
/* Stopped in good order, after that many changes. */
int redis_claim_leave(struct redis_claim *c, uint64_t seq);
/* The next start shall not trust what is in the Redis of this directory. */
int redis_claim_condemn(const char *dir, struct err *err);

#endif

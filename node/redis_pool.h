/*
 * redis_pool.h - a node's connections to its Redis, and the session that they share.
 *
 * Every access names the session, and Redis refuses what names another (redis_scripts.h). When a
 * command was sent and no answer came, it may still lie in some buffer and be carried out at any
 * later time: over what was stored meanwhile. So the session ends with it, and whoever comes next
 * waits for a new one. Once that has begun nothing of the one before can happen any more: what is
 * read then stays true.
 *
 * A thread of its own (kv-redis) begins sessions, again and again while Redis cannot be reached;
 * meanwhile calls fail at once. All calls from any thread; they block for REDIS_CONNECT_MS and
 * REDIS_ANSWER_MS at most, a few times.
 */
#ifndef KVFS_NODE_REDIS_POOL_H
#define KVFS_NODE_REDIS_POOL_H

#include "node/redis_link.h"
#include "node/redis_scripts.h"

#define REDIS_LINKS_MAX 16u

struct redis_pool;

#define REDIS_SESSION_LEN 64u

struct redis_pool_opts {
    const struct redis_url *url; /* borrowed, as are the others */
    const char *name;            /* of the connections, for people */
    /*
     * Begins the session of that number, which was never used, over l. *seq: the most that Redis
     * ever told; then what it tells now. 0, *session filled; -EBADMSG: there will be none any more,
     * for what was stored here is lost or somebody else's; else it is tried again. Never by two
     * threads at once.
     */
    int (*begin)(void *arg, struct redis_link *l, uint64_t number, uint64_t *seq,
                 char session[REDIS_SESSION_LEN], struct err *err);
    void *arg;
    bool (*stopped)(void); /* ends the wait for the first with -ECANCELED; NULL: nothing does */
    /*
     * Told, at each try, why the first does not begin: it is not there (-EHOSTDOWN), or just loads
     * its data (-EAGAIN). Is it to be waited for? NULL: no.
     */
    bool (*may_wait)(void *arg, int err, const char *why);
    void *may_wait_arg;
};

/*
 * Begins the first session, as begin(); waits for a Redis that does not answer, or just loads its
 * data, as long as it may. -EHOSTDOWN, -EAGAIN.
 */
int redis_pool_open(const struct redis_pool_opts *opts, struct redis_pool **out, struct err *err);
void redis_pool_close(struct redis_pool *p); /* no call is under way; NULL is allowed */

/*
 * Runs one of the scripts that are given a session. 0: *out, the caller's to free; session, where
 * it is not NULL: the number of the one it was run in. Else nothing was changed, apart from
 * -EHOSTDOWN: perhaps it was (but what is read afterwards says for good). -ENOENT and -EBADMSG are
 * KVFSNONE and KVFSDAMAGED; -EIO: also, there will be no session any more.
 */
int redis_pool_run(struct redis_pool *p, enum redis_script script, const struct span *args,
                   size_t n, struct redis_reply **out, uint64_t *session);

/*
 * A connection for some plain reads. The last (or only) command must bring kvfs:session, and
 * kvfs:seq where that is read as well: redis_lease_check() says whether what was read counts: 0,
 * -EAGAIN (begin anew, with another lease), -EHOSTDOWN. seq: -1 where it was not read.
 */
struct redis_lease {
    struct redis_link *link;
    uint64_t number, seq;
    char session[REDIS_SESSION_LEN];
};
int redis_pool_borrow(struct redis_pool *p, struct redis_lease *out);
int redis_lease_check(struct redis_pool *p, const struct redis_lease *lease, struct span session,
                      int64_t seq);
/* err: what redis_link_next() returned last: -EHOSTDOWN ends the session. why: its err, or NULL. */
void redis_pool_give_back(struct redis_pool *p, struct redis_lease *lease, int err,
                          const struct err *why);

/*
 * Of an answer to such a read: 0, it is no error; -EBADMSG: what is there is none of ours; -EAGAIN:
 * begin anew; else Redis refuses to tell, which says nothing of what is there
 * (redis_pool_complaint() says why).
 */
int redis_lease_refused(struct redis_pool *p, const struct redis_lease *lease,
                        const struct redis_reply *r);
/* What the session of that number was begun on does not hold any more: it is begun anew. */
void redis_pool_doubt(struct redis_pool *p, uint64_t session, const char *why);

/* Is there a session now? 0; -EHOSTDOWN, -EIO: why. */
int redis_pool_state(struct redis_pool *p, struct err *why);
/* -EBADMSG: there will be none any more, and why; else 0. */
int redis_pool_ended(struct redis_pool *p, struct err *why);
/* What Redis refused last, and why; "" when all is well. */
void redis_pool_complaint(struct redis_pool *p, struct err *out);

#endif

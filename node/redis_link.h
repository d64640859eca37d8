/*
 * redis_link.h - one connection to a Redis, and what it answers, as values. The only user of
 * hiredis. One thread at a time.
 */
#ifndef KVFS_NODE_REDIS_LINK_H
#define KVFS_NODE_REDIS_LINK_H

#include "common/buf.h"
#include "common/err.h"
#include "node/redis_url.h"

struct redis_link;
struct redis_reply;

#define REDIS_CONNECT_MS 1000u
#define REDIS_ANSWER_MS 3000u /* without a single byte from Redis meanwhile */

/*
 * Connects, authenticates, names the connection, selects the database. Blocks for the two times
 * above at most (and for the name server). 0; -EHOSTDOWN: nobody answers; -EAGAIN: it loads its
 * data; -EACCES; -EIO: whatever else it says; err tells.
 */
int redis_link_open(const struct redis_url *url, const char *name, struct redis_link **out,
                    struct err *err);
void redis_link_close(struct redis_link *l); /* NULL is allowed */
/* An idle one: is it still connected, as far as this machine knows? Never blocks. */
bool redis_link_alive(const struct redis_link *l);

/* Queues one command, copied. 0 or -ENOMEM. */
int redis_link_add(struct redis_link *l, const struct span *words, size_t n);
/* The same of words without NUL in them, the last of which is NULL. */
int redis_link_add_text(struct redis_link *l, const char *word, ...) __attribute__((sentinel));
/*
 * Sends what is queued, and waits for the next answer, the caller's to free. An error that Redis
 * tells is an answer. -EHOSTDOWN: the connection broke, whatever was done; it is of no more use.
 */
int redis_link_next(struct redis_link *l, struct redis_reply **out, struct err *err);

enum redis_kind { REDIS_NONE, REDIS_BYTES, REDIS_NUMBER, REDIS_LIST, REDIS_ERROR };

/* Of NULL, and of what is not there, REDIS_NONE. */
enum redis_kind redis_reply_kind(const struct redis_reply *r);
struct span redis_reply_bytes(const struct redis_reply *r); /* of BYTES and ERROR, borrowed */
int64_t redis_reply_number(const struct redis_reply *r);    /* of NUMBER, and of digits; else -1 */
size_t redis_reply_len(const struct redis_reply *r);        /* of LIST, else 0 */
const struct redis_reply *redis_reply_at(const struct redis_reply *r, size_t i);
bool redis_reply_is_error(const struct redis_reply *r, const char *word); /* begins with it? */
/* What an ERROR means for whoever asked: -EAGAIN, -ENOSPC, -EACCES, -EIO; err: what Redis said. */
int redis_reply_errno(const struct redis_reply *r, struct err *err);
void redis_reply_free(struct redis_reply *r);

#endif

/* redis_server.h - a real redis-server of a test's own, with its data in the test's directory. */
#ifndef KVFS_TESTS_LIB_REDIS_SERVER_H
#define KVFS_TESTS_LIB_REDIS_SERVER_H

#include <sys/types.h>

#include "node/redis_link.h"

struct redis_server {
    char dir[100];
    unsigned port; /* the same whenever it is started again */
    pid_t pid;     /* 0: it does not run */
};

/*
 * Makes dir and starts it there, on 127.0.0.1; extra: more options, ends with NULL, may be NULL.
 * Keeps what it acknowledged (appendfsync always), unless extra says otherwise. It has ended, too,
 * when the test has. Fails the test where it does not answer.
 */
void redis_server_start(struct redis_server *r, const char *dir, const char *const *extra);
void redis_server_again(struct redis_server *r, const char *const *extra);
void redis_server_kill(struct redis_server *r, int signal); /* and waits for its end */
void redis_server_freeze(struct redis_server *r);
void redis_server_thaw(struct redis_server *r);

/* Its database 0 by URL; the caller finishes it. */
struct redis_url redis_server_url(const struct redis_server *r);
/* One command, ends with NULL; the caller frees the answer. */
struct redis_reply *redis_server_ask(const struct redis_server *r, const char *word, ...)
    __attribute__((sentinel));
/* The same, of which only the number (or digits) matters. */
#define redis_server_number(...) redis_reply_take_number(redis_server_ask(__VA_ARGS__))
int64_t redis_reply_take_number(struct redis_reply *r);

#endif

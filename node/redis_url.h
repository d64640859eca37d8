/* redis_url.h - where a node's Redis is: redis://[USER@]HOST:PORT/DB; and its password. */
#ifndef KVFS_NODE_REDIS_URL_H
#define KVFS_NODE_REDIS_URL_H

#include <stdint.h>

#include "common/err.h"

#define REDIS_PORT_DEFAULT 6379u
#define REDIS_DB_MAX 65535u
#define REDIS_SHOWN_LEN 320u
#define REDIS_PASSWORD_ENV "KVFS_REDIS_PASSWORD"

/* The USER is percent-decoded. {0} is allowed in redis_url_fini(). Strings are its own. */
struct redis_url {
    char *host, *user; /* user: NULL for Redis's default one */
    char *password;    /* NULL: none */
    uint16_t port;
    unsigned db;
    char shown[REDIS_SHOWN_LEN]; /* for people: redis://HOST:PORT/DB, perhaps cut */
};

/*
 * -EINVAL, with the reason in err. The port may be left out, and so may the DB, 0. A password in it
 * is refused: all users of a machine can read command lines.
 */
int redis_url_parse(const char *text, struct redis_url *out, struct err *err);
/*
 * The first line of a file, or where that is NULL what the environment says; perhaps none. Nobody
 * else should be able to read the file: one that all can is refused with -EACCES.
 */
int redis_url_password(struct redis_url *u, const char *file, struct err *err);
void redis_url_fini(struct redis_url *u);

#endif

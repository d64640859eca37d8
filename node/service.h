/*
 * service.h - what all routes share, and the life of a request on its way through one.
 *
 * A route's begin function makes a task or replies at once. A task's end() replies, or starts an
 * operation of the cluster whose done() replies on an I/O thread; after the reply the task belongs
 * to the server again, which frees it.
 */
#ifndef KVFS_NODE_SERVICE_H
#define KVFS_NODE_SERVICE_H

#include "common/cluster.h"
#include "common/workers.h"
#include "node/body.h"
#include "node/metrics.h"
#include "node/replica.h"
#include "node/server.h"
#include "node/upkeep.h"
#include "node/watch.h"
#include "node/watchers.h"

struct service {
    const struct config *cfg;
    struct clock *clock;
    struct cluster *cluster;
    struct workers *workers; /* for what waits for the disk long */
    struct metrics *metrics;
    const char *name; /* the node's id or the gateway's address */
    uint32_t self;    /* MESSAGE_NODE_NONE: a gateway, which has nothing of: */
    struct replica *replica;
    struct store *store;
    struct watch *watch;
    struct upkeep *upkeep;
    struct changes *changes;
    struct watchers *watchers;
    bool forward; /* coordinate also for keys whose replica this node is not */
    uint64_t started_us;
    struct body_room room; /* of bodies, and (memory) of large values on their way out */
    unsigned clients_max;
    _Atomic unsigned n_clients; /* client requests under way */
};

struct task {
    const struct task_ops *ops;
    struct service *service;
    struct exchange *x;
};

struct task_ops {
    void (*part)(struct task *t, struct span part); /* of the body; NULL: there should be none */
    void (*end)(struct task *t);
    void (*free)(struct task *t);
};

/* rest: the path behind what the route is named by. NULL: it has replied. */
typedef struct task *route_begin_fn(struct service *s, struct exchange *x, struct span rest);

/* The handler of the server; ctx is a struct service. */
extern const struct server_handler service_handler;

/*
 * A zeroed task of `size` bytes that starts with a struct task; without memory NULL, and it has
 * replied.
 */
void *task_new(size_t size, const struct task_ops *ops, struct service *s, struct exchange *x);

/* Replies with an error. */
void reply_problem(struct exchange *x, unsigned status, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* 405 with what is allowed ("GET, HEAD"). */
void reply_not_allowed(struct exchange *x, const char *allow);
/* Is the method GET or HEAD? Else it has replied 405. */
bool only_get(struct exchange *x);
/* No query was given. Else it has replied 400. */
bool no_query(struct exchange *x);
/* The key in a path, decoded. False: it has replied 400 or 414. */
bool take_key(struct exchange *x, struct span path, struct buf *key);

/*
 * Client requests under way; 503 above. Health, status and the cluster's own traffic are not
 * counted. They are half of the connections, so that some are left for those.
 */
#define CONNECTIONS_MAX 2048u

#endif

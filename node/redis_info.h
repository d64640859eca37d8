/*
 * redis_info.h - what a Redis says of itself, and whether a node can keep its data in it.
 */
#ifndef KVFS_NODE_REDIS_INFO_H
#define KVFS_NODE_REDIS_INFO_H

#include "node/redis_link.h"
#include "node/store.h"

#define REDIS_RUN_ID_LEN 64

/* total 0: it does not tell. */
struct redis_memory {
    uint64_t used, total;
};

struct redis_info {
    char run_id[REDIS_RUN_ID_LEN]; /* of its process; "": it does not tell */
    char policy[32], role[16];
    int major; /* version; 0: it does not tell */
    bool clustered, aof_off;
    bool rewriting;                  /* its log is being written anew, or soon */
    bool has_config;                 /* else it refuses to tell these: */
    bool aof, always, everysec, lax; /* lax: no fsync while it rewrites its log */
    struct redis_memory memory;
};

/*
 * Who may not ask gets less. 0, -EAGAIN (it loads its data), -EHOSTDOWN: err.
 */
int redis_info_ask(struct redis_link *l, struct redis_info *out, struct err *err);
/*
 * -EINVAL, -EROFS: it loses data, or what --fsync promises to keep; err says what to set. *told: it
 * was logged that this cannot be found out.
 */
int redis_info_check(const struct redis_info *s, enum store_fsync mode, bool *told,
                     struct err *err);

#endif

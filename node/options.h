/* options.h - kvnode's command line. */
#ifndef KVFS_NODE_OPTIONS_H
#define KVFS_NODE_OPTIONS_H

#include <stdbool.h>

#include "node/redis_url.h"
#include "node/store.h"

enum store_kind { STORE_KIND_ROCKSDB, STORE_KIND_MEMORY, STORE_KIND_REDIS };

struct options {
    const char *config, *id, *gateway; /* id or gateway, not both */
    const char *data;                  /* NULL: "data-" and the id */
    enum store_kind store;
    const char *redis;               /* STORE_KIND_REDIS: its URL, which is a good one */
    const char *redis_password_file; /* NULL: none was named */
    enum store_fsync fsync;
    bool forward;
    bool accept_data_loss;
    uint64_t tombstone_age_s, scrub_period_s;
};

/*
 * -1: go on with *out (borrows from argv). Else the program ends with this code: 0 after --help or
 * --version, 2 after a usage error, which it has printed.
 */
int options_parse(int argc, char **argv, struct options *out);

#endif

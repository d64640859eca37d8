/* options.h - kvnode's command line. */
#ifndef KVFS_NODE_OPTIONS_H
#define KVFS_NODE_OPTIONS_H

#include <stdbool.h>

#include "node/store.h"

struct options {
    const char *config, *id, *gateway; /* id or gateway, not both */
    const char *data;                  /* NULL: "data-" and the id */
    bool memory;                       /* --store memory */
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

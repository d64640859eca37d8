/* metrics.h - what this process has done so far, as counters. Any thread, lock-free. */
#ifndef KVFS_NODE_METRICS_H
#define KVFS_NODE_METRICS_H

#include <stdint.h>

#include "common/buf.h"

enum route {
    ROUTE_KV,
    ROUTE_LIST,
    ROUTE_REPLICA,
    ROUTE_REPLICAS,
    ROUTE_WATCH,
    ROUTE_HEALTH,
    ROUTE_STATUS,
    ROUTE_METRICS,
    ROUTE_NONE,
    N_ROUTES
};

struct metrics;

struct metrics *metrics_new(void); /* NULL without memory */
void metrics_free(struct metrics *m);
void metrics_started(struct metrics *m, enum route route);
/* status 0: the connection was cut. method: any text. */
void metrics_finished(struct metrics *m, enum route route, const char *method, unsigned status,
                      uint64_t took_us, uint64_t bytes_in, uint64_t bytes_out);

/* All of it in the Prometheus text format. */
void metrics_write(struct metrics *m, struct buf *out);

#endif

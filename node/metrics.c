/* metrics.c - counters of requests, in the Prometheus text format. */
#include "node/metrics.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "common/prometheus.h"

static const char *const route_names[N_ROUTES] = {
    [ROUTE_KV] = "kv",           [ROUTE_LIST] = "list",
    [ROUTE_REPLICA] = "replica", [ROUTE_REPLICAS] = "replicas",
    [ROUTE_HEALTH] = "health",   [ROUTE_STATUS] = "status",
    [ROUTE_METRICS] = "metrics", [ROUTE_WATCH] = "watch",
    [ROUTE_NONE] = "none",
};
static const char *const methods[] = {"GET", "HEAD", "PUT", "DELETE", "POST", "other"};
#define N_METHODS (sizeof(methods) / sizeof(methods[0]))
/* 0: cut; the last takes all others. */
static const unsigned statuses[] = {0,   200, 201, 204, 206, 304, 400, 404, 405, 409, 411,
                                    412, 413, 414, 415, 416, 421, 500, 503, 504, 507, 999};
#define N_STATUSES (sizeof(statuses) / sizeof(statuses[0]))

struct metrics {
    _Atomic uint64_t requests[N_ROUTES][N_METHODS][N_STATUSES];
    struct prom_times took[N_ROUTES];
    _Atomic uint64_t bytes_in[N_ROUTES], bytes_out[N_ROUTES];
    _Atomic int64_t in_flight[N_ROUTES];
};

struct metrics *metrics_new(void)
{
    return calloc(1, sizeof(struct metrics));
}

void metrics_free(struct metrics *m)
{
    free(m);
}

void metrics_started(struct metrics *m, enum route route)
{
    atomic_fetch_add(&m->in_flight[route], 1);
}

void metrics_finished(struct metrics *m, enum route route, const char *method, unsigned status,
                      uint64_t took_us, uint64_t bytes_in, uint64_t bytes_out)
{
    size_t i = 0, k = 0;

    while (i < N_METHODS - 1 && strcmp(methods[i], method) != 0)
        i++;
    while (k < N_STATUSES - 1 && statuses[k] != status)
        k++;
    atomic_fetch_sub(&m->in_flight[route], 1);
    atomic_fetch_add(&m->requests[route][i][k], 1);
    prom_times_add(&m->took[route], took_us);
    atomic_fetch_add(&m->bytes_in[route], bytes_in);
    atomic_fetch_add(&m->bytes_out[route], bytes_out);
}

static void write_requests(struct metrics *m, struct buf *out)
{
    prom_head(out, "kvfs_http_requests_total", "counter",
              "Requests answered; status 0: cut before the answer was complete.");
    for (unsigned r = 0; r < N_ROUTES; r++)
        for (unsigned i = 0; i < N_METHODS; i++)
            for (unsigned k = 0; k < N_STATUSES; k++) {
                uint64_t n = atomic_load(&m->requests[r][i][k]);

                if (n > 0)
                    buf_addf(out,
                             "kvfs_http_requests_total{route=\"%s\",method=\"%s\",status=\"%u\"} "
                             "%" PRIu64 "\n",
                             route_names[r], methods[i], statuses[k], n);
            }
}

static void write_times(struct metrics *m, struct buf *out)
{
    prom_head(out, "kvfs_http_request_seconds", "histogram",
              "Time from the request line to the end of the answer.");
    for (unsigned r = 0; r < N_ROUTES; r++)
        prom_times_write(out, "kvfs_http_request_seconds", "route", route_names[r], &m->took[r]);
}

void metrics_write(struct metrics *m, struct buf *out)
{
    write_requests(m, out);
    write_times(m, out);
    prom_head(out, "kvfs_http_in_flight", "gauge", "Requests begun and not yet answered.");
    for (unsigned r = 0; r < N_ROUTES; r++)
        buf_addf(out, "kvfs_http_in_flight{route=\"%s\"} %" PRId64 "\n", route_names[r],
                 atomic_load(&m->in_flight[r]));
    prom_head(out, "kvfs_http_received_bytes_total", "counter", "Bytes of request bodies.");
    for (unsigned r = 0; r < N_ROUTES; r++)
        buf_addf(out, "kvfs_http_received_bytes_total{route=\"%s\"} %" PRIu64 "\n", route_names[r],
                 atomic_load(&m->bytes_in[r]));
    prom_head(out, "kvfs_http_sent_bytes_total", "counter", "Bytes of answer bodies.");
    for (unsigned r = 0; r < N_ROUTES; r++)
        buf_addf(out, "kvfs_http_sent_bytes_total{route=\"%s\"} %" PRIu64 "\n", route_names[r],
                 atomic_load(&m->bytes_out[r]));
}

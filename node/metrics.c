/* metrics.c - counters of requests, in the Prometheus text format. */
#include "node/metrics.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static const char *const route_names[N_ROUTES] = {
    [ROUTE_KV] = "kv",           [ROUTE_LIST] = "list",
    [ROUTE_REPLICA] = "replica", [ROUTE_REPLICAS] = "replicas",
    [ROUTE_HEALTH] = "health",   [ROUTE_STATUS] = "status",
    [ROUTE_METRICS] = "metrics", [ROUTE_NONE] = "none",
};
static const char *const methods[] = {"GET", "HEAD", "PUT", "DELETE", "POST", "other"};
#define N_METHODS (sizeof(methods) / sizeof(methods[0]))
/* 0: cut; the last takes all others. */
static const unsigned statuses[] = {0,   200, 201, 204, 206, 304, 400, 404, 405, 409, 411,
                                    412, 413, 414, 415, 416, 421, 500, 503, 504, 507, 999};
#define N_STATUSES (sizeof(statuses) / sizeof(statuses[0]))
/* Upper bounds in microseconds; one more bucket takes the rest. */
static const uint64_t buckets[] = {100,   250,   500,    1000,   2500,   5000,    10000,
                                   25000, 50000, 100000, 250000, 500000, 1000000, 5000000};
#define N_BUCKETS (sizeof(buckets) / sizeof(buckets[0]))

struct metrics {
    _Atomic uint64_t requests[N_ROUTES][N_METHODS][N_STATUSES];
    _Atomic uint64_t took[N_ROUTES][N_BUCKETS + 1];
    _Atomic uint64_t took_us[N_ROUTES], bytes_in[N_ROUTES], bytes_out[N_ROUTES];
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
    size_t i = 0, k = 0, b = 0;

    while (i < N_METHODS - 1 && strcmp(methods[i], method) != 0)
        i++;
    while (k < N_STATUSES - 1 && statuses[k] != status)
        k++;
    while (b < N_BUCKETS && took_us > buckets[b])
        b++;
    atomic_fetch_sub(&m->in_flight[route], 1);
    atomic_fetch_add(&m->requests[route][i][k], 1);
    atomic_fetch_add(&m->took[route][b], 1);
    atomic_fetch_add(&m->took_us[route], took_us);
    atomic_fetch_add(&m->bytes_in[route], bytes_in);
    atomic_fetch_add(&m->bytes_out[route], bytes_out);
}

static void head(struct buf *out, const char *name, const char *type, const char *help)
{
    buf_addf(out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

void metrics_gauge(struct buf *out, const char *name, const char *help, double value)
{
    head(out, name, "gauge", help);
    buf_addf(out, "%s %.17g\n", name, value);
}

static void write_requests(struct metrics *m, struct buf *out)
{
    head(out, "kvfs_http_requests_total", "counter",
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
    head(out, "kvfs_http_request_seconds", "histogram",
         "Time from the request line to the end of the answer.");
    for (unsigned r = 0; r < N_ROUTES; r++) {
        uint64_t n = 0;

        for (unsigned b = 0; b <= N_BUCKETS; b++) {
            n += atomic_load(&m->took[r][b]);
            buf_addf(out, "kvfs_http_request_seconds_bucket{route=\"%s\",le=\"", route_names[r]);
            if (b < N_BUCKETS)
                buf_addf(out, "%g", (double)buckets[b] / 1e6);
            else
                buf_add_str(out, "+Inf");
            buf_addf(out, "\"} %" PRIu64 "\n", n);
        }
        buf_addf(out, "kvfs_http_request_seconds_sum{route=\"%s\"} %.6f\n", route_names[r],
                 (double)atomic_load(&m->took_us[r]) / 1e6);
        buf_addf(out, "kvfs_http_request_seconds_count{route=\"%s\"} %" PRIu64 "\n", route_names[r],
                 n);
    }
}

void metrics_write(struct metrics *m, struct buf *out)
{
    write_requests(m, out);
    write_times(m, out);
    head(out, "kvfs_http_in_flight", "gauge", "Requests begun and not yet answered.");
    for (unsigned r = 0; r < N_ROUTES; r++)
        buf_addf(out, "kvfs_http_in_flight{route=\"%s\"} %" PRId64 "\n", route_names[r],
                 atomic_load(&m->in_flight[r]));
    head(out, "kvfs_http_received_bytes_total", "counter", "Bytes of request bodies.");
    for (unsigned r = 0; r < N_ROUTES; r++)
        buf_addf(out, "kvfs_http_received_bytes_total{route=\"%s\"} %" PRIu64 "\n", route_names[r],
                 atomic_load(&m->bytes_in[r]));
    head(out, "kvfs_http_sent_bytes_total", "counter", "Bytes of answer bodies.");
    for (unsigned r = 0; r < N_ROUTES; r++)
        buf_addf(out, "kvfs_http_sent_bytes_total{route=\"%s\"} %" PRIu64 "\n", route_names[r],
                 atomic_load(&m->bytes_out[r]));
}

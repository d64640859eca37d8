/* prometheus.c - writing metrics in the Prometheus text format, and histograms of times. */
#include "common/prometheus.h"

#include <inttypes.h>
#include <stdatomic.h>

/* Upper bounds in microseconds. */
static const uint64_t buckets[PROM_N_BUCKETS] = {
    100, 250, 500, 1000, 2500, 5000, 10000, 25000, 50000, 100000, 250000, 500000, 1000000, 5000000};

void prom_head(struct buf *out, const char *name, const char *type, const char *help)
{
    buf_addf(out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

void prom_gauge(struct buf *out, const char *name, const char *help, double value)
{
    prom_head(out, name, "gauge", help);
    buf_addf(out, "%s %.17g\n", name, value);
}

void prom_label(struct buf *out, const char *value)
{
    for (; *value != '\0'; value++) {
        if (*value == '"' || *value == '\\')
            buf_u8(out, '\\');
        if (*value == '\n')
            buf_add_str(out, "\\n");
        else
            buf_u8(out, (uint8_t)*value);
    }
}

void prom_times_add(struct prom_times *t, uint64_t took_us)
{
    unsigned b = 0;

    while (b < PROM_N_BUCKETS && took_us > buckets[b])
        b++;
    atomic_fetch_add(&t->n[b], 1);
    atomic_fetch_add(&t->total_us, took_us);
}

void prom_times_write(struct buf *out, const char *name, const char *label, const char *value,
                      struct prom_times *t)
{
    uint64_t n = 0;

    for (unsigned b = 0; b <= PROM_N_BUCKETS; b++) {
        n += atomic_load(&t->n[b]);
        buf_addf(out, "%s_bucket{%s=\"%s\",le=\"", name, label, value);
        if (b < PROM_N_BUCKETS)
            buf_addf(out, "%g", (double)buckets[b] / 1e6);
        else
            buf_add_str(out, "+Inf");
        buf_addf(out, "\"} %" PRIu64 "\n", n);
    }
    buf_addf(out, "%s_sum{%s=\"%s\"} %.6f\n", name, label, value,
             (double)atomic_load(&t->total_us) / 1e6);
    buf_addf(out, "%s_count{%s=\"%s\"} %" PRIu64 "\n", name, label, value, n);
}

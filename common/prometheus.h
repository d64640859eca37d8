/* prometheus.h - writing metrics in the Prometheus text format, and histograms of times. */
#ifndef KVFS_COMMON_PROMETHEUS_H
#define KVFS_COMMON_PROMETHEUS_H

#include <stdint.h>

#include "common/buf.h"

/* The HELP and TYPE lines; type: "counter", "gauge", "histogram". */
void prom_head(struct buf *out, const char *name, const char *type, const char *help);
/* A whole metric of one sample. */
void prom_gauge(struct buf *out, const char *name, const char *help, double value);
/* A label's value, as it stands between quotes. */
void prom_label(struct buf *out, const char *value);

#define PROM_N_BUCKETS 14u /* from 0.1 ms to 5 s, and one more for what took longer */

/* How long things took. {0} is none. Any thread, lock-free. */
struct prom_times {
    _Atomic uint64_t n[PROM_N_BUCKETS + 1];
    _Atomic uint64_t total_us;
};
void prom_times_add(struct prom_times *t, uint64_t took_us);
/* The lines of name{label="value"}, without the head; value needs no escape. */
void prom_times_write(struct buf *out, const char *name, const char *label, const char *value,
                      struct prom_times *t);

#endif

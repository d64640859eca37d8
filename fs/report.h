/* report.h - what a mount tells of itself, as text: for the control directory. */
#ifndef KVFS_FS_REPORT_H
#define KVFS_FS_REPORT_H

#include "fs/fs.h"
#include "fs/metrics.h"

struct report_source { /* all borrowed */
    struct fs *fs;
    struct cluster *cluster;
    struct callers *callers;
    struct metrics *metrics;
    const char *mountpoint;
    uint64_t since_us; /* monotonic: when it was mounted */
};

/* JSON and a newline, for people who look for what is wrong. Appends, as the next. */
void report_status(const struct report_source *src, struct buf *out);
/* The Prometheus text format. */
void report_metrics(const struct report_source *src, struct buf *out);

#endif

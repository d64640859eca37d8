/* metrics.c - what this mount has done so far, as counters. */
#include "fs/metrics.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "common/prometheus.h"

#define N_ERRNOS 134u /* of Linux; what is above counts as 0, which is none */

static const char *const names[N_CALLS] = {
    [CALL_NONE] = "none",         [CALL_LOOKUP] = "lookup",
    [CALL_GETATTR] = "getattr",   [CALL_ACCESS] = "access",
    [CALL_SETATTR] = "setattr",   [CALL_READLINK] = "readlink",
    [CALL_GETXATTR] = "getxattr", [CALL_LISTXATTR] = "listxattr",
    [CALL_SETXATTR] = "setxattr", [CALL_REMOVEXATTR] = "removexattr",
    [CALL_CREATE] = "create",     [CALL_OPEN] = "open",
    [CALL_READ] = "read",         [CALL_WRITE] = "write",
    [CALL_FLUSH] = "flush",       [CALL_FSYNC] = "fsync",
    [CALL_RELEASE] = "release",   [CALL_FALLOCATE] = "fallocate",
    [CALL_LSEEK] = "lseek",       [CALL_COPY] = "copy",
    [CALL_MKDIR] = "mkdir",       [CALL_MKNOD] = "mknod",
    [CALL_SYMLINK] = "symlink",   [CALL_UNLINK] = "unlink",
    [CALL_RMDIR] = "rmdir",       [CALL_RENAME] = "rename",
    [CALL_OPENDIR] = "opendir",   [CALL_READDIR] = "readdir",
    [CALL_STATFS] = "statfs",
};

struct metrics {
    struct prom_times took[N_CALLS];
    _Atomic uint64_t failed[N_CALLS][N_ERRNOS];
    _Atomic uint64_t read_bytes, written_bytes;
};

const char *call_name(enum fs_call call)
{
    return names[call];
}

struct metrics *metrics_new(void)
{
    return calloc(1, sizeof(struct metrics));
}

void metrics_free(struct metrics *m)
{
    free(m);
}

void metrics_answered(struct metrics *m, enum fs_call call, int code, uint64_t took_us)
{
    prom_times_add(&m->took[call], took_us);
    if (code > 0)
        atomic_fetch_add(&m->failed[call][(unsigned)code < N_ERRNOS ? code : 0], 1);
}

void metrics_read(struct metrics *m, uint64_t n_bytes)
{
    atomic_fetch_add(&m->read_bytes, n_bytes);
}

void metrics_written(struct metrics *m, uint64_t n_bytes)
{
    atomic_fetch_add(&m->written_bytes, n_bytes);
}

/* --- telling ---------------------------------------------------------------------------------- */

static bool was_called(struct metrics *m, enum fs_call call)
{
    for (unsigned b = 0; b <= PROM_N_BUCKETS; b++)
        if (atomic_load(&m->took[call].n[b]) > 0)
            return true;
    return false;
}

static void write_failed(struct metrics *m, struct buf *out)
{
    prom_head(out, "kvfs_call_errors_total", "counter", "Calls that ended with this error.");
    for (unsigned c = 0; c < N_CALLS; c++)
        for (unsigned e = 0; e < N_ERRNOS; e++) {
            uint64_t n = atomic_load(&m->failed[c][e]);
            const char *error = e != 0 ? strerrorname_np((int)e) : NULL;

            if (n > 0)
                buf_addf(out, "kvfs_call_errors_total{call=\"%s\",error=\"%s\"} %" PRIu64 "\n",
                         names[c], error != NULL ? error : "other", n);
        }
}

static void write_total(struct buf *out, const char *name, const char *help, uint64_t n)
{
    prom_head(out, name, "counter", help);
    buf_addf(out, "%s %" PRIu64 "\n", name, n);
}

void metrics_write(struct metrics *m, struct buf *out)
{
    prom_head(out, "kvfs_call_seconds", "histogram",
              "Time from a call of the kernel to its answer.");
    for (unsigned c = 0; c < N_CALLS; c++)
        if (was_called(m, (enum fs_call)c))
            prom_times_write(out, "kvfs_call_seconds", "call", names[c], &m->took[c]);
    write_failed(m, out);
    write_total(out, "kvfs_read_bytes_total", "Bytes that programs read.",
                atomic_load(&m->read_bytes));
    write_total(out, "kvfs_written_bytes_total", "Bytes that programs wrote.",
                atomic_load(&m->written_bytes));
}

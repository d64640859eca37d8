/* metrics.h - what this mount has done so far, as counters. Any thread, lock-free. */
#ifndef KVFS_FS_METRICS_H
#define KVFS_FS_METRICS_H

#include <stdint.h>

#include "common/buf.h"

/* What the kernel asks. */
enum fs_call {
    CALL_NONE, /* our own work */
    CALL_LOOKUP,
    CALL_GETATTR,
    CALL_ACCESS,
    CALL_SETATTR,
    CALL_READLINK,
    CALL_GETXATTR,
    CALL_LISTXATTR,
    CALL_SETXATTR,
    CALL_REMOVEXATTR,
    CALL_CREATE,
    CALL_OPEN,
    CALL_READ,
    CALL_WRITE,
    CALL_FLUSH,
    CALL_FSYNC,
    CALL_RELEASE,
    CALL_FALLOCATE,
    CALL_LSEEK,
    CALL_COPY,
    CALL_MKDIR,
    CALL_MKNOD,
    CALL_SYMLINK,
    CALL_UNLINK,
    CALL_RMDIR,
    CALL_RENAME,
    CALL_OPENDIR,
    CALL_READDIR,
    CALL_STATFS,
    N_CALLS
};
/* The call's name in small letters. Static. */
const char *call_name(enum fs_call call);

struct metrics;

struct metrics *metrics_new(void); /* NULL without memory */
void metrics_free(struct metrics *m);
/* A call was answered; code: the errno that its caller got, or 0. */
void metrics_answered(struct metrics *m, enum fs_call call, int code, uint64_t took_us);
void metrics_read(struct metrics *m, uint64_t n_bytes);
void metrics_written(struct metrics *m, uint64_t n_bytes);

/* All of it in the Prometheus text format. Appends. */
void metrics_write(struct metrics *m, struct buf *out);

#endif

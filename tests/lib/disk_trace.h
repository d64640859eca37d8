/*
 * disk_trace.h - what the shim (disk_shim.c) writes down of a process's calls on one directory, and
 * what power.c reads: records behind each other, each followed by its names and bytes.
 *
 * A call is written down when it has returned, a sync also before it begins: what stands before the
 * beginning of a sync that came to its end is on the disk.
 */
#ifndef KVFS_TESTS_LIB_DISK_TRACE_H
#define KVFS_TESTS_LIB_DISK_TRACE_H

#include <stdint.h>

enum trace_kind {
    TRACE_CREATE, /* name, ino: opened for writing; perhaps there before */
    TRACE_MKDIR,  /* name, ino */
    TRACE_UNLINK, /* name; also of a directory */
    TRACE_RENAME, /* name, to */
    TRACE_WRITE,  /* ino, offset, bytes */
    TRACE_CUT,    /* ino, offset: the new length */
    TRACE_SYNC_BEGIN,
    TRACE_SYNC_END,    /* ino, number: of a file or directory, as its beginning */
    TRACE_SYNC_FAILED, /* instead of its end */
};

#define TRACE_INO_ALL UINT64_MAX /* a sync of all there is */

struct trace_record {
    uint32_t kind, number;
    uint64_t us; /* CLOCK_MONOTONIC */
    uint64_t ino;
    int64_t offset;
    uint32_t name_len, to_len; /* with their NULs; relative to the directory */
    uint32_t len, reserved;
};

#endif

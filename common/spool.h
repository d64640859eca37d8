/*
 * spool.h - blobs too large for memory (MEMORY_BLOB_MAX): each in a temporary file without a name,
 * which is mapped.
 *
 * The space is reserved before the blob is there, so that a full disk is an error here, and never
 * the end of a process that touches the mapping. Who goes through such bytes once says so
 * (spool_pass()): they then count as the kernel's cache and not as memory of the process.
 *
 * The files are in the directory named last, else in $TMPDIR, else in /var/tmp.
 */
#ifndef KVFS_COMMON_SPOOL_H
#define KVFS_COMMON_SPOOL_H

#include "common/buf.h"
#include "common/workers.h"

/* Once, before there are threads. dir is borrowed for ever; NULL: the default. */
void spool_set_dir(const char *dir);
/*
 * Giving a large file back takes the file system long: these do it, so that it need not be who
 * happens to be the last that had the blob. Borrowed until they are set to NULL, which nobody may
 * be dropping blobs beside.
 */
void spool_set_workers(struct workers *w);
/* A temporary file without a name, empty, nothing reserved: its descriptor, or -errno. */
int spool_open(void);

/*
 * Room for cap bytes in *b, which is NULL or nobody else's; the first `used` bytes stay. len is
 * cap afterwards. 0, -ENOMEM, -ENOSPC, ...: *b is as it was. Blocks on the disk.
 */
int spool_reserve(struct blob **b, size_t used, size_t cap);
/* Puts bytes at off, within len. 0, -EIO, ... Blocks on the disk at most for a large blob. */
int spool_write(struct blob *b, size_t off, struct span part);
/*
 * These bytes of v, which may be of any mapped blob, are not wanted soon. They may still be read,
 * whenever, by whoever. Harmless for any other value.
 */
void spool_pass(struct value v, size_t from, size_t to);

#endif

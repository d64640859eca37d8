/*
 * value_file.h - values too large for the database: a file each, DIR/XX/ID, named by an id that is
 * used once.
 *
 * A file has its final name from the start, but is nothing until the database names its id: before
 * that (and after it was forgotten) it is an orphan, and sweeping at the next start removes what a
 * crash left. So no rename is needed, only: file and directory are synced before the database names
 * the id, and the file is removed after the database has durably forgotten it.
 */
#ifndef KVFS_NODE_VALUE_FILE_H
#define KVFS_NODE_VALUE_FILE_H

#include <stdatomic.h>
#include <stdbool.h>

#include "common/buf.h"
#include "common/err.h"

struct value_dir;
struct store_file; /* one on its way in, see store.h */

/*
 * sync: values are on the disk when finished. *broken, which outlives it: set when writing or
 * syncing one failed (a full disk apart): after that the kernel no longer knows what is not on the
 * disk, and the next sync would succeed.
 */
int value_dir_open(const char *path, bool sync, atomic_bool *broken, struct value_dir **out,
                   struct err *err);
void value_dir_close(struct value_dir *d);

/* A number not used before in this directory. Any thread. */
uint64_t value_dir_next_id(struct value_dir *d);
/* The descriptor, which the caller closes, or -errno. */
int value_dir_read(struct value_dir *d, uint64_t id);
/* Bytes of the files that were kept, by this process or before; never blocks. */
uint64_t value_dir_size(const struct value_dir *d);
/* Also when it is not there. */
void value_dir_remove(struct value_dir *d, uint64_t id);
/* Are there any files at all? 1, 0, -errno. */
int value_dir_used(struct value_dir *d);
/*
 * Removes every file whose id is not among these, which it sorts, and counts what the others take.
 * Returns how many it removed, or -errno.
 */
int value_dir_sweep(struct value_dir *d, uint64_t *ids, size_t n_ids);

/* Reserves the space, so that a full disk shows here (-ENOSPC). */
int value_file_begin(struct value_dir *d, uint64_t size, struct store_file **out);
int value_file_write(struct store_file *f, struct span part);
/*
 * All of it is written: now, where the directory syncs, it is on the disk and under its name.
 * -EINVAL when bytes are missing.
 */
int value_file_finish(struct store_file *f);
uint64_t value_file_id(const struct store_file *f);
/* The file stays; frees f. */
void value_file_keep(struct store_file *f);
/*
 * Whether something names it is not known: value_file_abort() shall leave it to the sweep of the
 * next start.
 */
void value_file_leave(struct store_file *f);
/* Removes it; frees f. NULL is allowed. */
void value_file_abort(struct store_file *f);

#endif

/*
 * wal_tail.h - was RocksDB's log damaged, or only torn by a loss of power while its last record was
 * being written?
 *
 * The library cannot tell: it refuses both, or forgives both. The difference is that a torn record
 * was never acknowledged. One write is one record and is synced before the next begins, so only the
 * very last can be torn; and what is missing of it are whole sectors that never reached the disk,
 * which read as zeros.
 */
#ifndef KVFS_NODE_WAL_TAIL_H
#define KVFS_NODE_WAL_TAIL_H

#include <stdbool.h>

/*
 * Reads the logs in the directory of a database. *torn: all are whole but for the last record of
 * the last one, of which sectors are missing.
 */
int wal_tail_check(const char *db, bool *torn);

#endif

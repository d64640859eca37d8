/*
 * power.h - what a power loss leaves of a directory: a trace of the calls on it (disk_trace.h) is
 * played up to a moment, and of what no sync had put on the disk by then, any part may be missing.
 *
 *   - A name (made, removed, changed) is on the disk once its directory was synced; what was not is
 *     lost from some point on, directory by directory.
 *   - Bytes are on the disk once their file was synced; of the others any pages may be there, of
 *     the file's last ones also single sectors. A hole reads as zeros.
 *
 * Stricter than most file systems, none of which promises more.
 */
#ifndef KVFS_TESTS_LIB_POWER_H
#define KVFS_TESTS_LIB_POWER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tests/lib/rng.h"

struct power;

/* What becomes of writes that are not synced. */
enum power_mode {
    POWER_DROP,  /* all lost: also names */
    POWER_KEEP,  /* all there: as after kill -9 */
    POWER_ORDER, /* up to some point, in order */
    POWER_MIX,   /* any pages, torn */
    POWER_N_MODES
};

struct power *power_load(const char *trace_path);
void power_free(struct power *p);
size_t power_n(const struct power *p);               /* records */
uint64_t power_us(const struct power *p, size_t at); /* when the first `at` of them had happened */
/*
 * The bytes written so far to the file of that name, in order: what a workload says it was told.
 * The caller frees them.
 */
uint8_t *power_written(const struct power *p, size_t at, const char *name, size_t *len);
/* Makes dir, which must not be there, as the first `at` records and the loss of power leave it. */
void power_cut(const struct power *p, size_t at, enum power_mode mode, struct rng *rng,
               const char *dir);

#endif

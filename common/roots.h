/*
 * roots.h - the writes behind all that an operation tried to replace: they tell whether it would
 * show in a record, had it led there.
 */
#ifndef KVFS_COMMON_ROOTS_H
#define KVFS_COMMON_ROOTS_H

#include "common/record.h"

struct roots {
    uint64_t ids[RECENT_MAX]; /* writes that all the records replaced so far have in `recent` */
    unsigned n;
};

bool record_is_recent(const struct record *r, uint64_t id);
/* The operation tries to replace this record, the first one. */
void roots_begin(struct roots *roots, const struct record *first);
/* It tries to replace this one as well. */
void roots_narrow(struct roots *roots, const struct record *next);
/*
 * Would the operation show in cur, had it led to it? Surely where all that led to cur shows. Else
 * it would stand before all that the records it replaces had in their lists: so it would, when one
 * of those still shows.
 */
bool roots_reach(const struct roots *roots, const struct record *cur);

#endif

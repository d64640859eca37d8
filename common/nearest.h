/* nearest.h - which of some names somebody may have meant, for messages about unknown ones. */
#ifndef KVFS_COMMON_NEAREST_H
#define KVFS_COMMON_NEAREST_H

#include <stddef.h>

#define NEAREST_LEN_MAX 64u /* of longer names only so much is looked at */

/* How many letters to add, drop or replace to make b of a (Levenshtein 1966). */
size_t nearest_distance(const char *a, const char *b);

#endif

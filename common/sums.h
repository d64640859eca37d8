/* sums.h - the checksums of a value (record.h), computed piece by piece as its bytes come. */
#ifndef KVFS_COMMON_SUMS_H
#define KVFS_COMMON_SUMS_H

#include "common/buf.h"

struct sums;

/* known: the sums of the whole chunks that stand before all that is added; may be empty. NULL
 * without memory. */
struct sums *sums_new(struct span known);
void sums_add(struct sums *s, struct span part);
/* Those of all, borrowed from s; nothing may be added any more. 0 or -ENOMEM. */
int sums_end(struct sums *s, struct span *out);
void sums_free(struct sums *s); /* NULL is allowed */

#endif

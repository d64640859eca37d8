/*
 * conditions.h - conditional and range requests (RFC 9110, 13 and 14): pure decisions about a
 * record.
 */
#ifndef KVFS_NODE_CONDITIONS_H
#define KVFS_NODE_CONDITIONS_H

#include <stdbool.h>

#include "common/err.h"
#include "common/record.h"

/* Copies of a request's headers, NULL where not given. */
struct conditions {
    char *if_match, *if_none_match, *if_modified_since, *if_unmodified_since, *if_range;
};

/* Is this a comma list of entity tags, or "*"? 0 or -EINVAL. */
int etags_check(const char *list);
/*
 * Does the list name this version? weak: also as W/"..." (If-None-Match compares so; a weak tag
 * never matches strongly).
 */
bool etags_match(const char *list, struct ballot version, bool weak);

/* The newest version that a tag of any of them names; none where there is no such tag. */
struct ballot conditions_newest(const struct conditions *c);

/*
 * May a change of `cur` go on? 0 or -ECANCELED. A key that is absent or deleted has no current
 * version.
 */
int conditions_write(const struct conditions *c, const struct record *cur);
/* 0: answer with the value; 304, 412. rec is live. */
unsigned conditions_read(const struct conditions *c, const struct record *rec);
/* Does If-Range (if any) allow a part of this record? */
bool conditions_range(const struct conditions *c, const struct record *rec);
void conditions_fini(struct conditions *c);

enum range_kind { RANGE_NONE, RANGE_FROM, RANGE_SUFFIX };
struct range {
    enum range_kind kind;
    uint64_t first, last; /* RANGE_FROM: last may be UINT64_MAX */
    uint64_t suffix;
};

/*
 * One range of bytes; what is not understood, or more than one, is RANGE_NONE: the whole is
 * answered then. NULL is allowed.
 */
struct range range_parse(const char *header);
/* The bytes it means of a value of this size: 200 for the whole, 206, or 416 (nothing set). */
unsigned range_resolve(const struct range *r, uint64_t size, uint64_t *offset, uint64_t *length);

/* "Sun, 06 Nov 1994 08:49:37 GMT" into out. */
#define HTTP_DATE_LEN 30
void http_date(int64_t ns, char out[HTTP_DATE_LEN]);
/* Seconds since the epoch; -EINVAL. */
int http_date_parse(const char *s, int64_t *out);

#endif

/*
 * ballot.h - the order of versions. A ballot names one attempt of one proposer and, once accepted,
 * the version it wrote.
 */
#ifndef KVFS_COMMON_BALLOT_H
#define KVFS_COMMON_BALLOT_H

#include <stdbool.h>
#include <stdint.h>

struct ballot {
    uint64_t counter;
    uint64_t proposer;
};

#define BALLOT_NONE ((struct ballot){0, 0}) /* the version of a key never written */
#define BALLOT_PROPOSER_MAX UINT64_MAX      /* no client has it: floors are (counter, this) */
/*
 * Counters above are refused, and not believed: they come from no clock (microseconds: the year
 * 294,000), and one of them would use up those that remain.
 */
#define BALLOT_COUNTER_MAX (UINT64_C(1) << 63)
#define BALLOT_TEXT_LEN 34 /* "%016x-%016x" and NUL */

/* <0, 0, >0: by counter, then proposer. */
static inline int ballot_cmp(struct ballot a, struct ballot b)
{
    if (a.counter != b.counter)
        return a.counter < b.counter ? -1 : 1;
    return a.proposer < b.proposer ? -1 : a.proposer > b.proposer;
}

static inline struct ballot ballot_max(struct ballot a, struct ballot b)
{
    return ballot_cmp(a, b) >= 0 ? a : b;
}

static inline bool ballot_is_none(struct ballot b)
{
    return b.counter == 0 && b.proposer == 0;
}

/* The text of ETags, logs and JSON: counter and proposer as 16 hex digits each, joined by '-'. */
void ballot_text(struct ballot b, char out[BALLOT_TEXT_LEN]);
/* Reads exactly that text; 0 or -EINVAL. */
int ballot_parse(const char *s, struct ballot *out);

#endif

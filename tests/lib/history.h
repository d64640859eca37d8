/*
 * history.h - what clients saw of one key, and whether some order of their operations explains it
 * (linearizability, Herlihy and Wing 1990).
 *
 * The key is modelled as absent or a list of ids with a mark. Every write has an id of its own,
 * which becomes the mark and which SET, CREATE and CAS make the whole list and APPEND its last
 * item; so whatever was seen tells exactly which writes it contains.
 */
#ifndef KVFS_TESTS_LIB_HISTORY_H
#define KVFS_TESTS_LIB_HISTORY_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "common/ballot.h"

#define HISTORY_OPS_MAX 64u /* one bit each */
#define HISTORY_IDS_MAX 64u
#define HISTORY_FOREVER UINT64_MAX

enum history_kind {
    HISTORY_READ,
    HISTORY_SET,
    HISTORY_APPEND, /* creates the key if it is absent */
    HISTORY_CREATE, /* only if absent */
    HISTORY_DELETE, /* only if present */
    HISTORY_CAS,    /* sets, only if the mark is `expect` */
    HISTORY_TOUCH,  /* changes the mark alone, only if present */
};

enum history_outcome {
    HISTORY_OK,
    HISTORY_FAILED,  /* the condition was found false: no effect */
    HISTORY_NONE,    /* no answer, but surely no effect */
    HISTORY_UNKNOWN, /* takes effect once, at any time after its start, or never */
};

/*
 * What an operation saw: a read, the value; a write, the value that it replaced or that its
 * condition failed on.
 */
struct history_seen {
    bool mark_known, list_known;
    uint32_t mark; /* 0: absent */
    unsigned n;
    uint32_t ids[HISTORY_IDS_MAX];
};

struct history_op {
    enum history_kind kind;
    enum history_outcome outcome;
    unsigned client;
    uint32_t id, expect;
    uint64_t start, end; /* end is HISTORY_FOREVER unless OK or FAILED */
    struct history_seen seen;
    bool version_known; /* the answer named this version, which carried this mark */
    struct ballot version;
    uint32_t version_mark;
};

struct history {
    unsigned n;
    struct history_op ops[HISTORY_OPS_MAX];
};

struct history_verdict {
    bool good;
    uint64_t unexplained; /* bit i: ops[i] has no place in the longest order that was found */
    char why[128];
};

/*
 * Adds an operation that starts now, as UNKNOWN. NULL when the history is full. Valid as long as h.
 */
struct history_op *history_add(struct history *h, enum history_kind kind, unsigned client,
                               uint32_t id, uint64_t now);
void history_end(struct history_op *op, enum history_outcome outcome, uint64_t now);

/*
 * Is there an order of the operations that respects time and explains everything seen; and do the
 * versions that answers named never go back in time, and always carry the same mark? 0 with *out,
 * -ENOMEM, -E2BIG: gave up after HISTORY_STATES_MAX states.
 *
 * A failed CAS only has to have seen what was there: settling gives the same value a new version,
 * so it may fail on an equal mark.
 */
#define HISTORY_STATES_MAX (1u << 20)
int history_check(const struct history *h, struct history_verdict *out);

/*
 * One line per operation, in the order of their starts; those that the verdict could not place are
 * marked. verdict may be NULL.
 */
void history_print(FILE *out, const struct history *h, const struct history_verdict *verdict);

#endif

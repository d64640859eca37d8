/* roots.c - the writes behind what an operation tried to replace. */
#include "common/roots.h"

#include <string.h>

bool record_is_recent(const struct record *r, uint64_t id)
{
    for (unsigned i = 0; i < r->n_recent; i++)
        if (r->recent[i] == id)
            return true;
    return false;
}

void roots_begin(struct roots *roots, const struct record *first)
{
    memcpy(roots->ids, first->recent, first->n_recent * sizeof roots->ids[0]);
    roots->n = first->n_recent;
}

void roots_narrow(struct roots *roots, const struct record *next)
{
    unsigned n = 0;

    for (unsigned i = 0; i < roots->n; i++)
        if (record_is_recent(next, roots->ids[i]))
            roots->ids[n++] = roots->ids[i];
    roots->n = n;
}

bool roots_reach(const struct roots *roots, const struct record *cur)
{
    if (cur->seq == cur->n_recent)
        return true; /* a tombstone that hid more is dropped only long after the op has ended */
    for (unsigned i = 0; i < roots->n; i++)
        if (record_is_recent(cur, roots->ids[i]))
            return true;
    return false;
}

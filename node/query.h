/* query.h - the part of a URL behind '?': decoded once, '+' is a plus, unknown names are errors. */
#ifndef KVFS_NODE_QUERY_H
#define KVFS_NODE_QUERY_H

#include <stdbool.h>

#include "common/buf.h"
#include "common/err.h"

struct query_param {
    const char *name;
    size_t max; /* bytes of the value, decoded; 0: those of a key */
    bool given;
    struct buf value; /* decoded; empty for "name" and "name=" */
};

/*
 * Fills the n params (with names set). -EINVAL names in err what is unknown, given twice or badly
 * escaped; -ENOMEM.
 */
int query_parse(struct span query, struct query_param *params, unsigned n, struct err *err);
void query_fini(struct query_param *params, unsigned n);
/*
 * Of two parameters, NAME and NAME_base64, the one that was given, as bytes: *out borrows from
 * plain. -EINVAL: both, not base64, or longer than a key; with the reason in why.
 */
int query_bytes(struct query_param *plain, struct query_param *coded, struct span *out,
                struct err *why);

#endif

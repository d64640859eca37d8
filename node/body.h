/* body.h - a request's body, gathered in memory within a budget. */
#ifndef KVFS_NODE_BODY_H
#define KVFS_NODE_BODY_H

#include "common/buf.h"
#include "node/budget.h"

struct body {
    struct budget *budget;
    struct blob *blob;
    uint64_t taken; /* of the budget, until body_fini() */
    uint64_t max;
    size_t len;
};

/*
 * total: how long it will be, or UINT64_MAX. 0, -EFBIG (over max), -EAGAIN (the budget is spent),
 * -ENOMEM.
 */
int body_begin(struct body *b, struct budget *budget, uint64_t total, uint64_t max);
int body_add(struct body *b, struct span part);
/*
 * What came, with a reference of its own. The memory counts against the budget until body_fini().
 */
struct value body_value(const struct body *b);
void body_fini(struct body *b); /* {0} is allowed */

#endif

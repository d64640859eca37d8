/* budget.h - a bound on memory that many requests share. Any thread, lock-free. */
#ifndef KVFS_NODE_BUDGET_H
#define KVFS_NODE_BUDGET_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct budget {
    uint64_t max;
    _Atomic uint64_t used;
};

/* Takes n bytes, or nothing where they would pass the bound. */
static inline bool budget_take(struct budget *b, uint64_t n)
{
    uint64_t used = atomic_load(&b->used);

    do {
        if (n > b->max || used > b->max - n)
            return false;
    } while (!atomic_compare_exchange_weak(&b->used, &used, used + n));
    return true;
}

static inline void budget_give(struct budget *b, uint64_t n)
{
    atomic_fetch_sub(&b->used, n);
}

#endif

/*
 * timer_heap.h - armed timers by due time: a binary heap. A timer knows its place in it (slot), so
 * that moving one costs O(log n).
 */
#ifndef KVFS_COMMON_TIMER_HEAP_H
#define KVFS_COMMON_TIMER_HEAP_H

#include "common/transport.h"

/* {0} is an empty one. slots[1] is due first; slots[0] is not used, for slot 0 means not armed. */
struct timer_heap {
    struct timer **slots;
    size_t len, cap; /* armed timers; room for them */
};

void timer_heap_fini(
    struct timer_heap
        *h); /* timers still armed are forgotten, and must not be cleared afterwards */
/* Arms or moves. 0 or -ENOMEM (a timer that is armed already never needs memory). */
int timer_heap_set(struct timer_heap *h, struct timer *t, uint64_t due_us);
void timer_heap_clear(struct timer_heap *h, struct timer *t); /* harmless when not armed */
/* The one due first, still armed; NULL: none. */
struct timer *timer_heap_first(const struct timer_heap *h);

#endif

/* timer_heap.c - armed timers by due time. */
#include "common/timer_heap.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#define HEAP_CAP_FIRST 64u

void timer_heap_fini(struct timer_heap *h)
{
    free(h->slots);
    *h = (struct timer_heap){0};
}

static void put(struct timer_heap *h, size_t slot, struct timer *t)
{
    h->slots[slot] = t;
    t->slot = slot;
}

/* t belongs at `slot` or above. */
static void sift_up(struct timer_heap *h, size_t slot, struct timer *t)
{
    while (slot > 1 && t->due_us < h->slots[slot / 2]->due_us) {
        put(h, slot, h->slots[slot / 2]);
        slot /= 2;
    }
    put(h, slot, t);
}

/* t belongs at `slot` or below. */
static void sift_down(struct timer_heap *h, size_t slot, struct timer *t)
{
    for (;;) {
        size_t child = slot * 2;

        if (child > h->len)
            break;
        if (child < h->len && h->slots[child + 1]->due_us < h->slots[child]->due_us)
            child++;
        if (t->due_us <= h->slots[child]->due_us)
            break;
        put(h, slot, h->slots[child]);
        slot = child;
    }
    put(h, slot, t);
}

static int grow(struct timer_heap *h)
{
    size_t cap = h->cap == 0 ? HEAP_CAP_FIRST : h->cap * 2;
    struct timer **slots = realloc(h->slots, (cap + 1) * sizeof(*slots));

    if (slots == NULL)
        return -ENOMEM;
    h->slots = slots;
    h->cap = cap;
    return 0;
}

int timer_heap_set(struct timer_heap *h, struct timer *t, uint64_t due_us)
{
    if (t->slot != 0)
        timer_heap_clear(h, t); /* leaves room for one */
    if (h->len == h->cap && grow(h) < 0)
        return -ENOMEM;
    t->due_us = due_us;
    h->len++;
    sift_up(h, h->len, t);
    return 0;
}

void timer_heap_clear(struct timer_heap *h, struct timer *t)
{
    size_t slot = t->slot;
    struct timer *last;

    if (slot == 0)
        return;
    assert(slot <= h->len && h->slots[slot] == t);
    t->slot = 0;
    last = h->slots[h->len];
    h->len--;
    if (last == t)
        return;
    if (slot > 1 && last->due_us < h->slots[slot / 2]->due_us)
        sift_up(h, slot, last);
    else
        sift_down(h, slot, last);
}

struct timer *timer_heap_first(const struct timer_heap *h)
{
    return h->len == 0 ? NULL : h->slots[1];
}

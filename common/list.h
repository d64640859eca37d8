/* list.h - an intrusive doubly linked list; the head is a list node that holds no element. */
#ifndef KVFS_COMMON_LIST_H
#define KVFS_COMMON_LIST_H

#include <stdbool.h>
#include <stddef.h>

struct list {
    struct list *prev, *next;
};

/* The struct that contains `member` at address `ptr`. */
#define container_of(ptr, type, member) ((type *)(void *)((char *)(ptr)-offsetof(type, member)))

static inline void list_init(struct list *l)
{
    l->prev = l->next = l;
}

static inline bool list_empty(const struct list *l)
{
    return l->next == l;
}

/* Puts `item` before `at`; with a head as `at`, that is the end of the list. */
static inline void list_insert(struct list *at, struct list *item)
{
    item->prev = at->prev;
    item->next = at;
    at->prev->next = item;
    at->prev = item;
}

/* Takes `item` out and leaves it an empty list of its own, so removing twice is harmless. */
static inline void list_remove(struct list *item)
{
    item->prev->next = item->next;
    item->next->prev = item->prev;
    list_init(item);
}

#endif

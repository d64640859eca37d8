/* turns.c - whose turn it is to write a key. */
#include "common/turns.h"

#include "common/hash.h"

static struct list *bucket_of(struct turns *ts, struct span key)
{
    return &ts->buckets[hash_fnv1a(key) % TURN_BUCKETS];
}

/* Of that key, who joined first; or NULL. */
static struct turn *first_of(struct turns *ts, struct span key)
{
    struct list *bucket = bucket_of(ts, key);

    for (struct list *at = bucket->next; at != bucket; at = at->next) {
        struct turn *t = container_of(at, struct turn, link);

        if (span_eq(t->key, key))
            return t;
    }
    return NULL;
}

void turns_init(struct turns *ts)
{
    for (unsigned i = 0; i < TURN_BUCKETS; i++)
        list_init(&ts->buckets[i]);
}

void turns_join(struct turns *ts, struct turn *t, struct span key, bool willing)
{
    t->key = key;
    t->waiting = willing && first_of(ts, key) != NULL;
    list_insert(bucket_of(ts, key), &t->link);
}

struct turn *turns_leave(struct turns *ts, struct turn *t)
{
    struct turn *next;

    if (list_empty(&t->link))
        return NULL;
    list_remove(&t->link);
    next = first_of(ts, t->key);
    return next != NULL && next->waiting ? next : NULL;
}

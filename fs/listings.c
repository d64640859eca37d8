/* listings.c - pages of directory listings that still hold, see listings.h. */
#include "fs/listings.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

#include "common/hash.h"
#include "common/list.h"

#define BUCKETS 1024u

struct page {
    struct page *next;
    struct buf start_after;
    uint32_t limit;
    struct list_result res;
    struct follow_mark mark;
    size_t bytes;
};

/* The pages of one directory. */
struct listing {
    struct listing *next; /* hash chain */
    struct list used;     /* listings.used */
    struct buf prefix;
    struct page *pages;
};

struct listings {
    struct follow *follow;
    size_t bytes_max;
    pthread_mutex_t lock; /* all below; above the follow's */
    struct listing *buckets[BUCKETS];
    struct list used; /* the one read last first */
    size_t bytes;
};

static void page_free(struct page *p)
{
    buf_fini(&p->start_after);
    list_result_fini(&p->res);
    free(p);
}

static struct listing **place_locked(struct listings *l, struct span prefix)
{
    struct listing **p = &l->buckets[hash_xxh3(prefix) % BUCKETS];

    while (*p != NULL && !span_eq(buf_span(&(*p)->prefix), prefix))
        p = &(*p)->next;
    return p;
}

static void drop_locked(struct listings *l, struct listing **p)
{
    struct listing *d = *p;

    if (d == NULL)
        return;
    *p = d->next;
    list_remove(&d->used);
    while (d->pages != NULL) {
        struct page *page = d->pages;

        d->pages = page->next;
        l->bytes -= page->bytes;
        page_free(page);
    }
    buf_fini(&d->prefix);
    free(d);
}

static void drop_below(void *arg, struct span prefix)
{
    struct listings *l = (struct listings *)arg;

    pthread_mutex_lock(&l->lock);
    drop_locked(l, place_locked(l, prefix));
    pthread_mutex_unlock(&l->lock);
}

static void drop_all(void *arg)
{
    struct listings *l = (struct listings *)arg;

    pthread_mutex_lock(&l->lock);
    for (unsigned i = 0; i < BUCKETS; i++) {
        while (l->buckets[i] != NULL)
            drop_locked(l, &l->buckets[i]);
    }
    pthread_mutex_unlock(&l->lock);
}

int listings_new(struct follow *follow, size_t bytes_max, struct listings **out)
{
    struct listings *l = calloc(1, sizeof(*l));

    if (l == NULL)
        return -ENOMEM;
    l->follow = follow;
    l->bytes_max = bytes_max;
    list_init(&l->used);
    pthread_mutex_init(&l->lock, NULL);
    follow_set_below(follow, drop_below, drop_all, l);
    *out = l;
    return 0;
}

void listings_free(struct listings *l)
{
    if (l == NULL)
        return;
    follow_set_below(l->follow, NULL, NULL, NULL);
    drop_all(l);
    pthread_mutex_destroy(&l->lock);
    free(l);
}

static int copy_result(const struct list_result *from, struct list_result *to)
{
    *to = (struct list_result){.n = from->n, .more = from->more, .followed = from->followed};
    buf_add_span(&to->entries, buf_span(&from->entries));
    buf_add_span(&to->next, buf_span(&from->next));
    return to->entries.err < 0 ? to->entries.err : to->next.err;
}

static struct page *find_page(const struct listing *d, const struct list_args *args)
{
    struct page *p = d != NULL ? d->pages : NULL;

    while (p != NULL &&
           (p->limit != args->limit || !span_eq(buf_span(&p->start_after), args->start_after)))
        p = p->next;
    return p;
}

bool listings_get(struct listings *l, const struct list_args *args, struct list_result *out,
                  struct follow_mark *mark)
{
    struct listing *d;
    struct page *p;
    bool there;

    pthread_mutex_lock(&l->lock);
    d = *place_locked(l, args->prefix);
    p = find_page(d, args);
    there = p != NULL && copy_result(&p->res, out) == 0;
    if (there) {
        *mark = p->mark;
        list_remove(&d->used);
        list_insert(l->used.next, &d->used);
    } else if (p != NULL) {
        list_result_fini(out);
    }
    pthread_mutex_unlock(&l->lock);
    return there;
}

static struct page *page_new(const struct list_args *args, const struct list_result *res)
{
    struct page *p = calloc(1, sizeof(*p));
    int err;

    if (p == NULL)
        return NULL;
    p->limit = args->limit;
    buf_add_span(&p->start_after, args->start_after);
    err = copy_result(res, &p->res);
    if (err < 0 || p->start_after.err < 0) {
        page_free(p);
        return NULL;
    }
    p->bytes = sizeof(*p) + p->start_after.len + p->res.entries.len + p->res.next.len;
    return p;
}

static struct listing *listing_of_locked(struct listings *l, struct span prefix)
{
    struct listing **place = place_locked(l, prefix);
    struct listing *d = *place;

    if (d != NULL)
        return d;
    d = calloc(1, sizeof(*d));
    if (d == NULL)
        return NULL;
    buf_add_span(&d->prefix, prefix);
    if (d->prefix.err < 0) {
        buf_fini(&d->prefix);
        free(d);
        return NULL;
    }
    *place = d;
    list_insert(l->used.next, &d->used);
    return d;
}

static void make_room_locked(struct listings *l, size_t bytes)
{
    while (l->bytes + bytes > l->bytes_max && !list_empty(&l->used)) {
        struct listing *oldest = container_of(l->used.prev, struct listing, used);

        drop_locked(l, place_locked(l, buf_span(&oldest->prefix)));
    }
}

void listings_put(struct listings *l, const struct list_args *args, const struct list_result *page,
                  const struct follow_mark *mark)
{
    struct page *p = mark->epoch != 0 ? page_new(args, page) : NULL;
    struct listing *d = NULL;

    if (p == NULL)
        return;
    p->mark = *mark;
    pthread_mutex_lock(&l->lock);
    if (p->bytes <= l->bytes_max && follow_holds(l->follow, mark)) {
        make_room_locked(l, p->bytes);
        d = listing_of_locked(l, args->prefix);
    }
    if (d != NULL && find_page(d, args) == NULL) {
        p->next = d->pages;
        d->pages = p;
        l->bytes += p->bytes;
        p = NULL;
    }
    pthread_mutex_unlock(&l->lock);
    if (p != NULL)
        page_free(p);
}

/*
 * redis_iter.c - a walk over the keys in a Redis: pages, each read in one step, in which what was
 * changed since the walk's moment is put back (views.h).
 */
#include "node/redis_iter.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/limits.h"

#define PAGE_FIRST 16u /* most walks end soon: is there anything in a directory? */
#define PAGE_MAX 1024u
#define PAGE_BYTES "1048576"

/* Where a key and its record are in the bytes of the page. */
struct place {
    size_t key, key_len, record, record_len;
};

struct store_iter {
    struct redis_pool *pool;
    struct views *views;
    struct view *view;
    unsigned count; /* keys of the next page */
    int err;
    struct buf from; /* where the page begins */
    struct buf last; /* the last key that Redis told of it; what is above is not in the page */
    bool more;
    struct buf bytes;
    struct place *places;
    size_t n, cap, at;
    struct buf changed, before; /* the next key that was changed */
    bool has_changed;
};

int redis_where_decode(struct span stored, enum redis_place *place, struct span *name,
                       struct span *record)
{
    size_t len;

    if (stored.len == 0 || stored.data[0] > REDIS_PIECES)
        return -EBADMSG;
    len = stored.data[0] == REDIS_PIECES ? REDIS_WHERE_MAX : 1;
    if (stored.len <= len)
        return -EBADMSG;
    *place = (enum redis_place)stored.data[0];
    *name = span_of(stored.data + 1, len - 1);
    *record = span_of(stored.data + len, stored.len - len);
    return 0;
}

/* --- a page --------------------------------------------------------------------------------- */

static int add_key(struct store_iter *it, struct span key, struct span stored)
{
    struct span record = {0}, name;
    enum redis_place place;

    if (it->n == it->cap) {
        size_t cap = it->cap == 0 ? PAGE_FIRST : 2 * it->cap;
        struct place *places = realloc(it->places, cap * sizeof(*places));

        if (places == NULL)
            return -ENOMEM;
        it->places = places;
        it->cap = cap;
    }
    /* Of a key without a record nothing is known: no record decodes from that. */
    if (redis_where_decode(stored, &place, &name, &record) < 0)
        record = (struct span){0};
    it->places[it->n++] =
        (struct place){it->bytes.len, key.len, it->bytes.len + key.len, record.len};
    buf_add_span(&it->bytes, key);
    buf_add_span(&it->bytes, record);
    return it->bytes.err;
}

/* The next key that was changed since, from `from` on or behind it. */
static int next_changed(struct store_iter *it, struct span from, bool above)
{
    int ret = views_next(it->views, it->view, from, above, &it->changed, &it->before);

    it->has_changed = ret == 1;
    return ret < 0 ? ret : 0;
}

static int pass_changed(struct store_iter *it)
{
    struct buf key = it->changed;
    int err;

    it->changed = (struct buf){0};
    err = next_changed(it, buf_span(&key), true);
    buf_fini(&key);
    return err;
}

/* Those that were changed and stand before key (NULL: all that are in the page), as they were. */
static int add_changed(struct store_iter *it, const struct span *key)
{
    int err = 0;

    while (err == 0 && it->has_changed) {
        struct span changed = buf_span(&it->changed);

        if (key != NULL ? span_cmp(changed, *key) >= 0
                        : it->more && span_cmp(changed, buf_span(&it->last)) > 0)
            break;
        if (it->before.len > 0)
            err = add_key(it, changed, buf_span(&it->before));
        if (err == 0)
            err = pass_changed(it);
    }
    return err;
}

/* One key as Redis has it: or as it was. */
static int add_told(struct store_iter *it, struct span key, struct span stored)
{
    int err = add_changed(it, &key);

    if (err == 0 && it->has_changed && span_eq(buf_span(&it->changed), key)) {
        if (it->before.len > 0)
            err = add_key(it, key, buf_span(&it->before));
        return err < 0 ? err : pass_changed(it);
    }
    return err < 0 ? err : add_key(it, key, stored);
}

/*
 * Redis has the list in order as long as all scores are 0. One that somebody at its prompt put in
 * the wrong place would be left out, or the walk would never end.
 */
static int take_told(struct store_iter *it, struct span before, bool above, struct span key,
                     struct span stored)
{
    int c = span_cmp(key, before);

    if (c < 0 || (c == 0 && above))
        return -EIO;
    if (key.len == 0 || key.len > KEY_LEN_MAX)
        return 0; /* no key of ours */
    return add_told(it, key, stored);
}

static int take_page(struct store_iter *it, const struct redis_reply *r, bool above)
{
    struct span before = buf_span(&it->from);
    size_t n = redis_reply_len(r);
    int err;

    it->more = span_eq(redis_reply_bytes(redis_reply_at(r, 1)), span_str("1"));
    buf_clear(&it->last);
    if (n >= 4)
        buf_add_span(&it->last, redis_reply_bytes(redis_reply_at(r, n - 2)));
    else
        it->more = false;
    err = it->last.err;
    /* Sought after the page was read: a change that it may show began before, and is known. */
    if (err == 0)
        err = next_changed(it, buf_span(&it->from), above);
    for (size_t i = 2; i + 1 < n && err == 0; i += 2) {
        struct span key = redis_reply_bytes(redis_reply_at(r, i));

        err =
            take_told(it, before, above || i > 2, key, redis_reply_bytes(redis_reply_at(r, i + 1)));
        before = key;
    }
    return err < 0 ? err : add_changed(it, NULL);
}

/* The page from it->from on, or (above) from behind it. */
static int load(struct store_iter *it, bool above)
{
    struct buf min = {0};
    struct redis_reply *r;
    char count[16];
    int err;

    it->n = it->at = 0;
    buf_clear(&it->bytes);
    (void)snprintf(count, sizeof(count), "%u", it->count);
    it->count = 4 * it->count < PAGE_MAX ? 4 * it->count : PAGE_MAX;
    buf_u8(&min, above ? '(' : '[');
    buf_add_span(&min, buf_span(&it->from));
    err = min.err;
    if (err == 0)
        err = redis_pool_run(it->pool, REDIS_PAGE,
                             (struct span[]){buf_span(&min), span_str(count), span_str(PAGE_BYTES)},
                             3, &r, NULL);
    buf_fini(&min);
    if (err < 0)
        return err;
    err = take_page(it, r, above);
    redis_reply_free(r);
    return err;
}

/* Goes on until there is a key, or none is left. A page may be empty: all in it was put since. */
static void fill(struct store_iter *it)
{
    while (it->err == 0 && it->at == it->n && it->more) {
        struct buf from = it->from;

        it->from = it->last;
        it->last = from;
        it->err = load(it, true);
    }
    if (it->err < 0)
        it->n = it->at = 0;
}

/* --- walking -------------------------------------------------------------------------------- */

static struct span key_at(const struct store_iter *it, size_t i)
{
    return span_of(it->bytes.data + it->places[i].key, it->places[i].key_len);
}

/* Is key where the page is? Then the walk goes on in it. */
static bool seek_in_page(struct store_iter *it, struct span key)
{
    size_t low = 0, high = it->n;

    if (it->n == 0 || span_cmp(key, key_at(it, 0)) < 0)
        return false;
    if (it->more && span_cmp(key, key_at(it, it->n - 1)) > 0)
        return false;
    while (low < high) {
        size_t middle = low + (high - low) / 2;

        if (span_cmp(key_at(it, middle), key) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    it->at = low;
    return true;
}

void redis_iter_seek(struct store_iter *it, struct span key)
{
    if (it->err < 0 || seek_in_page(it, key))
        return;
    buf_clear(&it->from);
    buf_add_span(&it->from, key);
    it->err = it->from.err;
    if (it->err == 0)
        it->err = load(it, false);
    fill(it);
}

bool redis_iter_valid(struct store_iter *it)
{
    return it->err == 0 && it->at < it->n;
}

void redis_iter_next(struct store_iter *it)
{
    it->at++;
    fill(it);
}

struct span redis_iter_key(struct store_iter *it)
{
    return key_at(it, it->at);
}

struct span redis_iter_record(struct store_iter *it)
{
    const struct place *p = &it->places[it->at];

    return p->record_len > 0 ? span_of(it->bytes.data + p->record, p->record_len)
                             : (struct span){0};
}

int redis_iter_err(struct store_iter *it)
{
    return it->err;
}

int redis_iter_new(struct redis_pool *pool, struct views *views, struct store_iter **out)
{
    struct store_iter *it = calloc(1, sizeof(*it));

    if (it == NULL)
        return -ENOMEM;
    it->pool = pool;
    it->views = views;
    it->count = PAGE_FIRST;
    it->view = views_open(views);
    if (it->view == NULL) {
        free(it);
        return -ENOMEM;
    }
    *out = it;
    return 0;
}

void redis_iter_free(struct store_iter *it)
{
    if (it == NULL)
        return;
    views_close(it->views, it->view);
    buf_fini(&it->from);
    buf_fini(&it->last);
    buf_fini(&it->bytes);
    buf_fini(&it->changed);
    buf_fini(&it->before);
    free(it->places);
    free(it);
}

/*
 * scan.c - what a walk over the keys of this node's store tells: a page of a listing, and whether a
 * directory has anything in it.
 */
#include "node/scan.h"

#include <errno.h>
#include <string.h>

/* Bytes after which a page ends early, so that an answer stays small whatever the keys. */
#define PAGE_LEN_MAX (4u << 20)

static struct span span_head(struct span s, size_t len)
{
    return (struct span){s.data, len};
}

/*
 * How long the part of key is that all keys of its group share: up to and including the first '/'
 * behind the prefix. 0: it is in no group.
 */
static size_t group_len(const struct message *m, struct span key)
{
    const uint8_t *rest = key.data + m->key.len;
    const uint8_t *slash;

    if (!(m->flags & MSG_DELIMITER) || key.len == m->key.len)
        return 0;
    slash = memchr(rest, '/', key.len - m->key.len);
    return slash == NULL ? 0 : (size_t)(slash - key.data) + 1;
}

/*
 * Seeks to the first key behind all that begin with group, which ends in '/': that byte plus one
 * bounds them.
 */
static int seek_past_group(struct store *s, struct store_iter *it, struct span group)
{
    struct buf next = {0};
    int err;

    buf_add(&next, group.data, group.len - 1);
    buf_u8(&next, '/' + 1);
    err = next.err;
    if (err == 0)
        s->ops->iter_seek(it, buf_span(&next));
    buf_fini(&next);
    return err;
}

/* Seeks to the first key above `key`: the next possible one in byte order is key and a NUL. */
static int seek_above(struct store *s, struct store_iter *it, struct span key)
{
    struct buf next = {0};
    int err;

    buf_add_span(&next, key);
    buf_u8(&next, 0);
    err = next.err;
    if (err == 0)
        s->ops->iter_seek(it, buf_span(&next));
    buf_fini(&next);
    return err;
}

static int seek_start(struct store *s, struct store_iter *it, const struct message *m)
{
    size_t given;

    if (m->start_after.len == 0 || span_cmp(m->start_after, m->key) < 0) {
        s->ops->iter_seek(it, m->key);
        return 0;
    }
    given = span_has_prefix(m->start_after, m->key) ? group_len(m, m->start_after) : 0;
    if (given > 0)
        return seek_past_group(s, it, span_head(m->start_after, given));
    return seek_above(s, it, m->start_after);
}

/*
 * Adds the entry of the key that the iterator stands on, or not, and moves on. 1: added, 0: not
 * worth an entry, -errno.
 */
static int list_step(struct store *s, struct store_iter *it, const struct message *m,
                     struct buf *entries)
{
    struct span key = s->ops->iter_key(it);
    size_t group = group_len(m, key);
    struct record rec;
    struct entry e;
    int err = record_decode(s->ops->iter_record(it), key, &rec);

    if (err < 0)
        return err;
    if (group > 0 && !record_is_live(&rec)) {
        s->ops->iter_next(it);
        return 0;
    }
    entry_of_record(&e, key, &rec);
    e.prefix_len = (uint32_t)group;
    entry_encode(entries, &e);
    if (group > 0)
        err = seek_past_group(s, it, span_head(key, group));
    else
        s->ops->iter_next(it);
    return err < 0 ? err : 1;
}

int scan_list(struct store *s, const struct message *m, struct buf *entries, uint32_t *n_entries,
              bool *more)
{
    uint32_t limit = m->limit == 0 ? LIST_LIMIT_DEFAULT : m->limit, n = 0;
    struct store_iter *it;
    bool full = false;
    int err = s->ops->iter_new(s, &it);

    if (err < 0)
        return err;
    if (limit > LIST_LIMIT_MAX)
        limit = LIST_LIMIT_MAX;
    err = seek_start(s, it, m);
    while (err == 0 && !full && s->ops->iter_valid(it) &&
           span_has_prefix(s->ops->iter_key(it), m->key)) {
        int added;

        if (n == limit || entries->len >= PAGE_LEN_MAX) {
            full = true;
            break;
        }
        added = list_step(s, it, m, entries);
        if (added < 0)
            err = added;
        else
            n += (uint32_t)added;
    }
    if (err == 0)
        err = s->ops->iter_err(it);
    if (err == 0)
        err = entries->err;
    if (err == 0) {
        *n_entries = n;
        *more = full;
    }
    s->ops->iter_free(it);
    return err;
}

int scan_below(struct store *s, struct span key, struct buf *own, struct entry *entry, bool *found)
{
    struct buf prefix = {0};
    struct store_iter *it = NULL;
    struct record rec;
    bool live = false;
    int err;

    buf_add_span(&prefix, key);
    buf_u8(&prefix, '/');
    err = prefix.err;
    if (err == 0)
        err = s->ops->iter_new(s, &it);
    if (err < 0)
        goto out;
    s->ops->iter_seek(it, buf_span(&prefix));
    while (!live && s->ops->iter_valid(it) &&
           span_has_prefix(s->ops->iter_key(it), buf_span(&prefix))) {
        err = record_decode(s->ops->iter_record(it), s->ops->iter_key(it), &rec);
        if (err < 0)
            goto out;
        live = record_is_live(&rec);
        if (!live)
            s->ops->iter_next(it);
    }
    err = s->ops->iter_err(it);
    if (err == 0 && live) {
        buf_clear(own);
        buf_add_span(own, s->ops->iter_key(it));
        err = own->err;
    }
    if (err < 0)
        goto out;
    if (live)
        entry_of_record(entry, buf_span(own), &rec);
    *found = live;
out:
    if (it != NULL)
        s->ops->iter_free(it);
    buf_fini(&prefix);
    return err;
}

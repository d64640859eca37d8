/*
 * scan.c - what a walk over the keys of this node's store tells: a page of a listing, and whether a
 * directory has anything in it.
 */
#include "node/scan.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "common/hash.h"

/* Bytes after which a page ends early, so that an answer stays small whatever the keys. */
#define PAGE_LEN_MAX (1u << 20)

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

static uint64_t dead_hash(struct span key, struct ballot version)
{
    uint64_t h = hash_fmix64(version.counter ^ hash_fmix64(version.proposer));

    return hash_fmix64(hash_xxh3(key) ^ h);
}

/*
 * Walks from where the iterator stands over the keys that begin with group, up to the first live
 * one, whose entry is *e. Where all are dead it is that of the first, with a digest of them all in
 * rdev: by that nodes can tell whether they know of the same deletions, which may hide what others
 * still have. e->key borrows from own. 1: there are such keys, 0: there are none, -errno.
 */
static int walk_group(struct store *s, struct store_iter *it, struct span group, struct buf *own,
                      struct entry *e)
{
    uint64_t digest = 0;
    bool any = false;

    while (s->ops->iter_valid(it) && span_has_prefix(s->ops->iter_key(it), group)) {
        struct span key = s->ops->iter_key(it);
        struct record rec;
        int err = record_decode(s->ops->iter_record(it), key, &rec);

        if (err < 0)
            return err;
        if (!any || record_is_live(&rec)) {
            buf_clear(own);
            buf_add_span(own, key);
            if (own->err < 0)
                return own->err;
            entry_of_record(e, buf_span(own), &rec);
            any = true;
        }
        if (record_is_live(&rec))
            return 1;
        digest ^= dead_hash(key, rec.version);
        s->ops->iter_next(it);
    }
    if (any)
        e->rdev = digest;
    return s->ops->iter_err(it) < 0 ? s->ops->iter_err(it) : any;
}

/* Adds the entry of the group of the key that the iterator stands on, and moves on behind it. */
static int list_group(struct store *s, struct store_iter *it, struct span group,
                      struct buf *entries)
{
    struct buf name = {0}, own = {0};
    struct entry e;
    int err;

    buf_add_span(&name, group); /* the iterator's bytes go when it moves */
    err = name.err;
    if (err == 0)
        err = walk_group(s, it, buf_span(&name), &own, &e);
    if (err < 0)
        goto out;
    assert(err == 1);
    e.prefix_len = (uint32_t)name.len;
    entry_encode(entries, &e);
    err = seek_past_group(s, it, buf_span(&name));
out:
    buf_fini(&own);
    buf_fini(&name);
    return err;
}

/* Adds the entry of the key that the iterator stands on, or of its group, and moves on. */
static int list_step(struct store *s, struct store_iter *it, const struct message *m,
                     struct buf *entries)
{
    struct span key = s->ops->iter_key(it);
    size_t group = group_len(m, key);
    struct record rec;
    struct entry e;
    int err;

    if (group > 0)
        return list_group(s, it, span_head(key, group), entries);
    err = record_decode(s->ops->iter_record(it), key, &rec);
    if (err < 0)
        return err;
    entry_of_record(&e, key, &rec);
    entry_encode(entries, &e);
    s->ops->iter_next(it);
    return 0;
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
        if (n == limit || entries->len >= PAGE_LEN_MAX) {
            full = true;
            break;
        }
        err = list_step(s, it, m, entries);
        n++;
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
    int err;

    buf_add_span(&prefix, key);
    buf_u8(&prefix, '/');
    err = prefix.err;
    if (err == 0)
        err = s->ops->iter_new(s, &it);
    if (err < 0)
        goto out;
    s->ops->iter_seek(it, buf_span(&prefix));
    err = walk_group(s, it, buf_span(&prefix), own, entry);
    if (err < 0)
        goto out;
    *found = err == 1;
    err = 0;
out:
    if (it != NULL)
        s->ops->iter_free(it);
    buf_fini(&prefix);
    return err;
}

/*
 * scan.c - what a walk over the keys of this node's store tells: a page of a listing, whether a
 * directory has anything in it, and what it shares with another node.
 */
#include "node/scan.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "node/present.h"
#include "node/replica_impl.h"

/* Bytes after which a page ends early, so that an answer stays small whatever the keys. */
#define PAGE_LEN_MAX (1u << 20)
/* Keys that a page of KEYS looks at, wanted or not: some 5 ms. */
#define KEYS_WALK_MAX 8192u

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

int scan_seek_above(struct store *s, struct store_iter *it, struct span key)
{
    struct buf next = {0};
    int err;

    buf_add_span(&next, key);
    buf_u8(&next, 0); /* makes it the next possible key in byte order; no key is that NUL alone */
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
    return scan_seek_above(s, it, m->start_after);
}

/* Why a walk ended: 0 at the end of the keys. -EBADMSG is not of a key, and told. */
static int walk_end(struct replica *r, struct store_iter *it)
{
    int err = r->opts.store->ops->iter_err(it);

    replica_note_damage(r, err);
    return err;
}

/* The entry of the key that the iterator stands on, from which it borrows. 0, -EPROTO. */
static int entry_here(struct replica *r, struct store_iter *it, struct entry *out)
{
    struct store *s = r->opts.store;
    struct span key = s->ops->iter_key(it);
    struct record rec;
    int err = record_decode(s->ops->iter_record(it), key, &rec);

    if (err == -EBADMSG)
        present_damaged(r, key, BALLOT_NONE);
    if (err == -EBADMSG || (err == 0 && damage_has(r->damage, key))) {
        entry_of_damage(out, key);
        return 0;
    }
    if (err == 0)
        entry_of_record(out, key, &rec);
    return err;
}

static int keep_entry(const struct entry *e, struct buf *own, struct entry *out)
{
    buf_clear(own);
    buf_add_span(own, e->key);
    if (own->err < 0)
        return own->err;
    *out = *e;
    out->key = buf_span(own);
    return 0;
}

/*
 * Walks from where the iterator stands over the keys that begin with group, up to the first live
 * one, whose entry is *e. Where none is live it is that of the first damaged one, for nobody knows
 * what that is. Where all are dead it is that of the first, with a digest of them all in rdev: by
 * that nodes can tell whether they know of the same deletions, which may hide what others still
 * have. e->key borrows from own. 1: there are such keys, 0: there are none, -errno.
 */
static int walk_group(struct replica *r, struct store_iter *it, struct span group, struct buf *own,
                      struct entry *e)
{
    struct store *s = r->opts.store;
    bool any = false, damaged = false;
    uint64_t digest = 0;

    while (s->ops->iter_valid(it) && span_has_prefix(s->ops->iter_key(it), group)) {
        struct entry here = {0};
        int err = entry_here(r, it, &here);
        bool live = here.flags == 0;

        if (err == 0 && (!any || live || (here.flags == ENTRY_DAMAGED && !damaged)))
            err = keep_entry(&here, own, e);
        if (err < 0)
            return err;
        if (live)
            return 1;
        any = true;
        damaged |= here.flags == ENTRY_DAMAGED;
        digest ^= digest_of(here.key, here.version);
        s->ops->iter_next(it);
    }
    if (any && !damaged)
        e->rdev = digest;
    return s->ops->iter_valid(it) || walk_end(r, it) == 0 ? any : s->ops->iter_err(it);
}

/* Adds the entry of the group of the key that the iterator stands on, and moves on behind it. */
static int list_group(struct replica *r, struct store_iter *it, struct span group,
                      struct buf *entries)
{
    struct buf name = {0}, own = {0};
    struct entry e;
    int err;

    buf_add_span(&name, group); /* the iterator's bytes go when it moves */
    err = name.err;
    if (err == 0)
        err = walk_group(r, it, buf_span(&name), &own, &e);
    if (err < 0)
        goto out;
    assert(err == 1);
    e.prefix_len = (uint32_t)name.len;
    entry_encode(entries, &e);
    err = seek_past_group(r->opts.store, it, buf_span(&name));
out:
    buf_fini(&own);
    buf_fini(&name);
    return err;
}

/* Adds the entry of the key that the iterator stands on, or of its group, and moves on. */
static int list_step(struct replica *r, struct store_iter *it, const struct message *m,
                     struct buf *entries)
{
    struct store *s = r->opts.store;
    struct span key = s->ops->iter_key(it);
    size_t group = group_len(m, key);
    struct entry e;
    int err;

    if (group > 0)
        return list_group(r, it, span_head(key, group), entries);
    err = entry_here(r, it, &e);
    if (err < 0)
        return err;
    entry_encode(entries, &e);
    s->ops->iter_next(it);
    return 0;
}

int scan_list(struct replica *r, const struct message *m, struct buf *entries, uint32_t *n_entries,
              bool *more)
{
    struct store *s = r->opts.store;
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
        err = list_step(r, it, m, entries);
        n++;
    }
    if (err == 0)
        err = walk_end(r, it);
    if (err == 0)
        err = entries->err;
    if (err == 0) {
        *n_entries = n;
        *more = full;
    }
    s->ops->iter_free(it);
    return err;
}

/* --- what is shared with another node ------------------------------------------------ */

static bool is_wanted(const struct replica *r, const struct message *m, struct span key)
{
    unsigned bucket = digest_bucket(key);

    if (m->buckets.len > 0 && !(m->buckets.data[bucket / 8] >> bucket % 8 & 1))
        return false;
    return ring_is_replica(r->opts.ring, key, m->node) &&
           ring_is_replica(r->opts.ring, key, r->opts.self);
}

/* Adds the key that the iterator stands on where it is wanted, and moves on. */
static int keys_step(struct replica *r, struct store_iter *it, const struct message *m,
                     struct buf *entries, uint32_t *n_entries)
{
    struct store *s = r->opts.store;
    struct entry e;
    int err;

    if (is_wanted(r, m, s->ops->iter_key(it))) {
        err = entry_here(r, it, &e);
        if (err < 0)
            return err;
        entry_encode(entries, &e);
        (*n_entries)++;
    }
    s->ops->iter_next(it);
    return 0;
}

int scan_keys(struct replica *r, const struct message *m, struct buf *entries, uint32_t *n_entries,
              struct buf *next)
{
    struct store *s = r->opts.store;
    uint32_t n = 0, n_walked = 0;
    struct store_iter *it;
    bool full = false;
    int err = s->ops->iter_new(s, &it);

    if (err < 0)
        return err;
    err = scan_seek_above(s, it, m->start_after);
    while (err == 0 && s->ops->iter_valid(it) && !full) {
        buf_clear(next);
        buf_add_span(next, s->ops->iter_key(it));
        err = keys_step(r, it, m, entries, &n);
        full = n == m->limit || ++n_walked == KEYS_WALK_MAX || entries->len >= PAGE_LEN_MAX;
    }
    if (!s->ops->iter_valid(it))
        buf_clear(next);
    if (err == 0)
        err = walk_end(r, it);
    if (err == 0)
        err = entries->err < 0 ? entries->err : next->err;
    if (err == 0)
        *n_entries = n;
    s->ops->iter_free(it);
    return err;
}

/* --- what is below a key ------------------------------------------------------------- */

int scan_below(struct replica *r, struct span key, struct buf *own, struct entry *entry,
               bool *found)
{
    struct store *s = r->opts.store;
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
    err = walk_group(r, it, buf_span(&prefix), own, entry);
    if (err == 1 && entry->flags == ENTRY_DAMAGED)
        err = -EBADMSG;
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

/*
 * list_merge.c - the pages of several nodes side by side: of each name, what a majority of its
 * replicas agree on, or that it is doubtful.
 */
#include "common/listing.h"

#include <errno.h>
#include <string.h>

struct span list_entry_name(const struct entry *e)
{
    return span_of(e->key.data, e->prefix_len != 0 ? e->prefix_len : e->key.len);
}

int list_source_next(struct source *s)
{
    int got = entry_next(&s->cursor, &s->entry);

    s->have = got == 1;
    if (got < 0)
        return got;
    if (s->have != (s->n_left > 0))
        return -EBADMSG;
    s->n_left -= s->have;
    return 0;
}

/*
 * What the answering replicas of the key have of it: settled, when a majority has the same newest
 * version. One that finds its record damaged says nothing, not even that it has none.
 */
static enum item_state judge_key(const struct list_op *l, struct span name,
                                 const struct entry **out)
{
    const struct ring *ring = l->op.c->opts.ring;
    const struct entry *top = NULL; /* a damaged one has version none */
    unsigned n_top = 0;

    for (unsigned i = 0; i < l->n_sources; i++) {
        const struct source *s = &l->sources[i];

        if (s->have && span_eq(list_entry_name(&s->entry), name) &&
            ring_is_replica(ring, name, s->node) &&
            (top == NULL || ballot_cmp(s->entry.version, top->version) > 0))
            top = &s->entry;
    }
    if (top == NULL)
        return ITEM_GONE; /* only on nodes that are none of its replicas */
    for (unsigned i = 0; i < l->n_sources; i++) {
        const struct source *s = &l->sources[i];

        if (s->have && span_eq(list_entry_name(&s->entry), name) &&
            ring_is_replica(ring, name, s->node) && ballot_cmp(s->entry.version, top->version) == 0)
            n_top++;
    }
    *out = top;
    if (n_top < ring_majority(ring) || (top->flags & ENTRY_DAMAGED))
        return ITEM_DOUBTFUL;
    return top->flags & RECORD_TOMBSTONE ? ITEM_GONE : ITEM_SHOW;
}

/*
 * Surely nothing below name, without looking: each node holds all keys, a majority know of the very
 * same deletions there, and nobody of anything else.
 */
static bool group_is_dead(const struct list_op *l, struct span name)
{
    const struct ring *ring = l->op.c->opts.ring;
    bool dead = false;

    if (ring_n_replicas(ring) < ring_n_nodes(ring))
        return false;
    for (unsigned i = 0; i < l->n_sources; i++) {
        const struct source *s = &l->sources[i];
        unsigned n = 0;

        if (!s->have || !span_eq(list_entry_name(&s->entry), name))
            continue;
        if (!(s->entry.flags & RECORD_TOMBSTONE))
            return false;
        for (unsigned k = 0; k < l->n_sources; k++) {
            const struct source *o = &l->sources[k];

            n += o->have && span_eq(o->entry.key, s->entry.key) &&
                 o->entry.flags == s->entry.flags && o->entry.rdev == s->entry.rdev;
        }
        dead |= n >= ring_majority(ring);
    }
    return dead;
}

/*
 * A prefix is there when a majority of the replicas of one and the same live key below it name that
 * key. Deletions below it that not all know of may hide such a key, or be about to be undone: what
 * is there then, only a look at the keys can tell.
 */
static enum item_state judge_prefix(const struct list_op *l, struct span name,
                                    const struct entry **out)
{
    const struct ring *ring = l->op.c->opts.ring;

    for (unsigned i = 0; i < l->n_sources; i++) {
        const struct source *s = &l->sources[i];
        unsigned n = 0;

        if (!s->have || !span_eq(list_entry_name(&s->entry), name) ||
            s->entry.flags & (RECORD_TOMBSTONE | ENTRY_DAMAGED))
            continue;
        for (unsigned k = 0; k < l->n_sources; k++) {
            const struct source *o = &l->sources[k];

            n += o->have && span_eq(o->entry.key, s->entry.key) &&
                 ballot_cmp(o->entry.version, s->entry.version) == 0 &&
                 ring_is_replica(ring, s->entry.key, o->node);
        }
        if (n >= ring_majority(ring)) {
            *out = &s->entry;
            return ITEM_SHOW;
        }
    }
    return group_is_dead(l, name) ? ITEM_GONE : ITEM_DOUBTFUL;
}

static bool is_damaged(const struct list_op *l, struct span name)
{
    const struct ring *ring = l->op.c->opts.ring;
    unsigned n = 0;

    for (unsigned i = 0; i < l->n_sources; i++) {
        const struct source *s = &l->sources[i];

        n += s->have && (s->entry.flags & ENTRY_DAMAGED) &&
             span_eq(list_entry_name(&s->entry), name) && ring_is_replica(ring, name, s->node);
    }
    return n > ring_n_replicas(ring) - ring_majority(ring);
}

/* The smallest name that any source has next; NULL data: none has any. */
static struct span next_name(const struct list_op *l, bool *is_prefix)
{
    struct span least = {0};

    for (unsigned i = 0; i < l->n_sources; i++) {
        const struct source *s = &l->sources[i];

        if (s->have && (least.data == NULL || span_cmp(list_entry_name(&s->entry), least) < 0)) {
            least = list_entry_name(&s->entry);
            *is_prefix = s->entry.prefix_len != 0;
        }
    }
    return least;
}

static int add_item(struct list_op *l, struct span name, bool is_prefix)
{
    struct item *item = &l->items[l->n_items];
    const struct entry *e = NULL;
    enum item_state state = is_prefix ? judge_prefix(l, name, &e) : judge_key(l, name, &e);

    if (state == ITEM_GONE)
        return 0;
    *item = (struct item){.list = l, .state = state, .is_prefix = is_prefix};
    if (state == ITEM_SHOW)
        entry_encode(&item->bytes, e);
    else
        buf_add_span(&item->bytes, name);
    item->damaged = !is_prefix && is_damaged(l, name);
    l->n_items++;
    return item->bytes.err;
}

/*
 * Steps all sources over `name`. A source that stopped there, with more to come, sets the horizon.
 */
static int sources_step(struct list_op *l, struct span name, bool *horizon)
{
    int err;

    for (unsigned i = 0; i < l->n_sources; i++) {
        struct source *s = &l->sources[i];

        if (!s->have || !span_eq(list_entry_name(&s->entry), name))
            continue;
        err = list_source_next(s);
        if (err < 0)
            return err;
        if (!s->have && s->more)
            *horizon = true;
    }
    return 0;
}

int list_merge(struct list_op *l)
{
    unsigned want = l->limit + 1 - l->res.n;
    bool horizon = false;
    int err = 0;

    l->exhausted = false;
    while (l->n_items < want && !horizon) {
        bool is_prefix = false;
        struct span name = next_name(l, &is_prefix);

        if (name.data == NULL) {
            l->exhausted = true;
            break;
        }
        buf_clear(&l->after);
        buf_add_span(&l->after, name);
        err = l->after.err;
        if (err == 0)
            err = add_item(l, name, is_prefix);
        if (err == 0)
            err = sources_step(l, buf_span(&l->after), &horizon);
        if (err < 0)
            return err;
    }
    return 0;
}

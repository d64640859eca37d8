/* present.c - a key as this node's store has it now, whole or damaged, counted in the digests. */
#include "node/present.h"

#include <errno.h>
#include <string.h>

#include "node/replica_impl.h"

int present_load(struct replica *r, struct span key, bool want_value, struct present *out)
{
    struct store *s = r->opts.store;
    struct present p = PRESENT_NONE;
    int err = s->ops->get(s, key, want_value, &p.item);

    if (damage_has(r->damage, key))
        p.state = PRESENT_DAMAGED_VALUE;
    if (err == -EBADMSG && want_value) {
        p.state = PRESENT_DAMAGED_VALUE;
        err = s->ops->get(s, key, false, &p.item);
    }
    if (err == 0 && p.item.record.len > 0)
        err = record_decode(buf_span(&p.item.record), key, &p.rec);
    if (err == -EBADMSG) {
        store_item_fini(&p.item);
        p = (struct present){.item = STORE_ITEM_NONE, .state = PRESENT_DAMAGED_RECORD};
        err = 0;
    }
    if (err < 0)
        store_item_fini(&p.item);
    else
        *out = p;
    return err;
}

void present_fini(struct present *p)
{
    store_item_fini(&p->item);
    *p = PRESENT_NONE;
}

/* --- damage -------------------------------------------------------------------------- */

void present_damaged_locked(struct replica *r, struct span key)
{
    struct clock *clock = r->opts.clock;
    int ret;

    if (!ring_is_replica(r->opts.ring, key, r->opts.self))
        return; /* left from another ring: nobody needs it */
    ret = damage_add(r->damage, key, clock->mono_us(clock));
    if (ret == -ENOSPC)
        atomic_store(&r->overfull, true);
    if (ret != 0 && r->opts.on_damage != NULL)
        r->opts.on_damage(r->opts.on_damage_arg, key);
}

/* Is the value of p, as far as it is in memory, the one that its record means? */
static bool is_good_inline(const struct present *p)
{
    return p->item.large == NULL && p->item.value.len == p->rec.size &&
           record_verify(&p->rec, 0, value_span(p->item.value)) == 0;
}

void present_damaged(struct replica *r, struct span key, struct ballot version)
{
    unsigned slot = promises_lock(r->promises, key);
    struct present p = PRESENT_NONE;
    int err = present_load(r, key, true, &p);
    bool same = !ballot_is_none(version) && ballot_cmp(p.rec.version, version) == 0;

    if (err == 0 && (p.state != PRESENT_WHOLE || (same && !is_good_inline(&p))))
        present_damaged_locked(r, key);
    present_fini(&p);
    promises_unlock(r->promises, slot);
    replica_note_damage(r, 0);
}

/* --- digests ------------------------------------------------------------------------- */

/* The record went from what `before` says to this version. The slot is locked. */
static void count_locked(struct replica *r, struct span key, const struct present *before,
                         struct ballot to)
{
    struct ballot from = before->rec.version;

    if (r->fresh == NULL && !atomic_load(&r->indexed))
        return;
    if (damage_n(r->damage) > 0 && damage_uncounted(r->damage, key)) {
        from = BALLOT_NONE;
    } else if (before->state == PRESENT_DAMAGED_RECORD) {
        atomic_store(&r->index_needed, true); /* only a walk can tell what it was counted as */
        return;
    }
    if (r->fresh != NULL)
        digests_change(r->fresh, key, from, to);
    if (atomic_load(&r->indexed))
        digests_change(r->digests, key, from, to);
}

/*
 * A put or drop to this version failed: it is stored, or it is not, or it will be after the next
 * start, when all is counted anyway.
 */
static void doubt_locked(struct replica *r, struct span key, const struct present *before,
                         struct ballot to)
{
    struct present now = PRESENT_NONE;
    int err;

    atomic_fetch_add(&r->n_doubts, 1);
    err = present_load(r, key, false, &now);
    if (err == 0 && now.state != PRESENT_DAMAGED_RECORD) {
        count_locked(r, key, before, now.rec.version);
        if (ballot_cmp(now.rec.version, to) == 0)
            damage_remove(r->damage, key); /* whole, and counted as it is */
    } else if (err < 0 || before->state != PRESENT_DAMAGED_RECORD) {
        atomic_store(&r->index_needed, true);
    }
    present_fini(&now);
}

int present_put_locked(struct replica *r, struct span key, const struct present *before,
                       const struct present_put *put)
{
    struct store *s = r->opts.store;
    int err = s->ops->put(s, key, put->record, put->value, put->file, put->keep);

    if (err < 0) {
        doubt_locked(r, key, before, put->version);
        return err;
    }
    count_locked(r, key, before, put->version);
    damage_remove(r->damage, key);
    return 0;
}

int present_drop_locked(struct replica *r, struct span key, const struct present *before)
{
    struct store *s = r->opts.store;
    int err = s->ops->drop(s, key);

    if (err < 0) {
        doubt_locked(r, key, before, BALLOT_NONE);
        return err;
    }
    count_locked(r, key, before, BALLOT_NONE);
    damage_remove(r->damage, key);
    return 0;
}

/* The walk found a damaged record: the digests hold nothing of it. */
static int count_damaged(struct replica *r, struct span key)
{
    unsigned slot = promises_lock(r->promises, key);
    struct present p = PRESENT_NONE;
    int err = present_load(r, key, false, &p);

    if (err == 0 && p.state == PRESENT_DAMAGED_RECORD) {
        present_damaged_locked(r, key);
        damage_uncount(r->damage, key);
    } else {
        /* Stored anew since the walk began, from what could not be told then; or once misread. */
        atomic_store(&r->index_needed, true);
    }
    present_fini(&p);
    promises_unlock(r->promises, slot);
    replica_note_damage(r, 0);
    return err;
}

int present_count(struct replica *r, struct span key, struct span record)
{
    struct record rec;
    int err = record_decode(record, key, &rec);

    if (err == -EBADMSG)
        return count_damaged(r, key);
    if (err == 0)
        digests_change(r->fresh, key, BALLOT_NONE, rec.version);
    return err;
}

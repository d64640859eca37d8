/*
 * replica_key.c - what one node answers about one key: PREPARE, ACCEPT, READ and DROP, the heart of
 * its part of docs/protocol.md.
 *
 * A key whose record or value is damaged is refused, but to an ACCEPT that may be stored: it is
 * whole again then.
 */
#include <errno.h>
#include <string.h>

#include "node/present.h"
#include "node/replica_impl.h"
#include "node/scan.h"

int replica_attach(struct replica *r, struct span key, struct present *p, uint64_t offset,
                   uint64_t length, struct answer *a, struct reply *out)
{
    uint64_t size = p->rec.size, from, to;
    int err;

    offset = offset < size ? offset : size;
    length = length < size - offset ? length : size - offset;
    from = offset - offset % CHUNK_SIZE;
    to = length == 0 ? from : (offset + length + CHUNK_SIZE - 1) / CHUNK_SIZE * CHUNK_SIZE;
    to = to < size ? to : size;
    a->has_value = true;
    a->value_offset = from;
    if (p->item.large == NULL) {
        if (p->item.value.len != size || record_verify(&p->rec, 0, value_span(p->item.value)) < 0)
            return -EBADMSG;
        out->value = value_slice(p->item.value, (size_t)from, (size_t)(to - from));
        return 0;
    }
    err = record_copy(&p->rec, &out->rec);
    if (err < 0)
        return err;
    out->large = p->item.large; /* the reply's from here */
    p->item.large = NULL;
    out->file_offset = from;
    out->file_len = to - from;
    buf_add_span(&out->key, key);
    out->replica = r; /* the damage that is met later is told there */
    return out->key.err;
}

/* As replica_attach(), of a request that holds no lock. 0; else noted, and damage told. */
static int attach(struct replica_request *rq, struct present *p, uint64_t offset, uint64_t length,
                  struct answer *a, struct reply *out)
{
    int err = replica_attach(rq->r, rq->m.key, p, offset, length, a, out);

    if (err == -EBADMSG)
        present_damaged(rq->r, rq->m.key, p->rec.version);
    return err < 0 ? replica_fail_load(rq, err) : 0;
}

/*
 * Loads the key, which must be whole, its slot being locked. The value too, where it is wanted. 0;
 * else noted.
 */
static int load_whole_locked(struct replica_request *rq, bool want_value, struct present *out)
{
    int err = present_load(rq->r, rq->m.key, want_value, out);

    if (err == 0 && out->state != PRESENT_WHOLE) {
        present_damaged_locked(rq->r, rq->m.key);
        present_fini(out);
        err = -EBADMSG;
    }
    return err < 0 ? replica_fail_load(rq, err) : 0;
}

/* --- PREPARE ------------------------------------------------------------------------- */

static int prepare_locked(struct replica_request *rq, unsigned slot, struct present *p,
                          struct answer *a)
{
    struct replica *r = rq->r;
    const struct message *m = &rq->m;
    struct ballot top;
    int err = request_check_late(rq);

    if (err == 0)
        err = replica_check_certain(rq);
    if (err == 0)
        err = load_whole_locked(rq, m->flags & MSG_WANT_VALUE, p);
    if (err < 0)
        return err;
    top = ballot_max(promises_get(r->promises, slot), p->rec.version);
    if (ballot_cmp(m->ballot, top) <= 0) {
        a->kind = ANS_REFUSE;
        a->ballot = top;
        return 0;
    }
    err = promises_raise(r->promises, slot, m->ballot);
    if (err < 0)
        return request_fail(rq, err, "cannot make the promise durable: %s", strerror(-err));
    a->kind = ANS_PROMISE;
    a->record = p->rec;
    return 0;
}

int replica_prepare(struct replica_request *rq, struct reply *out)
{
    struct replica *r = rq->r;
    const struct message *m = &rq->m;
    struct answer a = {0};
    struct present p = PRESENT_NONE;
    unsigned slot = promises_lock(r->promises, m->key);
    int err = prepare_locked(rq, slot, &p, &a);

    promises_unlock(r->promises, slot);
    if (err == 0 && a.kind == ANS_PROMISE && (m->flags & MSG_WANT_VALUE) &&
        record_is_live(&p.rec) && p.rec.size <= m->length)
        err = attach(rq, &p, 0, UINT64_MAX, &a, out);
    if (err == 0)
        err = replica_answer(rq, m->key, &a, out);
    present_fini(&p);
    return err;
}

/* --- ACCEPT -------------------------------------------------------------------------- */

/*
 * What an ACCEPT is answered without storing anything: ANS_ACCEPTED (again), ANS_REFUSE; or 0: it
 * is to be stored. Slot is locked.
 *
 * What this node accepted it had promised first, so that a ballot which is not below the promise is
 * not below the version of a damaged record either, whatever it was. A value that is damaged may be
 * stored again under its own version: that changes nothing that was ever said.
 *
 * A recovering node has promised nothing that counts: it restores what the others settled, unless
 * what it has is newer.
 */
static int judge_accept_locked(struct replica *r, unsigned slot, const struct message *m,
                               const struct present *p, struct ballot *top)
{
    bool restore = (m->flags & MSG_RESTORE) && replica_recovering(r);
    struct ballot b = m->record.version;

    if (ballot_cmp(b, p->rec.version) == 0)
        return p->state == PRESENT_DAMAGED_VALUE ? 0 : ANS_ACCEPTED;
    *top = p->rec.version;
    if (!restore)
        *top = ballot_max(*top, promises_get(r->promises, slot));
    return ballot_cmp(b, *top) < 0 ? ANS_REFUSE : 0;
}

int replica_foresee(struct replica_request *rq, bool *settled)
{
    struct replica *r = rq->r;
    struct present p = PRESENT_NONE;
    struct ballot top;
    unsigned slot = promises_lock(r->promises, rq->m.key);
    int err = present_load(r, rq->m.key, false, &p);

    if (err == 0)
        *settled = judge_accept_locked(r, slot, &rq->m, &p, &top) != 0;
    promises_unlock(r->promises, slot);
    present_fini(&p);
    return err < 0 ? replica_fail_load(rq, err) : 0;
}

/*
 * Is the value stored under version `pin`, and is it the one that the record of this message means?
 */
static bool has_same_value(const struct message *m, const struct present *p)
{
    return p->state == PRESENT_WHOLE && ballot_cmp(p->rec.version, m->pin) == 0 &&
           record_is_live(&p->rec) && p->rec.size == m->record.size &&
           span_eq(p->rec.sums, m->record.sums);
}

/*
 * Stores it, and tells those who watch, in the order of what is stored under the key's lock. A put
 * that failed may be there all the same: it is told as well.
 */
static int put_locked(struct replica *r, const struct message *m, const struct present *before,
                      const struct present_put *put)
{
    int err = present_put_locked(r, m->key, before, put);

    if (r->opts.changes != NULL)
        changes_add(r->opts.changes, m->key, put->version, !record_is_live(&m->record));
    return err;
}

/* Stores it. record: the encoded one. */
static int store_locked(struct replica_request *rq, unsigned slot, struct span record,
                        const struct present *before)
{
    struct replica *r = rq->r;
    const struct message *m = &rq->m;
    struct present_put put = {.version = m->record.version,
                              .record = record,
                              .value = buf_span(&rq->value),
                              .file = rq->file,
                              .keep = m->flags & MSG_SAME_VALUE};
    int err;

    /* What was foreseen is no longer so: only a damaged or dropped record can do that. */
    if (rq->settled)
        return request_fail(rq, -EAGAIN, "the key changed meanwhile; the value was not kept");
    err = promises_raise(r->promises, slot, put.version);
    if (err == 0)
        err = put_locked(r, m, before, &put);
    if (err < 0)
        return request_fail(rq, err, "cannot store: %s", strerror(-err));
    rq->file = NULL; /* the store's from here */
    return 0;
}

/* The part of ACCEPT under the lock of its slot. record: the encoded one, to be stored. */
static int accept_locked(struct replica_request *rq, unsigned slot, struct span record,
                         struct answer *a)
{
    struct replica *r = rq->r;
    const struct message *m = &rq->m;
    struct present p = PRESENT_NONE;
    struct ballot top;
    int err = request_check_late(rq), verdict;

    if (err < 0)
        return err;
    err = present_load(r, m->key, false, &p);
    if (err < 0)
        return replica_fail_load(rq, err);
    verdict = judge_accept_locked(r, slot, m, &p, &top);
    a->kind = verdict != 0 ? (enum answer_kind)verdict : ANS_ACCEPTED;
    if (verdict == ANS_REFUSE)
        a->ballot = top;
    if (verdict == 0 && (m->flags & MSG_SAME_VALUE) && !has_same_value(m, &p))
        a->kind = ANS_NEED_VALUE;
    else if (verdict == 0)
        err = store_locked(rq, slot, record, &p);
    if (p.state != PRESENT_WHOLE && (a->kind != ANS_ACCEPTED || err < 0))
        present_damaged_locked(r, m->key); /* as it was */
    present_fini(&p);
    return err;
}

int replica_accept(struct replica_request *rq, struct reply *out)
{
    struct replica *r = rq->r;
    struct answer a = {0};
    struct buf record = {0};
    unsigned slot;
    int err;

    record_encode(&record, rq->m.key, &rq->m.record);
    if (record.err < 0) {
        err = request_fail(rq, -ENOMEM, "no memory for the record");
        goto out;
    }
    slot = promises_lock(r->promises, rq->m.key);
    err = accept_locked(rq, slot, buf_span(&record), &a);
    promises_unlock(r->promises, slot);
    if (err == 0)
        err = replica_answer(rq, rq->m.key, &a, out);
out:
    buf_fini(&record);
    return err;
}

/* --- READ ---------------------------------------------------------------------------- */

static int read_value(struct replica_request *rq, struct present *p, struct answer *a,
                      struct reply *out)
{
    const struct message *m = &rq->m;

    if (!(m->flags & MSG_WANT_VALUE) || !record_is_live(&p->rec))
        return 0;
    if (!ballot_is_none(m->pin) && ballot_cmp(m->pin, p->rec.version) != 0)
        return 0;
    return attach(rq, p, m->offset, m->length, a, out);
}

int replica_read(struct replica_request *rq, struct reply *out)
{
    struct replica *r = rq->r;
    const struct message *m = &rq->m;
    struct answer a = {.kind = ANS_STATE};
    struct present p = PRESENT_NONE;
    struct buf below = {0};
    int err = present_load(r, m->key, m->flags & MSG_WANT_VALUE, &p);

    if (err == 0 && p.state != PRESENT_WHOLE) {
        present_damaged(r, m->key, BALLOT_NONE);
        err = -EBADMSG;
    }
    if (err < 0) {
        (void)replica_fail_load(rq, err);
        goto out;
    }
    a.record = p.rec;
    /*
     * After a failed write, what is not here may show at the next start: nobody may drop a
     * tombstone believing that this node has nothing.
     */
    if (ballot_is_none(p.rec.version))
        err = replica_check_certain(rq);
    if (err == 0)
        err = read_value(rq, &p, &a, out);
    if (err < 0)
        goto out;
    if (m->flags & MSG_PEEK)
        err = scan_below(r, m->key, &below, &a.peek, &a.has_peek);
    if (err < 0) {
        (void)request_fail(rq, err, "this node's store cannot tell what is below the key: %s",
                           err == -EBADMSG ? "a record is damaged" : strerror(-err));
        goto out;
    }
    err = replica_answer(rq, m->key, &a, out);
out:
    buf_fini(&below);
    present_fini(&p);
    return err;
}

/* --- DROP ---------------------------------------------------------------------------- */

/*
 * First nothing at or below the tombstone's counter is accepted any more, which is as good after a
 * restart: otherwise a write with a low clock could slip in here, under a copy of the tombstone
 * that another replica has not dropped yet.
 */
static int drop_locked(struct replica_request *rq, unsigned slot, struct answer *a)
{
    struct replica *r = rq->r;
    struct ballot b = rq->m.ballot;
    struct present p = PRESENT_NONE;
    bool here;
    int err = request_check_late(rq);

    if (err == 0)
        err = replica_check_certain(rq);
    if (err == 0)
        err = load_whole_locked(rq, false, &p);
    if (err < 0)
        return err;
    here = !ballot_is_none(p.rec.version);
    if (here && (record_is_live(&p.rec) || ballot_cmp(p.rec.version, b) != 0)) {
        a->kind = ANS_REFUSE;
        a->ballot = ballot_max(promises_get(r->promises, slot), p.rec.version);
        goto out;
    }
    err = promises_raise(r->promises, slot, (struct ballot){b.counter, BALLOT_PROPOSER_MAX});
    if (err == 0 && here)
        err = present_drop_locked(r, rq->m.key, &p);
    if (err < 0)
        (void)request_fail(rq, err, "cannot drop the tombstone: %s", strerror(-err));
    a->kind = ANS_ACCEPTED;
out:
    present_fini(&p);
    return err;
}

int replica_drop(struct replica_request *rq, struct reply *out)
{
    struct replica *r = rq->r;
    struct answer a = {0};
    unsigned slot = promises_lock(r->promises, rq->m.key);
    int err = drop_locked(rq, slot, &a);

    promises_unlock(r->promises, slot);
    return err < 0 ? err : replica_answer(rq, rq->m.key, &a, out);
}

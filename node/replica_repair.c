/*
 * replica_repair.c - what a replica does so that all come to hold the same: it answers DIGEST and
 * KEYS, and walks over all that it has, to count the digests and to look for damage.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "node/present.h"
#include "node/replica_impl.h"
#include "node/scan.h"

#define WALK_STEP 1024u /* keys between two looks at whether to stop */
#define READ_STEP (64u << 10)

/* --- DIGEST and KEYS ----------------------------------------------------------------- */

static int check_peer(struct replica_request *rq)
{
    if (rq->m.node >= ring_n_nodes(rq->r->opts.ring))
        return request_fail(rq, -EINVAL, "no node has the index %u", rq->m.node);
    return 0;
}

int replica_digest(struct replica_request *rq, struct reply *out)
{
    struct replica *r = rq->r;
    const struct message *m = &rq->m;
    struct answer a = {.kind = ANS_DIGEST};
    uint64_t words[DIGEST_GROUPS];
    struct buf bytes = {0};
    uint64_t own;
    int err = check_peer(rq);

    if (err < 0)
        return err;
    if (!atomic_load(&r->indexed))
        return request_fail(rq, -EAGAIN, "this node still counts what it has");
    own = m->group == MESSAGE_GROUP_NONE ? digests_root(r->digests, m->node)
                                         : digests_group(r->digests, m->node, m->group);
    a.same = own == m->digest;
    if (!a.same) {
        digests_get(r->digests, m->node, m->group, words);
        for (unsigned i = 0; i < DIGEST_GROUPS; i++)
            buf_u64(&bytes, words[i]);
        a.n_digests = DIGEST_GROUPS;
        a.digests = buf_span(&bytes);
    }
    err = bytes.err < 0 ? request_fail(rq, bytes.err, "no memory for the answer")
                        : replica_answer(rq, (struct span){0}, &a, out);
    buf_fini(&bytes);
    return err;
}

int replica_keys(struct replica_request *rq, struct reply *out)
{
    struct answer a = {.kind = ANS_KEYS};
    struct buf entries = {0}, next = {0};
    int err = check_peer(rq);

    if (err < 0)
        return err;
    err = scan_keys(rq->r, &rq->m, &entries, &a.n_entries, &next);
    if (err < 0) {
        (void)request_fail(rq, err, "this node's store cannot be listed: %s", strerror(-err));
        goto out;
    }
    a.more = next.len > 0;
    a.next = buf_span(&next);
    err = replica_answer(rq, (struct span){0}, &a, out);
    if (err < 0)
        goto out;
    buf_add_span(&out->head, buf_span(&entries));
    if (out->head.err < 0)
        err = request_fail(rq, out->head.err, "no memory for the answer");
out:
    buf_fini(&next);
    buf_fini(&entries);
    return err;
}

/* --- counting ------------------------------------------------------------------------ */

bool replica_index_needed(const struct replica *r)
{
    return atomic_load(&r->index_needed);
}

const struct digests *replica_digests(const struct replica *r)
{
    return atomic_load(&r->indexed) ? r->digests : NULL;
}

/*
 * A view of the store, and nothing changed between it and the first change that is counted: no put
 * is under way while all slots are locked. The walk over the view and the changes since may then go
 * into the digests in any order, for both are XORed.
 */
static int index_begin(struct replica *r, struct store_iter **out)
{
    struct store *s = r->opts.store;
    struct digests *fresh;
    int err = digests_new(r->opts.ring, r->opts.self, &fresh);

    if (err < 0)
        return err;
    promises_lock_all(r->promises);
    err = s->ops->iter_new(s, out);
    if (err == 0) {
        damage_recount(r->damage);
        atomic_store(&r->index_needed, false);
        r->fresh = fresh;
    }
    promises_unlock_all(r->promises);
    if (err < 0)
        digests_free(fresh);
    return err;
}

static void index_end(struct replica *r, bool done)
{
    struct digests *fresh = r->fresh;

    promises_lock_all(r->promises);
    r->fresh = NULL;
    if (done) {
        digests_copy(r->digests, fresh);
        atomic_store(&r->indexed, true);
    } else {
        atomic_store(&r->index_needed, true);
    }
    promises_unlock_all(r->promises);
    digests_free(fresh);
}

int replica_index(struct replica *r, const _Atomic bool *stop)
{
    struct store *s = r->opts.store;
    struct store_iter *it;
    int err = index_begin(r, &it);

    if (err < 0)
        return err;
    s->ops->iter_seek(it, (struct span){0});
    for (unsigned n = 0; err == 0 && s->ops->iter_valid(it); n++) {
        if (n % WALK_STEP == 0 && stop != NULL && atomic_load(stop))
            err = -EINTR;
        else
            err = present_count(r, s->ops->iter_key(it), s->ops->iter_record(it));
        if (err == 0)
            s->ops->iter_next(it);
    }
    if (err == 0) {
        err = s->ops->iter_err(it);
        replica_note_damage(r, err);
    }
    s->ops->iter_free(it);
    index_end(r, err == 0);
    return err;
}

/* --- scrub --------------------------------------------------------------------------- */

uint64_t replica_n_damaged(const struct replica *r)
{
    return damage_n(r->damage);
}

/* Reads the whole value of p, which verifies it. 0, -EBADMSG, ... */
static int verify_value(struct replica *r, struct span key, struct present *p, uint64_t *n_bytes)
{
    struct answer a = {0};
    struct reply reply = REPLY_NONE;
    uint8_t *bytes = NULL;
    uint64_t pos = 0;
    int err = replica_attach(r, key, p, 0, UINT64_MAX, &a, &reply);

    if (err < 0 || reply.large == NULL)
        goto out;
    reply.replica = NULL; /* told by scrub_damaged() */
    bytes = malloc(READ_STEP);
    err = bytes == NULL ? -ENOMEM : 0;
    while (err == 0 && pos < reply.file_len) {
        int64_t n = reply_read(&reply, pos, bytes, READ_STEP);

        if (n < 0)
            err = (int)n;
        else
            pos += (uint64_t)n;
    }
out:
    if (err == 0)
        *n_bytes += p->rec.size;
    free(bytes);
    reply_fini(&reply);
    return err;
}

/* Record and value as they are now. */
static int scrub_present(struct replica *r, struct span key, struct scrub_result *res)
{
    struct present p = PRESENT_NONE;
    int err = present_load(r, key, true, &p);

    if (err == 0 && p.state == PRESENT_WHOLE && record_is_live(&p.rec))
        err = verify_value(r, key, &p, &res->n_bytes);
    if (err == -EBADMSG || (err == 0 && p.state != PRESENT_WHOLE)) {
        present_damaged(r, key, p.state == PRESENT_WHOLE ? p.rec.version : BALLOT_NONE);
        res->n_damaged++;
        err = 0;
    }
    present_fini(&p);
    return err;
}

static bool is_old_tombstone(const struct replica *r, struct span key, const struct record *rec,
                             uint64_t old_counter)
{
    return (rec->flags & RECORD_TOMBSTONE) && rec->version.counter < old_counter &&
           ring_replicas(r->opts.ring, key)[0] == r->opts.self;
}

int replica_scrub(struct replica *r, struct buf *pos, uint64_t bytes, uint64_t old_counter,
                  scrub_tombstone_fn *on_tombstone, void *arg, struct scrub_result *out)
{
    struct store *s = r->opts.store;
    struct scrub_result res = {0};
    struct store_iter *it;
    struct record rec;
    int err = s->ops->iter_new(s, &it);

    if (err < 0)
        return err;
    err = scan_seek_above(s, it, buf_span(pos));
    while (err == 0 && s->ops->iter_valid(it) && res.n_bytes < bytes) {
        struct span key = s->ops->iter_key(it), record = s->ops->iter_record(it);

        err = record_decode(record, key, &rec);
        if (err == 0 && is_old_tombstone(r, key, &rec, old_counter))
            on_tombstone(arg, key, rec.version);
        if (err == -EBADMSG || (err == 0 && rec.size > 0))
            err = scrub_present(r, key, &res);
        if (err == -EPROTO)
            err = 0; /* of a newer program: it is for that one to judge */
        res.n_keys++;
        res.n_bytes += key.len + record.len;
        buf_clear(pos);
        buf_add_span(pos, key);
        if (err == 0)
            err = pos->err;
        if (err == 0)
            s->ops->iter_next(it);
    }
    if (err == 0) {
        err = s->ops->iter_err(it);
        replica_note_damage(r, err);
    }
    res.done = err == 0 && !s->ops->iter_valid(it);
    s->ops->iter_free(it);
    if (err == 0)
        *out = res;
    return err;
}

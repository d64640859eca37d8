/*
 * sim_check.c - do all replicas hold the same? Looked up on the disks, past all that nodes say.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#include "tests/lib/sim.h"

/* The same version and bytes on every replica of the key. */
static bool key_converged(struct sim *s, struct span key, struct err *why)
{
    const unsigned *replicas = ring_replicas(s->ring, key);
    struct record_copy first = {0};
    struct buf first_value = {0};
    bool good = true;

    for (unsigned i = 0; i < ring_n_replicas(s->ring) && good; i++) {
        struct sim_disk *d = s->nodes[replicas[i]].disk;
        struct record_copy rec = {0};
        struct buf value = {0};

        if (!sim_disk_intact(d, key) || !sim_disk_get(d, key, &rec, &value)) {
            err_set(why, 0, "%.*s is damaged on node %u", (int)key.len, (const char *)key.data,
                    replicas[i]);
            good = false;
        } else if (i > 0 && (ballot_cmp(rec.rec.version, first.rec.version) != 0 ||
                             !span_eq(buf_span(&value), buf_span(&first_value)))) {
            err_set(why, 0, "%.*s has version %" PRIu64 " on node %u, %" PRIu64 " on node %u",
                    (int)key.len, (const char *)key.data, rec.rec.version.counter, replicas[i],
                    first.rec.version.counter, replicas[0]);
            good = false;
        }
        if (i == 0) {
            first = rec;
            first_value = value;
        } else {
            record_copy_fini(&rec);
            buf_fini(&value);
        }
    }
    record_copy_fini(&first);
    buf_fini(&first_value);
    return good;
}

bool sim_converged(struct sim *s, struct err *why)
{
    why->msg[0] = '\0';
    for (unsigned i = 0; i < s->opts.n_nodes; i++) {
        struct sim_node *n = &s->nodes[i];

        if (n->replica == NULL || sim_node_recovering(n)) {
            struct repair_progress p = {.recovering = false};

            if (n->repair != NULL)
                repair_get_progress(n->repair, &p);
            err_set(why, 0, "node %u is %s: %s", i, n->replica == NULL ? "down" : "recovering",
                    p.waits_for);
            return false;
        }
    }
    for (unsigned i = 0; i < s->n_keys; i++) {
        if (!key_converged(s, s->keys[i], why))
            return false;
    }
    return true;
}

/* What the digests of node about peer should be, counted anew from the disk. */
static uint64_t recount(struct sim *s, unsigned node, unsigned peer)
{
    struct store *inside = sim_disk_inside(s->nodes[node].disk);
    const struct store_ops *ops = inside->ops;
    struct store_iter *it;
    uint64_t sum = 0;

    if (ops->iter_new(inside, &it) < 0)
        abort();
    for (ops->iter_seek(it, span_of(NULL, 0)); ops->iter_valid(it); ops->iter_next(it)) {
        struct span key = ops->iter_key(it);
        struct record rec;

        if (ring_is_replica(s->ring, key, peer) &&
            record_decode(ops->iter_record(it), key, &rec) == 0)
            sum ^= digest_of(key, rec.version);
    }
    ops->iter_free(it);
    return sum;
}

bool sim_digests_right(struct sim *s, struct err *why)
{
    for (unsigned i = 0; i < s->opts.n_nodes; i++) {
        const struct digests *d =
            s->nodes[i].replica == NULL ? NULL : replica_digests(s->nodes[i].replica);

        for (unsigned peer = 0; peer < s->opts.n_nodes; peer++) {
            if (peer == i || !ring_shares(s->ring, i, peer))
                continue;
            if (d == NULL || digests_root(d, peer) != recount(s, i, peer)) {
                err_set(why, 0, "node %u: %s about node %u", i,
                        d == NULL ? "no digests" : "wrong digests", peer);
                return false;
            }
        }
    }
    return true;
}

static void add(struct repair_progress *sum, const struct repair_progress *p)
{
    sum->n_compared += p->n_compared;
    sum->n_mended += p->n_mended;
    sum->n_healed += p->n_healed;
    sum->n_dropped += p->n_dropped;
    sum->n_failed += p->n_failed;
}

void sim_note_repaired(struct sim_node *n)
{
    struct repair_progress p;

    repair_get_progress(n->repair, &p);
    add(&n->sim->repaired, &p);
}

void sim_repaired(const struct sim *s, struct repair_progress *out)
{
    *out = s->repaired;
    for (unsigned i = 0; i < s->opts.n_nodes; i++) {
        struct repair_progress p;

        if (s->nodes[i].repair == NULL)
            continue;
        repair_get_progress(s->nodes[i].repair, &p);
        add(out, &p);
    }
}

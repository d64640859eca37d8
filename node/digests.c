/* digests.c - what this node holds of the keys that it shares with each other, in few bytes. */
#include "node/digests.h"

#include <assert.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "common/hash.h"

#define BUCKETS_PER_GROUP (DIGEST_BUCKETS / DIGEST_GROUPS)

/* What a peer is answered of a group are as many words as of all groups. */
_Static_assert(BUCKETS_PER_GROUP == DIGEST_GROUPS, "each level has the same number of digests");

#define NO_TABLE UINT32_MAX /* nothing is shared with that node */

struct digests {
    const struct ring *ring;
    unsigned self;
    uint32_t *table_of; /* by node index: the how-manieth table is its */
    size_t n_words;
    _Atomic uint64_t words[]; /* tables of DIGEST_BUCKETS each */
};

int digests_new(const struct ring *ring, unsigned self, struct digests **out)
{
    unsigned n_nodes = ring_n_nodes(ring);
    uint32_t *table_of = calloc(n_nodes, sizeof(*table_of)), n_tables = 0;
    struct digests *d = NULL;
    size_t n_words;

    if (table_of == NULL)
        return -ENOMEM;
    for (unsigned i = 0; i < n_nodes; i++)
        table_of[i] = i != self && ring_shares(ring, i, self) ? n_tables++ : NO_TABLE;
    n_words = (size_t)n_tables * DIGEST_BUCKETS;
    d = calloc(1, sizeof(*d) + n_words * sizeof(d->words[0]));
    if (d == NULL) {
        free(table_of);
        return -ENOMEM;
    }
    d->ring = ring;
    d->self = self;
    d->table_of = table_of;
    d->n_words = n_words;
    *out = d;
    return 0;
}

void digests_free(struct digests *d)
{
    if (d == NULL)
        return;
    free(d->table_of);
    free(d);
}

void digests_copy(struct digests *to, const struct digests *from)
{
    assert(to->n_words == from->n_words);
    for (size_t i = 0; i < to->n_words; i++)
        atomic_store_explicit(&to->words[i],
                              atomic_load_explicit(&from->words[i], memory_order_relaxed),
                              memory_order_relaxed);
}

unsigned digest_bucket(struct span key)
{
    return (unsigned)(hash_xxh3(key) % DIGEST_BUCKETS);
}

static uint64_t digest_of_hash(uint64_t key_hash, struct ballot version)
{
    uint64_t h = hash_fmix64(version.counter ^ hash_fmix64(version.proposer));

    return ballot_is_none(version) ? 0 : hash_fmix64(key_hash ^ h);
}

uint64_t digest_of(struct span key, struct ballot version)
{
    return digest_of_hash(hash_xxh3(key), version);
}

void digests_change(struct digests *d, struct span key, struct ballot from, struct ballot to)
{
    const unsigned *nodes = ring_replicas(d->ring, key);
    uint64_t hash = hash_xxh3(key), change = digest_of_hash(hash, from) ^ digest_of_hash(hash, to);
    size_t bucket = hash % DIGEST_BUCKETS;

    if (!ring_is_replica(d->ring, key, d->self))
        return; /* left from another ring: no peer expects it here */
    for (unsigned i = 0; i < ring_n_replicas(d->ring); i++) {
        uint32_t table = d->table_of[nodes[i]];

        if (table != NO_TABLE)
            atomic_fetch_xor_explicit(&d->words[(size_t)table * DIGEST_BUCKETS + bucket], change,
                                      memory_order_relaxed);
    }
}

static uint64_t xor_of(const struct digests *d, unsigned peer, unsigned first, unsigned n)
{
    uint64_t sum = 0;
    const _Atomic uint64_t *words;

    assert(peer < ring_n_nodes(d->ring) && first + n <= DIGEST_BUCKETS);
    if (d->table_of[peer] == NO_TABLE)
        return 0;
    words = d->words + (size_t)d->table_of[peer] * DIGEST_BUCKETS + first;
    for (unsigned i = 0; i < n; i++)
        sum ^= atomic_load_explicit(&words[i], memory_order_relaxed);
    return sum;
}

uint64_t digests_root(const struct digests *d, unsigned peer)
{
    return xor_of(d, peer, 0, DIGEST_BUCKETS);
}

uint64_t digests_group(const struct digests *d, unsigned peer, unsigned group)
{
    return xor_of(d, peer, group * BUCKETS_PER_GROUP, BUCKETS_PER_GROUP);
}

void digests_get(const struct digests *d, unsigned peer, unsigned group,
                 uint64_t out[DIGEST_GROUPS])
{
    for (unsigned i = 0; i < DIGEST_GROUPS; i++) {
        if (group == MESSAGE_GROUP_NONE)
            out[i] = digests_group(d, peer, i);
        else
            out[i] = xor_of(d, peer, group * BUCKETS_PER_GROUP + i, 1);
    }
}

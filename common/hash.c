/* hash.c - FNV-1a and fmix64 for placement, XXH3 for integrity (the only user of libxxhash). */
#include "common/hash.h"

#include <assert.h>
#include <stdlib.h>
#include <xxhash.h>

uint64_t hash_fnv1a(struct span s)
{
    uint64_t h = 0xcbf29ce484222325u; /* offset basis and prime of the 64-bit FNV */

    for (size_t i = 0; i < s.len; i++) {
        h ^= s.data[i];
        h *= 0x100000001b3u;
    }
    return h;
}

uint64_t hash_fmix64(uint64_t x)
{
    x ^= x >> 33;
    x *= 0xff51afd7ed558ccdu;
    x ^= x >> 33;
    x *= 0xc4ceb9fe1a85ec53u;
    x ^= x >> 33;
    return x;
}

uint64_t hash_xxh3(struct span s)
{
    return XXH3_64bits(s.data, s.len);
}

/* The library allocates the state itself, for it must be aligned to 64 bytes. */
struct hash_stream {
    XXH3_state_t *state;
};

struct hash_stream *hash_stream_new(void)
{
    struct hash_stream *h = malloc(sizeof(*h));

    if (h == NULL)
        return NULL;
    h->state = XXH3_createState();
    if (h->state == NULL) {
        free(h);
        return NULL;
    }
    hash_stream_reset(h);
    return h;
}

void hash_stream_reset(struct hash_stream *h)
{
    XXH_errorcode code = XXH3_64bits_reset(h->state);

    assert(code == XXH_OK); /* fails only without a state */
}

void hash_stream_add(struct hash_stream *h, struct span s)
{
    XXH_errorcode code;

    if (s.len == 0)
        return;
    code = XXH3_64bits_update(h->state, s.data, s.len);
    assert(code == XXH_OK);
}

uint64_t hash_stream_sum(const struct hash_stream *h)
{
    return XXH3_64bits_digest(h->state);
}

void hash_stream_free(struct hash_stream *h)
{
    if (h == NULL)
        return;
    XXH3_freeState(h->state);
    free(h);
}

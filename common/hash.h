/*
 * hash.h - the hashes of placement (fixed for ever by the ring's known answers) and of integrity.
 */
#ifndef KVFS_COMMON_HASH_H
#define KVFS_COMMON_HASH_H

#include "common/buf.h"

/* FNV-1a, 64 bits, over unsigned bytes. Fowler, Noll, Vo; draft-eastlake-fnv. */
uint64_t hash_fnv1a(struct span s);
/* The 64-bit finaliser of MurmurHash3 (Appleby): spreads every input bit over the whole word. */
uint64_t hash_fmix64(uint64_t x);
/*
 * XXH3 64 (libxxhash, the only file that uses it): the checksum of records, values and messages.
 * Not for secrets.
 */
uint64_t hash_xxh3(struct span s);

/* The same checksum over pieces. */
struct hash_stream;
struct hash_stream *hash_stream_new(void); /* NULL without memory */
void hash_stream_reset(struct hash_stream *h);
void hash_stream_add(struct hash_stream *h, struct span s);
uint64_t hash_stream_sum(const struct hash_stream *h);
void hash_stream_free(struct hash_stream *h);

#endif

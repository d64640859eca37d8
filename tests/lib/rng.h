/*
 * rng.h - the tests' only source of randomness: a seed gives the same run on every machine
 * (splitmix64; Steele, Lea, Flood 2014).
 */
#ifndef KVFS_TESTS_LIB_RNG_H
#define KVFS_TESTS_LIB_RNG_H

#include <stdbool.h>
#include <stdint.h>

struct rng {
    uint64_t state;
};

/* Spreads every bit of x over the whole word. */
static inline uint64_t rng_mix(uint64_t x)
{
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ x >> 27) * 0x94d049bb133111ebull;
    return x ^ x >> 31;
}

static inline uint64_t rng_next(struct rng *r)
{
    r->state += 0x9e3779b97f4a7c15ull;
    return rng_mix(r->state);
}

/* 0..n-1; n > 0. The bias of the remainder does not matter here. */
static inline uint64_t rng_below(struct rng *r, uint64_t n)
{
    return rng_next(r) % n;
}

/* lo..hi, both included. */
static inline uint64_t rng_between(struct rng *r, uint64_t lo, uint64_t hi)
{
    return lo + rng_below(r, hi - lo + 1);
}

static inline bool rng_chance(struct rng *r, unsigned per_mille)
{
    return rng_below(r, 1000) < per_mille;
}

#endif

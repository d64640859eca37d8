/*
 * fuzz.h - what the fuzz targets share: a claim that must hold, and choices drawn from the input.
 *
 * A target is one file fuzz_NAME.c with an LLVMFuzzerTestOneInput() that takes any bytes, puts them
 * through the code in question and claims what must hold of the outcome. Targets of bytes (record,
 * message, ...) take the input as it is, after a few bytes that say what to do; targets of
 * behaviour (replica, listing, client) read it as a row of choices. An input that has run out
 * chooses 0 everywhere, so 0 is always the plain, honest way, and a short input is a short run.
 */
#ifndef KVFS_TESTS_FUZZ_FUZZ_H
#define KVFS_TESTS_FUZZ_FUZZ_H

#include <stdio.h>
#include <stdlib.h>

#include "common/buf.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Ends the run, and libFuzzer keeps the input: cond must hold whatever the input is. */
#define CLAIM(cond)                                                                                \
    do {                                                                                           \
        if (!(cond)) {                                                                             \
            fprintf(stderr, "%s:%d: %s: does not hold: %s\n", __FILE__, __LINE__, __func__,        \
                    #cond);                                                                        \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

struct input {
    const uint8_t *data;
    size_t len;
};

static inline uint8_t input_u8(struct input *in)
{
    if (in->len == 0)
        return 0;
    in->len--;
    return *in->data++;
}

static inline uint64_t input_u64(struct input *in)
{
    uint64_t v = 0;

    for (unsigned i = 0; i < 8; i++)
        v |= (uint64_t)input_u8(in) << (8 * i);
    return v;
}

/* 0..n-1, from one byte: n <= 256. */
static inline unsigned input_pick(struct input *in, unsigned n)
{
    return input_u8(in) % n;
}

static inline size_t input_u16(struct input *in)
{
    size_t low = input_u8(in);

    return low | (size_t)input_u8(in) << 8;
}

/* The next n bytes, or as many as there are. */
static inline struct span input_bytes(struct input *in, size_t n)
{
    struct span s = {in->data, n < in->len ? n : in->len};

    if (s.len > 0)
        in->data += s.len;
    in->len -= s.len;
    return s;
}

static inline struct span input_rest(struct input *in)
{
    return input_bytes(in, in->len);
}

#endif

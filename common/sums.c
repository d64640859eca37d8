/* sums.c - the checksums of a value, computed piece by piece. */
#include "common/sums.h"

#include <stdlib.h>

#include "common/hash.h"
#include "common/limits.h"

struct sums {
    struct hash_stream *hash;
    size_t at; /* bytes of the chunk that is under way */
    struct buf list;
};

struct sums *sums_new(struct span known)
{
    struct sums *s = calloc(1, sizeof(*s));

    if (s == NULL)
        return NULL;
    s->hash = hash_stream_new();
    buf_add_span(&s->list, known);
    if (s->hash == NULL || s->list.err < 0) {
        sums_free(s);
        return NULL;
    }
    return s;
}

static void end_chunk(struct sums *s)
{
    buf_u64(&s->list, hash_stream_sum(s->hash));
    hash_stream_reset(s->hash);
    s->at = 0;
}

void sums_add(struct sums *s, struct span part)
{
    while (part.len > 0) {
        size_t room = CHUNK_SIZE - s->at, n = part.len < room ? part.len : room;

        hash_stream_add(s->hash, span_of(part.data, n));
        s->at += n;
        if (s->at == CHUNK_SIZE)
            end_chunk(s);
        part = span_of(part.data + n, part.len - n);
    }
}

int sums_end(struct sums *s, struct span *out)
{
    if (s->at > 0)
        end_chunk(s);
    if (s->list.err == 0)
        *out = buf_span(&s->list);
    return s->list.err;
}

void sums_free(struct sums *s)
{
    if (s == NULL)
        return;
    hash_stream_free(s->hash);
    buf_fini(&s->list);
    free(s);
}

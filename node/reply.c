/*
 * reply.c - an answer of the replica, read out piece by piece: its head, then value bytes from
 * memory or, verified first, from a file.
 */
#include "node/present.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

void reply_fini(struct reply *r)
{
    buf_fini(&r->head);
    value_fini(&r->value);
    record_copy_fini(&r->rec);
    buf_fini(&r->key);
    free(r->chunk);
    store_reader_close(r->large);
    *r = REPLY_NONE;
}

uint64_t reply_len(const struct reply *r)
{
    return r->head.len + (r->large != NULL ? r->file_len : r->value.len);
}

/* Makes r->chunk the chunk around this offset of the file, verified. */
static int load_chunk(struct reply *r, uint64_t offset)
{
    const struct record *rec = &r->rec.rec;
    uint64_t start = offset - offset % CHUNK_SIZE;
    size_t len = rec->size - start < CHUNK_SIZE ? (size_t)(rec->size - start) : CHUNK_SIZE;
    int err;

    if (r->chunk_len > 0 && r->chunk_offset == start)
        return 0;
    if (r->chunk == NULL)
        r->chunk = malloc(CHUNK_SIZE);
    if (r->chunk == NULL)
        return -ENOMEM;
    r->chunk_len = 0;
    err = r->large->ops->read(r->large, r->chunk, len, start);
    if (err == 0)
        err = record_verify(rec, start, span_of(r->chunk, len));
    if (err < 0)
        return err;
    r->chunk_offset = start;
    r->chunk_len = len;
    return 0;
}

/* Of the value, as reply_load(). */
static int load(struct reply *r, uint64_t pos)
{
    int err = load_chunk(r, r->file_offset + pos);

    if (err == -EBADMSG && r->replica != NULL)
        present_damaged(r->replica, buf_span(&r->key), r->rec.rec.version);
    return err;
}

int reply_load(struct reply *r, uint64_t pos)
{
    pos = pos > r->head.len ? pos - r->head.len : 0;
    return r->large != NULL && pos < r->file_len ? load(r, pos) : 0;
}

int reply_check(struct reply *r)
{
    return reply_load(r, 0);
}

/* Up to cap bytes from position pos of the value; 0 where they would have to be loaded first. */
static int64_t read_value(struct reply *r, uint64_t pos, bool may_load, uint8_t *out, size_t cap)
{
    uint64_t left = (r->large != NULL ? r->file_len : r->value.len) - pos, at;
    size_t n = left < cap ? (size_t)left : cap;
    int err;

    if (r->large == NULL) {
        if (n > 0)
            memcpy(out, r->value.data + pos, n);
        return (int64_t)n;
    }
    if (n == 0)
        return 0;
    err = may_load ? load(r, pos) : 0;
    if (err < 0)
        return err;
    at = r->file_offset + pos;
    if (at < r->chunk_offset || at - r->chunk_offset >= r->chunk_len)
        return 0;
    at -= r->chunk_offset;
    if (n > r->chunk_len - at)
        n = r->chunk_len - (size_t)at;
    memcpy(out, r->chunk + at, n);
    return (int64_t)n;
}

static int64_t read_reply(struct reply *r, uint64_t pos, bool may_load, void *out, size_t cap)
{
    uint64_t total = reply_len(r);
    size_t n = 0;

    while (n < cap && pos < total) {
        uint8_t *to = (uint8_t *)out + n;
        int64_t got;

        if (pos < r->head.len) {
            got = (int64_t)(r->head.len - pos < cap - n ? r->head.len - pos : cap - n);
            memcpy(to, r->head.data + pos, (size_t)got);
        } else {
            got = read_value(r, pos - r->head.len, may_load, to, cap - n);
            if (got < 0)
                return got;
            if (got == 0)
                break;
        }
        n += (size_t)got;
        pos += (uint64_t)got;
    }
    return (int64_t)n;
}

int64_t reply_read(struct reply *r, uint64_t pos, void *out, size_t cap)
{
    return read_reply(r, pos, true, out, cap);
}

int64_t reply_read_loaded(struct reply *r, uint64_t pos, void *out, size_t cap)
{
    return read_reply(r, pos, false, out, cap);
}

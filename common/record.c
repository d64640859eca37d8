/*
 * record.c - what a replica keeps of a key beside the value's bytes, to and from bytes.
 *
 * The encoding is a fixed part, three lists (recent ids, attributes, chunk sums) and a checksum;
 * docs/protocol.md has the byte table. In every format version the first four bytes are magic and
 * version and the last eight are the checksum, so that a record from the future can be told from a
 * damaged one.
 *
 * The checksum covers the key without storing it: a record found under another key (a mixed-up
 * store, an answer to another question) is damaged. It is the hash of two hashes, the key's and the
 * bytes', which needs neither memory nor a copy on this path that every read and write takes.
 */
#include "common/record.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "common/hash.h"

#define RECORD_FORMAT 1u
#define RECORD_MAGIC_LEN 4u /* with the format version */
#define RECORD_SUM_LEN 8u
#define RECORD_FIXED_LEN 85u /* from the magic to n_recent */
#define CHUNK_SUM_LEN 8u

static const uint8_t record_magic[] = {'K', 'V', 'R'};

_Static_assert(RECORD_FIXED_LEN + 8u * RECENT_MAX + 4u + ATTRS_LEN_MAX + 4u +
                       CHUNK_SUM_LEN * (VALUE_SIZE_LIMIT / CHUNK_SIZE) + RECORD_SUM_LEN <=
                   RECORD_LEN_MAX,
               "the largest record is within its limit");
_Static_assert(ATTR_NAME_LEN_MAX <= UINT8_MAX, "the length of an attribute's name is one byte");

bool record_same_write(const struct record *a, const struct record *b)
{
    return a->seq == b->seq && a->n_recent > 0 && b->n_recent > 0 && a->recent[0] == b->recent[0];
}

uint64_t record_n_chunks(uint64_t size)
{
    return size / CHUNK_SIZE + (size % CHUNK_SIZE != 0);
}

static uint64_t checksum(struct span key, struct span bytes)
{
    uint64_t key_sum = hash_xxh3(key), bytes_sum = hash_xxh3(bytes);
    uint8_t both[16];

    for (unsigned i = 0; i < 8; i++) {
        both[i] = (uint8_t)(key_sum >> (8 * i));
        both[8 + i] = (uint8_t)(bytes_sum >> (8 * i));
    }
    return hash_xxh3(span_of(both, sizeof(both)));
}

static bool attrs_are_well_formed(struct span attrs)
{
    enum attr_kind kind;
    struct span name, value;
    size_t pos = 0;
    int more;

    if (attrs.len > ATTRS_LEN_MAX)
        return false;
    do
        more = attr_next(attrs, &pos, &kind, &name, &value);
    while (more == 1);
    return more == 0;
}

static bool is_bare(const struct record *r)
{
    return r->flags == 0 && r->seq == 0 && r->n_recent == 0 && r->size == 0 && r->mode == 0 &&
           r->uid == 0 && r->gid == 0 && r->rdev == 0 && r->mtime_ns == 0 && r->ctime_ns == 0 &&
           r->atime_ns == 0 && r->attrs.len == 0;
}

/* What record.h says of the fields: encode asserts it, decode rejects what breaks it. */
static bool is_well_formed(const struct record *r)
{
    if (ballot_is_none(r->version) && !is_bare(r))
        return false;
    if (r->flags & ~(uint32_t)RECORD_TOMBSTONE)
        return false;
    if ((r->flags & RECORD_TOMBSTONE) && (r->size != 0 || r->attrs.len != 0))
        return false;
    return r->n_recent <= RECENT_MAX && r->size <= VALUE_SIZE_LIMIT &&
           r->sums.len == CHUNK_SUM_LEN * record_n_chunks(r->size) &&
           attrs_are_well_formed(r->attrs);
}

void record_encode(struct buf *out, struct span key, const struct record *r)
{
    size_t start = out->len;

    assert(is_well_formed(r));
    buf_reserve(out, RECORD_FIXED_LEN + 8u * r->n_recent + 4 + r->attrs.len + 4 + r->sums.len +
                         RECORD_SUM_LEN);
    buf_add(out, record_magic, sizeof(record_magic));
    buf_u8(out, RECORD_FORMAT);
    buf_u32(out, r->flags);
    buf_u64(out, r->version.counter);
    buf_u64(out, r->version.proposer);
    buf_u64(out, r->seq);
    buf_u64(out, r->size);
    buf_u32(out, r->mode);
    buf_u32(out, r->uid);
    buf_u32(out, r->gid);
    buf_u64(out, r->rdev);
    buf_u64(out, (uint64_t)r->mtime_ns);
    buf_u64(out, (uint64_t)r->ctime_ns);
    buf_u64(out, (uint64_t)r->atime_ns);
    buf_u8(out, r->n_recent);
    for (unsigned i = 0; i < r->n_recent; i++)
        buf_u64(out, r->recent[i]);
    buf_bytes32(out, r->attrs);
    buf_bytes32(out, r->sums);
    if (out->err == 0)
        buf_u64(out, checksum(key, span_of(out->data + start, out->len - start)));
}

/* The frame that all format versions share: magic, checksum, and only then the version. */
static int open_frame(struct span bytes, struct span key, struct cursor *out)
{
    struct cursor end;

    if (bytes.len < RECORD_MAGIC_LEN + RECORD_SUM_LEN ||
        memcmp(bytes.data, record_magic, sizeof(record_magic)) != 0)
        return -EBADMSG;
    end = cursor_of(span_of(bytes.data + bytes.len - RECORD_SUM_LEN, RECORD_SUM_LEN));
    if (cursor_u64(&end) != checksum(key, span_of(bytes.data, bytes.len - RECORD_SUM_LEN)))
        return -EBADMSG;
    if (bytes.data[sizeof(record_magic)] != RECORD_FORMAT)
        return bytes.data[sizeof(record_magic)] > RECORD_FORMAT ? -EPROTO : -EBADMSG;
    *out = cursor_of(
        span_of(bytes.data + RECORD_MAGIC_LEN, bytes.len - RECORD_MAGIC_LEN - RECORD_SUM_LEN));
    return 0;
}

int record_decode(struct span bytes, struct span key, struct record *out)
{
    struct record r = {0};
    struct cursor c;
    int err;

    err = open_frame(bytes, key, &c);
    if (err < 0)
        return err;
    r.flags = cursor_u32(&c);
    r.version.counter = cursor_u64(&c);
    r.version.proposer = cursor_u64(&c);
    r.seq = cursor_u64(&c);
    r.size = cursor_u64(&c);
    r.mode = cursor_u32(&c);
    r.uid = cursor_u32(&c);
    r.gid = cursor_u32(&c);
    r.rdev = cursor_u64(&c);
    r.mtime_ns = (int64_t)cursor_u64(&c);
    r.ctime_ns = (int64_t)cursor_u64(&c);
    r.atime_ns = (int64_t)cursor_u64(&c);
    r.n_recent = cursor_u8(&c);
    if (r.n_recent > RECENT_MAX)
        return -EBADMSG;
    for (unsigned i = 0; i < r.n_recent; i++)
        r.recent[i] = cursor_u64(&c);
    r.attrs = cursor_bytes32(&c);
    r.sums = cursor_bytes32(&c);
    if (c.err != 0 || cursor_left(&c) != 0 || !is_well_formed(&r))
        return -EBADMSG;
    *out = r;
    return 0;
}

void record_sums(struct buf *out, struct span value)
{
    for (size_t off = 0; off < value.len; off += CHUNK_SIZE) {
        size_t n = value.len - off < CHUNK_SIZE ? value.len - off : CHUNK_SIZE;

        buf_u64(out, hash_xxh3(span_of(value.data + off, n)));
    }
}

int record_verify(const struct record *r, uint64_t offset, struct span data)
{
    struct cursor sums;

    if (offset % CHUNK_SIZE != 0 || offset > r->size || data.len > r->size - offset)
        return -EINVAL;
    if (data.len % CHUNK_SIZE != 0 && offset + data.len != r->size)
        return -EINVAL;
    assert(r->sums.len == CHUNK_SUM_LEN * record_n_chunks(r->size));
    sums = cursor_of(r->sums);
    (void)cursor_bytes(&sums, CHUNK_SUM_LEN * (offset / CHUNK_SIZE));
    while (data.len > 0) {
        size_t n = data.len < CHUNK_SIZE ? data.len : CHUNK_SIZE;

        if (hash_xxh3(span_of(data.data, n)) != cursor_u64(&sums))
            return -EBADMSG;
        data = span_of(data.data + n, data.len - n);
    }
    return 0;
}

int record_copy(const struct record *r, struct record_copy *out)
{
    struct buf own = {0};

    buf_add_span(&own, r->attrs);
    buf_add_span(&own, r->sums);
    if (own.err != 0) {
        buf_fini(&own);
        return -ENOMEM;
    }
    out->rec = *r;
    out->rec.attrs = span_of(own.data, r->attrs.len);
    out->rec.sums =
        r->sums.len > 0 ? span_of(own.data + r->attrs.len, r->sums.len) : span_of(NULL, 0);
    out->own = own; /* the copy owns it from here */
    return 0;
}

void record_copy_fini(struct record_copy *c)
{
    buf_fini(&c->own);
    *c = (struct record_copy){0};
}

/* A media type has no name of its own, an extended attribute has one without NUL. */
static bool attr_is_well_formed(unsigned kind, struct span name, struct span value)
{
    if (value.len > ATTR_VALUE_LEN_MAX)
        return false;
    switch (kind) {
    case ATTR_CONTENT_TYPE:
        return name.len == 0;
    case ATTR_XATTR:
        return name.len > 0 && name.len <= ATTR_NAME_LEN_MAX &&
               memchr(name.data, 0, name.len) == NULL;
    default:
        return false;
    }
}

void attr_add(struct buf *list, enum attr_kind kind, struct span name, struct span value)
{
    assert(attr_is_well_formed(kind, name, value));
    buf_u8(list, (uint8_t)kind);
    buf_u8(list, (uint8_t)name.len);
    buf_add_span(list, name);
    buf_bytes32(list, value);
}

int attr_next(struct span list, size_t *pos, enum attr_kind *kind, struct span *name,
              struct span *value)
{
    struct span n, v;
    struct cursor c;
    unsigned k;

    assert(*pos <= list.len);
    if (*pos == list.len)
        return 0;
    c = cursor_of(span_of(list.data + *pos, list.len - *pos));
    k = cursor_u8(&c);
    n = cursor_bytes(&c, cursor_u8(&c));
    v = cursor_bytes32(&c);
    if (c.err != 0 || !attr_is_well_formed(k, n, v))
        return -EBADMSG;
    *pos = list.len - cursor_left(&c);
    *kind = (enum attr_kind)k;
    *name = n;
    *value = v;
    return 1;
}

int attr_find(struct span list, enum attr_kind kind, struct span name, struct span *value)
{
    struct span n, v;
    enum attr_kind k;
    size_t pos = 0;
    int more;

    while ((more = attr_next(list, &pos, &k, &n, &v)) == 1) {
        if (k == kind && span_eq(n, name)) {
            *value = v;
            return 0;
        }
    }
    return more < 0 ? more : -ENODATA;
}

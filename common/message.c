/*
 * message.c - replica requests and their answers, to and from bytes.
 *
 * Both are a frame (magic, format version, length of the head, fields, checksum of the head) with
 * the fields that their kind has, as docs/protocol.md tables them. Encoding asserts what decoding
 * rejects: *_is_well_formed() is the one list of it. A record and a listing's entry bring a
 * checksum of their own, since records are kept and entries are written after the head, when it is
 * already closed.
 */
#include "common/message.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "common/hash.h"
#include "common/keypath.h"

#define FRAME_FORMAT 1u
#define FRAME_MAGIC_LEN 3u
#define FRAME_FIXED_LEN 8u /* magic, version, length of the head */
#define FRAME_SUM_LEN 8u
#define KNOWN_LEN 12u /* node index, incarnation */
#define DIGEST_LEN 8u

static const uint8_t request_magic[FRAME_MAGIC_LEN] = {'K', 'V', 'M'};
static const uint8_t answer_magic[FRAME_MAGIC_LEN] = {'K', 'V', 'A'};

/* --- the frame -------------------------------------------------------------------------------- */

/* Writes the length that was not known when its place was left. */
static void patch_u32(struct buf *out, size_t at, size_t v)
{
    if (out->err != 0)
        return; /* then v means nothing either */
    assert(v <= UINT32_MAX);
    for (unsigned i = 0; i < 4; i++)
        out->data[at + i] = (uint8_t)(v >> (8 * i));
}

static size_t frame_begin(struct buf *out, const uint8_t magic[FRAME_MAGIC_LEN])
{
    size_t start = out->len;

    buf_add(out, magic, FRAME_MAGIC_LEN);
    buf_u8(out, FRAME_FORMAT);
    buf_u32(out, 0);
    return start;
}

static void frame_end(struct buf *out, size_t start)
{
    size_t len = out->len - start + FRAME_SUM_LEN;

    if (out->err == 0 && len > MESSAGE_HEAD_MAX)
        out->err =
            -EFBIG; /* a giant record beside thousands of known nodes: nobody could read it */
    if (out->err != 0)
        return;
    patch_u32(out, start + FRAME_MAGIC_LEN + 1, len);
    buf_u64(out, hash_xxh3(span_of(out->data + start, out->len - start)));
}

/*
 * Opens the head at the start of bytes; on success *out stands on the first field and ends before
 * the checksum.
 */
static int frame_open(struct span bytes, const uint8_t magic[FRAME_MAGIC_LEN], struct cursor *out,
                      size_t *head_len)
{
    size_t n_magic = bytes.len < FRAME_MAGIC_LEN ? bytes.len : FRAME_MAGIC_LEN, len;
    struct cursor c = cursor_of(bytes), end;
    unsigned format;

    if (n_magic > 0 && memcmp(bytes.data, magic, n_magic) != 0)
        return -EBADMSG;
    if (bytes.len < FRAME_FIXED_LEN) {
        *head_len = 0;
        return -EAGAIN;
    }
    (void)cursor_bytes(&c, FRAME_MAGIC_LEN);
    format = cursor_u8(&c);
    len = cursor_u32(&c);
    if (len > MESSAGE_HEAD_MAX)
        return -EFBIG;
    if (len < FRAME_FIXED_LEN + FRAME_SUM_LEN)
        return -EBADMSG;
    if (bytes.len < len) {
        *head_len = len;
        return -EAGAIN;
    }
    end = cursor_of(span_of(bytes.data + len - FRAME_SUM_LEN, FRAME_SUM_LEN));
    if (cursor_u64(&end) != hash_xxh3(span_of(bytes.data, len - FRAME_SUM_LEN)))
        return -EBADMSG;
    if (format != FRAME_FORMAT)
        return format > FRAME_FORMAT ? -EPROTO : -EBADMSG;
    *out = cursor_of(span_of(bytes.data + FRAME_FIXED_LEN, len - FRAME_FIXED_LEN - FRAME_SUM_LEN));
    *head_len = len;
    return 0;
}

/* --- fields that both have -------------------------------------------------------------------- */

static void add_ballot(struct buf *out, struct ballot b)
{
    buf_u64(out, b.counter);
    buf_u64(out, b.proposer);
}

static struct ballot get_ballot(struct cursor *c)
{
    struct ballot b;

    b.counter = cursor_u64(c);
    b.proposer = cursor_u64(c);
    return b;
}

static bool get_bool(struct cursor *c)
{
    uint8_t v = cursor_u8(c);

    if (v > 1)
        c->err = -EBADMSG;
    return v == 1;
}

static void add_record(struct buf *out, struct span key, const struct record *r)
{
    size_t at = out->len;

    buf_u32(out, 0);
    record_encode(out, key, r);
    patch_u32(out, at, out->len - at - 4);
}

static void get_record(struct cursor *c, struct span key, struct record *out)
{
    struct span bytes = cursor_bytes32(c);
    int err;

    if (c->err != 0)
        return;
    err = record_decode(bytes, key, out);
    if (err < 0)
        c->err = err;
}

/* --- requests --------------------------------------------------------------------------------- */

static uint32_t flags_of_kind(enum message_kind kind)
{
    switch (kind) {
    case MSG_PREPARE:
        return MSG_WANT_VALUE;
    case MSG_ACCEPT:
        return MSG_SAME_VALUE | MSG_RESTORE;
    case MSG_READ:
        return MSG_WANT_VALUE | MSG_PEEK;
    case MSG_LIST:
        return MSG_DELIMITER;
    case MSG_HELLO:
    case MSG_DIGEST:
    case MSG_KEYS:
    case MSG_DROP:
        return 0;
    }
    return 0;
}

static bool message_is_well_formed(const struct message *m)
{
    if (m->flags & ~flags_of_kind(m->kind))
        return false;
    switch (m->kind) {
    case MSG_PREPARE:
    case MSG_DROP:
        return key_check(m->key) == 0 && !ballot_is_none(m->ballot);
    case MSG_ACCEPT:
        return key_check(m->key) == 0 && !ballot_is_none(m->record.version) &&
               !((m->flags & MSG_SAME_VALUE) && ballot_is_none(m->pin));
    case MSG_READ:
        return key_check(m->key) == 0;
    case MSG_LIST: /* any bytes may stand in a prefix and a position */
        return m->key.len <= KEY_LEN_MAX && m->start_after.len <= KEY_LEN_MAX && m->limit >= 1 &&
               m->limit <= LIST_LIMIT_MAX;
    case MSG_HELLO:
        return m->key.len == 0 &&
               (m->recovering <= NODE_RECOVERING || m->recovering == NODE_ANNOUNCING);
    case MSG_DIGEST:
        return m->key.len == 0 && (m->group < DIGEST_GROUPS || m->group == MESSAGE_GROUP_NONE);
    case MSG_KEYS:
        return m->key.len == 0 && m->start_after.len <= KEY_LEN_MAX && m->limit >= 1 &&
               m->limit <= LIST_LIMIT_MAX &&
               (m->buckets.len == 0 || m->buckets.len == DIGEST_BUCKETS / 8);
    }
    return false;
}

void message_encode(struct buf *out, const struct message *m)
{
    size_t start;

    assert(message_is_well_formed(m));
    start = frame_begin(out, request_magic);
    buf_u8(out, (uint8_t)m->kind);
    buf_u32(out, m->flags);
    buf_u64(out, m->ring);
    buf_u32(out, m->budget_ms);
    buf_u64(out, m->deadline_ms);
    buf_bytes16(out, m->key);
    switch (m->kind) {
    case MSG_PREPARE:
        add_ballot(out, m->ballot);
        buf_u64(out, m->length);
        break;
    case MSG_ACCEPT:
        if (m->flags & MSG_SAME_VALUE)
            add_ballot(out, m->pin);
        add_record(out, m->key, &m->record);
        break;
    case MSG_READ:
        add_ballot(out, m->pin);
        buf_u64(out, m->offset);
        buf_u64(out, m->length);
        break;
    case MSG_LIST:
        buf_bytes16(out, m->start_after);
        buf_u32(out, m->limit);
        break;
    case MSG_HELLO:
        buf_u32(out, m->node);
        buf_u64(out, m->incarnation);
        buf_u8(out, m->recovering);
        break;
    case MSG_DIGEST:
        buf_u32(out, m->node);
        buf_u32(out, m->group);
        buf_u64(out, m->digest);
        break;
    case MSG_KEYS:
        buf_u32(out, m->node);
        buf_bytes16(out, m->buckets);
        buf_bytes16(out, m->start_after);
        buf_u32(out, m->limit);
        break;
    case MSG_DROP:
        add_ballot(out, m->ballot);
        break;
    }
    frame_end(out, start);
}

static void get_message_fields(struct cursor *c, struct message *m)
{
    m->kind = (enum message_kind)cursor_u8(c);
    m->flags = cursor_u32(c);
    m->ring = cursor_u64(c);
    m->budget_ms = cursor_u32(c);
    m->deadline_ms = cursor_u64(c);
    m->key = cursor_bytes16(c);
    switch (m->kind) {
    case MSG_PREPARE:
        m->ballot = get_ballot(c);
        m->length = cursor_u64(c);
        break;
    case MSG_ACCEPT:
        if (m->flags & MSG_SAME_VALUE)
            m->pin = get_ballot(c);
        get_record(c, m->key, &m->record);
        break;
    case MSG_READ:
        m->pin = get_ballot(c);
        m->offset = cursor_u64(c);
        m->length = cursor_u64(c);
        break;
    case MSG_LIST:
        m->start_after = cursor_bytes16(c);
        m->limit = cursor_u32(c);
        break;
    case MSG_HELLO:
        m->node = cursor_u32(c);
        m->incarnation = cursor_u64(c);
        m->recovering = cursor_u8(c);
        break;
    case MSG_DIGEST:
        m->node = cursor_u32(c);
        m->group = cursor_u32(c);
        m->digest = cursor_u64(c);
        break;
    case MSG_KEYS:
        m->node = cursor_u32(c);
        m->buckets = cursor_bytes16(c);
        m->start_after = cursor_bytes16(c);
        m->limit = cursor_u32(c);
        break;
    case MSG_DROP:
        m->ballot = get_ballot(c);
        break;
    }
}

int message_decode(struct span bytes, struct message *out, size_t *head_len)
{
    struct message m = {0};
    struct cursor c;
    size_t len;
    int err;

    err = frame_open(bytes, request_magic, &c, &len);
    if (err == -EAGAIN)
        *head_len = len;
    if (err < 0)
        return err;
    get_message_fields(&c, &m);
    if (c.err != 0)
        return c.err;
    if (cursor_left(&c) != 0 || !message_is_well_formed(&m))
        return -EBADMSG;
    *out = m;
    *head_len = len;
    return 0;
}

/* --- answers ---------------------------------------------------------------------------------- */

static bool answer_is_well_formed(const struct answer *a)
{
    if (a->known.len != (size_t)KNOWN_LEN * a->n_known || a->kind < ANS_PROMISE ||
        a->kind > ANS_KEYS)
        return false;
    if (a->recovering > NODE_COFOUNDER || a->store.len > HELLO_TEXT_MAX ||
        a->ailment.len > HELLO_TEXT_MAX)
        return false;
    if (a->kind == ANS_DIGEST && (a->n_digests != (a->same ? 0 : DIGEST_GROUPS) ||
                                  a->digests.len != (size_t)DIGEST_LEN * a->n_digests))
        return false;
    if (a->kind == ANS_KEYS && (a->more != (a->next.len > 0) || a->next.len > KEY_LEN_MAX))
        return false;
    if (a->has_peek && a->kind != ANS_STATE)
        return false;
    if (a->has_value && a->kind != ANS_PROMISE && a->kind != ANS_STATE)
        return false;
    return a->has_value ? a->value_offset % CHUNK_SIZE == 0 && a->value_offset <= a->record.size
                        : a->value_offset == 0;
}

static void add_state(struct buf *out, struct span key, const struct answer *a)
{
    add_record(out, key, &a->record);
    buf_u8(out, a->has_value);
    buf_u64(out, a->value_offset);
    buf_u8(out, a->has_peek);
    if (a->has_peek)
        entry_encode(out, &a->peek);
}

static void get_state(struct cursor *c, struct span key, struct answer *a)
{
    get_record(c, key, &a->record);
    a->has_value = get_bool(c);
    a->value_offset = cursor_u64(c);
    a->has_peek = get_bool(c);
    if (c->err == 0 && a->has_peek && entry_next(c, &a->peek) != 1)
        c->err = -EBADMSG;
}

void answer_encode(struct buf *out, struct span key, const struct answer *a)
{
    size_t start;

    assert(answer_is_well_formed(a));
    start = frame_begin(out, answer_magic);
    buf_u8(out, (uint8_t)a->kind);
    buf_u64(out, a->clock_ms);
    buf_u64(out, a->incarnation);
    buf_u32(out, a->n_known);
    buf_add_span(out, a->known);
    switch (a->kind) {
    case ANS_PROMISE:
    case ANS_STATE:
        add_state(out, key, a);
        break;
    case ANS_REFUSE:
        add_ballot(out, a->ballot);
        break;
    case ANS_ACCEPTED:
    case ANS_NEED_VALUE:
        break;
    case ANS_LIST:
        buf_u8(out, a->more);
        buf_u32(out, a->n_entries);
        break;
    case ANS_HELLO:
        buf_u64(out, a->floor);
        buf_u64(out, a->disk_free);
        buf_u64(out, a->disk_total);
        buf_u64(out, a->n_keys);
        buf_u64(out, a->n_bytes);
        buf_u8(out, a->recovering);
        buf_bytes16(out, a->store);
        buf_bytes16(out, a->ailment);
        break;
    case ANS_ERROR:
        buf_u32(out, a->status);
        buf_bytes32(out, a->text);
        break;
    case ANS_DIGEST:
        buf_u8(out, a->same);
        buf_u32(out, a->n_digests);
        buf_add_span(out, a->digests);
        break;
    case ANS_KEYS:
        buf_u8(out, a->more);
        buf_bytes16(out, a->next);
        buf_u32(out, a->n_entries);
        break;
    }
    frame_end(out, start);
}

static void get_answer_fields(struct cursor *c, struct span key, struct answer *a)
{
    a->kind = (enum answer_kind)cursor_u8(c);
    a->clock_ms = cursor_u64(c);
    a->incarnation = cursor_u64(c);
    a->n_known = cursor_u32(c);
    a->known = cursor_bytes(c, (size_t)KNOWN_LEN * a->n_known);
    switch (a->kind) {
    case ANS_PROMISE:
    case ANS_STATE:
        get_state(c, key, a);
        break;
    case ANS_REFUSE:
        a->ballot = get_ballot(c);
        break;
    case ANS_ACCEPTED:
    case ANS_NEED_VALUE:
        break;
    case ANS_LIST:
        a->more = get_bool(c);
        a->n_entries = cursor_u32(c);
        break;
    case ANS_HELLO:
        a->floor = cursor_u64(c);
        a->disk_free = cursor_u64(c);
        a->disk_total = cursor_u64(c);
        a->n_keys = cursor_u64(c);
        a->n_bytes = cursor_u64(c);
        a->recovering = cursor_u8(c);
        a->store = cursor_bytes16(c);
        a->ailment = cursor_bytes16(c);
        break;
    case ANS_ERROR:
        a->status = cursor_u32(c);
        a->text = cursor_bytes32(c);
        break;
    case ANS_DIGEST:
        a->same = get_bool(c);
        a->n_digests = cursor_u32(c);
        a->digests = cursor_bytes(c, (size_t)DIGEST_LEN * a->n_digests);
        break;
    case ANS_KEYS:
        a->more = get_bool(c);
        a->next = cursor_bytes16(c);
        a->n_entries = cursor_u32(c);
        break;
    }
}

int answer_decode(struct span bytes, struct span key, struct answer *out, size_t *head_len)
{
    struct answer a = {0};
    struct cursor c;
    size_t len;
    int err;

    err = frame_open(bytes, answer_magic, &c, &len);
    if (err == -EAGAIN)
        *head_len = len;
    if (err < 0)
        return err;
    get_answer_fields(&c, key, &a);
    if (c.err != 0)
        return c.err;
    if (cursor_left(&c) != 0 || !answer_is_well_formed(&a))
        return -EBADMSG;
    *out = a;
    *head_len = len;
    return 0;
}

void answer_known(const struct answer *a, uint32_t i, uint32_t *node, uint64_t *incarnation)
{
    struct cursor c;

    assert(i < a->n_known && a->known.len == (size_t)KNOWN_LEN * a->n_known);
    c = cursor_of(span_of(a->known.data + (size_t)KNOWN_LEN * i, KNOWN_LEN));
    *node = cursor_u32(&c);
    *incarnation = cursor_u64(&c);
}

uint64_t answer_digest(const struct answer *a, uint32_t i)
{
    struct cursor c;

    assert(i < a->n_digests && a->digests.len == (size_t)DIGEST_LEN * a->n_digests);
    c = cursor_of(span_of(a->digests.data + (size_t)DIGEST_LEN * i, DIGEST_LEN));
    return cursor_u64(&c);
}

void answer_add_known(struct buf *known, uint32_t node, uint64_t incarnation)
{
    buf_u32(known, node);
    buf_u64(known, incarnation);
}

/* --- entries of a listing --------------------------------------------------------------------- */

static bool entry_is_well_formed(const struct entry *e)
{
    if (key_check(e->key) < 0 || e->prefix_len > e->key.len)
        return false;
    if (e->flags == ENTRY_DAMAGED)
        return ballot_is_none(e->version) && e->size == 0 && e->rdev == 0;
    if (ballot_is_none(e->version))
        return false;
    if (e->flags & ~(uint32_t)RECORD_TOMBSTONE || e->size > VALUE_SIZE_LIMIT)
        return false;
    return !(e->flags & RECORD_TOMBSTONE) || e->size == 0;
}

void entry_encode(struct buf *out, const struct entry *e)
{
    size_t start = out->len;

    assert(entry_is_well_formed(e));
    buf_bytes16(out, e->key);
    buf_u32(out, e->prefix_len);
    add_ballot(out, e->version);
    buf_u32(out, e->flags);
    buf_u64(out, e->size);
    buf_u32(out, e->mode);
    buf_u32(out, e->uid);
    buf_u32(out, e->gid);
    buf_u64(out, e->rdev);
    buf_u64(out, (uint64_t)e->mtime_ns);
    buf_u64(out, (uint64_t)e->ctime_ns);
    buf_u64(out, (uint64_t)e->atime_ns);
    if (out->err == 0)
        buf_u32(out, (uint32_t)hash_xxh3(span_of(out->data + start, out->len - start)));
}

int entry_next(struct cursor *c, struct entry *out)
{
    const uint8_t *start = c->pos;
    struct entry e = {0};
    size_t len;

    if (c->err == 0 && cursor_left(c) == 0)
        return 0;
    e.key = cursor_bytes16(c);
    e.prefix_len = cursor_u32(c);
    e.version = get_ballot(c);
    e.flags = cursor_u32(c);
    e.size = cursor_u64(c);
    e.mode = cursor_u32(c);
    e.uid = cursor_u32(c);
    e.gid = cursor_u32(c);
    e.rdev = cursor_u64(c);
    e.mtime_ns = (int64_t)cursor_u64(c);
    e.ctime_ns = (int64_t)cursor_u64(c);
    e.atime_ns = (int64_t)cursor_u64(c);
    len = (size_t)(c->pos - start);
    if (cursor_u32(c) != (uint32_t)hash_xxh3(span_of(start, len)) || !entry_is_well_formed(&e))
        c->err = -EBADMSG;
    if (c->err != 0)
        return -EBADMSG;
    *out = e;
    return 1;
}

void entry_of_record(struct entry *out, struct span key, const struct record *r)
{
    *out = (struct entry){
        .key = key,
        .version = r->version,
        .flags = r->flags,
        .size = r->size,
        .mode = r->mode,
        .uid = r->uid,
        .gid = r->gid,
        .rdev = r->rdev,
        .mtime_ns = r->mtime_ns,
        .ctime_ns = r->ctime_ns,
        .atime_ns = r->atime_ns,
    };
}

void entry_of_damage(struct entry *out, struct span key)
{
    *out = (struct entry){.key = key, .flags = ENTRY_DAMAGED};
}

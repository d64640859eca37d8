/* grammar.c - replica requests, answers and entries made of choices. */
#include "tests/fuzz/grammar.h"

#include <assert.h>
#include <string.h>

#define N_ELEMENTS(a) (sizeof(a) / sizeof((a)[0]))

enum key_rule { KEY_ONE, KEY_PREFIX, KEY_NONE };

/* What each kind of request has beside the fields that are filled for all. */
static const struct {
    enum message_kind kind;
    uint32_t flags;
    enum key_rule key;
} requests[] = {
    {MSG_READ, MSG_WANT_VALUE | MSG_PEEK, KEY_ONE},
    {MSG_PREPARE, MSG_WANT_VALUE, KEY_ONE},
    {MSG_ACCEPT, MSG_SAME_VALUE | MSG_RESTORE, KEY_ONE},
    {MSG_LIST, MSG_DELIMITER, KEY_PREFIX},
    {MSG_HELLO, 0, KEY_NONE},
    {MSG_DIGEST, 0, KEY_NONE},
    {MSG_KEYS, 0, KEY_NONE},
    {MSG_DROP, 0, KEY_ONE},
};

static const struct {
    enum answer_kind kind;
    bool has_record, has_peek, has_entries;
} answers[] = {
    {ANS_STATE, true, true, false},        {ANS_PROMISE, true, false, false},
    {ANS_ACCEPTED, false, false, false},   {ANS_REFUSE, false, false, false},
    {ANS_NEED_VALUE, false, false, false}, {ANS_LIST, false, false, true},
    {ANS_HELLO, false, false, false},      {ANS_ERROR, false, false, false},
    {ANS_DIGEST, false, false, false},     {ANS_KEYS, false, false, true},
};

struct span grammar_key(unsigned i)
{
    static const char *const keys[GRAMMAR_KEYS] = {"a",     "a/",    "a/b", "a/b/c",
                                                   "a/d/e", "a0/%2", "b",   "\xff/\n"};

    assert(i < GRAMMAR_KEYS);
    return span_str(keys[i]);
}

void made_fini(struct made *m)
{
    buf_fini(&m->attrs);
    buf_fini(&m->sums);
    buf_fini(&m->value);
    buf_fini(&m->known);
    buf_fini(&m->bytes);
}

static struct span pick_key(struct input *in)
{
    return grammar_key(input_pick(in, GRAMMAR_KEYS));
}

/* A position or a prefix: a key, the beginning of one, or any bytes. */
static struct span pick_position(struct input *in)
{
    static const char *const some[] = {"", "a/", "a", "a/b", "a/b/", "a0", "\xff"};
    unsigned i = input_pick(in, N_ELEMENTS(some) + 2);

    if (i < N_ELEMENTS(some))
        return span_str(some[i]);
    return i == N_ELEMENTS(some) ? pick_key(in) : input_bytes(in, input_u8(in));
}

static uint64_t pick_number(struct input *in)
{
    static const uint64_t some[] = {0,
                                    1,
                                    2,
                                    100,
                                    1000,
                                    CHUNK_SIZE - 1,
                                    CHUNK_SIZE,
                                    CHUNK_SIZE + 1,
                                    UINT64_C(1) << 40,
                                    INT64_MAX,
                                    UINT64_MAX};
    unsigned i = input_pick(in, N_ELEMENTS(some) + 1);

    return i < N_ELEMENTS(some) ? some[i] : input_u64(in);
}

struct ballot grammar_ballot(struct input *in)
{
    unsigned v = input_u8(in);

    if (v == 0xff)
        return (struct ballot){pick_number(in) | 1, pick_number(in)};
    return (struct ballot){1 + v / 4, 1 + v % 4};
}

static void pick_value(struct input *in, struct buf *out)
{
    static const size_t lens[] = {
        0, 1, 5, 200, INLINE_VALUE_MAX, INLINE_VALUE_MAX + 1, CHUNK_SIZE + 5};
    size_t len = lens[input_pick(in, N_ELEMENTS(lens))];
    uint8_t fill = input_u8(in);
    uint8_t *room;

    buf_clear(out);
    room = buf_reserve(out, len);
    CLAIM(len == 0 || room != NULL);
    if (len > 0)
        memset(room, fill, len);
    out->len = len;
}

void grammar_record(struct input *in, struct ballot version, struct made *made, struct record *out)
{
    struct record r = {.version = version};
    unsigned what = input_u8(in);

    buf_clear(&made->value);
    buf_clear(&made->attrs);
    buf_clear(&made->sums);
    *out = r;
    if (ballot_is_none(version))
        return;
    r.seq = input_u8(in);
    r.n_recent = (uint8_t)(input_u8(in) % (RECENT_MAX + 1));
    for (unsigned i = 0; i < r.n_recent; i++)
        r.recent[i] = r.seq + i;
    if (what & 1) {
        r.flags = RECORD_TOMBSTONE;
    } else {
        pick_value(in, &made->value);
        r.size = made->value.len;
        r.mode = what & 2 ? 0100644 : 0;
        r.mtime_ns = (int64_t)pick_number(in);
        if (what & 4)
            attr_add(&made->attrs, ATTR_CONTENT_TYPE, span_of(NULL, 0), span_str("text/plain"));
        if (what & 8)
            attr_add(&made->attrs, ATTR_XATTR, span_str("user.x"), input_bytes(in, input_u8(in)));
    }
    record_sums(&made->sums, buf_span(&made->value));
    r.attrs = buf_span(&made->attrs);
    r.sums = buf_span(&made->sums);
    *out = r;
}

/* A bitmap of all buckets, in a short pattern. */
static struct span pick_buckets(struct input *in, struct made *made)
{
    unsigned pattern = input_u8(in), every = 1 + input_pick(in, 8);

    buf_clear(&made->bytes);
    for (unsigned i = 0; i < DIGEST_BUCKETS / 8; i++)
        buf_u8(&made->bytes, i % every == 0 ? (uint8_t)pattern : 0);
    return buf_span(&made->bytes);
}

static struct span pick_key_of(struct input *in, enum key_rule rule)
{
    switch (rule) {
    case KEY_ONE:
        return pick_key(in);
    case KEY_PREFIX:
        return pick_position(in);
    default:
        return span_of(NULL, 0);
    }
}

void grammar_request(struct input *in, uint64_t ring, struct made *made, struct message *out)
{
    unsigned kind = input_pick(in, N_ELEMENTS(requests)), how = input_u8(in);
    struct message m = {.kind = requests[kind].kind, .ring = ring, .budget_ms = 1000};

    m.flags = input_u8(in) & requests[kind].flags;
    m.key = pick_key_of(in, requests[kind].key);
    m.ballot = grammar_ballot(in);
    if (how & 1)
        m.pin = grammar_ballot(in);
    m.offset = how & 2 ? pick_number(in) : 0;
    m.length = how & 4 ? pick_number(in) : UINT64_MAX;
    if (how & 8)
        m.ring = input_u64(in);
    if (how & 16)
        m.budget_ms = input_u8(in);
    if (how & 32)
        m.deadline_ms = input_u16(in);
    m.node = how & 64 ? (uint32_t)pick_number(in) : input_pick(in, 4);
    m.limit = 1 + (how & 64 ? input_u8(in) : 9);
    if (m.kind == MSG_HELLO) {
        m.incarnation = pick_number(in);
        m.recovering = how & 128 ? NODE_RECOVERING : how & 16 ? NODE_ANNOUNCING : NODE_WHOLE;
    }
    if (m.kind == MSG_LIST || m.kind == MSG_KEYS)
        m.start_after = pick_position(in);
    if (m.kind == MSG_DIGEST) {
        m.group = how & 128 ? input_pick(in, DIGEST_GROUPS) : MESSAGE_GROUP_NONE;
        m.digest = how & 64 ? input_u64(in) : 0;
    }
    if (m.kind == MSG_KEYS && (how & 128))
        m.buckets = pick_buckets(in, made);
    if (m.kind == MSG_ACCEPT)
        grammar_record(in, m.ballot, made, &m.record);
    if ((m.flags & MSG_SAME_VALUE) && ballot_is_none(m.pin))
        m.pin = grammar_ballot(in);
    *out = m;
}

static void pick_entry(struct input *in, struct entry *out)
{
    unsigned what = input_u8(in);
    struct entry e = {.key = what & 1 ? pick_position(in) : pick_key(in)};

    if (e.key.len == 0 || memchr(e.key.data, 0, e.key.len) != NULL)
        e.key = pick_key(in);
    if (what & 2)
        e.prefix_len = (uint32_t)(input_u8(in) % (e.key.len + 1));
    e.version = grammar_ballot(in);
    if (what & 4)
        e.flags = RECORD_TOMBSTONE;
    else if (what & 8)
        e.size = input_u16(in);
    if (what & 16)
        e.rdev = input_u64(in);
    if (what & 32)
        entry_of_damage(&e, e.key);
    *out = e;
}

unsigned grammar_entries(struct input *in, struct buf *out)
{
    unsigned n = input_pick(in, 16);
    struct entry e;

    for (unsigned i = 0; i < n; i++) {
        pick_entry(in, &e);
        entry_encode(out, &e);
    }
    return n;
}

void grammar_answer(struct input *in, enum answer_kind wanted, uint64_t clock_ms, struct made *made,
                    struct answer *out)
{
    unsigned kind = 0, how;
    struct answer a = {.clock_ms = clock_ms, .incarnation = 1};

    if (wanted == 0)
        kind = input_pick(in, N_ELEMENTS(answers));
    while (wanted != 0 && answers[kind].kind != wanted)
        kind++;
    how = input_u8(in);
    a.kind = answers[kind].kind;
    if (how & 1)
        a.clock_ms = pick_number(in);
    if (how & 2)
        a.incarnation = pick_number(in);
    buf_clear(&made->known);
    a.n_known = how & 4 ? input_pick(in, 4) : 0;
    for (unsigned i = 0; i < a.n_known; i++)
        answer_add_known(&made->known, input_u8(in), pick_number(in));
    a.known = buf_span(&made->known);
    a.ballot = grammar_ballot(in);
    buf_clear(&made->value);
    if (answers[kind].has_record) {
        struct ballot none = BALLOT_NONE;

        grammar_record(in, how & 8 ? none : grammar_ballot(in), made, &a.record);
        a.has_value = how & 16;
        if (a.has_value && a.record.size > CHUNK_SIZE && (how & 32))
            a.value_offset = CHUNK_SIZE;
    }
    a.has_peek = answers[kind].has_peek && (how & 64);
    if (a.has_peek)
        pick_entry(in, &a.peek);
    buf_clear(&made->bytes);
    if (answers[kind].has_entries)
        a.n_entries = grammar_entries(in, &made->bytes);
    if (how & 128) {
        a.more = answers[kind].has_entries;
        a.n_entries += input_u8(in) == 0xff;
        a.floor = a.disk_free = a.n_keys = a.n_bytes = pick_number(in);
        a.recovering = input_u8(in) % 3;
        a.store = span_str("made up");
        a.ailment = a.more ? span_str("it burns") : (struct span){0};
        if (a.kind == ANS_KEYS)
            a.next = pick_key(in);
    }
    a.same = how & 1;
    if (a.kind == ANS_DIGEST && !a.same) {
        a.n_digests = DIGEST_GROUPS;
        for (unsigned i = 0; i < DIGEST_GROUPS; i++)
            buf_u64(&made->bytes, i % 4 == 0 ? input_u8(in) : 0);
        buf_clear(&made->attrs);
        buf_add_span(&made->attrs, buf_span(&made->bytes));
        buf_clear(&made->bytes);
        a.digests = buf_span(&made->attrs);
    }
    a.status = 400 + input_u8(in);
    a.text = span_str("made up");
    *out = a;
}

/* --- edits ------------------------------------------------------------------------------------ */

static void put_le(struct buf *b, size_t at, uint64_t v, size_t n)
{
    for (size_t i = 0; i < n && at + i < b->len; i++)
        b->data[at + i] = (uint8_t)(v >> (8 * i));
}

static void insert(struct buf *b, size_t at, struct span s)
{
    struct buf longer = {0};

    buf_add(&longer, b->data, at);
    buf_add_span(&longer, s);
    buf_add(&longer, b->data + at, b->len - at);
    buf_fini(b);
    *b = longer;
}

void grammar_edit(struct input *in, struct buf *bytes)
{
    unsigned n = 1 + input_pick(in, 3);

    for (unsigned i = 0; i < n && bytes->len > 0; i++) {
        unsigned how = input_pick(in, 6);
        size_t at = input_u16(in) % bytes->len;

        switch (how) {
        case 0:
            put_le(bytes, at, input_u8(in), 1);
            break;
        case 1:
            bytes->data[at] ^= (uint8_t)(1u << input_pick(in, 8));
            break;
        case 2:
            put_le(bytes, at, pick_number(in), 4);
            break;
        case 3:
            put_le(bytes, at, pick_number(in), 8);
            break;
        case 4:
            bytes->len = at;
            break;
        default:
            insert(bytes, at, input_bytes(in, input_pick(in, 16)));
        }
    }
}

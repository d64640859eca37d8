/* json.c - a writer of compact JSON: jansson writes strings and numbers, this the rest. */
#include "common/json.h"

#include <assert.h>
#include <errno.h>
#include <jansson.h>
#include <stdio.h>

#include "common/base64.h"

#define DEPTH_MAX 64u /* bits of json.started */
#define NAME_LEN_MAX 64u

/* --- UTF-8 ------------------------------------------------------------------------------------ */

static bool is_continuation(uint8_t c)
{
    return (c & 0xc0) == 0x80;
}

/*
 * Length of the character at the start of s, 0 where it is none: RFC 3629, so no overlong forms,
 * surrogates or more than U+10FFFF.
 */
static size_t utf8_char_len(struct span s)
{
    const uint8_t *p = s.data;

    if (p[0] < 0x80)
        return 1;
    if (p[0] < 0xc2) /* a continuation alone, or C0 and C1, which are overlong */
        return 0;
    if (p[0] < 0xe0)
        return s.len >= 2 && is_continuation(p[1]) ? 2 : 0;
    if (p[0] < 0xf0) {
        if (s.len < 3 || !is_continuation(p[1]) || !is_continuation(p[2]))
            return 0;
        return (p[0] == 0xe0 && p[1] < 0xa0) || (p[0] == 0xed && p[1] > 0x9f) ? 0 : 3;
    }
    if (p[0] > 0xf4 || s.len < 4 || !is_continuation(p[1]) || !is_continuation(p[2]) ||
        !is_continuation(p[3]))
        return 0;
    return (p[0] == 0xf0 && p[1] < 0x90) || (p[0] == 0xf4 && p[1] > 0x8f) ? 0 : 4;
}

bool json_is_utf8(struct span s)
{
    while (s.len > 0) {
        size_t n = utf8_char_len(s);

        if (n == 0)
            return false;
        s = span_of(s.data + n, s.len - n);
    }
    return true;
}

/* --- scalars ---------------------------------------------------------------------------------- */

/* Appends what jansson makes of value, which is taken; NULL: there was no memory for it. */
static void add_taken(struct buf *out, json_t *value)
{
    const size_t flags = JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(6);
    size_t len = value != NULL ? json_dumpb(value, NULL, 0, flags) : 0;
    uint8_t *room;

    if (len == 0) { /* no JSON is empty */
        if (out->err == 0)
            out->err = -ENOMEM;
    } else {
        room = buf_reserve(out, len);
        if (room != NULL)
            out->len += json_dumpb(value, (char *)room, len, flags);
    }
    json_decref(value);
}

static void add_string(struct buf *out, struct span s)
{
    assert(json_is_utf8(s));
    add_taken(out, json_stringn(s.len > 0 ? (const char *)s.data : "", s.len));
}

/* --- structure -------------------------------------------------------------------------------- */

/* A value or a name comes next: is it the first at its depth? */
static void separate(struct json *j)
{
    uint64_t here = 1ull << j->depth;

    if (j->after_key)
        j->after_key = false;
    else if (j->started & here)
        buf_u8(j->out, ',');
    j->started |= here;
}

void json_begin(struct json *j, char bracket)
{
    assert(bracket == '{' || bracket == '[');
    separate(j);
    buf_u8(j->out, (uint8_t)bracket);
    j->depth++;
    assert(j->depth < DEPTH_MAX);
    j->started &= ~(1ull << j->depth);
}

void json_end(struct json *j, char bracket)
{
    assert((bracket == '}' || bracket == ']') && j->depth > 0 && !j->after_key);
    buf_u8(j->out, (uint8_t)bracket);
    j->depth--;
}

void json_key(struct json *j, const char *name)
{
    assert(j->depth > 0 && !j->after_key);
    separate(j);
    add_string(j->out, span_str(name));
    buf_u8(j->out, ':');
    j->after_key = true;
}

void json_str(struct json *j, struct span s)
{
    separate(j);
    add_string(j->out, s);
}

void json_u64(struct json *j, uint64_t v)
{
    separate(j);
    buf_addf(j->out, "%llu", (unsigned long long)v);
}

void json_i64(struct json *j, int64_t v)
{
    separate(j);
    buf_addf(j->out, "%lld", (long long)v);
}

void json_double(struct json *j, double v)
{
    separate(j);
    if (v - v == 0)
        add_taken(j->out, json_real(v));
    else /* JSON has no infinity and no NaN */
        buf_add_str(j->out, "null");
}

void json_bool(struct json *j, bool v)
{
    separate(j);
    buf_add_str(j->out, v ? "true" : "false");
}

void json_none(struct json *j)
{
    separate(j);
    buf_add_str(j->out, "null");
}

void json_field_key(struct json *j, const char *name, struct span key)
{
    char base64_name[NAME_LEN_MAX];
    int len;

    if (json_is_utf8(key)) {
        json_key(j, name);
        json_str(j, key);
        return;
    }
    len = snprintf(base64_name, sizeof(base64_name), "%s_base64", name);
    assert(len > 0 && (size_t)len < sizeof(base64_name));
    json_key(j, base64_name);
    separate(j);
    buf_u8(j->out, '"');
    base64_encode(j->out, key);
    buf_u8(j->out, '"');
}

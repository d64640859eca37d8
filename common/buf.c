/* buf.c - growing buffers, the cursor that reads them back, and reference-counted memory. */
#include "common/buf.h"

#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BUF_CAP_MIN 64u

/* --- span ---------------------------------------------------------------------------------- */

struct span span_str(const char *s)
{
    return span_of(s, strlen(s));
}

/* memcmp and memcpy must not see NULL, not even for 0 bytes, and an empty span may hold it. */
static int bytes_cmp(const uint8_t *a, const uint8_t *b, size_t n)
{
    return n == 0 ? 0 : memcmp(a, b, n);
}

bool span_eq(struct span a, struct span b)
{
    return a.len == b.len && bytes_cmp(a.data, b.data, a.len) == 0;
}

int span_cmp(struct span a, struct span b)
{
    int order = bytes_cmp(a.data, b.data, a.len < b.len ? a.len : b.len);

    if (order != 0)
        return order;
    return a.len < b.len ? -1 : a.len > b.len;
}

bool span_has_prefix(struct span s, struct span prefix)
{
    return s.len >= prefix.len && bytes_cmp(s.data, prefix.data, prefix.len) == 0;
}

/* --- buf ----------------------------------------------------------------------------------- */

void buf_fini(struct buf *b)
{
    free(b->data);
    *b = (struct buf){0};
}

void buf_clear(struct buf *b)
{
    b->len = 0;
    b->err = 0;
}

/*
 * Doubles, so that n appends cost O(n) copies in all; falls back to what is needed where doubling
 * overflows.
 */
static int buf_grow(struct buf *b, size_t n)
{
    size_t cap = b->cap > SIZE_MAX / 2 ? SIZE_MAX : b->cap * 2;
    uint8_t *data;

    if (n > SIZE_MAX - b->len)
        return -ENOMEM;
    if (cap < b->len + n)
        cap = b->len + n;
    if (cap < BUF_CAP_MIN)
        cap = BUF_CAP_MIN;
    data = realloc(b->data, cap);
    if (data == NULL)
        return -ENOMEM;
    b->data = data;
    b->cap = cap;
    return 0;
}

uint8_t *buf_reserve(struct buf *b, size_t n)
{
    if (b->err != 0)
        return NULL;
    if (b->data == NULL || n > b->cap - b->len)
        b->err = buf_grow(b, n);
    return b->err == 0 ? b->data + b->len : NULL;
}

void buf_add(struct buf *b, const void *data, size_t n)
{
    uint8_t *to;

    if (n == 0)
        return;
    to = buf_reserve(b, n);
    if (to == NULL)
        return;
    memcpy(to, data, n);
    b->len += n;
}

void buf_add_span(struct buf *b, struct span s)
{
    buf_add(b, s.data, s.len);
}

void buf_add_str(struct buf *b, const char *s)
{
    buf_add(b, s, strlen(s));
}

void buf_addf(struct buf *b, const char *fmt, ...)
{
    va_list ap;
    uint8_t *to;
    int n;

    va_start(ap, fmt);
    n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    assert(n >= 0); /* only a wrong format fails */

    to = buf_reserve(b, (size_t)n + 1); /* vsnprintf ends in a NUL, which is not counted */
    if (to == NULL)
        return;
    va_start(ap, fmt);
    (void)vsnprintf((char *)to, (size_t)n + 1, fmt, ap);
    va_end(ap);
    b->len += (size_t)n;
}

static void buf_add_le(struct buf *b, uint64_t v, size_t n)
{
    uint8_t *to = buf_reserve(b, n);

    if (to == NULL)
        return;
    for (size_t i = 0; i < n; i++)
        to[i] = (uint8_t)(v >> (8 * i));
    b->len += n;
}

void buf_u8(struct buf *b, uint8_t v)
{
    buf_add_le(b, v, 1);
}

void buf_u16(struct buf *b, uint16_t v)
{
    buf_add_le(b, v, 2);
}

void buf_u32(struct buf *b, uint32_t v)
{
    buf_add_le(b, v, 4);
}

void buf_u64(struct buf *b, uint64_t v)
{
    buf_add_le(b, v, 8);
}

void buf_bytes16(struct buf *b, struct span s)
{
    assert(s.len <= UINT16_MAX);
    buf_u16(b, (uint16_t)s.len);
    buf_add_span(b, s);
}

void buf_bytes32(struct buf *b, struct span s)
{
    assert(s.len <= UINT32_MAX);
    buf_u32(b, (uint32_t)s.len);
    buf_add_span(b, s);
}

/* --- cursor -------------------------------------------------------------------------------- */

/*
 * n bytes, or NULL with err set. A failed cursor stands at its end, so that loops over what is left
 * end too.
 */
static const uint8_t *cursor_take(struct cursor *c, size_t n)
{
    const uint8_t *p = c->pos;

    if (c->err != 0 || cursor_left(c) < n) {
        c->err = -EBADMSG;
        c->pos = c->end;
        return NULL;
    }
    c->pos += n;
    return p;
}

static uint64_t cursor_le(struct cursor *c, size_t n)
{
    const uint8_t *p = cursor_take(c, n);
    uint64_t v = 0;

    if (p == NULL)
        return 0;
    for (size_t i = 0; i < n; i++)
        v |= (uint64_t)p[i] << (8 * i);
    return v;
}

uint8_t cursor_u8(struct cursor *c)
{
    return (uint8_t)cursor_le(c, 1);
}

uint16_t cursor_u16(struct cursor *c)
{
    return (uint16_t)cursor_le(c, 2);
}

uint32_t cursor_u32(struct cursor *c)
{
    return (uint32_t)cursor_le(c, 4);
}

uint64_t cursor_u64(struct cursor *c)
{
    return cursor_le(c, 8);
}

struct span cursor_bytes(struct cursor *c, size_t n)
{
    const uint8_t *p;

    if (n == 0)
        return (struct span){NULL, 0};
    p = cursor_take(c, n);
    return span_of(p, p == NULL ? 0 : n);
}

struct span cursor_bytes16(struct cursor *c)
{
    return cursor_bytes(c, cursor_u16(c));
}

struct span cursor_bytes32(struct cursor *c)
{
    return cursor_bytes(c, cursor_u32(c));
}

/* --- blob and value ------------------------------------------------------------------------ */

struct blob *blob_new(size_t len)
{
    struct blob *b;

    if (len > SIZE_MAX - sizeof(*b))
        return NULL;
    b = malloc(sizeof(*b) + len);
    if (b == NULL)
        return NULL;
    atomic_init(&b->refs, 1);
    b->len = len;
    b->data = b->room;
    b->release = NULL;
    b->mapped = false;
    return b;
}

struct blob *blob_borrow(void *data, size_t len, void (*release)(void *arg, void *data, size_t len),
                         void *arg)
{
    struct blob *b = blob_new(0);

    if (b != NULL) {
        b->data = data;
        b->len = len;
        b->release = release;
        b->arg = arg;
    }
    return b;
}

struct blob *blob_ref(struct blob *b)
{
    unsigned before = atomic_fetch_add_explicit(&b->refs, 1, memory_order_relaxed);

    assert(before > 0); /* 0: freed already */
    return b;
}

void blob_unref(struct blob *b)
{
    unsigned before;

    if (b == NULL)
        return;
    /* Release: our last use comes before the free. Acquire: who frees sees everybody's last use. */
    before = atomic_fetch_sub_explicit(&b->refs, 1, memory_order_acq_rel);
    assert(before > 0);
    if (before > 1)
        return;
    if (b->release != NULL)
        b->release(b->arg, b->data, b->len);
    free(b);
}

int value_copy(struct span s, struct value *out)
{
    struct blob *b;

    if (s.len == 0) {
        *out = (struct value){0};
        return 0;
    }
    b = blob_new(s.len);
    if (b == NULL)
        return -ENOMEM;
    memcpy(b->data, s.data, s.len);
    *out = (struct value){b, b->data, s.len};
    return 0;
}

struct value value_ref(struct value v)
{
    assert(v.blob != NULL || v.len == 0); /* bytes that nothing owns cannot be kept */
    if (v.blob != NULL)
        blob_ref(v.blob);
    return v;
}

struct value value_slice(struct value v, size_t off, size_t len)
{
    assert(off <= v.len && len <= v.len - off);
    if (len == 0)
        return (struct value){0}; /* do not keep a large blob alive for nothing */
    v.data += off;
    v.len = len;
    return value_ref(v);
}

void value_fini(struct value *v)
{
    blob_unref(v->blob);
    *v = (struct value){0};
}

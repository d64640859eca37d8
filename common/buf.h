/*
 * buf.h - bytes: borrowed (span), growing (buf), shared (value), and read back by a cursor that
 * cannot overrun. All integers are little-endian on the wire and on disk.
 */
#ifndef KVFS_COMMON_BUF_H
#define KVFS_COMMON_BUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* Borrowed bytes. The owner is named wherever one is passed. */
struct span {
    const uint8_t *data;
    size_t len;
};

static inline struct span span_of(const void *data, size_t len)
{
    return (struct span){(const uint8_t *)data, len};
}

/* The bytes of a C string, without its NUL. Borrowed from s. */
struct span span_str(const char *s);
bool span_eq(struct span a, struct span b);
/* Byte order (memcmp, then length): <0, 0, >0. Bytes are unsigned. */
int span_cmp(struct span a, struct span b);
bool span_has_prefix(struct span s, struct span prefix);

/*
 * A growing buffer. {0} is an empty one. Appending never fails visibly: when memory runs out the
 * buffer remembers -ENOMEM in err, and appends become no-ops; callers check err once at the end.
 */
struct buf {
    uint8_t *data;
    size_t len, cap;
    int err;
};

void buf_fini(struct buf *b);  /* frees, leaves {0} */
void buf_clear(struct buf *b); /* len = 0, err = 0, keeps the memory */
/*
 * Makes room for n more bytes and returns where they start, NULL (err set) when there is none; len
 * is unchanged.
 */
uint8_t *buf_reserve(struct buf *b, size_t n);
void buf_add(struct buf *b, const void *data, size_t n);
void buf_add_span(struct buf *b, struct span s);
void buf_add_str(struct buf *b, const char *s);
void buf_addf(struct buf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void buf_u8(struct buf *b, uint8_t v);
void buf_u16(struct buf *b, uint16_t v);
void buf_u32(struct buf *b, uint32_t v);
void buf_u64(struct buf *b, uint64_t v);
/* u16 length and bytes / u32 length and bytes; asserts that the length fits. */
void buf_bytes16(struct buf *b, struct span s);
void buf_bytes32(struct buf *b, struct span s);
static inline struct span buf_span(const struct buf *b)
{
    return (struct span){b->data, b->len};
}

/*
 * Reads back what buf wrote. After the first overrun err is -EBADMSG, every read gives 0 or an
 * empty span.
 */
struct cursor {
    const uint8_t *pos, *end;
    int err;
};

static inline struct cursor cursor_of(struct span s)
{
    const uint8_t *end = s.len > 0 ? s.data + s.len : s.data; /* NULL + 0 is undefined */

    return (struct cursor){s.data, end, 0};
}
uint8_t cursor_u8(struct cursor *c);
uint16_t cursor_u16(struct cursor *c);
uint32_t cursor_u32(struct cursor *c);
uint64_t cursor_u64(struct cursor *c);
/* n bytes, borrowed from what the cursor reads. */
struct span cursor_bytes(struct cursor *c, size_t n);
struct span cursor_bytes16(struct cursor *c);
struct span cursor_bytes32(struct cursor *c);
static inline size_t cursor_left(const struct cursor *c)
{
    return (size_t)(c->end - c->pos);
}

/*
 * Shared, immutable-once-shared memory with a reference count (atomic: any thread). The bytes are
 * the blob's own, or borrowed: a mapped file.
 */
struct blob {
    _Atomic unsigned refs;
    size_t len;
    uint8_t *data;
    void (*release)(void *arg, void *data, size_t len); /* of borrowed ones; NULL: own, in room */
    void *arg;
    bool mapped; /* data begins a shared mapping of a file: see spool_pass() */
    uint8_t room[];
};

/* A new blob of len uninitialised bytes with one reference, NULL without memory. */
struct blob *blob_new(size_t len);
/*
 * A blob of bytes that are elsewhere, with one reference: release() gets them back, from whichever
 * thread lets the last one go; it must not block. NULL without memory: they stay the caller's.
 */
struct blob *blob_borrow(void *data, size_t len, void (*release)(void *arg, void *data, size_t len),
                         void *arg);
struct blob *blob_ref(struct blob *b);
void blob_unref(struct blob *b); /* accepts NULL */

/*
 * Bytes of a value: a window into a blob. Copying the struct borrows; value_ref() makes a copy that
 * owns a reference, value_fini() gives it back. {0} is the empty value and owns nothing.
 */
struct value {
    struct blob *blob;
    const uint8_t *data;
    size_t len;
};

/* Copies bytes into a new blob; 0 or -ENOMEM. The caller owns *out. */
int value_copy(struct span s, struct value *out);
struct value value_ref(struct value v);
/* A part of v that owns a reference of its own; asserts off + len <= v.len. */
struct value value_slice(struct value v, size_t off, size_t len);
void value_fini(struct value *v);
static inline struct span value_span(struct value v)
{
    return (struct span){v.data, v.len};
}

#endif

/* content.c - bytes of one open file. */
#include "fs/content.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "common/limits.h"

#define CONTENT_CAP_MIN 4096u
#define SMALL_MAX (64u << 10) /* not worth a descriptor, whatever all together take */

/* --- memory ----------------------------------------------------------------------------------- */

static void charge(struct content *c, size_t n)
{
    if (c->pool != NULL) {
        atomic_fetch_add(&c->pool->used, n);
        atomic_fetch_sub(&c->pool->used, c->charged);
    }
    c->charged = n;
}

static void drop(struct content *c)
{
    value_fini(&c->v);
    spill_free(c->spill);
    c->spill = NULL;
    c->front = 0;
    charge(c, 0);
}

void content_set(struct content *c, struct value v)
{
    drop(c);
    c->v = v;
    c->size = v.len;
    if (v.blob != NULL && v.blob->release == NULL)
        charge(c, v.len);
}

void content_fini(struct content *c)
{
    drop(c);
    c->size = 0;
}

void content_move(struct content *to, struct content *from)
{
    struct content_pool *pool = to->pool;
    size_t charged = from->charged;

    drop(to);
    charge(from, 0);
    *to = *from;
    to->pool = pool;
    charge(to, charged);
    *from = (struct content){.pool = from->pool};
}

/* Makes the first `size` bytes ours alone to change: nobody else holds the blob, and it has the
 * room. */
static int own(struct content *c, size_t size)
{
    struct blob *b = c->v.blob;
    struct blob *fresh;
    size_t cap = size;

    if (b != NULL && b->release == NULL && atomic_load(&b->refs) == 1 &&
        (size_t)(c->v.data - b->data) + size <= b->len)
        return 0;
    /* Half as much again, so that a file written piece by piece is copied a few times only. */
    if (size > c->v.len && c->v.len > 0)
        cap += size / 2;
    if (cap < CONTENT_CAP_MIN)
        cap = CONTENT_CAP_MIN;
    fresh = blob_new(cap);
    if (fresh == NULL)
        return -ENOMEM;
    if (c->v.len > 0)
        memcpy(fresh->data, c->v.data, c->v.len < size ? c->v.len : size);
    blob_unref(b);
    c->v.blob = fresh;
    c->v.data = fresh->data;
    charge(c, cap);
    return 0;
}

/* The bytes from off on, which are ours to change. */
static uint8_t *bytes_at(struct content *c, size_t off)
{
    return c->v.blob->data + (c->v.data - c->v.blob->data) + off;
}

/* --- or a temporary file ---------------------------------------------------------------------- */

/* Is a content of so many bytes too large for memory, or one too many? */
static bool must_spill(const struct content *c, uint64_t size)
{
    const struct content_pool *p = c->pool;

    if (p == NULL || p->each_max == 0)
        return false;
    if (size > p->each_max)
        return true;
    return size > SMALL_MAX && size > c->charged &&
           atomic_load(&p->used) - c->charged + size > p->total_max;
}

static int to_spill(struct content *c)
{
    struct spill *s;
    int err = spill_new(&s);

    if (err < 0)
        return err;
    err = spill_write(s, 0, value_span(c->v));
    if (err < 0) {
        spill_free(s);
        return err;
    }
    drop(c);
    c->spill = s;
    return 0;
}

/* From `from` on it may be changed, and have `size` bytes at most. */
static int make_ready(struct content *c, uint64_t from, uint64_t size)
{
    struct spill *copy;
    int err;

    if (c->spill == NULL && must_spill(c, size)) {
        err = to_spill(c);
        /* Where descriptors are short, it is better to take the memory than to fail. */
        if (err < 0 && !((err == -EMFILE || err == -ENFILE) && size <= c->pool->each_max))
            return err;
    }
    if (c->spill == NULL)
        return own(c, (size_t)size);
    if (c->front + from >= spill_lent(c->spill))
        return 0;
    err = spill_copy(c->spill, &copy);
    if (err < 0)
        return err;
    spill_free(c->spill);
    c->spill = copy;
    return 0;
}

/* --- changing --------------------------------------------------------------------------------- */

int content_truncate(struct content *c, uint64_t size)
{
    int err;

    if (size == 0) {
        content_fini(c);
        return 0;
    }
    if (c->spill == NULL && size <= c->size) { /* what is shared stays with the others */
        c->v.len = size;
        c->size = size;
        return 0;
    }
    err = make_ready(c, size < c->size ? size : c->size, size);
    if (err == 0 && c->spill != NULL)
        err = spill_truncate(c->spill, c->front + size);
    else if (err == 0)
        memset(bytes_at(c, c->v.len), 0, size - c->v.len);
    if (err < 0)
        return err;
    if (c->spill == NULL)
        c->v.len = size;
    c->size = size;
    return 0;
}

int content_write(struct content *c, uint64_t off, struct span data)
{
    uint64_t end = off + data.len;
    int err;

    if (data.len == 0)
        return 0;
    err = make_ready(c, off < c->size ? off : c->size, end > c->size ? end : c->size);
    if (err == 0 && c->spill != NULL)
        err = spill_write(c->spill, c->front + off, data);
    if (err < 0)
        return err;
    if (c->spill == NULL) {
        if (off > c->v.len)
            memset(bytes_at(c, c->v.len), 0, off - c->v.len);
        memcpy(bytes_at(c, off), data.data, data.len);
        if (end > c->v.len)
            c->v.len = end;
    }
    if (end > c->size)
        c->size = end;
    return 0;
}

int content_punch(struct content *c, uint64_t off, uint64_t len)
{
    int err;

    if (off >= c->size || len == 0)
        return 0;
    if (len > c->size - off)
        len = c->size - off;
    err = make_ready(c, off, c->size);
    if (err == 0 && c->spill != NULL)
        err = spill_punch(c->spill, c->front + off, len);
    else if (err == 0)
        memset(bytes_at(c, off), 0, len);
    return err;
}

int content_append(struct content *c, const struct content *tail)
{
    uint64_t before = c->size;
    int err = 0;

    for (uint64_t off = 0; err == 0 && off < tail->size; off += CHUNK_SIZE) {
        size_t n = tail->size - off < CHUNK_SIZE ? (size_t)(tail->size - off) : CHUNK_SIZE;
        struct value part;

        err = content_read(tail, off, n, &part);
        if (err == 0) {
            err = content_write(c, c->size, value_span(part));
            value_fini(&part);
        }
    }
    if (err < 0 && c->size > before)
        (void)content_truncate(c, before); /* cutting what nobody was lent yet */
    return err;
}

void content_drop_front(struct content *c, uint64_t n)
{
    assert(n <= c->size);
    if (n == c->size) {
        content_fini(c);
        return;
    }
    c->size -= n;
    if (c->spill == NULL) {
        c->v.data += n;
        c->v.len -= n;
        return;
    }
    c->front += n;
    if (spill_lent(c->spill) == 0)
        (void)spill_punch(c->spill, 0, c->front); /* only to give the room back */
}

/* --- looking ---------------------------------------------------------------------------------- */

int content_read(const struct content *c, uint64_t off, size_t len, struct value *out)
{
    struct blob *b;
    int err;

    assert(off <= c->size && len <= c->size - off);
    if (c->spill == NULL || len == 0) {
        *out = c->spill == NULL ? value_slice(c->v, off, len) : (struct value){0};
        return 0;
    }
    b = blob_new(len);
    err = b == NULL ? -ENOMEM : spill_read(c->spill, c->front + off, len, b->data);
    if (err < 0)
        blob_unref(b);
    else
        *out = (struct value){.blob = b, .data = b->data, .len = len};
    return err;
}

int content_lend(struct content *c, struct value *out)
{
    struct value all;
    int err;

    if (c->spill == NULL) {
        *out = value_ref(c->v);
        return 0;
    }
    err = spill_lend(c->spill, &all);
    if (err == 0) {
        *out = value_slice(all, c->front, c->size);
        value_fini(&all);
    }
    return err;
}

uint64_t content_lent(const struct content *c)
{
    uint64_t end = c->spill != NULL ? spill_lent(c->spill) : 0;

    return end > c->front ? end - c->front : 0;
}

struct loans *content_loans(const struct content *c)
{
    return spill_loans(c->spill);
}

int content_seek(const struct content *c, uint64_t off, bool hole, uint64_t *out)
{
    uint64_t at;
    int err;

    if (off >= c->size)
        return -ENXIO;
    if (c->spill == NULL) {
        *out = hole ? c->size : off;
        return 0;
    }
    err = spill_seek(c->spill, c->front + off, hole, &at);
    if (err == 0)
        *out = at - c->front;
    return err;
}

/* content.c - the bytes of one open file. */
#include "fs/content.h"

#include <errno.h>
#include <stdatomic.h>
#include <string.h>

#define CONTENT_CAP_MIN 4096u

void content_set(struct content *c, struct value v)
{
    value_fini(&c->v);
    c->v = v;
}

void content_fini(struct content *c)
{
    value_fini(&c->v);
}

/* Makes the first `size` bytes ours alone to change: nobody else holds the blob, and it has the
 * room. */
static int own(struct content *c, size_t size)
{
    struct blob *b = c->v.blob;
    struct blob *fresh;
    size_t cap = size;

    if (b != NULL && atomic_load(&b->refs) == 1 && (size_t)(c->v.data - b->data) + size <= b->len)
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
    return 0;
}

int content_truncate(struct content *c, size_t size)
{
    int err;

    if (size > c->v.len) {
        err = own(c, size);
        if (err < 0)
            return err;
        memset(c->v.blob->data + (c->v.data - c->v.blob->data) + c->v.len, 0, size - c->v.len);
    }
    c->v.len = size;
    return 0;
}

int content_write(struct content *c, size_t off, struct span data)
{
    size_t end = off + data.len;
    int err;

    if (data.len == 0)
        return 0;
    err = own(c, end > c->v.len ? end : c->v.len);
    if (err < 0)
        return err;
    if (off > c->v.len) {
        err = content_truncate(c, off);
        if (err < 0)
            return err;
    }
    memcpy(c->v.blob->data + (c->v.data - c->v.blob->data) + off, data.data, data.len);
    if (end > c->v.len)
        c->v.len = end;
    return 0;
}

/* body.c - a request's body, gathered in memory within a budget. */
#include "node/body.h"

#include <errno.h>
#include <string.h>

#define FIRST_CAP (64u << 10) /* for a body of unknown length; doubled as it grows */

static int resize(struct body *b, uint64_t cap)
{
    struct blob *blob;

    if (!budget_take(b->budget, cap))
        return -EAGAIN;
    blob = blob_new((size_t)cap);
    if (blob == NULL) {
        budget_give(b->budget, cap);
        return -ENOMEM;
    }
    if (b->blob != NULL) {
        memcpy(blob->data, b->blob->data, b->len);
        blob_unref(b->blob);
        budget_give(b->budget, b->taken);
    }
    b->blob = blob;
    b->taken = cap;
    return 0;
}

int body_begin(struct body *b, struct budget *budget, uint64_t total, uint64_t max)
{
    *b = (struct body){.budget = budget, .max = max};
    if (total == UINT64_MAX || total == 0)
        return 0;
    return total > max ? -EFBIG : resize(b, total);
}

int body_add(struct body *b, struct span part)
{
    uint64_t cap = b->blob == NULL ? 0 : b->blob->len;
    int err = 0;

    if (part.len > b->max - b->len)
        return -EFBIG;
    if (part.len > cap - b->len) {
        uint64_t want = cap < FIRST_CAP ? FIRST_CAP : cap * 2;

        if (want > b->max)
            want = b->max;
        if (want < b->len + part.len)
            want = b->len + part.len;
        err = resize(b, want);
    }
    if (err == 0 && part.len > 0) {
        memcpy(b->blob->data + b->len, part.data, part.len);
        b->len += part.len;
    }
    return err;
}

struct value body_value(const struct body *b)
{
    if (b->len == 0)
        return (struct value){0};
    return (struct value){blob_ref(b->blob), b->blob->data, b->len};
}

void body_fini(struct body *b)
{
    blob_unref(b->blob);
    if (b->taken > 0)
        budget_give(b->budget, b->taken);
    *b = (struct body){0};
}

/* body.c - a request's body, gathered within bounds. */
#include "node/body.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/limits.h"
#include "common/spool.h"

#define FIRST_CAP (64u << 10) /* for a body of unknown length; doubled as it grows */

/* Bytes, and what they take of the room. */
struct lot {
    struct blob *blob;
    struct budget *budget;
    uint64_t taken;
};

/* --- the room --------------------------------------------------------------------------------- */

/* That it takes so much, and no longer what it did. 0 or -EAGAIN. */
static int lot_take(struct lot *l, struct budget *budget, uint64_t len)
{
    uint64_t had = l->budget == budget ? l->taken : 0;

    if (len > had && !budget_take(budget, len - had))
        return -EAGAIN;
    if (len < had)
        budget_give(budget, had - len);
    if (had == 0 && l->taken > 0)
        budget_give(l->budget, l->taken);
    l->budget = budget;
    l->taken = len;
    return 0;
}

static struct budget *budget_for(struct body_room *room, uint64_t len)
{
    return len > MEMORY_BLOB_MAX ? &room->disk : &room->memory;
}

static void give_back(void *arg, void *data, size_t len)
{
    struct lot *l = arg;

    (void)data, (void)len;
    blob_unref(l->blob);
    if (l->taken > 0)
        budget_give(l->budget, l->taken);
    free(l);
}

/* What lends the bytes of a lot that has none yet, and ends it. NULL without memory. */
static struct blob *lot_new(struct lot **out)
{
    struct lot *l = calloc(1, sizeof(*l));
    struct blob *b = l == NULL ? NULL : blob_borrow(NULL, 0, give_back, l);

    if (b == NULL)
        free(l);
    else
        *out = l;
    return b;
}

int body_room_hold(struct body_room *room, struct value v, struct value *held)
{
    struct lot *l;
    struct blob *b;
    int err;

    if (held->len == v.len && held->data == v.data)
        return 0; /* a reference is held: no other bytes can have come to stand there */
    value_fini(held);
    b = lot_new(&l);
    err = b == NULL ? -ENOMEM : lot_take(l, budget_for(room, v.len), v.len);
    if (err < 0) {
        blob_unref(b);
        return err;
    }
    l->blob = blob_ref(v.blob);
    b->data = v.blob->data;
    b->len = v.blob->len;
    b->mapped = v.blob->mapped;
    *held = (struct value){b, v.data, v.len};
    return 0;
}

/* --- the body --------------------------------------------------------------------------------- */

/* A disk without room is no reason to refuse what memory has room for. */
static int reserve_in_memory(struct body *b, uint64_t cap)
{
    struct lot *l = b->lot;
    struct blob *blob;

    if (!budget_take(&b->room->memory, cap)) /* beside what it has: that is copied */
        return -EAGAIN;
    blob = blob_new((size_t)cap);
    if (blob == NULL) {
        budget_give(&b->room->memory, cap);
        return -ENOMEM;
    }
    if (b->len > 0)
        memcpy(blob->data, l->blob->data, b->len);
    blob_unref(l->blob);
    l->blob = blob;
    if (l->taken > 0)
        budget_give(l->budget, l->taken);
    l->budget = &b->room->memory;
    l->taken = cap;
    return 0;
}

static int reserve(struct body *b, uint64_t cap)
{
    int err;

    if (cap <= MEMORY_BLOB_MAX)
        return reserve_in_memory(b, cap);
    err = lot_take(b->lot, &b->room->disk, cap);
    if (err < 0)
        return err;
    err = spool_reserve(&b->lot->blob, b->len, (size_t)cap);
    if (err < 0 && reserve_in_memory(b, cap) == 0)
        err = 0;
    return err;
}

static int resize(struct body *b, uint64_t cap)
{
    int err;

    if (b->blob == NULL)
        b->blob = lot_new(&b->lot);
    if (b->blob == NULL)
        return -ENOMEM;
    err = reserve(b, cap);
    if (b->lot->blob != NULL) { /* it may have moved, or be the old one */
        b->blob->data = b->lot->blob->data;
        b->blob->len = b->lot->blob->len;
        b->blob->mapped = b->lot->blob->mapped;
    }
    return err;
}

int body_begin(struct body *b, struct body_room *room, uint64_t total, uint64_t max)
{
    *b = (struct body){.room = room, .max = max};
    if (total == 0)
        return 0;
    if (total != UINT64_MAX && total > max)
        return -EFBIG;
    if (total > CHUNK_SIZE) { /* else it is done at once when it is here */
        b->sums = sums_new((struct span){0});
        if (b->sums == NULL)
            return -ENOMEM;
    }
    return total == UINT64_MAX ? 0 : resize(b, total);
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
    if (err == 0 && part.len > 0)
        err = spool_write(b->lot->blob, b->len, part);
    if (err < 0 || part.len == 0)
        return err;
    b->len += part.len;
    if (b->sums != NULL)
        sums_add(b->sums, part);
    return 0;
}

struct value body_value(const struct body *b)
{
    if (b->len == 0)
        return (struct value){0};
    return (struct value){blob_ref(b->blob), b->blob->data, b->len};
}

int body_sums(struct body *b, struct span *out)
{
    if (b->sums != NULL)
        return sums_end(b->sums, out);
    *out = (struct span){0};
    return 0;
}

void body_fini(struct body *b)
{
    blob_unref(b->blob);
    sums_free(b->sums);
    *b = (struct body){0};
}

/* body.c - a request's body, gathered within bounds. */
#include "node/body.h"

#include <errno.h>
#include <string.h>

#include "common/limits.h"
#include "common/spool.h"

#define FIRST_CAP (64u << 10) /* for a body of unknown length; doubled as it grows */

bool body_room_take(struct body_room *room, uint64_t len, struct budget **budget, uint64_t *taken)
{
    struct budget *from = len > MEMORY_BLOB_MAX ? &room->disk : &room->memory;
    uint64_t had = *budget == from ? *taken : 0;

    if (len > had && !budget_take(from, len - had))
        return false;
    if (len < had)
        budget_give(from, had - len);
    if (had == 0 && *taken > 0)
        budget_give(*budget, *taken);
    *budget = from;
    *taken = len;
    return true;
}

/* A disk without room is no reason to refuse what memory has room for. */
static int reserve_in_memory(struct body *b, uint64_t cap)
{
    struct budget *memory = &b->room->memory;
    struct blob *blob;

    if (!budget_take(memory, cap))
        return -EAGAIN;
    blob = blob_new((size_t)cap);
    if (blob == NULL) {
        budget_give(memory, cap);
        return -ENOMEM;
    }
    if (b->len > 0)
        memcpy(blob->data, b->blob->data, b->len);
    blob_unref(b->blob);
    b->blob = blob;
    if (b->taken > 0)
        budget_give(b->budget, b->taken);
    b->budget = memory;
    b->taken = cap;
    return 0;
}

static int resize(struct body *b, uint64_t cap)
{
    int err;

    if (cap <= MEMORY_BLOB_MAX)
        return reserve_in_memory(b, cap);
    if (!body_room_take(b->room, cap, &b->budget, &b->taken))
        return -EAGAIN;
    err = spool_reserve(&b->blob, b->len, (size_t)cap);
    if (err < 0 && reserve_in_memory(b, cap) == 0)
        err = 0;
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
        err = spool_write(b->blob, b->len, part);
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
    if (b->taken > 0)
        budget_give(b->budget, b->taken);
    *b = (struct body){0};
}

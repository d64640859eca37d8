/* payload.c - the bytes of one request and of its answer. */
#include "common/payload.h"

#include <errno.h>
#include <string.h>

#include "common/limits.h"
#include "common/spool.h"

#define ROOM_FIRST (16u << 10) /* for an answer whose length is not told */

/* Copies what part, which starts at `start`, has from pos on. */
static size_t copy_from(struct span part, uint64_t start, uint64_t pos, uint8_t *out, size_t room)
{
    size_t skip, n;

    if (pos < start || pos - start >= part.len)
        return 0;
    skip = (size_t)(pos - start);
    n = part.len - skip < room ? part.len - skip : room;
    memcpy(out, part.data + skip, n);
    return n;
}

/* Behind sent, a chunk stays: what goes to several nodes goes about as fast to each. */
static void pass_sent(const struct payload *x, uint64_t sent)
{
    uint64_t to = sent > x->head.len + CHUNK_SIZE ? sent - x->head.len - CHUNK_SIZE : 0, from;

    if (to > x->body.len)
        to = x->body.len;
    from = to > 2 * CHUNK_SIZE ? to - 2 * CHUNK_SIZE : 0;

    spool_pass(x->body, (size_t)from, (size_t)to);
}

size_t payload_read(struct payload *x, void *out, size_t room)
{
    uint8_t *to = out;
    size_t n = copy_from(x->head, 0, x->sent, to, room);

    n += copy_from(value_span(x->body), x->head.len, x->sent + n, to + n, room - n);
    n += copy_from(value_span(x->tail), x->head.len + x->body.len, x->sent + n, to + n, room - n);
    if ((x->sent + n) / CHUNK_SIZE != x->sent / CHUNK_SIZE)
        pass_sent(x, x->sent + n);
    x->sent += n;
    return n;
}

int payload_seek(struct payload *x, uint64_t pos)
{
    if (pos > x->head.len + x->body.len + x->tail.len)
        return -EINVAL;
    x->sent = pos;
    return 0;
}

/* Exactly what was announced; else more and more. */
static uint64_t room_for(const struct payload *x, uint64_t need, int64_t announced)
{
    uint64_t room = x->answer == NULL ? ROOM_FIRST : 2 * (uint64_t)x->answer->len;

    if (announced >= 0 && x->answer == NULL)
        room = (uint64_t)announced;
    if (room > x->answer_len_max)
        room = x->answer_len_max;
    return room < need ? need : room;
}

int payload_write(struct payload *x, struct span part, int64_t announced)
{
    uint64_t need = (uint64_t)x->answer_len + part.len;
    int err = 0;

    if (need > x->answer_len_max || announced > (int64_t)x->answer_len_max)
        return -EFBIG;
    if (x->answer == NULL || x->answer->len < need)
        err = spool_reserve(&x->answer, x->answer_len, (size_t)room_for(x, need, announced));
    if (err == 0)
        err = spool_write(x->answer, x->answer_len, part);
    if (err == 0)
        x->answer_len += part.len;
    return err;
}

int payload_take_answer(struct payload *x, struct blob **out)
{
    struct blob *b = x->answer != NULL ? x->answer : blob_new(0);

    if (b == NULL)
        return -ENOMEM;
    b->len = x->answer_len;
    x->answer = NULL;
    *out = b;
    return 0;
}

void payload_fini(struct payload *x)
{
    blob_unref(x->answer);
    x->answer = NULL;
}

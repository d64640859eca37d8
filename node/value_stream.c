/* value_stream.c - a large value on its way out, part by part. */
#include "node/value_stream.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define N_PARTS (VALUE_STREAM_LEN / CHUNK_SIZE)

/* The part of the value in one chunk, or a part of that at either end. */
struct part {
    struct value_stream *stream;
    uint64_t index; /* of the chunk */
    bool coming, here;
    struct value value; /* here: from the chunk's start on, or, of the first one, wherever */
    uint64_t offset;    /* of value */
    struct read_args args;
};

struct value_stream {
    struct value_stream_opts opts;
    struct buf key;
    pthread_mutex_t lock; /* all below */
    unsigned refs;        /* its owner's, and of each part that is coming */
    bool waiting;
    int err;
    uint64_t next; /* chunk that nobody asked for yet */
    struct part parts[N_PARTS];
};

static void stream_unref_unlock(struct value_stream *s)
{
    bool last = --s->refs == 0;

    pthread_mutex_unlock(&s->lock);
    if (!last)
        return;
    for (unsigned i = 0; i < N_PARTS; i++)
        value_fini(&s->parts[i].value);
    pthread_mutex_destroy(&s->lock);
    buf_fini(&s->key);
    free(s);
}

static void on_part(void *arg, struct read_result *res)
{
    struct part *p = arg;
    struct value_stream *s = p->stream;
    void (*more)(void *) = s->opts.more;
    void *more_arg = s->opts.arg;
    bool wake;

    pthread_mutex_lock(&s->lock);
    p->coming = false;
    if (res->err == 0 && (res->value.len == 0 || res->value_offset != p->args.offset))
        res->err = -EIO;
    if (res->err < 0) {
        s->err = res->err;
    } else {
        p->here = true;
        p->value = res->value;
        p->offset = res->value_offset;
        res->value = (struct value){0};
    }
    wake = s->waiting;
    s->waiting = false;
    stream_unref_unlock(s);
    if (wake)
        more(more_arg);
}

/* Asks for the parts that there is room for. */
static void fill_locked(struct value_stream *s)
{
    uint64_t end = s->opts.offset + s->opts.length;

    for (unsigned i = 0; i < N_PARTS && s->err == 0; i++) {
        struct part *p = &s->parts[i];
        uint64_t from = s->next * CHUNK_SIZE;
        int err;

        if (p->coming || p->here || from >= end)
            continue;
        p->stream = s;
        p->index = s->next++;
        p->args = (struct read_args){
            .key = buf_span(&s->key),
            .want_value = true,
            .offset = from,
            .length = end - from < CHUNK_SIZE ? end - from : CHUNK_SIZE,
            .pin = s->opts.version,
        };
        err = cluster_read_async(s->opts.cluster, &p->args, on_part, p);
        if (err < 0) {
            s->err = err;
        } else {
            p->coming = true;
            s->refs++;
        }
    }
}

int value_stream_new(const struct value_stream_opts *opts, struct value_stream **out)
{
    struct value_stream *s = calloc(1, sizeof(*s));
    uint64_t first_end = opts->first_offset + opts->first.len;
    struct part *p;

    assert(opts->length > 0 && opts->first_offset <= opts->offset && first_end > opts->offset);
    if (s == NULL)
        return -ENOMEM;
    buf_add_span(&s->key, opts->key);
    if (s->key.err < 0) {
        free(s);
        return -ENOMEM;
    }
    s->opts = *opts;
    s->refs = 1;
    pthread_mutex_init(&s->lock, NULL);
    p = &s->parts[0];
    p->here = true;
    p->index = opts->offset / CHUNK_SIZE;
    p->value = value_ref(opts->first);
    p->offset = opts->first_offset;
    s->next = p->index + 1;
    pthread_mutex_lock(&s->lock);
    fill_locked(s);
    pthread_mutex_unlock(&s->lock);
    *out = s;
    return 0;
}

/* The part that has this byte of the value; those before it are not wanted any more. */
static struct part *find_locked(struct value_stream *s, uint64_t at)
{
    struct part *found = NULL;

    for (unsigned i = 0; i < N_PARTS; i++) {
        struct part *p = &s->parts[i];

        if (p->here && p->index < at / CHUNK_SIZE) {
            value_fini(&p->value);
            p->here = false;
        }
        if (p->here && p->index == at / CHUNK_SIZE)
            found = p;
    }
    return found;
}

int64_t value_stream_read(struct value_stream *s, uint64_t pos, void *out, size_t cap)
{
    uint64_t at = s->opts.offset + pos, left = s->opts.length - pos, skip;
    struct value v = {0};
    struct part *p;
    int64_t n = 0;

    pthread_mutex_lock(&s->lock);
    p = find_locked(s, at);
    fill_locked(s);
    if (p != NULL) {
        skip = at - p->offset;
        n = p->value.len > skip ? (int64_t)(p->value.len - skip) : -EIO;
        v = value_ref(p->value);
    } else if (s->err < 0) {
        n = s->err;
    } else {
        s->waiting = true;
    }
    pthread_mutex_unlock(&s->lock);
    if (n > 0) {
        n = (uint64_t)n > cap ? (int64_t)cap : n;
        n = (uint64_t)n > left ? (int64_t)left : n;
        memcpy(out, v.data + skip, (size_t)n);
    }
    value_fini(&v);
    return n;
}

void value_stream_free(struct value_stream *s)
{
    if (s == NULL)
        return;
    pthread_mutex_lock(&s->lock);
    assert(!s->waiting);
    stream_unref_unlock(s);
}

/*
 * value_stream.h - a large value on its way out to a client: read from the replicas part by part,
 * a few parts ahead of what is sent, so that neither its size nor a slow client costs memory.
 *
 * All parts are pinned to one version. Where that is replaced meanwhile, so that no replica has it
 * any more, the stream fails.
 */
#ifndef KVFS_NODE_VALUE_STREAM_H
#define KVFS_NODE_VALUE_STREAM_H

#include "common/cluster.h"

struct value_stream;

/* What it holds of the value at most. */
#define VALUE_STREAM_LEN (4u * CHUNK_SIZE)

struct value_stream_opts {
    struct cluster *cluster; /* borrowed */
    struct span key;         /* copied */
    struct ballot version;
    uint64_t offset, length; /* the bytes of the value that are wanted; at least one */
    struct value first;      /* bytes from first_offset on, offset among them; borrowed */
    uint64_t first_offset;
    /*
     * After value_stream_read() returned 0, once, from any thread: it is worth trying again. Then
     * nothing of arg is touched any more.
     */
    void (*more)(void *arg);
    void *arg;
};

int value_stream_new(const struct value_stream_opts *opts, struct value_stream **out);
/*
 * Copies some of the bytes from pos (of length) on; pos never goes back. How many; 0: they have not
 * come yet; or why they never will. One thread at a time; does not block.
 */
int64_t value_stream_read(struct value_stream *s, uint64_t pos, void *out, size_t cap);
/* Any thread, but not while value_stream_read() has returned 0 and more() has not been called. */
void value_stream_free(struct value_stream *s);

#endif

/*
 * response.h - an answer of the server, as a value: status, headers, and a body from memory or made
 * while it is sent.
 */
#ifndef KVFS_NODE_RESPONSE_H
#define KVFS_NODE_RESPONSE_H

#include <stdbool.h>

#include "common/buf.h"

/*
 * Bytes of an answer of known length, made while it is sent: copies some from position pos on into
 * out, at most cap; returns how many, or negative: the connection is cut, so that what was sent
 * never looks whole. 0: nothing now; it is asked again after exchange_wake(). On a server thread.
 */
typedef int64_t response_read_fn(void *arg, uint64_t pos, void *out, size_t cap);

/*
 * body_len of an answer whose length nobody knows: it goes on until read says RESPONSE_END.
 */
#define RESPONSE_ENDLESS UINT64_MAX
#define RESPONSE_END INT64_MIN

struct response {
    unsigned status;
    bool close;         /* the connection ends with this answer */
    struct buf headers; /* response_header() fills it */
    /* The body, one of: */
    struct buf text;
    struct value value;
    /* body_len bytes, or without end; NULL with body_len: only the length is told (HEAD) */
    response_read_fn *read;
    void (*read_free)(void *arg);
    void *read_arg;
    uint64_t body_len;
};

/* name without ':'; a value with control characters is left out. */
void response_header(struct response *r, const char *name, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
void response_fini(struct response *r);
uint64_t response_len(const struct response *r);
/* Steps through the headers: *pos starts at 0. False at the end. Borrowed. */
bool response_next_header(const struct response *r, size_t *pos, const char **name,
                          const char **value);

/* Head and text as bytes, where the server cannot send it: the last answer of its connection. */
void response_write(const struct response *r, struct buf *out);

/* A JSON body: takes *json. */
void response_json(struct response *r, unsigned status, struct buf *json);
/*
 * An error as application/problem+json (RFC 9457), and Retry-After with a 503. Text that is not
 * UTF-8 is made so.
 */
void response_problem(struct response *r, unsigned status, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

#endif

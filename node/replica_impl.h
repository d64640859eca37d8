/*
 * replica_impl.h - what replica.c (the answers) and request.c (a request on its way in) share; for
 * nobody else.
 */
#ifndef KVFS_NODE_REPLICA_IMPL_H
#define KVFS_NODE_REPLICA_IMPL_H

#include <stdatomic.h>

#include "common/hash.h"
#include "node/incarnations.h"
#include "node/promises.h"
#include "node/replica.h"

struct replica {
    struct replica_opts opts;
    struct incarnations *incarnations;
    struct promises *promises;
    _Atomic uint64_t n_doubts, n_settled; /* see check_certain() in replica.c */
};

/*
 * A request: its head in memory, and the value behind it in memory too, or in a file of the store
 * when it is large. Every piece is counted and, chunk by chunk, verified as it comes.
 */
struct replica_request {
    struct replica *r;
    uint64_t arrived_us;
    uint64_t total, got; /* bytes announced, bytes fed */
    int err;             /* why it is not done: end() answers it; why.msg: for people */
    struct err why;

    struct buf head;
    size_t head_len; /* 0 until known */
    bool decoded;    /* then m borrows from head */
    struct message m;

    /* The answer was clear before the value came; its bytes are not kept. */
    bool settled;
    struct buf value;
    struct store_file *file;
    struct hash_stream *hash; /* of the chunk that is coming in, with file */
    uint64_t value_got;
    struct cursor sums; /* of the chunks still to come */
};

/* Notes the first failure. Returns rq->err. */
int request_fail(struct replica_request *rq, int err, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/*
 * Is it too late to begin with it (protocol.md: what arrives after its deadline is dropped)? 0 or
 * -ETIMEDOUT, noted.
 */
int request_check_late(struct replica_request *rq);

/*
 * Whether an ACCEPT with a large value will be refused or is already done: then its value need not
 * be kept.
 */
int replica_foresee(struct replica_request *rq, bool *settled);
/* Does what a whole, checked request asks for. 0, *out filled; else noted in rq. */
int replica_perform(struct replica_request *rq, struct reply *out);
/* The answer to a request that failed. */
void replica_answer_error(struct replica_request *rq, struct reply *out);

#endif

/*
 * replica_impl.h - the replica's insides, which its files share (see the map in main.c); for nobody
 * else.
 */
#ifndef KVFS_NODE_REPLICA_IMPL_H
#define KVFS_NODE_REPLICA_IMPL_H

#include <stdatomic.h>

#include "common/hash.h"
#include "node/damage.h"
#include "node/incarnations.h"
#include "node/promises.h"
#include "node/replica.h"

struct replica {
    struct replica_opts opts;
    struct incarnations *incarnations;
    struct promises *promises;
    _Atomic uint64_t n_doubts, n_settled; /* see replica_check_certain() */
    struct damage *damage;
    /*
     * Kept from when they were indexed on; and those that are being counted just now, or NULL. Both
     * are changed under a key's slot; indexed and fresh under all slots.
     */
    struct digests *digests, *fresh;
    _Atomic bool indexed, index_needed;
    _Atomic bool overfull; /* with damage; told soon, see replica_note_damage() */
    _Atomic bool announcing;
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

    bool performed; /* the answer is this, but for the first bytes of a file: see replica_ask() */
    struct reply reply;
};

/* Notes the first failure. Returns rq->err. */
int request_fail(struct replica_request *rq, int err, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/*
 * Is it too late to begin with it (protocol.md: what arrives after its deadline is dropped)? 0 or
 * -ETIMEDOUT, noted.
 */
int request_check_late(struct replica_request *rq);

/* --- answers ------------------------------------------------------------------------- */

/*
 * Finishes an answer about key (empty: about none in particular), and puts its bytes into
 * out->head. 0; else noted in rq.
 */
int replica_answer(struct replica_request *rq, struct span key, struct answer *a,
                   struct reply *out);
/* Notes that the key cannot be loaded: -EBADMSG where it is damaged. */
int replica_fail_load(struct replica_request *rq, int err);
/*
 * A put that failed may be on the disk all the same, and show only after the next start. Whoever
 * says what this node has, for others to rely on, must not do so in such doubt. It ends with the
 * process, or with a write that succeeds, for the store begins a new log (or session) after a
 * failure. 0, else noted.
 */
int replica_check_certain(struct replica_request *rq);
/* Tells of damage below the records: err of a walk is -EBADMSG, or too many keys are damaged. */
void replica_note_damage(struct replica *r, int err);

/* replica_key.c */
int replica_prepare(struct replica_request *rq, struct reply *out);
int replica_accept(struct replica_request *rq, struct reply *out);
int replica_read(struct replica_request *rq, struct reply *out);
int replica_drop(struct replica_request *rq, struct reply *out);
struct present;
/*
 * Puts the bytes from offset on, as many as length, widened to whole chunks, behind the answer; p
 * was loaded with its value. Bytes in memory are verified here, those in a file are not: the first
 * chunk is for reply_check(), the others for reply_read(). -EBADMSG, -ENOMEM.
 */
int replica_attach(struct replica *r, struct span key, struct present *p, uint64_t offset,
                   uint64_t length, struct answer *a, struct reply *out);

/* replica_repair.c */
int replica_digest(struct replica_request *rq, struct reply *out);
int replica_keys(struct replica_request *rq, struct reply *out);

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

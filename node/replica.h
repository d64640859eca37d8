/*
 * replica.h - PREPARE, ACCEPT, READ, LIST and HELLO over a store: one node's part of
 * docs/protocol.md. No sockets.
 *
 * Any thread; calls block on the store's disk, never on the network. Check-then-store is atomic per
 * key by striped locks.
 */
#ifndef KVFS_NODE_REPLICA_H
#define KVFS_NODE_REPLICA_H

#include "common/clock.h"
#include "common/config.h"
#include "common/message.h"
#include "node/store.h"

struct replica;

struct replica_opts {
    const struct ring *ring;  /* borrowed, as are the others */
    unsigned self;            /* index of this node */
    const struct config *cfg; /* for the addresses in the text of a 421; may be NULL (tests) */
    struct store *store;
    struct clock *clock;
    uint64_t seed;           /* makes the incarnation of a new store */
    uint64_t max_value_size; /* 0: VALUE_SIZE_DEFAULT_MAX */
    uint64_t floor_ahead_us; /* counters reserved ahead of use; 0: 10 s */
};

/*
 * Reads incarnation and floor from the store, or makes them. Every key then counts as promised up
 * to the floor.
 */
int replica_open(const struct replica_opts *opts, struct replica **out, struct err *err);
void replica_close(struct replica *r); /* no request may be under way; the store stays open */
uint64_t replica_incarnation(const struct replica *r);

/* An answer: an encoded head, then value bytes from memory or from a file. */
struct reply {
    unsigned status; /* HTTP: 200, also for refusals; 4xx and 5xx go with ANS_ERROR */
    struct buf head;
    struct value value; /* bytes behind the head, or: */
    /*
     * -1, or: send file_len bytes from file_offset, verified chunk by chunk against sums by
     * reply_read()
     */
    int fd;
    uint64_t file_offset, file_len;
    struct record_copy rec;
    /*
     * reply_read's: the verified chunk of the file that starts at chunk_offset, once it was needed
     */
    uint8_t *chunk;
    uint64_t chunk_offset;
    size_t chunk_len;
};
#define REPLY_NONE ((struct reply){.status = 200, .fd = -1})
void reply_fini(struct reply *r);
uint64_t reply_len(const struct reply *r); /* head and value */
/*
 * Verifies the first chunk of a file that is to be sent, which reply_read() then has at hand: while
 * nothing was sent, damage can still be told. 0, or as reply_read().
 */
int reply_check(struct reply *r);
/*
 * Copies bytes from position pos of head-then-value into out, as many as are there up to cap.
 * Returns how many, or -EBADMSG: the file's bytes do not match their checksum (or -EIO, -ENOMEM):
 * the connection must be cut, for what was sent must never look whole.
 */
int64_t reply_read(struct reply *r, uint64_t pos, void *out, size_t cap);

/*
 * One request, fed as its bytes arrive (all at once, or piece by piece: large values go straight
 * into a file of the store). begin: total is the length that the sender announced. feed returns 0
 * or the error with which end() will answer (the rest may be skipped). end fills *out (the caller
 * finishes it) and frees rq. abort: the sender went away; frees rq.
 */
struct replica_request;
int replica_begin(struct replica *r, uint64_t total, struct replica_request **out);
int replica_feed(struct replica_request *rq, struct span part);
void replica_end(struct replica_request *rq, struct reply *out);
void replica_abort(struct replica_request *rq);

/*
 * The JSON of GET /replicas/{key}, and of the text of a 421. Appends; out->err tells of lack of
 * memory.
 */
void replica_owners_json(const struct config *cfg, struct span key, struct buf *out);

/*
 * This node's own copy, for GET /replica/{key} (people, tests): 0 with rec.version none where it
 * has none; -EREMCHG, -EBADMSG, ...
 */
int replica_peek(struct replica *r, struct span key, struct record_copy *rec, struct value *value);

/* What HELLO of a peer told, found out by this node's own prober: kept durably when newer. */
int replica_learn(struct replica *r, unsigned node, uint64_t incarnation);

#endif

/*
 * replica.h - what a node answers to PREPARE, ACCEPT, READ, LIST, HELLO and the messages of repair,
 * over a store: one node's part of docs/protocol.md. No sockets.
 *
 * Any thread; calls block on the store's disk, never on the network. Check-then-store is atomic per
 * key by striped locks.
 */
#ifndef KVFS_NODE_REPLICA_H
#define KVFS_NODE_REPLICA_H

#include <stdatomic.h>

#include "common/clock.h"
#include "common/config.h"
#include "common/message.h"
#include "node/changes.h"
#include "node/digests.h"
#include "node/incarnations.h"
#include "node/store.h"
#include "node/watch.h"

struct replica;

struct replica_opts {
    const struct ring *ring;  /* borrowed, as are the others */
    unsigned self;            /* index of this node */
    const struct config *cfg; /* for the addresses in the text of a 421; may be NULL (tests) */
    struct store *store;
    /*
     * The JSON of the ring that the store's data was placed by, where that is another one
     * (placement.h): every request is answered as from a node of another ring. Empty: it is this.
     */
    struct span placed_by;
    struct watch *watch; /* what HELLO says of the store's health; NULL: that it is well */
    struct clock *clock;
    struct changes *changes; /* is told of all that is stored; NULL: nobody cares */
    uint64_t seed;           /* makes the incarnation of a new store */
    uint64_t max_value_size; /* 0: VALUE_SIZE_DEFAULT_MAX */
    uint64_t floor_ahead_us; /* counters reserved ahead of use; 0: 10 s */
    /*
     * The store is there but may have lost what was acknowledged (a power loss without fsync): it
     * gets a new incarnation, and recovers with what it has.
     */
    bool distrusted;
    /*
     * A record or value of this key was found damaged: from any thread, under the key's lock; must
     * not call back. Told again, after a while, when it is met again. NULL: nobody cares.
     */
    void (*on_damage)(void *arg, struct span key);
    /*
     * The store below the records is damaged, and cannot be walked or is full of damage: no healing
     * of keys will help. Likewise, but under no lock; NULL.
     */
    void (*on_store_damage)(void *arg);
    void *on_damage_arg; /* of both */
};

/*
 * Reads incarnation and floor from the store, or makes them. Every key then counts as promised up
 * to the floor.
 *
 * A store that is new has forgotten what this node promised and stored before, if it ever did: the
 * replica is then *recovering*, durably, and answers 503 to all but HELLO (and its own RESTORE)
 * until replica_found() or replica_recovered(). See repair.h for how it gets there.
 */
int replica_open(const struct replica_opts *opts, struct replica **out, struct err *err);
void replica_close(struct replica *r); /* no request may be under way; the store stays open */
uint64_t replica_incarnation(const struct replica *r);

/* --- recovery: blocks on the disk, a few times in the life of a store ---------------- */

bool replica_recovering(const struct replica *r); /* never blocks, nor do the next two */
/*
 * A newer store of this node is known to others: this one was whole once, and is out of date. Until
 * it is closed it answers 503 to all but HELLO. (Opened again, it votes until it hears so again; in
 * vain, for in every majority someone knows of the newer incarnation, and names it.)
 */
bool replica_superseded(const struct replica *r);
/* Neither recovering nor superseded: what it answers counts. */
bool replica_votes(const struct replica *r);
enum node_state replica_state(const struct replica *r); /* as HELLO tells it */
/* Of one that recovers: from now on, until it is renewed, its HELLOs announce that it will vote. */
void replica_announce(struct replica *r);
/* Another life of this node, with a higher incarnation, is whole. */
void replica_supersede(struct replica *r);
/*
 * A new incarnation, of one that recovers: numerically above `than`, which others know of another
 * life of this node. What they learned of the present one is void. -EINVAL: it votes; -ERANGE:
 * there is none; else what the store says.
 */
int replica_renew(struct replica *r, uint64_t than);
/* These two: -EINVAL when it is not recovering; else what the store says. */
/*
 * It holds every record of its ranges; floor: the highest that those it recovered from told it.
 * Durable before this returns 0; then it votes.
 */
int replica_recovered(struct replica *r, uint64_t floor);
/*
 * A new cluster: all replicas of its ranges are new and empty, in these incarnations, which it
 * remembers durably (NODE_COFOUNDER). Then it votes.
 */
int replica_found(struct replica *r, const struct founder *others, unsigned n);

/* --- repair -------------------------------------------------------------------------- */

/*
 * Builds the digests (digests.h) by a walk over all keys; they are exact from then on. Once, after
 * replica_open(), while requests may already come. DIGEST is answered with 503 before. Blocks long.
 * *stop: set by another thread, ends it early with -EINTR (may be NULL). May be called again later,
 * by one thread at a time: rebuilds. -EBADMSG: the store itself is damaged.
 */
int replica_index(struct replica *r, const _Atomic bool *stop);
/*
 * Something was stored over a record that could not be read, so that the digests no longer say what
 * is here (a comparison may find differences that are none): replica_index() is to be called again.
 * Never blocks.
 */
bool replica_index_needed(const struct replica *r);
/*
 * The digests, for the engine of the same node: NULL until replica_index() was done once. Valid
 * until replica_close().
 */
const struct digests *replica_digests(const struct replica *r);

/*
 * Reads and verifies the next records and values in key order behind *pos (empty: from the start),
 * some `bytes` of them, and moves *pos; *done: the end was reached. What is damaged is told to
 * on_damage() and stays refused until it is stored anew. old_counter: on_tombstone(arg, key,
 * version) for every tombstone with a lower one of which this node is the first replica. Blocks on
 * the disk, takes no lock for long. -EBADMSG: the store itself is damaged.
 */
struct scrub_result {
    uint64_t n_keys, n_bytes, n_damaged;
    bool done;
};
typedef void scrub_tombstone_fn(void *arg, struct span key, struct ballot version);
int replica_scrub(struct replica *r, struct buf *pos, uint64_t bytes, uint64_t old_counter,
                  scrub_tombstone_fn *on_tombstone, void *arg, struct scrub_result *out);
/* How many keys are known to be damaged now. Never blocks. */
uint64_t replica_n_damaged(const struct replica *r);

/* An answer: an encoded head, then value bytes from memory or from a file. */
struct reply {
    unsigned status; /* HTTP: 200, also for refusals; 4xx and 5xx go with ANS_ERROR */
    struct buf head;
    struct value value; /* bytes behind the head, or: */
    /*
     * NULL, or: send file_len bytes from file_offset, verified chunk by chunk against sums by
     * reply_read()
     */
    struct store_reader *large;
    uint64_t file_offset, file_len;
    struct record_copy rec;
    /* Whom to tell of damage in the file, and of which key; NULL: nobody. */
    struct replica *replica;
    struct buf key;
    /*
     * reply_read's: the verified chunk of the file that starts at chunk_offset, once it was needed
     */
    uint8_t *chunk;
    uint64_t chunk_offset;
    size_t chunk_len;
};
#define REPLY_NONE ((struct reply){.status = 200})
void reply_fini(struct reply *r);
uint64_t reply_len(const struct reply *r); /* head and value */
/*
 * Verifies the first chunk of a file that is to be sent, which reply_read() then has at hand: while
 * nothing was sent, damage can still be told. 0, or as reply_read().
 */
int reply_check(struct reply *r);
/*
 * Copies bytes from position pos of head-then-value into out, as many as are there up to cap.
 * Returns how many, or -EBADMSG: the file's bytes cannot be read, or do not match their checksum;
 * or -ENOMEM, -EHOSTDOWN, ...: the connection must be cut, for what was sent must never look whole.
 */
int64_t reply_read(struct reply *r, uint64_t pos, void *out, size_t cap);
/* The same, but 0 where that needs bytes of the file that are not at hand: see reply_load(). */
int64_t reply_read_loaded(struct reply *r, uint64_t pos, void *out, size_t cap);
/* Brings the bytes at pos to hand. 0, or as reply_read(). Blocks on the disk. */
int reply_load(struct reply *r, uint64_t pos);

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
/*
 * As replica_end(), but does not read large values: false where one has to be read for the answer,
 * and then replica_end() is still to be called, perhaps on another thread.
 */
bool replica_ask(struct replica_request *rq, struct reply *out);
void replica_abort(struct replica_request *rq);

/*
 * This node's own copy, for GET /replica/{key} (people, tests): 0 with rec.version none where it
 * has none; -EREMCHG, -EBADE (its data is of another ring), -EBADMSG, -EAGAIN (it does not vote:
 * what it has says nothing), ... value: its bytes alone, without a head, for reply_read().
 */
int replica_peek(struct replica *r, struct span key, struct record_copy *rec, struct reply *value);

/*
 * What a peer answered to HELLO of this node's own prober: its incarnation, and those that it knows
 * of third nodes. Kept durably where newer.
 */
int replica_learn(struct replica *r, unsigned node, const struct answer *hello);

#endif

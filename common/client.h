/*
 * client.h - READ, WRITE and listing of docs/protocol.md: the asynchronous core, on one event loop.
 *
 * Single-threaded: everything runs on the transport's loop. The same code runs over HTTP and over
 * the tests' in-memory network; what it draws at random comes from its seed. Operations copy their
 * key. Each ends in exactly one done(), never from inside the call that started it, within its
 * timeout; requests that are still under way then (to the replicas that a quorum did not need) end
 * by themselves.
 */
#ifndef KVFS_COMMON_CLIENT_H
#define KVFS_COMMON_CLIENT_H

#include <stdbool.h>

#include "common/err.h"
#include "common/health.h"
#include "common/message.h"
#include "common/record.h"
#include "common/ring.h"
#include "common/transport.h"

struct client;

struct client_opts {
    const struct ring *ring; /* borrowed, as are transport and health */
    struct transport *transport;
    struct health *health;
    uint64_t seed; /* of everything random: backoff, operation ids */
    /* unlike that of any other client, ever; not 0, not BALLOT_PROPOSER_MAX */
    uint64_t proposer;
    uint32_t timeout_ms; /* of operations that do not give their own */
    const char *(*node_name)(void *arg, unsigned node); /* for messages */
    void *node_name_arg;
};

int client_new(const struct client_opts *opts, struct client **out);
const struct client_opts *client_options(const struct client *c); /* borrowed */
/*
 * After READs the client looks for replicas that are behind, and mends them in the background. This
 * ends that for good, at once. Not from inside a done().
 */
void client_stop_background(struct client *c);
/*
 * Stop its background first; no operation may be under way that has not called done(); late answers
 * of finished ones must have come (free the transport before).
 */
void client_free(struct client *c);

/*
 * An operation under way: a handle for op_cancel(), valid until its done() returns. Starting one
 * gives NULL only without memory: then done() never comes.
 */
struct op;
/* Ends it soon with -EINTR. What was sent may still take effect: see write_result.certain. */
void op_cancel(struct op *op);

/* --- reading ---------------------------------------------------------------------------------- */

/*
 * Whose word counts. One replica may be behind, or hold what no majority ever will; what it has is
 * the answer all the same. That it has nothing is none: then the next is asked, and in the end a
 * majority.
 */
enum read_from {
    READ_MAJORITY,
    READ_ONE,         /* the first in ring order that is up and whole */
    READ_ONE_IN_NEED, /* while a majority is out of reach */
};

struct read_args {
    struct span key;
    bool want_value;
    /*
     * of the value; length 0 with want_value: nothing; READ_ALL: to the end. Widened to whole
     * chunks
     */
    uint64_t offset, length;
    bool peek; /* is there a live key below key + "/"? */
    /* not none: only this version will do; needs no quorum. -ESTALE when it is gone */
    struct ballot pin;
    enum read_from from;    /* of no meaning with a pin */
    struct ballot at_least; /* of one replica's word: an older version is as good as nothing */
    uint32_t timeout_ms;    /* 0: the client's */
};
#define READ_ALL UINT64_MAX

struct read_result {
    /*
     * 0 also when the key is absent or deleted: see rec. -EHOSTDOWN, -EBADMSG, -EBADE (another
     * ring), -ESTALE, -EINTR, -ENOMEM
     */
    int err;
    struct err why;
    struct record_copy rec; /* of a key never written: version none */
    struct value value;     /* verified; starts at value_offset */
    uint64_t value_offset;
    /* peek: yes, and child is the first such key that was seen, child_key owns its bytes */
    bool has_child;
    struct entry child;
    struct buf child_key;
    /*
     * Each node that answered was followed from before it was asked: the result may be kept until
     * the feed tells of a change (feed.h)
     */
    bool followed;
    bool lone; /* it is one replica's word: nothing may be decided by it */
};
/*
 * res is the client's and finished after done(); steal from it by copying a field out and zeroing
 * it.
 */
typedef void read_done_fn(void *arg, struct read_result *res);
struct op *client_read(struct client *c, const struct read_args *args, read_done_fn *done,
                       void *arg);
void read_result_fini(struct read_result *r);

/* --- writing ---------------------------------------------------------------------------------- */

/* What an edit wants stored. The client fills version, seq, recent, size and sums. */
struct draft {
    /* flags, mode, uid, gid, rdev, times, attrs; attrs borrowed until done() or the next edit */
    struct record rec;
    struct value value, tail; /* owned by the draft; tail: stands behind value */
    bool same_value;          /* keep the value as it is: it does not travel */
    struct span sums;         /* of value, where they are known already; borrowed as attrs */
};

/*
 * Decides on the present record. 0: *next is to be stored. Negative: the condition fails, and the
 * write ends with that error, surely without effect. Called once per try, each time on the record
 * that the try would replace, so it must not remember. cur->version is none for a key never
 * written. cur_value is whole with want_value, else empty. next comes as a copy of cur's attributes
 * (attrs borrowed from it), empty value, live.
 */
typedef int edit_fn(void *ctx, const struct record *cur, struct value cur_value,
                    struct draft *next);

struct write_args {
    struct span key;
    edit_fn *edit;
    void *ctx; /* used until done() */
    bool want_value;
    /* after the quorum, wait so long for the other replicas, to report of them */
    uint32_t report_wait_ms;
    uint32_t timeout_ms; /* 0: the client's */
    uint64_t size_hint;  /* bytes of the new value, for the deadline of large ones */
};

enum report_state { REPORT_PENDING, REPORT_OK, REPORT_FAILED };
struct report {
    unsigned node;
    enum report_state state;
    int err; /* of REPORT_FAILED */
};

/* What the record of a write that succeeded is. */
enum write_record {
    WRITE_AS_DRAFTED, /* as the last call of edit made it */
    WRITE_AS_EARLIER, /* as one of the calls before made it; it is not known which */
    /*
     * What another client made of it: before this write was known to be stored, that one replaced
     * it. Version none: not known
     */
    WRITE_SUPERSEDED,
};

struct write_result {
    /* 0, what edit returned, -EHOSTDOWN, -ENOSPC, -EBADMSG, -EBADE, -EINTR, -ENOMEM */
    int err;
    /* err < 0: surely nothing was stored, nor will be. Else it may take effect later, once */
    bool certain;
    uint64_t id; /* under which it is, or comes to be, in `recent` of the key's record */
    struct err why;
    /* 0: what was stored. A failed condition: what it failed on */
    struct record_copy rec;
    enum write_record rec_is;
    bool existed;       /* 0: a live record was replaced */
    unsigned primary;   /* the first replica that stored it */
    unsigned n_reports; /* all replicas in ring order; borrowed until done() returns */
    const struct report *reports;
};
typedef void write_done_fn(void *arg, struct write_result *res);
struct op *client_write(struct client *c, const struct write_args *args, write_done_fn *done,
                        void *arg);
void write_result_fini(struct write_result *r);

/* --- listing (listing.c) ---------------------------------------------------------------------- */

struct list_args {
    /* start_after: a position in key order; may but need not be a key */
    struct span prefix, start_after;
    bool delimiter; /* roll up behind the next '/' */
    uint32_t limit; /* 1..LIST_LIMIT_MAX */
    uint32_t timeout_ms;
};

struct list_result {
    int err; /* complete and settled, or an error: -EHOSTDOWN, ... */
    struct err why;
    unsigned n;
    /*
     * n times entry_encode: live keys and prefixes in byte order (read with entry_next()); never
     * one of each for one name. ENTRY_DAMAGED: a key, live or not, that too many replicas find
     * damaged for the others to settle it
     */
    struct buf entries;
    bool more;
    struct buf next; /* more: start_after of the next page */
    bool followed;   /* as of read_result */
};
typedef void list_done_fn(void *arg, struct list_result *res);
struct op *client_list(struct client *c, const struct list_args *args, list_done_fn *done,
                       void *arg);
void list_result_fini(struct list_result *r);

/* --- repair (docs/protocol.md) ---------------------------------------------------------------- */

/* One message to one node, for what is no operation on a key by its replicas. */
struct ask_args {
    unsigned node;
    const struct message *m; /* ring and deadlines are filled in; borrowed during the call */
    struct value body;       /* of an ACCEPT; borrowed during the call (its blob is referenced) */
    uint32_t timeout_ms;
};
struct ask_result {
    /* 0, or as the node's status or the transport say: -EHOSTDOWN, -EBADMSG, -EAGAIN, ... */
    int err;
    struct err why;
    const struct answer *answer; /* NULL where none came; borrowed until done() returns, as are: */
    struct value value;          /* READ: verified bytes of the record in the answer */
    struct span entries;         /* LIST, KEYS: for entry_next() */
};
typedef void ask_done_fn(void *arg, struct ask_result *res);
struct op *client_ask(struct client *c, const struct ask_args *args, ask_done_fn *done, void *arg);

/*
 * A WRITE that changes nothing: gives the newest record a fresh ballot, whatever a majority holds
 * already, with a counter above `above`; and waits for the other replicas until its timeout ends.
 * res->reports tell who stored it. It overtakes promises that were made and not kept, and it heals
 * a replica whose record is damaged, which accepts only what is above all that it can have had.
 */
struct settle_args {
    struct span key;
    uint64_t above;
    uint32_t timeout_ms;
};
struct op *client_settle(struct client *c, const struct settle_args *args, write_done_fn *done,
                         void *arg);

/*
 * Asks every replica of the key what it has, and brings those behind up to the newest by ACCEPT
 * under the record's own ballot: the original message, arriving late. Where that is refused (a
 * promise stands above it) or a replica's record is damaged, by client_settle(). A tombstone with a
 * counter below old_counter is not brought to a replica that has nothing: it is about to be
 * dropped.
 */
struct mend_args {
    struct span key;
    uint64_t old_counter;
    uint32_t timeout_ms;
};
struct mend_result {
    int err; /* 0: all replicas hold `version` now, or it is an old tombstone. -EHOSTDOWN, ... */
    struct err why;
    struct ballot version;
    uint32_t flags;
    uint64_t size;
    unsigned n_mended;  /* replicas that were brought up to it */
    bool old_tombstone; /* each holds this one or nothing */
};
typedef void mend_done_fn(void *arg, struct mend_result *res);
struct op *client_mend(struct client *c, const struct mend_args *args, mend_done_fn *done,
                       void *arg);

/* --- health ----------------------------------------------------------------------------------- */

struct hello_args {
    unsigned node;        /* whom to ask */
    uint32_t self;        /* who asks: index in the ring or MESSAGE_NODE_NONE */
    uint64_t incarnation; /* of self */
    uint8_t state;        /* of self: enum node_state */
    uint32_t timeout_ms;
};
struct hello_result {
    int err;
    struct answer answer; /* kind ANS_HELLO where err is 0; borrowed until done() returns */
};
typedef void hello_done_fn(void *arg, struct hello_result *res);
/* Sends one HELLO and tells health of it. */
struct op *client_hello(struct client *c, const struct hello_args *args, hello_done_fn *done,
                        void *arg);

#endif

/*
 * op.h - the inside of the client (client.c names its parts): an operation under way, and the
 * rounds of messages that it is made of.
 *
 *   op      one READ, WRITE, listing, mending or question: from its start to its done(). Has one
 *           timer, for whatever comes next.
 *   round   one message to several nodes, and their answers. An op has at most one that it listens
 *           to; when it has heard enough it lets go
 *           of the round, which lives on until the last of its calls has ended (the write goes on
 *           to the replicas that were not needed).
 *   leg     one node's part of a round.
 */
#ifndef KVFS_COMMON_OP_H
#define KVFS_COMMON_OP_H

#include <errno.h>

#include "common/client.h"
#include "common/quorum.h"
#include "common/turns.h"

/* Read repair (background.c). */
struct background {
    bool stopped;
    struct list mends, checks; /* alive */
    unsigned n_mends;
    uint64_t mend_bytes; /* of the values of keys in mends */
    uint64_t mends_paid_us, checks_paid_us;
};

struct client {
    struct client_opts opts;
    uint64_t rng;             /* state of splitmix64 */
    uint64_t seen;            /* the highest counter met or used: every ballot lies above it */
    unsigned n_ops, n_rounds; /* alive */
    bool at_once;             /* see op_end_now() */
    struct list waiting;      /* legs under way, oldest first: who is slow? */
    struct timer slow_timer;
    struct turns turns; /* of writes */
    struct background background;
};

uint64_t client_random(struct client *c);
struct ballot client_ballot(struct client *c); /* fresh: never used before by this client */
void client_saw(struct client *c, struct ballot b);
const char *client_node_name(const struct client *c, unsigned node);
/*
 * The key's replicas, those thought to be up and whole first, each group in ring order. Writes
 * ring_n_replicas() indexes; returns how many are.
 */
unsigned client_order(const struct client *c, struct span key, unsigned *nodes);

/* --- op --------------------------------------------------------------------------------------- */

/* What an op needs to be reachable. */
enum op_scope {
    OP_OF_NODE,    /* the one node it asks */
    OP_OF_REPLICA, /* any of the key's replicas */
    OP_OF_KEY,     /* a majority of them */
    OP_OF_RING,    /* a majority of every replica set */
};

struct op {
    struct client *c;
    struct buf key;
    uint64_t deadline_us;
    /*
     * Past its timeout, in the time that its bytes get: when to see whether what it needs is still
     * there; UINT64_MAX: it has no such time.
     */
    uint64_t check_us;
    uint64_t timeout_us; /* for how long that may be out of reach */
    enum op_scope scope;
    uint64_t wake_us; /* what the op waits for beside its deadline; UINT64_MAX: nothing */
    struct timer timer;
    bool cancelled;
    int failed;          /* decided before anything was sent: reported from the loop */
    struct round *round; /* the one listened to, or NULL */
    void (*on_wake)(struct op *op);
    /* the deadline (-ETIMEDOUT), a cancel (-EINTR), or op->failed */
    void (*on_end)(struct op *op, int err);
};

/*
 * Prepares the base; key is copied. 0 or -ENOMEM. timeout_ms 0: the client's own; size: bytes that
 * will travel.
 */
int op_init(struct op *op, struct client *c, struct span key, enum op_scope scope,
            uint32_t timeout_ms, uint64_t size);
void op_fini(struct op *op);
/* From now on it needs that; where that has been out of reach for long, it is not patient. */
void op_needs(struct op *op, enum op_scope scope);
/* Wakes the op (on_wake) at that time, instead of any other it asked for before. */
void op_wake_at(struct op *op, uint64_t due_us);
/* What is left of its time, for an operation that it starts itself; at least 1. */
uint32_t op_left_ms(const struct op *op);
/* Ends it with -EINTR from inside this call, as well as what it has started itself. */
void op_end_now(struct op *op);
/* Ends the op with err, from the loop. */
void op_fail_soon(struct op *op, int err);
/* More bytes are to travel than it began with: their time is added. */
void op_add_bytes(struct op *op, uint64_t size);
/* A pause before try number `tries`: random, growing, bounded. */
uint64_t op_backoff_us(struct op *op, unsigned tries);

/* --- round ------------------------------------------------------------------------------------ */

/* Why there is no answer: a record or value is damaged; found by the client, or by the replica. */
static inline bool is_damage(int err)
{
    return err == -EBADMSG || err == -EIO;
}

struct leg {
    struct round *round;
    unsigned node;
    enum message_kind asked; /* sent: what for */
    bool sent, ended;
    uint64_t sent_us, slow_us;
    struct list waiting; /* in client.waiting */
    struct call call;
    struct buf head;
    int err; /* ended: 0, or why there is no usable answer */
    /* err 0, and also for ANS_ERROR (err then tells its status); borrows from body */
    struct answer ans;
    struct blob *body;
    struct value value; /* verified bytes that came behind the head; borrows from body */
    /* of a large value on its way: bytes that are verified already; when to look next */
    size_t verified, verify_at;
};

/*
 * Legs 0..n_votes-1 are replicas of the key and vote; the rest only answer.
 */
struct round {
    struct client *c;
    struct op *op; /* NULL: nobody listens any more */
    void (*on_answer)(struct round *r, struct leg *leg);
    void (*on_late)(struct round *r, struct leg *leg); /* when nobody listens; may be NULL */
    struct ballot late_version;                        /* for on_late: what the others hold */
    uint64_t late_size;
    struct buf key;
    uint64_t deadline_us;
    unsigned in_flight;
    struct tally tally; /* of the first n_votes legs */
    unsigned n_votes, n;
    struct value body, tail; /* what is sent behind each head */
    struct leg legs[];
};

/*
 * A round of the op about its key; it becomes op->round, in place of one before it. need: how many
 * of n_votes decide. NULL without memory.
 */
struct round *round_new(struct op *op, struct span key, const unsigned *nodes, unsigned n,
                        unsigned n_votes, unsigned need,
                        void (*on_answer)(struct round *, struct leg *));
/* Sends m (ring and deadlines are filled in here) to one leg. Never calls back from inside. */
void round_send(struct round *r, unsigned i, struct message *m);
/* Leg i has said yes in an earlier round, in that incarnation: nothing is sent to it. */
void round_agreed(struct round *r, unsigned i, uint64_t incarnation);
/* When the slowest of those under way will have taken longer from now on than is usual for it. */
uint64_t round_hedge_us(const struct round *r);
/* Wakes the round's op then, if there is still another to ask. */
void round_hedge_later(struct round *r);
/* Nobody listens any more. op->round is NULL afterwards. */
void round_drop(struct op *op);
/* The index of the first leg not sent yet, or n. */
unsigned round_next(const struct round *r);
unsigned round_pending(const struct round *r); /* sent, not ended */
/* Is an answer to come of a node thought to be up? One that is down was asked in need. */
bool round_awaits(const struct round *r);
/*
 * When all that have not answered count as slow, and health was told: one may have frozen.
 * UINT64_MAX: all have.
 */
uint64_t round_slow_us(const struct round *r);
/* "2 of 3 needed, 1 answered; node-2: Connection refused" */
void round_explain(const struct round *r, struct err *why);
/*
 * Which error says best why the round failed: one that a retry will not mend when such errors alone
 * make a majority impossible (-ENOSPC, -EBADE, -EFBIG, -EINVAL, -EREMCHG, -EBADMSG of every
 * replica), else -EHOSTDOWN.
 */
int round_verdict(const struct round *r);
/* Was each node that answered followed by the feed from before it was asked (feed.h)? */
bool round_followed(const struct round *r);
/* What leg i failed with, where asking it again will not mend that; else 0. */
int round_lasting_err(const struct round *r, unsigned i);
/* Did a replica find the key damaged? */
bool round_found_damage(const struct round *r);
/*
 * The round is lost; but all who answered found damage, and others are still to answer: if those
 * find it too, that is the verdict, so they are waited for.
 */
bool round_damage_awaited(const struct round *r);

/* --- read repair (background.c) --------------------------------------------------------------- */

void background_init(struct background *b);
/*
 * A READ found this version settled, with a value of that size, and did not ask these nodes, which
 * are reordered: do they have it?
 */
void background_check(struct client *c, struct span key, struct ballot version, uint64_t size,
                      unsigned *nodes, unsigned n);
/* Some replica is behind, or damaged. size: of the value that may have to travel. */
void background_mend(struct client *c, struct span key, uint64_t size);
/* Does what the leg's node answered call for that? */
bool background_is_behind(const struct leg *leg, struct ballot version);

#endif

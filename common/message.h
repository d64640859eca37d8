/*
 * message.h - replica requests and their answers, as bytes. One codec for client, node and the
 * in-memory network of the tests.
 *
 * A message is a head (all fields, ending in a checksum) and, behind it, value bytes (verified by
 * record_verify). Byte tables: docs/protocol.md. Everything here borrows; nothing is kept.
 */
#ifndef KVFS_COMMON_MESSAGE_H
#define KVFS_COMMON_MESSAGE_H

#include "common/ballot.h"
#include "common/buf.h"
#include "common/record.h"

enum message_kind {
    MSG_PREPARE = 1, /* key, ballot, length */
    MSG_ACCEPT,      /* key, record (its version is the ballot); the value follows the head */
    MSG_READ,        /* key, offset, length, pin */
    MSG_LIST,        /* key = prefix, start_after, limit */
    MSG_HELLO,       /* sender's identity; also the health probe */
    MSG_DIGEST,      /* node, group, digest: do we hold the same? (docs/protocol.md, Repair) */
    MSG_KEYS,        /* node, buckets, start_after, limit: which keys, tombstones too */
    MSG_DROP,        /* key, ballot: forget this tombstone, which all replicas hold */
};

enum message_flags {
    /* PREPARE, READ: answer with the value (READ: the chunks of offset..offset+length) */
    MSG_WANT_VALUE = 1,
    MSG_PEEK = 2,       /* READ: tell also the first live key under key + "/" */
    MSG_SAME_VALUE = 4, /* ACCEPT: no value follows; it is the one stored under version `pin` */
    MSG_DELIMITER = 8,  /* LIST: roll up what follows the next '/' behind the prefix */
    /*
     * ACCEPT, of a node to itself: the record was settled among the other replicas. A recovering
     * node stores it whatever it promised; any other treats it as a plain ACCEPT.
     */
    MSG_RESTORE = 16,
};

#define MESSAGE_NODE_NONE UINT32_MAX  /* the sender is no node of the ring */
#define MESSAGE_GROUP_NONE UINT32_MAX /* DIGEST: of all groups */

/* Digests of what two nodes share are a tree: all keys, groups of buckets, buckets (digests.h). */
#define DIGEST_GROUPS 64u
#define DIGEST_BUCKETS (DIGEST_GROUPS * 64u)

/* HELLO: how much a node may say. */
enum node_state {
    NODE_WHOLE = 0,
    NODE_RECOVERING = 1, /* its store is new; it does not vote */
    /*
     * Only in answers: whole, and it began in a new cluster in which also the node that asks, in
     * the incarnation that it named, was new and empty.
     */
    NODE_COFOUNDER = 2,
    /* Only in requests: recovering, but enough others know of it, and it is about to vote. */
    NODE_ANNOUNCING = 3,
};

/*
 * HELLO, in `known`: added to a node's index where the incarnation is the newest of it that votes,
 * or announced that it is about to; the pair without it names the newest of all.
 */
#define KNOWN_WHOLE (1u << 31)

#define HELLO_TEXT_MAX 255u

struct message {
    enum message_kind kind;
    uint32_t flags;
    uint64_t ring;      /* fingerprint of the sender's ring */
    uint32_t budget_ms; /* dropped when not begun within this time of its arrival */
    /* in the receiver's own clock, from its last answer; 0: the sender has none yet */
    uint64_t deadline_ms;
    struct span key;
    struct ballot ballot; /* PREPARE; DROP: the tombstone's version */
    /* READ: the value only if the version is this one (none: any); SAME_VALUE */
    struct ballot pin;
    struct record record; /* ACCEPT */
    /* READ: the wanted part of the value. PREPARE: only a value that is no longer than length */
    uint64_t offset, length;
    /* LIST, KEYS: position in key order, exclusive; empty: from the start */
    struct span start_after;
    uint32_t limit; /* LIST, KEYS: entries */
    /*
     * HELLO: index of the sender in the ring or MESSAGE_NODE_NONE. DIGEST, KEYS: the node with
     * which the keys are shared, usually the sender.
     */
    uint32_t node;
    uint64_t incarnation; /* HELLO of a node: its incarnation */
    uint8_t recovering;   /* HELLO of a node: enum node_state */
    uint32_t group;       /* DIGEST: which group, or MESSAGE_GROUP_NONE for all of them */
    uint64_t digest;      /* DIGEST: the sender's own, of the same */
    struct span buckets;  /* KEYS: a bitmap of DIGEST_BUCKETS bits, lowest first; empty: all */
};

enum answer_kind {
    ANS_PROMISE = 1, /* record; the value when asked for and at hand */
    ANS_REFUSE,      /* ballot: the highest it knows for the key */
    ANS_ACCEPTED,
    ANS_STATE,      /* READ: record, value; peek */
    ANS_NEED_VALUE, /* SAME_VALUE, but that version is not here */
    ANS_LIST,       /* entries follow the head, see message_entry_next(); more */
    ANS_HELLO,      /* floor, state, and what is known of the store */
    ANS_ERROR,      /* status, text */
    ANS_DIGEST,     /* same; else n_digests of the groups, or of the group's buckets */
    ANS_KEYS,       /* entries follow the head, as those of LIST; more, next */
};

/*
 * Flag of an entry: this node's record of the key is damaged, or, of a rolled-up prefix, of some
 * key below it, and none that it can read there is live. It has no other flag, and version none: it
 * says nothing about the key, which other replicas must settle.
 */
#define ENTRY_DAMAGED (1u << 31)

/* One line of a listing, of a key or of all keys below a common prefix. */
struct entry {
    /*
     * For a rolled-up prefix: the first live key below it on this node, the witness; where all are
     * dead, the first of them, with a digest of them all in rdev.
     */
    struct span key;
    /* 0: the key itself; else how many bytes of `key` are the prefix that it stands for */
    uint32_t prefix_len;
    struct ballot version;
    uint32_t flags; /* enum record_flags; tombstones are listed */
    uint64_t size;
    uint32_t mode, uid, gid;
    uint64_t rdev;
    int64_t mtime_ns, ctime_ns, atime_ns;
};

struct answer {
    enum answer_kind kind;
    uint64_t clock_ms;    /* the node's own clock: what deadline_ms of later messages counts in */
    uint64_t incarnation; /* of the node that answers */
    uint32_t n_known;     /* what it knows of the other nodes, ring order of ids */
    struct span known;    /* n_known pairs: u32 node index, u64 incarnation; see answer_known() */
    struct ballot ballot; /* REFUSE */
    struct record record; /* PROMISE, STATE */
    /* value bytes follow the head, from value_offset (a multiple of CHUNK_SIZE) on */
    bool has_value;
    uint64_t value_offset;
    bool has_peek; /* a live key below key + "/" is here: */
    struct entry peek;
    uint32_t n_entries; /* LIST, KEYS */
    /* LIST: stopped at the limit; complete up to the last entry. KEYS: complete up to next */
    bool more;
    struct span next; /* KEYS: start_after of the next page; a page may have no entries at all */
    uint64_t floor;   /* HELLO: counters reserved by this node's promises */
    uint64_t disk_free, disk_total, n_keys, n_bytes;
    uint8_t recovering;  /* HELLO: enum node_state */
    struct span store;   /* HELLO: its kind, "rocksdb"; at most HELLO_TEXT_MAX bytes, as is: */
    struct span ailment; /* HELLO: why the node's store does not work, for people; empty: it does */
    bool same;           /* DIGEST: as the request's */
    uint32_t n_digests;  /* DIGEST: DIGEST_GROUPS where not the same, else 0 */
    struct span digests; /* n_digests times u64; see answer_digest() */
    uint32_t status;     /* ERROR: as in HTTP */
    struct span text;    /* ERROR: for people; of 421: the replicas, of 409: its ring, as JSON */
};

/* Head of a request; value bytes are sent behind it. */
void message_encode(struct buf *out, const struct message *m);
/*
 * Decodes the head at the start of `bytes`. *head_len: where the value begins. -EAGAIN: more bytes
 * are needed (*head_len: how many the head has, 0 while unknown); -EBADMSG, -EPROTO as
 * record_decode; -EFBIG: a head over MESSAGE_HEAD_MAX. The record is decoded (and verified) against
 * key.
 */
int message_decode(struct span bytes, struct message *out, size_t *head_len);

/*
 * key: what was asked about, which the checksum of the record in a PROMISE or STATE covers; empty
 * for the other kinds.
 */
void answer_encode(struct buf *out, struct span key, const struct answer *a);
/* The same for an answer, with the same key. */
int answer_decode(struct span bytes, struct span key, struct answer *out, size_t *head_len);
/* The i-th pair of a->known. */
void answer_known(const struct answer *a, uint32_t i, uint32_t *node, uint64_t *incarnation);
/* The i-th of a->digests. */
uint64_t answer_digest(const struct answer *a, uint32_t i);
void answer_add_known(struct buf *known, uint32_t node, uint64_t incarnation);

void entry_encode(struct buf *out, const struct entry *e);
/* Next entry of an ANS_LIST or ANS_KEYS body. 1: an entry (borrows), 0: the end, -EBADMSG. */
int entry_next(struct cursor *c, struct entry *out);
/* The entry of a record. */
void entry_of_record(struct entry *out, struct span key, const struct record *r);
/* Of a key whose record is damaged. */
void entry_of_damage(struct entry *out, struct span key);

#endif

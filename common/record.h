/*
 * record.h - what a replica keeps of a key beside the value's bytes, and its one encoding, which
 * disk, wire and listings share (byte table in docs/protocol.md; a sample of each version in
 * tests/golden/).
 */
#ifndef KVFS_COMMON_RECORD_H
#define KVFS_COMMON_RECORD_H

#include "common/ballot.h"
#include "common/buf.h"
#include "common/limits.h"

enum record_flags {
    RECORD_TOMBSTONE = 1, /* deleted: no value, no attributes */
};

/* Attribute kinds in `attrs`. */
enum attr_kind {
    ATTR_CONTENT_TYPE = 1, /* name empty, value: the media type */
    ATTR_XATTR = 2,        /* name: with its namespace ("user.x"), value: its bytes */
};

/*
 * version is BALLOT_NONE for a key never written; then nothing else is set. attrs and sums are
 * borrowed from the bytes a record was decoded from, or owned by whoever built it: see the holder.
 */
struct record {
    struct ballot version;
    uint32_t flags;
    uint64_t seq; /* how many writes led here */
    uint8_t n_recent;
    uint64_t recent[RECENT_MAX]; /* ids of the last writes, newest first */
    uint64_t size;               /* bytes of the value */
    /* st_mode with type; 0: nobody set file attributes (stored over HTTP) */
    uint32_t mode;
    uint32_t uid, gid;
    /* devices: their number in the high half; else a number of the file's own, or 0: its st_ino */
    uint64_t rdev;
    int64_t mtime_ns, ctime_ns, atime_ns; /* since the epoch; for people, never for order */
    struct span attrs;                    /* encoded list of attributes, see attr_* below */
    /* 8 bytes (u64) per CHUNK_SIZE of the value: XXH3 of that chunk */
    struct span sums;
};

static inline bool record_is_live(const struct record *r)
{
    return !ballot_is_none(r->version) && !(r->flags & RECORD_TOMBSTONE);
}

/*
 * Did the same write make both? The version alone does not tell: who settles a key stores its
 * record again, unchanged, under a version of his own.
 */
bool record_same_write(const struct record *a, const struct record *b);

/* Number of chunks of a value of this size; the empty value has none. */
uint64_t record_n_chunks(uint64_t size);

/*
 * Appends the encoding, which ends in a checksum over key and all that stands before it. Asserts
 * that sums fit size.
 */
void record_encode(struct buf *out, struct span key, const struct record *r);
/*
 * Reads one record that fills `bytes` exactly; attrs and sums borrow from it. -EBADMSG: cut, wrong
 * magic, impossible lengths, wrong checksum (also when stored under another key). -EPROTO: a format
 * version from the future. *out only on success.
 */
int record_decode(struct span bytes, struct span key, struct record *out);

/* Computes the checksums of a whole value into `out` (8 bytes per chunk). */
void record_sums(struct buf *out, struct span value);
/*
 * Are these bytes the value of r from offset (a multiple of CHUNK_SIZE) on? data.len is whole
 * chunks, or reaches the end. 0, -EBADMSG (damaged), -EINVAL (bad range).
 */
int record_verify(const struct record *r, uint64_t offset, struct span data);

/* A record with memory of its own: attrs and sums point into `own`. {0} is none. */
struct record_copy {
    struct record rec;
    struct buf own;
};
/* Deep copy; 0 or -ENOMEM. *out must be {0} or finished. */
int record_copy(const struct record *r, struct record_copy *out);
void record_copy_fini(struct record_copy *c);

/* Appends an attribute to an encoded list. Asserts the limits. */
void attr_add(struct buf *list, enum attr_kind kind, struct span name, struct span value);
/*
 * Steps through a list: *pos starts at 0. 1: an attribute, 0: the end, -EBADMSG. Spans borrow from
 * list.
 */
int attr_next(struct span list, size_t *pos, enum attr_kind *kind, struct span *name,
              struct span *value);
/* Finds one. 0, -ENODATA, -EBADMSG. */
int attr_find(struct span list, enum attr_kind kind, struct span name, struct span *value);

#endif

/*
 * store.h - seam: one node's durable map of key -> (record, value), and a few named values of the
 * node itself.
 *
 * store_rocksdb.c keeps it on disk, store_redis.c in a Redis of the node's own, store_memory.c in
 * memory. All calls from any thread; they block on the disk, or on that Redis for some seconds at
 * most, never on other nodes. The replica serialises changes of one key by its own locks:
 * stores need only make each call atomic.
 */
#ifndef KVFS_NODE_STORE_H
#define KVFS_NODE_STORE_H

#include <stdbool.h>

#include "common/buf.h"
#include "common/err.h"

struct store;
struct store_iter;
struct store_file;
struct store_reader;

struct store_reader_ops {
    /*
     * All of len bytes at offset. 0; -EBADMSG: it is shorter, or its disk cannot read it; else the
     * store cannot be asked now, which says nothing of the value.
     */
    int (*read)(struct store_reader *r, void *out, size_t len, uint64_t offset);
    void (*close)(struct store_reader *r);
};

/* A large value, open: it stays what it was, whatever is put meanwhile. One thread at a time. */
struct store_reader {
    const struct store_reader_ops *ops;
    uint64_t size;
};

/* One key as it was at one moment: record and value belong together. */
struct store_item {
    /*
     * encoded (record.h), as it was put; len 0: the key is not there. The reader decodes and so
     * verifies it
     */
    struct buf record;
    struct value value;         /* with want_value: an inline value */
    struct store_reader *large; /* with want_value: a large one, else NULL */
};

#define STORE_ITEM_NONE ((struct store_item){.large = NULL})

struct store_stats {
    /* bytes of the file system below, bytes, live estimate */
    uint64_t disk_free, disk_total, n_keys;
    uint64_t n_bytes; /* about what keys, records and values take */
};

struct store_ops {
    /* 0 (also for an absent key), -EBADMSG (its own checksum failed), -EIO, -EHOSTDOWN, ... */
    int (*get)(struct store *s, struct span key, bool want_value, struct store_item *out);
    /*
     * Replaces record and value in one atomic step that is durable, as the fsync mode says, when
     * this returns 0. Exactly one kind of value: inline bytes (<= INLINE_VALUE_MAX; also the empty
     * value and tombstones); `file` (taken on success; still the caller's on failure); or keep: the
     * value stays. An error means: perhaps stored (a later get tells, for good); after a failed
     * write or sync every later put fails with -EIO until reopened, full disk (-ENOSPC) apart;
     * after -EHOSTDOWN (the store cannot be reached) whichever call succeeds next finds it decided.
     */
    int (*put)(struct store *s, struct span key, struct span record, struct span value,
               struct store_file *file, bool keep);
    /* Forgets a key altogether. */
    int (*drop)(struct store *s, struct span key);

    /*
     * A large value on its way in: written piece by piece, made durable by put(). Not thread safe
     * per file.
     */
    int (*file_begin)(struct store *s, uint64_t size, struct store_file **out);
    int (*file_write)(struct store_file *f, struct span part);
    /* all written: fsync as the mode says; before put() and outside any lock, for it takes long */
    int (*file_finish)(struct store_file *f);
    void (*file_abort)(struct store_file *f); /* NULL is allowed */

    /*
     * A consistent view of all keys in byte order. record: as stored. Spans are valid until the
     * next call on the iterator.
     */
    int (*iter_new)(struct store *s, struct store_iter **out);
    void (*iter_seek)(struct store_iter *it, struct span key); /* to the first key >= key */
    bool (*iter_valid)(struct store_iter *it);
    void (*iter_next)(struct store_iter *it);
    struct span (*iter_key)(struct store_iter *it);
    struct span (*iter_record)(struct store_iter *it);
    int (*iter_err)(struct store_iter *it); /* why it is no longer valid: 0 at the end */
    void (*iter_free)(struct store_iter *it);

    /*
     * Values of the node: identity, incarnations, floor. put is synced whatever the mode. get:
     * -ENOENT.
     */
    int (*state_get)(struct store *s, const char *name, struct buf *out);
    int (*state_put)(struct store *s, const char *name, struct span value);

    /* at once: a store behind a network tells what it saw last */
    int (*stats)(struct store *s, struct store_stats *out);
    int (*probe)(struct store *s); /* can it write and sync right now? */
    /*
     * What it does of its own accord, from time to time; by one thread, which may wait for the
     * disk. NULL: nothing.
     */
    void (*tend)(struct store *s);
    /*
     * 0, or -EBADMSG for good once the store itself, and not only one record of it, was found
     * damaged: why says how. It never will be whole again.
     */
    int (*damage)(struct store *s, struct err *why);
    /*
     * It refuses writes for a reason that has passed, and only closing and opening it helps: found
     * out by tend(). NULL: it never does.
     */
    bool (*stuck)(struct store *s);
    /* In words, why calls fail just now; "" when they do not. NULL: the errno says all. */
    void (*explain)(struct store *s, struct err *out);
    void (*close)(struct store *s);
    const char *kind; /* as --store names it */
};

struct store {
    const struct store_ops *ops;
};

enum store_fsync { STORE_FSYNC_ALWAYS, STORE_FSYNC_EVERYSEC, STORE_FSYNC_NEVER };

/*
 * Opens or creates DIR (mode 0700), locked against a second process (-EBUSY). node_id: a directory
 * bound to another node's id is refused (-EINVAL), a new one is bound to it. Sweeps orphaned value
 * files of a crash.
 *
 * A damaged store is set aside (set_aside.h), and a new one made in its place; -EBADMSG: it is
 * damaged and stays, err says why. Whatever else fails (rights, space, the device) changes nothing.
 *
 * *fresh: the store is new. *distrusted: it may have lost the last that it acknowledged, by a power
 * loss under a mode that allows it. So does every later start say, until store_rocksdb_trust().
 */
int store_rocksdb_open(const char *dir, const char *node_id, enum store_fsync mode,
                       struct store **out, bool *fresh, bool *distrusted, struct err *err);
/* What *distrusted told has been taken to heart, durably. */
int store_rocksdb_trust(struct store *s);
/*
 * DIR, closed or about to be, is damaged: the next store_rocksdb_open() sets it aside. Durable when
 * this returns 0; -EBADMSG: that was done too often (set_aside.h).
 */
int store_rocksdb_condemn(const char *dir, const char *why, struct err *err);
/* Gone when closed. */
int store_memory_open(struct store **out);

void store_item_fini(struct store_item *item);
void store_reader_close(struct store_reader *r); /* NULL is allowed */
/* Reads a file by its descriptor, which is the reader's from here. 0; it is closed: -errno. */
int store_reader_of_fd(int fd, struct store_reader **out);
/* Is there no key at all, tombstones included? Looks, where stats() estimates. Blocks. */
int store_is_empty(struct store *s, bool *out);
/* In words, what a call's error means: what the store says, or the errno. */
void store_explain(struct store *s, int error, struct err *out);
bool store_is_stuck(struct store *s); /* false, too, where it never is */
/* Writes all of it. 0 or -errno. */
int store_write_all(int fd, struct span bytes);

#endif

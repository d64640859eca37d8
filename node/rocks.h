/*
 * rocks.h - RocksDB, as far as it is used here: sorted keys in a few families, changed together in
 * atomic batches.
 *
 * rocks.c is the only user of the library. All calls from any thread; an iterator or batch belongs
 * to one at a time. Errors: -EBADMSG (damage, found by a checksum or because a file is gone),
 * -ENOSPC, -EIO; the text of the first of a row of like ones is logged.
 */
#ifndef KVFS_NODE_ROCKS_H
#define KVFS_NODE_ROCKS_H

#include <stdatomic.h>
#include <stdbool.h>

#include "common/buf.h"
#include "common/err.h"

enum rocks_family { ROCKS_STATE, ROCKS_META, ROCKS_DATA, ROCKS_N_FAMILIES };

struct rocks;
struct rocks_batch;
struct rocks_iter;

/*
 * Opens or creates the database in the directory `path`. -EBADMSG: it is there and damaged.
 * forgive: of a damaged log what is before the damage is taken; else it is refused. *broken, which
 * outlives it: set when a write or sync failed, here or by who else writes to the
 * same disk.
 */
int rocks_open(const char *path, bool forgive, atomic_bool *broken, struct rocks **out,
               struct err *err);
void rocks_close(struct rocks *r);
/*
 * Calls fn once, at once or when it is first found, with what rocks_damage() says; on the thread
 * that found it, which may hold any lock but those of this module.
 */
typedef void rocks_damage_fn(void *arg, const char *why);
void rocks_on_damage(struct rocks *r, rocks_damage_fn *fn, void *arg);

/*
 * Bytes that belong to the database's memory until rocks_slice_fini(). data NULL: the key is not
 * there.
 */
struct rocks_slice {
    struct span bytes;
    void *pin;
};
#define ROCKS_SLICE_NONE ((struct rocks_slice){0})
int rocks_get(struct rocks *r, enum rocks_family family, struct span key, struct rocks_slice *out);
void rocks_slice_fini(struct rocks_slice *s);

/* NULL without memory. */
struct rocks_batch *rocks_batch_new(struct rocks *r);
void rocks_batch_free(struct rocks_batch *b); /* accepts NULL */
/* The value is `head` and `body` behind each other. */
void rocks_batch_put(struct rocks_batch *b, enum rocks_family family, struct span key,
                     struct span head, struct span body);
void rocks_batch_delete(struct rocks_batch *b, enum rocks_family family, struct span key);
/*
 * All of it or nothing; sync: durable when this returns 0, in one sync with what other threads
 * write at the same time. After a failure other than -ENOSPC (*broken) every later write fails
 * with -EIO: what is on the disk is no longer known. A full disk passes once there is room.
 */
int rocks_write(struct rocks_batch *b, bool sync);
/*
 * Where more was written than it can keep up with, a write waits, for as long as the disk is full
 * if need be: may it? Otherwise, -ENOSPC. Any thread; without this, it may.
 */
typedef bool rocks_may_wait_fn(void *arg);
void rocks_on_stall(struct rocks *r, rocks_may_wait_fn *fn, void *arg);
/* Makes all that was written before durable. Fails as rocks_write. */
int rocks_sync(struct rocks *r);

/*
 * May tables be rewritten in the background (compaction)? Not after rocks_open(), until told. One
 * that is under way goes on to its end. For it must never meet the end of the disk: the library
 * then refuses all writes, deletes too, until as much is free as all that it was rewriting. Writes
 * a little to the disk.
 */
void rocks_let_rewrite(struct rocks *r, bool may);
/* At most so many bytes does rewriting need for the time until what it replaces is removed. */
int rocks_rewrite_room(struct rocks *r, uint64_t *out);
/*
 * Space that deleted values took comes back only when tables are rewritten: gets the library to
 * begin, and does not wait for it. False: not now, for an earlier table is still on its way.
 */
bool rocks_give_back(struct rocks *r, enum rocks_family family);
/* 0, or -EBADMSG for good once damage was found: `why` is the first that was. Any thread. */
int rocks_damage(struct rocks *r, struct err *why);

/* A consistent view of one family; NULL without memory. It stands nowhere until the first seek. */
struct rocks_iter *rocks_iter_new(struct rocks *r, enum rocks_family family);
void rocks_iter_free(struct rocks_iter *it);
void rocks_iter_seek(struct rocks_iter *it, struct span key);
bool rocks_iter_valid(struct rocks_iter *it);
void rocks_iter_next(struct rocks_iter *it);
struct span rocks_iter_key(struct rocks_iter *it);
struct span rocks_iter_value(struct rocks_iter *it);
int rocks_iter_err(struct rocks_iter *it);

/* About how many keys a family has. */
int rocks_n_keys(struct rocks *r, enum rocks_family family, uint64_t *out);
/* About how many bytes all families take, those in memory included. 0 or -EIO. */
int rocks_size(struct rocks *r, uint64_t *out);

#endif

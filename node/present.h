/*
 * present.h - a key as this node's store has it now: its record, and perhaps its value; whether
 * they are whole; and what the digests say of it. Part of the replica, for nobody else.
 */
#ifndef KVFS_NODE_PRESENT_H
#define KVFS_NODE_PRESENT_H

#include "node/replica.h"

enum present_state {
    PRESENT_WHOLE,          /* as far as was read */
    PRESENT_DAMAGED_VALUE,  /* rec is as it was stored; the value is not */
    PRESENT_DAMAGED_RECORD, /* rec is that of version none, and says nothing */
};

/*
 * rec borrows from item, which may be copied but not used after present_fini(). A key never written
 * has a whole record of version none.
 */
struct present {
    enum present_state state;
    struct store_item item;
    struct record rec;
};
#define PRESENT_NONE ((struct present){.item = STORE_ITEM_NONE})

/* 0, also when damaged; -EIO, -ENOMEM, -EPROTO, ... With or without the key's lock. */
int present_load(struct replica *r, struct span key, bool want_value, struct present *out);
void present_fini(struct present *p);

/*
 * What was found damaged is refused from now on, until it is stored anew, and told. _locked: the
 * key's slot is. The other one locks it and looks again, for it may have been stored anew since, or
 * even while it was loaded. version: whose value is not what its record means, or, none, it was
 * loaded as damaged.
 */
void present_damaged_locked(struct replica *r, struct span key);
void present_damaged(struct replica *r, struct span key, struct ballot version);

/*
 * Put and drop of the store, counted in the digests; before: as it was loaded under the lock, which
 * still is held. They need a free disk and a store that works: an error is noted as a doubt (see
 * check_certain() in replica_key.c).
 */
struct present_put {
    struct ballot version;
    struct span record, value;
    struct store_file *file; /* taken on success */
    bool keep;
};
int present_put_locked(struct replica *r, struct span key, const struct present *before,
                       const struct present_put *put);
int present_drop_locked(struct replica *r, struct span key, const struct present *before);

/*
 * The walk that counts the digests has come to a key: its record in the walk's view of the store.
 * Under no lock.
 */
int present_count(struct replica *r, struct span key, struct span record);

#endif

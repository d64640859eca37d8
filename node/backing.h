/*
 * backing.h - the store that a node keeps its data in, of the kind that the command line names:
 * opened, trusted again, condemned.
 */
#ifndef KVFS_NODE_BACKING_H
#define KVFS_NODE_BACKING_H

#include "node/options.h"

struct backing {
    const struct options *opts;
    char dir[4096]; /* the data directory; "" where there is none */
    struct redis_url redis;
    struct store *store; /* the caller closes it */
    bool distrusted;     /* it may have lost the last that it acknowledged; see store.h */
};

/* It is not there yet, for this reason, and is waited for. */
typedef void backing_waits_fn(void *arg, const char *why);
/*
 * Borrows opts. waits(arg, why): from within, time and again, until a signal that ends this process
 * is pending (-ECANCELED). -EBADMSG: it is damaged, and stays. err says why; then, too,
 * backing_fini().
 */
int backing_open(struct backing *b, const struct options *opts, backing_waits_fn *waits, void *arg,
                 struct err *err);
void backing_fini(struct backing *b);              /* the store is closed; {0} is allowed */
const char *backing_name(const struct backing *b); /* for people: where the data is */

/* What distrusted told has been taken to heart, durably. */
int backing_trust(struct backing *b);
/* May the node begin anew where its store makes no sense? Else err gets how to go on. */
bool backing_renewable(const struct backing *b, struct err *err);
/* As store_rocksdb_condemn(); the store may be open. -EBUSY: it is somebody else's now. */
int backing_condemn(struct backing *b, const char *why, struct err *err);

#endif

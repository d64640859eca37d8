/*
 * relay.h - bytes that come on a thread which must not wait for a disk, handed on to a worker
 * that may: in order, in larger pieces, and no more than a few at a time.
 *
 * One side brings the bytes and is told to pause while the other is behind; the other takes them
 * on one of the workers, one piece at a time. arg, which the callbacks get, is the relay's: it is
 * freed when neither side can come to it any more.
 */
#ifndef KVFS_COMMON_RELAY_H
#define KVFS_COMMON_RELAY_H

#include "common/buf.h"
#include "common/workers.h"

struct relay;

/* What relay_add() holds before it says RELAY_FULL; the same again is with the worker. */
#define RELAY_LEN (256u << 10)
#define RELAY_FULL 1

struct relay_ops {
    /* On a worker: the next bytes. After an error nothing is taken any more. */
    int (*take)(void *arg, struct span part);
    /* On a worker, once for each RELAY_FULL, perhaps before the call that says so has returned. */
    void (*room)(void *arg);
    /*
     * On a worker, once after relay_end(). 0: all was taken; else why not, -ECANCELED where the
     * workers are hurried.
     */
    void (*ended)(void *arg, int err);
    /* Any thread, the last of all: arg may go. */
    void (*free)(void *arg);
};

/* ops are borrowed; arg is taken on success. 0 or -ENOMEM. */
int relay_new(struct workers *w, const struct relay_ops *ops, void *arg, struct relay **out);
/*
 * 0; RELAY_FULL: taken, but bring no more before room(); or why nothing is taken any more: what
 * take() said, -ENOMEM, -ECANCELED. Never blocks, as all of these.
 */
int relay_add(struct relay *r, struct span part);
/* That was all; ended() comes, from elsewhere and perhaps before this returns. */
void relay_end(struct relay *r);
/*
 * The side that brings the bytes is done with it. No other callback than free() begins any more;
 * one may be under way. NULL is allowed.
 */
void relay_free(struct relay *r);

#endif

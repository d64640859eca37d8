/*
 * gather.h - an answer too large for memory, as it comes: workers write it to its temporary file
 * (spool.h), so that the loop that hears it, and all others on it, never wait for the disk.
 *
 * All functions and callbacks are of the loop's thread.
 */
#ifndef KVFS_COMMON_GATHER_H
#define KVFS_COMMON_GATHER_H

#include "common/relay.h"

struct gather;

struct gather_opts {
    struct workers *workers; /* borrowed, as is: */
    struct loop *loop;
    size_t len; /* of the whole answer */
    /* The first `written` bytes of the answer, which is the gather's, may be read. */
    void (*progress)(void *arg, struct blob *answer, size_t written);
    /* After gather_add() said RELAY_FULL: there is room again. May free the gather. */
    void (*room)(void *arg);
    /* After gather_end(): all is written, or why not. The answer is the callback's. */
    void (*done)(void *arg, int err, struct blob *answer);
    void *arg;
};

int gather_new(const struct gather_opts *opts, struct gather **out); /* 0 or -ENOMEM */
/* As relay_add(); -EFBIG: more than the whole. */
int gather_add(struct gather *g, struct span part);
/* Done, once all has come: -EPROTO where it was less than the whole. */
void gather_end(struct gather *g);
/* No callback comes any more. NULL is allowed. */
void gather_free(struct gather *g);

#endif

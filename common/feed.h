/*
 * feed.h - follows the change feeds (GET /watch) of all nodes, on one I/O thread, so that what was
 * read can be kept until it changes.
 *
 * What may be kept, and how long. Nothing, while not live. Where the result of a read or a listing
 * says `followed` (client.h), every node that answered was followed from before it was asked: each
 * write that the result does not show, and that is ever acknowledged, will be told by changed(),
 * unless live(false) comes first. Other results may be used, not kept. A write's own result may be
 * kept where the write began while live. What is fetched while a change of its key, or live(), is
 * told must not be kept either: compare a generation taken before the fetch began.
 *
 * The argument stands in docs/protocol.md, "Change feed".
 */
#ifndef KVFS_COMMON_FEED_H
#define KVFS_COMMON_FEED_H

#include <stdbool.h>

#include "common/ballot.h"
#include "common/buf.h"
#include "common/client.h"
#include "common/transport.h"

struct feed;

enum feed_kind { FEED_PUT, FEED_DELETE };

struct feed_opts {
    struct client *client; /* borrowed, as is transport: those of the guest's thread (cluster.h) */
    struct transport *transport;
    /*
     * Some node stored this version of the key, or says again that it has: each replica tells, and
     * repair does later, so most come three times, and older ones may come after newer ones. Comes
     * also while not live. key borrowed. Must not block, nor call into the feed.
     */
    void (*changed)(void *arg, struct span key, struct ballot version, enum feed_kind kind);
    /*
     * true: of every replica set so many nodes are followed that no write can be acknowledged
     * without being told, from a moment before this call on (within milliseconds, and within
     * FEED_SILENT_US at the worst: a node that froze). false: that ended, and all that was kept may
     * be stale. Where one node is lost and the others still cover, false is followed by true at
     * once: what was kept on the lost one's word has to go. Begins as false, untold. Must not
     * block, nor call into the feed.
     */
    void (*live)(void *arg, bool live);
    void *arg;
};

/* A node says something at least every 250 ms; one that was silent for so long is lost. */
#define FEED_SILENT_US 1000000u

/* Starts by itself. On the thread, or before it runs. 0 or -ENOMEM. */
int feed_new(const struct feed_opts *opts, struct feed **out);
/*
 * On the thread. Nothing is told any more; idle(idle_arg) comes once, at once or later, when
 * nothing is under way; then feed_free().
 */
void feed_stop(struct feed *f, void (*idle)(void *idle_arg), void *idle_arg);
void feed_free(struct feed *f); /* NULL is allowed */

#endif

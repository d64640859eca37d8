/*
 * lobby.h - a node whose store is not there yet: it listens, and everyone who asks for anything is
 * told for what it waits (503).
 */
#ifndef KVFS_NODE_LOBBY_H
#define KVFS_NODE_LOBBY_H

#include "common/clock.h"
#include "common/err.h"

struct listener;
struct lobby;

/* Takes *listener, which is bound, and leaves it NULL; on success. */
int lobby_open(struct listener **listener, struct clock *clock, struct lobby **out,
               struct err *err);
/* For what it waits, in words, from now on. Copied. */
void lobby_say(struct lobby *l, const char *why);
void lobby_close(struct lobby *l); /* the listener, too; accepts NULL */

#endif

/*
 * set_aside.h - a damaged store is moved out of the way, with the reason, and never deleted:
 * DIR/damaged-20260102T030405Z/ gets what was in DIR, and a file REASON.
 *
 * Below DIR and not beside it: DIR may be a mount point, a link, or stand where nobody but root may
 * make names; and its lock is held throughout.
 *
 * In two steps. A note, DIR/damaged, tells that what is in DIR is damaged: while it is there nobody
 * opens that. Whoever opens DIR next moves it; the note goes last, so that a crash leaves no half.
 *
 * A machine whose memory or disk keeps flipping bits must not fill its disk with damaged stores:
 * not again within SET_ASIDE_EVERY_S, and not while SET_ASIDE_MAX of them are there.
 */
#ifndef KVFS_NODE_SET_ASIDE_H
#define KVFS_NODE_SET_ASIDE_H

#include "common/err.h"

#define SET_ASIDE_EVERY_S 600
#define SET_ASIDE_MAX 3u

/*
 * Writes the note, durably. -EBADMSG: refused, for one of the two limits, err tells which and how
 * to go on; else of the failing call.
 */
int set_aside_note(const char *dir, const char *why, struct err *err);
/* Moves what is in dir, where there is a note. The caller holds the lock of dir. */
int set_aside_noted(const char *dir, struct err *err);

#endif

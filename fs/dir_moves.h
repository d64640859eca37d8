/*
 * dir_moves.h - the directories that this mount is just moving, and those that are being used. The
 * kernel lets programs go on in a directory while it is renamed; what they make or store there
 * meanwhile would land under the old name, behind the back of who moves the keys, and what has
 * moved already would not be found.
 *
 * So who looks for, makes or removes a name first enters its directory; who moves one waits until
 * nobody is in it any more, and lets nobody enter until it has moved. Nobody waits for a directory
 * while he is in another, but for who moves what is in it: for those who are in that. As a
 * directory never moves into itself, and the kernel lets one at a time change its parent, they
 * cannot wait for each other.
 */
#ifndef KVFS_FS_DIR_MOVES_H
#define KVFS_FS_DIR_MOVES_H

#include <pthread.h>
#include <stdatomic.h>

#include "common/list.h"
#include "common/buf.h"
#include "fs/caller.h"

struct dir_moves {
    _Atomic unsigned n;   /* that have begun, and not ended */
    pthread_mutex_t lock; /* all below */
    pthread_cond_t changed;
    struct list moves, uses;
    uint64_t n_ended;
};

struct dir_move {
    struct list link;
    struct span from; /* its prefix */
    bool alone;       /* nobody is in it: the keys may move */
};

struct dir_use {
    struct list link;
    struct span prefix;
};

void dir_moves_init(struct dir_moves *d);
void dir_moves_fini(struct dir_moves *d); /* none is under way */

/*
 * From now on nobody enters it, or what is below; waits until those who have are out, so that it
 * moves, until its end. 0, or -EINTR: it has not begun. m, and from, are borrowed.
 */
int dir_moves_begin(struct dir_moves *d, struct caller *who, struct dir_move *m, struct span from);
void dir_moves_end(struct dir_moves *d, struct dir_move *m);

/* Does the key lie in one that moves? Never blocks; cheap while none moves. */
bool dir_moves_has(struct dir_moves *d, struct span key);

/* How many moves have ended: to be asked before the prefix of what is to be entered is. */
uint64_t dir_moves_ended(struct dir_moves *d);
/*
 * Enters both directories at once, or none; b may be NULL. Their prefixes, borrowed, are as they
 * were when so many moves had ended. 0; -EAGAIN: they may have moved since; -EBUSY: one moves.
 * Never blocks.
 */
int dir_moves_enter(struct dir_moves *d, uint64_t n_ended, struct dir_use *a, struct dir_use *b);
void dir_moves_leave(struct dir_moves *d, struct dir_use *u); /* one that was entered */
/* Waits, a short while, for the end of any after so many: who waits must notice that it is to
 * stop. */
void dir_moves_wait_step(struct dir_moves *d, uint64_t n_ended);

#endif

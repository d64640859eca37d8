/*
 * dir_moves.h - the directories that this mount is just moving. The kernel lets programs go on in a
 * directory while it is renamed; what they store there meanwhile would land under the old name,
 * behind the back of who moves the keys.
 */
#ifndef KVFS_FS_DIR_MOVES_H
#define KVFS_FS_DIR_MOVES_H

#include <pthread.h>
#include <stdatomic.h>

#include "common/list.h"
#include "common/buf.h"
#include "fs/caller.h"

struct dir_moves {
    _Atomic unsigned n;
    pthread_mutex_t lock; /* of the list */
    pthread_cond_t ended; /* one of them */
    struct list moves;
};

struct dir_move {
    struct list link;
    struct span from; /* its prefix */
};

void dir_moves_init(struct dir_moves *d);
void dir_moves_fini(struct dir_moves *d); /* none is under way */

/* From now on it moves, until its end. m, and from, are borrowed. */
void dir_moves_begin(struct dir_moves *d, struct dir_move *m, struct span from);
void dir_moves_end(struct dir_moves *d, struct dir_move *m);

/* Does the key lie in one that moves? Never blocks; cheap while none moves. */
bool dir_moves_has(struct dir_moves *d, struct span key);
/* Waits, a short while, for the end of any: who waits must notice that it is to stop. */
void dir_moves_wait_step(struct dir_moves *d);

#endif

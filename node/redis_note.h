/*
 * redis_note.h - what a node's data directory knows of its Redis: the file DIR/redis, one line "1
 * STORE LIFE TOKEN STATE SEQ".
 */
#ifndef KVFS_NODE_REDIS_NOTE_H
#define KVFS_NODE_REDIS_NOTE_H

#include <stdint.h>

enum redis_note_state {
    REDIS_NOTE_NONE,   /* there is no file */
    REDIS_NOTE_OPEN,   /* used; or a process that used it was killed */
    REDIS_NOTE_CLOSED, /* stopped in good order */
    REDIS_NOTE_LOST,   /* not to be trusted until the replica has taken it to heart */
};

/* Which life of which store was the last here (redis_claim.h). */
struct redis_note {
    enum redis_note_state state;
    uint64_t store, life, token;
    uint64_t seq; /* closed: how many changes there were then */
};

/* 0, also where there is none; -EBADMSG: it makes no sense; -EIO, ... */
int redis_note_read(const char *dir, struct redis_note *out);
/* Durable when this returns 0. */
int redis_note_write(const char *dir, const struct redis_note *n);

#endif

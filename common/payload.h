/*
 * payload.h - the bytes of one request and of its answer: given out in pieces, and gathered from
 * pieces, as an HTTP library asks for them and delivers them. No I/O.
 */
#ifndef KVFS_COMMON_PAYLOAD_H
#define KVFS_COMMON_PAYLOAD_H

#include "common/buf.h"

struct payload {
    struct span head; /* what is sent, one behind the other; borrowed */
    struct value body, tail;
    uint64_t sent;           /* bytes given out */
    uint64_t answer_len_max; /* more than that is no answer */
    struct blob *answer;     /* what came; its len is room */
    size_t answer_len;       /* bytes that came */
};

/* Copies the next bytes to send, room at most. Returns how many. */
size_t payload_read(struct payload *x, void *out, size_t room);
/* The next bytes to send are those from pos on. 0 or -EINVAL: there are not so many. */
int payload_seek(struct payload *x, uint64_t pos);
/*
 * Takes the next bytes of the answer. announced: the length of the whole answer as its sender told
 * it, -1 where it did not. 0, -EFBIG, -ENOMEM, as spool.h.
 */
int payload_write(struct payload *x, struct span part, int64_t announced);
/* Moves the answer, which may be empty, to *out: 0 or -ENOMEM. */
int payload_take_answer(struct payload *x, struct blob **out);
void payload_fini(struct payload *x);

#endif

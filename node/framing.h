/*
 * framing.h - where a request ends, and whether its header can be trusted to say so.
 *
 * What two readers of a request could understand in two ways is refused, or one of them could be
 * made to take a body for a request.
 */
#ifndef KVFS_NODE_FRAMING_H
#define KVFS_NODE_FRAMING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define BODY_LENGTH_UNKNOWN UINT64_MAX

struct framing {
    unsigned n_length, n_coding, n_host;
    const char *length, *coding; /* borrowed from the header */
    const char *at;              /* where the part of the header seen so far ends */
    const char *why;             /* what is wrong with it; static */
};

/*
 * The next header, as it lies in the buffer of a parser that has put NULs for the colon and the
 * line ends: between one value and the next name there is one NUL, or two for CR LF, and a wider
 * gap hides bytes that came after a NUL. (A folded line does not lie in order.) f->at starts as the
 * end of the request line. False: something is wrong.
 */
bool framing_add(struct framing *f, const char *name, size_t name_len, const char *value,
                 size_t value_len);
/*
 * All headers were added, and the header block ends at `end`. The body's length into *length; NULL
 * or what is wrong.
 */
const char *framing_finish(struct framing *f, const char *end, const char *version,
                           uint64_t *length, bool *has_length);

#endif

/*
 * spill.h - bytes of an open file that are too many for memory: in a temporary file without a name,
 * holes and all, in $TMPDIR or else /var/tmp. Not locked: the file's lock covers it. Calls block on
 * the disk at most.
 */
#ifndef KVFS_FS_SPILL_H
#define KVFS_FS_SPILL_H

#include "common/buf.h"

struct spill;

/* An empty one. 0, -ENOSPC, -EDQUOT, -EMFILE, -ENFILE, -ENOMEM; -EIO, when the log tells why. */
int spill_new(struct spill **out);
/* What was lent of it stays. Accepts NULL. */
void spill_free(struct spill *s);

uint64_t spill_size(const struct spill *s);
/* Within its size. 0, -EIO. */
int spill_read(const struct spill *s, uint64_t off, size_t len, uint8_t *to);
/* May leave a hole before off. 0, -ENOSPC, -EFBIG, -EIO; then the size is as before. */
int spill_write(struct spill *s, uint64_t off, struct span data);
int spill_truncate(struct spill *s, uint64_t size);
/* Makes a hole of what lies within its size. */
int spill_punch(struct spill *s, uint64_t off, uint64_t len);
/* The next byte from off on (within the size) that is in a hole, or is not: 0, -ENXIO when only a
 * hole is left. The end counts as a hole. */
int spill_seek(const struct spill *s, uint64_t off, bool hole, uint64_t *out);
/* A second file with the same bytes and holes. */
int spill_copy(const struct spill *s, struct spill **out);

/*
 * All its bytes, mapped, for who stores them. Until that is given back, from whichever thread,
 * nothing below spill_lent() may change.
 */
int spill_lend(struct spill *s, struct value *out);
/* Up to where bytes are lent at present; 0: none are. */
uint64_t spill_lent(const struct spill *s);

/* What was lent of one spill; outlives it. */
struct loans;
/* Gives a reference. */
struct loans *spill_loans(const struct spill *s);
void loans_unref(struct loans *l);
/* Waits till something comes back, limit_ms at most; not at all when all is back. Any thread. */
void loans_wait(struct loans *l, unsigned limit_ms);

#endif

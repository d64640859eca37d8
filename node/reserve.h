/*
 * reserve.h - room on the disk that values do not get, so that a full disk can still be emptied: a
 * delete is a record, too, and what is deleted is only given back when the database rewrites it.
 *
 * Values are refused while less than the reserve is free, beside what the database needs to
 * rewrite its tables: without that no delete would ever give room back. And because others may fill
 * the disk to its last byte, as much as the reserve again is held by a file, DIR/reserve, which is
 * given up when the rest runs out, and taken back when there is room.
 */
#ifndef KVFS_NODE_RESERVE_H
#define KVFS_NODE_RESERVE_H

#include <stdbool.h>
#include <stdint.h>

#include "common/err.h"

struct reserve;

/* Nothing is held where there is no room for it, or the file system cannot. */
int reserve_open(const char *dir, struct reserve **out, struct err *err);
void reserve_close(struct reserve *r); /* accepts NULL; the file stays */

/*
 * Before a value of so many bytes is stored: is there room for it? in_tables: it will be rewritten
 * with them. Any thread.
 */
bool reserve_admits(struct reserve *r, uint64_t len, bool in_tables);
/* So many bytes does it need to rewrite its tables as they are now. */
void reserve_for_rewriting(struct reserve *r, uint64_t len);
/* Is there room for that now? With some to spare, where it is not being done. Any thread. */
bool reserve_lets_rewrite(const struct reserve *r, bool is_rewriting);
/* Is as much free as deletes need? As it seems; any thread. */
bool reserve_has_room(const struct reserve *r);
/* Is it? Tried out, for a quota does not show; what is held is given up. */
bool reserve_suffices(struct reserve *r);
/* Has a value been refused, and none been admitted since? */
bool reserve_is_full(struct reserve *r);
/* Before a write that needs little, and must go on: gives up what is held when it is needed. */
void reserve_yield(struct reserve *r);
/* From time to time: takes back what was given up, once there is room. */
void reserve_tend(struct reserve *r);

#endif

/*
 * listings.h - pages of directory listings that still hold (follow.h), so that `ls` costs no
 * request. A change in a directory drops all its pages; they take so much memory at most, and then
 * the directory that was read longest ago goes.
 */
#ifndef KVFS_FS_LISTINGS_H
#define KVFS_FS_LISTINGS_H

#include "common/client.h"
#include "fs/follow.h"

struct listings;

#define LISTINGS_BYTES_MAX ((size_t)64 << 20)

/* Becomes the one whom follow tells of changes below a prefix. follow: borrowed. */
int listings_new(struct follow *follow, size_t bytes_max, struct listings **out);
void listings_free(struct listings *l); /* accepts NULL */

/* The page that these args name (prefix, start_after, limit), and the mark under which it was read;
 * false: not kept. */
bool listings_get(struct listings *l, const struct list_args *args, struct list_result *out,
                  struct follow_mark *mark);
/* Keeps a copy of a page that was read under the mark, if that still holds and memory allows. */
void listings_put(struct listings *l, const struct list_args *args, const struct list_result *page,
                  const struct follow_mark *mark);

#endif

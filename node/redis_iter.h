/* redis_iter.h - a walk over the keys in a Redis, in byte order, as they were at one moment. */
#ifndef KVFS_NODE_REDIS_ITER_H
#define KVFS_NODE_REDIS_ITER_H

#include "node/redis_pool.h"
#include "node/store.h"
#include "node/views.h"

/* Splits what kvfs:r:KEY holds; name: of a large value, else empty. -EBADMSG. */
enum redis_place { REDIS_NOWHERE, REDIS_INLINE, REDIS_PIECES };
int redis_where_decode(struct span stored, enum redis_place *place, struct span *name,
                       struct span *record);

/* As iter_new of store.h: the moment is this one. Borrows both. */
int redis_iter_new(struct redis_pool *pool, struct views *views, struct store_iter **out);
void redis_iter_seek(struct store_iter *it, struct span key);
bool redis_iter_valid(struct store_iter *it);
void redis_iter_next(struct store_iter *it);
struct span redis_iter_key(struct store_iter *it);
struct span redis_iter_record(struct store_iter *it);
int redis_iter_err(struct store_iter *it);
void redis_iter_free(struct store_iter *it);

#endif

/*
 * redis_values.h - large values in a Redis: in pieces, each a string, under an id that no other
 * value ever has. Nothing of a piece changes once it is written, so that whoever reads a value
 * reads it to its end, whatever its key gets meanwhile.
 *
 * Until a record names it, and when none does any more, a value stands in the set kvfs:loose. What
 * is loose and neither being written nor read is removed; after a crash, too.
 */
#ifndef KVFS_NODE_REDIS_VALUES_H
#define KVFS_NODE_REDIS_VALUES_H

#include "common/list.h"
#include "node/redis_pool.h"
#include "node/store.h"

/*
 * Just below a power of two, with which Redis's allocator has no waste; what one upload holds in
 * memory.
 */
#define REDIS_PIECE_LEN ((256u << 10) - 64u)
#define REDIS_VALUE_NAME_LEN 48u /* (ID, size) as in `where` */

struct redis_values;

/* token: makes the ids unique. Borrows the pool. */
int redis_values_new(struct redis_pool *pool, uint64_t token, struct redis_values **out);
void redis_values_free(struct redis_values *vs); /* no file and reader is open; NULL is allowed */

/* As in store.h. */
int redis_values_begin(struct redis_values *vs, uint64_t size, struct store_file **out);
int redis_file_write(struct store_file *f, struct span part);
int redis_file_finish(struct store_file *f);
void redis_file_abort(struct store_file *f);
/* Its (ID, size); valid as long as f. */
struct span redis_file_name(const struct store_file *f);
/* A record names it: frees f. */
void redis_file_keep(struct store_file *f);

/*
 * Around looking up a record, and opening the value that it names: what it names is not removed in
 * between.
 */
struct redis_look {
    struct list link;
    uint64_t number;
};
void redis_values_look(struct redis_values *vs, struct redis_look *look);
void redis_values_looked(struct redis_values *vs, struct redis_look *look);
/* name: (ID, size). -EBADMSG: it is no name; -ENOMEM. */
int redis_values_open(struct redis_values *vs, struct span name, struct store_reader **out);

/* No record names it any more. */
void redis_values_forget(struct redis_values *vs, struct span name);
/* Removes what is to be removed, and, where a session began meanwhile, looks for what is loose. */
void redis_values_tidy(struct redis_values *vs, bool sweep);

#endif

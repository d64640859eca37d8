/* store_disk.h - the insides of the store on disk, shared by store_rocksdb.c and store_open.c. */
#ifndef KVFS_NODE_STORE_DISK_H
#define KVFS_NODE_STORE_DISK_H

#include <stdatomic.h>

#include "common/list.h"
#include "node/flusher.h"
#include "node/reserve.h"
#include "node/rocks.h"
#include "node/store.h"
#include "node/value_file.h"

enum place { PLACE_NONE, PLACE_INLINE, PLACE_FILE };
#define PLACE_LEN 1u /* encoded; the id follows */

struct where {
    enum place place;
    uint64_t id;
};

struct disk {
    struct store base;
    enum store_fsync mode;
    char *dir;
    int lock_fd;
    struct rocks *rocks;
    struct value_dir *values;
    struct reserve *reserve;
    struct flusher *flusher; /* with STORE_FSYNC_EVERYSEC, else NULL */
    /* A write or sync failed, in the database or a value's file: so do all later ones. */
    atomic_bool broken;
    atomic_bool has_waste; /* inline values were deleted whose space is not given back yet */
    bool trusted;          /* the boot mark is as this mode needs it */
    bool rewriting;        /* tables may be rewritten; of the thread that tends, as is: */
    bool rest_told;        /* the log says that they are not */
    atomic_int probed;     /* what the last probe came to */
    atomic_bool worked;    /* one came to 0 */
    atomic_uint n_refused; /* times tended in a row when that was a full disk, and there was room */
};

static inline struct disk *disk_of(struct store *s)
{
    return container_of(s, struct disk, base);
}

extern const struct store_ops disk_ops;

/* Splits what the family meta holds. -EBADMSG. */
int where_decode(struct span meta, struct where *out, struct span *record);
int disk_state_get(struct store *base, const char *name, struct buf *out);
int disk_state_put(struct store *base, const char *name, struct span value);
void disk_close(struct store *base);
/* Lets tables be rewritten while there is room for that. At the opening, then when tended. */
void disk_tend_room(struct disk *s);

#endif

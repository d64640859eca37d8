/*
 * listing.h - the inside of a listing (listing.c and list_merge.c only): one under way.
 */
#ifndef KVFS_COMMON_LISTING_H
#define KVFS_COMMON_LISTING_H

#include "common/op.h"

enum item_state {
    ITEM_SHOW,
    ITEM_DOUBTFUL, /* to be settled */
    ITEM_GONE,
};

/* One name of the page. */
struct item {
    struct list_op *list;
    enum item_state state;
    bool is_prefix;
    bool damaged;     /* for too many of its replicas that a READ could settle it now */
    struct buf bytes; /* ITEM_SHOW: the encoded entry; else the key or prefix */
    struct op *sub;   /* its settling under way */
};

/* One node's answer, while it is merged. */
struct source {
    unsigned node;
    bool more;
    uint32_t n_left; /* entries announced and not read yet */
    struct cursor cursor;
    bool have; /* entry is its next, not merged yet */
    struct entry entry;
};

struct list_op {
    struct op op;     /* op.key is the prefix */
    struct buf after; /* names up to here are done with */
    bool delimiter;
    unsigned limit;
    unsigned ask; /* names asked for at a time */
    list_done_fn *done;
    void *arg;

    unsigned n_nodes, n_up;
    unsigned *nodes;
    bool *answered; /* scratch, by node index */
    unsigned tries;
    bool merging; /* enough have answered: late answers are left alone */

    struct source *sources;
    unsigned n_sources;
    bool exhausted; /* this page reached the end of every source */
    struct item *items;
    unsigned n_items, next_item, n_subs;
    int ending; /* the op ends with this as soon as no settling is under way */
    struct list_result res;
};

/* --- list_merge.c: what the nodes' answers come to -------------------------------------------- */

/* The name that an entry stands for: its key, or its common prefix. */
struct span list_entry_name(const struct entry *e);
/* The source's next entry. An answer that ends before the last one announced is -EBADMSG. */
int list_source_next(struct source *s);
/*
 * Merges l->sources into items, in order of names, up to the horizon or until there are as many as
 * are still wanted. -EBADMSG: a source is damaged. -ENOMEM.
 */
int list_merge(struct list_op *l);

#endif

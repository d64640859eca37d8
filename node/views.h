/*
 * views.h - moments of a store that has no snapshots of its own: what was changed since one is kept
 * as it was before, for as long as somebody looks at that moment.
 *
 * It works because all changes go through one process. Whoever changes a key says so first, and
 * afterwards what was there. Whoever walks over the store reads it as it is now, a page at a time,
 * and puts what is kept here in the place of what is not of his moment. A change under way when a
 * view is opened may be on either side of its moment.
 *
 * Any thread. What is kept is bounded: beyond, the views that need most are given up.
 */
#ifndef KVFS_NODE_VIEWS_H
#define KVFS_NODE_VIEWS_H

#include "common/buf.h"
#include "common/list.h"

struct views;
struct view;

/* One change of one key, from views_begin() to views_end(); the caller's memory. */
struct views_change {
    struct list entries;
};

int views_new(size_t bytes_max, struct views **out);
void views_free(struct views *vs); /* all views are closed */

struct view *views_open(struct views *vs); /* NULL without memory */
void views_close(struct views *vs, struct view *v);

/* Before the change. True: somebody needs the record that is there until then. Never blocks. */
bool views_begin(struct views *vs, struct span key, struct views_change *c);
enum views_outcome {
    VIEWS_CHANGED,   /* before: what was there, empty where there was no such key */
    VIEWS_UNCHANGED, /* it was certainly not done */
    VIEWS_UNKNOWN,   /* nobody can tell */
};
/* After it. */
void views_end(struct views *vs, struct views_change *c, enum views_outcome outcome,
               struct span before);

/*
 * The first key from `from` on (above: behind it) that was changed since v was opened: 1, *key and
 * *before get copies (before: empty, it was not there). 0: there is none. Waits for a change under
 * way. -EIO: nobody can tell what was there; -ENOBUFS: v was given up.
 */
int views_next(struct views *vs, struct view *v, struct span from, bool above, struct buf *key,
               struct buf *before);

#endif

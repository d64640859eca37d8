/*
 * follow.h - what was read may be kept while the change feed (common/feed.h) tells of every change:
 * which of it still holds, and who has to be told when it no longer does.
 *
 * The promise. What is kept here, and what the kernel was told with a timeout, is what the cluster
 * held at some moment, and every acknowledged change since then is either on its way to us (a feed
 * takes milliseconds, and one that is silent for a second is broken) or was not told because the
 * feed is broken, and then nothing counts any more. So it serves what may be a little behind: stat,
 * listings, the walk over names. What has to be fresh asks the cluster: open, and whatever decides
 * who wins.
 *
 * How a fill proves itself. A *mark* is taken before the cluster is asked; it holds while nothing
 * was told or written here of the key, or of what is below the prefix, and the feed has lived all
 * the while. Only what is filled under a mark that still holds is kept. A change told later finds
 * it and drops it. Each node's telling counts, also of what was told or read already: what another
 * node answered may be older. Only what this mount wrote is passed over when it is told.
 *
 * What one change touches: its key; the listing of its directory; and above that, up to the first
 * directory that is known to have a marker, directories that may come and go with it.
 *
 * Who writes here tells follow_wrote() before the write counts as done; its own changes come back
 * by the feed, from each replica, and are recognised by their version.
 */
#ifndef KVFS_FS_FOLLOW_H
#define KVFS_FS_FOLLOW_H

#include "common/feed.h"
#include "fs/inode.h"

struct follow;

/*
 * How the kernel is told that attributes it may still believe no longer hold: of one directory, of
 * all. (Of files it believes none, see fs_attrs_hold().) Any thread, under no lock; must not block.
 * Names it may keep: whoever comes by one that is gone is told -ESTALE, and the kernel asks for the
 * name again.
 */
struct follow_kernel {
    void (*forget)(void *arg, uint64_t id);
    void (*forget_all)(void *arg);
    void *arg;
};

int follow_new(struct inode_table *inodes, struct follow **out); /* inodes: borrowed */
void follow_free(struct follow *f);                              /* accepts NULL */
/* kernel: copied; NULL: nobody is to be told. Not while one is being told. */
void follow_set_kernel(struct follow *f, const struct follow_kernel *kernel);

/* The feed's callbacks (feed_opts), arg: the follow. Do not block. */
void follow_changed(void *arg, struct span key, struct ballot version, enum feed_kind kind);
void follow_live(void *arg, bool live);
bool follow_is_live(struct follow *f); /* by what it was told last */

/*
 * This mount has written the key: version, or none where the outcome is unknown. Any thread.
 */
void follow_wrote(struct follow *f, struct span key, struct ballot version);

/* --- keeping ---------------------------------------------------------------------------------- */

struct follow_mark {
    uint64_t epoch; /* 0: the feed is not live */
    uint64_t at;    /* after so many changes */
    uint32_t slot[2];
};
/* Of a key, and of what is below a prefix (ending in '/'; or empty: any). */
struct follow_mark follow_mark(struct follow *f, struct span key, struct span prefix);
/* Of a directory: what is below its prefix, and whether it hides a file. */
struct follow_mark follow_mark_dir(struct follow *f, struct span prefix);
/* As if it had been taken when m was: of what an answer told that m was taken before. */
struct follow_mark follow_mark_then(const struct follow_mark *m, struct span key,
                                    struct span prefix);
bool follow_holds(struct follow *f, const struct follow_mark *m);

/*
 * What was read of in's key under the mark; kept if the mark holds and the cluster's answer says
 * that it may. in: referenced.
 */
void follow_keep(struct follow *f, struct inode *in, struct span key, const struct found *found,
                 const struct follow_mark *m);
/* What a write of this mount made of in's key: follow_wrote() was told. m: from before it began. */
void follow_keep_own(struct follow *f, struct inode *in, struct span key, const struct found *found,
                     const struct follow_mark *m);
/* What is kept of it and still holds. */
bool follow_recall(struct follow *f, struct inode *in, struct found *out);

/* A newer version was seen, by whatever means, than this one of in's key. */
void follow_saw(struct follow *f, struct inode *in, struct span key, struct ballot version);
bool follow_is_behind(struct follow *f, struct inode *in, struct ballot version);
/* The newest version of in's key that was heard of; none. Nobody here is to see an older one. */
struct ballot follow_told(struct follow *f, struct inode *in, struct span key);

/* --- what the kernel holds ------------------------------------------------------------------- */

/* So long from now it may walk over the name without asking; 0: it was told to ask. */
void follow_set_named(struct follow *f, struct inode *in, unsigned for_s);
bool follow_is_named(struct follow *f, struct inode *in);

/*
 * Pages. The kernel keeps them over close and open where it is allowed to, so it must be known
 * that all of them are of one version: since an open that made it drop all others, whose end is
 * sure once something comes through the handle.
 */
struct follow_pages {
    struct ballot version; /* none: of any */
    uint64_t n_mixed;      /* how often they came to be of any */
};
struct follow_pages follow_pages(struct follow *f, struct inode *in);
void follow_mix_pages(struct follow *f, struct inode *in);
/*
 * It has dropped what was not of this version, if nothing was mixed since n_mixed was seen. (Where
 * the kernel is not told of changes it drops all at each open.)
 */
void follow_set_pages(struct follow *f, struct inode *in, const struct follow_pages *pages);

/* --- for those who keep more than inodes (listings.c) ---------------------------------------- */

/* Called for each prefix below which something changed, under no lock; must not block. */
void follow_set_below(struct follow *f, void (*below)(void *arg, struct span prefix),
                      void (*all)(void *arg), void *arg);

#endif

/*
 * control.h - the directory .kvfs in the root: what the mount tells of itself. No FUSE types; 0 or
 * -errno; nobody waits for the cluster here but control_lookup() below replicas/, shortly.
 *
 *   version       of kvfs
 *   status        JSON: nodes, ring, open and dirty files, calls that wait
 *   metrics       counters, in the Prometheus text format
 *   config        the cluster.json in force
 *   replicas/KEY  as GET /replicas/KEY of a node. KEY is written as the path of its file: names
 *                 mean what they mean in the mount, and a key may be one that was never stored.
 *
 * Its ids are those with the highest bit; the core never hears of them (but refuses, with -EROFS,
 * to make anything in such a directory). Text is made when a file is opened.
 */
#ifndef KVFS_FS_CONTROL_H
#define KVFS_FS_CONTROL_H

#include "fs/fs.h"
#include "fs/metrics.h"

struct control;

struct control_opts { /* all borrowed */
    struct fs *fs;
    struct cluster *cluster;
    struct callers *callers;
    struct metrics *metrics;
    struct attr_defaults defaults;
    const char *mountpoint;
};
int control_new(const struct control_opts *opts, struct control **out);
void control_free(struct control *c);

/* Is this id one of .kvfs and what is in it? */
static inline bool control_has(uint64_t id)
{
    return id >> 63 != 0;
}
/* Does this name in this directory lead there? */
bool control_is_name(uint64_t parent, const char *name);

/* As the functions of the same names in fs.h. */
int control_lookup(struct control *c, struct caller *who, uint64_t parent, const char *name,
                   struct fs_entry *out);
void control_forget(struct control *c, uint64_t id, uint64_t nlookup);
int control_getattr(struct control *c, uint64_t id, struct stat *out);
int control_access(struct control *c, uint64_t id, int mask);
/* flags: open(2)'s. *out: the text of the file, the caller's. */
int control_open(struct control *c, uint64_t id, int flags, struct buf *out);
/* -ESTALE: look it up again, see control.c. */
int control_opendir(struct control *c, struct caller *who, uint64_t id, int flags);
/* The entry at off: 1, 0 at the end. What is below replicas/ is not listed. */
int control_readdir(struct control *c, uint64_t id, uint64_t off, struct fs_dirent *out);

#endif

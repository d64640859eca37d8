/* calls.c - the core's calls of the cluster: they keep the reason of a failure for who asked. */
#include "fs/core.h"

static int keep_reason(struct caller *who, int err, const struct err *why)
{
    if (err < 0)
        who->why = *why;
    return err;
}

int core_read(struct fs *fs, struct caller *who, const struct read_args *args,
              struct read_result *out)
{
    return keep_reason(who, cluster_read(fs->cluster, args, who->waiter, out), &out->why);
}

int core_write(struct fs *fs, struct caller *who, const struct write_args *args,
               struct write_result *out)
{
    return keep_reason(who, cluster_write(fs->cluster, args, who->waiter, out), &out->why);
}

int core_list(struct fs *fs, struct caller *who, const struct list_args *args,
              struct list_result *out)
{
    return keep_reason(who, cluster_list(fs->cluster, args, who->waiter, out), &out->why);
}

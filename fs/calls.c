/* calls.c - the core's calls of the cluster: they keep the reason of a failure for who asked. */
#include "fs/core.h"

struct ballot write_version(const struct write_result *res)
{
    return res->rec_is == WRITE_SUPERSEDED ? BALLOT_NONE : res->rec.rec.version;
}

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
    int err = cluster_write(fs->cluster, args, who->waiter, out);

    if (err == 0)
        follow_wrote(fs->follow, args->key, write_version(out));
    else if (!out->certain)
        follow_wrote(fs->follow, args->key, BALLOT_NONE);
    return keep_reason(who, err, &out->why);
}

int core_list(struct fs *fs, struct caller *who, const struct list_args *args,
              struct list_result *out)
{
    return keep_reason(who, cluster_list(fs->cluster, args, who->waiter, out), &out->why);
}

int core_list_dir(struct fs *fs, struct caller *who, const struct list_args *args,
                  struct list_result *out, struct follow_mark *mark)
{
    int err;

    if (listings_get(fs->listings, args, out, mark))
        return 0;
    *mark = follow_mark_dir(fs->follow, args->prefix);
    err = core_list(fs, who, args, out);
    if (err == 0 && out->followed)
        listings_put(fs->listings, args, out, mark);
    else
        mark->epoch = 0;
    return err;
}

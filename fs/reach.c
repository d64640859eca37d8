/*
 * reach.c - the core's calls of the cluster, with patience where there is reason to hope.
 *
 * The kernel queues calls behind one another (two lookups of one name, all that changes one
 * directory), so if each waited its whole timeout for nodes that do not answer, the last would wait
 * for many. A call therefore waits until the quorum has been silent for `timeout`, and fails at
 * once after that: the cluster's own probes find out when the nodes are back.
 */
#include <errno.h>
#include <stdlib.h>

#include "common/health.h"
#include "fs/core.h"

#define PATIENCE_MIN_MS 100u

/* When the node was last known to answer. */
static uint64_t heard_us(const struct fs *fs, unsigned node, uint64_t now_us)
{
    struct health_info info = health_get(cluster_health(fs->cluster), node);

    return info.up || info.seen_us > now_us ? now_us : info.seen_us;
}

static int newest_first(const void *a, const void *b)
{
    const uint64_t *x = a, *y = b;

    return *x > *y ? -1 : *x < *y;
}

/* Since when the given nodes had no majority that answers; now_us: they have one. */
static int silent_since(struct fs *fs, const unsigned *nodes, unsigned n, unsigned majority,
                        uint64_t now_us, uint64_t *out)
{
    uint64_t *heard = calloc(n, sizeof(*heard));

    if (heard == NULL)
        return -ENOMEM;
    for (unsigned i = 0; i < n; i++)
        heard[i] = heard_us(fs, nodes != NULL ? nodes[i] : i, now_us);
    qsort(heard, n, sizeof(*heard), newest_first);
    *out = heard[majority - 1];
    free(heard);
    return 0;
}

/* The timeout for a call about this key (none: a listing, which needs nearly all nodes). */
static int patience(struct fs *fs, struct caller *who, struct span key, uint32_t *timeout_ms)
{
    const struct config *cfg = cluster_config(fs->cluster);
    unsigned n = ring_n_replicas(cfg->ring), majority = ring_majority(cfg->ring);
    uint64_t now_us = core_now_us();
    uint64_t since_us, silent_ms;
    int err;

    if (key.len > 0)
        err = silent_since(fs, ring_replicas(cfg->ring, key), n, majority, now_us, &since_us);
    else /* as many may be missing as any replica set can spare */
        err =
            silent_since(fs, NULL, cfg->n_nodes, cfg->n_nodes - (n - majority), now_us, &since_us);
    if (err < 0)
        return err;
    silent_ms = (now_us - since_us) / 1000;
    if (silent_ms >= fs->timeout_ms)
        return err_set(&who->why, -EHOSTDOWN, "no quorum of nodes for %llu s",
                       (unsigned long long)silent_ms / 1000);
    *timeout_ms = fs->timeout_ms - (uint32_t)silent_ms;
    if (*timeout_ms < PATIENCE_MIN_MS)
        *timeout_ms = PATIENCE_MIN_MS;
    return 0;
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
    struct read_args patient = *args;
    int err = patience(fs, who, args->key, &patient.timeout_ms);

    if (err < 0)
        return err;
    return keep_reason(who, cluster_read(fs->cluster, &patient, who->waiter, out), &out->why);
}

int core_write(struct fs *fs, struct caller *who, const struct write_args *args,
               struct write_result *out)
{
    struct write_args patient = *args;
    int err = patience(fs, who, args->key, &patient.timeout_ms);

    if (err < 0)
        return err;
    return keep_reason(who, cluster_write(fs->cluster, &patient, who->waiter, out), &out->why);
}

int core_write_async(struct fs *fs, struct caller *who, struct write_args *args,
                     write_done_fn *done, void *arg)
{
    int err = patience(fs, who, args->key, &args->timeout_ms);

    return err < 0 ? err : cluster_write_async(fs->cluster, args, done, arg);
}

int core_list(struct fs *fs, struct caller *who, const struct list_args *args,
              struct list_result *out)
{
    struct list_args patient = *args;
    int err = patience(fs, who, span_of(NULL, 0), &patient.timeout_ms);

    if (err < 0)
        return err;
    return keep_reason(who, cluster_list(fs->cluster, &patient, who->waiter, out), &out->why);
}

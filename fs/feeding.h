/*
 * feeding.h - the change feed of a mount: it lives on the cluster's guest thread and tells the
 * mount's follow.
 */
#ifndef KVFS_FS_FEEDING_H
#define KVFS_FS_FEEDING_H

#include "common/cluster.h"
#include "common/feed.h"
#include "fs/follow.h"

struct feeding {
    struct client *client; /* the guest thread's, as is transport */
    struct transport *transport;
    struct follow *follow; /* set before the job is posted */
    struct loop_job start;
    struct feed *feed; /* the guest thread's alone; NULL: not started */
    bool stopped;
};

/* For cluster_opts; arg: the feeding, {0} at first. */
int feeding_guest_start(void *arg, struct client *client, struct transport *transport);
void feeding_guest_stop(void *arg, void (*idle)(void *idle_arg), void *idle_arg);
/* Begins to follow. Once. */
void feeding_begin(struct feeding *f, struct cluster *cluster, struct follow *follow);
/* After cluster_close(). */
void feeding_fini(struct feeding *f);

#endif

/* feeding.c - the change feed of a mount, as the cluster's guest. */
#include "fs/feeding.h"

#include "common/log.h"

int feeding_guest_start(void *arg, struct client *client, struct transport *transport)
{
    struct feeding *f = (struct feeding *)arg;

    f->client = client;
    f->transport = transport;
    return 0;
}

void feeding_guest_stop(void *arg, void (*idle)(void *idle_arg), void *idle_arg)
{
    struct feeding *f = (struct feeding *)arg;

    f->stopped = true;
    if (f->feed != NULL)
        feed_stop(f->feed, idle, idle_arg);
    else
        idle(idle_arg);
}

static void start(struct loop_job *job)
{
    struct feeding *f = container_of(job, struct feeding, start);
    struct feed_opts opts = {.client = f->client,
                             .transport = f->transport,
                             .changed = follow_changed,
                             .live = follow_live,
                             .arg = f->follow};

    if (!f->stopped && feed_new(&opts, &f->feed) < 0)
        log_event(LOG_LEVEL_WARN, "no_feed", "reason=\"no memory\" effect=\"nothing is cached\"");
}

void feeding_begin(struct feeding *f, struct cluster *cluster, struct follow *follow)
{
    f->follow = follow;
    f->start.fn = start;
    (void)cluster_post(cluster, &f->start); /* false: it is closing */
}

void feeding_fini(struct feeding *f)
{
    feed_free(f->feed);
    f->feed = NULL;
}

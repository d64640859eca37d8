/*
 * transport_http.h - the transport over HTTP, on libcurl: POST /replica, bodies as in message.h;
 * and streams.
 */
#ifndef KVFS_COMMON_TRANSPORT_HTTP_H
#define KVFS_COMMON_TRANSPORT_HTTP_H

#include "common/config.h"
#include "common/loop.h"
#include "common/transport.h"
#include "common/workers.h"

/* Once per process, before threads start and after any fork (curl_global_init). 0 or -ENOMEM. */
int transport_http_setup(void);

/*
 * All that is given must outlive it. workers: write answers that are too large for memory; NULL:
 * the loop does so itself. The loop does not run yet.
 */
int transport_http_new(const struct config *cfg, struct clock *clock, struct workers *workers,
                       struct transport **out);
/*
 * Ends all calls with -ECANCELED (their done() runs here), frees. Only when the loop does not run.
 */
void transport_http_free(struct transport *t);

/* Runs the loop on this thread until transport_http_stop(). */
void transport_http_run(struct transport *t);
/* Any thread, also signal-safe: the loop returns soon. */
void transport_http_stop(struct transport *t);
/*
 * Any thread: job->fn(job) runs on the loop's thread soon, in the order posted. Jobs that no loop
 * ran run in transport_http_free().
 */
void transport_http_post(struct transport *t, struct loop_job *job);

#endif

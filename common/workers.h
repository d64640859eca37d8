/*
 * workers.h - a few threads for what waits for a disk, perhaps for long, so that the threads which
 * serve everybody do not.
 */
#ifndef KVFS_COMMON_WORKERS_H
#define KVFS_COMMON_WORKERS_H

#include <stdbool.h>

#include "common/loop.h"

struct workers;

/* name: of the threads, 15 bytes at most. 0, -ENOMEM, -EAGAIN. */
int workers_new(unsigned n, const char *name, struct workers **out);
/*
 * Any thread, also one of them; never blocks. Jobs begin in the order in which they were posted,
 * and as many run at a time as there are threads. All run in the end. The job is the poster's
 * memory until fn begins.
 */
void workers_post(struct workers *w, struct loop_job *job);
/*
 * From now on a job shall give up what it has not begun, so that the end comes soon. Nothing may
 * rely on being carried out any more.
 */
void workers_hurry(struct workers *w);
bool workers_hurried(const struct workers *w);
/* Runs what was posted, and what that posts, joins the threads. NULL is allowed. */
void workers_free(struct workers *w);

#endif

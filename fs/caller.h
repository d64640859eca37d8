/*
 * caller.h - who asks, and how his wait ends early.
 *
 * The kernel tells of any signal to a waiting process. Only one that means "stop" ends the call: a
 * signal that kills, or SIGINT, SIGQUIT, SIGTERM, SIGHUP. Timers, SIGCHLD and the like are handled
 * after the call, as on a local disk, and must not make it fail. A call that was left alone is
 * watched, since the kernel does not tell of a second signal.
 */
#ifndef KVFS_FS_CALLER_H
#define KVFS_FS_CALLER_H

#include <stdatomic.h>
#include <stdint.h>
#include <sys/types.h>

#include "common/cluster.h"
#include "common/list.h"
#include "fs/metrics.h"

struct callers; /* all who ask, waiters at hand, and the thread that watches */

struct caller {
    enum fs_call call;
    uint64_t begun_us; /* monotonic */
    uid_t uid;
    gid_t gid;
    pid_t pid;             /* the thread that asks; 0: none (the kernel itself, or shutting down) */
    struct waiter *waiter; /* NULL: cannot be interrupted */
    atomic_bool stopped;
    bool moves;     /* it moves a directory, so what it stores there does not wait for that */
    struct err why; /* of the last failure of the cluster, for the log */
    struct callers *callers;
    struct list link, watched; /* among all, among the watched; the callers' lock */
};

int callers_new(struct callers **out);
void callers_free(struct callers *c); /* no call is under way */

void caller_begin(struct callers *c, enum fs_call call, uid_t uid, gid_t gid, pid_t pid,
                  struct caller *who);
void caller_end(struct caller *who);
uint64_t caller_age_us(const struct caller *who); /* since caller_begin() */
/* The kernel told of a signal to this caller. Any thread, between begin and end. */
void caller_signalled(struct caller *who);
/* Ends whatever it waits for, now and later. */
void caller_stop(struct caller *who);
/* Does so to all that are under way. */
void callers_stop_all(struct callers *c);
/* What is under way, the oldest first: fills at most max of out, and returns how many there are. */
struct call_info {
    enum fs_call call;
    pid_t pid;
    uint64_t begun_us;
};
size_t callers_list(struct callers *c, struct call_info *out, size_t max);
static inline bool caller_stopped(const struct caller *who)
{
    return atomic_load(&who->stopped);
}

/* May what he does to a program leave its set-user-ID bit? The kernel tells of users only, so it is
 * root that stands for CAP_FSETID; and the kernel itself, writing pages back. */
static inline bool caller_keeps_privileges(const struct caller *who)
{
    return who->uid == 0;
}

/*
 * Does the caller's process hold another descriptor that can write to the file with this st_ino?
 * Only a "yes" is certain. Asked when a descriptor is closed before anything was written: the shell
 * does so behind each `> file`, and the file is not to be stored empty first.
 */
bool caller_holds_open(const struct caller *who, uint64_t st_ino);

#endif

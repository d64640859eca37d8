/* daemon.h - into the background, but only once there is something to wait for; and telling whoever
 * started us. */
#ifndef KVFS_FS_DAEMON_H
#define KVFS_FS_DAEMON_H

/*
 * Forks, before any thread exists. Only the child returns, with *ready_fd; the parent waits, and
 * exits with 0 once the child has called daemon_ready(), or with fail_code when the child ends
 * without (its reason is on stderr, which both share till then). -errno: no fork.
 */
int daemon_start(int fail_code, int *ready_fd);
/* Lets the parent go, leaves terminal, session and working directory. */
void daemon_ready(int ready_fd);

/* sd_notify(3): one datagram to whoever manages this process, if anybody does. */
void daemon_notify(const char *state);

#endif

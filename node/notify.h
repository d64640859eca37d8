/*
 * notify.h - tells the service manager how far we are (the sd_notify protocol: one datagram to
 * $NOTIFY_SOCKET).
 */
#ifndef KVFS_NODE_NOTIFY_H
#define KVFS_NODE_NOTIFY_H

/* state: "READY=1", "STOPPING=1", ... Does nothing where nobody asked to be told. */
void notify_manager(const char *state);

#endif

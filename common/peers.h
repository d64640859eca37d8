/* peers.h - what a process knows of the nodes of its cluster, told as JSON and as metrics. */
#ifndef KVFS_COMMON_PEERS_H
#define KVFS_COMMON_PEERS_H

#include "common/cluster.h"
#include "common/json.h"

/* Members of an open object: id, addr. */
void peers_json_name(struct json *j, const struct config *cfg, unsigned node);
/* The same: alive, since and so on, as last heard; nobody is asked. */
void peers_json_state(struct json *j, struct cluster *c, unsigned node);
/* Is something wrong with the node, as last heard? In words, for people. */
bool peers_error(struct cluster *c, unsigned node, struct err *out);
/* The member "ring". */
void peers_json_ring(struct json *j, const struct config *cfg);
/* A value: a moment of the wall clock as RFC 3339; of that when the monotonic clock was mono_us. */
void peers_json_wall(struct json *j, uint64_t us);
void peers_json_moment(struct json *j, uint64_t mono_us);
/* A member of 16 hex digits. */
void peers_json_hex(struct json *j, const char *name, uint64_t v);

/* kvfs_peer_up of all nodes but self (MESSAGE_NODE_NONE: of all). */
void peers_metrics(struct buf *out, struct cluster *c, unsigned self);

#endif

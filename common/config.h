/* config.h - cluster.json (with json.[ch] the only user of jansson). */
#ifndef KVFS_COMMON_CONFIG_H
#define KVFS_COMMON_CONFIG_H

#include <stdint.h>

#include "common/buf.h"
#include "common/err.h"
#include "common/ring.h"

struct config_node {
    char *id;
    char *addr; /* as written: HOST:PORT or [V6]:PORT */
    char *host; /* without brackets */
    uint16_t port;
};

/*
 * Immutable after config_load(). Nodes are sorted by id: their index here is the node index
 * everywhere (ring.h).
 */
struct config {
    char *path;
    unsigned n_nodes;
    struct config_node *nodes;
    unsigned replication_factor, virtual_nodes;
    enum ring_hash hash;
    uint64_t max_value_size;
    struct ring *ring;
};

/*
 * Reads and checks; on failure err names file, field and value ("cluster.json: nodes[2].addr: port
 * 70000 is above 65535"). 0, -EINVAL, -ENOMEM or of open/read.
 */
int config_load(const char *path, struct config **out, struct err *err);
/* The same from memory; path only names it in messages. */
int config_parse(const char *path, struct span text, struct config **out, struct err *err);
void config_free(struct config *c);
/* Index of the node with this id, -ENOENT. */
int config_find(const struct config *c, const char *id);
/* Refuses a replication_factor above the number of nodes: for mounts and gateways. 0 or -EINVAL. */
int config_check_client(const struct config *c, struct err *err);
/*
 * The ring as JSON, which a node tells who holds another: hash, virtual_nodes, replication_factor,
 * n_nodes and, where they are not too long, the ids as nodes. Appends; out->err tells of lack of
 * memory.
 */
void config_ring_json(const struct config *c, struct buf *out);
const char *config_hash_name(const struct config *c); /* as in cluster.json */
/*
 * All of it as a cluster.json, also what was left to its default, and a newline. The replicas of a
 * key, the JSON of GET /replicas/{key} and of the text of a 421, which ends in one too. Both
 * append; out->err tells of lack of memory.
 */
void config_json(const struct config *c, struct buf *out);
void config_owners_json(const struct config *c, struct span key, struct buf *out);
/*
 * Such JSON of someone else (any bytes) beside ours: "another ring: replication_factor: 2 there, 3
 * in cluster.json", naming every field that differs.
 */
void config_ring_compare(const struct config *c, struct span theirs, struct err *why);
/* Splits HOST:PORT; *host is malloced. 0 or -EINVAL with the reason in err. */
int config_split_addr(const char *addr, char **host, uint16_t *port, struct err *err);

#endif

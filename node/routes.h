/* routes.h - the begin functions of all routes, and what the routes of keys share. */
#ifndef KVFS_NODE_ROUTES_H
#define KVFS_NODE_ROUTES_H

#include "node/conditions.h"
#include "node/service.h"

/* routes_kv.c: /kv/{key}; hands writes to routes_write.c */
route_begin_fn kv_begin, kv_write_begin;
/* routes_list.c: /kv */
route_begin_fn list_begin;
/* routes_replica.c: POST /replica, GET /replica/{key} */
route_begin_fn replica_begin_raw, replica_begin_peek;
/* routes_watch.c: /watch */
route_begin_fn watch_begin;
/* routes_admin.c */
route_begin_fn replicas_begin, health_begin, status_begin, metrics_begin;

/*
 * The key in a path, if this node takes requests for it: with --no-forward it must be one of the
 * key's replicas. False: it has replied 400, 414 or 421.
 */
bool kv_take_key(struct service *s, struct exchange *x, struct span path, struct buf *key);
/* Copies the condition headers. False: it has replied 400 or 503. */
bool kv_take_conditions(struct exchange *x, struct conditions *out);
/* ETag and Last-Modified. */
void kv_add_version(struct response *r, const struct record *rec);
/* 421: the replicas of the key, as JSON. */
void reply_not_here(struct service *s, struct exchange *x, struct span key);
/* An operation failed with err; prefix: what that means for the caller ("nothing was stored: "). */
void reply_failed(struct exchange *x, int err, const char *prefix, const struct err *why);

#endif

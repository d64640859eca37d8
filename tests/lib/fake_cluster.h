/*
 * fake_cluster.h - cluster.h in memory, for tests of the mount's core: one copy of each key, no
 * threads, no time, and a call that fails when it is told to. Linked in place of common/cluster*.c.
 */
#ifndef KVFS_TESTS_LIB_FAKE_CLUSTER_H
#define KVFS_TESTS_LIB_FAKE_CLUSTER_H

#include "common/cluster.h"

struct cluster *fake_cluster_new(uint64_t max_value_size);
void fake_cluster_free(struct cluster *c);

/* What a key holds: the bytes, borrowed; false: it is not live. */
bool fake_cluster_get(struct cluster *c, const char *key, struct span *value);
/* Stores as another client would. */
void fake_cluster_put(struct cluster *c, const char *key, const char *value);
void fake_cluster_delete(struct cluster *c, const char *key);
unsigned fake_cluster_n_live(struct cluster *c);

/*
 * From now on whatever is read is stored again under a newer version right afterwards, unchanged:
 * as by somebody who settles it.
 */
void fake_cluster_settle_reads(struct cluster *c);

/* From now on what is read may be kept (`followed`). */
void fake_cluster_follow(struct cluster *c);

/*
 * Each call that could reach nodes counts. The n-th from now (0: the next) fails with err, and all
 * after it when `on`; a write that fails has taken effect all the same where `applied`.
 */
void fake_cluster_fail(struct cluster *c, unsigned n, int err, bool on, bool applied);
/* Between the next asynchronous write and the moment when its caller hears of it. */
void fake_cluster_meanwhile(struct cluster *c, void (*meanwhile)(void *arg), void *arg);
/*
 * The next asynchronous write is done, and its caller hears of it when it is delivered; as many
 * times as one is held, one is to be delivered.
 */
void fake_cluster_hold(struct cluster *c);
void fake_cluster_deliver(struct cluster *c);
/* The next write is stored, and before its caller hears of it, another client's value is (NULL:
 * deleted), of which it is told instead: see WRITE_SUPERSEDED. */
void fake_cluster_supersede(struct cluster *c, const char *value);
void fake_cluster_heal(struct cluster *c);
/* Before the n-th call from now another client stores value under key (NULL: deletes it). */
void fake_cluster_meddle(struct cluster *c, unsigned n, const char *key, const char *value);
/* Before the n-th call from now this is called, and may call itself. */
void fake_cluster_before(struct cluster *c, unsigned n, void (*before)(void *arg), void *arg);
unsigned fake_cluster_n_calls(struct cluster *c);
/* The time comes of all that was posted to run later; false: nothing was. */
bool fake_cluster_run_delayed(struct cluster *c);

#endif

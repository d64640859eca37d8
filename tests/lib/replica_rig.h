/*
 * replica_rig.h - one replica over the store in memory, of a ring of three nodes, and messages to
 * it: what the tests of a replica share.
 */
#ifndef KVFS_TESTS_LIB_REPLICA_RIG_H
#define KVFS_TESTS_LIB_REPLICA_RIG_H

#include "node/replica.h"

struct rig {
    struct clock clock; /* stands still unless a test moves it */
    uint64_t now_us;
    struct config *cfg;
    struct store *store;
    struct replica *r;
    uint64_t tick; /* added to now_us at each look at the clock */
    /* For the next opening: as the option; a new store does not vote at once. */
    bool distrusted, lets_it_recover;
    unsigned n_damage_told, n_store_damage_told;
    struct buf damaged; /* the key that was told last */
};

/* One answer: decoded, with the bytes that it borrows from. */
struct got {
    unsigned status;
    struct buf bytes;
    struct answer a;
    struct span value; /* what follows the head */
};
void got_fini(struct got *g);

/* cmocka's; node 0 of rig_three_nodes, which votes, is *state. */
int rig_setup(void **state);
int rig_teardown(void **state);
extern const char rig_three_nodes[], rig_no_copies[]; /* cluster.json */
void rig_open_replica(struct rig *f);
void rig_open_cluster(struct rig *f, const char *json);
void rig_restart(struct rig *f);
void rig_new_store(struct rig *f); /* the disk is lost; the replica opened anew */

struct message rig_message(struct rig *f, enum message_kind kind, const char *key);
/* Feeds bytes in pieces of this size and decodes what is answered. */
void rig_send_bytes(struct rig *f, struct span bytes, size_t piece, struct span key, struct got *g);
void rig_send_in_pieces(struct rig *f, const struct message *m, struct span value, size_t piece,
                        struct got *g);
void rig_send(struct rig *f, const struct message *m, struct span value, struct got *g);
/* The whole answer in small and odd pieces, as a server reads it. */
int64_t rig_read_reply(struct reply *reply, struct buf *out);

struct ballot rig_ballot(uint64_t counter);
enum answer_kind rig_prepare(struct rig *f, const char *key, uint64_t counter, struct got *g);
/* A record for an ACCEPT; sums is finished by the caller. */
struct record rig_record_for(uint64_t counter, struct span value, struct buf *sums);
enum answer_kind rig_accept_in_pieces(struct rig *f, const char *key, uint64_t counter,
                                      struct span value, size_t piece, struct got *g);
enum answer_kind rig_accept_value(struct rig *f, const char *key, uint64_t counter,
                                  const char *value, struct got *g);
enum answer_kind rig_accept_tombstone(struct rig *f, const char *key, uint64_t counter,
                                      struct got *g);
/* An ACCEPT with MSG_RESTORE. */
enum answer_kind rig_restore(struct rig *f, const char *key, uint64_t counter, const char *value,
                             struct got *g);
enum answer_kind rig_read_range(struct rig *f, const char *key, uint64_t offset, uint64_t length,
                                struct got *g);
enum answer_kind rig_read_value(struct rig *f, const char *key, struct got *g);
void rig_hello(struct rig *f, uint32_t node, uint64_t incarnation, struct got *g);
void rig_assert_value(const struct got *g, const char *text);

/* Puts bytes into the store that are no record of this key. */
void rig_damage(struct rig *f, const char *key);
/* Stores a value of this size, under this version, whose byte `at` its record does not mean. */
void rig_damage_value(struct rig *f, const char *key, uint64_t counter, size_t size, size_t at);

/* Bytes of which no two chunks are alike; rig_span_free() frees them. */
struct span rig_pattern(size_t len);
void rig_span_free(struct span s);

#endif

/*
 * test_replica.c - what one replica answers, over the store in memory: each rule of
 * docs/protocol.md, "What a replica answers".
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/hash.h"
#include "common/list.h"
#include "node/promises.h"
#include "node/replica.h"

/* --- fixture --------------------------------------------------------------------------- */

struct fixture {
    struct clock clock; /* stands still unless a test moves it */
    uint64_t now_us;
    struct config *cfg;
    struct store *store;
    struct replica *r;
    uint64_t tick; /* added to now_us at each look at the clock */
};

/* One answer: decoded, with the bytes that it borrows from. */
struct got {
    unsigned status;
    struct buf bytes;
    struct answer a;
    struct span value; /* what follows the head */
};

static uint64_t clock_us(struct clock *c)
{
    struct fixture *f = container_of(c, struct fixture, clock);

    if (f->tick > 0)
        f->now_us += f->tick;
    return f->now_us;
}

static void open_replica(struct fixture *f)
{
    struct replica_opts opts = {.ring = f->cfg->ring,
                                .self = 0,
                                .cfg = f->cfg,
                                .store = f->store,
                                .clock = &f->clock,
                                .seed = 7,
                                .max_value_size = 4u << 20,
                                .floor_ahead_us = 100};
    struct err err = {""};

    if (replica_open(&opts, &f->r, &err) < 0)
        fail_msg("%s", err.msg);
}

static void open_cluster(struct fixture *f, const char *json)
{
    struct err err = {""};

    if (config_parse("test", span_str(json), &f->cfg, &err) < 0)
        fail_msg("%s", err.msg);
    open_replica(f);
}

static const char three_nodes[] = "{\"nodes\":[{\"id\":\"n0\",\"addr\":\"h0:1\"},{\"id\":\"n1\","
                                  "\"addr\":\"h1:1\"},{\"id\":\"n2\",\"addr\":\"h2:1\"}],"
                                  "\"replication_factor\":3}";
static const char no_copies[] = "{\"nodes\":[{\"id\":\"n0\",\"addr\":\"h0:1\"},{\"id\":\"n1\","
                                "\"addr\":\"h1:1\"},{\"id\":\"n2\",\"addr\":\"h2:1\"}],"
                                "\"replication_factor\":1}";

static int setup(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));

    f->clock = (struct clock){clock_us, clock_us};
    f->now_us = 5000000;
    assert_int_equal(store_memory_open(&f->store), 0);
    open_cluster(f, three_nodes);
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;

    replica_close(f->r);
    f->store->ops->close(f->store);
    config_free(f->cfg);
    free(f);
    return 0;
}

static void restart(struct fixture *f)
{
    replica_close(f->r);
    open_replica(f);
}

/* --- helpers --------------------------------------------------------------------------- */

static struct message message(struct fixture *f, enum message_kind kind, const char *key)
{
    return (struct message){.kind = kind,
                            .ring = ring_fingerprint(f->cfg->ring),
                            .budget_ms = 1000,
                            .key = span_str(key),
                            .limit = LIST_LIMIT_DEFAULT,
                            .length = UINT64_MAX,
                            .node = MESSAGE_NODE_NONE};
}

static void got_fini(struct got *g)
{
    buf_fini(&g->bytes);
    *g = (struct got){0};
}

/* The whole answer in small and odd pieces, as a server reads it. */
static int64_t read_reply(struct reply *reply, struct buf *out)
{
    uint64_t total = reply_len(reply), pos = 0;
    size_t piece = total > 100000 ? 70001 : 7;

    while (pos < total) {
        uint8_t *to = buf_reserve(out, piece);
        int64_t n = reply_read(reply, pos, to, piece);

        if (n < 0)
            return n;
        assert_true(n > 0);
        out->len += (size_t)n;
        pos += (uint64_t)n;
    }
    return (int64_t)total;
}

/* Feeds bytes in pieces of this size and decodes what is answered. */
static void send_bytes(struct fixture *f, struct span bytes, size_t piece, struct span key,
                       struct got *g)
{
    struct replica_request *rq;
    struct reply reply;
    size_t head_len;

    got_fini(g);
    assert_int_equal(replica_begin(f->r, bytes.len, &rq), 0);
    for (size_t at = 0; at < bytes.len; at += piece) {
        if (replica_feed(
                rq, span_of(bytes.data + at, bytes.len - at < piece ? bytes.len - at : piece)) < 0)
            break;
    }
    replica_end(rq, &reply);
    g->status = reply.status;
    assert_true(read_reply(&reply, &g->bytes) >= 0);
    assert_int_equal(answer_decode(buf_span(&g->bytes), key, &g->a, &head_len), 0);
    g->value = span_of(g->bytes.data + head_len, g->bytes.len - head_len);
    assert_int_equal(g->status, g->a.kind == ANS_ERROR ? g->a.status : 200);
    reply_fini(&reply);
}

static void send_in_pieces(struct fixture *f, const struct message *m, struct span value,
                           size_t piece, struct got *g)
{
    struct buf bytes = {0};
    struct span key = m->kind == MSG_LIST || m->kind == MSG_HELLO ? (struct span){0} : m->key;

    message_encode(&bytes, m);
    buf_add_span(&bytes, value);
    assert_int_equal(bytes.err, 0);
    send_bytes(f, buf_span(&bytes), piece, key, g);
    buf_fini(&bytes);
}

static void send_message(struct fixture *f, const struct message *m, struct span value,
                         struct got *g)
{
    send_in_pieces(f, m, value, SIZE_MAX / 2, g);
}

static struct ballot ballot(uint64_t counter)
{
    return (struct ballot){counter, 1};
}

static enum answer_kind prepare(struct fixture *f, const char *key, uint64_t counter, struct got *g)
{
    struct message m = message(f, MSG_PREPARE, key);

    m.ballot = ballot(counter);
    m.flags = MSG_WANT_VALUE;
    send_message(f, &m, (struct span){0}, g);
    return g->a.kind;
}

/* A record for an ACCEPT; sums is finished by the caller. */
static struct record record_for(uint64_t counter, struct span value, struct buf *sums)
{
    record_sums(sums, value);
    return (struct record){.version = ballot(counter),
                           .seq = 1,
                           .n_recent = 1,
                           .recent = {counter},
                           .size = value.len,
                           .sums = buf_span(sums),
                           .mode = 0100644,
                           .mtime_ns = 77};
}

static enum answer_kind accept_in_pieces(struct fixture *f, const char *key, uint64_t counter,
                                         struct span value, size_t piece, struct got *g)
{
    struct message m = message(f, MSG_ACCEPT, key);
    struct buf sums = {0};

    m.record = record_for(counter, value, &sums);
    send_in_pieces(f, &m, value, piece, g);
    buf_fini(&sums);
    return g->a.kind;
}

static enum answer_kind accept_value(struct fixture *f, const char *key, uint64_t counter,
                                     const char *value, struct got *g)
{
    return accept_in_pieces(f, key, counter, span_str(value), SIZE_MAX / 2, g);
}

static enum answer_kind accept_tombstone(struct fixture *f, const char *key, uint64_t counter,
                                         struct got *g)
{
    struct message m = message(f, MSG_ACCEPT, key);

    m.record = (struct record){.version = ballot(counter), .flags = RECORD_TOMBSTONE, .seq = 2};
    send_message(f, &m, (struct span){0}, g);
    return g->a.kind;
}

static enum answer_kind read_range(struct fixture *f, const char *key, uint64_t offset,
                                   uint64_t length, struct got *g)
{
    struct message m = message(f, MSG_READ, key);

    m.flags = MSG_WANT_VALUE;
    m.offset = offset;
    m.length = length;
    send_message(f, &m, (struct span){0}, g);
    return g->a.kind;
}

static enum answer_kind read_value(struct fixture *f, const char *key, struct got *g)
{
    return read_range(f, key, 0, UINT64_MAX, g);
}

static void assert_value(const struct got *g, const char *text)
{
    assert_true(g->a.has_value);
    assert_true(span_eq(g->value, span_str(text)));
}

/* Bytes of which no two chunks are alike; the caller frees them. */
static struct span pattern(size_t len)
{
    uint8_t *p = malloc(len);

    assert_non_null(p);
    for (size_t i = 0; i < len; i++)
        p[i] = (uint8_t)(i * 31 + i / 251 + i / CHUNK_SIZE);
    return span_of(p, len);
}

static void span_free(struct span s)
{
    free((void *)(uintptr_t)s.data);
}

/* --- promises -------------------------------------------------------------------------- */

static void a_key_never_written_is_promised_with_version_none(void **state)
{
    struct fixture *f = *state;
    struct got g = {0};

    assert_int_equal(prepare(f, "k", 10, &g), ANS_PROMISE);
    assert_true(ballot_is_none(g.a.record.version));
    assert_false(g.a.has_value);
    assert_int_equal(read_value(f, "k", &g), ANS_STATE);
    assert_true(ballot_is_none(g.a.record.version));
    assert_false(g.a.has_value);
    got_fini(&g);
}

static void a_lower_or_equal_ballot_is_refused_naming_the_highest(void **state)
{
    struct fixture *f = *state;
    struct got g = {0};

    assert_int_equal(prepare(f, "k", 10, &g), ANS_PROMISE);
    assert_int_equal(prepare(f, "k", 10, &g), ANS_REFUSE);
    assert_int_equal(ballot_cmp(g.a.ballot, ballot(10)), 0);
    assert_int_equal(prepare(f, "k", 9, &g), ANS_REFUSE);
    assert_int_equal(ballot_cmp(g.a.ballot, ballot(10)), 0);
    assert_int_equal(accept_value(f, "k", 9, "old", &g), ANS_REFUSE);
    assert_int_equal(ballot_cmp(g.a.ballot, ballot(10)), 0);
    assert_int_equal(read_value(f, "k", &g), ANS_STATE);
    assert_true(ballot_is_none(g.a.record.version));
    got_fini(&g);
}

static void what_was_accepted_is_promised_and_read_with_its_value(void **state)
{
    struct fixture *f = *state;
    struct got g = {0};

    assert_int_equal(accept_value(f, "k", 10, "hello", &g), ANS_ACCEPTED);
    assert_int_equal(read_value(f, "k", &g), ANS_STATE);
    assert_int_equal(ballot_cmp(g.a.record.version, ballot(10)), 0);
    assert_int_equal(g.a.record.mode, 0100644);
    assert_value(&g, "hello");
    assert_int_equal(prepare(f, "k", 11, &g), ANS_PROMISE);
    assert_int_equal(ballot_cmp(g.a.record.version, ballot(10)), 0);
    assert_value(&g, "hello");
    got_fini(&g);
}

static void an_accept_raises_the_promise(void **state)
{
    struct fixture *f = *state;
    struct got g = {0};

    assert_int_equal(accept_value(f, "k", 10, "x", &g), ANS_ACCEPTED);
    assert_int_equal(prepare(f, "k", 10, &g), ANS_REFUSE);
    assert_int_equal(accept_value(f, "k", 9, "stale", &g), ANS_REFUSE);
    assert_int_equal(ballot_cmp(g.a.ballot, ballot(10)), 0);
    assert_int_equal(read_value(f, "k", &g), ANS_STATE);
    assert_value(&g, "x");
    got_fini(&g);
}

static void the_promised_ballot_itself_is_accepted(void **state)
{
    struct fixture *f = *state;
    struct got g = {0};

    assert_int_equal(prepare(f, "k", 10, &g), ANS_PROMISE);
    assert_int_equal(accept_value(f, "k", 10, "x", &g), ANS_ACCEPTED);
    got_fini(&g);
}

static void an_accept_that_comes_twice_is_accepted_twice_and_stored_once(void **state)
{
    struct fixture *f = *state;
    struct got g = {0};

    assert_int_equal(accept_value(f, "k", 10, "x", &g), ANS_ACCEPTED);
    /* Even when something newer was promised since. */
    assert_int_equal(prepare(f, "k", 20, &g), ANS_PROMISE);
    assert_int_equal(accept_value(f, "k", 10, "y", &g), ANS_ACCEPTED);
    assert_int_equal(read_value(f, "k", &g), ANS_STATE);
    assert_value(&g, "x");
    got_fini(&g);
}

static void after_a_restart_all_below_the_floor_is_refused(void **state)
{
    struct fixture *f = *state;
    struct got g = {0};
    struct ballot top;

    assert_int_equal(prepare(f, "k", 1000, &g), ANS_PROMISE);
    restart(f);
    assert_int_equal(accept_value(f, "k", 999, "x", &g), ANS_REFUSE);
    assert_int_equal(prepare(f, "other", 1000, &g), ANS_REFUSE);
    top = g.a.ballot;
    assert_true(top.counter >= 1000);
    assert_true(top.counter <= 1100); /* floor_ahead_us */
    assert_true(top.proposer == BALLOT_PROPOSER_MAX);
    assert_int_equal(prepare(f, "k", top.counter + 1, &g), ANS_PROMISE);
    got_fini(&g);
}

static void the_floor_is_above_all_promises_and_accepts_and_grows_seldom(void **state)
{
    struct fixture *f = *state;
    struct message hello = message(f, MSG_HELLO, "");
    struct got g = {0};
    uint64_t floor = 0;
    unsigned n_changes = 0;

    for (uint64_t c = 1; c <= 1000; c++) {
        if (c % 2)
            assert_int_equal(prepare(f, "k", c, &g), ANS_PROMISE);
        else
            assert_int_equal(accept_value(f, "k", c, "", &g), ANS_ACCEPTED);
        send_message(f, &hello, (struct span){0}, &g);
        assert_int_equal(g.a.kind, ANS_HELLO);
        assert_true(g.a.floor >= c);
        n_changes += g.a.floor != floor;
        floor = g.a.floor;
    }
    /* 1000 counters, 100 ahead, moved when half is used up. */
    assert_in_range(n_changes, 10, 25);
    got_fini(&g);
}

static void counters_that_no_clock_makes_are_refused_and_leave_no_trace(void **state)
{
    struct fixture *f = *state;
    struct message m = message(f, MSG_PREPARE, "k");
    struct got g = {0};

    m.ballot = (struct ballot){PROMISE_COUNTER_MAX + 1, 1};
    send_message(f, &m, (struct span){0}, &g);
    assert_int_equal(g.status, 400);
    m.ballot = (struct ballot){UINT64_MAX, 1};
    send_message(f, &m, (struct span){0}, &g);
    assert_int_equal(g.status, 400);
    m.ballot = (struct ballot){5, BALLOT_PROPOSER_MAX};
    send_message(f, &m, (struct span){0}, &g);
    assert_int_equal(g.status, 400);
    assert_int_equal(accept_value(f, "k", UINT64_MAX, "x", &g), ANS_ERROR);
    assert_int_equal(g.status, 400);
    restart(f);
    assert_int_equal(prepare(f, "k", 1, &g), ANS_PROMISE);
    /* The highest one does not overflow the floor. */
    assert_int_equal(prepare(f, "k", PROMISE_COUNTER_MAX, &g), ANS_PROMISE);
    assert_int_equal(prepare(f, "k", PROMISE_COUNTER_MAX, &g), ANS_REFUSE);
    got_fini(&g);
}

#define N_RIVALS 4
#define N_ROUNDS 40

/* One of several threads that store different versions of one key at the same time. */
struct rival {
    struct fixture *f;
    uint64_t number;
    pthread_t thread;
    pthread_barrier_t *start; /* of each round, for all at once */
    uint64_t accepted;        /* the highest counter that was */
};

static const struct store_ops *plain_ops;
static atomic_uint n_backwards;

/* Between the replica's look at the key and its put, the others get their turn. */
static int slow_put(struct store *s, struct span key, struct span record, struct span value,
                    struct store_file *file, bool keep)
{
    struct store_item item = STORE_ITEM_NONE;
    struct record now, then;

    (void)poll(NULL, 0, 1);
    if (plain_ops->get(s, key, false, &item) == 0 &&
        record_decode(buf_span(&item.record), key, &then) == 0 &&
        record_decode(record, key, &now) == 0 && ballot_cmp(now.version, then.version) <= 0)
        atomic_fetch_add(&n_backwards, 1);
    store_item_fini(&item);
    return plain_ops->put(s, key, record, value, file, keep);
}

/* The kind of the answer; no assertion, for those belong to the main thread. */
static int ask(struct fixture *f, const struct message *m)
{
    struct buf bytes = {0};
    struct replica_request *rq;
    struct reply reply;
    struct answer a = {0};
    size_t head_len;

    message_encode(&bytes, m);
    if (replica_begin(f->r, bytes.len, &rq) == 0) {
        (void)replica_feed(rq, buf_span(&bytes));
        replica_end(rq, &reply);
        (void)answer_decode(buf_span(&reply.head), m->key, &a, &head_len);
        reply_fini(&reply);
    }
    buf_fini(&bytes);
    return a.kind;
}

static void *rival_main(void *arg)
{
    struct rival *rival = arg;

    for (uint64_t round = 1; round <= N_ROUNDS; round++) {
        struct message m = message(rival->f, MSG_ACCEPT, "k");
        uint64_t counter = round * N_RIVALS + (rival->number + round) % N_RIVALS;

        m.record = (struct record){.version = ballot(counter), .flags = RECORD_TOMBSTONE};
        (void)pthread_barrier_wait(rival->start);
        if (ask(rival->f, &m) == ANS_ACCEPTED)
            rival->accepted = counter;
    }
    return NULL;
}

static void versions_only_grow_however_many_store_at_once(void **state)
{
    struct fixture *f = *state;
    struct rival rivals[N_RIVALS] = {0};
    struct store_ops slow_ops = *f->store->ops;
    pthread_barrier_t start;
    struct got g = {0};
    uint64_t highest = 0;

    assert_int_equal(pthread_barrier_init(&start, NULL, N_RIVALS), 0);
    plain_ops = f->store->ops;
    slow_ops.put = slow_put;
    f->store->ops = &slow_ops;
    for (unsigned i = 0; i < N_RIVALS; i++) {
        rivals[i] = (struct rival){.f = f, .number = i, .start = &start};
        assert_int_equal(pthread_create(&rivals[i].thread, NULL, rival_main, &rivals[i]), 0);
    }
    for (unsigned i = 0; i < N_RIVALS; i++) {
        pthread_join(rivals[i].thread, NULL);
        if (rivals[i].accepted > highest)
            highest = rivals[i].accepted;
    }
    f->store->ops = plain_ops;
    pthread_barrier_destroy(&start);
    assert_int_equal(atomic_load(&n_backwards), 0);
    assert_int_equal(read_value(f, "k", &g), ANS_STATE);
    assert_int_equal(g.a.record.version.counter, highest);
    got_fini(&g);
}

static int failing_put(struct store *s, struct span key, struct span record, struct span value,
                       struct store_file *file, bool keep)
{
    (void)s, (void)key, (void)record, (void)value, (void)file, (void)keep;
    return -EIO;
}

static int failing_probe(struct store *s)
{
    (void)s;
    return -EIO;
}

/* Else it could promise with the old record, and after a restart turn out to hold the new one. */
static void after_a_failed_put_nothing_is_promised_until_the_store_can_write_again(void **state)
{
    struct fixture *f = *state;
    const struct store_ops *good_ops = f->store->ops;
    struct store_ops bad_ops = *good_ops;
    struct got g = {0};

    assert_int_equal(accept_value(f, "k", 10, "old", &g), ANS_ACCEPTED);
    bad_ops.put = failing_put;
    bad_ops.probe = failing_probe;
    f->store->ops = &bad_ops;
    assert_int_equal(accept_value(f, "k", 20, "new", &g), ANS_ERROR);
    assert_int_equal(prepare(f, "k", 30, &g), ANS_ERROR);
    assert_int_equal(prepare(f, "other", 30, &g), ANS_ERROR);
    assert_int_equal(read_value(f, "k", &g), ANS_STATE); /* what it says binds nobody */
    f->store->ops = good_ops;
    assert_int_equal(prepare(f, "k", 30, &g), ANS_PROMISE);
    assert_value(&g, "old");
    got_fini(&g);
}

/* --- who may ask, and when ------------------------------------------------------------- */

static void another_ring_is_refused_naming_both(void **state)
{
    struct fixture *f = *state;
    struct message m = message(f, MSG_PREPARE, "k");
    struct got g = {0};
    char mine[17];

    snprintf(mine, sizeof(mine), "%016llx", (unsigned long long)m.ring);
    m.ballot = ballot(5);
    m.ring = 0xabcdef;
    send_message(f, &m, (struct span){0}, &g);
    assert_int_equal(g.status, 409);
    assert_non_null(memmem(g.a.text.data, g.a.text.len, "0000000000abcdef", 16));
    assert_non_null(memmem(g.a.text.data, g.a.text.len, mine, 16));
    assert_int_equal(prepare(f, "k", 5, &g), ANS_PROMISE);
    got_fini(&g);
}

static void a_key_of_other_nodes_is_answered_with_its_replicas(void **state)
{
    struct fixture *f = *state;
    struct got g = {0};
    struct buf owners = {0};
    char key[16];
    unsigned owner, i = 0;

    replica_close(f->r);
    config_free(f->cfg);
    open_cluster(f, no_copies);
    do {
        snprintf(key, sizeof(key), "key-%u", i++);
        owner = ring_replicas(f->cfg->ring, span_str(key))[0];
    } while (owner == 0);
    assert_int_equal(accept_value(f, key, 10, "x", &g), ANS_ERROR);
    assert_int_equal(g.status, 421);
    buf_addf(&owners, "{\"key\":\"%s\",\"replicas\":[{\"id\":\"n%u\",\"addr\":\"h%u:1\"}]}\n", key,
             owner, owner);
    assert_true(span_eq(g.a.text, buf_span(&owners)));
    assert_int_equal(read_value(f, key, &g), ANS_ERROR);
    assert_int_equal(prepare(f, key, 10, &g), ANS_ERROR);
    buf_fini(&owners);
    got_fini(&g);
}

static void what_comes_after_its_deadline_has_no_effect(void **state)
{
    struct fixture *f = *state;
    struct message m = message(f, MSG_PREPARE, "k");
    struct got g = {0};

    m.ballot = ballot(10);
    m.deadline_ms = f->now_us / 1000 - 1;
    send_message(f, &m, (struct span){0}, &g);
    assert_int_equal(g.status, 504);
    assert_non_null(memmem(g.a.text.data, g.a.text.len, "too late", 8));
    m.deadline_ms = f->now_us / 1000;
    send_message(f, &m, (struct span){0}, &g);
    assert_int_equal(g.a.kind, ANS_PROMISE); /* the late one promised nothing */
    got_fini(&g);
}

static void a_request_that_took_too_long_to_arrive_has_no_effect(void **state)
{
    struct fixture *f = *state;
    struct got g = {0};

    /* Between arrival and effect pass more than the second that the messages have. */
    f->tick = 600 * 1000;
    assert_int_equal(accept_value(f, "k", 10, "x", &g), ANS_ERROR);
    assert_int_equal(g.status, 504);
    f->tick = 0;
    assert_int_equal(read_value(f, "k", &g), ANS_STATE);
    assert_true(ballot_is_none(g.a.record.version));
    got_fini(&g);
}

static void a_value_above_the_limit_is_refused_by_its_head(void **state)
{
    struct fixture *f = *state;
    struct message m = message(f, MSG_ACCEPT, "k");
    struct span value = pattern((4u << 20) + 1);
    struct buf sums = {0}, bytes = {0};
    struct replica_request *rq;
    struct reply reply;

    m.record = record_for(10, value, &sums);
    message_encode(&bytes, &m);
    assert_int_equal(replica_begin(f->r, bytes.len + value.len, &rq), 0);
    assert_int_equal(replica_feed(rq, buf_span(&bytes)), -EFBIG);
    replica_end(rq, &reply);
    assert_int_equal(reply.status, 413);
    reply_fini(&reply);
    buf_fini(&bytes);
    buf_fini(&sums);
    span_free(value);
}

/* --- values ---------------------------------------------------------------------------- */

static void values_come_back_whole_whatever_their_size_and_the_pieces_they_came_in(void **state)
{
    static const size_t sizes[] = {0,
                                   1,
                                   INLINE_VALUE_MAX - 1,
                                   INLINE_VALUE_MAX,
                                   INLINE_VALUE_MAX + 1,
                                   CHUNK_SIZE,
                                   CHUNK_SIZE + 1,
                                   3 * CHUNK_SIZE + 12345};
    static const size_t pieces[] = {1, 7, 4096, 65536, SIZE_MAX / 2};
    struct fixture *f = *state;
    struct got g = {0};
    uint64_t counter = 1;

    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        struct span value = pattern(sizes[i]);

        for (size_t k = 0; k < sizeof(pieces) / sizeof(pieces[0]); k++) {
            if (pieces[k] < 4096 && sizes[i] > CHUNK_SIZE + 1)
                continue;
            assert_int_equal(accept_in_pieces(f, "k", ++counter, value, pieces[k], &g),
                             ANS_ACCEPTED);
            assert_int_equal(read_value(f, "k", &g), ANS_STATE);
            assert_int_equal(ballot_cmp(g.a.record.version, ballot(counter)), 0);
            assert_true(g.a.has_value);
            assert_true(span_eq(g.value, value));
        }
        span_free(value);
    }
    got_fini(&g);
}

static void ranges_are_widened_to_chunks_and_cut_at_the_size(void **state)
{
    static const struct {
        uint64_t offset, length, from, to;
    } cases[] = {
        {0, 1, 0, CHUNK_SIZE},
        {CHUNK_SIZE - 1, 2, 0, 2 * CHUNK_SIZE},
        {CHUNK_SIZE, CHUNK_SIZE, CHUNK_SIZE, 2 * CHUNK_SIZE},
        {2 * CHUNK_SIZE + 5, 1, 2 * CHUNK_SIZE, 2 * CHUNK_SIZE + 100},
        {2 * CHUNK_SIZE + 99, UINT64_MAX, 2 * CHUNK_SIZE, 2 * CHUNK_SIZE + 100},
        {1, UINT64_MAX, 0, 2 * CHUNK_SIZE + 100},
        {5, 0, 0, 0},
        {2 * CHUNK_SIZE + 100, 10, 2 * CHUNK_SIZE, 2 * CHUNK_SIZE},
        {UINT64_MAX, UINT64_MAX, 2 * CHUNK_SIZE, 2 * CHUNK_SIZE},
    };
    struct fixture *f = *state;
    struct span value = pattern(2 * CHUNK_SIZE + 100);
    struct got g = {0};

    assert_int_equal(accept_in_pieces(f, "k", 1, value, SIZE_MAX / 2, &g), ANS_ACCEPTED);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        assert_int_equal(read_range(f, "k", cases[i].offset, cases[i].length, &g), ANS_STATE);
        assert_true(g.a.has_value);
        assert_int_equal(g.a.value_offset, cases[i].from);
        assert_true(
            span_eq(g.value, span_of(value.data + cases[i].from, cases[i].to - cases[i].from)));
    }
    assert_int_equal(accept_value(f, "small", 1, "hello", &g), ANS_ACCEPTED);
    assert_int_equal(read_range(f, "small", 2, 1, &g), ANS_STATE);
    assert_value(&g, "hello");
    span_free(value);
    got_fini(&g);
}

static void a_read_pinned_to_another_version_brings_no_value(void **state)
{
    struct fixture *f = *state;
    struct message m = message(f, MSG_READ, "k");
    struct got g = {0};

    assert_int_equal(accept_value(f, "k", 10, "x", &g), ANS_ACCEPTED);
    m.flags = MSG_WANT_VALUE;
    m.pin = ballot(9);
    send_message(f, &m, (struct span){0}, &g);
    assert_int_equal(ballot_cmp(g.a.record.version, ballot(10)), 0);
    assert_false(g.a.has_value);
    m.pin = ballot(10);
    send_message(f, &m, (struct span){0}, &g);
    assert_value(&g, "x");
    got_fini(&g);
}

static void a_tombstone_has_no_value_and_is_not_absence(void **state)
{
    struct fixture *f = *state;
    struct got g = {0};

    assert_int_equal(accept_value(f, "k", 10, "x", &g), ANS_ACCEPTED);
    assert_int_equal(accept_tombstone(f, "k", 11, &g), ANS_ACCEPTED);
    assert_int_equal(read_value(f, "k", &g), ANS_STATE);
    assert_int_equal(ballot_cmp(g.a.record.version, ballot(11)), 0);
    assert_int_equal(g.a.record.flags, RECORD_TOMBSTONE);
    assert_false(g.a.has_value);
    got_fini(&g);
}

static enum answer_kind accept_same(struct fixture *f, const char *key, uint64_t counter,
                                    uint64_t pin, struct span value, struct got *g)
{
    struct message m = message(f, MSG_ACCEPT, key);
    struct buf sums = {0};

    m.flags = MSG_SAME_VALUE;
    m.pin = ballot(pin);
    m.record = record_for(counter, value, &sums);
    m.record.mode = 0100600;
    send_message(f, &m, (struct span){0}, g);
    buf_fini(&sums);
    return g->a.kind;
}

static void attributes_change_without_the_value_where_it_is_the_same(void **state)
{
    struct fixture *f = *state;
    struct span large = pattern(INLINE_VALUE_MAX + 1), other = pattern(INLINE_VALUE_MAX + 1);
    struct got g = {0};

    ((uint8_t *)(uintptr_t)other.data)[5]++;
    assert_int_equal(accept_value(f, "k", 10, "hello", &g), ANS_ACCEPTED);
    assert_int_equal(accept_same(f, "k", 11, 10, span_str("hello"), &g), ANS_ACCEPTED);
    assert_int_equal(read_value(f, "k", &g), ANS_STATE);
    assert_int_equal(g.a.record.mode, 0100600);
    assert_value(&g, "hello");

    assert_int_equal(accept_in_pieces(f, "l", 10, large, SIZE_MAX / 2, &g), ANS_ACCEPTED);
    assert_int_equal(accept_same(f, "l", 11, 10, other, &g), ANS_NEED_VALUE);
    assert_int_equal(accept_same(f, "l", 11, 10, large, &g), ANS_ACCEPTED);
    assert_int_equal(read_value(f, "l", &g), ANS_STATE);
    assert_int_equal(ballot_cmp(g.a.record.version, ballot(11)), 0);
    assert_true(span_eq(g.value, large));
    span_free(large);
    span_free(other);
    got_fini(&g);
}

static void a_replica_without_that_version_asks_for_the_value(void **state)
{
    struct fixture *f = *state;
    struct got g = {0};

    assert_int_equal(accept_same(f, "k", 11, 10, span_str("hello"), &g), ANS_NEED_VALUE);
    assert_int_equal(accept_value(f, "k", 9, "hello", &g), ANS_ACCEPTED);
    assert_int_equal(accept_same(f, "k", 11, 10, span_str("hello"), &g), ANS_NEED_VALUE);
    assert_int_equal(accept_same(f, "k", 11, 9, span_str("hellx"), &g), ANS_NEED_VALUE);
    assert_int_equal(accept_same(f, "k", 11, 9, span_str("hell"), &g), ANS_NEED_VALUE);
    assert_int_equal(accept_same(f, "k", 8, 9, span_str("hello"), &g), ANS_REFUSE);
    /* Asking promised nothing. */
    assert_int_equal(accept_value(f, "k", 11, "hello", &g), ANS_ACCEPTED);
    assert_int_equal(accept_same(f, "k", 11, 9, span_str("hello"), &g), ANS_ACCEPTED);
    got_fini(&g);
}

static void a_large_value_that_is_refused_anyway_is_not_kept(void **state)
{
    struct fixture *f = *state;
    struct span value = pattern(INLINE_VALUE_MAX + 1);
    struct got g = {0};

    assert_int_equal(prepare(f, "k", 20, &g), ANS_PROMISE);
    assert_int_equal(accept_in_pieces(f, "k", 10, value, 1000, &g), ANS_REFUSE);
    assert_int_equal(ballot_cmp(g.a.ballot, ballot(20)), 0);
    assert_int_equal(accept_in_pieces(f, "k", 20, value, 1000, &g), ANS_ACCEPTED);
    assert_int_equal(accept_in_pieces(f, "k", 20, value, 1000, &g), ANS_ACCEPTED);
    assert_int_equal(read_value(f, "k", &g), ANS_STATE);
    assert_true(span_eq(g.value, value));
    span_free(value);
    got_fini(&g);
}

/* --- damage ---------------------------------------------------------------------------- */

/* Every byte of a small ACCEPT, flipped: nothing of it is ever stored. */
static void a_byte_flipped_on_the_way_is_refused(void **state)
{
    struct fixture *f = *state;
    struct message m = message(f, MSG_ACCEPT, "k");
    struct buf sums = {0}, bytes = {0};
    struct got g = {0};

    m.record = record_for(10, span_str("hello"), &sums);
    message_encode(&bytes, &m);
    buf_add_str(&bytes, "hello");
    for (size_t i = 0; i < bytes.len; i++) {
        bytes.data[i] ^= 0x10;
        send_bytes(f, buf_span(&bytes), SIZE_MAX / 2, span_str("k"), &g);
        assert_int_equal(g.a.kind, ANS_ERROR);
        assert_true(g.status >= 400 && g.status < 500 ? true : g.status == 501);
        bytes.data[i] ^= 0x10;
    }
    assert_int_equal(read_value(f, "k", &g), ANS_STATE);
    assert_true(ballot_is_none(g.a.record.version));
    send_bytes(f, buf_span(&bytes), SIZE_MAX / 2, span_str("k"), &g);
    assert_int_equal(g.a.kind, ANS_ACCEPTED);
    buf_fini(&bytes);
    buf_fini(&sums);
    got_fini(&g);
}

static void a_large_value_damaged_on_the_way_is_refused(void **state)
{
    struct fixture *f = *state;
    struct span value = pattern(2 * CHUNK_SIZE + 10);
    size_t at[] = {0, CHUNK_SIZE - 1, CHUNK_SIZE, 2 * CHUNK_SIZE + 9};
    struct message m = message(f, MSG_ACCEPT, "k");
    struct buf sums = {0};
    struct got g = {0};

    m.record = record_for(10, value, &sums);
    for (size_t i = 0; i < sizeof(at) / sizeof(at[0]); i++) {
        uint8_t *byte = (uint8_t *)(uintptr_t)&value.data[at[i]];

        *byte ^= 1;
        send_in_pieces(f, &m, value, 65536, &g);
        assert_int_equal(g.status, 400);
        *byte ^= 1;
    }
    assert_int_equal(read_value(f, "k", &g), ANS_STATE);
    assert_true(ballot_is_none(g.a.record.version));
    buf_fini(&sums);
    span_free(value);
    got_fini(&g);
}

static void a_request_cut_short_is_refused(void **state)
{
    struct fixture *f = *state;
    struct message m = message(f, MSG_ACCEPT, "k");
    struct buf sums = {0}, bytes = {0};
    struct got g = {0};

    m.record = record_for(10, span_str("hello"), &sums);
    message_encode(&bytes, &m);
    buf_add_str(&bytes, "hello");
    for (size_t len = 0; len < bytes.len; len++) {
        send_bytes(f, span_of(bytes.data, len), 50, span_str("k"), &g);
        assert_int_equal(g.status, 400);
    }
    buf_add_str(&bytes, "!");
    send_bytes(f, buf_span(&bytes), 50, span_str("k"), &g);
    assert_int_equal(g.status, 400);
    buf_fini(&bytes);
    buf_fini(&sums);
    got_fini(&g);
}

static void a_sender_that_goes_away_leaves_the_old_value(void **state)
{
    struct fixture *f = *state;
    struct message m = message(f, MSG_ACCEPT, "k");
    struct span value = pattern(CHUNK_SIZE);
    struct buf sums = {0}, bytes = {0};
    struct replica_request *rq;
    struct got g = {0};

    assert_int_equal(accept_value(f, "k", 9, "old", &g), ANS_ACCEPTED);
    m.record = record_for(10, value, &sums);
    message_encode(&bytes, &m);
    assert_int_equal(replica_begin(f->r, bytes.len + value.len, &rq), 0);
    assert_int_equal(replica_feed(rq, buf_span(&bytes)), 0);
    assert_int_equal(replica_feed(rq, span_of(value.data, 70000)), 0);
    replica_abort(rq);
    assert_int_equal(read_value(f, "k", &g), ANS_STATE);
    assert_value(&g, "old");
    buf_fini(&bytes);
    buf_fini(&sums);
    span_free(value);
    got_fini(&g);
}

/* Puts bytes into the store that are no record of this key. */
static void damage(struct fixture *f, const char *key)
{
    assert_int_equal(f->store->ops->put(f->store, span_str(key), span_str("KVR garbage"),
                                        (struct span){0}, NULL, false),
                     0);
}

static void a_damaged_record_is_an_error_and_never_absence(void **state)
{
    struct fixture *f = *state;
    struct message m = message(f, MSG_LIST, "");
    struct got g = {0};

    damage(f, "k");
    assert_int_equal(read_value(f, "k", &g), ANS_ERROR);
    assert_int_equal(g.status, 500);
    assert_int_equal(prepare(f, "k", 10, &g), ANS_ERROR);
    assert_int_equal(g.status, 500);
    assert_int_equal(accept_value(f, "k", 10, "x", &g), ANS_ERROR);
    assert_int_equal(g.status, 500);
    send_message(f, &m, (struct span){0}, &g);
    assert_int_equal(g.status, 500);
    got_fini(&g);
}

/* Stores two chunks under "k" whose byte `at` is not the one that their record means. */
static void put_damaged(struct fixture *f, size_t at)
{
    struct span value = pattern(2 * CHUNK_SIZE);
    struct buf sums = {0}, record = {0};
    struct record rec = record_for(10, value, &sums);
    struct store_file *file;

    record_encode(&record, span_str("k"), &rec);
    assert_int_equal(f->store->ops->file_begin(f->store, value.len, &file), 0);
    ((uint8_t *)(uintptr_t)value.data)[at] ^= 1;
    assert_int_equal(f->store->ops->file_write(file, value), 0);
    assert_int_equal(f->store->ops->file_finish(file), 0);
    assert_int_equal(f->store->ops->put(f->store, span_str("k"), buf_span(&record),
                                        (struct span){0}, file, false),
                     0);
    buf_fini(&record);
    buf_fini(&sums);
    span_free(value);
}

static void a_damaged_value_is_never_served(void **state)
{
    struct fixture *f = *state;
    struct message m = message(f, MSG_READ, "k");
    struct buf bytes = {0}, body = {0};
    struct replica_request *rq;
    struct reply reply;

    put_damaged(f, CHUNK_SIZE + 77); /* in the second chunk */
    m.flags = MSG_WANT_VALUE;
    message_encode(&bytes, &m);
    assert_int_equal(replica_begin(f->r, bytes.len, &rq), 0);
    assert_int_equal(replica_feed(rq, buf_span(&bytes)), 0);
    replica_end(rq, &reply);
    assert_int_equal(read_reply(&reply, &body), -EBADMSG);
    assert_true(body.len <= reply.head.len + CHUNK_SIZE); /* cut before the damaged chunk */
    reply_fini(&reply);
    buf_fini(&body);
    buf_fini(&bytes);
}

/* A connection that is cut looks like a node that is down. */
static void damage_at_the_beginning_of_what_is_read_is_told(void **state)
{
    struct fixture *f = *state;
    struct got g = {0};

    put_damaged(f, 77);
    assert_int_equal(read_range(f, "k", 0, 1, &g), ANS_ERROR);
    assert_int_equal(g.status, 500);
    assert_int_equal(prepare(f, "k", 11, &g), ANS_ERROR);
    assert_int_equal(g.status, 500);
    assert_int_equal(read_range(f, "k", CHUNK_SIZE, 1, &g), ANS_STATE);
    assert_int_equal(g.value.len, CHUNK_SIZE);
    got_fini(&g);
}

/* --- incarnations ---------------------------------------------------------------------- */

static void say_hello(struct fixture *f, uint32_t node, uint64_t incarnation, struct got *g)
{
    struct message m = message(f, MSG_HELLO, "");

    m.node = node;
    m.incarnation = incarnation;
    send_message(f, &m, (struct span){0}, g);
}

static void a_store_made_later_is_a_newer_life(void **state)
{
    struct fixture *f = *state;
    uint64_t before = replica_incarnation(f->r);

    replica_close(f->r);
    open_replica(f);
    assert_int_equal(replica_incarnation(f->r), before);
    replica_close(f->r);
    f->store->ops->close(f->store);
    f->now_us++;
    assert_int_equal(store_memory_open(&f->store), 0);
    open_replica(f);
    assert_true(replica_incarnation(f->r) > before);
}

static void every_answer_names_the_incarnations_of_the_others(void **state)
{
    struct fixture *f = *state;
    struct got g = {0};
    uint64_t own = replica_incarnation(f->r), incarnation;
    uint32_t node;

    say_hello(f, MESSAGE_NODE_NONE, 0, &g);
    assert_int_equal(g.a.kind, ANS_HELLO);
    assert_int_equal(g.a.n_known, 0);
    say_hello(f, 2, 500, &g);
    say_hello(f, 2, 400, &g); /* older: forgotten at once */
    assert_int_equal(g.a.n_known, 1);
    restart(f);
    assert_true(replica_incarnation(f->r) == own);
    assert_int_equal(prepare(f, "k", 1000, &g), ANS_PROMISE);
    assert_true(g.a.incarnation == own);
    assert_int_equal(g.a.n_known, 1);
    answer_known(&g.a, 0, &node, &incarnation);
    assert_int_equal(node, 2);
    assert_int_equal(incarnation, 500);
    say_hello(f, 3, 1, &g);
    assert_int_equal(g.status, 400);
    assert_int_equal(replica_learn(f->r, 1, 9), 0);
    assert_int_equal(read_value(f, "k", &g), ANS_STATE);
    assert_int_equal(g.a.n_known, 2);
    got_fini(&g);
}

/* --- listing --------------------------------------------------------------------------- */

/*
 * One line per page: each entry as "key" or "witness>prefix", tombstones with '-', and '+' at the
 * end where there is more.
 */
static void assert_list(struct fixture *f, const char *prefix, const char *after, uint32_t limit,
                        bool delimiter, const char *expected)
{
    struct message m = message(f, MSG_LIST, prefix);
    struct buf line = {0};
    struct got g = {0};
    struct cursor c;
    struct entry e;
    int ret;

    m.start_after = span_str(after);
    m.limit = limit;
    m.flags = delimiter ? MSG_DELIMITER : 0;
    send_message(f, &m, (struct span){0}, &g);
    assert_int_equal(g.a.kind, ANS_LIST);
    c = cursor_of(g.value);
    while ((ret = entry_next(&c, &e)) > 0) {
        if (line.len > 0)
            buf_u8(&line, ' ');
        if (e.flags & RECORD_TOMBSTONE)
            buf_u8(&line, '-');
        buf_add_span(&line, e.key);
        if (e.prefix_len > 0) {
            buf_u8(&line, '>');
            buf_add(&line, e.key.data, e.prefix_len);
        }
    }
    assert_int_equal(ret, 0);
    if (g.a.more)
        buf_add_str(&line, " +");
    buf_u8(&line, 0);
    assert_string_equal((const char *)line.data, expected);
    buf_fini(&line);
    got_fini(&g);
}

static void fill(struct fixture *f)
{
    static const char *const live[] = {"a", "a/", "a/x", "a/y/z", "a0", "b/2", "b/3", "c"};
    static const char *const dead[] = {"a/w", "b/1", "bb", "d/1", "d/2"};
    struct got g = {0};

    for (size_t i = 0; i < sizeof(live) / sizeof(live[0]); i++)
        assert_int_equal(accept_value(f, live[i], 10, "v", &g), ANS_ACCEPTED);
    for (size_t i = 0; i < sizeof(dead) / sizeof(dead[0]); i++)
        assert_int_equal(accept_tombstone(f, dead[i], 10, &g), ANS_ACCEPTED);
    got_fini(&g);
}

static void a_listing_without_delimiter_names_every_key_and_tombstone(void **state)
{
    struct fixture *f = *state;

    fill(f);
    assert_list(f, "", "", 100, false, "a a/ -a/w a/x a/y/z a0 -b/1 b/2 b/3 -bb c -d/1 -d/2");
    assert_list(f, "a/", "", 100, false, "a/ -a/w a/x a/y/z");
    assert_list(f, "", "a/x", 3, false, "a/y/z a0 -b/1 +");
    assert_list(f, "b", "a", 100, false, "-b/1 b/2 b/3 -bb");
    assert_list(f, "b", "z", 100, false, "");
    assert_list(f, "x", "", 100, false, "");
}

static void a_listing_with_delimiter_rolls_up_groups_live_or_dead(void **state)
{
    struct fixture *f = *state;

    fill(f);
    assert_list(f, "", "", 100, true, "a a/>a/ a0 b/2>b/ -bb c -d/1>d/");
    assert_list(f, "a/", "", 100, true, "a/ -a/w a/x a/y/z>a/y/");
    assert_list(f, "a", "", 100, true, "a a/>a/ a0");
    assert_list(f, "d/", "", 100, true, "-d/1 -d/2");
}

static void a_listing_goes_on_behind_a_group_that_was_given(void **state)
{
    struct fixture *f = *state;

    fill(f);
    assert_list(f, "", "", 2, true, "a a/>a/ +");
    assert_list(f, "", "a", 2, true, "a/>a/ a0 +");
    assert_list(f, "", "a/", 2, true, "a0 b/2>b/ +");
    assert_list(f, "", "a/x", 2, true, "a0 b/2>b/ +");
    assert_list(f, "", "b/", 2, true, "-bb c +");
    assert_list(f, "", "c", 2, true, "-d/1>d/");
    assert_list(f, "", "d/", 2, true, "");
    assert_list(f, "a/", "a/", 2, true, "-a/w a/x +");
    assert_list(f, "a/", "a/x", 2, true, "a/y/z>a/y/");
    assert_list(f, "a/", "a/y/", 2, true, "");
}

static void a_page_ends_early_when_it_becomes_long(void **state)
{
    struct fixture *f = *state;
    struct message m = message(f, MSG_LIST, "");
    struct got g = {0};
    char key[KEY_LEN_MAX + 1];

    memset(key, 'k', KEY_LEN_MAX);
    key[KEY_LEN_MAX] = 0;
    for (unsigned i = 0; i < 1200; i++) {
        snprintf(key + KEY_LEN_MAX - 4, 5, "%04u", i);
        assert_int_equal(accept_value(f, key, 10, "", &g), ANS_ACCEPTED);
    }
    m.limit = 1200;
    send_message(f, &m, (struct span){0}, &g);
    assert_true(g.a.more);
    assert_true(g.value.len > (1u << 20) && g.value.len < (2u << 20));
    got_fini(&g);
}

static void peek(struct fixture *f, const char *key, struct got *g)
{
    struct message m = message(f, MSG_READ, key);

    m.flags = MSG_PEEK;
    send_message(f, &m, (struct span){0}, g);
    assert_int_equal(g->a.kind, ANS_STATE);
}

static void assert_peek(struct fixture *f, const char *key, const char *expected, uint32_t flags)
{
    struct got g = {0};

    peek(f, key, &g);
    assert_true(g.a.has_peek);
    assert_true(span_eq(g.a.peek.key, span_str(expected)));
    assert_int_equal(g.a.peek.flags, flags);
    got_fini(&g);
}

static void assert_nothing_below(struct fixture *f, const char *key)
{
    struct got g = {0};

    peek(f, key, &g);
    assert_false(g.a.has_peek);
    got_fini(&g);
}

static void peek_finds_the_first_live_key_below_or_tells_of_the_dead(void **state)
{
    struct fixture *f = *state;

    fill(f);
    assert_peek(f, "a", "a/", 0);
    assert_peek(f, "a/y", "a/y/z", 0);
    assert_peek(f, "b", "b/2", 0);
    assert_peek(f, "d", "d/1", RECORD_TOMBSTONE);
    assert_nothing_below(f, "c");
    assert_nothing_below(f, "zz");
}

static void each_deletion_in_a_dead_group_changes_its_digest(void **state)
{
    struct fixture *f = *state;
    struct got g = {0};
    uint64_t seen[3];

    for (unsigned i = 0; i < 3; i++) {
        static const char *const dead[] = {"d/1", "d/2", "d/2"}; /* the last one again, newer */

        assert_int_equal(accept_tombstone(f, dead[i], 10 + i, &g), ANS_ACCEPTED);
        peek(f, "d", &g);
        seen[i] = g.a.peek.rdev;
    }
    assert_true(seen[0] != seen[1] && seen[1] != seen[2] && seen[0] != seen[2]);
    got_fini(&g);
}

static void people_can_look_at_this_copy(void **state)
{
    struct fixture *f = *state;
    struct span large = pattern(CHUNK_SIZE + 5);
    struct record_copy rec = {0};
    struct value value = {0};
    struct got g = {0};

    assert_int_equal(replica_peek(f->r, span_str("k"), &rec, &value), 0);
    assert_true(ballot_is_none(rec.rec.version));
    assert_int_equal(accept_in_pieces(f, "k", 10, large, SIZE_MAX / 2, &g), ANS_ACCEPTED);
    assert_int_equal(replica_peek(f->r, span_str("k"), &rec, &value), 0);
    assert_int_equal(ballot_cmp(rec.rec.version, ballot(10)), 0);
    assert_true(span_eq(value_span(value), large));
    record_copy_fini(&rec);
    value_fini(&value);
    assert_int_equal(replica_peek(f->r, span_str(""), &rec, &value), -EINVAL);
    span_free(large);
    got_fini(&g);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_key_never_written_is_promised_with_version_none),
        TEST(a_lower_or_equal_ballot_is_refused_naming_the_highest),
        TEST(what_was_accepted_is_promised_and_read_with_its_value),
        TEST(an_accept_raises_the_promise),
        TEST(the_promised_ballot_itself_is_accepted),
        TEST(an_accept_that_comes_twice_is_accepted_twice_and_stored_once),
        TEST(after_a_restart_all_below_the_floor_is_refused),
        TEST(the_floor_is_above_all_promises_and_accepts_and_grows_seldom),
        TEST(after_a_failed_put_nothing_is_promised_until_the_store_can_write_again),
        TEST(versions_only_grow_however_many_store_at_once),
        TEST(counters_that_no_clock_makes_are_refused_and_leave_no_trace),
        TEST(another_ring_is_refused_naming_both),
        TEST(a_key_of_other_nodes_is_answered_with_its_replicas),
        TEST(what_comes_after_its_deadline_has_no_effect),
        TEST(a_request_that_took_too_long_to_arrive_has_no_effect),
        TEST(a_value_above_the_limit_is_refused_by_its_head),
        TEST(values_come_back_whole_whatever_their_size_and_the_pieces_they_came_in),
        TEST(ranges_are_widened_to_chunks_and_cut_at_the_size),
        TEST(a_read_pinned_to_another_version_brings_no_value),
        TEST(a_tombstone_has_no_value_and_is_not_absence),
        TEST(attributes_change_without_the_value_where_it_is_the_same),
        TEST(a_replica_without_that_version_asks_for_the_value),
        TEST(a_large_value_that_is_refused_anyway_is_not_kept),
        TEST(a_byte_flipped_on_the_way_is_refused),
        TEST(a_large_value_damaged_on_the_way_is_refused),
        TEST(a_request_cut_short_is_refused),
        TEST(a_sender_that_goes_away_leaves_the_old_value),
        TEST(a_damaged_record_is_an_error_and_never_absence),
        TEST(a_damaged_value_is_never_served),
        TEST(damage_at_the_beginning_of_what_is_read_is_told),
        TEST(a_store_made_later_is_a_newer_life),
        TEST(every_answer_names_the_incarnations_of_the_others),
        TEST(a_listing_without_delimiter_names_every_key_and_tombstone),
        TEST(a_listing_with_delimiter_rolls_up_groups_live_or_dead),
        TEST(a_listing_goes_on_behind_a_group_that_was_given),
        TEST(a_page_ends_early_when_it_becomes_long),
        TEST(peek_finds_the_first_live_key_below_or_tells_of_the_dead),
        TEST(each_deletion_in_a_dead_group_changes_its_digest),
        TEST(people_can_look_at_this_copy),
    };

    return cmocka_run_group_tests_name("replica", tests, NULL, NULL);
}

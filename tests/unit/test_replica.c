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
#include "tests/lib/replica_rig.h"

/* --- promises ------------------------------------------------------------------------ */

static void a_key_never_written_is_promised_with_version_none(void **state)
{
    struct rig *f = *state;
    struct got g = {0};

    assert_int_equal(rig_prepare(f, "k", 10, &g), ANS_PROMISE);
    assert_true(ballot_is_none(g.a.record.version));
    assert_false(g.a.has_value);
    assert_int_equal(rig_read_value(f, "k", &g), ANS_STATE);
    assert_true(ballot_is_none(g.a.record.version));
    assert_false(g.a.has_value);
    got_fini(&g);
}

static void a_lower_or_equal_ballot_is_refused_naming_the_highest(void **state)
{
    struct rig *f = *state;
    struct got g = {0};

    assert_int_equal(rig_prepare(f, "k", 10, &g), ANS_PROMISE);
    assert_int_equal(rig_prepare(f, "k", 10, &g), ANS_REFUSE);
    assert_int_equal(ballot_cmp(g.a.ballot, rig_ballot(10)), 0);
    assert_int_equal(rig_prepare(f, "k", 9, &g), ANS_REFUSE);
    assert_int_equal(ballot_cmp(g.a.ballot, rig_ballot(10)), 0);
    assert_int_equal(rig_accept_value(f, "k", 9, "old", &g), ANS_REFUSE);
    assert_int_equal(ballot_cmp(g.a.ballot, rig_ballot(10)), 0);
    assert_int_equal(rig_read_value(f, "k", &g), ANS_STATE);
    assert_true(ballot_is_none(g.a.record.version));
    got_fini(&g);
}

static void what_was_accepted_is_promised_and_read_with_its_value(void **state)
{
    struct rig *f = *state;
    struct got g = {0};

    assert_int_equal(rig_accept_value(f, "k", 10, "hello", &g), ANS_ACCEPTED);
    assert_int_equal(rig_read_value(f, "k", &g), ANS_STATE);
    assert_int_equal(ballot_cmp(g.a.record.version, rig_ballot(10)), 0);
    assert_int_equal(g.a.record.mode, 0100644);
    rig_assert_value(&g, "hello");
    assert_int_equal(rig_prepare(f, "k", 11, &g), ANS_PROMISE);
    assert_int_equal(ballot_cmp(g.a.record.version, rig_ballot(10)), 0);
    rig_assert_value(&g, "hello");
    got_fini(&g);
}

static void an_accept_raises_the_promise(void **state)
{
    struct rig *f = *state;
    struct got g = {0};

    assert_int_equal(rig_accept_value(f, "k", 10, "x", &g), ANS_ACCEPTED);
    assert_int_equal(rig_prepare(f, "k", 10, &g), ANS_REFUSE);
    assert_int_equal(rig_accept_value(f, "k", 9, "stale", &g), ANS_REFUSE);
    assert_int_equal(ballot_cmp(g.a.ballot, rig_ballot(10)), 0);
    assert_int_equal(rig_read_value(f, "k", &g), ANS_STATE);
    rig_assert_value(&g, "x");
    got_fini(&g);
}

static void the_promised_ballot_itself_is_accepted(void **state)
{
    struct rig *f = *state;
    struct got g = {0};

    assert_int_equal(rig_prepare(f, "k", 10, &g), ANS_PROMISE);
    assert_int_equal(rig_accept_value(f, "k", 10, "x", &g), ANS_ACCEPTED);
    got_fini(&g);
}

static void an_accept_that_comes_twice_is_accepted_twice_and_stored_once(void **state)
{
    struct rig *f = *state;
    struct got g = {0};

    assert_int_equal(rig_accept_value(f, "k", 10, "x", &g), ANS_ACCEPTED);
    /* Even when something newer was promised since. */
    assert_int_equal(rig_prepare(f, "k", 20, &g), ANS_PROMISE);
    assert_int_equal(rig_accept_value(f, "k", 10, "y", &g), ANS_ACCEPTED);
    assert_int_equal(rig_read_value(f, "k", &g), ANS_STATE);
    rig_assert_value(&g, "x");
    got_fini(&g);
}

static void after_a_restart_all_below_the_floor_is_refused(void **state)
{
    struct rig *f = *state;
    struct got g = {0};
    struct ballot top;

    assert_int_equal(rig_prepare(f, "k", 1000, &g), ANS_PROMISE);
    rig_restart(f);
    assert_int_equal(rig_accept_value(f, "k", 999, "x", &g), ANS_REFUSE);
    assert_int_equal(rig_prepare(f, "other", 1000, &g), ANS_REFUSE);
    top = g.a.ballot;
    assert_true(top.counter >= 1000);
    assert_true(top.counter <= 1100); /* floor_ahead_us */
    assert_true(top.proposer == BALLOT_PROPOSER_MAX);
    assert_int_equal(rig_prepare(f, "k", top.counter + 1, &g), ANS_PROMISE);
    got_fini(&g);
}

static void the_floor_is_above_all_promises_and_accepts_and_grows_seldom(void **state)
{
    struct rig *f = *state;
    struct message hello = rig_message(f, MSG_HELLO, "");
    struct got g = {0};
    uint64_t floor = 0;
    unsigned n_changes = 0;

    for (uint64_t c = 1; c <= 1000; c++) {
        if (c % 2)
            assert_int_equal(rig_prepare(f, "k", c, &g), ANS_PROMISE);
        else
            assert_int_equal(rig_accept_value(f, "k", c, "", &g), ANS_ACCEPTED);
        rig_send(f, &hello, (struct span){0}, &g);
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
    struct rig *f = *state;
    struct message m = rig_message(f, MSG_PREPARE, "k");
    struct got g = {0};

    m.ballot = (struct ballot){BALLOT_COUNTER_MAX + 1, 1};
    rig_send(f, &m, (struct span){0}, &g);
    assert_int_equal(g.status, 400);
    m.ballot = (struct ballot){UINT64_MAX, 1};
    rig_send(f, &m, (struct span){0}, &g);
    assert_int_equal(g.status, 400);
    m.ballot = (struct ballot){5, BALLOT_PROPOSER_MAX};
    rig_send(f, &m, (struct span){0}, &g);
    assert_int_equal(g.status, 400);
    assert_int_equal(rig_accept_value(f, "k", UINT64_MAX, "x", &g), ANS_ERROR);
    assert_int_equal(g.status, 400);
    rig_restart(f);
    assert_int_equal(rig_prepare(f, "k", 1, &g), ANS_PROMISE);
    /* The highest one does not overflow the floor. */
    assert_int_equal(rig_prepare(f, "k", BALLOT_COUNTER_MAX, &g), ANS_PROMISE);
    assert_int_equal(rig_prepare(f, "k", BALLOT_COUNTER_MAX, &g), ANS_REFUSE);
    got_fini(&g);
}

#define N_RIVALS 4
#define N_ROUNDS 40

/* One of several threads that store different versions of one key at the same time. */
struct rival {
    struct rig *f;
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
static int ask(struct rig *f, const struct message *m)
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
        struct message m = rig_message(rival->f, MSG_ACCEPT, "k");
        uint64_t counter = round * N_RIVALS + (rival->number + round) % N_RIVALS;

        m.record = (struct record){.version = rig_ballot(counter), .flags = RECORD_TOMBSTONE};
        (void)pthread_barrier_wait(rival->start);
        if (ask(rival->f, &m) == ANS_ACCEPTED)
            rival->accepted = counter;
    }
    return NULL;
}

static void versions_only_grow_however_many_store_at_once(void **state)
{
    struct rig *f = *state;
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
    assert_int_equal(rig_read_value(f, "k", &g), ANS_STATE);
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
    struct rig *f = *state;
    const struct store_ops *good_ops = f->store->ops;
    struct store_ops bad_ops = *good_ops;
    struct got g = {0};

    assert_int_equal(rig_accept_value(f, "k", 10, "old", &g), ANS_ACCEPTED);
    bad_ops.put = failing_put;
    bad_ops.probe = failing_probe;
    f->store->ops = &bad_ops;
    assert_int_equal(rig_accept_value(f, "k", 20, "new", &g), ANS_ERROR);
    assert_int_equal(rig_prepare(f, "k", 30, &g), ANS_ERROR);
    assert_int_equal(rig_prepare(f, "other", 30, &g), ANS_ERROR);
    assert_int_equal(rig_read_value(f, "k", &g), ANS_STATE); /* that it has it binds nobody */
    f->store->ops = good_ops;
    assert_int_equal(rig_prepare(f, "k", 30, &g), ANS_PROMISE);
    rig_assert_value(&g, "old");
    got_fini(&g);
}

/*
 * What failed may show after a restart: were it taken for absent, the tombstone that other replicas
 * hold of the key could be dropped, and the key would come back (found by sim_faults, see
 * docs/found.md).
 */
static void
after_a_failed_put_nothing_is_called_absent_until_the_store_can_write_again(void **state)
{
    struct rig *f = *state;
    const struct store_ops *good_ops = f->store->ops;
    struct store_ops bad_ops = *good_ops;
    struct got g = {0};

    bad_ops.put = failing_put;
    bad_ops.probe = failing_probe;
    f->store->ops = &bad_ops;
    assert_int_equal(rig_accept_value(f, "k", 10, "perhaps", &g), ANS_ERROR);
    assert_int_equal(rig_read_value(f, "k", &g), ANS_ERROR);
    f->store->ops = good_ops;
    assert_int_equal(rig_read_value(f, "k", &g), ANS_STATE);
    got_fini(&g);
}

/* --- who may ask, and when ----------------------------------------------------------- */

static void another_ring_is_refused_and_told_of_ours(void **state)
{
    struct rig *f = *state;
    struct message m = rig_message(f, MSG_PREPARE, "k");
    struct got g = {0};
    struct buf mine = {0};

    config_ring_json(f->cfg, &mine);
    m.ballot = rig_ballot(5);
    m.ring = 0xabcdef;
    rig_send(f, &m, (struct span){0}, &g);
    assert_int_equal(g.status, 409);
    assert_int_equal(span_cmp(g.a.text, buf_span(&mine)), 0);
    buf_fini(&mine);
    assert_int_equal(rig_prepare(f, "k", 5, &g), ANS_PROMISE);
    got_fini(&g);
}

static void a_key_of_other_nodes_is_answered_with_its_replicas(void **state)
{
    struct rig *f = *state;
    struct got g = {0};
    struct buf owners = {0};
    char key[16];
    unsigned owner, i = 0;

    replica_close(f->r);
    config_free(f->cfg);
    rig_open_cluster(f, rig_no_copies);
    do {
        snprintf(key, sizeof(key), "key-%u", i++);
        owner = ring_replicas(f->cfg->ring, span_str(key))[0];
    } while (owner == 0);
    assert_int_equal(rig_accept_value(f, key, 10, "x", &g), ANS_ERROR);
    assert_int_equal(g.status, 421);
    buf_addf(&owners, "{\"key\":\"%s\",\"replicas\":[{\"id\":\"n%u\",\"addr\":\"h%u:1\"}]}\n", key,
             owner, owner);
    assert_true(span_eq(g.a.text, buf_span(&owners)));
    assert_int_equal(rig_read_value(f, key, &g), ANS_ERROR);
    assert_int_equal(rig_prepare(f, key, 10, &g), ANS_ERROR);
    buf_fini(&owners);
    got_fini(&g);
}

static void what_comes_after_its_deadline_has_no_effect(void **state)
{
    struct rig *f = *state;
    struct message m = rig_message(f, MSG_PREPARE, "k");
    struct got g = {0};

    m.ballot = rig_ballot(10);
    m.deadline_ms = f->now_us / 1000 - 1;
    rig_send(f, &m, (struct span){0}, &g);
    assert_int_equal(g.status, 504);
    assert_non_null(memmem(g.a.text.data, g.a.text.len, "too late", 8));
    m.deadline_ms = f->now_us / 1000;
    rig_send(f, &m, (struct span){0}, &g);
    assert_int_equal(g.a.kind, ANS_PROMISE); /* the late one promised nothing */
    got_fini(&g);
}

static void a_request_that_took_too_long_to_arrive_has_no_effect(void **state)
{
    struct rig *f = *state;
    struct got g = {0};

    /* Between arrival and effect pass more than the second that the messages have. */
    f->tick = 600 * 1000;
    assert_int_equal(rig_accept_value(f, "k", 10, "x", &g), ANS_ERROR);
    assert_int_equal(g.status, 504);
    f->tick = 0;
    assert_int_equal(rig_read_value(f, "k", &g), ANS_STATE);
    assert_true(ballot_is_none(g.a.record.version));
    got_fini(&g);
}

static void a_value_above_the_limit_is_refused_by_its_head(void **state)
{
    struct rig *f = *state;
    struct message m = rig_message(f, MSG_ACCEPT, "k");
    struct span value = rig_pattern((4u << 20) + 1);
    struct buf sums = {0}, bytes = {0};
    struct replica_request *rq;
    struct reply reply;

    m.record = rig_record_for(10, value, &sums);
    message_encode(&bytes, &m);
    assert_int_equal(replica_begin(f->r, bytes.len + value.len, &rq), 0);
    assert_int_equal(replica_feed(rq, buf_span(&bytes)), -EFBIG);
    replica_end(rq, &reply);
    assert_int_equal(reply.status, 413);
    reply_fini(&reply);
    buf_fini(&bytes);
    buf_fini(&sums);
    rig_span_free(value);
}

/* --- values -------------------------------------------------------------------------- */

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
    struct rig *f = *state;
    struct got g = {0};
    uint64_t counter = 1;

    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        struct span value = rig_pattern(sizes[i]);

        for (size_t k = 0; k < sizeof(pieces) / sizeof(pieces[0]); k++) {
            if (pieces[k] < 4096 && sizes[i] > CHUNK_SIZE + 1)
                continue;
            assert_int_equal(rig_accept_in_pieces(f, "k", ++counter, value, pieces[k], &g),
                             ANS_ACCEPTED);
            assert_int_equal(rig_read_value(f, "k", &g), ANS_STATE);
            assert_int_equal(ballot_cmp(g.a.record.version, rig_ballot(counter)), 0);
            assert_true(g.a.has_value);
            assert_true(span_eq(g.value, value));
        }
        rig_span_free(value);
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
    struct rig *f = *state;
    struct span value = rig_pattern(2 * CHUNK_SIZE + 100);
    struct got g = {0};

    assert_int_equal(rig_accept_in_pieces(f, "k", 1, value, SIZE_MAX / 2, &g), ANS_ACCEPTED);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        assert_int_equal(rig_read_range(f, "k", cases[i].offset, cases[i].length, &g), ANS_STATE);
        assert_true(g.a.has_value);
        assert_int_equal(g.a.value_offset, cases[i].from);
        assert_true(
            span_eq(g.value, span_of(value.data + cases[i].from, cases[i].to - cases[i].from)));
    }
    assert_int_equal(rig_accept_value(f, "small", 1, "hello", &g), ANS_ACCEPTED);
    assert_int_equal(rig_read_range(f, "small", 2, 1, &g), ANS_STATE);
    rig_assert_value(&g, "hello");
    rig_span_free(value);
    got_fini(&g);
}

static void a_read_pinned_to_another_version_brings_no_value(void **state)
{
    struct rig *f = *state;
    struct message m = rig_message(f, MSG_READ, "k");
    struct got g = {0};

    assert_int_equal(rig_accept_value(f, "k", 10, "x", &g), ANS_ACCEPTED);
    m.flags = MSG_WANT_VALUE;
    m.pin = rig_ballot(9);
    rig_send(f, &m, (struct span){0}, &g);
    assert_int_equal(ballot_cmp(g.a.record.version, rig_ballot(10)), 0);
    assert_false(g.a.has_value);
    m.pin = rig_ballot(10);
    rig_send(f, &m, (struct span){0}, &g);
    rig_assert_value(&g, "x");
    got_fini(&g);
}

static void a_tombstone_has_no_value_and_is_not_absence(void **state)
{
    struct rig *f = *state;
    struct got g = {0};

    assert_int_equal(rig_accept_value(f, "k", 10, "x", &g), ANS_ACCEPTED);
    assert_int_equal(rig_accept_tombstone(f, "k", 11, &g), ANS_ACCEPTED);
    assert_int_equal(rig_read_value(f, "k", &g), ANS_STATE);
    assert_int_equal(ballot_cmp(g.a.record.version, rig_ballot(11)), 0);
    assert_int_equal(g.a.record.flags, RECORD_TOMBSTONE);
    assert_false(g.a.has_value);
    got_fini(&g);
}

static enum answer_kind accept_same(struct rig *f, const char *key, uint64_t counter, uint64_t pin,
                                    struct span value, struct got *g)
{
    struct message m = rig_message(f, MSG_ACCEPT, key);
    struct buf sums = {0};

    m.flags = MSG_SAME_VALUE;
    m.pin = rig_ballot(pin);
    m.record = rig_record_for(counter, value, &sums);
    m.record.mode = 0100600;
    rig_send(f, &m, (struct span){0}, g);
    buf_fini(&sums);
    return g->a.kind;
}

static void attributes_change_without_the_value_where_it_is_the_same(void **state)
{
    struct rig *f = *state;
    struct span large = rig_pattern(INLINE_VALUE_MAX + 1),
                other = rig_pattern(INLINE_VALUE_MAX + 1);
    struct got g = {0};

    ((uint8_t *)(uintptr_t)other.data)[5]++;
    assert_int_equal(rig_accept_value(f, "k", 10, "hello", &g), ANS_ACCEPTED);
    assert_int_equal(accept_same(f, "k", 11, 10, span_str("hello"), &g), ANS_ACCEPTED);
    assert_int_equal(rig_read_value(f, "k", &g), ANS_STATE);
    assert_int_equal(g.a.record.mode, 0100600);
    rig_assert_value(&g, "hello");

    assert_int_equal(rig_accept_in_pieces(f, "l", 10, large, SIZE_MAX / 2, &g), ANS_ACCEPTED);
    assert_int_equal(accept_same(f, "l", 11, 10, other, &g), ANS_NEED_VALUE);
    assert_int_equal(accept_same(f, "l", 11, 10, large, &g), ANS_ACCEPTED);
    assert_int_equal(rig_read_value(f, "l", &g), ANS_STATE);
    assert_int_equal(ballot_cmp(g.a.record.version, rig_ballot(11)), 0);
    assert_true(span_eq(g.value, large));
    rig_span_free(large);
    rig_span_free(other);
    got_fini(&g);
}

static void a_replica_without_that_version_asks_for_the_value(void **state)
{
    struct rig *f = *state;
    struct got g = {0};

    assert_int_equal(accept_same(f, "k", 11, 10, span_str("hello"), &g), ANS_NEED_VALUE);
    assert_int_equal(rig_accept_value(f, "k", 9, "hello", &g), ANS_ACCEPTED);
    assert_int_equal(accept_same(f, "k", 11, 10, span_str("hello"), &g), ANS_NEED_VALUE);
    assert_int_equal(accept_same(f, "k", 11, 9, span_str("hellx"), &g), ANS_NEED_VALUE);
    assert_int_equal(accept_same(f, "k", 11, 9, span_str("hell"), &g), ANS_NEED_VALUE);
    assert_int_equal(accept_same(f, "k", 8, 9, span_str("hello"), &g), ANS_REFUSE);
    /* Asking promised nothing. */
    assert_int_equal(rig_accept_value(f, "k", 11, "hello", &g), ANS_ACCEPTED);
    assert_int_equal(accept_same(f, "k", 11, 9, span_str("hello"), &g), ANS_ACCEPTED);
    got_fini(&g);
}

static void a_large_value_that_is_refused_anyway_is_not_kept(void **state)
{
    struct rig *f = *state;
    struct span value = rig_pattern(INLINE_VALUE_MAX + 1);
    struct got g = {0};

    assert_int_equal(rig_prepare(f, "k", 20, &g), ANS_PROMISE);
    assert_int_equal(rig_accept_in_pieces(f, "k", 10, value, 1000, &g), ANS_REFUSE);
    assert_int_equal(ballot_cmp(g.a.ballot, rig_ballot(20)), 0);
    assert_int_equal(rig_accept_in_pieces(f, "k", 20, value, 1000, &g), ANS_ACCEPTED);
    assert_int_equal(rig_accept_in_pieces(f, "k", 20, value, 1000, &g), ANS_ACCEPTED);
    assert_int_equal(rig_read_value(f, "k", &g), ANS_STATE);
    assert_true(span_eq(g.value, value));
    rig_span_free(value);
    got_fini(&g);
}

/* --- damage -------------------------------------------------------------------------- */

/* Every byte of a small ACCEPT, flipped: nothing of it is ever stored. */
static void a_byte_flipped_on_the_way_is_refused(void **state)
{
    struct rig *f = *state;
    struct message m = rig_message(f, MSG_ACCEPT, "k");
    struct buf sums = {0}, bytes = {0};
    struct got g = {0};

    m.record = rig_record_for(10, span_str("hello"), &sums);
    message_encode(&bytes, &m);
    buf_add_str(&bytes, "hello");
    for (size_t i = 0; i < bytes.len; i++) {
        bytes.data[i] ^= 0x10;
        rig_send_bytes(f, buf_span(&bytes), SIZE_MAX / 2, span_str("k"), &g);
        assert_int_equal(g.a.kind, ANS_ERROR);
        assert_true(g.status >= 400 && g.status < 500 ? true : g.status == 501);
        bytes.data[i] ^= 0x10;
    }
    assert_int_equal(rig_read_value(f, "k", &g), ANS_STATE);
    assert_true(ballot_is_none(g.a.record.version));
    rig_send_bytes(f, buf_span(&bytes), SIZE_MAX / 2, span_str("k"), &g);
    assert_int_equal(g.a.kind, ANS_ACCEPTED);
    buf_fini(&bytes);
    buf_fini(&sums);
    got_fini(&g);
}

static void a_large_value_damaged_on_the_way_is_refused(void **state)
{
    struct rig *f = *state;
    struct span value = rig_pattern(2 * CHUNK_SIZE + 10);
    size_t at[] = {0, CHUNK_SIZE - 1, CHUNK_SIZE, 2 * CHUNK_SIZE + 9};
    struct message m = rig_message(f, MSG_ACCEPT, "k");
    struct buf sums = {0};
    struct got g = {0};

    m.record = rig_record_for(10, value, &sums);
    for (size_t i = 0; i < sizeof(at) / sizeof(at[0]); i++) {
        uint8_t *byte = (uint8_t *)(uintptr_t)&value.data[at[i]];

        *byte ^= 1;
        rig_send_in_pieces(f, &m, value, 65536, &g);
        assert_int_equal(g.status, 400);
        *byte ^= 1;
    }
    assert_int_equal(rig_read_value(f, "k", &g), ANS_STATE);
    assert_true(ballot_is_none(g.a.record.version));
    buf_fini(&sums);
    rig_span_free(value);
    got_fini(&g);
}

static void a_request_cut_short_is_refused(void **state)
{
    struct rig *f = *state;
    struct message m = rig_message(f, MSG_ACCEPT, "k");
    struct buf sums = {0}, bytes = {0};
    struct got g = {0};

    m.record = rig_record_for(10, span_str("hello"), &sums);
    message_encode(&bytes, &m);
    buf_add_str(&bytes, "hello");
    for (size_t len = 0; len < bytes.len; len++) {
        rig_send_bytes(f, span_of(bytes.data, len), 50, span_str("k"), &g);
        assert_int_equal(g.status, 400);
    }
    buf_add_str(&bytes, "!");
    rig_send_bytes(f, buf_span(&bytes), 50, span_str("k"), &g);
    assert_int_equal(g.status, 400);
    buf_fini(&bytes);
    buf_fini(&sums);
    got_fini(&g);
}

static void a_sender_that_goes_away_leaves_the_old_value(void **state)
{
    struct rig *f = *state;
    struct message m = rig_message(f, MSG_ACCEPT, "k");
    struct span value = rig_pattern(CHUNK_SIZE);
    struct buf sums = {0}, bytes = {0};
    struct replica_request *rq;
    struct got g = {0};

    assert_int_equal(rig_accept_value(f, "k", 9, "old", &g), ANS_ACCEPTED);
    m.record = rig_record_for(10, value, &sums);
    message_encode(&bytes, &m);
    assert_int_equal(replica_begin(f->r, bytes.len + value.len, &rq), 0);
    assert_int_equal(replica_feed(rq, buf_span(&bytes)), 0);
    assert_int_equal(replica_feed(rq, span_of(value.data, 70000)), 0);
    replica_abort(rq);
    assert_int_equal(rig_read_value(f, "k", &g), ANS_STATE);
    rig_assert_value(&g, "old");
    buf_fini(&bytes);
    buf_fini(&sums);
    rig_span_free(value);
    got_fini(&g);
}

static void a_damaged_record_is_an_error_and_never_absence(void **state)
{
    struct rig *f = *state;
    struct got g = {0};

    rig_damage(f, "k");
    assert_int_equal(rig_read_value(f, "k", &g), ANS_ERROR);
    assert_int_equal(g.status, 500);
    assert_int_equal(rig_prepare(f, "k", 10, &g), ANS_ERROR);
    assert_int_equal(g.status, 500);
    got_fini(&g);
}

static void a_damaged_value_is_never_served(void **state)
{
    struct rig *f = *state;
    struct message m = rig_message(f, MSG_READ, "k");
    struct buf bytes = {0}, body = {0};
    struct replica_request *rq;
    struct reply reply;

    rig_damage_value(f, "k", 10, 2 * CHUNK_SIZE, CHUNK_SIZE + 77); /* in the second chunk */
    m.flags = MSG_WANT_VALUE;
    message_encode(&bytes, &m);
    assert_int_equal(replica_begin(f->r, bytes.len, &rq), 0);
    assert_int_equal(replica_feed(rq, buf_span(&bytes)), 0);
    replica_end(rq, &reply);
    assert_int_equal(rig_read_reply(&reply, &body), -EBADMSG);
    assert_true(body.len <= reply.head.len + CHUNK_SIZE); /* cut before the damaged chunk */
    reply_fini(&reply);
    buf_fini(&body);
    buf_fini(&bytes);
}

/* A connection that is cut looks like a node that is down. */
static void damage_at_the_beginning_of_what_is_read_is_told(void **state)
{
    struct rig *f = *state;
    struct got g = {0};

    rig_damage_value(f, "k", 10, 2 * CHUNK_SIZE, 77);
    assert_int_equal(rig_read_range(f, "k", 0, 1, &g), ANS_ERROR);
    assert_int_equal(g.status, 500);
    assert_int_equal(rig_prepare(f, "k", 11, &g), ANS_ERROR);
    assert_int_equal(g.status, 500);
    /* From now on the whole key is refused: what cannot be trusted takes no part. */
    assert_int_equal(rig_read_range(f, "k", CHUNK_SIZE, 1, &g), ANS_ERROR);
    assert_int_equal(g.status, 500);
    got_fini(&g);
}

/* --- incarnations -------------------------------------------------------------------- */

static void a_store_made_later_is_a_newer_life(void **state)
{
    struct rig *f = *state;
    uint64_t before = replica_incarnation(f->r);

    replica_close(f->r);
    rig_open_replica(f);
    assert_int_equal(replica_incarnation(f->r), before);
    replica_close(f->r);
    f->store->ops->close(f->store);
    f->now_us++;
    assert_int_equal(store_memory_open(&f->store), 0);
    rig_open_replica(f);
    assert_true(replica_incarnation(f->r) > before);
}

static void every_answer_names_the_incarnations_of_the_others(void **state)
{
    struct rig *f = *state;
    struct got g = {0};
    struct answer peer = {.kind = ANS_HELLO, .incarnation = 9};
    uint64_t own = replica_incarnation(f->r), incarnation;
    uint32_t node;

    rig_hello(f, MESSAGE_NODE_NONE, 0, &g);
    assert_int_equal(g.a.kind, ANS_HELLO);
    assert_int_equal(g.a.n_known, 0);
    rig_hello(f, 2, 500, &g);
    rig_hello(f, 2, 400, &g); /* older: forgotten at once */
    assert_int_equal(g.a.n_known, 2); /* the newest, and the newest that votes */
    rig_restart(f);
    assert_true(replica_incarnation(f->r) == own);
    assert_int_equal(rig_prepare(f, "k", 1000, &g), ANS_PROMISE);
    assert_true(g.a.incarnation == own);
    assert_int_equal(g.a.n_known, 1);
    answer_known(&g.a, 0, &node, &incarnation);
    assert_int_equal(node, 2);
    assert_int_equal(incarnation, 500);
    rig_hello(f, 3, 1, &g);
    assert_int_equal(g.status, 400);
    assert_int_equal(replica_learn(f->r, 1, &peer), 0);
    assert_int_equal(rig_read_value(f, "k", &g), ANS_STATE);
    assert_int_equal(g.a.n_known, 2);
    got_fini(&g);
}

/* --- listing ------------------------------------------------------------------------- */

/*
 * One line per page: each entry as "key" or "witness>prefix", tombstones with '-', and '+' at the
 * end where there is more.
 */
static void assert_list(struct rig *f, const char *prefix, const char *after, uint32_t limit,
                        bool delimiter, const char *expected)
{
    struct message m = rig_message(f, MSG_LIST, prefix);
    struct buf line = {0};
    struct got g = {0};
    struct cursor c;
    struct entry e;
    int ret;

    m.start_after = span_str(after);
    m.limit = limit;
    m.flags = delimiter ? MSG_DELIMITER : 0;
    rig_send(f, &m, (struct span){0}, &g);
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

static void fill(struct rig *f)
{
    static const char *const live[] = {"a", "a/", "a/x", "a/y/z", "a0", "b/2", "b/3", "c"};
    static const char *const dead[] = {"a/w", "b/1", "bb", "d/1", "d/2"};
    struct got g = {0};

    for (size_t i = 0; i < sizeof(live) / sizeof(live[0]); i++)
        assert_int_equal(rig_accept_value(f, live[i], 10, "v", &g), ANS_ACCEPTED);
    for (size_t i = 0; i < sizeof(dead) / sizeof(dead[0]); i++)
        assert_int_equal(rig_accept_tombstone(f, dead[i], 10, &g), ANS_ACCEPTED);
    got_fini(&g);
}

static void a_listing_without_delimiter_names_every_key_and_tombstone(void **state)
{
    struct rig *f = *state;

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
    struct rig *f = *state;

    fill(f);
    assert_list(f, "", "", 100, true, "a a/>a/ a0 b/2>b/ -bb c -d/1>d/");
    assert_list(f, "a/", "", 100, true, "a/ -a/w a/x a/y/z>a/y/");
    assert_list(f, "a", "", 100, true, "a a/>a/ a0");
    assert_list(f, "d/", "", 100, true, "-d/1 -d/2");
}

static void a_listing_goes_on_behind_a_group_that_was_given(void **state)
{
    struct rig *f = *state;

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
    struct rig *f = *state;
    struct message m = rig_message(f, MSG_LIST, "");
    struct got g = {0};
    char key[KEY_LEN_MAX + 1];

    memset(key, 'k', KEY_LEN_MAX);
    key[KEY_LEN_MAX] = 0;
    for (unsigned i = 0; i < 1200; i++) {
        snprintf(key + KEY_LEN_MAX - 4, 5, "%04u", i);
        assert_int_equal(rig_accept_value(f, key, 10, "", &g), ANS_ACCEPTED);
    }
    m.limit = 1200;
    rig_send(f, &m, (struct span){0}, &g);
    assert_true(g.a.more);
    assert_true(g.value.len > (1u << 20) && g.value.len < (2u << 20));
    got_fini(&g);
}

static void peek(struct rig *f, const char *key, struct got *g)
{
    struct message m = rig_message(f, MSG_READ, key);

    m.flags = MSG_PEEK;
    rig_send(f, &m, (struct span){0}, g);
    assert_int_equal(g->a.kind, ANS_STATE);
}

static void assert_peek(struct rig *f, const char *key, const char *expected, uint32_t flags)
{
    struct got g = {0};

    peek(f, key, &g);
    assert_true(g.a.has_peek);
    assert_true(span_eq(g.a.peek.key, span_str(expected)));
    assert_int_equal(g.a.peek.flags, flags);
    got_fini(&g);
}

static void assert_nothing_below(struct rig *f, const char *key)
{
    struct got g = {0};

    peek(f, key, &g);
    assert_false(g.a.has_peek);
    got_fini(&g);
}

static void peek_finds_the_first_live_key_below_or_tells_of_the_dead(void **state)
{
    struct rig *f = *state;

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
    struct rig *f = *state;
    struct got g = {0};
    uint64_t seen[3];

    for (unsigned i = 0; i < 3; i++) {
        static const char *const dead[] = {"d/1", "d/2", "d/2"}; /* the last one again, newer */

        assert_int_equal(rig_accept_tombstone(f, dead[i], 10 + i, &g), ANS_ACCEPTED);
        peek(f, "d", &g);
        seen[i] = g.a.peek.rdev;
    }
    assert_true(seen[0] != seen[1] && seen[1] != seen[2] && seen[0] != seen[2]);
    got_fini(&g);
}

static void people_can_look_at_this_copy(void **state)
{
    struct rig *f = *state;
    struct span large = rig_pattern(CHUNK_SIZE + 5);
    struct record_copy rec = {0};
    struct reply value = REPLY_NONE;
    struct got g = {0};
    uint8_t *bytes = malloc(large.len);

    assert_int_equal(replica_peek(f->r, span_str("k"), &rec, &value), 0);
    assert_true(ballot_is_none(rec.rec.version));
    assert_int_equal(rig_accept_in_pieces(f, "k", 10, large, SIZE_MAX / 2, &g), ANS_ACCEPTED);
    assert_int_equal(replica_peek(f->r, span_str("k"), &rec, &value), 0);
    assert_int_equal(ballot_cmp(rec.rec.version, rig_ballot(10)), 0);
    assert_int_equal(reply_len(&value), large.len);
    assert_int_equal(reply_read(&value, 0, bytes, large.len), large.len);
    assert_true(span_eq(span_of(bytes, large.len), large));
    record_copy_fini(&rec);
    reply_fini(&value);
    free(bytes);
    assert_int_equal(replica_peek(f->r, span_str(""), &rec, &value), -EINVAL);
    rig_span_free(large);
    got_fini(&g);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, rig_setup, rig_teardown)

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
        TEST(after_a_failed_put_nothing_is_called_absent_until_the_store_can_write_again),
        TEST(versions_only_grow_however_many_store_at_once),
        TEST(counters_that_no_clock_makes_are_refused_and_leave_no_trace),
        TEST(another_ring_is_refused_and_told_of_ours),
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

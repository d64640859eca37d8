/*
 * test_replica_repair.c - what a replica does for all to hold the same: digests, KEYS, DROP, and
 * damage that is found, refused, told and healed.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "node/damage.h"
#include "node/promises.h"
#include "tests/lib/replica_rig.h"
#include "tests/lib/rng.h"

/* --- helpers -------------------------------------------------------------------------- */

static const struct store_ops *plain_ops;

static const char five_nodes[] =
    "{\"nodes\":[{\"id\":\"n0\",\"addr\":\"h0:1\"},{\"id\":\"n1\",\"addr\":\"h1:1\"},"
    "{\"id\":\"n2\",\"addr\":\"h2:1\"},{\"id\":\"n3\",\"addr\":\"h3:1\"},"
    "{\"id\":\"n4\",\"addr\":\"h4:1\"}],\"replication_factor\":3}";

static void use_five_nodes(struct rig *f)
{
    replica_close(f->r);
    config_free(f->cfg);
    rig_open_cluster(f, five_nodes);
}

static const char *name_of(unsigned i, char text[16])
{
    snprintf(text, 16, "key-%05u", i);
    return text;
}

/* Stores key-0 .. key-(n-1), those that are this node's, under the versions 100 + i. */
static void fill(struct rig *f, unsigned n)
{
    struct got g = {0};
    char name[16];

    for (unsigned i = 0; i < n; i++) {
        if (ring_is_replica(f->cfg->ring, span_str(name_of(i, name)), 0))
            assert_int_equal(rig_accept_value(f, name, 100 + i, "v", &g), ANS_ACCEPTED);
    }
    got_fini(&g);
}

/* What the digests should be, by a look at everything in the store that can be read. */
static void assert_digests_exact(struct rig *f)
{
    const struct digests *have = replica_digests(f->r);
    struct store *s = f->store;
    struct digests *want;
    struct store_iter *it;
    struct record rec;

    assert_non_null(have);
    assert_int_equal(digests_new(f->cfg->ring, 0, &want), 0);
    assert_int_equal(s->ops->iter_new(s, &it), 0);
    for (s->ops->iter_seek(it, span_str("")); s->ops->iter_valid(it); s->ops->iter_next(it)) {
        if (record_decode(s->ops->iter_record(it), s->ops->iter_key(it), &rec) == 0)
            digests_change(want, s->ops->iter_key(it), BALLOT_NONE, rec.version);
    }
    s->ops->iter_free(it);
    for (unsigned i = 1; i < ring_n_nodes(f->cfg->ring); i++)
        assert_true(digests_root(have, i) == digests_root(want, i));
    digests_free(want);
}

static enum answer_kind drop(struct rig *f, const char *key, uint64_t counter, struct got *g)
{
    struct message m = rig_message(f, MSG_DROP, key);

    m.ballot = rig_ballot(counter);
    rig_send(f, &m, (struct span){0}, g);
    return g->a.kind;
}

/* An ACCEPT that keeps the value stored under version `pin`, which is this text. */
static enum answer_kind touch(struct rig *f, const char *key, uint64_t counter, uint64_t pin,
                              struct span value, struct got *g)
{
    struct message m = rig_message(f, MSG_ACCEPT, key);
    struct buf sums = {0};

    m.flags = MSG_SAME_VALUE;
    m.pin = rig_ballot(pin);
    m.record = rig_record_for(counter, value, &sums);
    rig_send(f, &m, (struct span){0}, g);
    buf_fini(&sums);
    return g->a.kind;
}

static void assert_told(struct rig *f, unsigned n, const char *key)
{
    assert_int_equal(f->n_damage_told, n);
    assert_true(span_eq(buf_span(&f->damaged), span_str(key)));
}

/* The entries of a LIST or KEYS answer as text: "key" each, '-': a tombstone, '!': damaged. */
static void assert_entries(const struct got *g, const char *expected)
{
    struct cursor c = cursor_of(g->value);
    struct buf line = {0};
    struct entry e;
    int ret;

    while ((ret = entry_next(&c, &e)) > 0) {
        if (line.len > 0)
            buf_u8(&line, ' ');
        if (e.flags != 0)
            buf_u8(&line, e.flags == ENTRY_DAMAGED ? '!' : '-');
        buf_add_span(&line, e.key);
    }
    assert_int_equal(ret, 0);
    buf_u8(&line, 0);
    assert_string_equal((const char *)line.data, expected);
    buf_fini(&line);
}

/* --- digests -------------------------------------------------------------------------- */

static void digests_are_told_only_once_they_are_counted(void **state)
{
    struct rig *f = *state;
    struct message m = rig_message(f, MSG_DIGEST, "");
    _Atomic bool stop = true;
    struct got g = {0};

    fill(f, 10);
    m.node = 1;
    m.group = MESSAGE_GROUP_NONE;
    assert_null(replica_digests(f->r));
    rig_send(f, &m, (struct span){0}, &g);
    assert_int_equal(g.status, 503);
    assert_int_equal(replica_index(f->r, &stop), -EINTR);
    assert_null(replica_digests(f->r));
    stop = false;
    assert_int_equal(replica_index(f->r, &stop), 0);
    assert_digests_exact(f);
    assert_false(replica_index_needed(f->r));
    rig_send(f, &m, (struct span){0}, &g);
    assert_int_equal(g.a.kind, ANS_DIGEST);
    got_fini(&g);
}

static void who_has_the_same_is_told_so_and_who_has_not_the_next_level(void **state)
{
    struct rig *f = *state;
    struct message m = rig_message(f, MSG_DIGEST, "");
    const struct digests *d;
    struct got g = {0};

    fill(f, 10);
    assert_int_equal(replica_index(f->r, NULL), 0);
    d = replica_digests(f->r);
    m.node = 1;
    m.group = MESSAGE_GROUP_NONE;
    m.digest = digests_root(d, 1);
    rig_send(f, &m, (struct span){0}, &g);
    assert_true(g.a.same);
    assert_true(g.bytes.len < 200);
    for (unsigned i = 0; i < 2; i++) {
        unsigned group = i == 0 ? MESSAGE_GROUP_NONE : digest_bucket(span_str("key-00003")) / 64;
        uint64_t words[DIGEST_GROUPS];

        m.group = group;
        m.digest = 12345;
        rig_send(f, &m, (struct span){0}, &g);
        assert_false(g.a.same);
        digests_get(d, 1, group, words);
        for (unsigned k = 0; k < DIGEST_GROUPS; k++)
            assert_true(answer_digest(&g.a, k) == words[k]);
    }
    m.digest = digests_group(d, 1, m.group);
    assert_true(m.digest != 0);
    rig_send(f, &m, (struct span){0}, &g);
    assert_true(g.a.same);
    m.node = 3;
    rig_send(f, &m, (struct span){0}, &g);
    assert_int_equal(g.status, 400);
    got_fini(&g);
}

/* A put or drop that fails: before, or after all is stored. */
static struct rng fate_rng;

static int doubtful_put(struct store *s, struct span key, struct span record, struct span value,
                        struct store_file *file, bool keep)
{
    uint64_t fate = rng_below(&fate_rng, 4);

    if (fate == 0)
        return -EIO;
    if (fate == 1) {
        assert_int_equal(plain_ops->put(s, key, record, value, file, keep), 0);
        return -EIO;
    }
    return plain_ops->put(s, key, record, value, file, keep);
}

static int doubtful_drop(struct store *s, struct span key)
{
    uint64_t fate = rng_below(&fate_rng, 4);

    if (fate == 0)
        return -EIO;
    if (fate == 1) {
        assert_int_equal(plain_ops->drop(s, key), 0);
        return -EIO;
    }
    return plain_ops->drop(s, key);
}

/* One of all that changes a key, at random, on one of a few keys. */
static void change_something(struct rig *f, struct rng *rng, uint64_t counter)
{
    struct span key;
    struct got g = {0};
    char name[16];
    uint64_t now;

    key = span_str(name_of((unsigned)rng_below(rng, 20), name));
    if (!ring_is_replica(f->cfg->ring, key, 0))
        return;
    (void)rig_read_value(f, name, &g);
    now = g.a.kind == ANS_STATE ? g.a.record.version.counter : 0;
    switch (rng_below(rng, 4)) {
    case 0:
        (void)rig_accept_value(f, name, counter, "v", &g);
        break;
    case 1:
        (void)rig_accept_tombstone(f, name, counter, &g);
        break;
    case 2:
        (void)touch(f, name, counter, now, span_str("v"), &g);
        break;
    default:
        (void)drop(f, name, now == 0 ? 1 : now, &g);
    }
    got_fini(&g);
}

static void digests_stay_exact_whatever_is_stored_dropped_or_fails(void **state)
{
    struct rig *f = *state;
    struct store_ops ops = *f->store->ops;
    struct rng rng = {5};

    use_five_nodes(f);
    fill(f, 20);
    assert_int_equal(replica_index(f->r, NULL), 0);
    plain_ops = f->store->ops;
    ops.put = doubtful_put;
    ops.drop = doubtful_drop;
    f->store->ops = &ops;
    for (unsigned i = 0; i < 2000; i++) {
        change_something(f, &rng, 1000 + i);
        assert_digests_exact(f);
    }
    f->store->ops = plain_ops;
    assert_false(replica_index_needed(f->r));
}

static struct rig *walked;
static struct rng walk_rng;
static uint64_t walk_counter;

/* While the walk goes on, everything changes before and behind it. */
static void busy_next(struct store_iter *it)
{
    change_something(walked, &walk_rng, walk_counter++);
    plain_ops->iter_next(it);
}

static void digests_are_exact_though_all_changes_while_they_are_counted(void **state)
{
    struct rig *f = *state;
    struct store_ops ops = *f->store->ops;

    fill(f, 20);
    plain_ops = f->store->ops;
    ops.iter_next = busy_next;
    walked = f;
    walk_rng = (struct rng){9};
    walk_counter = 1000;
    for (unsigned i = 0; i < 50; i++) {
        f->store->ops = &ops;
        assert_int_equal(replica_index(f->r, NULL), 0);
        f->store->ops = plain_ops;
        assert_digests_exact(f);
        rig_restart(f);
        walk_counter += 1000; /* above the floor */
    }
}

#define N_WRITERS 3

struct writer {
    struct rig *f;
    pthread_t thread;
    unsigned number;
    _Atomic bool *stop;
};

static void *writer_main(void *arg)
{
    struct writer *w = arg;
    uint64_t counter = 1000;

    while (!atomic_load(w->stop)) {
        struct message m = rig_message(w->f, MSG_ACCEPT, "");
        struct replica_request *rq;
        struct buf bytes = {0};
        struct reply reply;
        char name[16];

        m.key = span_str(name_of((unsigned)(counter % 64), name));
        m.record = (struct record){.version = {counter++, w->number}, .flags = RECORD_TOMBSTONE};
        message_encode(&bytes, &m);
        if (replica_begin(w->f->r, bytes.len, &rq) == 0) {
            (void)replica_feed(rq, buf_span(&bytes));
            replica_end(rq, &reply);
            reply_fini(&reply);
        }
        buf_fini(&bytes);
    }
    return NULL;
}

static void digests_are_exact_after_many_have_written_at_once(void **state)
{
    struct rig *f = *state;
    struct writer writers[N_WRITERS];
    _Atomic bool stop = false;

    for (unsigned i = 0; i < N_WRITERS; i++) {
        writers[i] = (struct writer){.f = f, .number = i + 1, .stop = &stop};
        assert_int_equal(pthread_create(&writers[i].thread, NULL, writer_main, &writers[i]), 0);
    }
    for (unsigned i = 0; i < 200; i++)
        assert_int_equal(replica_index(f->r, NULL), 0);
    atomic_store(&stop, true);
    for (unsigned i = 0; i < N_WRITERS; i++)
        pthread_join(writers[i].thread, NULL);
    assert_digests_exact(f);
}

/* --- KEYS ----------------------------------------------------------------------------- */

/* All pages of it: how many keys, and how many pages that had none. */
static unsigned all_keys(struct rig *f, struct message m, unsigned *n_empty, struct buf *names)
{
    struct buf after = {0};
    struct got g = {0};
    unsigned n = 0;

    *n_empty = 0;
    do {
        struct cursor c;
        struct entry e;

        m.start_after = buf_span(&after);
        rig_send(f, &m, (struct span){0}, &g);
        assert_int_equal(g.a.kind, ANS_KEYS);
        assert_in_range(g.a.n_entries, 0, m.limit);
        *n_empty += g.a.n_entries == 0;
        c = cursor_of(g.value);
        while (entry_next(&c, &e) > 0) {
            assert_true(span_cmp(e.key, m.start_after) > 0);
            assert_true(!g.a.more || span_cmp(e.key, g.a.next) <= 0);
            buf_add_span(names, e.key);
            buf_u8(names, ' ');
            n++;
        }
        buf_clear(&after);
        buf_add_span(&after, g.a.next);
    } while (g.a.more);
    buf_fini(&after);
    got_fini(&g);
    return n;
}

static void keys_are_those_that_both_hold_in_pages_of_any_size(void **state)
{
    struct rig *f = *state;
    struct message m;
    char name[16];

    use_five_nodes(f);
    fill(f, 300);
    m = rig_message(f, MSG_KEYS, "");
    for (m.node = 0; m.node < 5; m.node++) {
        struct buf want = {0};
        unsigned n_empty;

        for (unsigned i = 0; i < 300; i++) {
            struct span key = span_str(name_of(i, name));

            if (ring_is_replica(f->cfg->ring, key, 0) &&
                ring_is_replica(f->cfg->ring, key, m.node)) {
                buf_add_span(&want, key);
                buf_u8(&want, ' ');
            }
        }
        for (m.limit = 1; m.limit <= 1000; m.limit = m.limit * 3 + 1) {
            struct buf names = {0};

            (void)all_keys(f, m, &n_empty, &names);
            assert_true(span_eq(buf_span(&names), buf_span(&want)));
            if (m.limit > 300) /* no page is asked for in vain */
                assert_int_equal(n_empty, want.len == 0);
            buf_fini(&names);
        }
        buf_fini(&want);
    }
}

static void keys_are_only_those_of_the_buckets_asked_for(void **state)
{
    struct rig *f = *state;
    struct message m = rig_message(f, MSG_KEYS, "");
    uint8_t bitmap[DIGEST_BUCKETS / 8] = {0};
    unsigned bucket = digest_bucket(span_str("key-00042")), n_empty;
    struct buf names = {0};

    fill(f, 100);
    m.node = 1;
    m.buckets = span_of(bitmap, sizeof(bitmap));
    assert_int_equal(all_keys(f, m, &n_empty, &names), 0);
    bitmap[bucket / 8] |= (uint8_t)(1u << bucket % 8);
    assert_true(all_keys(f, m, &n_empty, &names) >= 1);
    assert_non_null(memmem(names.data, names.len, "key-00042", 9));
    memset(bitmap, 0xff, sizeof(bitmap));
    bitmap[bucket / 8] &= (uint8_t) ~(1u << bucket % 8);
    buf_clear(&names);
    assert_true(all_keys(f, m, &n_empty, &names) < 100);
    assert_null(memmem(names.data, names.len, "key-00042", 9));
    buf_fini(&names);
}

static void a_page_of_few_keys_among_many_ends_after_a_bounded_walk(void **state)
{
    struct rig *f = *state;
    struct message m = rig_message(f, MSG_KEYS, "");
    uint8_t bitmap[DIGEST_BUCKETS / 8] = {0};
    struct buf names = {0};
    unsigned bucket, n_empty;

    fill(f, 20000);
    bucket = digest_bucket(span_str("key-19999"));
    bitmap[bucket / 8] |= (uint8_t)(1u << bucket % 8);
    m.node = 2;
    m.buckets = span_of(bitmap, sizeof(bitmap));
    m.start_after = span_str("key-19998");
    assert_true(all_keys(f, m, &n_empty, &names) >= 1);
    m.start_after = span_str("");
    m.buckets = span_of(memset(bitmap, 0, sizeof(bitmap)), sizeof(bitmap));
    assert_int_equal(all_keys(f, m, &n_empty, &names), 0);
    assert_in_range(n_empty, 2, 10);
    buf_fini(&names);
}

static void keys_name_tombstones_and_damage(void **state)
{
    struct rig *f = *state;
    struct message m = rig_message(f, MSG_KEYS, "");
    struct got g = {0};

    assert_int_equal(rig_accept_value(f, "a", 10, "v", &g), ANS_ACCEPTED);
    assert_int_equal(rig_accept_tombstone(f, "b", 10, &g), ANS_ACCEPTED);
    assert_int_equal(rig_accept_value(f, "d", 10, "v", &g), ANS_ACCEPTED);
    rig_damage(f, "c");
    rig_damage_value(f, "d", 10, 100, 5);
    m.node = 1;
    rig_send(f, &m, (struct span){0}, &g);
    assert_entries(&g, "a -b !c d");
    assert_told(f, 1, "c");
    assert_int_equal(rig_read_value(f, "d", &g), ANS_ERROR); /* finds it */
    assert_told(f, 2, "d");
    rig_send(f, &m, (struct span){0}, &g);
    assert_entries(&g, "a -b !c !d");
    m.node = 7;
    rig_send(f, &m, (struct span){0}, &g);
    assert_int_equal(g.status, 400);
    got_fini(&g);
}

/* --- DROP ----------------------------------------------------------------------------- */

static void a_dropped_tombstone_is_gone_and_nothing_old_comes_in_its_place(void **state)
{
    struct rig *f = *state;
    struct got g = {0};

    assert_int_equal(rig_accept_tombstone(f, "k", 1000, &g), ANS_ACCEPTED);
    assert_int_equal(drop(f, "k", 1000, &g), ANS_ACCEPTED);
    assert_int_equal(drop(f, "k", 1000, &g), ANS_ACCEPTED); /* again */
    assert_int_equal(drop(f, "none", 2000, &g), ANS_ACCEPTED);
    for (unsigned i = 0; i < 2; i++) {
        assert_int_equal(rig_read_value(f, "k", &g), ANS_STATE);
        assert_true(ballot_is_none(g.a.record.version));
        assert_int_equal(rig_accept_value(f, "k", 999, "old", &g), ANS_REFUSE);
        assert_int_equal(rig_accept_tombstone(f, "k", 1000, &g), ANS_REFUSE);
        assert_int_equal(rig_prepare(f, "k", 1000, &g), ANS_REFUSE);
        assert_int_equal(rig_accept_value(f, "none", 2000, "old", &g), ANS_REFUSE);
        rig_restart(f);
    }
    assert_int_equal(rig_accept_value(f, "k", 5000, "new", &g), ANS_ACCEPTED);
    got_fini(&g);
}

static void what_is_not_that_tombstone_is_not_dropped(void **state)
{
    struct rig *f = *state;
    struct got g = {0};

    assert_int_equal(rig_accept_value(f, "live", 10, "v", &g), ANS_ACCEPTED);
    assert_int_equal(drop(f, "live", 10, &g), ANS_REFUSE);
    assert_int_equal(ballot_cmp(g.a.ballot, rig_ballot(10)), 0);
    assert_int_equal(rig_accept_tombstone(f, "k", 20, &g), ANS_ACCEPTED);
    assert_int_equal(drop(f, "k", 19, &g), ANS_REFUSE);
    assert_int_equal(drop(f, "k", 21, &g), ANS_REFUSE);
    assert_int_equal(ballot_cmp(g.a.ballot, rig_ballot(20)), 0);
    assert_int_equal(rig_accept_value(f, "k", 30, "v", &g), ANS_ACCEPTED);
    assert_int_equal(drop(f, "k", 20, &g), ANS_REFUSE);
    assert_int_equal(rig_read_value(f, "k", &g), ANS_STATE);
    rig_assert_value(&g, "v");
    rig_damage(f, "k");
    assert_int_equal(drop(f, "k", 20, &g), ANS_ERROR);
    got_fini(&g);
}

static void a_tombstone_of_other_nodes_is_not_this_ones_to_drop(void **state)
{
    struct rig *f = *state;
    struct got g = {0};
    char name[16];
    unsigned i = 0;

    use_five_nodes(f);
    while (ring_is_replica(f->cfg->ring, span_str(name_of(i, name)), 0))
        i++;
    assert_int_equal(drop(f, name, 20, &g), ANS_ERROR);
    assert_int_equal(g.status, 421);
    got_fini(&g);
}

static int failing_put(struct store *s, struct span key, struct span record, struct span value,
                       struct store_file *file, bool keep)
{
    (void)s, (void)key, (void)record, (void)value, (void)file, (void)keep;
    return -EIO;
}

static int failing_drop(struct store *s, struct span key)
{
    (void)s, (void)key;
    return -EIO;
}

static int failing_probe(struct store *s)
{
    (void)s;
    return -EIO;
}

/* A newer value may show after the next start, where the others will have nothing. */
static void while_a_put_is_in_doubt_no_tombstone_is_dropped(void **state)
{
    struct rig *f = *state;
    struct store_ops bad_ops = *f->store->ops;
    struct got g = {0};

    assert_int_equal(rig_accept_tombstone(f, "k", 10, &g), ANS_ACCEPTED);
    plain_ops = f->store->ops;
    bad_ops.put = failing_put;
    bad_ops.probe = failing_probe;
    f->store->ops = &bad_ops;
    assert_int_equal(rig_accept_value(f, "k", 20, "perhaps", &g), ANS_ERROR);
    assert_int_equal(drop(f, "k", 10, &g), ANS_ERROR);
    f->store->ops = plain_ops;
    assert_int_equal(drop(f, "k", 10, &g), ANS_ACCEPTED);
    got_fini(&g);
}

static void a_drop_that_fails_is_in_doubt_as_a_put_is(void **state)
{
    struct rig *f = *state;
    struct store_ops bad_ops = *f->store->ops;
    struct got g = {0};

    assert_int_equal(rig_accept_tombstone(f, "k", 10, &g), ANS_ACCEPTED);
    plain_ops = f->store->ops;
    bad_ops.drop = failing_drop;
    bad_ops.probe = failing_probe;
    f->store->ops = &bad_ops;
    assert_int_equal(drop(f, "k", 10, &g), ANS_ERROR);
    assert_int_equal(rig_prepare(f, "other", 50, &g), ANS_ERROR);
    f->store->ops = plain_ops;
    assert_int_equal(rig_prepare(f, "other", 50, &g), ANS_PROMISE);
    got_fini(&g);
}

/* --- damage --------------------------------------------------------------------------- */

static void a_damaged_record_is_healed_by_what_is_not_below_the_promise(void **state)
{
    struct rig *f = *state;
    struct got g = {0};

    assert_int_equal(rig_accept_value(f, "k", 10, "ten", &g), ANS_ACCEPTED);
    rig_damage(f, "k");
    assert_int_equal(rig_accept_value(f, "k", 9, "nine", &g), ANS_REFUSE);
    assert_int_equal(ballot_cmp(g.a.ballot, rig_ballot(10)), 0);
    assert_told(f, 1, "k");
    assert_int_equal(replica_n_damaged(f->r), 1);
    assert_int_equal(rig_accept_value(f, "k", 10, "ten", &g), ANS_ACCEPTED);
    assert_int_equal(replica_n_damaged(f->r), 0);
    assert_int_equal(rig_read_value(f, "k", &g), ANS_STATE);
    rig_assert_value(&g, "ten");
    /* After a restart nobody knows what was promised: then all up to the floor was. */
    rig_damage(f, "k");
    rig_restart(f);
    assert_int_equal(rig_accept_value(f, "k", 10, "ten", &g), ANS_REFUSE);
    assert_int_equal(g.a.ballot.counter, 110);
    assert_int_equal(rig_accept_value(f, "k", 111, "new", &g), ANS_ACCEPTED);
    assert_int_equal(rig_read_value(f, "k", &g), ANS_STATE);
    got_fini(&g);
}

static void a_damaged_value_is_not_kept_by_a_change_of_attributes(void **state)
{
    struct rig *f = *state;
    struct span value = rig_pattern(100);
    struct got g = {0};

    assert_int_equal(rig_prepare(f, "k", 10, &g), ANS_PROMISE);
    rig_damage_value(f, "k", 10, 100, 5);
    assert_int_equal(rig_read_value(f, "k", &g), ANS_ERROR);
    assert_told(f, 1, "k");
    assert_int_equal(rig_prepare(f, "k", 11, &g), ANS_ERROR);
    assert_int_equal(touch(f, "k", 12, 10, value, &g), ANS_NEED_VALUE);
    assert_int_equal(touch(f, "k", 10, 10, value, &g), ANS_NEED_VALUE);
    assert_told(f, 1, "k"); /* just now */
    f->now_us += 60000000;
    assert_int_equal(rig_prepare(f, "k", 11, &g), ANS_ERROR);
    assert_told(f, 2, "k"); /* whoever was told may have been busy */
    assert_int_equal(rig_accept_in_pieces(f, "k", 12, value, 7, &g), ANS_ACCEPTED);
    assert_int_equal(rig_read_value(f, "k", &g), ANS_STATE);
    assert_int_equal(touch(f, "k", 13, 12, value, &g), ANS_ACCEPTED);
    rig_span_free(value);
    got_fini(&g);
}

/* It had accepted that version before, so that it changes nothing to have it again. */
static void
a_damaged_value_is_stored_again_under_its_own_version_whatever_was_promised(void **state)
{
    struct rig *f = *state;
    struct span value = rig_pattern(CHUNK_SIZE);
    struct got g = {0};

    rig_damage_value(f, "k", 10, CHUNK_SIZE, 5);
    assert_int_equal(rig_prepare(f, "k", 20, &g), ANS_ERROR); /* promises, and sees it */
    assert_int_equal(rig_accept_in_pieces(f, "k", 9, value, 70000, &g), ANS_REFUSE);
    assert_int_equal(rig_accept_in_pieces(f, "k", 10, value, 70000, &g), ANS_ACCEPTED);
    assert_int_equal(rig_read_value(f, "k", &g), ANS_STATE);
    assert_true(span_eq(g.value, value));
    assert_int_equal(rig_accept_value(f, "k", 19, "below the promise", &g), ANS_REFUSE);
    rig_span_free(value);
    got_fini(&g);
}

static void damage_met_while_a_value_is_being_sent_is_told(void **state)
{
    struct rig *f = *state;
    struct message m = rig_message(f, MSG_READ, "k");
    struct buf bytes = {0}, body = {0};
    struct replica_request *rq;
    struct reply reply;
    struct got g = {0};

    rig_damage_value(f, "k", 10, 2 * CHUNK_SIZE, CHUNK_SIZE + 77);
    m.flags = MSG_WANT_VALUE;
    message_encode(&bytes, &m);
    for (unsigned i = 0; i < 2; i++) {
        assert_int_equal(replica_begin(f->r, bytes.len, &rq), 0);
        assert_int_equal(replica_feed(rq, buf_span(&bytes)), 0);
        replica_end(rq, &reply);
        assert_int_equal(reply.status, i == 0 ? 200 : 500);
        if (i == 0)
            assert_int_equal(rig_read_reply(&reply, &body), -EBADMSG);
        assert_told(f, 1, "k");
        reply_fini(&reply);
    }
    assert_int_equal(rig_read_value(f, "k", &g), ANS_ERROR);
    got_fini(&g);
    buf_fini(&body);
    buf_fini(&bytes);
}

/* The file that is being sent may be that of an older version, which is none of anybody's now. */
static void damage_of_a_version_that_was_replaced_meanwhile_is_none(void **state)
{
    struct rig *f = *state;
    struct message m = rig_message(f, MSG_READ, "k");
    struct buf bytes = {0}, body = {0};
    struct replica_request *rq;
    struct reply reply;
    struct got g = {0};

    rig_damage_value(f, "k", 10, 2 * CHUNK_SIZE, CHUNK_SIZE + 77);
    m.flags = MSG_WANT_VALUE;
    message_encode(&bytes, &m);
    assert_int_equal(replica_begin(f->r, bytes.len, &rq), 0);
    assert_int_equal(replica_feed(rq, buf_span(&bytes)), 0);
    replica_end(rq, &reply);
    assert_int_equal(rig_accept_value(f, "k", 20, "new", &g), ANS_ACCEPTED);
    assert_int_equal(rig_read_reply(&reply, &body), -EBADMSG);
    assert_int_equal(f->n_damage_told, 0);
    assert_int_equal(rig_read_value(f, "k", &g), ANS_STATE);
    reply_fini(&reply);
    got_fini(&g);
    buf_fini(&body);
    buf_fini(&bytes);
}

static struct rig *overtaken;
static unsigned n_gets;

/* A store that gives up on a value which is replaced each time it looks. */
static int overtaken_get(struct store *s, struct span key, bool want_value, struct store_item *out)
{
    struct got g = {0};

    if (n_gets++ > 0)
        return plain_ops->get(s, key, want_value, out);
    assert_int_equal(rig_accept_value(overtaken, "k", 20, "new", &g), ANS_ACCEPTED);
    got_fini(&g);
    return -EBADMSG;
}

static void a_value_that_was_replaced_while_it_was_loaded_is_not_damaged(void **state)
{
    struct rig *f = *state;
    struct store_ops ops = *f->store->ops;
    struct got g = {0};

    assert_int_equal(rig_accept_value(f, "k", 10, "old", &g), ANS_ACCEPTED);
    plain_ops = f->store->ops;
    ops.get = overtaken_get;
    overtaken = f;
    n_gets = 0;
    f->store->ops = &ops;
    assert_int_equal(rig_read_value(f, "k", &g), ANS_ERROR); /* the next one will do */
    f->store->ops = plain_ops;
    assert_int_equal(f->n_damage_told, 0);
    assert_int_equal(rig_read_value(f, "k", &g), ANS_STATE);
    rig_assert_value(&g, "new");
    got_fini(&g);
}

static void a_damaged_record_that_cannot_be_healed_stays_refused(void **state)
{
    struct rig *f = *state;
    struct store_ops bad_ops = *f->store->ops;
    struct span value = rig_pattern(100);
    struct got g = {0};

    rig_damage_value(f, "k", 10, 100, 5);
    assert_int_equal(rig_read_value(f, "k", &g), ANS_ERROR);
    plain_ops = f->store->ops;
    bad_ops.put = failing_put;
    f->store->ops = &bad_ops;
    assert_int_equal(rig_accept_value(f, "k", 20, "v", &g), ANS_ERROR);
    /* Nor by its own version, which the store names before and after. */
    assert_int_equal(rig_accept_in_pieces(f, "k", 10, value, 7, &g), ANS_ERROR);
    f->store->ops = plain_ops;
    assert_int_equal(rig_prepare(f, "k", 30, &g), ANS_ERROR);
    assert_int_equal(replica_n_damaged(f->r), 1);
    rig_span_free(value);
    got_fini(&g);
}

static void listings_show_damage_and_never_hide_it_in_a_group(void **state)
{
    struct rig *f = *state;
    struct message m = rig_message(f, MSG_LIST, "");
    struct got g = {0};

    rig_damage(f, "a");
    assert_int_equal(rig_accept_tombstone(f, "d/1", 10, &g), ANS_ACCEPTED);
    rig_damage(f, "d/2");
    assert_int_equal(rig_accept_tombstone(f, "d/3", 10, &g), ANS_ACCEPTED);
    rig_damage(f, "e/1");
    assert_int_equal(rig_accept_value(f, "e/2", 10, "v", &g), ANS_ACCEPTED);
    rig_send(f, &m, (struct span){0}, &g);
    assert_entries(&g, "!a -d/1 !d/2 -d/3 !e/1 e/2");
    assert_int_equal(f->n_damage_told, 3);
    /* All that is not live below d/ may be live elsewhere; below e/ something is. */
    m.flags = MSG_DELIMITER;
    rig_send(f, &m, (struct span){0}, &g);
    assert_entries(&g, "!a !d/2 e/2");
    m = rig_message(f, MSG_READ, "d");
    m.flags = MSG_PEEK;
    rig_send(f, &m, (struct span){0}, &g);
    assert_int_equal(g.status, 500);
    m.key = span_str("e");
    rig_send(f, &m, (struct span){0}, &g);
    assert_true(span_eq(g.a.peek.key, span_str("e/2")));
    got_fini(&g);
}

/* --- damage and digests --------------------------------------------------------------- */

static void healing_a_record_that_was_counted_needs_a_new_count(void **state)
{
    struct rig *f = *state;
    struct got g = {0};

    fill(f, 10);
    assert_int_equal(replica_index(f->r, NULL), 0);
    rig_damage(f, "key-00003");
    assert_int_equal(rig_accept_value(f, "key-00003", 500, "v", &g), ANS_ACCEPTED);
    assert_true(replica_index_needed(f->r));
    assert_non_null(replica_digests(f->r));
    assert_int_equal(replica_index(f->r, NULL), 0);
    assert_false(replica_index_needed(f->r));
    assert_digests_exact(f);
    got_fini(&g);
}

static void healing_what_was_damaged_when_it_was_counted_needs_none(void **state)
{
    struct rig *f = *state;
    struct got g = {0};

    fill(f, 10);
    rig_damage(f, "key-00003");
    rig_damage(f, "key-00004");
    assert_int_equal(replica_index(f->r, NULL), 0);
    assert_int_equal(f->n_damage_told, 2);
    assert_digests_exact(f);
    assert_int_equal(rig_accept_value(f, "key-00003", 500, "v", &g), ANS_ACCEPTED);
    assert_digests_exact(f);
    assert_int_equal(rig_accept_value(f, "key-00003", 501, "w", &g), ANS_ACCEPTED);
    assert_digests_exact(f);
    assert_false(replica_index_needed(f->r));
    assert_int_equal(replica_index(f->r, NULL), 0);
    assert_int_equal(rig_accept_tombstone(f, "key-00004", 502, &g), ANS_ACCEPTED);
    assert_digests_exact(f);
    assert_false(replica_index_needed(f->r));
    got_fini(&g);
}

/* What can be read again is in the next count, and is healed all the same. */
static void a_record_that_is_readable_again_is_counted_and_changes_from_what_it_is(void **state)
{
    struct rig *f = *state;
    struct buf record = {0};
    struct record rec = {.version = rig_ballot(10), .flags = RECORD_TOMBSTONE};
    struct got g = {0};

    rig_damage(f, "k");
    assert_int_equal(replica_index(f->r, NULL), 0);
    record_encode(&record, span_str("k"), &rec);
    assert_int_equal(f->store->ops->put(f->store, span_str("k"), buf_span(&record),
                                        (struct span){0}, NULL, false),
                     0);
    assert_int_equal(replica_index(f->r, NULL), 0);
    assert_digests_exact(f);
    assert_int_equal(rig_read_value(f, "k", &g), ANS_ERROR);
    assert_int_equal(rig_accept_value(f, "k", 20, "v", &g), ANS_ACCEPTED);
    assert_digests_exact(f);
    buf_fini(&record);
    got_fini(&g);
}

static void healing_a_value_needs_no_count_for_its_version_is_known(void **state)
{
    struct rig *f = *state;
    struct got g = {0};

    rig_damage_value(f, "k", 10, 100, 5);
    assert_int_equal(replica_index(f->r, NULL), 0);
    assert_int_equal(rig_read_value(f, "k", &g), ANS_ERROR);
    assert_int_equal(rig_accept_value(f, "k", 20, "v", &g), ANS_ACCEPTED);
    assert_digests_exact(f);
    assert_false(replica_index_needed(f->r));
    got_fini(&g);
}

static char healed_name[] = "key-00003";

static void healing_next(struct store_iter *it)
{
    struct got g = {0};

    if (walk_counter == 1)
        assert_int_equal(rig_accept_value(walked, healed_name, 500, "v", &g), ANS_ACCEPTED);
    walk_counter++;
    plain_ops->iter_next(it);
    got_fini(&g);
}

static void what_is_healed_before_the_count_reaches_it_needs_another(void **state)
{
    struct rig *f = *state;
    struct store_ops ops = *f->store->ops;

    fill(f, 10);
    rig_damage(f, healed_name);
    plain_ops = f->store->ops;
    ops.iter_next = healing_next;
    walked = f;
    walk_counter = 0;
    f->store->ops = &ops;
    assert_int_equal(replica_index(f->r, NULL), 0);
    f->store->ops = plain_ops;
    assert_true(replica_index_needed(f->r));
    assert_int_equal(replica_index(f->r, NULL), 0);
    assert_false(replica_index_needed(f->r));
    assert_digests_exact(f);
}

/* Another look finds it whole: its version may be in the count, or not. */
static struct span misread_record(struct store_iter *it)
{
    struct span record = plain_ops->iter_record(it);

    return span_eq(plain_ops->iter_key(it), span_str(healed_name)) ? span_str("?") : record;
}

static void what_the_count_misread_needs_another(void **state)
{
    struct rig *f = *state;
    struct store_ops ops = *f->store->ops;

    fill(f, 10);
    plain_ops = f->store->ops;
    ops.iter_record = misread_record;
    f->store->ops = &ops;
    assert_int_equal(replica_index(f->r, NULL), 0);
    f->store->ops = plain_ops;
    assert_true(replica_index_needed(f->r));
    assert_int_equal(replica_n_damaged(f->r), 0);
    assert_int_equal(replica_index(f->r, NULL), 0);
    assert_digests_exact(f);
}

/* --- scrub ---------------------------------------------------------------------------- */

struct found {
    struct buf names;
    unsigned n;
};

static void note_tombstone(void *arg, struct span key, struct ballot version)
{
    struct found *found = arg;

    assert_int_equal(version.proposer, 1);
    buf_add_span(&found->names, key);
    buf_u8(&found->names, ' ');
    found->n++;
}

/* A whole pass in steps of so many bytes. */
static struct scrub_result scrub(struct rig *f, uint64_t step, uint64_t old_counter,
                                 struct found *found, unsigned *n_steps)
{
    struct scrub_result sum = {0}, res;
    struct buf pos = {0};

    *n_steps = 0;
    do {
        assert_true(++*n_steps < 10000);
        assert_int_equal(replica_scrub(f->r, &pos, step, old_counter, note_tombstone, found, &res),
                         0);
        sum.n_keys += res.n_keys;
        sum.n_bytes += res.n_bytes;
        sum.n_damaged += res.n_damaged;
    } while (!res.done);
    buf_fini(&pos);
    return sum;
}

static void a_scrub_finds_all_damage_in_steps_of_any_size(void **state)
{
    static const uint64_t steps[] = {1, 1000, UINT64_MAX};
    struct rig *f = *state;
    struct found found = {0};
    struct scrub_result res;
    unsigned n_steps;

    fill(f, 100);
    rig_damage(f, "key-00017");
    rig_damage_value(f, "large", 10, 3 * CHUNK_SIZE, 3 * CHUNK_SIZE - 1);
    rig_damage_value(f, "small", 10, 1000, 999);
    for (size_t i = 0; i < sizeof(steps) / sizeof(steps[0]); i++) {
        res = scrub(f, steps[i], 0, &found, &n_steps);
        assert_int_equal(res.n_keys, 102);
        assert_int_equal(res.n_damaged, 3);
        assert_int_equal(replica_n_damaged(f->r), 3);
        assert_int_equal(f->n_damage_told, 3);
        if (steps[i] == 1)
            assert_int_equal(n_steps, 102);
        if (steps[i] == UINT64_MAX)
            assert_int_equal(n_steps, 1);
    }
    buf_fini(&found.names);
}

static void a_scrub_counts_the_bytes_that_it_reads(void **state)
{
    struct rig *f = *state;
    struct span value = rig_pattern(2 * CHUNK_SIZE + 9);
    struct found found = {0};
    struct got g = {0};
    unsigned n_steps;

    assert_int_equal(rig_accept_in_pieces(f, "k", 10, value, 70000, &g), ANS_ACCEPTED);
    assert_in_range(scrub(f, 1000000, 0, &found, &n_steps).n_bytes, value.len, value.len + 300);
    rig_span_free(value);
    got_fini(&g);
}

static void a_scrub_names_old_tombstones_where_this_node_comes_first(void **state)
{
    struct rig *f = *state;
    struct found found = {0};
    struct buf want = {0};
    struct got g = {0};
    char name[16];
    unsigned n_steps;

    for (unsigned i = 0; i < 3000; i++) {
        const unsigned *nodes = ring_replicas(f->cfg->ring, span_str(name_of(i, name)));
        uint64_t counter = 1000 + i; /* the first half is old */

        if (i % 3 == 0)
            assert_int_equal(rig_accept_value(f, name, counter, "v", &g), ANS_ACCEPTED);
        else
            assert_int_equal(rig_accept_tombstone(f, name, counter, &g), ANS_ACCEPTED);
        if (i % 3 != 0 && i < 1500 && nodes[0] == 0) {
            buf_add_str(&want, name);
            buf_u8(&want, ' ');
        }
    }
    (void)scrub(f, 5000, 1000 + 1500, &found, &n_steps);
    assert_true(found.n > 0);
    assert_true(span_eq(buf_span(&found.names), buf_span(&want)));
    buf_fini(&found.names);
    buf_fini(&want);
    got_fini(&g);
}

/* --- damage below the records --------------------------------------------------------- */

static int bad_iter_err(struct store_iter *it)
{
    (void)it;
    return -EBADMSG;
}

static void a_store_that_cannot_be_walked_is_told(void **state)
{
    struct rig *f = *state;
    struct store_ops bad_ops = *f->store->ops;
    struct message m = rig_message(f, MSG_LIST, "");
    struct scrub_result res;
    struct buf pos = {0};
    struct got g = {0};

    plain_ops = f->store->ops;
    bad_ops.iter_err = bad_iter_err;
    f->store->ops = &bad_ops;
    rig_send(f, &m, (struct span){0}, &g);
    assert_int_equal(g.status, 500);
    assert_int_equal(f->n_store_damage_told, 1);
    m = rig_message(f, MSG_KEYS, "");
    m.node = 1;
    rig_send(f, &m, (struct span){0}, &g);
    assert_int_equal(g.status, 500);
    assert_int_equal(f->n_store_damage_told, 2);
    assert_int_equal(replica_index(f->r, NULL), -EBADMSG);
    assert_int_equal(f->n_store_damage_told, 3);
    assert_int_equal(replica_scrub(f->r, &pos, 1, 0, note_tombstone, NULL, &res), -EBADMSG);
    assert_int_equal(f->n_store_damage_told, 4);
    f->store->ops = plain_ops;
    got_fini(&g);
}

static void more_damage_than_can_be_remembered_is_damage_of_the_store(void **state)
{
    struct rig *f = *state;
    struct found found = {0};
    unsigned n_steps;
    char name[16];

    for (unsigned i = 0; i < DAMAGE_MAX; i++)
        rig_damage(f, name_of(i, name));
    (void)scrub(f, UINT64_MAX, 0, &found, &n_steps);
    assert_int_equal(replica_n_damaged(f->r), DAMAGE_MAX);
    assert_int_equal(f->n_store_damage_told, 0);
    rig_damage(f, "one more");
    (void)scrub(f, UINT64_MAX, 0, &found, &n_steps);
    assert_int_equal(replica_n_damaged(f->r), DAMAGE_MAX);
    assert_int_equal(f->n_store_damage_told, 1);
    assert_told(f, DAMAGE_MAX + 1, "one more");
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, rig_setup, rig_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(digests_are_told_only_once_they_are_counted),
        TEST(who_has_the_same_is_told_so_and_who_has_not_the_next_level),
        TEST(digests_stay_exact_whatever_is_stored_dropped_or_fails),
        TEST(digests_are_exact_though_all_changes_while_they_are_counted),
        TEST(digests_are_exact_after_many_have_written_at_once),
        TEST(keys_are_those_that_both_hold_in_pages_of_any_size),
        TEST(keys_are_only_those_of_the_buckets_asked_for),
        TEST(a_page_of_few_keys_among_many_ends_after_a_bounded_walk),
        TEST(keys_name_tombstones_and_damage),
        TEST(a_dropped_tombstone_is_gone_and_nothing_old_comes_in_its_place),
        TEST(what_is_not_that_tombstone_is_not_dropped),
        TEST(a_tombstone_of_other_nodes_is_not_this_ones_to_drop),
        TEST(while_a_put_is_in_doubt_no_tombstone_is_dropped),
        TEST(a_drop_that_fails_is_in_doubt_as_a_put_is),
        TEST(a_damaged_record_is_healed_by_what_is_not_below_the_promise),
        TEST(a_damaged_value_is_not_kept_by_a_change_of_attributes),
        TEST(a_damaged_value_is_stored_again_under_its_own_version_whatever_was_promised),
        TEST(damage_met_while_a_value_is_being_sent_is_told),
        TEST(damage_of_a_version_that_was_replaced_meanwhile_is_none),
        TEST(a_value_that_was_replaced_while_it_was_loaded_is_not_damaged),
        TEST(a_damaged_record_that_cannot_be_healed_stays_refused),
        TEST(listings_show_damage_and_never_hide_it_in_a_group),
        TEST(healing_a_record_that_was_counted_needs_a_new_count),
        TEST(healing_what_was_damaged_when_it_was_counted_needs_none),
        TEST(a_record_that_is_readable_again_is_counted_and_changes_from_what_it_is),
        TEST(healing_a_value_needs_no_count_for_its_version_is_known),
        TEST(what_is_healed_before_the_count_reaches_it_needs_another),
        TEST(what_the_count_misread_needs_another),
        TEST(a_scrub_finds_all_damage_in_steps_of_any_size),
        TEST(a_scrub_counts_the_bytes_that_it_reads),
        TEST(a_scrub_names_old_tombstones_where_this_node_comes_first),
        TEST(a_store_that_cannot_be_walked_is_told),
        TEST(more_damage_than_can_be_remembered_is_damage_of_the_store),
    };

    return cmocka_run_group_tests_name("replica_repair", tests, NULL, NULL);
}

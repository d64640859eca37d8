/* test_digests.c - what two nodes share has one digest, however it came about. */
#include "node/digests.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#define N_NODES 5u
#define N_KEYS 500u

/* --- fixture -------------------------------------------------------------------------- */

struct world {
    struct ring *ring;
    struct digests *d[N_NODES];
};

static int setup(void **state)
{
    static const char *const ids[N_NODES] = {"n0", "n1", "n2", "n3", "n4"};
    struct world *w = calloc(1, sizeof(*w));

    assert_int_equal(ring_new(ids, N_NODES, 20, RING_FNV1A, 3, &w->ring), 0);
    for (unsigned i = 0; i < N_NODES; i++)
        assert_int_equal(digests_new(w->ring, i, &w->d[i]), 0);
    *state = w;
    return 0;
}

static int teardown(void **state)
{
    struct world *w = *state;

    for (unsigned i = 0; i < N_NODES; i++)
        digests_free(w->d[i]);
    ring_free(w->ring);
    free(w);
    return 0;
}

/* --- helpers -------------------------------------------------------------------------- */

static struct span key_of(unsigned i, char text[16])
{
    snprintf(text, 16, "key-%u", i);
    return span_str(text);
}

static struct ballot version_of(unsigned i)
{
    return (struct ballot){1000 + i, i % 7 + 1};
}

static void assert_pairs_same(struct world *w)
{
    for (unsigned a = 0; a < N_NODES; a++)
        for (unsigned b = 0; b < a; b++)
            assert_true(digests_root(w->d[a], b) == digests_root(w->d[b], a));
}

/* --- tests ---------------------------------------------------------------------------- */

static void nodes_that_hold_the_same_have_the_same_digests_whatever_the_order(void **state)
{
    struct world *w = *state;
    char text[16];

    for (unsigned n = 0; n < N_NODES; n++) {
        for (unsigned i = 0; i < N_KEYS; i++) {
            unsigned k = n % 2 ? N_KEYS - 1 - i : i; /* and what is no replica's is left out */

            digests_change(w->d[n], key_of(k, text), BALLOT_NONE, version_of(k + n));
            digests_change(w->d[n], key_of(k, text), version_of(k + n), version_of(k));
        }
    }
    assert_pairs_same(w);
    assert_true(digests_root(w->d[0], 1) != 0);
}

static void one_other_version_is_seen_by_those_that_share_the_key_and_found_by_level(void **state)
{
    struct world *w = *state;
    struct span key = span_str("key-77");
    unsigned bucket = digest_bucket(key), group = bucket / DIGEST_GROUPS;
    const unsigned *nodes = ring_replicas(w->ring, key);
    uint64_t mine[DIGEST_GROUPS], theirs[DIGEST_GROUPS];

    nodes_that_hold_the_same_have_the_same_digests_whatever_the_order(state);
    digests_change(w->d[nodes[0]], key, version_of(77), version_of(78));
    for (unsigned n = 0; n < N_NODES; n++)
        assert_int_equal(digests_root(w->d[nodes[0]], n) == digests_root(w->d[n], nodes[0]),
                         n != nodes[1] && n != nodes[2]);
    assert_true(digests_root(w->d[nodes[1]], nodes[2]) == digests_root(w->d[nodes[2]], nodes[1]));
    digests_get(w->d[nodes[0]], nodes[1], MESSAGE_GROUP_NONE, mine);
    digests_get(w->d[nodes[1]], nodes[0], MESSAGE_GROUP_NONE, theirs);
    for (unsigned i = 0; i < DIGEST_GROUPS; i++)
        assert_int_equal(mine[i] == theirs[i], i != group);
    digests_get(w->d[nodes[0]], nodes[1], group, mine);
    digests_get(w->d[nodes[1]], nodes[0], group, theirs);
    for (unsigned i = 0; i < DIGEST_GROUPS; i++)
        assert_int_equal(mine[i] == theirs[i], group * DIGEST_GROUPS + i != bucket);
}

static void what_is_forgotten_leaves_no_trace(void **state)
{
    struct world *w = *state;
    char text[16];

    for (unsigned i = 0; i < N_KEYS; i++)
        digests_change(w->d[0], key_of(i, text), BALLOT_NONE, version_of(i));
    for (unsigned i = 0; i < N_KEYS; i++)
        digests_change(w->d[0], key_of(i, text), version_of(i), BALLOT_NONE);
    for (unsigned n = 0; n < N_NODES; n++)
        assert_true(digests_root(w->d[0], n) == 0);
}

static void groups_are_the_xor_of_their_buckets_and_the_root_of_the_groups(void **state)
{
    struct world *w = *state;
    uint64_t groups[DIGEST_GROUPS], buckets[DIGEST_GROUPS], root = 0;

    nodes_that_hold_the_same_have_the_same_digests_whatever_the_order(state);
    digests_get(w->d[0], 1, MESSAGE_GROUP_NONE, groups);
    for (unsigned i = 0; i < DIGEST_GROUPS; i++) {
        uint64_t sum = 0;

        digests_get(w->d[0], 1, i, buckets);
        for (unsigned k = 0; k < DIGEST_GROUPS; k++)
            sum ^= buckets[k];
        assert_true(sum == groups[i] && sum == digests_group(w->d[0], 1, i));
        root ^= sum;
    }
    assert_true(root == digests_root(w->d[0], 1));
}

static void a_copy_is_equal_and_goes_its_own_way(void **state)
{
    struct world *w = *state;
    struct digests *copy;

    nodes_that_hold_the_same_have_the_same_digests_whatever_the_order(state);
    assert_int_equal(digests_new(w->ring, 0, &copy), 0);
    digests_copy(copy, w->d[0]);
    for (unsigned n = 0; n < N_NODES; n++)
        assert_true(digests_root(copy, n) == digests_root(w->d[0], n));
    for (unsigned i = 0; i < N_KEYS; i++) {
        char text[16];

        digests_change(copy, key_of(i, text), version_of(i), version_of(i + 1));
    }
    assert_true(digests_root(copy, 1) != digests_root(w->d[0], 1));
    digests_free(copy);
}

static void every_part_of_a_version_and_of_a_key_counts(void **state)
{
    uint64_t plain = digest_of(span_str("k"), (struct ballot){1, 2});

    (void)state;
    assert_true(plain != digest_of(span_str("l"), (struct ballot){1, 2}));
    assert_true(plain != digest_of(span_str("k"), (struct ballot){2, 2}));
    assert_true(plain != digest_of(span_str("k"), (struct ballot){1, 3}));
    assert_true(plain != digest_of(span_str("k"), (struct ballot){2, 1}));
    assert_true(digest_of(span_str("k"), BALLOT_NONE) == 0);
}

static void without_copies_nothing_is_shared(void **state)
{
    static const char *const ids[] = {"n0", "n1", "n2"};
    struct ring *ring;
    struct digests *d;
    char text[16];

    (void)state;
    assert_int_equal(ring_new(ids, 3, 20, RING_FNV1A, 1, &ring), 0);
    assert_int_equal(digests_new(ring, 0, &d), 0);
    for (unsigned i = 0; i < N_KEYS; i++)
        digests_change(d, key_of(i, text), BALLOT_NONE, version_of(i));
    for (unsigned n = 0; n < 3; n++)
        assert_true(digests_root(d, n) == 0);
    digests_free(d);
    ring_free(ring);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(nodes_that_hold_the_same_have_the_same_digests_whatever_the_order),
        TEST(one_other_version_is_seen_by_those_that_share_the_key_and_found_by_level),
        TEST(what_is_forgotten_leaves_no_trace),
        TEST(groups_are_the_xor_of_their_buckets_and_the_root_of_the_groups),
        TEST(a_copy_is_equal_and_goes_its_own_way),
        cmocka_unit_test(every_part_of_a_version_and_of_a_key_counts),
        cmocka_unit_test(without_copies_nothing_is_shared),
    };

    return cmocka_run_group_tests_name("digests", tests, NULL, NULL);
}

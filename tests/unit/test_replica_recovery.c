/*
 * test_replica_recovery.c - a replica whose store is new, or not trusted: it does not vote, takes
 * what it is brought, and votes again only as docs/protocol.md, "Repair", allows.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "node/promises.h"
#include "tests/lib/replica_rig.h"

/* --- fixture -------------------------------------------------------------------------- */

/* Stores that fail on purpose: the real operations, and a countdown to the state_put that fails. */
static const struct store_ops *plain_ops;
static unsigned puts_left;

static int failing_state_put(struct store *s, const char *name, struct span value)
{
    if (puts_left == 0)
        return -EIO;
    puts_left--;
    return plain_ops->state_put(s, name, value);
}

/* Node 0 with a new store, left recovering. */
static int setup(void **state)
{
    struct rig *f;

    rig_setup(state);
    f = *state;
    f->lets_it_recover = true;
    rig_new_store(f);
    plain_ops = f->store->ops;
    return 0;
}

/* --- helpers -------------------------------------------------------------------------- */

static uint8_t state_told(struct rig *f, uint32_t node, uint64_t incarnation)
{
    struct got g = {0};
    uint8_t told;

    rig_hello(f, node, incarnation, &g);
    assert_int_equal(g.a.kind, ANS_HELLO);
    told = g.a.recovering;
    got_fini(&g);
    return told;
}

static void assert_refused_as(struct rig *f, const struct message *m, const char *word)
{
    struct got g = {0};

    rig_send(f, m, (struct span){0}, &g);
    assert_int_equal(g.a.kind, ANS_ERROR);
    assert_int_equal(g.status, 503);
    assert_non_null(memmem(g.a.text.data, g.a.text.len, word, strlen(word)));
    got_fini(&g);
}

static struct message keys_of(struct rig *f, uint32_t node)
{
    struct message m = rig_message(f, MSG_KEYS, "");

    m.node = node;
    return m;
}

/* --- a new store ---------------------------------------------------------------------- */

static void assert_refuses_all_but_hello(struct rig *f, const char *word)
{
    static const enum message_kind kinds[] = {MSG_PREPARE, MSG_ACCEPT, MSG_READ,
                                              MSG_LIST,    MSG_DIGEST, MSG_DROP};
    struct message m;

    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        bool of_key = kinds[i] != MSG_LIST && kinds[i] != MSG_DIGEST;

        m = rig_message(f, kinds[i], of_key ? "k" : "");
        m.ballot = rig_ballot(10);
        m.record = (struct record){.version = rig_ballot(10), .flags = RECORD_TOMBSTONE};
        m.node = 1;
        assert_refused_as(f, &m, word);
    }
    m = keys_of(f, 1);
    assert_refused_as(f, &m, word);
}

static void a_new_store_answers_nothing_but_hello(void **state)
{
    struct rig *f = *state;
    struct record_copy rec = {0};
    struct reply value = REPLY_NONE;

    assert_refuses_all_but_hello(f, "recovering");
    assert_int_equal(replica_peek(f->r, span_str("k"), &rec, &value), -EAGAIN);
    assert_int_equal(state_told(f, MESSAGE_NODE_NONE, 0), NODE_RECOVERING);
}

static void it_is_still_recovering_after_a_restart(void **state)
{
    struct rig *f = *state;
    uint64_t incarnation = replica_incarnation(f->r);

    rig_restart(f);
    assert_true(replica_recovering(f->r));
    assert_true(replica_incarnation(f->r) == incarnation);
}

static void a_store_from_before_there_was_recovery_is_whole(void **state)
{
    struct rig *f = *state;
    struct got g = {0};
    struct buf own = {0};

    replica_close(f->r);
    f->store->ops->close(f->store);
    assert_int_equal(store_memory_open(&f->store), 0);
    buf_u64(&own, 77);
    assert_int_equal(f->store->ops->state_put(f->store, "incarnation", buf_span(&own)), 0);
    rig_open_replica(f);
    assert_false(replica_recovering(f->r));
    assert_int_equal(rig_prepare(f, "k", 10, &g), ANS_PROMISE);
    buf_fini(&own);
    got_fini(&g);
}

/* Opens it with a store that fails after n writes; then with a good one. */
static int open_interrupted(struct rig *f, unsigned n)
{
    struct store_ops bad_ops = *plain_ops;
    struct replica_opts opts = {.ring = f->cfg->ring,
                                .cfg = f->cfg,
                                .store = f->store,
                                .clock = &f->clock,
                                .distrusted = f->distrusted};
    struct err why;
    int err;

    bad_ops.state_put = failing_state_put;
    puts_left = n;
    f->store->ops = &bad_ops;
    err = replica_open(&opts, &f->r, &why);
    if (err == 0)
        replica_close(f->r);
    f->store->ops = plain_ops;
    f->distrusted = false; /* what the next start would know is gone */
    rig_open_replica(f);
    return err;
}

static void wherever_a_crash_interrupts_its_making_it_never_votes(void **state)
{
    struct rig *f = *state;
    int err = -EIO;

    for (unsigned n = 0; err < 0; n++) {
        assert_true(n < 10);
        replica_close(f->r);
        f->store->ops->close(f->store);
        assert_int_equal(store_memory_open(&f->store), 0);
        err = open_interrupted(f, n);
        assert_true(replica_recovering(f->r));
    }
}

static void a_distrusted_store_has_a_new_life_wherever_a_crash_interrupts_it(void **state)
{
    struct rig *f = *state;
    uint64_t before;
    int err = -EIO;

    for (unsigned n = 0; err < 0; n++) {
        assert_true(n < 10);
        f->distrusted = false;
        rig_new_store(f);
        assert_int_equal(replica_found(f->r, NULL, 0), 0);
        before = replica_incarnation(f->r);
        replica_close(f->r);
        f->distrusted = true;
        err = open_interrupted(f, n);
        /* Nothing happened yet, so the next start decides anew; or it is begun, and goes on. */
        if (n > 0) {
            assert_true(replica_recovering(f->r));
            assert_true(replica_incarnation(f->r) > before);
        } else {
            assert_true(replica_incarnation(f->r) == before);
        }
    }
}

static void a_distrusted_store_keeps_its_records_and_tells_them_to_itself(void **state)
{
    struct rig *f = *state;
    uint64_t before = replica_incarnation(f->r);
    struct message m = keys_of(f, 0);
    struct got g = {0};
    struct cursor c;
    struct entry e;

    assert_int_equal(replica_found(f->r, NULL, 0), 0);
    assert_int_equal(rig_accept_value(f, "k", 10, "kept", &g), ANS_ACCEPTED);
    f->distrusted = true;
    rig_restart(f);
    assert_true(replica_recovering(f->r));
    assert_true(replica_incarnation(f->r) > before);
    rig_send(f, &m, (struct span){0}, &g);
    assert_int_equal(g.a.kind, ANS_KEYS);
    c = cursor_of(g.value);
    assert_int_equal(entry_next(&c, &e), 1);
    assert_true(span_eq(e.key, span_str("k")));
    assert_int_equal(ballot_cmp(e.version, rig_ballot(10)), 0);
    /* It has promised what it had promised: that is never lost. */
    f->distrusted = false;
    assert_int_equal(replica_recovered(f->r, 0), 0);
    assert_int_equal(rig_accept_value(f, "k", 9, "old", &g), ANS_REFUSE);
    assert_int_equal(rig_read_value(f, "k", &g), ANS_STATE);
    rig_assert_value(&g, "kept");
    got_fini(&g);
}

static int no_keys_stats(struct store *s, struct store_stats *out)
{
    int err = plain_ops->stats(s, out);

    out->n_keys = 0;
    return err;
}

/* Others take a new cluster for new only where all that recover are empty. */
static void that_it_is_empty_is_no_estimate(void **state)
{
    struct rig *f = *state;
    struct store_ops ops = *plain_ops;
    struct got g = {0};

    ops.stats = no_keys_stats;
    f->store->ops = &ops;
    rig_hello(f, MESSAGE_NODE_NONE, 0, &g);
    assert_int_equal(g.a.n_keys, 0);
    assert_int_equal(rig_restore(f, "k", 10, "x", &g), ANS_ACCEPTED);
    rig_hello(f, MESSAGE_NODE_NONE, 0, &g);
    assert_int_equal(g.a.n_keys, 1);
    f->store->ops = plain_ops;
    got_fini(&g);
}

static int failing_stats(struct store *s, struct store_stats *out)
{
    (void)s, (void)out;
    return -EIO;
}

/* Else a node whose store is out of reach would be asked, and shown as well, all the while. */
static void a_store_that_fails_is_told_of_by_hello_and_is_not_empty(void **state)
{
    struct rig *f = *state;
    struct store_ops ops = *plain_ops;
    struct got g = {0};

    ops.stats = failing_stats;
    f->store->ops = &ops;
    rig_hello(f, MESSAGE_NODE_NONE, 0, &g);
    assert_int_equal(g.a.kind, ANS_HELLO);
    assert_true(span_eq(g.a.ailment, span_str(strerror(EIO))));
    assert_int_equal(g.a.n_keys, 1);
    f->store->ops = plain_ops;
    rig_hello(f, MESSAGE_NODE_NONE, 0, &g);
    assert_int_equal(g.a.ailment.len, 0);
    assert_int_equal(g.a.n_keys, 0);
    got_fini(&g);
}

/* --- its incarnation ------------------------------------------------------------------ */

static void a_renewed_incarnation_is_above_what_others_know_and_stays(void **state)
{
    struct rig *f = *state;
    uint64_t first = replica_incarnation(f->r), than = first + (UINT64_C(1) << 40), renewed;

    assert_int_equal(replica_renew(f->r, than), 0);
    renewed = replica_incarnation(f->r);
    assert_true(renewed > than);
    rig_restart(f);
    assert_true(replica_incarnation(f->r) == renewed);
    assert_int_equal(replica_renew(f->r, first), 0); /* never back */
    assert_true(replica_incarnation(f->r) > renewed);
    assert_int_equal(replica_renew(f->r, UINT64_MAX), -ERANGE);
    assert_int_equal(replica_found(f->r, NULL, 0), 0);
}

static void a_node_that_votes_rises_above_a_sibling_and_stays_whole(void **state)
{
    struct rig *f = *state;
    uint64_t own = replica_incarnation(f->r), sibling = own + 2, renewed;

    assert_true(incarnations_siblings(own, sibling));
    assert_int_equal(replica_found(f->r, NULL, 0), 0);
    assert_int_equal(replica_renew(f->r, sibling), 0);
    renewed = replica_incarnation(f->r);
    assert_true(renewed > sibling);
    assert_false(incarnations_siblings(renewed, sibling));
    assert_true(replica_votes(f->r));
    rig_restart(f);
    assert_true(replica_incarnation(f->r) == renewed);
    assert_true(replica_votes(f->r));
}

static void a_node_that_votes_is_superseded_by_a_later_life(void **state)
{
    struct rig *f = *state;
    uint64_t own = replica_incarnation(f->r), later = own + (UINT64_C(1) << 12);
    struct record_copy rec = {0};
    struct reply value = REPLY_NONE;
    struct got g = {0};

    assert_int_equal(replica_found(f->r, NULL, 0), 0);
    assert_int_equal(replica_renew(f->r, later), -ESTALE);
    assert_true(replica_superseded(f->r));
    assert_false(replica_votes(f->r));
    assert_true(replica_incarnation(f->r) == own);
    assert_refuses_all_but_hello(f, "superseded");
    assert_int_equal(rig_restore(f, "k", 10, "x", &g), ANS_ERROR);
    assert_int_equal(replica_peek(f->r, span_str("k"), &rec, &value), -EAGAIN);
    /* Who recovers must not take it for one that never had anything. */
    rig_hello(f, MESSAGE_NODE_NONE, 0, &g);
    assert_int_equal(g.a.recovering, NODE_RECOVERING);
    assert_int_equal(g.a.n_keys, 1);
    got_fini(&g);
}

static struct rig *hooked;
static const uint64_t hooked_counter = 1000000;

/* While it learns of another's new life, a promise is made. */
static int promising_state_put(struct store *s, const char *name, struct span value)
{
    struct got g = {0};

    if (strcmp(name, "known") == 0) {
        assert_int_equal(rig_prepare(hooked, "k", hooked_counter, &g), ANS_PROMISE);
        assert_int_equal(g.a.n_known, 0); /* whoever gets it will not know either */
        got_fini(&g);
    }
    return plain_ops->state_put(s, name, value);
}

static void the_floor_told_is_above_all_promised_before_the_new_life_was_known(void **state)
{
    struct rig *f = *state;
    struct store_ops ops = *plain_ops;
    struct got g = {0};

    assert_int_equal(replica_found(f->r, NULL, 0), 0);
    ops.state_put = promising_state_put;
    hooked = f;
    f->store->ops = &ops;
    rig_hello(f, 1, 500, &g);
    f->store->ops = plain_ops;
    assert_true(g.a.floor >= hooked_counter);
    got_fini(&g);
}

/* --- what it is brought --------------------------------------------------------------- */

static void what_is_restored_replaces_the_older_and_never_the_newer(void **state)
{
    struct rig *f = *state;
    struct got g = {0};

    assert_int_equal(rig_restore(f, "k", 20, "twenty", &g), ANS_ACCEPTED);
    assert_int_equal(rig_restore(f, "k", 20, "twenty", &g), ANS_ACCEPTED);
    assert_int_equal(rig_restore(f, "k", 10, "ten", &g), ANS_REFUSE);
    assert_int_equal(ballot_cmp(g.a.ballot, rig_ballot(20)), 0);
    assert_int_equal(rig_restore(f, "k", 30, "thirty", &g), ANS_ACCEPTED);
    assert_int_equal(rig_restore(f, "l", 5, "five", &g), ANS_ACCEPTED);
    assert_int_equal(replica_recovered(f->r, 0), 0);
    assert_int_equal(rig_read_value(f, "k", &g), ANS_STATE);
    rig_assert_value(&g, "thirty");
    assert_int_equal(rig_read_value(f, "l", &g), ANS_STATE);
    rig_assert_value(&g, "five");
    got_fini(&g);
}

/* It was promised before its store was distrusted: that does not bind what the others settled. */
static void what_is_restored_is_stored_below_the_floor(void **state)
{
    struct rig *f = *state;
    struct got g = {0};

    assert_int_equal(replica_found(f->r, NULL, 0), 0);
    assert_int_equal(rig_prepare(f, "k", 1000, &g), ANS_PROMISE);
    f->distrusted = true;
    rig_restart(f);
    assert_int_equal(rig_restore(f, "k", 500, "settled", &g), ANS_ACCEPTED);
    got_fini(&g);
}

static void a_node_that_votes_takes_no_restoring_but_what_it_would_accept(void **state)
{
    struct rig *f = *state;
    struct got g = {0};

    assert_int_equal(replica_found(f->r, NULL, 0), 0);
    assert_int_equal(rig_prepare(f, "k", 20, &g), ANS_PROMISE);
    assert_int_equal(rig_restore(f, "k", 10, "late", &g), ANS_REFUSE);
    assert_int_equal(ballot_cmp(g.a.ballot, rig_ballot(20)), 0);
    assert_int_equal(rig_restore(f, "k", 20, "fine", &g), ANS_ACCEPTED);
    got_fini(&g);
}

static void what_was_restored_counts_as_promised(void **state)
{
    struct rig *f = *state;
    struct got g = {0};

    assert_int_equal(rig_restore(f, "k", 5000, "x", &g), ANS_ACCEPTED);
    assert_int_equal(replica_recovered(f->r, 10), 0);
    rig_damage(f, "k"); /* so that nothing but the promise tells */
    assert_int_equal(rig_accept_value(f, "k", 4999, "old", &g), ANS_REFUSE);
    rig_restart(f);
    assert_int_equal(rig_accept_value(f, "k", 4999, "old", &g), ANS_REFUSE);
    got_fini(&g);
}

static void a_large_value_is_restored_too(void **state)
{
    struct rig *f = *state;
    struct message m = rig_message(f, MSG_ACCEPT, "k");
    struct span value = rig_pattern(CHUNK_SIZE + 5);
    struct buf sums = {0};
    struct got g = {0};

    m.flags = MSG_RESTORE;
    m.record = rig_record_for(10, value, &sums);
    rig_send_in_pieces(f, &m, value, 70000, &g);
    assert_int_equal(g.a.kind, ANS_ACCEPTED);
    assert_int_equal(replica_recovered(f->r, 0), 0);
    assert_int_equal(rig_read_value(f, "k", &g), ANS_STATE);
    assert_true(span_eq(g.value, value));
    buf_fini(&sums);
    rig_span_free(value);
    got_fini(&g);
}

/* --- its end -------------------------------------------------------------------------- */

static void after_it_every_key_counts_as_promised_up_to_the_floor_also_after_a_restart(void **state)
{
    struct rig *f = *state;
    struct got g = {0};

    assert_int_equal(replica_recovered(f->r, 7000), 0);
    assert_int_equal(state_told(f, MESSAGE_NODE_NONE, 0), NODE_WHOLE);
    for (unsigned i = 0; i < 2; i++) {
        rig_hello(f, MESSAGE_NODE_NONE, 0, &g);
        assert_true(g.a.floor >= 7000);
        assert_int_equal(rig_prepare(f, "k", 7000, &g), ANS_REFUSE);
        assert_int_equal(g.a.ballot.counter, 7000);
        assert_true(g.a.ballot.proposer == BALLOT_PROPOSER_MAX);
        assert_int_equal(rig_accept_value(f, "other", 7000, "x", &g), ANS_REFUSE);
        if (i == 0)
            rig_restart(f);
        assert_false(replica_recovering(f->r));
    }
    assert_int_equal(rig_prepare(f, "k", 7001, &g), ANS_PROMISE);
    assert_int_equal(replica_recovered(f->r, 0), -EINVAL);
    assert_int_equal(replica_found(f->r, NULL, 0), -EINVAL);
    got_fini(&g);
}

static void a_floor_that_nobody_can_have_is_refused(void **state)
{
    struct rig *f = *state;

    assert_int_equal(replica_recovered(f->r, BALLOT_COUNTER_MAX + 1), -EINVAL);
    assert_true(replica_recovering(f->r));
}

static void where_its_end_cannot_be_written_down_it_has_not_ended(void **state)
{
    struct rig *f = *state;
    struct founder other = {1, 500};
    struct store_ops bad_ops = *plain_ops;

    bad_ops.state_put = failing_state_put;
    f->store->ops = &bad_ops;
    for (unsigned n = 0; n < 2; n++) {
        puts_left = n;
        assert_int_equal(replica_recovered(f->r, 7000), -EIO);
        assert_true(replica_recovering(f->r));
        puts_left = n;
        assert_int_equal(replica_found(f->r, &other, 1), -EIO);
        assert_true(replica_recovering(f->r));
    }
    f->store->ops = plain_ops;
    rig_restart(f);
    assert_true(replica_recovering(f->r));
    assert_int_equal(replica_recovered(f->r, 7000), 0);
}

static void founders_know_each_other_in_the_life_in_which_they_began(void **state)
{
    struct rig *f = *state;
    struct founder others[] = {{1, 500}, {2, 600}};

    assert_int_equal(state_told(f, 1, 500), NODE_RECOVERING);
    assert_int_equal(replica_found(f->r, others, 2), 0);
    for (unsigned i = 0; i < 2; i++) {
        assert_int_equal(state_told(f, 1, 500), NODE_COFOUNDER);
        assert_int_equal(state_told(f, 2, 600), NODE_COFOUNDER);
        assert_int_equal(state_told(f, 2, 500), NODE_WHOLE);
        assert_int_equal(state_told(f, 1, 0), NODE_WHOLE);
        assert_int_equal(state_told(f, MESSAGE_NODE_NONE, 500), NODE_WHOLE);
        rig_restart(f);
    }
    /* It has lost its disk since: what it was then is no longer of use to anybody. */
    assert_int_equal(state_told(f, 1, 501), NODE_WHOLE);
    assert_int_equal(state_told(f, 1, 500), NODE_WHOLE);
    assert_int_equal(state_told(f, 2, 600), NODE_COFOUNDER);
}

static void who_recovered_is_nobodys_cofounder(void **state)
{
    struct rig *f = *state;

    assert_int_equal(replica_recovered(f->r, 0), 0);
    assert_int_equal(state_told(f, 1, 500), NODE_WHOLE);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, rig_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_new_store_answers_nothing_but_hello),
        TEST(it_is_still_recovering_after_a_restart),
        TEST(a_store_from_before_there_was_recovery_is_whole),
        TEST(wherever_a_crash_interrupts_its_making_it_never_votes),
        TEST(a_distrusted_store_has_a_new_life_wherever_a_crash_interrupts_it),
        TEST(a_distrusted_store_keeps_its_records_and_tells_them_to_itself),
        TEST(that_it_is_empty_is_no_estimate),
        TEST(a_store_that_fails_is_told_of_by_hello_and_is_not_empty),
        TEST(a_renewed_incarnation_is_above_what_others_know_and_stays),
        TEST(a_node_that_votes_rises_above_a_sibling_and_stays_whole),
        TEST(a_node_that_votes_is_superseded_by_a_later_life),
        TEST(the_floor_told_is_above_all_promised_before_the_new_life_was_known),
        TEST(what_is_restored_replaces_the_older_and_never_the_newer),
        TEST(what_is_restored_is_stored_below_the_floor),
        TEST(a_node_that_votes_takes_no_restoring_but_what_it_would_accept),
        TEST(what_was_restored_counts_as_promised),
        TEST(a_large_value_is_restored_too),
        TEST(after_it_every_key_counts_as_promised_up_to_the_floor_also_after_a_restart),
        TEST(a_floor_that_nobody_can_have_is_refused),
        TEST(where_its_end_cannot_be_written_down_it_has_not_ended),
        TEST(founders_know_each_other_in_the_life_in_which_they_began),
        TEST(who_recovered_is_nobodys_cofounder),
    };

    return cmocka_run_group_tests_name("replica_recovery", tests, NULL, NULL);
}

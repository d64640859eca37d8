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

#include "node/incarnations.h"
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

static void a_node_that_votes_is_superseded_by_a_later_life(void **state)
{
    struct rig *f = *state;
    uint64_t own = replica_incarnation(f->r), later = own + (UINT64_C(1) << 12);
    struct record_copy rec = {0};
    struct reply value = REPLY_NONE;
    struct got g = {0};

    assert_int_equal(replica_found(f->r, NULL, 0), 0);
    assert_int_equal(replica_renew(f->r, later), -EINVAL); /* what it answered has this number */
    replica_supersede(f->r);
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

/* --- the lives of another -------------------------------------------------------------- */

/* What an answer names of a node's lives; 0: nothing. */
struct lives {
    uint64_t highest, whole;
};

static struct lives lives_in(const struct answer *a, uint32_t node)
{
    struct lives l = {0};

    for (uint32_t i = 0; i < a->n_known; i++) {
        uint32_t index;
        uint64_t incarnation;

        answer_known(a, i, &index, &incarnation);
        if (index == node)
            l.highest = incarnation;
        else if (index == (node | KNOWN_WHOLE))
            l.whole = incarnation;
    }
    return l;
}

/* Node 1 does; what it is told of its own. */
static struct lives say_hello(struct rig *f, uint64_t incarnation, enum node_state state)
{
    struct message m = rig_message(f, MSG_HELLO, "");
    struct got g = {0};
    struct lives l;

    m.node = 1;
    m.incarnation = incarnation;
    m.recovering = (uint8_t)state;
    rig_send(f, &m, (struct span){0}, &g);
    assert_int_equal(g.a.kind, ANS_HELLO);
    l = lives_in(&g.a, 1);
    got_fini(&g);
    return l;
}

/* As which life an answer about a key names node 1, and HELLO of node 2. */
static uint64_t named_to_others(struct rig *f)
{
    struct got g = {0};
    uint64_t named;

    assert_int_equal(rig_read_value(f, "k", &g), ANS_STATE);
    named = lives_in(&g.a, 1).highest;
    rig_hello(f, 2, 1, &g);
    assert_int_equal(lives_in(&g.a, 1).highest, named);
    got_fini(&g);
    return named;
}

static void assert_lives(struct lives l, uint64_t highest, uint64_t whole)
{
    assert_int_equal(l.highest, highest);
    assert_int_equal(l.whole, whole);
}

static void a_life_is_whole_only_once_it_announced_or_votes(void **state)
{
    struct rig *f = *state;

    assert_lives(say_hello(f, 501, NODE_RECOVERING), 501, 0);
    assert_lives(say_hello(f, 501, NODE_ANNOUNCING), 501, 501);
    assert_lives(say_hello(f, 601, NODE_RECOVERING), 601, 501);
    assert_lives(say_hello(f, 701, NODE_WHOLE), 701, 701);
    rig_restart(f);
    assert_lives(say_hello(f, 1, NODE_RECOVERING), 701, 701);
}

static void an_announcement_of_a_life_below_the_newest_is_not_taken(void **state)
{
    struct rig *f = *state;

    say_hello(f, 601, NODE_RECOVERING);
    assert_lives(say_hello(f, 501, NODE_ANNOUNCING), 601, 0);
    assert_lives(say_hello(f, 501, NODE_WHOLE), 601, 501); /* it votes: that is so */
}

static void an_announcement_that_cannot_be_stored_is_not_answered_as_such(void **state)
{
    struct rig *f = *state;
    struct store_ops bad_ops = *plain_ops;
    struct message m = rig_message(f, MSG_HELLO, "");
    struct got g = {0};

    say_hello(f, 501, NODE_RECOVERING);
    m.node = 1;
    m.incarnation = 501;
    m.recovering = NODE_ANNOUNCING;
    bad_ops.state_put = failing_state_put;
    puts_left = 0;
    f->store->ops = &bad_ops;
    rig_send(f, &m, (struct span){0}, &g);
    assert_int_equal(g.a.kind, ANS_ERROR);
    f->store->ops = plain_ops;
    assert_lives(say_hello(f, 501, NODE_RECOVERING), 501, 0);
    got_fini(&g);
}

static void a_silent_life_that_announced_nothing_is_given_up_for_one_that_votes(void **state)
{
    struct rig *f = *state;

    assert_int_equal(replica_found(f->r, NULL, 0), 0);
    say_hello(f, 501, NODE_ANNOUNCING);
    say_hello(f, 601, NODE_RECOVERING); /* late: it has ended, and nobody that 501 asked knew */
    say_hello(f, 501, NODE_WHOLE);
    assert_int_equal(named_to_others(f), 601);
    f->now_us += INCARNATION_SILENT_US - 1;
    say_hello(f, 501, NODE_WHOLE);
    assert_int_equal(named_to_others(f), 601);
    f->now_us += 1;
    say_hello(f, 501, NODE_RECOVERING); /* one that does not vote proves nothing */
    assert_int_equal(named_to_others(f), 601);
    assert_lives(say_hello(f, 501, NODE_WHOLE), 602, 501);
    assert_int_equal(named_to_others(f), 501);
    rig_restart(f);
    assert_int_equal(named_to_others(f), 501);
    /* Should it live, it has to begin again above that. */
    assert_lives(say_hello(f, 601, NODE_ANNOUNCING), 602, 501);
    assert_int_equal(named_to_others(f), 501);
    assert_lives(say_hello(f, 4097, NODE_RECOVERING), 4097, 501);
    assert_int_equal(named_to_others(f), 4097);
}

static void a_life_that_is_heard_of_is_not_given_up(void **state)
{
    struct rig *f = *state;

    assert_int_equal(replica_found(f->r, NULL, 0), 0);
    say_hello(f, 601, NODE_RECOVERING);
    for (unsigned i = 0; i < 5; i++) {
        f->now_us += INCARNATION_SILENT_US - 1;
        say_hello(f, 601, NODE_RECOVERING);
        say_hello(f, 501, NODE_WHOLE);
        assert_int_equal(named_to_others(f), 601);
    }
    rig_restart(f); /* it cannot know for how long it has heard nothing */
    f->now_us += 2 * INCARNATION_SILENT_US;
    say_hello(f, 501, NODE_WHOLE);
    assert_int_equal(named_to_others(f), 601);
}

static void a_life_that_announced_is_never_given_up(void **state)
{
    struct rig *f = *state;

    assert_int_equal(replica_found(f->r, NULL, 0), 0);
    say_hello(f, 501, NODE_ANNOUNCING);
    say_hello(f, 601, NODE_RECOVERING);
    say_hello(f, 601, NODE_ANNOUNCING);
    for (unsigned i = 0; i < 3; i++) {
        f->now_us += 2 * INCARNATION_SILENT_US;
        assert_lives(say_hello(f, 501, NODE_WHOLE), 601, 601);
        assert_int_equal(named_to_others(f), 601);
    }
}

/* Who has lost its disk has also lost that the life of a third one announced. */
static void what_others_know_of_third_nodes_is_learned(void **state)
{
    struct rig *f = *state;
    struct buf known = {0};
    struct answer hello = {.kind = ANS_HELLO, .incarnation = 9, .recovering = NODE_RECOVERING};

    answer_add_known(&known, 0, UINT64_MAX); /* of this node itself */
    answer_add_known(&known, 1, 601);
    answer_add_known(&known, 1 | KNOWN_WHOLE, 501);
    answer_add_known(&known, 7, 601); /* of no node */
    answer_add_known(&known, 7 | KNOWN_WHOLE, 601);
    hello.n_known = 5;
    hello.known = buf_span(&known);
    assert_int_equal(replica_learn(f->r, 2, &hello), 0);
    rig_restart(f);
    assert_lives(say_hello(f, 1, NODE_RECOVERING), 601, 501);
    buf_fini(&known);
}

/* A program that did not announce kept what it knew: any of these may have voted. */
static void what_is_known_from_before_there_were_announcements_is_whole(void **state)
{
    struct rig *f = *state;
    struct buf known = {0};

    replica_close(f->r);
    f->store->ops->close(f->store);
    assert_int_equal(store_memory_open(&f->store), 0);
    buf_bytes16(&known, span_str("n1"));
    buf_u64(&known, 601);
    assert_int_equal(f->store->ops->state_put(f->store, "known", buf_span(&known)), 0);
    rig_open_replica(f);
    assert_lives(say_hello(f, 501, NODE_RECOVERING), 601, 601);
    buf_fini(&known);
}

static void what_it_says_of_itself_goes_from_recovering_to_announcing_to_whole(void **state)
{
    struct rig *f = *state;

    assert_int_equal(replica_state(f->r), NODE_RECOVERING);
    replica_announce(f->r);
    assert_int_equal(replica_state(f->r), NODE_ANNOUNCING);
    assert_int_equal(replica_renew(f->r, UINT64_C(1) << 60),
                     0); /* another life, of which none knows */
    assert_int_equal(replica_state(f->r), NODE_RECOVERING);
    replica_announce(f->r);
    assert_int_equal(replica_recovered(f->r, 0), 0);
    assert_int_equal(replica_state(f->r), NODE_WHOLE);
    replica_supersede(f->r);
    assert_int_equal(replica_state(f->r), NODE_RECOVERING);
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
        TEST(a_node_that_votes_is_superseded_by_a_later_life),
        TEST(a_life_is_whole_only_once_it_announced_or_votes),
        TEST(an_announcement_of_a_life_below_the_newest_is_not_taken),
        TEST(an_announcement_that_cannot_be_stored_is_not_answered_as_such),
        TEST(a_silent_life_that_announced_nothing_is_given_up_for_one_that_votes),
        TEST(a_life_that_is_heard_of_is_not_given_up),
        TEST(a_life_that_announced_is_never_given_up),
        TEST(what_others_know_of_third_nodes_is_learned),
        TEST(what_is_known_from_before_there_were_announcements_is_whole),
        TEST(what_it_says_of_itself_goes_from_recovering_to_announcing_to_whole),
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

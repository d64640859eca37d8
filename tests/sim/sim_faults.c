/*
 * sim_faults.c - the tests of the test: with a rule of the protocol broken, a simulated cluster
 * loses, doubles or invents writes, and that is seen.
 *
 * What a replica or a network may do wrong is broken in the sim (struct sim_lies); what the client
 * and the repair do, by functions that the linker puts in place of theirs. Each lie comes with the
 * kind of schedule that shows it, and as many honest schedules of that kind must be good.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/op.h"
#include "node/incarnations.h"
#include "tests/lib/schedule.h"

/* --- what the linker replaces (--wrap) ------------------------------------------------------- */

static bool minority_is_enough;

unsigned __real_ring_majority(const struct ring *r);
unsigned __wrap_ring_majority(const struct ring *r);

unsigned __wrap_ring_majority(const struct ring *r)
{
    return minority_is_enough ? 1 : __real_ring_majority(r);
}

static bool recovery_copies; /* what one other node has, chosen or not */

struct op *__real_client_read(struct client *c, const struct read_args *args, read_done_fn *done,
                              void *arg);
struct op *__wrap_client_read(struct client *c, const struct read_args *args, read_done_fn *done,
                              void *arg);

/* A copy under way, in place of a read. */
struct copying {
    read_done_fn *done;
    void *arg;
};

static void copied(void *arg, struct ask_result *got)
{
    struct copying *c = arg;
    struct read_result res = {.err = got->err, .why = got->why};

    if (res.err == 0)
        res.err = record_copy(&got->answer->record, &res.rec);
    if (res.err == 0)
        res.value = value_ref(got->value);
    c->done(c->arg, &res);
    read_result_fini(&res);
    free(c);
}

/* The whole node with the newest record of the key, or SIM_NO_NODE. */
static unsigned newest_at(struct sim *s, unsigned self, struct span key)
{
    const unsigned *replicas = ring_replicas(s->ring, key);
    struct ballot top = BALLOT_NONE;
    unsigned at = SIM_NO_NODE;

    for (unsigned i = 0; i < ring_n_replicas(s->ring); i++) {
        struct sim_node *n = &s->nodes[replicas[i]];
        struct ballot version = sim_disk_version(n->disk, key);

        if (replicas[i] == self || n->replica == NULL || sim_node_recovering(n) ||
            ballot_cmp(version, top) <= 0)
            continue;
        at = replicas[i];
        top = version;
    }
    return at;
}

struct op *__wrap_client_read(struct client *c, const struct read_args *args, read_done_fn *done,
                              void *arg)
{
    struct sim_client *cl = container_of(c->opts.transport, struct sim_client, transport);
    struct message m = {
        .kind = MSG_READ, .flags = MSG_WANT_VALUE, .key = args->key, .length = READ_ALL};
    struct ask_args ask = {.m = &m, .timeout_ms = args->timeout_ms};
    struct copying *copying;

    if (recovery_copies && cl->node != SIM_NO_NODE && ballot_is_none(args->pin) &&
        sim_node_recovering(&cl->sim->nodes[cl->node])) {
        ask.node = newest_at(cl->sim, cl->node, args->key);
        if (ask.node != SIM_NO_NODE) {
            copying = sim_alloc(sizeof *copying);
            *copying = (struct copying){done, arg};
            return client_ask(c, &ask, copied, copying);
        }
    }
    return __real_client_read(c, args, done, arg);
}

static bool recovery_ignores_floors;

int __real_replica_recovered(struct replica *r, uint64_t floor);
int __wrap_replica_recovered(struct replica *r, uint64_t floor);

int __wrap_replica_recovered(struct replica *r, uint64_t floor)
{
    return __real_replica_recovered(r, recovery_ignores_floors ? 0 : floor);
}

/*
 * What a node keeps of the lives of another. A lie takes every life that was heard of for one that
 * announced; or it gives up those that did announce, and tells them that it has not. Impatient, a
 * node gives a life up as soon as it may: that is no lie, as no time proves anything.
 */
static bool any_life_counts, announced_are_given_up, impatient;

uint64_t __real_incarnations_highest(const struct incarnations *in, unsigned node);
uint64_t __wrap_incarnations_highest(const struct incarnations *in, unsigned node);

uint64_t __wrap_incarnations_highest(const struct incarnations *in, unsigned node)
{
    uint64_t highest = __real_incarnations_highest(in, node);

    /* That of a life is odd. */
    return announced_are_given_up && highest > 0 && highest % 2 == 0 ? highest - 1 : highest;
}

uint64_t __real_incarnations_whole(const struct incarnations *in, unsigned node);
uint64_t __wrap_incarnations_whole(const struct incarnations *in, unsigned node);

uint64_t __wrap_incarnations_whole(const struct incarnations *in, unsigned node)
{
    return any_life_counts || announced_are_given_up ? __wrap_incarnations_highest(in, node)
                                                     : __real_incarnations_whole(in, node);
}

int __real_incarnations_learn(struct incarnations *in, unsigned node, uint64_t incarnation,
                              bool is_whole);
int __wrap_incarnations_learn(struct incarnations *in, unsigned node, uint64_t incarnation,
                              bool is_whole);

int __wrap_incarnations_learn(struct incarnations *in, unsigned node, uint64_t incarnation,
                              bool is_whole)
{
    return __real_incarnations_learn(in, node, incarnation, is_whole && !announced_are_given_up);
}

int __real_incarnations_on_hello(struct incarnations *in, unsigned node, uint64_t incarnation,
                                 enum node_state state, uint64_t now_us);
int __wrap_incarnations_on_hello(struct incarnations *in, unsigned node, uint64_t incarnation,
                                 enum node_state state, uint64_t now_us);

int __wrap_incarnations_on_hello(struct incarnations *in, unsigned node, uint64_t incarnation,
                                 enum node_state state, uint64_t now_us)
{
    static uint64_t n_calls;
    int err;

    if (announced_are_given_up || impatient)
        now_us += INCARNATION_SILENT_US * n_calls++;
    if (!announced_are_given_up)
        return __real_incarnations_on_hello(in, node, incarnation, state, now_us);
    err = __real_incarnations_on_hello(in, node, incarnation, NODE_RECOVERING, now_us);
    if (err == 0 && state == NODE_ANNOUNCING) /* as if another one had voted before all */
        err = __real_incarnations_on_hello(in, node, 1, NODE_WHOLE, now_us + INCARNATION_SILENT_US);
    return err;
}

/* --- what is asserted ------------------------------------------------------------------------ */

/*
 * Runs up to `most` schedules like sc, behind its seed, until one is found to be wrong, and returns
 * which, or 0. What is said about it is of no interest here.
 */
static unsigned first_caught(struct schedule sc, unsigned most)
{
    FILE *nowhere = fopen("/dev/null", "w");
    unsigned caught = 0;

    assert_non_null(nowhere);
    for (unsigned n = 1; n <= most && caught == 0; n++) {
        struct schedule_result r;

        sc.seed++;
        schedule_run(&sc, nowhere, &r);
        if (r.n_broken > 0 || (any_life_counts && r.n_superseded > 0))
            caught = n;
    }
    fclose(nowhere);
    return caught;
}

/* The same kind of schedules, and nobody lies: each is good. */
static void assert_honest(struct schedule sc, unsigned count)
{
    memset(&sc.lies, 0, sizeof sc.lies);
    sc.drop_early = false;
    for (sc.seed = 1; sc.seed <= count; sc.seed++) {
        struct schedule_result r;

        schedule_run(&sc, stderr, &r);
        assert_true(r.good);
    }
}

#define HONEST_LEAST 20u
#define HONEST_MOST 300u

/* A lie that is in sc is caught within so many schedules; without it, as many are good. */
static void assert_caught(struct schedule sc, unsigned within)
{
    unsigned caught = first_caught(sc, within);

    print_message("schedule %u shows it\n", caught);
    assert_true(caught > 0);
    minority_is_enough = recovery_copies = recovery_ignores_floors = false;
    any_life_counts = announced_are_given_up = false;
    if (caught > HONEST_MOST)
        caught = HONEST_MOST;
    assert_honest(sc, schedule_count(caught > HONEST_LEAST ? caught : HONEST_LEAST));
}

static struct schedule lying(struct sim_lies lies, unsigned faults)
{
    return (struct schedule){.n_nodes = 3, .replication_factor = 3, .faults = faults, .lies = lies};
}

/* The same, among nodes that repair. */
static struct schedule repairing(struct sim_lies lies, unsigned faults, enum schedule_shape shape)
{
    struct schedule sc = lying(lies, faults);

    sc.repair = true;
    sc.shape = shape;
    return sc;
}

/* --- what replicas and clients owe each other ------------------------------------------------ */

static void promises_forgotten_at_a_restart_are_noticed(void **state)
{
    struct schedule sc = lying((struct sim_lies){.forget_floor = true}, CHAOS_CRASH_NODE);

    (void)state;
    sc.shape = SHAPE_LATE;
    assert_caught(sc, 3000);
}

static void acknowledging_without_storing_is_noticed(void **state)
{
    (void)state;
    assert_caught(lying((struct sim_lies){.skip_put = 100}, CHAOS_WITHOUT_LOSS), 300);
}

static void a_node_that_goes_on_without_its_disk_is_noticed(void **state)
{
    (void)state;
    assert_caught(lying((struct sim_lies){.forget_disk = true}, CHAOS_WITHOUT_LOSS), 300);
}

static void reporting_what_was_not_settled_is_noticed(void **state)
{
    (void)state;
    assert_caught(lying((struct sim_lies){.ignore_settling = true}, CHAOS_WITHOUT_LOSS), 300);
}

static void leaving_a_write_of_one_s_own_unsettled_is_noticed(void **state)
{
    (void)state;
    assert_caught(
        repairing((struct sim_lies){.settle_lazily = true}, CHAOS_WITHOUT_LOSS, SHAPE_LATE), 3000);
}

static void not_knowing_one_s_own_write_again_is_noticed(void **state)
{
    (void)state;
    assert_caught(lying((struct sim_lies){.hide_own_writes = true}, CHAOS_WITHOUT_LOSS), 300);
}

static void counting_a_minority_is_noticed(void **state)
{
    (void)state;
    minority_is_enough = true;
    assert_caught(lying((struct sim_lies){0}, CHAOS_WITHOUT_LOSS), 300);
}

static void acknowledging_what_was_superseded_is_noticed(void **state)
{
    (void)state;
    assert_caught(lying((struct sim_lies){.accept_superseded = true}, CHAOS_WITHOUT_LOSS), 3000);
}

/* --- what nodes that repair owe -------------------------------------------------------------- */

static void voting_before_it_has_recovered_is_noticed(void **state)
{
    (void)state;
    assert_caught(repairing((struct sim_lies){.vote_while_recovering = true},
                            CHAOS_WIPE | CHAOS_CUT | CHAOS_CRASH_NODE, SHAPE_LATE),
                  3000);
}

static void recovering_by_copies_of_what_one_node_has_is_noticed(void **state)
{
    struct schedule sc = repairing((struct sim_lies){0}, CHAOS_WIPE, SHAPE_LATE);

    (void)state;
    recovery_copies = true;
    sc.seed = 1465; /* one in a thousand shows it, and the first is not far behind this */
    assert_caught(sc, 3000);
}

static void recovering_without_the_floors_of_others_is_noticed(void **state)
{
    struct schedule sc = repairing((struct sim_lies){0}, CHAOS_WIPE, SHAPE_LATE);

    (void)state;
    recovery_ignores_floors = true;
    sc.seed = 2350; /* as above */
    assert_caught(sc, 3000);
}

static void taking_damage_for_absence_is_noticed(void **state)
{
    (void)state;
    assert_caught(repairing((struct sim_lies){.hide_damage = true}, CHAOS_DAMAGE | CHAOS_CRASH_NODE,
                            SHAPE_LATE),
                  300);
}

static void counting_answers_of_a_life_that_is_over_is_noticed(void **state)
{
    struct schedule sc =
        repairing((struct sim_lies){.hide_incarnations = true}, CHAOS_WIPE, SHAPE_LATE);

    (void)state;
    sc.seed = 165; /* one in some hundred shows it */
    assert_caught(sc, 3000);
}

static void taking_every_life_for_one_that_votes_is_noticed(void **state)
{
    struct schedule sc = repairing((struct sim_lies){0},
                                   CHAOS_WIPE | CHAOS_SET_CLOCK | CHAOS_CRASH_NODE, SHAPE_LIVES);

    (void)state;
    any_life_counts = true;
    sc.seed = 225; /* one in two hundred shows it */
    assert_caught(sc, 3000);
}

static void giving_up_a_life_that_announced_is_noticed(void **state)
{
    (void)state;
    announced_are_given_up = true;
    assert_caught(repairing((struct sim_lies){0}, CHAOS_WIPE, SHAPE_LATE), 3000);
}

static void a_node_may_give_up_lives_at_once(void **state)
{
    struct schedule late = repairing((struct sim_lies){0}, CHAOS_WIPE, SHAPE_LATE);
    struct schedule lives = repairing((struct sim_lies){0},
                                      CHAOS_WIPE | CHAOS_SET_CLOCK | CHAOS_CRASH_NODE, SHAPE_LIVES);

    (void)state;
    impatient = true;
    assert_honest(late, schedule_count(100));
    assert_honest(lives, schedule_count(100));
    impatient = false;
}

static void copies_that_ignore_promises_are_noticed(void **state)
{
    struct schedule sc =
        repairing((struct sim_lies){.copy_blindly = true}, CHAOS_CRASH_NODE, SHAPE_LATE);

    (void)state;
    sc.seed = 480; /* one in some hundred shows it */
    assert_caught(sc, 3000);
}

static void dropping_a_tombstone_that_not_all_hold_is_noticed(void **state)
{
    (void)state;
    assert_caught(repairing((struct sim_lies){.drop_some = true}, CHAOS_WITHOUT_LOSS, SHAPE_DROPS),
                  3000);
}

static void dropping_promises_with_a_tombstone_is_noticed(void **state)
{
    struct schedule sc =
        repairing((struct sim_lies){.drop_promises = true}, CHAOS_WITHOUT_LOSS, SHAPE_DROPS);

    (void)state;
    sc.seed = 5780; /* it is rare: one in a thousand or two */
    assert_caught(sc, 3000);
}

static void dropping_a_tombstone_too_early_is_noticed(void **state)
{
    struct schedule sc = repairing((struct sim_lies){0}, CHAOS_CUT, SHAPE_DEAF_WRITERS);

    (void)state;
    sc.drop_early = true;
    sc.seed = 195; /* one in some hundred shows it */
    assert_caught(sc, 3000);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(promises_forgotten_at_a_restart_are_noticed),
        cmocka_unit_test(acknowledging_without_storing_is_noticed),
        cmocka_unit_test(a_node_that_goes_on_without_its_disk_is_noticed),
        cmocka_unit_test(reporting_what_was_not_settled_is_noticed),
        cmocka_unit_test(leaving_a_write_of_one_s_own_unsettled_is_noticed),
        cmocka_unit_test(not_knowing_one_s_own_write_again_is_noticed),
        cmocka_unit_test(counting_a_minority_is_noticed),
        cmocka_unit_test(acknowledging_what_was_superseded_is_noticed),
        cmocka_unit_test(voting_before_it_has_recovered_is_noticed),
        cmocka_unit_test(recovering_by_copies_of_what_one_node_has_is_noticed),
        cmocka_unit_test(recovering_without_the_floors_of_others_is_noticed),
        cmocka_unit_test(taking_damage_for_absence_is_noticed),
        cmocka_unit_test(counting_answers_of_a_life_that_is_over_is_noticed),
        cmocka_unit_test(taking_every_life_for_one_that_votes_is_noticed),
        cmocka_unit_test(giving_up_a_life_that_announced_is_noticed),
        cmocka_unit_test(a_node_may_give_up_lives_at_once),
        cmocka_unit_test(copies_that_ignore_promises_are_noticed),
        cmocka_unit_test(dropping_a_tombstone_that_not_all_hold_is_noticed),
        cmocka_unit_test(dropping_promises_with_a_tombstone_is_noticed),
        cmocka_unit_test(dropping_a_tombstone_too_early_is_noticed),
    };

    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/*
 * sim_repair.c - nothing acknowledged is lost while disks are, while records are damaged and
 * tombstones dropped; and when all trouble is over, every replica of every key holds the same.
 *
 * sim_repair [SEED [COUNT [CLAIM]]] runs COUNT schedules of each kind (of those that prove CLAIM, a
 * pattern) from SEED on, as KVFS_SIM_SEED and KVFS_SIM_COUNT do.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/lib/batch.h"

#define SECOND_US 1000000u

static struct schedule troubled(unsigned n_nodes, unsigned replication_factor)
{
    return (struct schedule){.n_nodes = n_nodes,
                             .replication_factor = replication_factor,
                             .faults = CHAOS_ALL,
                             .repair = true};
}

static void the_same_seed_gives_the_same_run(void **state)
{
    struct schedule sc = troubled(3, 3);
    uint64_t first = schedule_first_seed(1);

    (void)state;
    for (sc.seed = first; sc.seed < first + 20; sc.seed++) {
        struct schedule_result once, again;

        schedule_run(&sc, stderr, &once);
        schedule_run(&sc, stderr, &again);
        assert_int_equal(once.trace, again.trace);
        assert_memory_equal(once.n_outcomes, again.n_outcomes, sizeof once.n_outcomes);
    }
}

static void three_nodes_lose_disks_and_nothing_else(void **state)
{
    struct totals t = batch_run(troubled(3, 3), 500);

    (void)state;
    if (schedule_count(500) < 50)
        return; /* a few seeds may be without */
    assert_true(t.n_wiped > 0);
    assert_true(t.n_damaged > 0);
    assert_true(t.repaired.n_mended > 0);
    assert_true(t.repaired.n_healed > 0);
}

static void three_copies_on_five_nodes_survive_lost_disks(void **state)
{
    (void)state;
    batch_run(troubled(5, 3), 100);
}

static void five_copies_survive_two_lost_disks(void **state)
{
    (void)state;
    batch_run(troubled(5, 5), 100);
}

static void two_copies_survive_one_lost_disk(void **state)
{
    (void)state;
    batch_run(troubled(3, 2), 100);
}

static void large_values_survive_lost_disks_and_damage(void **state)
{
    struct schedule sc = troubled(3, 3);

    (void)state;
    sc.padding = INLINE_VALUE_MAX + 1;
    batch_run(sc, 50);
}

static void a_loss_of_power_loses_nothing_that_others_have(void **state)
{
    struct schedule sc = troubled(3, 3);

    (void)state;
    sc.everysec = true;
    batch_run(sc, 200);
}

static void what_was_begun_before_a_restart_may_end_after_it(void **state)
{
    struct schedule three = troubled(3, 3), five = troubled(5, 5);

    (void)state;
    three.shape = five.shape = SHAPE_LATE;
    batch_run(three, 150);
    batch_run(five, 50);
    three.everysec = true;
    batch_run(three, 100);
}

static void lives_that_never_voted_supersede_none_that_votes(void **state)
{
    struct schedule three = troubled(3, 3), five = troubled(5, 5);

    (void)state;
    three.shape = five.shape = SHAPE_LIVES;
    three.faults = five.faults = CHAOS_WIPE | CHAOS_SET_CLOCK | CHAOS_CRASH_NODE;
    batch_run(three, 150);
    batch_run(five, 50);
}

static void dropped_tombstones_bring_nothing_back(void **state)
{
    struct schedule sc = troubled(3, 3);
    struct totals t;

    (void)state;
    sc.shape = SHAPE_DROPS;
    t = batch_run(sc, 200);
    if (schedule_count(200) >= 50)
        assert_true(t.repaired.n_dropped > 0);
}

static void without_trouble_every_operation_succeeds(void **state)
{
    struct schedule sc = troubled(3, 3);

    (void)state;
    sc.quiet = true;
    batch_run(sc, 50);
}

static void with_one_node_of_three_losing_all_every_operation_succeeds(void **state)
{
    struct schedule sc = troubled(3, 3);

    (void)state;
    sc.one_in_trouble = true;
    sc.faults &= ~(unsigned)(CHAOS_FREEZE_CLIENT | CHAOS_KILL_CLIENT);
    batch_run(sc, 100);
}

/* --- more than a minority -------------------------------------------------------------------- */

struct asked {
    int err, n_left;
    bool live;
};

static void on_read(void *arg, struct read_result *res)
{
    struct asked *a = arg;

    a->err = res->err;
    a->live = record_is_live(&res->rec.rec);
    a->n_left--;
}

static struct asked ask(struct sim *s, struct sim_client *cl, struct span key)
{
    struct asked a = {.n_left = 1};
    struct read_args args = {.key = key, .want_value = true, .length = READ_ALL};

    assert_non_null(client_read(cl->client, &args, on_read, &a));
    while (a.n_left > 0)
        sim_step(s);
    return a;
}

static struct sim *calm_cluster_of(unsigned n_nodes, uint64_t seed)
{
    struct sim_opts opts = {
        .seed = seed,
        .n_nodes = n_nodes,
        .replication_factor = n_nodes,
        .net = {.delay_us = 1000},
        .repair = true,
        .scrub_us = SECOND_US,
        .repair_timeout_ms = 1000,
    };
    struct sim *s;

    assert_int_equal(sim_new(&opts, &s), 0);
    return s;
}

static struct sim *calm_cluster(uint64_t seed)
{
    return calm_cluster_of(3, seed);
}

static void lose_disks(struct sim *s, unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        sim_node_crash(&s->nodes[i], 1000);
        sim_node_wipe(&s->nodes[i]);
    }
}

static void a_cluster_that_lost_its_majority_waits_and_does_not_lie(void **state)
{
    struct workload_opts opts = {.n_clients = 1,
                                 .n_actors = 1,
                                 .n_keys = 1,
                                 .n_ops = 4,
                                 .kinds = 1u << HISTORY_SET,
                                 .timeout_ms = 1000};
    struct sim *s = calm_cluster(7);
    struct workload w;
    struct err why;

    (void)state;
    workload_start(&w, s, &opts);
    workload_finish(&w);
    while (!sim_converged(s, &why))
        sim_run(s, SECOND_US);
    lose_disks(s, 2);
    for (unsigned i = 0; i < 20; i++) {
        struct asked a;

        sim_run(s, SECOND_US);
        a = ask(s, s->clients[0], workload_key(&w, 0));
        assert_int_equal(a.err, -EHOSTDOWN);
        assert_true(sim_node_recovering(&s->nodes[0]));
        assert_true(sim_node_recovering(&s->nodes[1]));
    }
    for (unsigned i = 0; i < 2; i++) { /* a person decides */
        s->nodes[i].accept_data_loss = true;
        sim_node_crash(&s->nodes[i], 1000);
    }
    for (unsigned i = 0; i < 60 && !sim_converged(s, &why); i++)
        sim_run(s, SECOND_US);
    assert_true(sim_converged(s, &why));
    assert_true(ask(s, s->clients[0], workload_key(&w, 0)).live); /* the one that was left had it */
    sim_free(s);
    workload_fini(&w);
}

/* --- two lives of one node ------------------------------------------------------------------- */

static void run_until_same(struct sim *s)
{
    struct err why;

    for (unsigned i = 0; i < 60 && !sim_converged(s, &why); i++)
        sim_run(s, SECOND_US);
    assert_true(sim_converged(s, &why));
}

/*
 * A life of node 0 that ended before it voted, told to node 1 only now: clients throw node 0's
 * answers away until node 1 gives that life up, and who recovers meanwhile would wait for ever.
 */
static void a_life_that_never_voted_is_given_up_when_one_that_votes_goes_on(void **state)
{
    struct sim *s = calm_cluster(11);
    uint64_t own = replica_incarnation(s->nodes[0].replica);
    struct answer dead = {.kind = ANS_HELLO, .recovering = NODE_RECOVERING};

    (void)state;
    dead.incarnation = own + (UINT64_C(1) << 40);
    assert_int_equal(replica_learn(s->nodes[1].replica, 0, &dead), 0);
    sim_node_crash(&s->nodes[2], 1000);
    sim_node_wipe(&s->nodes[2]);
    run_until_same(s);
    assert_true(replica_incarnation(s->nodes[0].replica) == own);
    assert_true(replica_votes(s->nodes[0].replica));
    assert_true(replica_votes(s->nodes[2].replica));

    lose_disks(s, 1); /* the next life stands above both */
    run_until_same(s);
    assert_true(replica_incarnation(s->nodes[0].replica) > dead.incarnation);
    sim_free(s);
}

static int edit(void *ctx, const struct record *cur, struct value cur_value, struct draft *next)
{
    (void)cur, (void)cur_value;
    return value_copy(span_str(ctx), &next->value);
}

static void on_written(void *arg, struct write_result *res)
{
    struct asked *a = arg;

    a->err = res->err;
    a->n_left--;
}

static void store(struct sim *s, struct sim_client *cl, struct span key, const char *value)
{
    struct write_args args = {.key = key, .edit = edit, .ctx = (void *)(uintptr_t)value};
    struct asked a = {.n_left = 1};

    assert_non_null(client_write(cl->client, &args, on_written, &a));
    while (a.n_left > 0)
        sim_step(s);
    assert_int_equal(a.err, 0);
}

static void swap_disks(struct sim_node *n, struct sim_disk **other)
{
    struct sim_disk *d = n->disk;

    sim_node_crash(n, 1000 * SECOND_US);
    n->disk = *other;
    *other = d;
}

/*
 * Node 0 has recovered on an empty disk, and acknowledged a key with node 1; then it is started on
 * its first disk again. With node 2, which does not have the key either, it would be a majority.
 */
static void a_node_that_was_started_on_its_old_disk_does_not_vote(void **state)
{
    struct sim *s = calm_cluster(13);
    struct sim_client *cl = sim_client_start(s, 5000);
    struct span key = span_str("key"), other_key = span_str("other");
    struct sim_disk *disk = sim_disk_new(s);
    struct repair_progress p;

    (void)state;
    sim_use_key(s, key);
    sim_use_key(s, other_key);
    sim_run(s, SECOND_US);
    swap_disks(&s->nodes[0], &disk);
    sim_node_start(&s->nodes[0]);
    run_until_same(s);
    sim_node_crash(&s->nodes[2], 1000 * SECOND_US);
    sim_run(s, SECOND_US);
    store(s, cl, key, "acknowledged");

    swap_disks(&s->nodes[0], &disk);
    sim_node_start(&s->nodes[0]);
    sim_run(s, 3 * SECOND_US);
    sim_node_crash(&s->nodes[1], 1000 * SECOND_US);
    sim_node_start(&s->nodes[2]);
    sim_run(s, 3 * SECOND_US);
    assert_true(replica_superseded(s->nodes[0].replica));
    repair_get_progress(s->nodes[0].repair, &p);
    assert_true(p.recovering);
    assert_non_null(strstr(p.waits_for, "newer store of this node is known to node-02"));
    assert_non_null(strstr(p.waits_for, "out of date; start the node with the newer one"));
    assert_non_null(strstr(p.waits_for, "or with an empty one"));
    assert_int_equal(ask(s, cl, key).err, -EHOSTDOWN); /* and not: there is none */

    sim_node_start(&s->nodes[1]);
    sim_run(s, 3 * SECOND_US);
    assert_true(ask(s, cl, key).live);
    store(s, cl, other_key, "the others go on");
    assert_false(replica_votes(s->nodes[0].replica));

    swap_disks(&s->nodes[0], &disk); /* as it is told to do */
    sim_node_start(&s->nodes[0]);
    run_until_same(s);
    assert_true(ask(s, cl, key).live);
    sim_free(s);
    sim_disk_free(disk);
}

/*
 * The newer life of node 0 announced to nodes 1, 2 and 3. Node 4 has heard of it only while it was
 * recovering; of the others only node 3 is up when the old disk is started.
 */
static void whoever_was_announced_to_supersedes_an_old_disk(void **state)
{
    struct sim *s = calm_cluster_of(5, 17);
    struct sim_client *cl = sim_client_start(s, 5000);
    struct sim_disk *disk = sim_disk_new(s);
    struct answer newer = {.kind = ANS_HELLO, .recovering = NODE_RECOVERING};
    struct span key = span_str("key");
    uint64_t old = replica_incarnation(s->nodes[0].replica);

    (void)state;
    sim_use_key(s, key);
    sim_run(s, SECOND_US);
    sim_node_crash(&s->nodes[4], 1000 * SECOND_US);
    swap_disks(&s->nodes[0], &disk);
    sim_node_start(&s->nodes[0]);
    for (unsigned i = 0; i < 60 && sim_node_recovering(&s->nodes[0]); i++)
        sim_run(s, SECOND_US);
    newer.incarnation = replica_incarnation(s->nodes[0].replica);
    assert_true(newer.incarnation > old);
    store(s, cl, key, "acknowledged");
    for (unsigned i = 1; i < 4; i++)
        sim_node_crash(&s->nodes[i], 1000 * SECOND_US);
    sim_node_start(&s->nodes[4]);
    assert_int_equal(replica_learn(s->nodes[4].replica, 0, &newer), 0);

    swap_disks(&s->nodes[0], &disk);
    sim_node_start(&s->nodes[0]);
    sim_run(s, 30 * SECOND_US); /* node 4 gives the newer one up, which is of no consequence */
    assert_true(replica_votes(s->nodes[0].replica));
    assert_true(replica_incarnation(s->nodes[0].replica) == old);
    assert_int_equal(ask(s, cl, key).err, -EHOSTDOWN);
    sim_node_start(&s->nodes[3]);
    assert_int_not_equal(ask(s, cl, key).err,
                         0); /* three of five, but one of them does not count */
    sim_run(s, 3 * SECOND_US);
    assert_true(replica_superseded(s->nodes[0].replica));
    sim_node_start(&s->nodes[2]);
    sim_run(s, 3 * SECOND_US);
    assert_true(ask(s, cl, key).live);

    swap_disks(&s->nodes[0], &disk);
    sim_node_start(&s->nodes[0]);
    sim_node_start(&s->nodes[1]);
    run_until_same(s);
    sim_free(s);
    sim_disk_free(disk);
}

static void new_nodes_begin_by_themselves(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 20; seed++) {
        struct sim_opts opts = {
            .seed = seed,
            .n_nodes = 1 + (unsigned)(seed % 6),
            .replication_factor = 3,
            .net = {.delay_us = 1000, .lose = 100},
            .repair = true,
            .new_cluster = true,
            .scrub_us = SECOND_US,
            .repair_timeout_ms = 1000,
        };
        struct sim *s;
        struct err why;

        assert_int_equal(sim_new(&opts, &s), 0);
        for (unsigned i = 0; i < 100 && !sim_converged(s, &why); i++)
            sim_run(s, SECOND_US / 10);
        assert_string_equal(why.msg, "");
        sim_free(s);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_same_seed_gives_the_same_run),
        cmocka_unit_test(three_nodes_lose_disks_and_nothing_else),
        cmocka_unit_test(three_copies_on_five_nodes_survive_lost_disks),
        cmocka_unit_test(five_copies_survive_two_lost_disks),
        cmocka_unit_test(two_copies_survive_one_lost_disk),
        cmocka_unit_test(large_values_survive_lost_disks_and_damage),
        cmocka_unit_test(a_loss_of_power_loses_nothing_that_others_have),
        cmocka_unit_test(what_was_begun_before_a_restart_may_end_after_it),
        cmocka_unit_test(lives_that_never_voted_supersede_none_that_votes),
        cmocka_unit_test(dropped_tombstones_bring_nothing_back),
        cmocka_unit_test(without_trouble_every_operation_succeeds),
        cmocka_unit_test(with_one_node_of_three_losing_all_every_operation_succeeds),
        cmocka_unit_test(a_cluster_that_lost_its_majority_waits_and_does_not_lie),
        cmocka_unit_test(a_life_that_never_voted_is_given_up_when_one_that_votes_goes_on),
        cmocka_unit_test(a_node_that_was_started_on_its_old_disk_does_not_vote),
        cmocka_unit_test(whoever_was_announced_to_supersedes_an_old_disk),
        cmocka_unit_test(new_nodes_begin_by_themselves),
    };

    if (argc > 1)
        setenv("KVFS_SIM_SEED", argv[1], 1);
    if (argc > 2)
        setenv("KVFS_SIM_COUNT", argv[2], 1);
    if (argc > 3)
        cmocka_set_test_filter(argv[3]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* test_repair.c - the engine of repair, in clusters that stand still but for what the test does. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "node/repair_impl.h"
#include "tests/lib/sim.h"

#define SECOND_US 1000000u
#define HOUR_US (3600 * 1000000ull)
#define WRITES_AT_ONCE 64u

/* --- fixture ------------------------------------------------------------------------------- */

/* A new cluster that has begun. */
static struct sim *cluster_new(unsigned n_nodes, unsigned replication_factor)
{
    struct sim_opts opts = {
        .seed = 11,
        .n_nodes = n_nodes,
        .replication_factor = replication_factor,
        .net = {.delay_us = 1000},
        .clocks_apart_us = 1000,
        .repair = true,
        .scrub_us = 1000 * SECOND_US,
        .repair_timeout_ms = 1000,
    };
    struct sim *s;

    assert_int_equal(sim_new(&opts, &s), 0);
    return s;
}

static void on_written(void *arg, struct write_result *res)
{
    unsigned *n_left = arg;

    assert_int_equal(res->err, 0);
    (*n_left)--;
}

static int edit(void *ctx, const struct record *cur, struct value cur_value, struct draft *next)
{
    (void)cur, (void)cur_value;
    return value_copy(span_str(ctx), &next->value);
}

/* Keys 0..n-1 get this value. */
static void write_keys(struct sim *s, struct sim_client *cl, unsigned n, const char *value)
{
    unsigned n_left = 0;

    for (unsigned i = 0; i < n; i++) {
        char key[16];
        struct write_args args = {.edit = edit, .ctx = (void *)(uintptr_t)value};

        (void)snprintf(key, sizeof key, "%06u", i);
        args.key = span_str(key);
        sim_use_key(s, args.key);
        n_left++;
        assert_non_null(client_write(cl->client, &args, on_written, &n_left));
        while (n_left >= WRITES_AT_ONCE)
            sim_step(s);
    }
    while (n_left > 0)
        sim_step(s);
}

static void wipe(struct sim *s, unsigned node)
{
    sim_node_crash(&s->nodes[node], 1000 * SECOND_US);
    sim_node_wipe(&s->nodes[node]);
}

/* --- assertions ---------------------------------------------------------------------------- */

/* Until all hold the same; how long that took. */
static uint64_t run_until_same(struct sim *s, uint64_t limit_us)
{
    uint64_t begin = s->now_us;
    struct err why = {""};

    while (!sim_converged(s, &why) && s->now_us < begin + limit_us)
        sim_run(s, SECOND_US / 20);
    assert_string_equal(why.msg, "");
    return s->now_us - begin;
}

static void assert_waits(struct sim *s, unsigned node, uint64_t us)
{
    sim_run(s, us);
    assert_true(sim_node_recovering(&s->nodes[node]));
}

static struct repair_progress progress_of(struct sim *s, unsigned node)
{
    struct repair_progress p;

    repair_get_progress(s->nodes[node].repair, &p);
    return p;
}

/* --- recovering ---------------------------------------------------------------------------- */

static void a_node_whose_clock_went_back_lives_under_a_higher_number_than_before(void **state)
{
    struct sim *s = cluster_new(3, 3);
    struct sim_client *cl = sim_client_start(s, 5000);
    uint64_t before;

    (void)state;
    run_until_same(s, 10 * SECOND_US);
    write_keys(s, cl, 20, "a");
    before = replica_incarnation(s->nodes[0].replica);
    wipe(s, 0);
    s->nodes[0].clock.wall_base -= 5 * HOUR_US;
    sim_node_start(&s->nodes[0]);
    assert_true(replica_incarnation(s->nodes[0].replica) < before); /* there is something to show */
    run_until_same(s, 10 * SECOND_US);
    assert_true(replica_incarnation(s->nodes[0].replica) > before);
    sim_free(s);
}

static void of_five_replicas_three_others_are_enough_to_recover_and_two_are_not(void **state)
{
    struct sim *s = cluster_new(5, 5);
    struct sim_client *cl = sim_client_start(s, 5000);

    (void)state;
    run_until_same(s, 10 * SECOND_US);
    write_keys(s, cl, 20, "a");
    sim_node_crash(&s->nodes[3], 1000 * SECOND_US);
    sim_node_crash(&s->nodes[4], 1000 * SECOND_US);
    wipe(s, 0);
    sim_node_start(&s->nodes[0]);
    assert_waits(s, 0, 30 * SECOND_US);
    assert_non_null(strstr(progress_of(s, 0).waits_for, "node-04"));
    assert_non_null(strstr(progress_of(s, 0).waits_for, "node-05"));
    assert_null(strstr(progress_of(s, 0).waits_for, "node-02"));
    sim_node_start(&s->nodes[3]);
    sim_run(s, 3 * SECOND_US);
    assert_false(sim_node_recovering(&s->nodes[0]));
    assert_int_equal(progress_of(s, 0).n_done, 20);
    sim_node_start(&s->nodes[4]);
    run_until_same(s, 20 * SECOND_US);
    sim_free(s);
}

static void two_wiped_nodes_are_no_new_cluster_while_the_third_is_only_down(void **state)
{
    struct sim *s = cluster_new(3, 3);
    struct sim_client *cl = sim_client_start(s, 5000);

    (void)state;
    run_until_same(s, 10 * SECOND_US);
    write_keys(s, cl, 5, "a");
    sim_node_crash(&s->nodes[2], 1000 * SECOND_US);
    wipe(s, 0);
    wipe(s, 1);
    sim_node_start(&s->nodes[0]);
    sim_node_start(&s->nodes[1]);
    assert_waits(s, 0, 20 * SECOND_US);
    assert_waits(s, 1, 1);
    sim_node_start(&s->nodes[2]);
    assert_waits(s, 0, 20 * SECOND_US); /* two of three were lost: a person decides */
    sim_free(s);
}

static void with_data_loss_accepted_the_newest_that_is_left_is_taken(void **state)
{
    struct sim *s = cluster_new(3, 3);
    struct sim_client *cl = sim_client_start(s, 5000);

    (void)state;
    run_until_same(s, 10 * SECOND_US);
    write_keys(s, cl, 30, "a");
    sim_node_crash(&s->nodes[1], 1000 * SECOND_US);
    wipe(s, 0);
    s->nodes[0].accept_data_loss = true;
    sim_node_start(&s->nodes[0]);
    assert_waits(s, 0, 8 * SECOND_US); /* the others have ten seconds to appear */
    sim_run(s, 5 * SECOND_US);
    assert_false(sim_node_recovering(&s->nodes[0]));
    assert_int_equal(progress_of(s, 0).n_done, 30);
    sim_node_start(&s->nodes[1]);
    run_until_same(s, 20 * SECOND_US);
    sim_free(s);
}

/* --- comparing and mending ----------------------------------------------------------------- */

static void what_a_node_missed_is_mended_at_its_pace(void **state)
{
    enum { N = 1500 };
    struct sim *s = cluster_new(3, 3);
    struct sim_client *cl = sim_client_start(s, 5000);
    struct repair_progress sum;
    uint64_t us;

    (void)state;
    run_until_same(s, 10 * SECOND_US);
    write_keys(s, cl, N, "a");
    run_until_same(s, 20 * SECOND_US);
    sim_node_crash(&s->nodes[2], 1000 * SECOND_US);
    write_keys(s, cl, N, "b");
    sim_node_start(&s->nodes[2]);
    us = run_until_same(s, 60 * SECOND_US);
    /* One node at its pace: not faster, as two of them would be, nor much slower. */
    assert_in_range(us, (uint64_t)N * SECOND_US / REPAIR_KEYS_PER_S * 9 / 10,
                    (uint64_t)N * SECOND_US / REPAIR_KEYS_PER_S * 2);
    sim_repaired(s, &sum);
    assert_in_range(sum.n_mended, N, N + N / 10);
    assert_int_equal(sum.n_failed, 0);
    sim_free(s);
}

static void a_quiet_cluster_compares_and_mends_nothing(void **state)
{
    struct sim *s = cluster_new(3, 3);
    struct sim_client *cl = sim_client_start(s, 5000);
    struct repair_progress before, after;

    (void)state;
    run_until_same(s, 10 * SECOND_US);
    write_keys(s, cl, 50, "a");
    run_until_same(s, 20 * SECOND_US);
    sim_run(s, 10 * SECOND_US);
    sim_repaired(s, &before);
    sim_run(s, 60 * SECOND_US);
    sim_repaired(s, &after);
    assert_in_range(after.n_compared - before.n_compared, 3 * 11,
                    3 * 13); /* each pair, every 5 s */
    assert_int_equal(after.n_mended, before.n_mended);
    assert_true(progress_of(s, 0).last_same_us > 0);
    sim_free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_node_whose_clock_went_back_lives_under_a_higher_number_than_before),
        cmocka_unit_test(of_five_replicas_three_others_are_enough_to_recover_and_two_are_not),
        cmocka_unit_test(two_wiped_nodes_are_no_new_cluster_while_the_third_is_only_down),
        cmocka_unit_test(with_data_loss_accepted_the_newest_that_is_left_is_taken),
        cmocka_unit_test(what_a_node_missed_is_mended_at_its_pace),
        cmocka_unit_test(a_quiet_cluster_compares_and_mends_nothing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

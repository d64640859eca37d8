/* test_feed.c - which nodes count as followed, and when, against streams that the test writes. */
#include "common/feed.h"

#include <errno.h>
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/lib/hand.h"

#define N_NODES 3u
#define LIFE 0xabcu
#define SEEN_MAX 64u

struct fixture {
    struct hand h;
    struct feed *feed;
    bool live;
    unsigned n_true, n_false, n_idle;
    unsigned n_changes;
    char changes[SEEN_MAX][64]; /* "put KEY COUNTER" */
};

static void on_changed(void *arg, struct span key, struct ballot version, enum feed_kind kind)
{
    struct fixture *f = arg;

    assert_true(f->n_changes < SEEN_MAX);
    (void)snprintf(f->changes[f->n_changes++], sizeof(f->changes[0]), "%s %.*s %" PRIu64,
                   kind == FEED_PUT ? "put" : "delete", (int)key.len, (const char *)key.data,
                   version.counter);
}

static void on_live(void *arg, bool live)
{
    struct fixture *f = arg;

    assert_int_not_equal(f->live, live); /* each is told once */
    f->live = live;
    f->n_true += live;
    f->n_false += !live;
}

static void on_idle(void *arg)
{
    ((struct fixture *)arg)->n_idle++;
}

static int setup(void **state)
{
    struct fixture *f = calloc(1, sizeof *f);
    struct feed_opts opts = {.changed = on_changed, .live = on_live, .arg = f};

    assert_non_null(f);
    hand_init(&f->h, N_NODES, N_NODES, 1000);
    opts.client = f->h.client;
    opts.transport = &f->h.transport;
    assert_int_equal(feed_new(&opts, &f->feed), 0);
    hand_run(&f->h);
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;

    feed_stop(f->feed, on_idle, f);
    assert_int_equal(f->n_idle, 1);
    for (unsigned i = 0; i < N_NODES; i++)
        assert_null(f->h.streams[i]);
    feed_free(f->feed);
    hand_fini(&f->h);
    free(f);
    return 0;
}

/* --- what a node says ------------------------------------------------------------------------- */

static void greet_as(struct fixture *f, unsigned node, uint64_t life, uint64_t number,
                     uint64_t latest, uint64_t ring)
{
    char line[400];

    (void)snprintf(line, sizeof(line),
                   "{\"position\":\"%016" PRIx64 "-%016" PRIx64 "\",\"node\":\"n%u\","
                   "\"ring\":\"%016" PRIx64 "\",\"latest\":\"%016" PRIx64 "-%016" PRIx64 "\"}\n",
                   life, number, node, ring, life, latest);
    hand_stream_text(&f->h, node, line);
}

/* The greeting of a node that has nothing new. */
static void greet(struct fixture *f, unsigned node, uint64_t number)
{
    greet_as(f, node, LIFE + node, number, number, ring_fingerprint(f->h.cfg->ring));
}

static void say(struct fixture *f, unsigned node, uint64_t number, const char *members)
{
    char line[400];

    (void)snprintf(line, sizeof(line), "{\"position\":\"%016x-%016" PRIx64 "\"%s}\n", LIFE + node,
                   number, members);
    hand_stream_text(&f->h, node, line);
}

static void change(struct fixture *f, unsigned node, uint64_t number, const char *key,
                   unsigned counter)
{
    char members[200];

    (void)snprintf(members, sizeof(members),
                   ",\"key\":\"%s\",\"version\":\"%016x-%016x\",\"kind\":\"put\"", key, counter, 1);
    say(f, node, number, members);
}

static void greet_all(struct fixture *f)
{
    for (unsigned i = 0; i < N_NODES; i++)
        greet(f, i, 5);
}

static uint64_t followed_us(struct fixture *f, unsigned node)
{
    return health_get(f->h.health, node).followed_us;
}

/* Lets time pass in which these nodes send heartbeats. */
static void beat(struct fixture *f, const bool *nodes, uint64_t us)
{
    uint64_t until = f->h.now_us + us;

    while (f->h.now_us < until) {
        hand_run_until(&f->h, f->h.now_us + 200000);
        for (unsigned i = 0; i < N_NODES; i++)
            if (nodes[i])
                say(f, i, 5, "");
    }
}

/* --- live ------------------------------------------------------------------------------------- */

static void it_is_live_when_a_majority_of_each_set_is_followed(void **state)
{
    struct fixture *f = *state;

    greet(f, 0, 5);
    assert_false(f->live);
    greet(f, 2, 0);
    assert_true(f->live);
    greet(f, 1, 7);
    assert_int_equal(f->n_true, 1);
    assert_int_equal(f->n_false, 0);
}

static void a_node_counts_only_when_it_has_told_what_there_was(void **state)
{
    struct fixture *f = *state;

    greet(f, 0, 5);
    greet_as(f, 1, LIFE + 1, 5, 7, ring_fingerprint(f->h.cfg->ring));
    assert_false(f->live);
    change(f, 1, 6, "a", 1);
    assert_false(f->live);
    change(f, 1, 7, "b", 2);
    assert_true(f->live);
    assert_int_equal(f->n_changes, 2);
}

static void another_ring_or_another_node_does_not_count(void **state)
{
    struct fixture *f = *state;

    greet(f, 0, 5);
    greet_as(f, 1, LIFE, 5, 5, 12345);
    assert_null(f->h.streams[1]);
    assert_false(f->live);
    assert_int_equal(followed_us(f, 1), 0);
    hand_run_until(&f->h, f->h.now_us + 400000);
    assert_null(f->h.streams[1]); /* it is not asked again at once */
}

static void a_lost_node_is_told_even_while_the_others_cover(void **state)
{
    struct fixture *f = *state;

    greet_all(f);
    assert_int_not_equal(followed_us(f, 0), 0);
    hand_stream_end(&f->h, 0, -ECONNREFUSED);
    assert_true(f->live);
    assert_int_equal(f->n_false, 1);
    assert_int_equal(f->n_true, 2);
    assert_int_equal(followed_us(f, 0), 0);
    hand_stream_end(&f->h, 1, 0); /* its node stops */
    assert_false(f->live);
}

static void a_silent_node_is_lost_after_a_second(void **state)
{
    struct fixture *f = *state;
    const bool one[N_NODES] = {true, false, false};

    greet_all(f);
    beat(f, one, 800000);
    assert_int_equal(f->n_false, 0);
    beat(f, one, 400000);
    assert_false(f->live);
    assert_int_not_equal(followed_us(f, 0), 0);
    assert_int_equal(followed_us(f, 1), 0);
    hand_run(&f->h);
    assert_true(f->h.n_streams > N_NODES); /* it is tried anew */
}

/* --- taking up -------------------------------------------------------------------------------- */

static void a_broken_connection_is_taken_up_behind_the_last_change(void **state)
{
    struct fixture *f = *state;
    uint64_t since;

    greet_all(f);
    change(f, 1, 6, "a", 1);
    since = followed_us(f, 1);
    hand_stream_end(&f->h, 1, -ECONNRESET);
    hand_run(&f->h); /* at once */
    assert_string_equal(f->h.targets[1], "/watch?after=0000000000000abd-0000000000000006");
    greet_as(f, 1, LIFE + 1, 6, 8, ring_fingerprint(f->h.cfg->ring));
    change(f, 1, 7, "b", 2);
    change(f, 1, 8, "c", 3);
    assert_int_equal(f->n_changes, 3);
    assert_int_equal(f->n_false, 0); /* nothing was missed */
    assert_int_equal(followed_us(f, 1), since);
}

static void what_is_taken_up_too_late_was_lost(void **state)
{
    struct fixture *f = *state;
    const bool others[N_NODES] = {true, false, true};

    greet_all(f);
    hand_stream_end(&f->h, 1, -ECONNRESET);
    beat(f, others, 1200000);
    assert_int_equal(f->n_false, 1);
    assert_int_equal(followed_us(f, 1), 0);
    hand_run(&f->h);
    greet(f, 1, 5);
    assert_int_equal(f->n_false, 1);
    assert_int_equal(followed_us(f, 1), f->h.now_us);
}

static void catching_up_does_not_make_the_silence_shorter(void **state)
{
    struct fixture *f = *state;
    const bool others[N_NODES] = {true, false, true};

    greet_all(f);
    hand_stream_end(&f->h, 1, -ECONNRESET);
    hand_run(&f->h);
    greet_as(f, 1, LIFE + 1, 5, 100, ring_fingerprint(f->h.cfg->ring));
    for (unsigned i = 6; i < 10; i++) {
        beat(f, others, 200000);
        change(f, 1, i, "a", i);
    }
    assert_int_equal(f->n_false, 0);
    beat(f, others, 400000);
    assert_int_equal(f->n_false, 1);
    assert_non_null(f->h.streams[1]); /* but it goes on */
}

static void a_gap_and_another_life_lose_the_node(void **state)
{
    struct fixture *f = *state;

    greet_all(f);
    say(f, 0, 900, ",\"gap\":\"too slow\"");
    assert_int_equal(f->n_false, 1);
    assert_int_not_equal(followed_us(f, 0), 0); /* anew: what comes from here on is told */
    hand_stream_end(&f->h, 2, -ECONNRESET);
    hand_run(&f->h);
    greet_as(f, 2, 4711, 0, 0, ring_fingerprint(f->h.cfg->ring));
    assert_int_equal(f->n_false, 2);
    assert_true(f->live);
}

static void a_node_that_is_away_is_not_asked_in_a_loop(void **state)
{
    struct fixture *f = *state;
    unsigned n = 0;

    for (uint64_t end = f->h.now_us + 10000000; f->h.now_us < end;) {
        hand_run_until(&f->h, f->h.now_us + 1000);
        if (f->h.streams[1] != NULL) {
            hand_stream_end(&f->h, 1, -ECONNREFUSED);
            n++;
        }
    }
    assert_in_range(n, 15, 30);
    hand_run_until(&f->h, f->h.now_us + 500000);
    assert_non_null(f->h.streams[1]); /* nor is it long until it is asked again */
}

static void one_that_greets_and_ends_is_not_asked_in_a_loop(void **state)
{
    struct fixture *f = *state;
    unsigned n = 0;

    for (uint64_t end = f->h.now_us + 10000000; f->h.now_us < end;) {
        hand_run_until(&f->h, f->h.now_us + 1000);
        if (f->h.streams[1] != NULL) {
            greet(f, 1, 5);
            hand_stream_end(&f->h, 1, -ECONNRESET);
            n++;
        }
    }
    assert_in_range(n, 10, 40);
}

/* --- lines ------------------------------------------------------------------------------------ */

static void lines_come_in_any_pieces(void **state)
{
    struct fixture *f = *state;
    const char *text =
        "{\"position\":\"0000000000000abc-0000000000000006\",\"key\":\"a/\\u00e4\","
        "\"version\":\"0000000000000007-0000000000000001\",\"kind\":\"delete\"}\n"
        "{\"position\":\"0000000000000abc-0000000000000007\",\"key_base64\":\"/w==\","
        "\"version\":\"0000000000000008-0000000000000001\",\"kind\":\"put\"}\n";

    greet(f, 0, 5);
    for (const char *p = text; *p != '\0'; p++)
        hand_stream_text(&f->h, 0, (const char[]){*p, '\0'});
    assert_int_equal(f->n_changes, 2);
    assert_string_equal(f->changes[0], "delete a/\xc3\xa4 7");
    assert_string_equal(f->changes[1], "put \xff 8");
}

static void what_makes_no_sense_ends_the_stream(void **state)
{
    static const char *const bad[] = {
        "\n",
        "[]\n",
        "{}\n",
        "{\"position\":7}\n",
        "{\"position\":\"0000000000000abc-0000000000000005\",\"key\":\"a\"}\n",
        "{\"position\":\"0000000000000abc-0000000000000004\"}\n", /* back */
        "{\"position\":\"0000000000000abd-0000000000000006\"}\n", /* another life */
        "{\"position\":\"0000000000000abc-0000000000000006\",\"key\":\"\","
        "\"version\":\"0000000000000007-0000000000000001\",\"kind\":\"put\"}\n",
        "{\"position\":\"0000000000000abc-0000000000000006\",\"key\":\"a\","
        "\"version\":\"0000000000000007-0000000000000001\",\"kind\":\"other\"}\n",
        "{\"position\":\"0000000000000abc-0000000000000005\",\"key\":\"a\"," /* no step */
        "\"version\":\"0000000000000007-0000000000000001\",\"kind\":\"put\"}\n",
    };
    struct fixture *f = *state;

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        greet(f, 0, 5);
        assert_int_not_equal(followed_us(f, 0), 0);
        hand_stream_text(&f->h, 0, bad[i]);
        assert_null(f->h.streams[0]);
        assert_int_equal(followed_us(f, 0), 0);
        hand_run_until(&f->h, f->h.now_us + 2500000);
        assert_non_null(f->h.streams[0]);
    }
    assert_int_equal(f->n_changes, 0);
}

static void a_line_without_end_is_not_kept(void **state)
{
    struct fixture *f = *state;
    char text[4001];
    unsigned i = 0;

    memset(text, 'x', sizeof(text) - 1);
    text[sizeof(text) - 1] = '\0';
    while (f->h.streams[0] != NULL && i++ < 100)
        hand_stream_text(&f->h, 0, text);
    assert_in_range(i, 2, 10);
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(it_is_live_when_a_majority_of_each_set_is_followed),
        TEST(a_node_counts_only_when_it_has_told_what_there_was),
        TEST(another_ring_or_another_node_does_not_count),
        TEST(a_lost_node_is_told_even_while_the_others_cover),
        TEST(a_silent_node_is_lost_after_a_second),
        TEST(a_broken_connection_is_taken_up_behind_the_last_change),
        TEST(what_is_taken_up_too_late_was_lost),
        TEST(catching_up_does_not_make_the_silence_shorter),
        TEST(a_gap_and_another_life_lose_the_node),
        TEST(a_node_that_is_away_is_not_asked_in_a_loop),
        TEST(one_that_greets_and_ends_is_not_asked_in_a_loop),
        TEST(lines_come_in_any_pieces),
        TEST(what_makes_no_sense_ends_the_stream),
        TEST(a_line_without_end_is_not_kept),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

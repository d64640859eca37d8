/* test_quorum.c - counting a round: every combination of votes, answers from before a lost disk. */
#include "common/quorum.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#define N_VOTES 5 /* enum vote */

/* --- helpers ------------------------------------------------------------------------------- */

static struct tally tally_of_n(unsigned n)
{
    struct tally t;

    assert_int_equal(tally_init(&t, n, n / 2 + 1), 0);
    return t;
}

/* Brings replica i into the state v. */
static void bring(struct tally *t, unsigned i, enum vote v, uint64_t incarnation)
{
    if (v != VOTE_IDLE)
        tally_ask(t, i);
    if (v != VOTE_IDLE && v != VOTE_ASKED)
        tally_vote(t, i, v, incarnation);
}

/* --- tests --------------------------------------------------------------------------------- */

static void a_new_round_waits_with_all_idle(void **state)
{
    struct tally t = tally_of_n(3);

    (void)state;
    assert_int_equal(tally_state(&t), TALLY_WAIT);
    assert_int_equal(tally_count(&t, VOTE_IDLE), 3);
    tally_fini(&t);
    tally_fini(&t); /* twice is harmless */
}

static void every_combination_of_votes_is_decided_by_counting(void **state)
{
    (void)state;
    for (unsigned n = 1; n <= 5; n++) {
        struct tally t = tally_of_n(n);
        unsigned n_cases = 1;

        for (unsigned i = 0; i < n; i++)
            n_cases *= N_VOTES;
        for (unsigned c = 0; c < n_cases; c++) {
            unsigned count[N_VOTES] = {0}, rest = c, majority = n / 2 + 1;
            enum tally_state want = TALLY_WAIT;

            tally_reset(&t);
            for (unsigned i = 0; i < n; i++, rest /= N_VOTES) {
                bring(&t, i, (enum vote)(rest % N_VOTES), 1);
                count[rest % N_VOTES]++;
            }
            if (count[VOTE_YES] >= majority)
                want = TALLY_MET;
            else if (n - count[VOTE_NO] - count[VOTE_FAILED] < majority)
                want = TALLY_LOST;
            assert_int_equal(tally_state(&t), want);
            for (unsigned v = 0; v < N_VOTES; v++)
                assert_int_equal(tally_count(&t, (enum vote)v), count[v]);
        }
        tally_fini(&t);
    }
}

static void the_first_answer_of_a_replica_counts_and_repeats_do_not(void **state)
{
    struct tally t = tally_of_n(3);

    (void)state;
    tally_vote(&t, 0, VOTE_YES, 5);
    tally_vote(&t, 0, VOTE_YES, 5);
    tally_vote(&t, 0, VOTE_NO, 5);
    assert_int_equal(tally_count(&t, VOTE_YES), 1);
    assert_int_equal(tally_of(&t, 0), VOTE_YES);
    assert_int_equal(tally_state(&t), TALLY_WAIT);
    tally_vote(&t, 1, VOTE_FAILED, 0);
    tally_vote(&t, 1, VOTE_YES, 5);
    assert_int_equal(tally_of(&t, 1), VOTE_FAILED);
    tally_fini(&t);
}

static void asking_again_does_not_take_an_answer_back(void **state)
{
    struct tally t = tally_of_n(3);

    (void)state;
    tally_ask(&t, 2);
    assert_int_equal(tally_of(&t, 2), VOTE_ASKED);
    tally_vote(&t, 2, VOTE_YES, 1);
    tally_ask(&t, 2);
    assert_int_equal(tally_of(&t, 2), VOTE_YES);
    tally_fini(&t);
}

static void an_answer_from_before_a_lost_disk_does_not_count(void **state)
{
    struct tally t = tally_of_n(3);

    (void)state;
    tally_vote(&t, 0, VOTE_YES, 10);
    tally_vote(&t, 1, VOTE_YES, 20);
    assert_int_equal(tally_state(&t), TALLY_MET);
    tally_known(&t, 0, 11); /* replica 1 knows that 0 has begun anew */
    assert_int_equal(tally_of(&t, 0), VOTE_FAILED);
    assert_int_equal(tally_of(&t, 1), VOTE_YES);
    assert_int_equal(tally_state(&t), TALLY_WAIT);
    tally_known(&t, 1, 21);
    assert_int_equal(tally_state(&t), TALLY_LOST);
    tally_fini(&t);
}

static void it_does_not_matter_whether_the_news_or_the_answer_comes_first(void **state)
{
    struct tally t = tally_of_n(3);

    (void)state;
    tally_known(&t, 0, 11);
    tally_vote(&t, 0, VOTE_YES, 10);
    assert_int_equal(tally_of(&t, 0), VOTE_FAILED);
    tally_vote(&t, 1, VOTE_YES, 20);
    tally_known(&t, 1, 19); /* old news */
    tally_known(&t, 1, 20);
    assert_int_equal(tally_of(&t, 1), VOTE_YES);
    tally_fini(&t);
}

static void a_refusal_from_before_a_lost_disk_does_not_count_either(void **state)
{
    struct tally t = tally_of_n(3);

    (void)state;
    tally_vote(&t, 0, VOTE_NO, 10);
    tally_known(&t, 0, 11);
    assert_int_equal(tally_count(&t, VOTE_NO), 0);
    assert_int_equal(tally_count(&t, VOTE_FAILED), 1);
    tally_fini(&t);
}

static void news_of_a_replica_that_has_not_answered_leaves_it_askable(void **state)
{
    struct tally t = tally_of_n(3);

    (void)state;
    tally_ask(&t, 1);
    tally_known(&t, 0, 11);
    tally_known(&t, 1, 11);
    assert_int_equal(tally_of(&t, 0), VOTE_IDLE);
    assert_int_equal(tally_of(&t, 1), VOTE_ASKED);
    assert_int_equal(tally_state(&t), TALLY_WAIT);
    tally_fini(&t);
}

static void a_repeated_answer_of_a_newer_incarnation_voids_the_first(void **state)
{
    struct tally t = tally_of_n(3);

    (void)state;
    tally_vote(&t, 0, VOTE_YES, 10);
    tally_vote(&t, 0, VOTE_YES, 11); /* it lost its disk between the two */
    assert_int_equal(tally_of(&t, 0), VOTE_FAILED);
    tally_fini(&t);
}

static void a_reset_forgets_votes_and_incarnations(void **state)
{
    struct tally t = tally_of_n(3);

    (void)state;
    tally_vote(&t, 0, VOTE_YES, 10);
    tally_known(&t, 0, 11);
    tally_known(&t, 1, 99);
    tally_reset(&t);
    assert_int_equal(tally_count(&t, VOTE_IDLE), 3);
    tally_vote(&t, 0, VOTE_YES, 10);
    tally_vote(&t, 1, VOTE_YES, 10);
    assert_int_equal(tally_state(&t), TALLY_MET);
    tally_fini(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_new_round_waits_with_all_idle),
        cmocka_unit_test(every_combination_of_votes_is_decided_by_counting),
        cmocka_unit_test(the_first_answer_of_a_replica_counts_and_repeats_do_not),
        cmocka_unit_test(asking_again_does_not_take_an_answer_back),
        cmocka_unit_test(an_answer_from_before_a_lost_disk_does_not_count),
        cmocka_unit_test(it_does_not_matter_whether_the_news_or_the_answer_comes_first),
        cmocka_unit_test(a_refusal_from_before_a_lost_disk_does_not_count_either),
        cmocka_unit_test(news_of_a_replica_that_has_not_answered_leaves_it_askable),
        cmocka_unit_test(a_repeated_answer_of_a_newer_incarnation_voids_the_first),
        cmocka_unit_test(a_reset_forgets_votes_and_incarnations),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

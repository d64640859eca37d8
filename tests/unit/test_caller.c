/* test_caller.c - who asks: listed while under way, and stopped by whoever may. */
#include "fs/caller.h"

#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

/* --- helpers ---------------------------------------------------------------------------------- */

static struct callers *new_callers(void)
{
    struct callers *c = NULL;

    assert_int_equal(callers_new(&c), 0);
    return c;
}

/* --- tests ------------------------------------------------------------------------------------ */

static void calls_under_way_are_listed_the_oldest_first(void **state)
{
    struct callers *c = new_callers();
    struct caller a, b, d;
    struct call_info info[2];

    (void)state;
    caller_begin(c, CALL_READ, 1, 2, 3, &a);
    caller_begin(c, CALL_OPEN, 1, 2, 4, &b);
    caller_begin(c, CALL_STATFS, 1, 2, 5, &d);
    assert_int_equal(callers_list(c, info, 2), 3);
    assert_true(info[0].call == CALL_READ && info[0].pid == 3);
    assert_true(info[1].call == CALL_OPEN && info[1].pid == 4);
    assert_true(info[0].begun_us <= info[1].begun_us);
    caller_end(&a);
    assert_int_equal(callers_list(c, info, 2), 2);
    assert_true(info[0].call == CALL_OPEN && info[1].call == CALL_STATFS);
    caller_end(&b);
    caller_end(&d);
    assert_int_equal(callers_list(c, NULL, 0), 0);
    callers_free(c);
}

static void all_that_is_under_way_can_be_stopped(void **state)
{
    struct callers *c = new_callers();
    struct caller a, b, later;

    (void)state;
    caller_begin(c, CALL_READ, 0, 0, 1, &a);
    caller_begin(c, CALL_READ, 0, 0, 1, &b);
    callers_stop_all(c);
    caller_begin(c, CALL_READ, 0, 0, 1, &later);
    assert_true(caller_stopped(&a) && caller_stopped(&b) && !caller_stopped(&later));
    caller_end(&a);
    caller_end(&b);
    caller_end(&later);
    callers_free(c);
}

static void nothing_of_an_earlier_call_is_left_in_the_next(void **state)
{
    struct callers *c = new_callers();
    struct caller a;

    (void)state;
    memset(&a, 0xff, sizeof(a)); /* it lies on a stack */
    caller_begin(c, CALL_READ, 0, 0, 1, &a);
    assert_false(a.moves);
    assert_false(caller_stopped(&a));
    assert_string_equal(a.why.msg, "");
    caller_end(&a);
    callers_free(c);
}

static void a_signal_that_is_blocked_or_over_does_not_stop_a_call(void **state)
{
    struct callers *c;
    struct caller who;
    sigset_t set, before;
    int sig;

    (void)state;
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    pthread_sigmask(SIG_BLOCK, &set, &before); /* before there is a thread that would take it */
    c = new_callers();
    caller_begin(c, CALL_READ, 0, 0, getpid(), &who);
    caller_signalled(&who); /* of something that is over by now */
    assert_false(caller_stopped(&who));
    caller_end(&who);

    /* Blocked, it waits as it would for the end of a call, but then it does not count. */
    kill(getpid(), SIGINT);
    caller_begin(c, CALL_READ, 0, 0, getpid(), &who);
    caller_signalled(&who);
    assert_false(caller_stopped(&who));
    caller_end(&who);
    sigwait(&set, &sig);

    caller_begin(c, CALL_READ, 0, 0, 0, &who); /* nobody that could be looked at */
    caller_signalled(&who);
    assert_true(caller_stopped(&who));
    caller_end(&who);
    callers_free(c);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(calls_under_way_are_listed_the_oldest_first),
        cmocka_unit_test(all_that_is_under_way_can_be_stopped),
        cmocka_unit_test(nothing_of_an_earlier_call_is_left_in_the_next),
        cmocka_unit_test(a_signal_that_is_blocked_or_over_does_not_stop_a_call),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

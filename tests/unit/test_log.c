/* test_log.c - lines as they arrive on stderr, one datagram per write(2), and quoted values. */
#include "common/log.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <syslog.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

/* --- fixture: stderr is a socket that keeps each write apart -------------------------------- */

struct capture {
    int real_stderr, reader;
};

static int capture_begin(void **state)
{
    struct capture *c = calloc(1, sizeof(*c));
    int ends[2];

    if (c == NULL || socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends) != 0)
        return -1;
    c->real_stderr = dup(STDERR_FILENO);
    c->reader = ends[0];
    if (c->real_stderr < 0 || dup2(ends[1], STDERR_FILENO) < 0)
        return -1;
    close(ends[1]);
    log_open("kvtest", LOG_LEVEL_INFO);
    *state = c;
    return 0;
}

static int capture_end(void **state)
{
    struct capture *c = *state;

    (void)dup2(c->real_stderr, STDERR_FILENO);
    close(c->real_stderr);
    close(c->reader);
    free(c);
    return 0;
}

/* --- helpers ------------------------------------------------------------------------------- */

/* What one write brought; empty when nothing was written. */
static size_t next_write(struct capture *c, char *out, size_t cap)
{
    ssize_t n = recv(c->reader, out, cap - 1, MSG_DONTWAIT);

    if (n < 0)
        assert_int_equal(errno, EAGAIN);
    out[n < 0 ? 0 : n] = '\0';
    return n < 0 ? 0 : (size_t)n;
}

/* The line without its timestamp, whose shape is checked. Asserts that it is the only one. */
static char *only_line(struct capture *c, char *out, size_t cap)
{
    static const char shape[] = "dddd-dd-ddTdd:dd:dd.dddZ ";
    char more[64];
    size_t n = next_write(c, out, cap);

    assert_true(n > sizeof(shape));
    for (size_t i = 0; i < sizeof(shape) - 1; i++) {
        if (shape[i] == 'd')
            assert_in_range(out[i], '0', '9');
        else
            assert_int_equal(out[i], shape[i]);
    }
    assert_int_equal(out[n - 1], '\n');
    assert_null(memchr(out, '\n', n - 1));
    assert_null(memchr(out, '\0', n));
    assert_int_equal(next_write(c, more, sizeof(more)), 0);
    return out + sizeof(shape) - 1;
}

/* In place of the C library's: what would have gone to the system's log. */
static struct {
    int n, priority;
    char text[256];
} system_log;

void openlog(const char *ident, int option, int facility)
{
    (void)option;
    assert_string_equal(ident, "kvtest");
    assert_int_equal(facility, LOG_DAEMON);
}

void syslog(int priority, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    (void)vsnprintf(system_log.text, sizeof(system_log.text), fmt, ap);
    va_end(ap);
    system_log.priority = priority;
    system_log.n++;
}

#define N_THREADS 4
#define N_LINES 50

static void *log_many(void *arg)
{
    for (int i = 0; i < N_LINES; i++)
        log_event(LOG_LEVEL_WARN, "busy", "thread=%d line=%d key=%s", *(int *)arg, i,
                  log_quote("a b", 3));
    return NULL;
}

/* --- lines --------------------------------------------------------------------------------- */

static void an_event_is_one_line_of_program_level_name_and_values(void **state)
{
    char line[8192];

    log_event(LOG_LEVEL_INFO, "listening", "addr=%s port=%d", "localhost", 8081);
    assert_string_equal(only_line(*state, line, sizeof(line)),
                        "kvtest info listening addr=localhost port=8081\n");
    log_event(LOG_LEVEL_WARN, "spread", "ratio=1.5");
    assert_string_equal(only_line(*state, line, sizeof(line)), "kvtest warn spread ratio=1.5\n");
    log_event(LOG_LEVEL_ERROR, "stopped", "%s", "");
    assert_string_equal(only_line(*state, line, sizeof(line)), "kvtest error stopped\n");
}

/* Whole seconds of the clock that the log reads: time() lags behind it by up to a tick. */
static time_t seconds_now(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_REALTIME, &now);
    return now.tv_sec;
}

static void the_time_is_now_in_utc(void **state)
{
    char line[8192];
    time_t before = seconds_now(), told;
    struct tm tm = {0};

    log_event(LOG_LEVEL_INFO, "now", "x=1");
    (void)only_line(*state, line, sizeof(line));
    assert_non_null(strptime(line, "%Y-%m-%dT%H:%M:%S", &tm));
    told = timegm(&tm);
    assert_true(told >= before && told <= seconds_now());
}

static void levels_beyond_the_chosen_one_are_silent(void **state)
{
    char line[8192];

    log_event(LOG_LEVEL_DEBUG, "detail", "x=1");
    assert_int_equal(next_write(*state, line, sizeof(line)), 0);
    log_open("kvtest", LOG_LEVEL_DEBUG);
    log_event(LOG_LEVEL_DEBUG, "detail", "x=1");
    assert_string_equal(only_line(*state, line, sizeof(line)), "kvtest debug detail x=1\n");
    log_open("kvtest", LOG_LEVEL_ERROR);
    log_event(LOG_LEVEL_WARN, "detail", "x=1");
    assert_int_equal(next_write(*state, line, sizeof(line)), 0);
}

static void a_message_cannot_break_its_line(void **state)
{
    char line[8192];

    log_event(LOG_LEVEL_INFO, "odd", "text=%s", "a\nb\tc\x1b[0m\x7f");
    assert_string_equal(only_line(*state, line, sizeof(line)), "kvtest info odd text=a?b?c?[0m?\n");
}

static void a_long_line_is_cut_marked_and_still_one_write(void **state)
{
    struct capture *c = *state;
    char line[8192], text[6000];

    /* Each length about the limit, and one far beyond. */
    for (size_t len = 3900; len < sizeof(text); len += len < 4100 ? 1 : 1000) {
        char *rest;
        size_t got;

        memset(text, 'x', len);
        text[len] = '\0';
        log_event(LOG_LEVEL_INFO, "long", "%s", text);
        rest = only_line(c, line, sizeof(line));
        got = strlen(line);
        assert_true(got <= 4096);
        if (strlen(rest) != strlen("kvtest info long \n") + len)
            assert_string_equal(line + got - 5, "x...\n");
    }
    memset(text, 'e', sizeof(text) - 1);
    text[sizeof(text) - 1] = '\0';
    log_event(LOG_LEVEL_INFO, text, "x=%d", 1);
    (void)only_line(c, line, sizeof(line));
    assert_string_equal(line + strlen(line) - 5, "e...\n");
}

static void logging_leaves_errno_alone(void **state)
{
    int unwritable = open("/dev/null", O_RDONLY);

    (void)state;
    assert_true(unwritable >= 0 && dup2(unwritable, STDERR_FILENO) >= 0);
    close(unwritable);
    errno = EXDEV;
    log_event(LOG_LEVEL_INFO, "x", "y=1"); /* its write fails with EBADF */
    assert_int_equal(errno, EXDEV);
}

static void lines_of_many_threads_never_mix(void **state)
{
    struct capture *c = *state;
    pthread_t threads[N_THREADS];
    int ids[N_THREADS], next[N_THREADS] = {0};

    for (int i = 0; i < N_THREADS; i++) {
        ids[i] = i;
        assert_int_equal(pthread_create(&threads[i], NULL, log_many, &ids[i]), 0);
    }
    for (int i = 0; i < N_THREADS * N_LINES; i++) {
        char line[8192], want[128], *rest;
        int thread, number;
        ssize_t n = recv(c->reader, line, sizeof(line) - 1, 0);

        assert_true(n > 0);
        line[n] = '\0';
        rest = strstr(line, "kvtest");
        assert_non_null(rest);
        assert_int_equal(sscanf(rest, "kvtest warn busy thread=%d line=%d", &thread, &number), 2);
        assert_in_range(thread, 0, N_THREADS - 1);
        assert_int_equal(number, next[thread]++);
        (void)snprintf(want, sizeof(want), "kvtest warn busy thread=%d line=%d key=\"a b\"\n",
                       thread, number);
        assert_string_equal(rest, want);
    }
    for (int i = 0; i < N_THREADS; i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
}

/* Last of those that log: there is no way back. */
static void after_the_switch_events_go_to_the_system_log_alone(void **state)
{
    char line[8192];

    log_to_syslog();
    log_event(LOG_LEVEL_ERROR, "lost", "node=%s", "node-%1");
    log_event(LOG_LEVEL_DEBUG, "detail", "x=1");
    assert_int_equal(next_write(*state, line, sizeof(line)), 0);
    assert_int_equal(system_log.n, 1);
    assert_int_equal(system_log.priority, LOG_ERR);
    assert_string_equal(system_log.text, "lost node=node-%1");
}

/* --- values -------------------------------------------------------------------------------- */

static void a_plain_value_stays_as_it_is(void **state)
{
    (void)state;
    assert_string_equal(log_quote("user:42", 7), "user:42");
    assert_string_equal(log_quote("a/b%20+c~", 9), "a/b%20+c~");
}

static void what_would_confuse_a_reader_is_quoted_and_escaped(void **state)
{
    static const struct {
        const char *in;
        size_t len;
        const char *want;
    } cases[] = {
        {"", 0, "\"\""},
        {"a b", 3, "\"a b\""},
        {"a=b", 3, "\"a=b\""},
        {"a\"b", 3, "\"a\\x22b\""},
        {"a\\b", 3, "\"a\\x5cb\""},
        {"a\nb", 3, "\"a\\x0ab\""},
        {"a\0b", 3, "\"a\\x00b\""},
        {"\x7f", 1, "\"\\x7f\""},
        {"\xff\xfe", 2, "\"\\xff\\xfe\""},
        {"\xc3\xa4", 2, "\"\\xc3\\xa4\""},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        assert_string_equal(log_quote(cases[i].in, cases[i].len), cases[i].want);
}

static void a_long_value_is_cut_and_marked_outside_its_quotes(void **state)
{
    char text[5000];

    (void)state;
    for (int kind = 0; kind < 3; kind++) {
        memset(text, "x \xff"[kind], sizeof(text));
        for (size_t len = 1; len < 600; len++) {
            const char *quoted = log_quote(text, len);
            size_t got = strlen(quoted);

            assert_true(got < 512);
            if (got != (kind == 0 ? len : kind == 1 ? len + 2 : 4 * len + 2))
                assert_string_equal(quoted + got - 4, kind == 0 ? "x..." : "\"...");
        }
        assert_true(strlen(log_quote(text, sizeof(text))) < 512);
    }
}

static void four_values_fit_one_line(void **state)
{
    const char *a = log_quote("a", 1), *b = log_quote("b", 1), *c = log_quote("c", 1),
               *d = log_quote("d", 1);

    (void)state;
    assert_string_equal(a, "a");
    assert_string_equal(b, "b");
    assert_string_equal(c, "c");
    assert_string_equal(d, "d");
}

static void *quote_many(void *arg)
{
    for (int i = 0; i < 100; i++)
        (void)log_quote("other", 5);
    return arg;
}

static void quoting_in_one_thread_leaves_the_others_alone(void **state)
{
    const char *mine = log_quote("mine", 4);
    pthread_t thread;

    (void)state;
    assert_int_equal(pthread_create(&thread, NULL, quote_many, NULL), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_string_equal(mine, "mine");
}

#define captured(test) cmocka_unit_test_setup_teardown(test, capture_begin, capture_end)

int main(void)
{
    const struct CMUnitTest tests[] = {
        captured(an_event_is_one_line_of_program_level_name_and_values),
        captured(the_time_is_now_in_utc),
        captured(levels_beyond_the_chosen_one_are_silent),
        captured(a_message_cannot_break_its_line),
        captured(a_long_line_is_cut_marked_and_still_one_write),
        captured(logging_leaves_errno_alone),
        captured(lines_of_many_threads_never_mix),
        captured(after_the_switch_events_go_to_the_system_log_alone),
        cmocka_unit_test(a_plain_value_stays_as_it_is),
        cmocka_unit_test(what_would_confuse_a_reader_is_quoted_and_escaped),
        cmocka_unit_test(a_long_value_is_cut_and_marked_outside_its_quotes),
        cmocka_unit_test(four_values_fit_one_line),
        cmocka_unit_test(quoting_in_one_thread_leaves_the_others_alone),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* test_fs_metrics.c - what was asked of a mount, counted and told. */
#include "fs/metrics.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void assert_told(struct buf *text, const char *line)
{
    if (strstr((const char *)text->data, line) == NULL)
        fail_msg("not in the text: %s\n%s", line, (const char *)text->data);
}

static void calls_errors_and_bytes_are_told_by_kind(void **state)
{
    struct metrics *m = metrics_new();
    struct buf text = {0};

    (void)state;
    assert_non_null(m);
    metrics_answered(m, CALL_READ, 0, 50);
    metrics_answered(m, CALL_READ, EHOSTDOWN, 6000000);
    metrics_answered(m, CALL_LOOKUP, 100000, 1); /* no errno that there is */
    metrics_read(m, 10);
    metrics_read(m, 20);
    metrics_written(m, 7);
    metrics_write(m, &text);
    buf_u8(&text, 0);
    assert_int_equal(text.err, 0);
    assert_told(&text, "kvfs_call_seconds_count{call=\"read\"} 2\n");
    assert_told(&text, "kvfs_call_seconds_bucket{call=\"read\",le=\"5\"} 1\n");
    assert_told(&text, "kvfs_call_errors_total{call=\"read\",error=\"EHOSTDOWN\"} 1\n");
    assert_told(&text, "kvfs_call_errors_total{call=\"lookup\",error=\"other\"} 1\n");
    assert_told(&text, "kvfs_read_bytes_total 30\n");
    assert_told(&text, "kvfs_written_bytes_total 7\n");
    assert_null(strstr((const char *)text.data, "call=\"mkdir\"")); /* never called */
    buf_fini(&text);
    metrics_free(m);
}

static void every_call_has_a_name_of_its_own(void **state)
{
    (void)state;
    for (unsigned a = 0; a < N_CALLS; a++) {
        assert_non_null(call_name((enum fs_call)a));
        for (unsigned b = 0; b < a; b++)
            assert_string_not_equal(call_name((enum fs_call)a), call_name((enum fs_call)b));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(calls_errors_and_bytes_are_told_by_kind),
        cmocka_unit_test(every_call_has_a_name_of_its_own),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* test_prometheus.c - metrics as text: labels that hold anything, and buckets that add up. */
#include "common/prometheus.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void assert_text(struct buf *b, const char *want)
{
    buf_u8(b, 0);
    assert_int_equal(b->err, 0);
    assert_string_equal((const char *)b->data, want);
    buf_fini(b);
}

static void a_gauge_comes_with_its_help_and_type(void **state)
{
    struct buf b = {0};

    (void)state;
    prom_gauge(&b, "x", "What x is.", 2.5);
    assert_text(&b, "# HELP x What x is.\n# TYPE x gauge\nx 2.5\n");
}

static void labels_escape_what_would_end_them(void **state)
{
    struct buf b = {0};

    (void)state;
    prom_label(&b, "a\"b\\c\nd");
    assert_text(&b, "a\\\"b\\\\c\\nd");
}

static void buckets_count_all_that_took_no_longer(void **state)
{
    struct prom_times t = {0};
    struct buf b = {0};

    (void)state;
    prom_times_add(&t, 100);     /* just within the first */
    prom_times_add(&t, 101);     /* the second */
    prom_times_add(&t, 9000000); /* beyond all */
    prom_times_write(&b, "x", "call", "read", &t);
    buf_u8(&b, 0);
    assert_int_equal(b.err, 0);
    assert_non_null(strstr((char *)b.data, "x_bucket{call=\"read\",le=\"0.0001\"} 1\n"));
    assert_non_null(strstr((char *)b.data, "x_bucket{call=\"read\",le=\"0.00025\"} 2\n"));
    assert_non_null(strstr((char *)b.data, "x_bucket{call=\"read\",le=\"5\"} 2\n"));
    assert_non_null(strstr((char *)b.data, "x_bucket{call=\"read\",le=\"+Inf\"} 3\n"));
    assert_non_null(strstr((char *)b.data, "x_sum{call=\"read\"} 9.000201\n"));
    assert_non_null(strstr((char *)b.data, "x_count{call=\"read\"} 3\n"));
    buf_fini(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_gauge_comes_with_its_help_and_type),
        cmocka_unit_test(labels_escape_what_would_end_them),
        cmocka_unit_test(buckets_count_all_that_took_no_longer),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

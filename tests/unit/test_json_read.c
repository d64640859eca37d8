/* test_json_read.c - flat objects: what is taken, and what is refused. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "common/json.h"

static struct json_member members[] = {{.name = "key", .coded = true}, {.name = "kind"}};

static int read_text(const char *text)
{
    return json_read(span_str(text), members, 2);
}

static void assert_member(unsigned i, const char *want)
{
    assert_true(members[i].given);
    assert_true(span_eq(buf_span(&members[i].value), span_str(want)));
}

static void members_that_are_asked_for_are_filled(void **state)
{
    (void)state;
    assert_int_equal(read_text("{\"n\":1,\"kind\":\"put\",\"on\":true,\"key\":\"a\\\"\\u00e4\"}"),
                     0);
    assert_member(0, "a\"\xc3\xa4");
    assert_member(1, "put");
}

static void what_an_earlier_object_had_is_forgotten(void **state)
{
    (void)state;
    assert_int_equal(read_text("{\"key\":\"a\",\"kind\":\"put\"}"), 0);
    assert_int_equal(read_text("{\"kind\":\"\"}"), 0);
    assert_false(members[0].given);
    assert_member(1, "");
}

static void base64_is_decoded_where_it_may_stand(void **state)
{
    (void)state;
    assert_int_equal(read_text("{\"key_base64\":\"/w==\",\"kind_base64\":\"x\"}"), 0);
    assert_member(0, "\xff");
    assert_false(members[1].given);
}

static void what_is_no_flat_object_is_refused(void **state)
{
    static const char *const bad[] = {
        "",
        " ",
        "7",
        "[]",
        "\"key\"",
        "null",
        "{\"key\":\"a\"",
        "{\"key\":\"a\"} {}",
        "{\"key\":7}",
        "{\"key\":null}",
        "{\"key\":{\"key\":\"a\"}}",
        "{\"other\":[]}",
        "{\"key\":\"a\",\"key\":\"b\"}",
        "{\"key\":\"a\",\"key_base64\":\"YQ==\"}",
        "{\"key_base64\":\"?\"}",
        "{\"key\":\"\\u0000\"}",
        "{\"key\":\"\xff\"}",
    };

    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        assert_int_equal(read_text(bad[i]), -EBADMSG);
}

static int fini(void **state)
{
    (void)state;
    json_members_fini(members, 2);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(members_that_are_asked_for_are_filled),
        cmocka_unit_test(what_an_earlier_object_had_is_forgotten),
        cmocka_unit_test(base64_is_decoded_where_it_may_stand),
        cmocka_unit_test(what_is_no_flat_object_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, fini);
}

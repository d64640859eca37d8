/* test_framing.c - which headers say without doubt where a request ends. */
#include "node/framing.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

/*
 * Reads a header block as the server's parser leaves it: cut at the first colon of each line, which
 * ends in CR LF, or in LF where the text has only that. Strings end at their first NUL.
 */
static const char *read_block(const char *text, size_t len, const char *version, uint64_t *length,
                              bool *has_length)
{
    static char block[4096];
    struct framing f = {.at = block};
    char *p = block + 1;

    assert_true(len + 2 < sizeof(block));
    block[0] = '\0';
    memcpy(p, text, len);
    p[len] = '\0';
    while (p < block + 1 + len) {
        char *end = memchr(p, '\n', (size_t)(block + 1 + len - p)), *colon, *next = end + 1;

        assert_non_null(end);
        *end = '\0';
        if (end > p && end[-1] == '\r')
            *--end = '\0';
        if (end == p)
            return framing_finish(&f, next, version, length, has_length);
        colon = strchr(p, ':');
        assert_non_null(colon);
        *colon++ = '\0';
        colon += strspn(colon, " ");
        if (!framing_add(&f, p, strlen(p), colon, strlen(colon)))
            return f.why;
        p = next;
    }
    fail_msg("the block has no end");
    return NULL;
}

#define READ(text) read_block(text, sizeof(text) - 1, "HTTP/1.1", &length, &has_length)

static void a_plain_header_tells_the_length(void **state)
{
    uint64_t length = 99;
    bool has_length = false;

    (void)state;
    assert_null(READ("Host: x\r\nContent-Length: 5\r\n\r\n"));
    assert_int_equal(length, 5);
    assert_true(has_length);
    assert_null(READ("Host: x\ncontent-length: 18446744073709551614\n\n"));
    assert_int_equal(length, UINT64_MAX - 1);
    assert_null(READ("Host: x\r\nTransfer-Encoding: Chunked\r\n\r\n"));
    assert_int_equal(length, BODY_LENGTH_UNKNOWN);
    assert_null(READ("Empty:\r\nHost: x\r\n\r\n"));
    assert_int_equal(length, 0);
    assert_false(has_length);
}

static void what_could_be_read_in_two_ways_is_refused(void **state)
{
    uint64_t length;
    bool has_length;

    (void)state;
    assert_non_null(READ("Host: x\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n"));
    assert_non_null(READ("Host: x\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\n"));
    assert_non_null(READ("Host: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n"));
    assert_non_null(READ("Host: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n"));
    assert_non_null(
        READ("Host: x\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n"));
    assert_non_null(READ("Host: x\r\nContent-Length: 18446744073709551615\r\n\r\n"));
    assert_non_null(READ("Host: x\r\nContent-Length: -1\r\n\r\n"));
    assert_non_null(READ("Host: x\r\nContent-Length: 0x1\r\n\r\n"));
    assert_non_null(READ("Host: x\r\nContent-Length:\r\n\r\n"));
    assert_non_null(READ("Host: x\r\nContent-Length : 5\r\n\r\n"));
    assert_non_null(READ("Host: x\r\nA\tB: 5\r\n\r\n"));
    assert_non_null(READ("Host: x\r\n: 5\r\n\r\n"));
}

static void a_hidden_byte_is_found_wherever_it_is(void **state)
{
    uint64_t length;
    bool has_length;

    (void)state;
    assert_non_null(READ("Host: x\r\nA: b\0c\r\nContent-Length: 5\r\n\r\n"));
    assert_non_null(READ("Host: x\r\nContent-Length: 5\0\r\nA: b\r\n\r\n"));
    assert_non_null(READ("Host: x\r\nContent-Length: 5\0006\r\n\r\n"));
    assert_non_null(READ("Host: x\0y\r\n\r\n"));
    /* as wide a gap as two CR LF make */
    assert_non_null(READ("Host: x\nContent-Length: 5\0006\n\n"));
}

static void a_host_is_there_once(void **state)
{
    uint64_t length;
    bool has_length;

    (void)state;
    assert_non_null(READ("A: b\r\n\r\n"));
    assert_non_null(READ("Host: a\r\nHost: a\r\n\r\n"));
    assert_null(read_block("A: b\r\n\r\n", 8, "HTTP/1.0", &length, &has_length));
    assert_non_null(
        read_block("Transfer-Encoding: chunked\r\n\r\n", 30, "HTTP/1.0", &length, &has_length));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_plain_header_tells_the_length),
        cmocka_unit_test(what_could_be_read_in_two_ways_is_refused),
        cmocka_unit_test(a_hidden_byte_is_found_wherever_it_is),
        cmocka_unit_test(a_host_is_there_once),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

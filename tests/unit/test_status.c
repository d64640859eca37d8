/* test_status.c - the table between errno and HTTP status, read both ways. */
#include "common/status.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static void each_error_goes_out_as_its_status(void **state)
{
    /* clang-format off */
    static const struct {
        int err;
        unsigned status;
    } rows[] = {
        {0, 200},
        {-EINVAL, 400}, {-ENOENT, 404}, {-EOPNOTSUPP, 405}, {-EBADE, 409},
        {-ECANCELED, 412}, {-EEXIST, 412}, {-EFBIG, 413}, {-ENAMETOOLONG, 414},
        {-ERANGE, 416}, {-EREMCHG, 421},
        {-EIO, 500}, {-EBADMSG, 500}, {-EPROTO, 501},
        {-EHOSTDOWN, 503}, {-EAGAIN, 503}, {-ENOMEM, 503}, {-EINTR, 503},
        {-ETIMEDOUT, 504}, {-ENOSPC, 507},
    };
    /* clang-format on */

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        if (status_from_errno(rows[i].err) != rows[i].status)
            fail_msg("%s went out as %u", strerror(-rows[i].err), status_from_errno(rows[i].err));
    }
}

static void each_status_comes_back_as_one_error(void **state)
{
    /* clang-format off */
    static const struct {
        unsigned status;
        int err;
    } rows[] = {
        {200, 0}, {201, 0}, {204, 0}, {206, 0},
        {400, -EINVAL}, {404, -ENOENT}, {405, -EOPNOTSUPP}, {408, -ETIMEDOUT},
        {409, -EBADE}, {411, -EINVAL}, {412, -ECANCELED}, {413, -EFBIG},
        {414, -ENAMETOOLONG}, {416, -ERANGE}, {421, -EREMCHG}, {431, -EINVAL},
        {500, -EIO}, {501, -EPROTO}, {503, -EHOSTDOWN}, {504, -ETIMEDOUT}, {507, -ENOSPC},
    };
    /* clang-format on */

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        if (status_to_errno(rows[i].status) != rows[i].err)
            fail_msg("%u came back as %d", rows[i].status, status_to_errno(rows[i].status));
    }
}

static void an_unknown_error_or_status_is_an_internal_one(void **state)
{
    static const unsigned strange[] = {0,   1,   100, 199, 300,  302,       304,
                                       402, 418, 499, 599, 1000, UINT32_MAX};

    (void)state;
    assert_int_equal(status_from_errno(-EXDEV), 500);
    assert_int_equal(status_from_errno(-99999), 500);
    assert_int_equal(status_from_errno(ENOENT), 500); /* positive: not how errors are passed here */
    for (size_t i = 0; i < sizeof(strange) / sizeof(strange[0]); i++)
        assert_int_equal(status_to_errno(strange[i]), -EIO);
}

static void any_status_of_success_is_no_error(void **state)
{
    (void)state;
    for (unsigned status = 200; status < 300; status++)
        assert_int_equal(status_to_errno(status), 0);
}

static void the_status_of_an_error_never_reads_as_success(void **state)
{
    (void)state;
    for (int err = 1; err < 200; err++) {
        unsigned status = status_from_errno(-err);

        assert_in_range(status, 400, 599);
        assert_true(status_to_errno(status) < 0);
        /* Once out and back it is stable: a gateway that passes it on does not change it. */
        assert_int_equal(status_from_errno(status_to_errno(status)), status);
    }
}

static void every_status_has_its_reason(void **state)
{
    (void)state;
    assert_string_equal(status_reason(200), "OK");
    assert_string_equal(status_reason(201), "Created");
    assert_string_equal(status_reason(304), "Not Modified");
    assert_string_equal(status_reason(404), "Not Found");
    assert_string_equal(status_reason(421), "Misdirected Request");
    assert_string_equal(status_reason(507), "Insufficient Storage");
    assert_string_equal(status_reason(299), "Unknown");
    for (int err = 0; err < 200; err++)
        assert_string_not_equal(status_reason(status_from_errno(-err)), "Unknown");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_error_goes_out_as_its_status),
        cmocka_unit_test(each_status_comes_back_as_one_error),
        cmocka_unit_test(an_unknown_error_or_status_is_an_internal_one),
        cmocka_unit_test(any_status_of_success_is_no_error),
        cmocka_unit_test(the_status_of_an_error_never_reads_as_success),
        cmocka_unit_test(every_status_has_its_reason),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* test_redis_url.c - the address of a Redis, and its password. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "node/redis_url.h"

static void an_address_is_taken_apart(void **state)
{
    static const struct {
        const char *text, *host, *user, *shown;
        unsigned port, db;
    } good[] = {
        {"redis://localhost:6380/2", "localhost", NULL, "redis://localhost:6380/2", 6380, 2},
        {"redis://localhost", "localhost", NULL, "redis://localhost:6379/0", 6379, 0},
        {"redis://10.0.0.1/", "10.0.0.1", NULL, "redis://10.0.0.1:6379/0", 6379, 0},
        {"redis://kv@db:1/15", "db", "kv", "redis://db:1/15", 1, 15},
        {"redis://kv%40fs%2f1%3A%25@db:1/15", "db", "kv@fs/1:%", "redis://db:1/15", 1, 15},
        {"redis://a+b@[::1]", "::1", "a+b", "redis://[::1]:6379/0", 6379, 0},
        {"redis://[::1]:6380/1", "::1", NULL, "redis://[::1]:6380/1", 6380, 1},
        {"redis://[fe80::1]", "fe80::1", NULL, "redis://[fe80::1]:6379/0", 6379, 0},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        struct redis_url u;
        struct err err = {""};

        if (redis_url_parse(good[i].text, &u, &err) < 0)
            fail_msg("%s: %s", good[i].text, err.msg);
        assert_string_equal(u.host, good[i].host);
        assert_int_equal(u.port, good[i].port);
        assert_int_equal(u.db, good[i].db);
        assert_string_equal(u.shown, good[i].shown);
        if (good[i].user == NULL)
            assert_null(u.user);
        else
            assert_string_equal(u.user, good[i].user);
        redis_url_fini(&u);
    }
}

static void what_is_no_address_is_refused_with_the_reason(void **state)
{
    static const struct {
        const char *text, *reason;
    } bad[] = {
        {"redis://", "HOST:PORT"},
        {"redis://:6379", "HOST:PORT"},
        {"redis://h:0/0", "HOST:PORT"},
        {"redis://h:65536/0", "HOST:PORT"},
        {"redis://h:6379x/0", "HOST:PORT"},
        {"redis://[::1/0", "HOST:PORT"},
        {"redis://[::1]x/0", "HOST:PORT"},
        {"redis://h/x", "\"x\""},
        {"redis://h/-1", "\"-1\""},
        {"redis://h/70000", "\"70000\""},
        {"redis://:secret@h/0", "--redis-password-file"},
        {"redis://kv:secret@h/0", "--redis-password-file"},
        {"redis://k%2@h/0", "percent"},
        {"redis://k%zz@h/0", "percent"},
        {"redis://k%00v@h/0", "percent"},
        {"redis://@h/0", "user"},
        {"rediss://h/0", "TLS"},
        {"http://h/0", "HOST:PORT"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct redis_url u;
        struct err err = {""};

        assert_int_equal(redis_url_parse(bad[i].text, &u, &err), -EINVAL);
        if (strstr(err.msg, bad[i].reason) == NULL)
            fail_msg("%s: %s", bad[i].text, err.msg);
        assert_null(strstr(err.msg, "secret"));
    }
}

static void write_file(const char *path, const char *text, mode_t mode)
{
    int fd = open(path, O_CREAT | O_WRONLY | O_TRUNC, 0600);

    assert_true(fd >= 0);
    assert_int_equal(fchmod(fd, mode), 0);
    assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    close(fd);
}

static void the_password_comes_from_a_file_or_else_the_environment(void **state)
{
    char path[] = "/tmp/test-redis-url-XXXXXX";
    int fd = mkstemp(path);
    struct redis_url u;
    struct err err = {""};

    (void)state;
    assert_true(fd >= 0);
    close(fd);
    unsetenv(REDIS_PASSWORD_ENV);
    assert_int_equal(redis_url_parse("redis://h", &u, &err), 0);
    assert_int_equal(redis_url_password(&u, NULL, &err), 0);
    assert_null(u.password);
    setenv(REDIS_PASSWORD_ENV, "from outside", 1);
    assert_int_equal(redis_url_password(&u, NULL, &err), 0);
    assert_string_equal(u.password, "from outside");
    redis_url_fini(&u);

    assert_int_equal(redis_url_parse("redis://h", &u, &err), 0);
    write_file(path, "s3cret word\nmore\n", 0600);
    assert_int_equal(redis_url_password(&u, path, &err), 0);
    assert_string_equal(u.password, "s3cret word");
    redis_url_fini(&u);

    assert_int_equal(redis_url_parse("redis://h", &u, &err), 0);
    write_file(path, "s3cret\n", 0644);
    assert_int_equal(redis_url_password(&u, path, &err), -EACCES);
    assert_non_null(strstr(err.msg, path));
    write_file(path, "\n", 0600);
    assert_int_equal(redis_url_password(&u, path, &err), -EINVAL);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(redis_url_password(&u, path, &err), -ENOENT);
    redis_url_fini(&u);
    unsetenv(REDIS_PASSWORD_ENV);
}

static void a_user_without_a_password_is_refused(void **state)
{
    struct redis_url u;
    struct err err = {""};

    (void)state;
    assert_int_equal(redis_url_parse("redis://kv@h", &u, &err), 0);
    assert_int_equal(redis_url_password(&u, NULL, &err), -EINVAL);
    assert_non_null(strstr(err.msg, "\"kv\""));
    redis_url_fini(&u);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_address_is_taken_apart),
        cmocka_unit_test(what_is_no_address_is_refused_with_the_reason),
        cmocka_unit_test(the_password_comes_from_a_file_or_else_the_environment),
        cmocka_unit_test(a_user_without_a_password_is_refused),
    };

    return cmocka_run_group_tests_name("redis_url", tests, NULL, NULL);
}

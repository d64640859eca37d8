/* redis_server.c - a real redis-server of a test's own. */
#include "tests/lib/redis_server.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <arpa/inet.h>
#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define START_TRIES 1500 /* of 20 ms */
#define ARGS_MAX 40u

static unsigned free_port(void)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(a);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    assert_true(fd >= 0);
    assert_int_equal(bind(fd, (struct sockaddr *)(void *)&a, sizeof(a)), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)(void *)&a, &len), 0);
    close(fd);
    return ntohs(a.sin_port);
}

struct redis_url redis_server_url(const struct redis_server *r)
{
    struct redis_url url;
    struct err err = {""};
    char text[64];

    (void)snprintf(text, sizeof(text), "redis://127.0.0.1:%u/0", r->port);
    if (redis_url_parse(text, &url, &err) < 0)
        fail_msg("%s", err.msg);
    return url;
}

static void wait_until_it_answers(struct redis_server *r)
{
    struct redis_url url = redis_server_url(r);
    struct redis_link *l = NULL;
    struct err err = {""};
    int ret = -1;

    for (unsigned i = 0; i < START_TRIES && ret != 0; i++) {
        ret = redis_link_open(&url, "test", &l, &err);
        if (ret == -EACCES)
            ret = 0; /* it wants a password: it is there */
        if (ret != 0)
            (void)poll(NULL, 0, 20);
        if (ret != 0 && waitpid(r->pid, NULL, WNOHANG) == r->pid)
            fail_msg("redis-server ended: see %s/log", r->dir);
    }
    redis_link_close(l);
    redis_url_fini(&url);
    if (ret != 0)
        fail_msg("redis-server does not answer: %s", err.msg);
}

static void run(const struct redis_server *r, const char *const *extra)
{
    char port[16];
    const char *args[ARGS_MAX] = {"redis-server", "--port",        port,     "--bind",
                                  "127.0.0.1",    "--save",        "",       "--appendonly",
                                  "yes",          "--appendfsync", "always", "--logfile",
                                  "log"};
    unsigned n = 13;

    (void)snprintf(port, sizeof(port), "%u", r->port);
    for (; extra != NULL && *extra != NULL && n + 1 < ARGS_MAX; extra++)
        args[n++] = *extra;
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (chdir(r->dir) == 0)
        (void)execvp(args[0], (char *const *)(uintptr_t)args);
    _exit(127);
}

void redis_server_again(struct redis_server *r, const char *const *extra)
{
    assert_int_equal(r->pid, 0);
    r->pid = fork();
    assert_true(r->pid >= 0);
    if (r->pid == 0)
        run(r, extra);
    wait_until_it_answers(r);
}

void redis_server_start(struct redis_server *r, const char *dir, const char *const *extra)
{
    *r = (struct redis_server){.port = free_port()};
    (void)snprintf(r->dir, sizeof(r->dir), "%s", dir);
    assert_int_equal(mkdir(dir, 0700), 0);
    redis_server_again(r, extra);
}

void redis_server_kill(struct redis_server *r, int sig)
{
    if (r->pid == 0)
        return;
    (void)kill(r->pid, SIGCONT);
    assert_int_equal(kill(r->pid, sig), 0);
    assert_int_equal(waitpid(r->pid, NULL, 0), r->pid);
    r->pid = 0;
}

void redis_server_freeze(struct redis_server *r)
{
    int status;

    assert_int_equal(kill(r->pid, SIGSTOP), 0);
    assert_int_equal(waitpid(r->pid, &status, WUNTRACED), r->pid);
    assert_true(WIFSTOPPED(status));
}

void redis_server_thaw(struct redis_server *r)
{
    assert_int_equal(kill(r->pid, SIGCONT), 0);
}

struct redis_reply *redis_server_ask(const struct redis_server *r, const char *word, ...)
{
    struct redis_url url = redis_server_url(r);
    struct span words[16];
    struct redis_link *l = NULL;
    struct redis_reply *reply = NULL;
    struct err err = {""};
    size_t n = 0;
    va_list ap;

    va_start(ap, word);
    for (; word != NULL && n < 16; word = va_arg(ap, const char *))
        words[n++] = span_str(word);
    va_end(ap);
    if (redis_link_open(&url, "test", &l, &err) < 0 || redis_link_add(l, words, n) < 0 ||
        redis_link_next(l, &reply, &err) < 0)
        fail_msg("%s", err.msg);
    redis_link_close(l);
    redis_url_fini(&url);
    return reply;
}

int64_t redis_reply_take_number(struct redis_reply *r)
{
    int64_t n = redis_reply_number(r);

    redis_reply_free(r);
    return n;
}

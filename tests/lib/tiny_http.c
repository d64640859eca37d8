/* tiny_http.c - an HTTP server of the simplest kind for tests. */
#include "tests/lib/tiny_http.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#define WAIT_LIMIT_S 20
#define RECEIVE_SIZE 65536u

bool tiny_send(struct tiny_conn *c, struct span bytes)
{
    while (bytes.len > 0) {
        ssize_t n = send(c->fd, bytes.data, bytes.len, MSG_NOSIGNAL);

        if (n <= 0)
            return false;
        bytes = span_of(bytes.data + n, bytes.len - (size_t)n);
    }
    return true;
}

bool tiny_send_text(struct tiny_conn *c, const char *text)
{
    return tiny_send(c, span_str(text));
}

bool tiny_send_answer(struct tiny_conn *c, const char *status, struct span body)
{
    char head[256];

    snprintf(head, sizeof(head), "HTTP/1.1 %s\r\nContent-Length: %zu\r\n\r\n", status, body.len);
    return tiny_send_text(c, head) && tiny_send(c, body);
}

static bool receive_more(struct tiny_conn *c)
{
    uint8_t *room = buf_reserve(&c->in, RECEIVE_SIZE);
    ssize_t n = room == NULL ? -1 : recv(c->fd, room, RECEIVE_SIZE, 0);

    if (n <= 0)
        return false;
    c->in.len += (size_t)n;
    return true;
}

void tiny_await_close(struct tiny_conn *c)
{
    while (receive_more(c))
        buf_clear(&c->in);
}

/* Of "GET TARGET HTTP/1.1" the target takes the place of all. */
static bool take_target(struct tiny_conn *c)
{
    uint8_t *end = memmem(c->in.data, c->in.len, " HTTP/1.1\r\n", 11);

    if (end == NULL)
        return false;
    c->in.len = (size_t)(end - c->in.data) - 4;
    memmove(c->in.data, c->in.data + 4, c->in.len);
    c->n_requests++;
    return true;
}

/* Reads one request, as a client has to send it; its body takes the place of what was in c->in. */
static bool receive_request(struct tiny_conn *c)
{
    static const char line[] = "POST /replica HTTP/1.1\r\n", length_name[] = "\r\nContent-Length: ";
    const char *length;
    uint8_t *end;
    size_t head, body;

    buf_clear(&c->in);
    do {
        if (!receive_more(c))
            return false;
        end = memmem(c->in.data, c->in.len, "\r\n\r\n", 4);
    } while (end == NULL);
    head = (size_t)(end - c->in.data) + 4;
    if (memcmp(c->in.data, "GET ", 4) == 0)
        return take_target(c);
    length = memmem(c->in.data, head, length_name, sizeof(length_name) - 1);
    if (length == NULL || head < sizeof(line) || memcmp(c->in.data, line, sizeof(line) - 1) != 0 ||
        memmem(c->in.data, head, "Expect:", 7) != NULL)
        return false;
    body = strtoul(length + sizeof(length_name) - 1, NULL, 10);
    while (c->in.len < head + body)
        if (!receive_more(c))
            return false;
    memmove(c->in.data, c->in.data + head, body);
    c->in.len = body;
    c->n_requests++;
    return true;
}

static void *serve_connection(void *arg)
{
    struct tiny_conn *c = arg;
    struct tiny_http *srv = c->srv;

    while (receive_request(c) && srv->answer(srv->arg, c))
        ;
    pthread_mutex_lock(&srv->lock);
    srv->fds[c->i] = -1;
    close(c->fd);
    pthread_mutex_unlock(&srv->lock);
    sem_post(&srv->closed);
    buf_fini(&c->in);
    free(c);
    return NULL;
}

static void *serve(void *arg)
{
    struct tiny_http *srv = arg;
    int fd, on = 1;

    while ((fd = accept4(srv->fd, NULL, NULL, SOCK_CLOEXEC)) >= 0) {
        struct tiny_conn *c = calloc(1, sizeof(*c));

        pthread_mutex_lock(&srv->lock);
        if (c == NULL || srv->n_connections == TINY_CONNECTIONS_MAX ||
            setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)) < 0)
            abort();
        *c = (struct tiny_conn){.srv = srv, .i = srv->n_connections, .fd = fd};
        srv->fds[c->i] = fd;
        if (pthread_create(&srv->threads[c->i], NULL, serve_connection, c) != 0)
            abort();
        srv->n_connections++;
        pthread_mutex_unlock(&srv->lock);
    }
    return NULL;
}

static int bind_loopback(uint16_t *port)
{
    struct sockaddr_in addr = {
        .sin_family = AF_INET,
        .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
        .sin_port = htons(*port),
    };
    socklen_t len = sizeof(addr);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;

    assert_true(fd >= 0);
    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)), 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&addr, sizeof(addr)), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&addr, &len), 0);
    *port = ntohs(addr.sin_port);
    return fd;
}

void tiny_http_start(struct tiny_http *srv, uint16_t port, tiny_answer_fn *answer, void *arg)
{
    srv->answer = answer;
    srv->arg = arg;
    srv->n_connections = 0;
    assert_int_equal(pthread_mutex_init(&srv->lock, NULL), 0);
    assert_int_equal(sem_init(&srv->closed, 0, 0), 0);
    srv->fd = bind_loopback(&port);
    srv->port = port;
    assert_int_equal(listen(srv->fd, 128), 0);
    assert_int_equal(pthread_create(&srv->thread, NULL, serve, srv), 0);
}

void tiny_http_stop(struct tiny_http *srv)
{
    shutdown(srv->fd, SHUT_RDWR); /* ends accept() */
    pthread_join(srv->thread, NULL);
    close(srv->fd);
    pthread_mutex_lock(&srv->lock);
    for (unsigned i = 0; i < srv->n_connections; i++)
        if (srv->fds[i] >= 0)
            shutdown(srv->fds[i], SHUT_RDWR);
    pthread_mutex_unlock(&srv->lock);
    for (unsigned i = 0; i < srv->n_connections; i++)
        pthread_join(srv->threads[i], NULL);
    sem_destroy(&srv->closed);
    pthread_mutex_destroy(&srv->lock);
}

unsigned tiny_http_connections(struct tiny_http *srv)
{
    unsigned n;

    pthread_mutex_lock(&srv->lock);
    n = srv->n_connections;
    pthread_mutex_unlock(&srv->lock);
    return n;
}

uint16_t tiny_refusing_port(void)
{
    uint16_t port = 0;

    tiny_refusing_ports(&port, 1);
    return port;
}

/* A port that was let go may be given again at once: so all are held before any is let go. */
void tiny_refusing_ports(uint16_t *ports, unsigned n)
{
    int fds[16];

    assert_true(n <= sizeof(fds) / sizeof(fds[0]));
    for (unsigned i = 0; i < n; i++) {
        ports[i] = 0;
        fds[i] = bind_loopback(&ports[i]);
    }
    for (unsigned i = 0; i < n; i++)
        close(fds[i]);
}

void tiny_wait(sem_t *sem)
{
    struct timespec limit;

    clock_gettime(CLOCK_REALTIME, &limit);
    limit.tv_sec += WAIT_LIMIT_S;
    while (sem_timedwait(sem, &limit) < 0)
        assert_int_equal(errno, EINTR);
}

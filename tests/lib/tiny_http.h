/*
 * tiny_http.h - an HTTP server of the simplest kind for tests of what sends replica requests: one
 * thread per connection, and an answer function that may also misbehave.
 */
#ifndef KVFS_TESTS_LIB_TINY_HTTP_H
#define KVFS_TESTS_LIB_TINY_HTTP_H

#include <pthread.h>
#include <semaphore.h>

#include "common/buf.h"

#define TINY_CONNECTIONS_MAX 512

struct tiny_http;

struct tiny_conn {
    struct tiny_http *srv;
    unsigned i;
    int fd;
    unsigned n_requests; /* with the one to be answered */
    struct buf in;       /* its body, or the target of a GET */
};

/* Answers one request, on the connection's thread. false: close the connection. */
typedef bool tiny_answer_fn(void *arg, struct tiny_conn *c);

struct tiny_http {
    tiny_answer_fn *answer;
    void *arg;
    int fd;
    uint16_t port;
    pthread_t thread;
    sem_t closed; /* one for every connection that ended */
    pthread_mutex_t lock;
    unsigned n_connections; /* so far; under lock, as are: */
    pthread_t threads[TINY_CONNECTIONS_MAX];
    int fds[TINY_CONNECTIONS_MAX]; /* -1: closed */
};

/* Listens on 127.0.0.1, at any free port when port is 0. */
void tiny_http_start(struct tiny_http *srv, uint16_t port, tiny_answer_fn *answer, void *arg);
/* Closes all connections and joins the threads. */
void tiny_http_stop(struct tiny_http *srv);
unsigned tiny_http_connections(struct tiny_http *srv);

bool tiny_send(struct tiny_conn *c, struct span bytes);
bool tiny_send_text(struct tiny_conn *c, const char *text);
/* A whole answer; status: "200 OK", and more header lines after it if need be. */
bool tiny_send_answer(struct tiny_conn *c, const char *status, struct span body);
/* Until the client closes. */
void tiny_await_close(struct tiny_conn *c);

/* A port where nobody listens: one that was free a moment ago. */
uint16_t tiny_refusing_port(void);
/* Several of them, no two the same. */
void tiny_refusing_ports(uint16_t *ports, unsigned n);

/* Waits for sem, at most 20 s, and fails the test then. */
void tiny_wait(sem_t *sem);

#endif

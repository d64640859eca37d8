/* listener.c - accepts connections, and reads refused ones to their end. */
#include "node/listener.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/list.h"
#include "common/log.h"

#define BACKLOG 1024
#define BACKOFF_MS 100 /* out of descriptors: how long new connections stay in the kernel's queue */

/* A socket in the epoll set: one that listens, or one that lingers. */
struct source {
    struct list link;
    int fd;
    bool listens;
    bool fresh; /* lingers, but is not in the epoll set yet */
    uint64_t due_us, end_us, n_read;
};

struct listener {
    char name[320];
    int epoll, event;
    bool started;
    pthread_t thread;
    listener_accept_fn *accepted;
    void *arg;
    bool armed, complained; /* the thread's; armed: listening sockets are in the epoll set */
    pthread_mutex_t lock;
    struct list sources;       /* lock; those that linger stand in the order in which they came */
    unsigned n_lingering;      /* lock */
    bool stop_accepting, stop; /* lock */
    bool deaf;                 /* lock: the thread has closed the listening sockets */
    pthread_cond_t on_deaf;
};

static void wake(struct listener *l)
{
    uint64_t one = 1;

    (void)!write(l->event, &one, sizeof(one));
}

static void source_free(struct listener *l, struct source *s)
{
    list_remove(&s->link);
    l->n_lingering -= !s->listens;
    /* Closing is not enough: the server's own descriptor may keep a lingering socket open. */
    (void)epoll_ctl(l->epoll, EPOLL_CTL_DEL, s->fd, NULL);
    close(s->fd);
    free(s);
}

static int source_add(struct listener *l, int fd, bool listens)
{
    struct source *s = calloc(1, sizeof(*s));
    uint64_t now = clock_real()->mono_us(clock_real());

    if (s == NULL)
        return -ENOMEM;
    s->fd = fd;
    s->listens = listens;
    s->fresh = !listens;
    s->due_us = now + LISTENER_LINGER_US;
    s->end_us = now + LISTENER_LINGER_END_US;
    pthread_mutex_lock(&l->lock);
    list_insert(&l->sources, &s->link);
    l->n_lingering += !listens;
    pthread_mutex_unlock(&l->lock);
    return 0;
}

/* --- binding ---------------------------------------------------------------------------------- */

static int bind_one(struct listener *l, const struct addrinfo *ai)
{
    int fd = socket(ai->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    int one = 1, err;

    if (fd < 0)
        return -errno;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
    if (ai->ai_family == AF_INET6)
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &one, sizeof(one));
    if (bind(fd, ai->ai_addr, ai->ai_addrlen) != 0)
        err = -errno;
    else
        err = source_add(l, fd, true);
    if (err != 0)
        close(fd);
    return err;
}

/* Resolvers may name an address twice (two lines of /etc/hosts). */
static bool seen_before(const struct addrinfo *all, const struct addrinfo *ai)
{
    for (const struct addrinfo *i = all; i != ai; i = i->ai_next)
        if (i->ai_addrlen == ai->ai_addrlen && memcmp(i->ai_addr, ai->ai_addr, ai->ai_addrlen) == 0)
            return true;
    return false;
}

/* Families that this machine does not have are skipped; any other failure is one. */
static int bind_all(struct listener *l, const char *host, uint16_t port, struct err *err)
{
    struct addrinfo hints = {.ai_flags = AI_PASSIVE, .ai_socktype = SOCK_STREAM}, *all;
    char service[8];
    int r, skipped = 0;
    bool bound = false;

    snprintf(service, sizeof(service), "%u", port);
    r = getaddrinfo(host, service, &hints, &all);
    if (r != 0)
        return err_set(err, -EADDRNOTAVAIL, "cannot listen on %s: %s", l->name, gai_strerror(r));
    r = 0;
    for (struct addrinfo *ai = all; ai != NULL && r == 0; ai = ai->ai_next) {
        if (seen_before(all, ai))
            continue;
        r = bind_one(l, ai);
        if (r == -EADDRNOTAVAIL || r == -EAFNOSUPPORT) {
            skipped = r;
            r = 0;
        } else if (r == 0) {
            bound = true;
        }
    }
    freeaddrinfo(all);
    if (r == 0 && !bound)
        r = skipped;
    if (r != 0)
        return err_set(err, r, "cannot listen on %s: %s", l->name, strerror(-r));
    return 0;
}

int listener_bind(const char *host, uint16_t port, struct listener **out, struct err *err)
{
    struct listener *l = calloc(1, sizeof(*l));
    int r;

    if (l == NULL)
        return err_set(err, -ENOMEM, "no memory");
    snprintf(l->name, sizeof(l->name), "%.300s:%u", host, port);
    list_init(&l->sources);
    pthread_mutex_init(&l->lock, NULL);
    pthread_cond_init(&l->on_deaf, NULL);
    l->epoll = epoll_create1(EPOLL_CLOEXEC);
    l->event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (l->epoll < 0 || l->event < 0)
        r = err_set(err, -errno, "cannot listen: %s", strerror(errno));
    else
        r = bind_all(l, host, port, err);
    if (r != 0) {
        listener_free(l);
        return r;
    }
    *out = l;
    return 0;
}

/* --- the thread ------------------------------------------------------------------------------- */

static void watch(struct listener *l, struct source *s)
{
    struct epoll_event ev = {.events = EPOLLIN, .data.ptr = s};

    (void)epoll_ctl(l->epoll, EPOLL_CTL_ADD, s->fd, &ev);
}

/* Takes listening sockets in or out of the epoll set. */
static void arm(struct listener *l, bool on)
{
    pthread_mutex_lock(&l->lock);
    for (struct list *i = l->sources.next; i != &l->sources; i = i->next) {
        struct source *s = container_of(i, struct source, link);

        if (!s->listens)
            continue;
        if (on)
            watch(l, s);
        else
            (void)epoll_ctl(l->epoll, EPOLL_CTL_DEL, s->fd, NULL);
    }
    pthread_mutex_unlock(&l->lock);
    l->armed = on;
}

/*
 * Of an answer that its client does not fetch, the kernel takes no more than this: what it has
 * taken counts as sent, and its memory is nobody's.
 */
static void bound_unsent(int fd)
{
    int unsent_max = 1280 << 10; /* a chunk goes in one piece */

    (void)setsockopt(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &unsent_max, sizeof(unsent_max));
}

static void accept_some(struct listener *l, struct source *s)
{
    struct sockaddr_storage sa;

    /* Bounded, so that lingering sockets get their turn in a storm of new ones. */
    for (int i = 0; i < 64; i++) {
        socklen_t len = sizeof(sa);
        int fd = accept4(s->fd, (struct sockaddr *)&sa, &len, SOCK_NONBLOCK | SOCK_CLOEXEC), err;

        if (fd >= 0) {
            bound_unsent(fd);
            l->accepted(l->arg, fd, (struct sockaddr *)&sa, len);
            continue;
        }
        err = errno;
        if (err == EMFILE || err == ENFILE || err == ENOBUFS || err == ENOMEM) {
            if (!l->complained)
                log_event(LOG_LEVEL_WARN, "accept-failed", "error=%s",
                          log_quote(strerror(err), strlen(strerror(err))));
            l->complained = true;
            arm(l, false);
        }
        if (err != EINTR && err != ECONNABORTED)
            return;
    }
}

/* Drops what came; false when there is nothing more to wait for. */
static bool drain(struct source *s)
{
    char trash[64 << 10];
    ssize_t n = recv(s->fd, trash, sizeof(trash), MSG_DONTWAIT);

    if (n < 0)
        return errno == EAGAIN || errno == EINTR;
    s->n_read += (uint64_t)n;
    s->due_us = clock_real()->mono_us(clock_real()) + LISTENER_LINGER_US;
    if (s->due_us > s->end_us)
        s->due_us = s->end_us;
    return n > 0 && s->n_read <= LISTENER_LINGER_BYTES_MAX;
}

/*
 * Looks after all sources that are not ready: new, timed out, stopped. Returns how long epoll may
 * wait, or -2 to end.
 */
static int tend(struct listener *l)
{
    uint64_t now = clock_real()->mono_us(clock_real()), next = UINT64_MAX;
    bool stop, deaf;

    pthread_mutex_lock(&l->lock);
    for (struct list *i = l->sources.next, *after; i != &l->sources; i = after) {
        struct source *s = container_of(i, struct source, link);

        after = i->next;
        if (s->listens ? l->stop_accepting
                       : s->due_us <= now || l->n_lingering > LISTENER_LINGERING_MAX) {
            source_free(l, s);
            continue;
        }
        if (s->fresh) {
            s->fresh = false;
            watch(l, s);
        }
        if (!s->listens && s->due_us < next)
            next = s->due_us;
    }
    if (l->stop_accepting && !l->deaf) {
        l->deaf = true;
        pthread_cond_broadcast(&l->on_deaf);
    }
    stop = l->stop;
    deaf = l->deaf;
    pthread_mutex_unlock(&l->lock);
    if (stop)
        return -2;
    if (!l->armed && !deaf)
        return BACKOFF_MS;
    return next == UINT64_MAX ? -1 : (int)((next - now) / 1000 + 1);
}

static void *listener_thread(void *arg)
{
    struct listener *l = arg;
    int timeout;

    while ((timeout = tend(l)) != -2) {
        struct epoll_event ev[64];
        int n = epoll_wait(l->epoll, ev, 64, timeout);

        if (!l->armed)
            arm(l, true);
        for (int i = 0; i < n; i++) {
            struct source *s = ev[i].data.ptr;
            uint64_t count;

            if (s == NULL) {
                (void)!read(l->event, &count, sizeof(count));
            } else if (s->listens) {
                accept_some(l, s);
            } else if (!drain(s)) {
                pthread_mutex_lock(&l->lock);
                source_free(l, s);
                pthread_mutex_unlock(&l->lock);
            }
        }
    }
    return NULL;
}

int listener_listen(struct listener *l, struct err *err)
{
    for (struct list *i = l->sources.next; i != &l->sources; i = i->next)
        if (listen(container_of(i, struct source, link)->fd, BACKLOG) != 0)
            return err_set(err, -errno, "cannot listen on %s: %s", l->name, strerror(errno));
    return 0;
}

int listener_start(struct listener *l, listener_accept_fn *accepted, void *arg, struct err *err)
{
    struct epoll_event ev = {.events = EPOLLIN, .data.ptr = NULL};
    int r;

    l->accepted = accepted;
    l->arg = arg;
    if (epoll_ctl(l->epoll, EPOLL_CTL_ADD, l->event, &ev) != 0)
        return err_set(err, -errno, "cannot listen: %s", strerror(errno));
    arm(l, true);
    r = pthread_create(&l->thread, NULL, listener_thread, l);
    if (r != 0)
        return err_set(err, -r, "cannot start a thread: %s", strerror(r));
    pthread_setname_np(l->thread, "kv-accept");
    l->started = true;
    return 0;
}

void listener_stop_accepting(struct listener *l)
{
    pthread_mutex_lock(&l->lock);
    l->stop_accepting = true;
    wake(l);
    while (l->started && !l->deaf)
        pthread_cond_wait(&l->on_deaf, &l->lock);
    pthread_mutex_unlock(&l->lock);
}

void listener_linger(struct listener *l, int fd)
{
    if (source_add(l, fd, false) != 0)
        close(fd);
    else
        wake(l);
}

void listener_dismiss(struct listener *l, int fd, struct span last)
{
    (void)send(fd, last.data, last.len, MSG_DONTWAIT | MSG_NOSIGNAL);
    shutdown(fd, SHUT_WR);
    listener_linger(l, fd);
}

void listener_free(struct listener *l)
{
    if (l == NULL)
        return;
    if (l->started) {
        pthread_mutex_lock(&l->lock);
        l->stop = true;
        pthread_mutex_unlock(&l->lock);
        wake(l);
        pthread_join(l->thread, NULL);
    }
    while (!list_empty(&l->sources))
        source_free(l, container_of(l->sources.next, struct source, link));
    if (l->epoll >= 0)
        close(l->epoll);
    if (l->event >= 0)
        close(l->event);
    pthread_cond_destroy(&l->on_deaf);
    pthread_mutex_destroy(&l->lock);
    free(l);
}

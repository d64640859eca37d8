/*
 * curl_loop.c - libcurl on a loop. A connection's socket stays in the epoll set between requests,
 * see sockets.h.
 */
#include "common/curl_loop.h"

#include <errno.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#define CONNECT_TIMEOUT_MS 1000L
#define DNS_CACHE_S 60L /* only new connections look names up */

/* --- what curl calls back for ----------------------------------------------------------------- */

static int on_socket(CURL *easy, curl_socket_t fd, int what, void *arg, void *per_socket)
{
    struct curl_loop *c = arg;

    (void)easy;
    (void)per_socket;
    sockets_want(&c->sockets, fd,
                 (what & CURL_POLL_IN ? EPOLLIN : 0) | (what & CURL_POLL_OUT ? EPOLLOUT : 0));
    return 0;
}

static curl_socket_t on_open(void *arg, curlsocktype purpose, struct curl_sockaddr *addr)
{
    struct transfer *t = arg;
    int fd = socket(addr->family, addr->socktype | SOCK_CLOEXEC, addr->protocol);

    (void)purpose;
    if (fd < 0) {
        t->open_err = -errno;
        return CURL_SOCKET_BAD;
    }
    t->open_err = sockets_opened(&t->curl->sockets, fd);
    if (t->open_err < 0) {
        close(fd);
        return CURL_SOCKET_BAD;
    }
    return fd;
}

static int on_close(void *arg, curl_socket_t fd)
{
    struct curl_loop *c = arg;

    sockets_closed(&c->sockets, fd);
    return close(fd);
}

/* --- what curl waits for ---------------------------------------------------------------------- */

static void end_finished(struct curl_loop *c)
{
    CURLMsg *msg;
    int left;

    while ((msg = curl_multi_info_read(c->multi, &left)) != NULL) {
        void *transfer = NULL;

        curl_easy_getinfo(msg->easy_handle, CURLINFO_PRIVATE, &transfer);
        ((struct transfer *)transfer)->ended(transfer, msg->data.result);
    }
}

/*
 * Curl begins requests by a timer that is due at once; 0 puts that before all other timers, still
 * in this turn of the loop.
 */
static int on_timeout_set(CURLM *multi, long timeout_ms, void *arg)
{
    struct curl_loop *c = arg;

    (void)multi;
    if (timeout_ms < 0)
        loop_timer_clear(&c->loop, &c->timer);
    else if (timeout_ms == 0)
        loop_timer_set(&c->loop, &c->timer, 0);
    else
        loop_timer_set(&c->loop, &c->timer,
                       c->loop.clock->mono_us(c->loop.clock) + (uint64_t)timeout_ms * 1000);
    return 0;
}

static void curl_acts(struct curl_loop *c, curl_socket_t fd, int events)
{
    int running;

    (void)curl_multi_socket_action(c->multi, fd, events,
                                   &running); /* whatever hangs now ends by its deadline */
    end_finished(c);
}

static void on_curl_timer(struct timer *t)
{
    curl_acts(container_of(t, struct curl_loop, timer), CURL_SOCKET_TIMEOUT, 0);
}

static void on_event(void *arg, int fd, uint32_t events)
{
    struct curl_loop *c = arg;
    int ready = 0;

    if (!sockets_expected(&c->sockets, fd))
        return;
    /* An error wakes both sides; curl finds it by its own read or write, and names it. */
    if (events & (EPOLLIN | EPOLLHUP | EPOLLERR))
        ready |= CURL_CSELECT_IN;
    if (events & (EPOLLOUT | EPOLLHUP | EPOLLERR))
        ready |= CURL_CSELECT_OUT;
    curl_acts(c, fd, ready);
}

/* --- transfers -------------------------------------------------------------------------------- */

CURLcode curl_loop_prepare(struct curl_loop *c, CURL *easy, struct transfer *t, const char *url)
{
    CURLcode code = CURLE_OK;

    t->curl = c;
    code |= curl_easy_setopt(easy, CURLOPT_PRIVATE, t);
    code |= curl_easy_setopt(easy, CURLOPT_OPENSOCKETFUNCTION, on_open);
    code |= curl_easy_setopt(easy, CURLOPT_OPENSOCKETDATA, t);
    code |= curl_easy_setopt(easy, CURLOPT_CLOSESOCKETFUNCTION, on_close);
    code |= curl_easy_setopt(easy, CURLOPT_CLOSESOCKETDATA, c);
    code |= curl_easy_setopt(easy, CURLOPT_URL, url);
    code |= curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http");
    code |= curl_easy_setopt(easy, CURLOPT_HTTP_VERSION, CURL_HTTP_VERSION_1_1);
    code |= curl_easy_setopt(easy, CURLOPT_NOPROXY, "*"); /* those of the environment: not for us */
    code |= curl_easy_setopt(easy, CURLOPT_PATH_AS_IS, 1L);
    code |= curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
    code |= curl_easy_setopt(easy, CURLOPT_TCP_NODELAY, 1L);
    code |= curl_easy_setopt(easy, CURLOPT_CONNECTTIMEOUT_MS, CONNECT_TIMEOUT_MS);
    code |= curl_easy_setopt(easy, CURLOPT_DNS_CACHE_TIMEOUT, DNS_CACHE_S);
    /* a name that does not resolve must not hold up the loop at its deadline */
    code |= curl_easy_setopt(easy, CURLOPT_QUICK_EXIT, 1L);
    return code;
}

/* Of its several addresses: there was none to try, none for want of a socket, or the last one. */
static int connect_error(CURL *easy, const struct transfer *t)
{
    long os = 0;
    int err;

    if (t->open_err != 0 && t->open_err != -EAFNOSUPPORT)
        return t->open_err;
    curl_easy_getinfo(easy, CURLINFO_OS_ERRNO, &os);
    err = os > 0 ? -(int)os : -ECONNREFUSED;
    return transport_err_of_node(err) ? err : -EHOSTUNREACH; /* forbidden, no such protocol, ... */
}

int curl_loop_error(CURL *easy, const struct transfer *t, CURLcode code, int own)
{
    switch (code) {
    case CURLE_OK:
        return 0;
    case CURLE_WRITE_ERROR:
        return own != 0 ? own : -EIO;
    case CURLE_OPERATION_TIMEDOUT:
        return -ETIMEDOUT;
    case CURLE_COULDNT_RESOLVE_HOST:
        return -EHOSTUNREACH;
    case CURLE_COULDNT_CONNECT:
        return connect_error(easy, t);
    case CURLE_SEND_ERROR:
    case CURLE_RECV_ERROR:
    case CURLE_GOT_NOTHING:
    case CURLE_PARTIAL_FILE:
    case CURLE_SEND_FAIL_REWIND:
        return -ECONNRESET;
    case CURLE_OUT_OF_MEMORY:
        return -ENOMEM;
    default: /* what came is no HTTP */
        return -EPROTO;
    }
}

/* --- from birth to death ---------------------------------------------------------------------- */

static int multi_init(struct curl_loop *c, unsigned connections_kept)
{
    CURLMcode code = CURLM_OK;

    c->multi = curl_multi_init();
    if (c->multi == NULL)
        return -ENOMEM;
    code |= curl_multi_setopt(c->multi, CURLMOPT_SOCKETFUNCTION, on_socket);
    code |= curl_multi_setopt(c->multi, CURLMOPT_SOCKETDATA, c);
    code |= curl_multi_setopt(c->multi, CURLMOPT_TIMERFUNCTION, on_timeout_set);
    code |= curl_multi_setopt(c->multi, CURLMOPT_TIMERDATA, c);
    code |= curl_multi_setopt(c->multi, CURLMOPT_MAXCONNECTS, (long)connections_kept);
    return code == CURLM_OK ? 0 : -ENOMEM;
}

int curl_loop_init(struct curl_loop *c, struct clock *clock, unsigned connections_kept)
{
    int err;

    *c = (struct curl_loop){.timer.fire = on_curl_timer};
    c->sockets.loop = &c->loop;
    err = loop_init(&c->loop, clock, on_event, c);
    if (err < 0)
        return err;
    err = multi_init(c, connections_kept);
    if (err < 0)
        curl_loop_fini(c);
    return err;
}

void curl_loop_fini(struct curl_loop *c)
{
    if (c->multi != NULL)
        curl_multi_cleanup(c->multi); /* closes the connections, by on_close() */
    loop_fini(&c->loop);
    sockets_fini(&c->sockets);
}

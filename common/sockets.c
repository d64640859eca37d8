/* sockets.c - which events of which connections a loop watches. */
#include "common/sockets.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

#define SOCKETS_FIRST 64u

void sockets_fini(struct sockets *s)
{
    free(s->states);
    *s = (struct sockets){.loop = s->loop};
}

int sockets_opened(struct sockets *s, int fd)
{
    size_t n = s->n == 0 ? SOCKETS_FIRST : s->n;
    struct socket_state *states;

    while (n <= (size_t)fd)
        n *= 2;
    if (n > s->n) {
        states = realloc(s->states, n * sizeof(*states));
        if (states == NULL)
            return -ENOMEM;
        memset(states + s->n, 0, (n - s->n) * sizeof(*states));
        s->states = states;
        s->n = n;
    }
    s->states[fd] = (struct socket_state){.announced = true};
    return 0;
}

void sockets_closed(struct sockets *s, int fd)
{
    s->states[fd] = (struct socket_state){0};
}

/* NULL: not announced. */
static struct socket_state *find(struct sockets *s, int fd)
{
    return (size_t)fd < s->n && s->states[fd].announced ? &s->states[fd] : NULL;
}

void sockets_want(struct sockets *s, int fd, uint32_t events)
{
    struct socket_state *state = find(s, fd);

    if (state == NULL) {
        loop_watch(s->loop, fd, 0, events);
        return;
    }
    state->wanted = events;
    if (events == state->watched || (events == 0 && state->watched == EPOLLIN))
        return;
    loop_watch(s->loop, fd, state->watched, events);
    state->watched = events;
}

bool sockets_expected(struct sockets *s, int fd)
{
    struct socket_state *state = find(s, fd);

    if (state == NULL || state->wanted != 0)
        return true;
    loop_watch(s->loop, fd, state->watched, 0);
    state->watched = 0;
    return false;
}

/* health.c - who is reachable. */
#include "common/health.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

#define LATENCY_SHARE 8u /* a new sample weighs 1/8 */
#define HEDGE_FACTOR 4u
#define SLOW_FACTOR 8u

struct health {
    unsigned n_nodes;
    pthread_mutex_t *lock;      /* apart, so that a const health can be read */
    struct health_info *nodes;  /* under lock, as is: */
    struct health_about *about; /* apart: the former is copied for every message */
    health_changed_fn *changed; /* set before other threads have it */
    void *changed_arg;
};

int health_new(unsigned n_nodes, struct health **out)
{
    struct health *h = calloc(1, sizeof(*h));
    int err = -ENOMEM;

    if (h == NULL)
        goto out;
    h->n_nodes = n_nodes;
    h->nodes = calloc(n_nodes, sizeof(*h->nodes));
    h->about = calloc(n_nodes, sizeof(*h->about));
    h->lock = malloc(sizeof(*h->lock));
    if (h->nodes == NULL || h->about == NULL || h->lock == NULL)
        goto out;
    if (pthread_mutex_init(h->lock, NULL) != 0) {
        free(h->lock);
        h->lock = NULL;
        goto out;
    }
    for (unsigned i = 0; i < n_nodes; i++)
        h->nodes[i].up = true;
    *out = h;
    h = NULL;
    err = 0;
out:
    health_free(h);
    return err;
}

void health_free(struct health *h)
{
    if (h == NULL)
        return;
    if (h->lock != NULL)
        pthread_mutex_destroy(h->lock);
    free(h->lock);
    free(h->nodes);
    free(h->about);
    free(h);
}

void health_watch(struct health *h, health_changed_fn *changed, void *arg)
{
    h->changed = changed;
    h->changed_arg = arg;
}

/* Returns whether that is a change, which the caller announces after unlocking. */
static bool set_locked(struct health_info *n, bool up, bool ailing, uint64_t now_us)
{
    bool was = health_alive(n);

    n->up = up;
    n->ailing = ailing;
    if (health_alive(n) == was)
        return false;
    n->since_us = now_us;
    return true;
}

static void announce(struct health *h, unsigned node)
{
    if (h->changed != NULL)
        h->changed(h->changed_arg, node);
}

void health_answered(struct health *h, unsigned node, uint64_t now_us, uint64_t latency_us,
                     bool large, uint64_t node_clock_ms, uint64_t incarnation)
{
    struct health_info *n = &h->nodes[node];
    bool changed;

    pthread_mutex_lock(h->lock);
    changed = set_locked(n, true, n->ailing, now_us);
    if (n->since_us == 0)
        n->since_us = now_us;
    n->seen_us = now_us;
    n->last_err = 0;
    n->node_clock_ms = node_clock_ms;
    n->node_clock_at_us = now_us;
    n->incarnation = incarnation;
    if (!large && n->latency_us == 0)
        n->latency_us = latency_us == 0 ? 1 : latency_us; /* 0 stands for not measured */
    else if (!large)
        n->latency_us =
            (n->latency_us * (LATENCY_SHARE - 1) + latency_us + LATENCY_SHARE - 1) / LATENCY_SHARE;
    pthread_mutex_unlock(h->lock);
    if (changed)
        announce(h, node);
}

static uint64_t slow_after_us(const struct health_info *n)
{
    uint64_t wait = n->latency_us * SLOW_FACTOR;

    return wait < HEALTH_SLOW_MIN_US ? HEALTH_SLOW_MIN_US : wait;
}

static void went_down(struct health *h, unsigned node, uint64_t now_us, int err)
{
    struct health_info *n = &h->nodes[node];
    bool changed = false;

    pthread_mutex_lock(h->lock);
    /* One call that hangs in a node that answers others shows no dead node. */
    if (err == -ETIMEDOUT && n->seen_us != 0 && now_us < n->seen_us + slow_after_us(n))
        goto out;
    changed = set_locked(n, false, n->ailing, now_us);
    n->last_err = err;
    /* Its process is gone: the next may count time differently, and drop all messages as late. */
    if (err == -ECONNREFUSED || err == -ECONNRESET)
        n->node_clock_ms = 0;
out:
    pthread_mutex_unlock(h->lock);
    if (changed)
        announce(h, node);
}

void health_failed(struct health *h, unsigned node, uint64_t now_us, int err)
{
    went_down(h, node, now_us, err);
}

void health_slow(struct health *h, unsigned node, uint64_t now_us)
{
    went_down(h, node, now_us, -ETIMEDOUT);
}

void health_hello(struct health *h, unsigned node, uint64_t disk_free, uint64_t disk_total,
                  uint64_t n_keys, bool recovering)
{
    struct health_info *n = &h->nodes[node];

    pthread_mutex_lock(h->lock);
    n->disk_free = disk_free;
    n->disk_total = disk_total;
    n->n_keys = n_keys;
    n->recovering = recovering;
    n->doubtful = false;
    pthread_mutex_unlock(h->lock);
}

/* Text that came from elsewhere goes into logs, terminals and JSON. */
static void keep_text(char *out, size_t cap, struct span text)
{
    size_t n = text.len < cap ? text.len : cap - 1;

    for (size_t i = 0; i < n; i++)
        out[i] = text.data[i] < ' ' || text.data[i] >= 0x7f ? '?' : (char)text.data[i];
    out[n] = '\0';
}

void health_store(struct health *h, unsigned node, uint64_t now_us, uint64_t n_bytes,
                  struct span kind, struct span ailment)
{
    struct health_info *n = &h->nodes[node];
    struct health_about *about = &h->about[node];
    bool changed;

    pthread_mutex_lock(h->lock);
    n->n_bytes = n_bytes;
    keep_text(about->store, sizeof(about->store), kind);
    keep_text(about->ailment, sizeof(about->ailment), ailment);
    changed = set_locked(n, n->up, ailment.len > 0, now_us);
    pthread_mutex_unlock(h->lock);
    if (changed)
        announce(h, node);
}

void health_refused(struct health *h, unsigned node)
{
    pthread_mutex_lock(h->lock);
    h->nodes[node].doubtful = true;
    pthread_mutex_unlock(h->lock);
}

void health_follow(struct health *h, unsigned node, uint64_t since_us)
{
    pthread_mutex_lock(h->lock);
    h->nodes[node].followed_us = since_us;
    pthread_mutex_unlock(h->lock);
}

struct health_info health_get(const struct health *h, unsigned node)
{
    struct health_info info;

    pthread_mutex_lock(h->lock);
    info = h->nodes[node];
    pthread_mutex_unlock(h->lock);
    return info;
}

struct health_about health_get_about(const struct health *h, unsigned node)
{
    struct health_about about;

    pthread_mutex_lock(h->lock);
    about = h->about[node];
    pthread_mutex_unlock(h->lock);
    return about;
}

bool health_up(const struct health *h, unsigned node)
{
    bool up;

    pthread_mutex_lock(h->lock);
    up = h->nodes[node].up;
    pthread_mutex_unlock(h->lock);
    return up;
}

bool health_fit(const struct health *h, unsigned node)
{
    bool fit;

    pthread_mutex_lock(h->lock);
    fit = health_alive(&h->nodes[node]) && !h->nodes[node].recovering;
    pthread_mutex_unlock(h->lock);
    return fit;
}

uint64_t health_hedge_us(const struct health *h, unsigned node)
{
    uint64_t usual = health_get(h, node).latency_us, wait = usual * HEDGE_FACTOR;

    if (usual == 0 || wait > HEALTH_HEDGE_MAX_US) /* never measured: has to connect first */
        return HEALTH_HEDGE_MAX_US;
    return wait < HEALTH_HEDGE_MIN_US ? HEALTH_HEDGE_MIN_US : wait;
}

uint64_t health_slow_us(const struct health *h, unsigned node)
{
    struct health_info info = health_get(h, node);

    return slow_after_us(&info);
}

uint64_t health_node_deadline_ms(const struct health *h, unsigned node, uint64_t now_us,
                                 uint64_t budget_ms)
{
    struct health_info info = health_get(h, node);
    uint64_t passed_us;

    if (info.node_clock_ms == 0)
        return 0;
    /* Another thread may have heard of it after our caller looked at the clock. */
    passed_us = now_us > info.node_clock_at_us ? now_us - info.node_clock_at_us : 0;
    return info.node_clock_ms + passed_us / 1000 + budget_ms;
}

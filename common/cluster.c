/*
 * cluster.c - a running client of the cluster: its threads from start to end, and who answers. io.h
 * tells how the parts work together.
 */
#include "common/cluster.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "common/io.h"
#include "common/json.h"
#include "common/log.h"
#include "common/transport_http.h"

#define THREADS_DEFAULT_MAX 4u

/* --- who answers ------------------------------------------------------------------------------ */

static const struct config_node *node_of(const struct cluster *c, unsigned node)
{
    return &c->opts.cfg->nodes[node];
}

static const char *node_name(void *arg, unsigned node)
{
    return node_of(arg, node)->id;
}

static void log_change_locked(struct cluster *c, unsigned node, const struct health_info *info)
{
    struct health_about about = health_get_about(c->health, node);
    uint64_t now_us = clock_real()->mono_us(clock_real());
    const char *why = info->up ? about.ailment : strerror(-info->last_err);

    c->logged_up[node] = health_alive(info);
    if (c->logged_up[node])
        log_event(LOG_LEVEL_INFO, "node-up", "node=%s addr=%s after_ms=%llu", node_of(c, node)->id,
                  node_of(c, node)->addr,
                  (unsigned long long)(now_us - c->went_down_us[node]) / 1000);
    else
        log_event(LOG_LEVEL_WARN, "node-down", "node=%s addr=%s reason=%s%s", node_of(c, node)->id,
                  node_of(c, node)->addr, log_quote(why, strlen(why)),
                  info->up ? " effect=\"its store does not work: it is asked last\"" : "");
    if (!c->logged_up[node])
        c->went_down_us[node] = info->since_us;
}

/* One line per change, and none that is out of date by the time it is written. */
static void on_health_changed(void *arg, unsigned node)
{
    struct cluster *c = arg;
    struct health_info info;

    pthread_mutex_lock(&c->log_lock);
    info = health_get(c->health, node);
    if (health_alive(&info) != c->logged_up[node])
        log_change_locked(c, node, &info);
    pthread_mutex_unlock(&c->log_lock);
}

/* What came from elsewhere goes into logs, terminals and JSON. */
static void make_printable(struct err *why)
{
    bool utf8 = json_is_utf8(span_str(why->msg));

    for (char *p = why->msg; *p != '\0'; p++)
        if ((unsigned char)*p < ' ' || *p == 0x7f || (!utf8 && (unsigned char)*p >= 0x80))
            *p = '?';
}

/* Why a node that was probed is none to count on; empty: it is one. */
static void explain_probe(const struct cluster *c, const struct hello_result *res, struct err *why)
{
    const struct answer *a = &res->answer;

    why->msg[0] = '\0';
    if (res->err == -EBADE)
        config_ring_compare(c->opts.cfg, a->text, why);
    else if (res->err < 0 && a->kind == ANS_ERROR && a->text.len > 0)
        err_set(why, 0, "%.*s", (int)a->text.len, (const char *)a->text.data);
    else if (res->err < 0)
        err_set(why, 0, "%s", strerror(-res->err));
    else if (a->recovering == NODE_RECOVERING)
        err_set(why, 0, "recovering");
    else if (a->ailment.len > 0)
        err_set(why, 0, "its store does not work: %.*s", (int)a->ailment.len,
                (const char *)a->ailment.data);
    make_printable(why);
}

static void on_probed(void *arg, unsigned node, const struct hello_result *res)
{
    struct cluster *c = arg;
    struct sign *sign = &c->signs[node];
    bool akin = res->err != -EBADE, was_akin, is_news;
    struct err why;

    explain_probe(c, res, &why);
    if (c->opts.on_hello != NULL)
        c->opts.on_hello(c->opts.arg, node, res);

    pthread_mutex_lock(&c->ready_lock);
    was_akin = c->akin[node];
    if (res->err != 0 && akin)
        akin = was_akin; /* it did not say */
    is_news = !akin && (was_akin || (res->err == -EBADE && strcmp(why.msg, sign->why.msg) != 0));
    c->akin[node] = akin;
    sign->why = why;
    c->answers[node] = why.msg[0] == '\0';
    pthread_cond_broadcast(&c->ready_changed);
    pthread_mutex_unlock(&c->ready_lock);
    if (is_news)
        log_event(LOG_LEVEL_ERROR, "ring-differs", "node=%s addr=%s reason=%s",
                  node_of(c, node)->id, node_of(c, node)->addr,
                  log_quote(why.msg, strlen(why.msg)));
    else if (akin && !was_akin)
        log_event(LOG_LEVEL_INFO, "ring-agrees", "node=%s addr=%s", node_of(c, node)->id,
                  node_of(c, node)->addr);
}

bool cluster_ring_differs(struct cluster *c, unsigned node, struct err *why)
{
    bool differs;

    pthread_mutex_lock(&c->ready_lock);
    differs = !c->akin[node];
    if (differs)
        *why = c->signs[node].why;
    pthread_mutex_unlock(&c->ready_lock);
    return differs;
}

/* Names the first that holds another ring; mostly all others say the same. */
static int explain_strange_locked(const struct cluster *c, struct err *err)
{
    unsigned first = c->opts.cfg->n_nodes, n = 0;

    for (unsigned i = 0; i < c->opts.cfg->n_nodes; i++) {
        if (c->akin[i])
            continue;
        if (n++ == 0)
            first = i;
    }
    err_set(err, -EBADE, "%s at %s: %s", node_of(c, first)->id, node_of(c, first)->addr,
            c->signs[first].why.msg);
    if (n > 1)
        err_set(err, -EBADE, "%s at %s and %u more: %s", node_of(c, first)->id,
                node_of(c, first)->addr, n - 1, c->signs[first].why.msg);
    return -EBADE;
}

static int explain_not_ready_locked(const struct cluster *c, struct err *err)
{
    struct buf text = {0};
    int code;

    for (unsigned i = 0; i < c->opts.cfg->n_nodes; i++) {
        if (c->answers[i])
            continue;
        buf_addf(&text, "%s%s at %s: %s", text.len == 0 ? "" : "; ", node_of(c, i)->id,
                 node_of(c, i)->addr,
                 c->signs[i].why.msg[0] != '\0' ? c->signs[i].why.msg : "no answer yet");
    }
    code = err_set(err, -EHOSTDOWN, "not enough nodes for a quorum: %.*s", (int)text.len,
                   text.len == 0 ? "" : (const char *)text.data);
    buf_fini(&text);
    return code;
}

int cluster_wait_ready(struct cluster *c, uint32_t timeout_ms, struct err *err)
{
    struct timespec limit;
    int code = 0;

    clock_gettime(CLOCK_MONOTONIC, &limit);
    limit.tv_sec += timeout_ms / 1000;
    limit.tv_nsec += (long)(timeout_ms % 1000) * 1000000;
    limit.tv_sec += limit.tv_nsec / 1000000000;
    limit.tv_nsec %= 1000000000;

    pthread_mutex_lock(&c->ready_lock);
    while (!c->closing && !ring_covered(c->opts.cfg->ring, c->answers) &&
           ring_covered(c->opts.cfg->ring, c->akin) && code == 0)
        code = -pthread_cond_timedwait(&c->ready_changed, &c->ready_lock, &limit);
    if (c->closing)
        code = err_set(err, -EHOSTDOWN, "the connection to the cluster is being closed");
    else if (ring_covered(c->opts.cfg->ring, c->answers))
        code = 0;
    else if (!ring_covered(c->opts.cfg->ring, c->akin))
        code = explain_strange_locked(c, err);
    else
        code = explain_not_ready_locked(c, err);
    pthread_mutex_unlock(&c->ready_lock);
    return code;
}

/* --- from birth to death ---------------------------------------------------------------------- */

static int random_u64(uint64_t *out)
{
    ssize_t n;

    do {
        n = getrandom(out, sizeof(*out), 0);
    } while (n < 0 && errno == EINTR);
    return n == (ssize_t)sizeof(*out) ? 0 : -EIO;
}

/* A proposer that no other client has: 64 random bits. */
static int random_proposer(uint64_t *out)
{
    int err;

    do {
        err = random_u64(out);
    } while (err == 0 && (*out == 0 || *out == BALLOT_PROPOSER_MAX));
    return err;
}

static int io_init(struct io *io, struct cluster *c)
{
    struct client_opts opts = {
        .ring = c->opts.cfg->ring,
        .health = c->health,
        .timeout_ms = c->opts.timeout_ms,
        .node_name = node_name,
        .node_name_arg = c,
    };
    int err;

    io->c = c;
    io->guest_idle = true;
    list_init(&io->active);
    pthread_mutex_init(&io->lock, NULL);
    c->n_ios++; /* from here on it is cluster_close() that cleans up */
    err = random_proposer(&opts.proposer);
    if (err == 0)
        err = random_u64(&opts.seed);
    if (err == 0)
        err = transport_http_new(c->opts.cfg, clock_real(), c->opts.workers, &io->transport);
    if (err < 0)
        return err;
    opts.transport = io->transport;
    return client_new(&opts, &io->client);
}

static void *io_run(void *arg)
{
    struct io *io = arg;

    transport_http_run(io->transport);
    return NULL;
}

/* Signals are for the program's other threads. */
static int io_start(struct io *io, unsigned i)
{
    sigset_t all, before;
    char name[16];
    int err;

    io->accepting = true; /* the guest may post as soon as it runs */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    err = -pthread_create(&io->thread, NULL, io_run, io);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (err < 0) {
        io->accepting = false;
        return err;
    }
    snprintf(name, sizeof(name), "kvfs-io-%u", i);
    pthread_setname_np(io->thread, name);
    io->started = true;
    return 0;
}

static void say_self(void *arg, uint64_t *incarnation, uint8_t *state)
{
    struct cluster *c = arg;

    c->opts.self_state(c->opts.arg, incarnation, state);
}

static int prober_start(struct cluster *c)
{
    struct prober_opts opts = {
        .client = c->ios[0].client,
        .transport = c->ios[0].transport,
        .health = c->health,
        .n_nodes = c->opts.cfg->n_nodes,
        .self = c->opts.self,
        .self_state = c->opts.self_state != NULL ? say_self : NULL,
        .on_result = on_probed,
        .arg = c,
    };

    return prober_new(&opts, &c->prober);
}

static int guest_start(struct cluster *c)
{
    struct io *io = &c->ios[0];
    int err = 0;

    if (c->opts.guest_start != NULL)
        err = c->opts.guest_start(c->opts.arg, io->client, io->transport);
    if (err == 0)
        io->guest_idle = c->opts.guest_start == NULL;
    return err;
}

/*
 * One for every two processors: the others serve those who call. More threads than that only wake
 * one another, and share what each could send and hear in one go.
 */
static unsigned threads_default(void)
{
    long n = sysconf(_SC_NPROCESSORS_ONLN) / 2;

    if (n < 1)
        return 1;
    return n < (long)THREADS_DEFAULT_MAX ? (unsigned)n : THREADS_DEFAULT_MAX;
}

/* Everything but the threads. On failure c is left for cluster_close(). */
static int cluster_init(struct cluster *c, unsigned n_threads)
{
    unsigned n_nodes = c->opts.cfg->n_nodes;
    pthread_condattr_t attr;
    int err;

    pthread_mutex_init(&c->ready_lock, NULL);
    pthread_mutex_init(&c->log_lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&c->ready_changed, &attr);
    pthread_condattr_destroy(&attr);
    c->answers = calloc(n_nodes, sizeof(*c->answers));
    c->akin = calloc(n_nodes, sizeof(*c->akin));
    c->signs = calloc(n_nodes, sizeof(*c->signs));
    c->logged_up = calloc(n_nodes, sizeof(*c->logged_up));
    c->went_down_us = calloc(n_nodes, sizeof(*c->went_down_us));
    if (c->answers == NULL || c->akin == NULL || c->signs == NULL || c->logged_up == NULL ||
        c->went_down_us == NULL)
        return -ENOMEM;
    for (unsigned i = 0; i < n_nodes; i++)
        c->akin[i] = c->logged_up[i] = true; /* as health begins */
    err = health_new(n_nodes, &c->health);
    if (err < 0)
        return err;
    health_watch(c->health, on_health_changed, c);
    for (unsigned i = 0; i < n_threads && err == 0; i++)
        err = io_init(&c->ios[i], c);
    if (err == 0)
        err = prober_start(c);
    return err < 0 ? err : guest_start(c);
}

int cluster_open(const struct cluster_opts *opts, struct cluster **out, struct err *err)
{
    unsigned n_threads = opts->n_threads != 0 ? opts->n_threads : threads_default();
    struct cluster *c = calloc(1, sizeof(*c) + n_threads * sizeof(c->ios[0]));
    int code;

    if (c == NULL)
        return err_set(err, -ENOMEM, "no memory for the cluster's client");
    c->opts = *opts;
    if (c->opts.timeout_ms == 0)
        c->opts.timeout_ms = TIMEOUT_DEFAULT_MS;
    code = cluster_init(c, n_threads);
    for (unsigned i = 0; i < n_threads && code == 0; i++)
        code = io_start(&c->ios[i], i);
    if (code < 0) {
        cluster_close(c);
        return err_set(err, code, "starting the cluster's client: %s", strerror(-code));
    }
    *out = c;
    return 0;
}

static void on_prober_idle(void *arg)
{
    io_stop_if_drained(arg);
}

static void on_guest_idle(void *arg)
{
    struct io *io = arg;

    io->guest_idle = true;
    io_stop_if_drained(io);
}

static void io_drain(struct loop_job *job)
{
    struct io *io = container_of(job, struct io, drain);
    struct cluster *c = io->c;

    for (struct list *at = io->active.next; at != &io->active; at = at->next)
        op_cancel(container_of(at, struct task, link)->op);
    client_stop_background(io->client);
    if (io == &c->ios[0])
        prober_stop(c->prober, on_prober_idle, io);
    io->draining = true; /* from here on the last part to become idle ends the loop */
    if (!io->guest_idle)
        c->opts.guest_stop(c->opts.arg, on_guest_idle, io);
    else
        io_stop_if_drained(io);
}

bool cluster_post(struct cluster *c, struct loop_job *job)
{
    struct io *io = &c->ios[0];
    bool accepted;

    pthread_mutex_lock(&io->lock);
    accepted = io->accepting;
    if (accepted)
        transport_http_post(io->transport, job);
    pthread_mutex_unlock(&io->lock);
    return accepted;
}

static void on_delay_over(struct timer *timer)
{
    struct delayed_job *job = container_of(timer, struct delayed_job, timer);

    job->fn(job);
}

static void arm_delayed(struct loop_job *arm)
{
    struct delayed_job *job = container_of(arm, struct delayed_job, arm);

    job->transport->ops->timer_set(job->transport, &job->timer, job->due_us);
}

bool cluster_post_after(struct cluster *c, struct delayed_job *job, uint32_t ms)
{
    job->transport = c->ios[0].transport;
    job->due_us = transport_now_us(job->transport) + ms * 1000ull;
    job->timer = (struct timer){.fire = on_delay_over};
    job->arm.fn = arm_delayed;
    return cluster_post(c, &job->arm);
}

static void io_fini(struct io *io)
{
    transport_http_free(io->transport);
    client_free(io->client);
    pthread_mutex_destroy(&io->lock);
}

void cluster_stop(struct cluster *c)
{
    pthread_mutex_lock(&c->ready_lock);
    c->closing = true;
    pthread_cond_broadcast(&c->ready_changed);
    pthread_mutex_unlock(&c->ready_lock);
    for (unsigned i = 0; i < c->n_ios; i++) {
        struct io *io = &c->ios[i];

        pthread_mutex_lock(&io->lock);
        io->accepting = false;
        pthread_mutex_unlock(&io->lock);
        io->drain.fn = io_drain;
        if (io->started)
            transport_http_post(io->transport, &io->drain);
    }
    for (unsigned i = 0; i < c->n_ios; i++) {
        if (c->ios[i].started)
            pthread_join(c->ios[i].thread, NULL);
        c->ios[i].started = false;
    }
}

void cluster_close(struct cluster *c)
{
    if (c == NULL)
        return;
    cluster_stop(c);
    for (unsigned i = 0; i < c->n_ios; i++)
        io_fini(&c->ios[i]);
    prober_free(c->prober);
    health_free(c->health);
    pthread_cond_destroy(&c->ready_changed);
    pthread_mutex_destroy(&c->ready_lock);
    pthread_mutex_destroy(&c->log_lock);
    free(c->answers);
    free(c->akin);
    free(c->signs);
    free(c->logged_up);
    free(c->went_down_us);
    free(c);
}

struct health *cluster_health(struct cluster *c)
{
    return c->health;
}

const struct config *cluster_config(const struct cluster *c)
{
    return c->opts.cfg;
}

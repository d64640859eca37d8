/* redis_pool.c - a node's connections to its Redis, and the session that they share. */
#include "node/redis_pool.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/list.h"
#include "common/log.h"

#define RETRY_MS 250u     /* between two tries to begin a session */
#define PATIENCE_MS 4000u /* of a call, for a session that is being begun, and for a connection */
#define TRIES 5u          /* of a call that was refused because its session was over */
#define ARGS_MAX 40u

enum state {
    BROKEN, /* a session is about to be begun */
    DOWN,   /* that failed: in a moment again */
    UP,
    ENDED, /* for good */
};

struct idle_link {
    struct list link;
    struct redis_link *conn;
};

struct redis_pool {
    struct redis_pool_opts opts;
    _Atomic uint64_t seq;   /* the highest that Redis told */
    _Atomic bool complains; /* there is a complaint */
    pthread_t thread;
    bool has_thread;
    uint64_t tried; /* the number of the last session that was tried; the thread's */
    char shas[REDIS_N_SCRIPTS][48]; /* from the first session on */
    pthread_mutex_t lock;
    pthread_cond_t changed, freed; /* the state, and idle or n_links */
    /* protected by lock: */
    enum state state;
    bool stop, told; /* told: the log knows that it is down */
    uint64_t number; /* of the session */
    char session[REDIS_SESSION_LEN];
    struct err why;       /* not UP: why */
    struct err complaint; /* UP */
    struct list idle;
    unsigned n_links; /* idle or lent */
};

/* --- time ----------------------------------------------------------------------------------- */

static struct timespec in_ms(unsigned ms)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    ts.tv_sec += ms / 1000;
    ts.tv_nsec += (long)(ms % 1000) * 1000000;
    if (ts.tv_nsec >= 1000000000) {
        ts.tv_sec++;
        ts.tv_nsec -= 1000000000;
    }
    return ts;
}

/* False: it is `until`. */
static bool wait_locked(struct redis_pool *p, pthread_cond_t *cond, const struct timespec *until)
{
    return pthread_cond_clockwait(cond, &p->lock, CLOCK_MONOTONIC, until) != ETIMEDOUT;
}

/* --- sessions ------------------------------------------------------------------------------- */

static void note_seq(struct redis_pool *p, int64_t seq)
{
    uint64_t most = atomic_load(&p->seq);

    while (seq > 0 && (uint64_t)seq > most &&
           !atomic_compare_exchange_weak(&p->seq, &most, (uint64_t)seq))
        ;
}

static void close_idle_locked(struct redis_pool *p)
{
    while (!list_empty(&p->idle)) {
        struct idle_link *i = container_of(p->idle.next, struct idle_link, link);

        list_remove(&i->link);
        redis_link_close(i->conn);
        free(i);
        p->n_links--;
    }
}

/* The session `number` is over; it may be so already. */
static void end_session_locked(struct redis_pool *p, uint64_t number, const char *why)
{
    if (p->state != UP || p->number != number)
        return;
    p->state = BROKEN;
    (void)err_set(&p->why, 0, "%s: %s", p->opts.url->shown, why);
    close_idle_locked(p);
    pthread_cond_broadcast(&p->changed);
    pthread_cond_broadcast(&p->freed);
}

static void end_session(struct redis_pool *p, uint64_t number, const char *why)
{
    pthread_mutex_lock(&p->lock);
    end_session_locked(p, number, why);
    pthread_mutex_unlock(&p->lock);
}

/* Tells Redis all scripts; it answers by which names they are called. */
static int load_scripts(struct redis_pool *p, struct redis_link *l, struct err *err)
{
    bool first = p->shas[0][0] == '\0'; /* before there are other threads */
    int ret = 0;

    for (unsigned i = 0; i < REDIS_N_SCRIPTS && ret == 0; i++)
        ret = redis_link_add_text(l, "SCRIPT", "LOAD", redis_script_text(i), NULL);
    if (ret < 0)
        return err_set(err, ret, "no memory");
    for (unsigned i = 0; i < REDIS_N_SCRIPTS; i++) {
        struct redis_reply *r;
        int e = redis_link_next(l, &r, ret == 0 ? err : NULL);
        struct span sha;

        if (e < 0)
            return ret < 0 ? ret : e;
        sha = redis_reply_bytes(r);
        if (ret == 0 && (redis_reply_kind(r) != REDIS_BYTES || sha.len >= sizeof(p->shas[i])))
            ret = redis_reply_errno(r, err);
        else if (ret == 0 && first)
            memcpy(p->shas[i], sha.data, sha.len);
        redis_reply_free(r);
    }
    if (ret < 0 && first)
        memset(p->shas, 0, sizeof(p->shas));
    return ret;
}

static int keep_idle_locked(struct redis_pool *p, struct redis_link *l)
{
    struct idle_link *i = malloc(sizeof(*i));

    if (i == NULL)
        return -ENOMEM;
    i->conn = l;
    list_insert(p->idle.next, &i->link); /* those used last are used first */
    return 0;
}

/* Under no lock. Where it succeeds the connection is one of the idle ones. */
static int begin_session(struct redis_pool *p, struct err *err)
{
    char session[REDIS_SESSION_LEN];
    uint64_t seq = atomic_load(&p->seq);
    struct redis_link *l;
    int ret = redis_link_open(p->opts.url, p->opts.name, &l, err);

    if (ret < 0)
        return err_wrap(err, ret, "%s", p->opts.url->shown);
    p->tried++;
    ret = load_scripts(p, l, err);
    if (ret == 0)
        ret = p->opts.begin(p->opts.arg, l, p->tried, &seq, session, err);
    if (ret < 0) {
        redis_link_close(l);
        return err_wrap(err, ret, "%s", p->opts.url->shown);
    }
    /* What is read from now on may be told to others: it must not be lost unnoticed either. */
    note_seq(p, (int64_t)seq);
    pthread_mutex_lock(&p->lock);
    p->number = p->tried;
    memcpy(p->session, session, sizeof(session));
    if (p->n_links < REDIS_LINKS_MAX && keep_idle_locked(p, l) == 0)
        p->n_links++;
    else
        redis_link_close(l);
    pthread_mutex_unlock(&p->lock);
    return 0;
}

/* The outcome of a try. */
static void settle_locked(struct redis_pool *p, int ret, const struct err *err)
{
    p->state = ret == 0 ? UP : ret == -EBADMSG ? ENDED : DOWN;
    if (ret < 0)
        p->why = *err;
    if (ret < 0 && !p->told)
        log_event(LOG_LEVEL_ERROR, "redis-down", "error=%s", log_quote(err->msg, strlen(err->msg)));
    if (ret == 0 && p->told)
        log_event(LOG_LEVEL_INFO, "redis-up", "redis=%s", p->opts.url->shown);
    p->told = ret < 0;
    p->complaint.msg[0] = '\0';
    pthread_cond_broadcast(&p->changed);
    pthread_cond_broadcast(&p->freed);
}

static void *pool_thread(void *arg)
{
    struct redis_pool *p = arg;

    pthread_mutex_lock(&p->lock);
    while (!p->stop) {
        struct timespec until;
        struct err err;
        int ret;

        if (p->state == UP || p->state == ENDED) {
            pthread_cond_wait(&p->changed, &p->lock);
            continue;
        }
        pthread_mutex_unlock(&p->lock);
        ret = begin_session(p, &err);
        pthread_mutex_lock(&p->lock);
        settle_locked(p, ret, &err);
        until = in_ms(RETRY_MS);
        while (!p->stop && p->state == DOWN && wait_locked(p, &p->changed, &until))
            ;
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

/* --- connections ---------------------------------------------------------------------------- */

/* 0: there is a session, or why there is none. */
static int wait_session_locked(struct redis_pool *p, const struct timespec *until)
{
    while (p->state == BROKEN && !p->stop)
        if (!wait_locked(p, &p->changed, until) && p->state == BROKEN)
            p->state = DOWN; /* it takes long: others need not wait as well */
    return p->state == UP ? 0 : p->state == ENDED ? -EIO : -EHOSTDOWN;
}

static struct redis_link *take_idle_locked(struct redis_pool *p)
{
    struct idle_link *i;
    struct redis_link *l;

    if (list_empty(&p->idle))
        return NULL;
    i = container_of(p->idle.next, struct idle_link, link);
    l = i->conn;
    list_remove(&i->link);
    free(i);
    return l;
}

/* A connection that is idle, or NULL in *out: one may be made, it is counted already. */
static int reserve_locked(struct redis_pool *p, struct redis_link **out)
{
    struct timespec until = in_ms(PATIENCE_MS);
    int ret = wait_session_locked(p, &until);

    while (ret == 0 && list_empty(&p->idle) && p->n_links >= REDIS_LINKS_MAX) {
        if (!wait_locked(p, &p->freed, &until))
            return -EAGAIN;
        ret = wait_session_locked(p, &until);
    }
    if (ret < 0)
        return ret;
    *out = take_idle_locked(p);
    if (*out == NULL)
        p->n_links++;
    return 0;
}

static void drop_link(struct redis_pool *p, struct redis_link *l)
{
    redis_link_close(l);
    pthread_mutex_lock(&p->lock);
    p->n_links--;
    pthread_cond_signal(&p->freed);
    pthread_mutex_unlock(&p->lock);
}

int redis_pool_borrow(struct redis_pool *p, struct redis_lease *out)
{
    struct redis_link *l = NULL;
    struct err err;
    int ret;

    pthread_mutex_lock(&p->lock);
    ret = reserve_locked(p, &l);
    *out = (struct redis_lease){.number = p->number};
    memcpy(out->session, p->session, sizeof(out->session));
    pthread_mutex_unlock(&p->lock);
    if (ret < 0)
        return ret;
    out->seq = atomic_load(&p->seq);
    if (l != NULL && !redis_link_alive(l)) { /* Redis closes those that are idle for long */
        redis_link_close(l);
        l = NULL;
    }
    if (l == NULL) {
        ret = redis_link_open(p->opts.url, p->opts.name, &l, &err);
        if (ret < 0) {
            drop_link(p, NULL);
            end_session(p, out->number, err.msg);
            return -EHOSTDOWN; /* it was there a moment ago */
        }
    }
    out->link = l;
    return 0;
}

void redis_pool_give_back(struct redis_pool *p, struct redis_lease *lease, int err,
                          const struct err *why)
{
    struct redis_link *l = lease->link;
    bool keep = err == 0;

    lease->link = NULL;
    if (err == -EHOSTDOWN)
        end_session(p, lease->number, why != NULL ? why->msg : "the connection broke");
    if (keep) {
        pthread_mutex_lock(&p->lock);
        keep = p->state == UP && keep_idle_locked(p, l) == 0;
        pthread_cond_signal(&p->freed);
        pthread_mutex_unlock(&p->lock);
    }
    if (!keep)
        drop_link(p, l);
}

/*
 * What an answer told is noted. Does it count? Not where its session has ended meanwhile: the next
 * one may have begun on a Redis that crashed after it gave this answer, and would not miss it.
 */
static bool note_answer(struct redis_pool *p, const struct redis_lease *lease, int64_t seq)
{
    bool counts;

    note_seq(p, seq); /* first: a session that begins from here on asks for it */
    pthread_mutex_lock(&p->lock);
    counts = p->state == UP && p->number == lease->number;
    pthread_mutex_unlock(&p->lock);
    return counts;
}

int redis_lease_check(struct redis_pool *p, const struct redis_lease *lease, struct span session,
                      int64_t seq)
{
    if (span_eq(session, span_str(lease->session)) && (seq < 0 || (uint64_t)seq >= lease->seq))
        return note_answer(p, lease, seq) ? 0 : -EAGAIN;
    /* Where it is not over already, what Redis has is not what this session began with. */
    end_session(p, lease->number, "its data is not what it was");
    return -EAGAIN;
}

/* --- scripts -------------------------------------------------------------------------------- */

static void complain(struct redis_pool *p, const struct err *err)
{
    if (err == NULL && !atomic_load(&p->complains))
        return;
    pthread_mutex_lock(&p->lock);
    if (err == NULL)
        p->complaint.msg[0] = '\0';
    else
        p->complaint = *err;
    atomic_store(&p->complains, err != NULL);
    pthread_mutex_unlock(&p->lock);
}

/* What an error means for the call: -EAGAIN, the session is over. */
static int refused(struct redis_pool *p, const struct redis_lease *lease,
                   const struct redis_reply *r)
{
    struct err err;
    int ret = redis_reply_errno(r, &err);

    if (ret == -EAGAIN) { /* it loads its data: for as long as that it is as good as down */
        end_session(p, lease->number, err.msg);
        return ret;
    }
    complain(p, &err);
    return ret == -EACCES ? -EIO : ret;
}

int redis_lease_refused(struct redis_pool *p, const struct redis_lease *lease,
                        const struct redis_reply *r)
{
    if (redis_reply_kind(r) != REDIS_ERROR)
        return 0;
    return redis_reply_is_error(r, "WRONGTYPE") ? -EBADMSG : refused(p, lease, r);
}

void redis_pool_doubt(struct redis_pool *p, uint64_t session, const char *why)
{
    end_session(p, session, why);
}

static int call(struct redis_pool *p, struct redis_link *l, struct span *words, size_t n,
                enum redis_script script, struct redis_reply **out, struct err *err)
{
    int ret;

    words[1] = span_str(p->shas[script]);
    ret = redis_link_add(l, words, n);
    return ret < 0 ? err_set(err, ret, "no memory") : redis_link_next(l, out, err);
}

/* As call(), and once more where Redis has forgotten its scripts. */
static int call_known(struct redis_pool *p, struct redis_link *l, struct span *words, size_t n,
                      enum redis_script script, struct redis_reply **out, struct err *err)
{
    int ret = call(p, l, words, n, script, out, err);

    if (ret < 0 || !redis_reply_is_error(*out, "NOSCRIPT"))
        return ret;
    redis_reply_free(*out);
    ret = load_scripts(p, l, err);
    return ret < 0 ? ret : call(p, l, words, n, script, out, err);
}

/* What a script answered: 0, -EAGAIN (the session was over), -EHOSTDOWN (it is now), ... */
static int judge(struct redis_pool *p, const struct redis_lease *lease, const struct redis_reply *r)
{
    if (redis_reply_kind(r) == REDIS_LIST) {
        if (!note_answer(p, lease, redis_reply_number(redis_reply_at(r, 0))))
            return -EHOSTDOWN;
        complain(p, NULL);
        return 0;
    }
    if (redis_reply_is_error(r, "KVFSSESSION")) {
        end_session(p, lease->number, "its data is not what it was");
        return -EAGAIN;
    }
    if (redis_reply_is_error(r, "KVFSNONE"))
        return -ENOENT;
    if (redis_reply_is_error(r, "KVFSDAMAGED"))
        return -EBADMSG;
    return refused(p, lease, r);
}

static int run_once(struct redis_pool *p, enum redis_script script, const struct span *args,
                    size_t n, struct redis_reply **out, uint64_t *session)
{
    struct span words[ARGS_MAX + 5];
    struct redis_lease lease;
    struct redis_reply *r = NULL;
    struct err err;
    char seq[24];
    int ret = redis_pool_borrow(p, &lease);

    if (ret < 0)
        return ret == -EAGAIN ? -EBUSY : ret;
    (void)snprintf(seq, sizeof(seq), "%" PRIu64, lease.seq);
    words[0] = span_str("EVALSHA");
    words[2] = span_str("0");
    words[3] = span_str(lease.session);
    words[4] = span_str(seq);
    for (size_t i = 0; i < n; i++)
        words[5 + i] = args[i];
    ret = call_known(p, lease.link, words, n + 5, script, &r, &err);
    if (ret < 0) {
        redis_pool_give_back(p, &lease, ret, &err);
        return ret;
    }
    ret = judge(p, &lease, r);
    if (session != NULL)
        *session = lease.number;
    redis_pool_give_back(p, &lease, 0, NULL);
    if (ret < 0)
        redis_reply_free(r);
    else
        *out = r;
    return ret;
}

int redis_pool_run(struct redis_pool *p, enum redis_script script, const struct span *args,
                   size_t n, struct redis_reply **out, uint64_t *session)
{
    int ret = n > ARGS_MAX ? -EINVAL : -EAGAIN;

    for (unsigned i = 0; i < TRIES && ret == -EAGAIN; i++)
        ret = run_once(p, script, args, n, out, session);
    return ret == -EBUSY || ret == -EAGAIN ? -EAGAIN : ret;
}

/* --- for people ----------------------------------------------------------------------------- */

int redis_pool_state(struct redis_pool *p, struct err *why)
{
    int ret = 0;

    pthread_mutex_lock(&p->lock);
    if (p->state != UP) {
        ret = p->state == ENDED ? -EIO : -EHOSTDOWN;
        if (why != NULL)
            *why = p->why;
    }
    pthread_mutex_unlock(&p->lock);
    return ret;
}

int redis_pool_ended(struct redis_pool *p, struct err *why)
{
    return redis_pool_state(p, why) == -EIO ? -EBADMSG : 0;
}

void redis_pool_complaint(struct redis_pool *p, struct err *out)
{
    pthread_mutex_lock(&p->lock);
    *out = p->complaint;
    pthread_mutex_unlock(&p->lock);
}

/* --- life ----------------------------------------------------------------------------------- */

/* Tries until it answers, or something else is wrong than that it is not there yet. */
static int begin_first(struct redis_pool *p, struct err *err)
{
    bool told = false;

    for (;;) {
        int ret = begin_session(p, err);
        struct timespec until = in_ms(RETRY_MS);

        if ((ret != -EAGAIN && ret != -EHOSTDOWN) || p->opts.may_wait == NULL ||
            !p->opts.may_wait(p->opts.may_wait_arg, ret, err->msg))
            return ret;
        if (p->opts.stopped != NULL && p->opts.stopped())
            return err_wrap(err, -ECANCELED, "stopped while it waited");
        if (!told)
            log_event(LOG_LEVEL_WARN, "redis-waits", "for=%s",
                      log_quote(err->msg, strlen(err->msg)));
        told = true;
        pthread_mutex_lock(&p->lock);
        while (wait_locked(p, &p->changed, &until))
            ;
        pthread_mutex_unlock(&p->lock);
    }
}

int redis_pool_open(const struct redis_pool_opts *opts, struct redis_pool **out, struct err *err)
{
    struct redis_pool *p = calloc(1, sizeof(*p));
    int ret;

    if (p == NULL)
        return err_set(err, -ENOMEM, "no memory");
    p->opts = *opts;
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->changed, NULL);
    pthread_cond_init(&p->freed, NULL);
    list_init(&p->idle);
    ret = begin_first(p, err);
    if (ret == 0) {
        p->state = UP;
        ret = pthread_create(&p->thread, NULL, pool_thread, p);
        p->has_thread = ret == 0;
        if (ret != 0)
            ret = err_set(err, -ret, "cannot start a thread: %s", strerror(ret));
    }
    if (ret < 0) {
        redis_pool_close(p);
        return ret;
    }
    pthread_setname_np(p->thread, "kv-redis");
    *out = p;
    return 0;
}

void redis_pool_close(struct redis_pool *p)
{
    if (p == NULL)
        return;
    pthread_mutex_lock(&p->lock);
    p->stop = true;
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
    if (p->has_thread)
        pthread_join(p->thread, NULL);
    pthread_mutex_lock(&p->lock);
    close_idle_locked(p);
    pthread_mutex_unlock(&p->lock);
    pthread_cond_destroy(&p->freed);
    pthread_cond_destroy(&p->changed);
    pthread_mutex_destroy(&p->lock);
    free(p);
}

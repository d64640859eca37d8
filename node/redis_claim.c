/*
 * redis_claim.c - whose data is in a Redis, which kvnode uses it, and whether all that it told is
 * still there.
 */
#include "node/redis_claim.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "common/limits.h"
#include "common/log.h"
#include "node/redis_info.h"
#include "node/redis_note.h"

#define LOOK_MS 250 /* between two looks whether another process shows itself */
#define SHOWS_MS 10000
#define TAKE_TRIES 5u

/* What kvfs:owner says. */
struct owner {
    bool there;
    char node[NODE_ID_LEN_MAX + 1], run_id[REDIS_RUN_ID_LEN], fsync[16], host[80], pid[16];
    uint64_t store, life, token;
    uint64_t seq;
    char session[REDIS_SESSION_LEN];
    bool has_data; /* keys, or values of the node */
    bool lost;     /* it was noticed that it lost something */
};

struct redis_claim {
    const char *dir, *node_id;
    enum store_fsync mode;
    unsigned shows_ms;
    bool (*stopped)(void);
    uint64_t store, life, token;
    bool begun, fresh, distrusted;
    bool taken_over;
    bool unverified_told;
    pthread_mutex_t lock; /* around these: */
    uint64_t n_keys, number;
    struct redis_memory memory;
    bool logs; /* Redis was seen with a log that is whole, and not without one since */
};

static int note_own(const struct redis_claim *c, enum redis_note_state state, uint64_t seq)
{
    struct redis_note n = {state, c->store, c->life, c->token, seq};

    return redis_note_write(c->dir, &n);
}

/* --- who uses it ---------------------------------------------------------------------------- */

static void copy_text(char *out, size_t cap, struct span s)
{
    size_t n = s.len < cap ? s.len : cap - 1;

    if (n > 0)
        memcpy(out, s.data, n);
    out[n] = '\0';
}

static uint64_t hex_of(const struct redis_reply *r)
{
    char text[24];

    copy_text(text, sizeof(text), redis_reply_bytes(r));
    return strtoull(text, NULL, 16);
}

static void take_owner(struct owner *o, const struct redis_reply *r)
{
    o->there = redis_reply_kind(redis_reply_at(r, 3)) == REDIS_BYTES;
    copy_text(o->node, sizeof(o->node), redis_reply_bytes(redis_reply_at(r, 1)));
    o->store = hex_of(redis_reply_at(r, 2));
    o->token = hex_of(redis_reply_at(r, 3));
    o->life = (uint64_t)redis_reply_number(redis_reply_at(r, 4));
    copy_text(o->run_id, sizeof(o->run_id), redis_reply_bytes(redis_reply_at(r, 5)));
    copy_text(o->fsync, sizeof(o->fsync), redis_reply_bytes(redis_reply_at(r, 6)));
    copy_text(o->host, sizeof(o->host), redis_reply_bytes(redis_reply_at(r, 7)));
    copy_text(o->pid, sizeof(o->pid), redis_reply_bytes(redis_reply_at(r, 8)));
    o->lost = redis_reply_bytes(redis_reply_at(r, 9)).len > 0;
}

static int ask_owner(struct redis_link *l, struct owner *out, struct err *err)
{
    struct redis_reply *r[3] = {NULL, NULL, NULL};
    struct owner o = {0};
    int ret = redis_link_add_text(l, "HMGET", "kvfs:owner", "format", "node", "store", "token",
                                  "life", "run_id", "fsync", "host", "pid", "lost", NULL);

    if (ret == 0)
        ret = redis_link_add_text(l, "MGET", "kvfs:seq", "kvfs:session", NULL);
    if (ret == 0)
        ret = redis_link_add_text(l, "EXISTS", "kvfs:keys", "kvfs:state", "kvfs:loose", NULL);
    if (ret < 0)
        return err_set(err, ret, "no memory");
    for (unsigned i = 0; i < 3 && ret == 0; i++)
        ret = redis_link_next(l, &r[i], err);
    for (unsigned i = 0; i < 3 && ret == 0; i++)
        if (redis_reply_kind(r[i]) == REDIS_ERROR)
            ret = redis_reply_errno(r[i], err);
    if (ret == 0) {
        int64_t seq = redis_reply_number(redis_reply_at(r[1], 0));

        take_owner(&o, r[0]);
        o.seq = seq > 0 ? (uint64_t)seq : 0;
        copy_text(o.session, sizeof(o.session), redis_reply_bytes(redis_reply_at(r[1], 1)));
        o.has_data = redis_reply_number(r[2]) > 0;
        if (o.there && redis_reply_number(redis_reply_at(r[0], 0)) != 1)
            ret = err_set(err, -EPROTO, "its data was written by a newer kvnode");
        *out = o;
    }
    for (unsigned i = 0; i < 3; i++)
        redis_reply_free(r[i]);
    return ret;
}

static int check_owner(const struct redis_claim *c, const struct owner *o, struct err *err)
{
    if (!o->there && o->has_data)
        return err_set(err, -EINVAL,
                       "it has data but no kvfs:owner, which tells whose: nobody can tell what "
                       "else is missing. Empty this database (FLUSHDB), and the node recovers");
    if (o->there && strcmp(o->node, c->node_id) != 0)
        return err_set(err, -EINVAL, "it holds the data of node %s, not of %s", o->node,
                       c->node_id);
    return 0;
}

/*
 * The process that stands in Redis is not the last one of this directory, which has ended, for the
 * directory was not locked. It is there if it changes anything: it probes. Waits until it does.
 */
static int wait_whether_it_shows(const struct redis_claim *c, struct redis_link *l, struct owner *o,
                                 struct err *err)
{
    struct owner first = *o;

    log_event(LOG_LEVEL_WARN, "redis-waits",
              "for=\"kvnode process %s on %s, whether it still uses this database\"", o->pid,
              o->host);
    for (unsigned ms = 0; ms < c->shows_ms; ms += LOOK_MS) {
        int ret;

        if (c->stopped != NULL && c->stopped())
            return err_set(err, -ECANCELED, "stopped while it waited");
        (void)poll(NULL, 0, LOOK_MS); /* it is not asked: it may be frozen */
        ret = ask_owner(l, o, err);
        if (ret < 0)
            return ret;
        if (o->seq != first.seq || o->token != first.token ||
            strcmp(o->session, first.session) != 0)
            return err_set(err, -EBUSY, "in use by another kvnode: process %s on %s", o->pid,
                           o->host);
    }
    return 0;
}

/* May it have lost what this node had told others that it has? */
static bool may_have_lost(const struct owner *o, const struct redis_info *s,
                          const struct redis_note *n)
{
    if (o->lost)
        return true;
    if (n->state != REDIS_NOTE_NONE) {
        if (n->state == REDIS_NOTE_LOST || n->store != o->store || n->life > o->life)
            return true;
        if (n->life == o->life && n->token != o->token)
            return true;
        if (n->state == REDIS_NOTE_CLOSED && n->token == o->token)
            return o->seq < n->seq;
    }
    if (strcmp(o->fsync, "always") == 0)
        return false;
    /* It lives as it did: what it was told it still knows. */
    return s->run_id[0] == '\0' || strcmp(s->run_id, o->run_id) != 0;
}

/* --- taking it ------------------------------------------------------------------------------ */

static int add_eval(struct redis_link *l, enum redis_script script, const struct span *args,
                    size_t n)
{
    struct span words[40] = {span_str("EVAL"), span_str(redis_script_text(script)), span_str("0")};

    for (size_t i = 0; i < n; i++)
        words[3 + i] = args[i];
    return redis_link_add(l, words, n + 3);
}

static int eval(struct redis_link *l, enum redis_script script, const struct span *args, size_t n,
                struct redis_reply **out, struct err *err)
{
    int ret = add_eval(l, script, args, n);

    return ret < 0 ? err_set(err, ret, "no memory") : redis_link_next(l, out, err);
}

/* seq, and how many keys there are. */
static void note_begun(struct redis_claim *c, const struct redis_reply *r, uint64_t number,
                       const struct redis_info *s, uint64_t *seq)
{
    int64_t n_keys = redis_reply_number(redis_reply_at(r, 1));
    int64_t told = redis_reply_number(redis_reply_at(r, 0));

    pthread_mutex_lock(&c->lock);
    c->n_keys = n_keys > 0 ? (uint64_t)n_keys : 0;
    c->number = number;
    c->memory = s->memory;
    pthread_mutex_unlock(&c->lock);
    *seq = told > 0 ? (uint64_t)told : 0;
}

static int take(struct redis_claim *c, struct redis_link *l, const struct owner *o,
                const struct redis_info *s, uint64_t number, uint64_t *seq, const char *session,
                struct err *err)
{
    static const char *const modes[] = {"always", "everysec", "never"};
    char before[20] = "", store[20], token[20], life[24], pid[16], host[80] = "";
    struct redis_reply *r;
    int ret;

    if (o->there)
        (void)snprintf(before, sizeof(before), "%016" PRIx64, o->token);
    (void)snprintf(store, sizeof(store), "%016" PRIx64, c->store);
    (void)snprintf(token, sizeof(token), "%016" PRIx64, c->token);
    (void)snprintf(life, sizeof(life), "%" PRIu64, c->life);
    (void)snprintf(pid, sizeof(pid), "%d", (int)getpid());
    (void)gethostname(host, sizeof(host) - 1);
    {
        const struct span args[] = {
            span_str(before),   span_str(session),    span_str("format"), span_str("1"),
            span_str("node"),   span_str(c->node_id), span_str("store"),  span_str(store),
            span_str("token"),  span_str(token),      span_str("life"),   span_str(life),
            span_str("run_id"), span_str(s->run_id),  span_str("fsync"),  span_str(modes[c->mode]),
            span_str("host"),   span_str(host),       span_str("pid"),    span_str(pid),
            span_str("lost"),   span_str(""), /* where it was, DIR/redis says so by now */
        };

        ret = eval(l, REDIS_TAKE, args, sizeof(args) / sizeof(args[0]), &r, err);
    }
    if (ret < 0)
        return ret;
    if (redis_reply_is_error(r, "KVFSMOVED"))
        ret = -EBUSY;
    else if (redis_reply_kind(r) != REDIS_LIST)
        ret = redis_reply_errno(r, err);
    else
        note_begun(c, r, number, s, seq);
    redis_reply_free(r);
    return ret;
}

static int random_u64(uint64_t *out)
{
    return getrandom(out, sizeof(*out), 0) == (ssize_t)sizeof(*out) ? 0 : -EIO;
}

/* Who this process is, given who was there before. */
static int become(struct redis_claim *c, const struct owner *o, const struct redis_note *n)
{
    uint64_t least = n->state != REDIS_NOTE_NONE ? n->life : 0;
    int err = random_u64(&c->token);

    c->fresh = !o->there;
    c->store = o->store;
    if (err == 0 && c->fresh)
        err = random_u64(&c->store);
    if (o->there && o->life > least)
        least = o->life;
    c->life = least + 1;
    return err;
}

static int take_first(struct redis_claim *c, struct redis_link *l, const struct redis_info *s,
                      uint64_t number, uint64_t *seq, char session[REDIS_SESSION_LEN],
                      struct err *err)
{
    struct redis_note n = {0};
    struct owner o;
    int ret = redis_note_read(c->dir, &n);

    if (ret < 0)
        return err_set(err, ret, "%s/redis: %s", c->dir,
                       ret == -EBADMSG ? "makes no sense; remove it" : strerror(-ret));
    ret = ask_owner(l, &o, err);
    if (ret == 0)
        ret = check_owner(c, &o, err);
    if (ret == 0 && o.there && (n.state == REDIS_NOTE_NONE || n.token != o.token))
        ret = wait_whether_it_shows(c, l, &o, err);
    if (ret < 0)
        return ret;
    c->distrusted = o.there && may_have_lost(&o, s, &n);
    ret = become(c, &o, &n);
    /* That it is not trusted must be known whatever ends this process from here on. */
    if (ret == 0 && c->distrusted)
        ret = note_own(c, REDIS_NOTE_LOST, 0);
    if (ret < 0)
        return err_set(err, ret, "%s/redis: %s", c->dir, strerror(-ret));
    (void)snprintf(session, REDIS_SESSION_LEN, "%016" PRIx64 ":%" PRIu64, c->token, number);
    ret = take(c, l, &o, s, number, seq, session, err);
    if (ret == 0 && !c->distrusted) {
        ret = note_own(c, REDIS_NOTE_OPEN, 0);
        if (ret < 0)
            return err_set(err, ret, "%s/redis: %s", c->dir, strerror(-ret));
    }
    c->begun = ret == 0;
    return ret;
}

/* Another process was faster: it stands there now. */
static int take_at_last(struct redis_claim *c, struct redis_link *l, const struct redis_info *s,
                        uint64_t number, uint64_t *seq, char session[REDIS_SESSION_LEN],
                        struct err *err)
{
    int ret = -EBUSY;

    err->msg[0] = '\0';
    for (unsigned i = 0; i < TAKE_TRIES && ret == -EBUSY && err->msg[0] == '\0'; i++)
        ret = take_first(c, l, s, number, seq, session, err);
    return ret == -EBUSY && err->msg[0] == '\0'
               ? err_set(err, ret, "other kvnodes want to use it as well")
               : ret;
}

/* --- a session after the first -------------------------------------------------------------- */

/*
 * Lost, or taken: noted at once, whatever ends this process before it has stopped by itself. (What
 * was lost stands in Redis as well, for the directory's disk may be full.)
 */
static int ended(struct redis_claim *c, const struct redis_reply *r, struct err *err)
{
    struct span text = redis_reply_bytes(r);
    int ret;

    c->taken_over = redis_reply_is_error(r, "KVFSTAKEN");
    if (c->taken_over)
        return err_set(err, -EBADMSG, "another kvnode has taken over what this node keeps in it");
    ret = note_own(c, REDIS_NOTE_LOST, 0);
    if (ret < 0)
        log_event(LOG_LEVEL_ERROR, "redis-loss-not-noted", "error=%s",
                  log_quote(strerror(-ret), strlen(strerror(-ret))));
    return err_set(err, -EBADMSG, "it has lost what it had acknowledged: %.*s",
                   text.len > 9 ? (int)text.len - 9 : 0, (const char *)text.data + 9);
}

static int take_again(struct redis_claim *c, struct redis_link *l, const struct redis_info *s,
                      uint64_t number, uint64_t *seq, char session[REDIS_SESSION_LEN],
                      struct err *err)
{
    char token[20], no[24], least[24];
    struct redis_reply *r;
    int ret;

    (void)snprintf(token, sizeof(token), "%016" PRIx64, c->token);
    (void)snprintf(no, sizeof(no), "%" PRIu64, number);
    (void)snprintf(least, sizeof(least), "%" PRIu64, *seq);
    (void)snprintf(session, REDIS_SESSION_LEN, "%s:%s", token, no);
    {
        const struct span args[] = {span_str(token), span_str(no), span_str(least),
                                    span_str(s->run_id)};

        ret = eval(l, REDIS_AGAIN, args, sizeof(args) / sizeof(args[0]), &r, err);
    }
    if (ret < 0)
        return ret;
    if (redis_reply_is_error(r, "KVFSLOST") || redis_reply_is_error(r, "KVFSTAKEN"))
        ret = ended(c, r, err);
    else if (redis_reply_kind(r) != REDIS_LIST)
        ret = redis_reply_errno(r, err);
    else
        note_begun(c, r, number, s, seq);
    redis_reply_free(r);
    return ret;
}

/*
 * A log that was switched on (CONFIG SET appendonly yes) begins with a copy of all there is. Until
 * that has ended nothing is kept, whatever appendfsync says. (Later copies replace a whole log.)
 */
static bool note_log(struct redis_claim *c, const struct redis_info *s)
{
    bool logs;

    pthread_mutex_lock(&c->lock);
    if (s->aof_off)
        c->logs = false;
    else if (!s->rewriting)
        c->logs = true;
    logs = c->logs;
    pthread_mutex_unlock(&c->lock);
    return logs;
}

int redis_claim_begin(void *arg, struct redis_link *l, uint64_t number, uint64_t *seq,
                      char session[REDIS_SESSION_LEN], struct err *err)
{
    struct redis_claim *c = arg;
    struct redis_info s;
    int ret = redis_info_ask(l, &s, err);

    bool logs = ret == 0 && note_log(c, &s);

    if (ret == 0)
        ret = redis_info_check(&s, c->mode, &c->unverified_told, err);
    if (ret < 0)
        return ret;
    if (!logs && c->mode != STORE_FSYNC_NEVER)
        return err_set(err, -EAGAIN,
                       "its log is only being begun, and keeps nothing until it is "
                       "whole");
    return c->begun ? take_again(c, l, &s, number, seq, session, err)
                    : take_at_last(c, l, &s, number, seq, session, err);
}

/* --- the rest ------------------------------------------------------------------------------- */

bool redis_claim_fresh(const struct redis_claim *c)
{
    return c->fresh;
}

bool redis_claim_distrusted(const struct redis_claim *c)
{
    return c->distrusted;
}

bool redis_claim_taken(const struct redis_claim *c)
{
    return c->taken_over;
}

uint64_t redis_claim_token(const struct redis_claim *c)
{
    return c->token;
}

uint64_t redis_claim_keys(struct redis_claim *c, uint64_t *number)
{
    uint64_t n;

    pthread_mutex_lock(&c->lock);
    n = c->n_keys;
    *number = c->number;
    pthread_mutex_unlock(&c->lock);
    return n;
}

struct redis_memory redis_claim_memory(struct redis_claim *c)
{
    struct redis_memory m;

    pthread_mutex_lock(&c->lock);
    m = c->memory;
    pthread_mutex_unlock(&c->lock);
    return m;
}

int redis_claim_look(struct redis_claim *c, struct redis_link *l, struct err *err)
{
    bool told = true; /* when the session began */
    struct redis_info s;
    int ret = redis_info_ask(l, &s, err);

    if (ret < 0)
        return ret;
    (void)note_log(c, &s);
    pthread_mutex_lock(&c->lock);
    c->memory = s.memory;
    pthread_mutex_unlock(&c->lock);
    return redis_info_check(&s, c->mode, &told, err);
}

int redis_claim_trust(struct redis_claim *c)
{
    return note_own(c, REDIS_NOTE_OPEN, 0);
}

int redis_claim_leave(struct redis_claim *c, uint64_t seq)
{
    struct redis_note n = {0};
    int err = redis_note_read(c->dir, &n);

    /* What was condemned meanwhile stays so. */
    if (err < 0 || !c->begun || n.state != REDIS_NOTE_OPEN)
        return err;
    return note_own(c, REDIS_NOTE_CLOSED, seq);
}

int redis_claim_condemn(const char *dir, struct err *err)
{
    struct redis_note n = {0};
    int ret = redis_note_read(dir, &n);

    if (ret == 0 && n.state != REDIS_NOTE_NONE) {
        n.state = REDIS_NOTE_LOST;
        ret = redis_note_write(dir, &n);
    }
    return ret < 0 ? err_set(err, ret, "%s/redis: %s", dir, strerror(-ret)) : 0;
}

int redis_claim_new(const struct store_redis_opts *opts, const char *dir, const char *node_id,
                    struct redis_claim **out, struct err *err)
{
    struct redis_claim *c = calloc(1, sizeof(*c));

    if (c == NULL)
        return err_set(err, -ENOMEM, "no memory");
    c->dir = dir;
    c->node_id = node_id;
    c->mode = opts->mode;
    c->shows_ms = opts->shows_ms != 0 ? opts->shows_ms : SHOWS_MS;
    c->stopped = opts->stopped;
    pthread_mutex_init(&c->lock, NULL);
    *out = c;
    return 0;
}

void redis_claim_free(struct redis_claim *c)
{
    if (c == NULL)
        return;
    pthread_mutex_destroy(&c->lock);
    free(c);
}

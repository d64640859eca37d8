/*
 * store_redis.c - the store in a Redis: each call is one round trip, each change one script.
 *
 * The floor, incarnations and the like have a checksum behind them, as records have: Redis keeps
 * none of what it holds in memory.
 */
#include "node/store_redis.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/hash.h"
#include "common/limits.h"
#include "node/data_dir.h"
#include "node/redis_claim.h"
#include "node/redis_iter.h"
#include "node/redis_values.h"
#include "node/views.h"

#define TRIES 5u                /* of a read that met the end of a session */
#define VIEWS_BYTES (64u << 20) /* of what was changed under walks */

struct redis {
    struct store base;
    int lock_fd;
    char *dir, *node_id, *name;
    struct redis_claim *claim;
    struct redis_pool *pool;
    struct redis_values *values;
    struct views *views;
    pthread_mutex_t lock; /* around these two: */
    int64_t n_keys;
    uint64_t counted;       /* the session that n_keys goes on from */
    _Atomic uint64_t swept; /* the session that was looked through for what is loose */
};

static struct redis *redis_of(struct store *s)
{
    return container_of(s, struct redis, base);
}

/* --- how many keys -------------------------------------------------------------------------- */

/* Each session begins with a count, and changes of an earlier one are in it. */
static void recount_locked(struct redis *s)
{
    uint64_t number, n = redis_claim_keys(s->claim, &number);

    if (number != s->counted) {
        s->counted = number;
        s->n_keys = (int64_t)n;
    }
}

static void count(struct redis *s, uint64_t session, int64_t change)
{
    pthread_mutex_lock(&s->lock);
    recount_locked(s);
    if (session == s->counted)
        s->n_keys += change;
    pthread_mutex_unlock(&s->lock);
}

/* --- reading -------------------------------------------------------------------------------- */

/* What Redis has of a key: MGET kvfs:session kvfs:seq kvfs:r:KEY [kvfs:v:KEY], ZSCORE. */
struct looked {
    struct redis_reply *got, *listed;
};

static void looked_fini(struct looked *l)
{
    redis_reply_free(l->got);
    redis_reply_free(l->listed);
}

static int ask_key(struct redis *s, struct redis_link *l, struct span key, bool want_value)
{
    struct buf r = {0}, v = {0};
    int err;

    (void)s;
    buf_add_str(&r, "kvfs:r:");
    buf_add_span(&r, key);
    buf_add_str(&v, "kvfs:v:");
    buf_add_span(&v, key);
    err = r.err < 0 ? r.err : v.err;
    if (err == 0)
        err = redis_link_add(l, (struct span[]){span_str("ZSCORE"), span_str("kvfs:keys"), key}, 3);
    if (err == 0)
        err = redis_link_add(l,
                             (struct span[]){span_str("MGET"), span_str("kvfs:session"),
                                             span_str("kvfs:seq"), buf_span(&r), buf_span(&v)},
                             want_value ? 5 : 4);
    buf_fini(&r);
    buf_fini(&v);
    return err;
}

/* Does it count? A number of changes that is not there is none. */
static int check_looked(struct redis *s, const struct redis_lease *lease, const struct looked *l)
{
    int64_t seq = redis_reply_number(redis_reply_at(l->got, 1));
    int err = redis_lease_refused(s->pool, lease, l->listed);

    if (err == 0)
        err = redis_lease_refused(s->pool, lease, l->got);
    if (err == 0)
        err = redis_lease_check(s->pool, lease, redis_reply_bytes(redis_reply_at(l->got, 0)),
                                seq < 0 ? 0 : seq);
    return err;
}

/* 0; -EAGAIN: again. */
static int look_once(struct redis *s, struct span key, bool want_value, struct looked *out)
{
    struct looked got = {NULL, NULL};
    struct redis_lease lease;
    struct err why = {""};
    int err = redis_pool_borrow(s->pool, &lease);

    if (err < 0)
        return err == -EAGAIN ? -EBUSY : err;
    err = ask_key(s, lease.link, key, want_value);
    if (err == 0)
        err = redis_link_next(lease.link, &got.listed, &why);
    if (err == 0)
        err = redis_link_next(lease.link, &got.got, &why);
    if (err == 0) {
        err = check_looked(s, &lease, &got);
        redis_pool_give_back(s->pool, &lease, 0, NULL);
    } else {
        redis_pool_give_back(s->pool, &lease, err, &why);
    }
    if (err < 0)
        looked_fini(&got);
    else
        *out = got;
    return err;
}

/* A key is in the list where it has a record, and nowhere else: the two were read one by one. */
static bool is_odd(const struct looked *l)
{
    bool listed = redis_reply_kind(l->listed) == REDIS_BYTES;

    return listed != (redis_reply_kind(redis_reply_at(l->got, 2)) == REDIS_BYTES);
}

static int look(struct redis *s, struct span key, bool want_value, struct looked *out)
{
    int err = -EAGAIN;
    bool odd = false;

    for (unsigned i = 0; i < TRIES && (err == -EAGAIN || odd); i++) {
        struct looked l = {NULL, NULL};

        err = look_once(s, key, want_value, &l);
        odd = err == 0 && is_odd(&l);
        if (err == 0 && !odd)
            *out = l;
        else
            looked_fini(&l);
    }
    return odd ? -EBADMSG : err == -EBUSY ? -EAGAIN : err;
}

static int take_item(struct redis *s, const struct looked *l, bool want_value,
                     struct store_item *out)
{
    const struct redis_reply *value = redis_reply_at(l->got, 3);
    struct span name, record;
    enum redis_place place;
    int err =
        redis_where_decode(redis_reply_bytes(redis_reply_at(l->got, 2)), &place, &name, &record);

    if (err < 0)
        return err;
    buf_add_span(&out->record, record);
    err = out->record.err;
    if (err < 0 || !want_value || place == REDIS_NOWHERE)
        return err;
    if (place == REDIS_PIECES)
        return redis_values_open(s->values, name, &out->large);
    if (redis_reply_kind(value) != REDIS_BYTES)
        return -EBADMSG;
    return value_copy(redis_reply_bytes(value), &out->value);
}

static int redis_get(struct store *base, struct span key, bool want_value, struct store_item *out)
{
    struct redis *s = redis_of(base);
    struct store_item item = STORE_ITEM_NONE;
    struct looked l = {NULL, NULL};
    struct redis_look look_at;
    int err;

    redis_values_look(s->values, &look_at);
    err = look(s, key, want_value, &l);
    if (err == 0 && redis_reply_kind(redis_reply_at(l.got, 2)) == REDIS_BYTES)
        err = take_item(s, &l, want_value, &item);
    redis_values_looked(s->values, &look_at);
    looked_fini(&l);
    if (err < 0)
        store_item_fini(&item);
    else
        *out = item;
    return err;
}

/* --- writing -------------------------------------------------------------------------------- */

/*
 * A change of one key, told to those who look at an earlier moment. sign: of the number of keys
 * that the script answers. keep: the value stays.
 */
static int change_key(struct redis *s, enum redis_script script, struct span key,
                      const struct span *args, size_t n, int sign, bool keep)
{
    struct views_change change;
    bool wanted = views_begin(s->views, key, &change);
    struct redis_reply *r = NULL;
    struct span words[8], old = {0};
    uint64_t session;
    int err;

    assert(n < sizeof(words) / sizeof(words[0]));
    memcpy(words, args, n * sizeof(words[0]));
    words[n] = span_str(wanted ? "1" : "0");
    err = redis_pool_run(s->pool, script, words, n + 1, &r, &session);
    if (err == 0) {
        old = redis_reply_bytes(redis_reply_at(r, 2));
        count(s, session, sign * redis_reply_number(redis_reply_at(r, 1)));
    }
    views_end(s->views, &change,
              err == 0            ? VIEWS_CHANGED
              : err == -EHOSTDOWN ? VIEWS_UNKNOWN
                                  : VIEWS_UNCHANGED,
              old);
    if (err == 0 && !keep && old.len >= REDIS_WHERE_MAX && old.data[0] == REDIS_PIECES) {
        redis_values_forget(s->values, span_of(old.data + 1, REDIS_WHERE_MAX - 1));
        redis_values_tidy(s->values, false);
    }
    redis_reply_free(r);
    return err;
}

static int redis_put(struct store *base, struct span key, struct span record, struct span value,
                     struct store_file *file, bool keep)
{
    struct redis *s = redis_of(base);
    const char *mode = keep ? "keep" : file != NULL ? "file" : value.len > 0 ? "value" : "none";
    struct buf where = {0};
    int err;

    assert(value.len == 0 || (file == NULL && !keep));
    if (value.len > INLINE_VALUE_MAX)
        return -EFBIG;
    buf_u8(&where, file != NULL ? REDIS_PIECES : value.len > 0 ? REDIS_INLINE : REDIS_NOWHERE);
    if (file != NULL)
        buf_add_span(&where, redis_file_name(file));
    err = where.err;
    if (err == 0)
        err = change_key(s, REDIS_PUT, key,
                         (struct span[]){key, buf_span(&where), record, span_str(mode), value}, 5,
                         1, keep);
    buf_fini(&where);
    if (err == 0 && file != NULL)
        redis_file_keep(file);
    return err;
}

static int redis_drop(struct store *base, struct span key)
{
    return change_key(redis_of(base), REDIS_DROP, key, &key, 1, -1, false);
}

static int redis_file_begin(struct store *base, uint64_t size, struct store_file **out)
{
    return redis_values_begin(redis_of(base)->values, size, out);
}

static int redis_store_iter_new(struct store *base, struct store_iter **out)
{
    struct redis *s = redis_of(base);

    return redis_iter_new(s->pool, s->views, out);
}

/* --- values of the node --------------------------------------------------------------------- */

/* Over the name as well: a value under another's name is damaged. */
static int state_sum(const char *name, struct span value, uint64_t *out)
{
    struct buf all = {0};
    int err;

    buf_bytes16(&all, span_str(name));
    buf_add_span(&all, value);
    err = all.err;
    *out = hash_xxh3(buf_span(&all));
    buf_fini(&all);
    return err;
}

static int take_state(const char *name, struct span stored, struct buf *out)
{
    struct cursor c;
    struct span value;
    uint64_t sum;
    int err;

    if (stored.len < sizeof(sum))
        return -EBADMSG;
    value = span_of(stored.data, stored.len - sizeof(sum));
    c = cursor_of(span_of(stored.data + value.len, sizeof(sum)));
    err = state_sum(name, value, &sum);
    if (err == 0 && cursor_u64(&c) != sum)
        err = -EBADMSG;
    if (err == 0)
        buf_add_span(out, value);
    return err < 0 ? err : out->err;
}

static int redis_state_get(struct store *base, const char *name, struct buf *out)
{
    struct span arg = span_str(name);
    struct redis_reply *r;
    int err = redis_pool_run(redis_of(base)->pool, REDIS_STATE_GET, &arg, 1, &r, NULL);

    if (err < 0)
        return err;
    if (redis_reply_kind(redis_reply_at(r, 1)) == REDIS_BYTES)
        err = take_state(name, redis_reply_bytes(redis_reply_at(r, 1)), out);
    else
        err = -ENOENT;
    redis_reply_free(r);
    return err;
}

static int redis_state_put(struct store *base, const char *name, struct span value)
{
    struct buf stored = {0};
    struct redis_reply *r;
    uint64_t sum;
    int err = state_sum(name, value, &sum);

    buf_add_span(&stored, value);
    buf_u64(&stored, sum);
    if (err == 0)
        err = stored.err;
    if (err == 0)
        err = redis_pool_run(redis_of(base)->pool, REDIS_STATE_PUT,
                             (struct span[]){span_str(name), buf_span(&stored)}, 2, &r, NULL);
    buf_fini(&stored);
    if (err == 0)
        redis_reply_free(r);
    return err;
}

/* --- the store itself ----------------------------------------------------------------------- */

/* Never asks Redis, which may be down: /status and HELLO are to answer at once. */
static int redis_stats(struct store *base, struct store_stats *out)
{
    struct redis *s = redis_of(base);
    struct redis_memory m = redis_claim_memory(s->claim);

    pthread_mutex_lock(&s->lock);
    recount_locked(s);
    out->n_keys = s->n_keys > 0 ? (uint64_t)s->n_keys : 0;
    pthread_mutex_unlock(&s->lock);
    out->n_bytes = m.used; /* of all that stands in this Redis */
    out->disk_total = m.total;
    out->disk_free = m.used < m.total ? m.total - m.used : 0;
    return 0;
}

/* Somebody may have configured it otherwise since the session began. */
static int look_at_redis(struct redis *s)
{
    struct redis_lease lease;
    struct err why = {""};
    int err = redis_pool_borrow(s->pool, &lease);
    bool refused;

    if (err < 0)
        return err;
    err = redis_claim_look(s->claim, lease.link, &why);
    refused = err == -EINVAL || err == -EROFS;
    if (refused)
        redis_pool_doubt(s->pool, lease.number, why.msg);
    redis_pool_give_back(s->pool, &lease, refused ? 0 : err, &why);
    return refused ? -EHOSTDOWN : err;
}

static int redis_probe(struct store *base)
{
    struct redis *s = redis_of(base);
    struct redis_reply *r;
    uint64_t session;
    int err = redis_pool_run(s->pool, REDIS_PROBE, NULL, 0, &r, &session);

    if (err < 0)
        return err;
    redis_reply_free(r);
    err = look_at_redis(s);
    if (err < 0)
        return err;
    redis_values_tidy(s->values, atomic_exchange(&s->swept, session) != session);
    return 0;
}

static int redis_damage(struct store *base, struct err *why)
{
    return redis_pool_ended(redis_of(base)->pool, why);
}

static void redis_explain(struct store *base, struct err *out)
{
    struct redis *s = redis_of(base);

    if (redis_pool_state(s->pool, out) == 0)
        redis_pool_complaint(s->pool, out);
}

static void redis_close(struct store *base)
{
    struct redis *s = redis_of(base);
    struct redis_reply *r;
    int64_t seq = -1;

    if (s->values != NULL)
        redis_values_tidy(s->values, false);
    if (s->pool != NULL && redis_pool_run(s->pool, REDIS_PROBE, NULL, 0, &r, NULL) == 0) {
        seq = redis_reply_number(redis_reply_at(r, 0));
        redis_reply_free(r);
    }
    redis_values_free(s->values);
    redis_pool_close(s->pool);
    if (s->claim != NULL && seq >= 0)
        (void)redis_claim_leave(s->claim, (uint64_t)seq); /* the next start is more careful */
    redis_claim_free(s->claim);
    views_free(s->views);
    pthread_mutex_destroy(&s->lock);
    if (s->lock_fd >= 0)
        close(s->lock_fd);
    free(s->name);
    free(s->node_id);
    free(s->dir);
    free(s);
}

static const struct store_ops redis_ops = {
    .get = redis_get,
    .put = redis_put,
    .drop = redis_drop,
    .file_begin = redis_file_begin,
    .file_write = redis_file_write,
    .file_finish = redis_file_finish,
    .file_abort = redis_file_abort,
    .iter_new = redis_store_iter_new,
    .iter_seek = redis_iter_seek,
    .iter_valid = redis_iter_valid,
    .iter_next = redis_iter_next,
    .iter_key = redis_iter_key,
    .iter_record = redis_iter_record,
    .iter_err = redis_iter_err,
    .iter_free = redis_iter_free,
    .state_get = redis_state_get,
    .state_put = redis_state_put,
    .stats = redis_stats,
    .probe = redis_probe,
    .damage = redis_damage,
    .explain = redis_explain,
    .close = redis_close,
    .kind = "redis",
};

int store_redis_trust(struct store *base)
{
    return redis_claim_trust(redis_of(base)->claim);
}

int store_redis_condemn(const char *dir, struct store *s, struct err *err)
{
    struct err why;

    if (s != NULL && redis_pool_ended(redis_of(s)->pool, &why) < 0 &&
        redis_claim_taken(redis_of(s)->claim))
        return err_set(err, -EBUSY, "%s", why.msg);
    return redis_claim_condemn(dir, err);
}

/* For people who ask Redis who its clients are: no white space, which it refuses. */
static char *name_for(const char *node_id)
{
    char *name = malloc(strlen(node_id) + 8);

    if (name == NULL)
        return NULL;
    (void)snprintf(name, strlen(node_id) + 8, "kvnode:%s", node_id);
    for (char *c = name; *c != '\0'; c++)
        if (*c <= ' ' || *c > '~')
            *c = '_';
    return name;
}

static int redis_new(const char *dir, const char *node_id, struct redis **out)
{
    struct redis *s = calloc(1, sizeof(*s));
    int err = 0;

    if (s == NULL)
        return -ENOMEM;
    s->base.ops = &redis_ops;
    s->lock_fd = -1;
    pthread_mutex_init(&s->lock, NULL);
    s->dir = strdup(dir);
    s->node_id = strdup(node_id);
    s->name = name_for(node_id);
    if (s->dir == NULL || s->node_id == NULL || s->name == NULL)
        err = -ENOMEM;
    if (err == 0)
        err = views_new(VIEWS_BYTES, &s->views);
    if (err < 0)
        redis_close(&s->base);
    else
        *out = s;
    return err;
}

int store_redis_open(const struct store_redis_opts *opts, struct store **out, bool *fresh,
                     bool *distrusted, struct err *err)
{
    struct redis_pool_opts po = {.url = opts->url,
                                 .begin = redis_claim_begin,
                                 .stopped = opts->stopped,
                                 .may_wait = opts->may_wait,
                                 .may_wait_arg = opts->may_wait_arg};
    struct redis *s;
    int ret = redis_new(opts->dir, opts->node_id, &s);

    if (ret < 0)
        return err_set(err, ret, "no memory");
    ret = data_dir_open(s->dir, s->node_id, &s->lock_fd, err);
    if (ret == 0)
        ret = redis_claim_new(opts, s->dir, s->node_id, &s->claim, err);
    po.name = s->name;
    po.arg = s->claim;
    if (ret == 0)
        ret = redis_pool_open(&po, &s->pool, err);
    if (ret == 0) {
        ret = redis_values_new(s->pool, redis_claim_token(s->claim), &s->values);
        if (ret < 0)
            err_set(err, ret, "no memory");
    }
    if (ret < 0) {
        redis_close(&s->base);
        return ret;
    }
    *fresh = redis_claim_fresh(s->claim);
    *distrusted = redis_claim_distrusted(s->claim);
    *out = &s->base;
    return 0;
}

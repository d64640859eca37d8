/* fake_cluster.c - cluster.h in memory, for tests of the mount's core. */
#include "tests/lib/fake_cluster.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "common/health.h"

struct item {
    struct buf key;
    struct record_copy rec;
    struct value value;
};

struct waiter {
    bool interrupted;
};

struct cluster {
    pthread_mutex_t lock; /* all: a rename works with several threads */
    struct config *cfg;
    struct health *health;
    struct item *items; /* in key order, tombstones too */
    size_t n, cap;
    uint64_t counter;
    unsigned n_calls, fail_at;
    int fail_err;
    bool fail_on, fail_applied;
    bool settle_reads, followed;
    unsigned meddle_at; /* call */
    const char *meddle_key, *meddle_value;
    void (*meanwhile)(void *arg);
    void *meanwhile_arg;
    bool supersedes;
    const char *superseding; /* value */
    bool holds;
    struct write_result held;
    write_done_fn *held_done;
    void *held_arg;
    unsigned before_at; /* call */
    void (*before)(void *arg);
    void *before_arg;
    pthread_mutex_t delayed_lock;
    struct list delayed; /* struct delayed_job, by arm.link */
};

struct cluster *fake_cluster_new(uint64_t max_value_size)
{
    struct cluster *c = calloc(1, sizeof(*c));
    struct buf text = {0};
    struct err err = {0};

    assert(c != NULL);
    buf_addf(&text,
             "{\"nodes\":[{\"id\":\"a\",\"addr\":\"localhost:1\"}],\"replication_factor\":1,"
             "\"max_value_size\":%llu}",
             (unsigned long long)max_value_size);
    assert(config_parse("fake.json", buf_span(&text), &c->cfg, &err) == 0);
    assert(health_new(1, &c->health) == 0);
    buf_fini(&text);
    pthread_mutex_init(&c->lock, NULL);
    pthread_mutex_init(&c->delayed_lock, NULL);
    list_init(&c->delayed);
    fake_cluster_heal(c);
    return c;
}

void fake_cluster_free(struct cluster *c)
{
    for (size_t i = 0; i < c->n; i++) {
        buf_fini(&c->items[i].key);
        record_copy_fini(&c->items[i].rec);
        value_fini(&c->items[i].value);
    }
    free(c->items);
    config_free(c->cfg);
    health_free(c->health);
    pthread_mutex_destroy(&c->delayed_lock);
    pthread_mutex_destroy(&c->lock);
    free(c);
}

/* --- items ------------------------------------------------------------------------------------ */

/* The first item whose key is not below `key`. */
static size_t position(const struct cluster *c, struct span key)
{
    size_t i = 0;

    while (i < c->n && span_cmp(buf_span(&c->items[i].key), key) < 0)
        i++;
    return i;
}

static struct item *find(struct cluster *c, struct span key)
{
    size_t i = position(c, key);

    return i < c->n && span_eq(buf_span(&c->items[i].key), key) ? &c->items[i] : NULL;
}

static struct item *find_or_add(struct cluster *c, struct span key)
{
    struct item *it = find(c, key);
    size_t i = position(c, key);

    if (it != NULL)
        return it;
    if (c->n == c->cap) {
        c->cap = c->cap > 0 ? 2 * c->cap : 64;
        c->items = realloc(c->items, c->cap * sizeof(*c->items));
        assert(c->items != NULL);
    }
    memmove(&c->items[i + 1], &c->items[i], (c->n - i) * sizeof(*c->items));
    c->n++;
    c->items[i] = (struct item){0};
    buf_add_span(&c->items[i].key, key);
    return &c->items[i];
}

/* The bytes of a draft, with its tail. */
static struct value joined(const struct draft *d)
{
    struct blob *b;

    if (d->tail.len == 0)
        return value_ref(d->value);
    b = blob_new(d->value.len + d->tail.len);
    assert(b != NULL);
    if (d->value.len > 0)
        memcpy(b->data, d->value.data, d->value.len);
    memcpy(b->data + d->value.len, d->tail.data, d->tail.len);
    return (struct value){b, b->data, b->len};
}

/* Returns the id of the write. */
static uint64_t store(struct cluster *c, struct span key, struct draft *d, struct value old)
{
    struct buf sums = {0};
    struct record rec = d->rec;
    struct value value = d->same_value ? value_ref(old) : joined(d);
    struct record_copy copy = {0};
    struct item *it;

    record_sums(&sums, value_span(value));
    rec.version = (struct ballot){++c->counter, 1};
    rec.seq++;
    memmove(&rec.recent[1], &rec.recent[0], (RECENT_MAX - 1) * sizeof(rec.recent[0]));
    rec.recent[0] = c->counter;
    rec.n_recent += rec.n_recent < RECENT_MAX;
    rec.size = value.len;
    rec.sums = buf_span(&sums);
    assert(record_copy(&rec, &copy) == 0);
    it = find_or_add(c, key);
    record_copy_fini(&it->rec);
    value_fini(&it->value);
    it->rec = copy;
    it->value = value;
    buf_fini(&sums);
    return rec.recent[0];
}

bool fake_cluster_get(struct cluster *c, const char *key, struct span *value)
{
    struct item *it = find(c, span_str(key));

    if (it == NULL || !record_is_live(&it->rec.rec))
        return false;
    if (value != NULL)
        *value = value_span(it->value);
    return true;
}

static void put_span(struct cluster *c, struct span key, struct span value)
{
    struct draft d = {0};

    struct item *it = find(c, key);

    if (it != NULL) {
        d.rec.seq = it->rec.rec.seq;
        d.rec.n_recent = it->rec.rec.n_recent;
        memcpy(d.rec.recent, it->rec.rec.recent, sizeof(d.rec.recent));
    }
    assert(value_copy(value, &d.value) == 0);
    store(c, key, &d, (struct value){0});
    value_fini(&d.value);
}

static void delete_span(struct cluster *c, struct span key)
{
    struct draft d = {.rec.flags = RECORD_TOMBSTONE};

    store(c, key, &d, (struct value){0});
}

static void supersede(struct cluster *c, struct span key, struct write_result *out)
{
    c->supersedes = false;
    if (c->superseding != NULL)
        put_span(c, key, span_str(c->superseding));
    else
        delete_span(c, key);
    out->rec_is = WRITE_SUPERSEDED;
}

void fake_cluster_put(struct cluster *c, const char *key, const char *text)
{
    put_span(c, span_str(key), span_str(text));
}

void fake_cluster_delete(struct cluster *c, const char *key)
{
    delete_span(c, span_str(key));
}

unsigned fake_cluster_n_live(struct cluster *c)
{
    unsigned n = 0;

    for (size_t i = 0; i < c->n; i++)
        n += record_is_live(&c->items[i].rec.rec);
    return n;
}

void fake_cluster_settle_reads(struct cluster *c)
{
    c->settle_reads = true;
}

void fake_cluster_follow(struct cluster *c)
{
    c->followed = true;
}

/* --- faults ----------------------------------------------------------------------------------- */

void fake_cluster_fail(struct cluster *c, unsigned n, int err, bool on, bool applied)
{
    c->fail_at = c->n_calls + n;
    c->fail_err = err;
    c->fail_on = on;
    c->fail_applied = applied;
}

void fake_cluster_heal(struct cluster *c)
{
    c->fail_err = 0;
}

void fake_cluster_meddle(struct cluster *c, unsigned n, const char *key, const char *value)
{
    c->meddle_at = c->n_calls + n;
    c->meddle_key = key;
    c->meddle_value = value;
}

unsigned fake_cluster_n_calls(struct cluster *c)
{
    return c->n_calls;
}

void fake_cluster_before(struct cluster *c, unsigned n, void (*before)(void *arg), void *arg)
{
    c->before_at = c->n_calls + n;
    c->before = before;
    c->before_arg = arg;
}

/* Takes the lock. */
static void begin_call(struct cluster *c)
{
    void (*before)(void *) = NULL;

    pthread_mutex_lock(&c->lock);
    if (c->before != NULL && c->n_calls == c->before_at) {
        before = c->before;
        c->before = NULL;
    }
    pthread_mutex_unlock(&c->lock);
    if (before != NULL)
        before(c->before_arg);
    pthread_mutex_lock(&c->lock);
}

static int next_fault(struct cluster *c, struct waiter *w)
{
    unsigned n = c->n_calls++;

    if (c->meddle_key != NULL && n == c->meddle_at) {
        if (c->meddle_value != NULL)
            fake_cluster_put(c, c->meddle_key, c->meddle_value);
        else
            fake_cluster_delete(c, c->meddle_key);
        c->meddle_key = NULL;
    }

    if (w != NULL && w->interrupted)
        return -EINTR;
    if (c->fail_err == 0 || n < c->fail_at || (n > c->fail_at && !c->fail_on))
        return 0;
    return c->fail_err;
}

/* --- cluster.h -------------------------------------------------------------------------------- */

struct health *cluster_health(struct cluster *c)
{
    return c->health;
}

const struct config *cluster_config(const struct cluster *c)
{
    return c->cfg;
}

bool cluster_ring_differs(struct cluster *c, unsigned node, struct err *why)
{
    (void)c;
    (void)node;
    (void)why;
    return false;
}

bool cluster_post_after(struct cluster *c, struct delayed_job *job, uint32_t ms)
{
    (void)ms;
    pthread_mutex_lock(&c->delayed_lock);
    list_insert(&c->delayed, &job->arm.link);
    pthread_mutex_unlock(&c->delayed_lock);
    return true;
}

bool fake_cluster_run_delayed(struct cluster *c)
{
    struct list due;
    bool any;

    list_init(&due);
    pthread_mutex_lock(&c->delayed_lock);
    any = !list_empty(&c->delayed);
    while (!list_empty(&c->delayed)) {
        struct list *first = c->delayed.next;

        list_remove(first);
        list_insert(&due, first);
    }
    pthread_mutex_unlock(&c->delayed_lock);
    while (!list_empty(&due)) {
        struct list *first = due.next;
        struct delayed_job *job;

        list_remove(first);
        job = container_of(container_of(first, struct loop_job, link), struct delayed_job, arm);
        job->fn(job);
    }
    return any;
}

int waiter_new(struct waiter **out)
{
    *out = calloc(1, sizeof(**out));
    return *out != NULL ? 0 : -ENOMEM;
}

void waiter_free(struct waiter *w)
{
    free(w);
}

void waiter_interrupt(struct waiter *w)
{
    w->interrupted = true;
}

static void peek(struct cluster *c, struct span key, struct read_result *out)
{
    struct buf prefix = {0};

    buf_add_span(&prefix, key);
    buf_u8(&prefix, '/');
    for (size_t i = position(c, buf_span(&prefix)); i < c->n && !out->has_child; i++) {
        struct item *it = &c->items[i];

        if (!span_has_prefix(buf_span(&it->key), buf_span(&prefix)))
            break;
        if (!record_is_live(&it->rec.rec))
            continue;
        out->has_child = true;
        buf_add_span(&out->child_key, buf_span(&it->key));
        entry_of_record(&out->child, buf_span(&out->child_key), &it->rec.rec);
    }
    buf_fini(&prefix);
}

int cluster_read(struct cluster *c, const struct read_args *args, struct waiter *w,
                 struct read_result *out)
{
    struct item *it;

    begin_call(c);
    *out = (struct read_result){.err = next_fault(c, w), .followed = c->followed};
    it = find(c, args->key);
    if (out->err == 0 && !ballot_is_none(args->pin) &&
        (it == NULL || ballot_cmp(it->rec.rec.version, args->pin) != 0))
        out->err = -ESTALE;
    if (out->err == 0 && it != NULL) {
        assert(record_copy(&it->rec.rec, &out->rec) == 0);
        if (args->want_value && args->offset < it->value.len) {
            size_t from = args->offset - args->offset % CHUNK_SIZE, n = it->value.len - from;

            if (args->length < n)
                n = (args->length + CHUNK_SIZE - 1) / CHUNK_SIZE * CHUNK_SIZE;
            if (n > it->value.len - from)
                n = it->value.len - from;
            out->value = value_slice(it->value, from, n);
            out->value_offset = from;
        }
        if (c->settle_reads)
            it->rec.rec.version.counter = ++c->counter;
    }
    if (out->err == 0 && args->peek)
        peek(c, args->key, out);
    pthread_mutex_unlock(&c->lock);
    return out->err;
}

int cluster_write(struct cluster *c, const struct write_args *args, struct waiter *w,
                  struct write_result *out)
{
    static const struct record none;
    struct draft next = {0};
    const struct record *cur;
    struct item *it;
    int fault, err;

    begin_call(c);
    *out = (struct write_result){.certain = true, .id = ++c->counter};
    fault = next_fault(c, w);
    it = find(c, args->key);
    cur = it != NULL ? &it->rec.rec : &none;
    next.rec = *cur;
    next.rec.flags = 0;
    err = fault == 0 || c->fail_applied
              ? args->edit(args->ctx, cur, it != NULL ? it->value : (struct value){0}, &next)
              : 0;
    if (err == 0 && (fault == 0 || c->fail_applied)) {
        out->existed = record_is_live(cur);
        out->id = store(c, args->key, &next, it != NULL ? it->value : (struct value){0});
        if (c->supersedes)
            supersede(c, args->key, out);
        assert(record_copy(&find(c, args->key)->rec.rec, &out->rec) == 0);
    }
    value_fini(&next.value);
    value_fini(&next.tail);
    out->err = fault != 0 ? fault : err;
    out->certain = fault == 0 || !c->fail_applied;
    pthread_mutex_unlock(&c->lock);
    return out->err;
}

void fake_cluster_hold(struct cluster *c)
{
    c->holds = true;
}

void fake_cluster_deliver(struct cluster *c)
{
    struct write_result res = c->held;

    c->held = (struct write_result){0};
    c->held_done(c->held_arg, &res);
    write_result_fini(&res);
}

void fake_cluster_supersede(struct cluster *c, const char *value)
{
    c->supersedes = true;
    c->superseding = value;
}

void fake_cluster_meanwhile(struct cluster *c, void (*meanwhile)(void *arg), void *arg)
{
    c->meanwhile = meanwhile;
    c->meanwhile_arg = arg;
}

int cluster_write_async(struct cluster *c, const struct write_args *args, write_done_fn *done,
                        void *arg)
{
    struct write_result res = {0};

    cluster_write(c, args, NULL, &res);
    if (c->holds) {
        c->holds = false;
        c->held = res;
        c->held_done = done;
        c->held_arg = arg;
        return 0;
    }
    if (c->meanwhile != NULL) {
        void (*meanwhile)(void *) = c->meanwhile;

        c->meanwhile = NULL;
        meanwhile(c->meanwhile_arg);
    }
    done(arg, &res);
    write_result_fini(&res);
    return 0;
}

/* How much of the key stands for it in a listing; 0: all. */
static size_t rolled_up(const struct list_args *args, struct span key)
{
    const uint8_t *slash;

    if (!args->delimiter || key.len == args->prefix.len)
        return 0;
    slash = memchr(key.data + args->prefix.len, '/', key.len - args->prefix.len);
    return slash != NULL ? (size_t)(slash + 1 - key.data) : 0;
}

int cluster_list(struct cluster *c, const struct list_args *args, struct waiter *w,
                 struct list_result *out)
{
    struct span last = {0}; /* the prefix rolled up last */

    begin_call(c);
    *out = (struct list_result){.err = next_fault(c, w), .followed = c->followed};
    for (size_t i = 0; i < c->n && out->err == 0; i++) {
        struct item *it = &c->items[i];
        struct span key = buf_span(&it->key);
        struct entry e;
        size_t up;

        if (!record_is_live(&it->rec.rec) || !span_has_prefix(key, args->prefix) ||
            span_cmp(key, args->start_after) <= 0 ||
            (args->start_after.len > 0 && args->delimiter &&
             args->start_after.data[args->start_after.len - 1] == '/' &&
             span_has_prefix(key, args->start_after) && args->start_after.len > args->prefix.len))
            continue;
        up = rolled_up(args, key);
        if (up > 0 && last.len == up && span_has_prefix(key, last))
            continue;
        if (out->n == args->limit) {
            out->more = true;
            break;
        }
        entry_of_record(&e, key, &it->rec.rec);
        e.prefix_len = (uint32_t)up;
        entry_encode(&out->entries, &e);
        out->n++;
        last = up > 0 ? span_of(key.data, up) : last;
        buf_clear(&out->next);
        buf_add(&out->next, key.data, up > 0 ? up : key.len);
    }
    pthread_mutex_unlock(&c->lock);
    return out->err;
}

/* These three stand in client.c, which is not linked. */
void read_result_fini(struct read_result *r)
{
    record_copy_fini(&r->rec);
    value_fini(&r->value);
    buf_fini(&r->child_key);
}

void write_result_fini(struct write_result *r)
{
    record_copy_fini(&r->rec);
}

void list_result_fini(struct list_result *r)
{
    buf_fini(&r->entries);
    buf_fini(&r->next);
}

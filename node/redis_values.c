/* redis_values.c - large values in a Redis. */
#include "node/redis_values.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/limits.h"

#define ID_LEN 32u
#define FORGET_MAX 1024u /* pieces in one step */

/* A value that is being written, or read, or is to be removed: in one of the lists. */
struct value_ref {
    struct list link;
    char name[REDIS_VALUE_NAME_LEN + 1];
    unsigned n_readers;
    bool forgotten;
    uint64_t after; /* may be removed when all looks before this one are over */
};

struct store_file {
    struct redis_values *vs;
    struct value_ref ref; /* in vs->writing */
    uint64_t size, written;
    uint64_t n_pieces; /* sent */
    size_t fill;
    int err;
    uint8_t piece[];
};

struct reader {
    struct store_reader base;
    struct redis_values *vs;
    struct value_ref *ref;
};

struct redis_values {
    struct redis_pool *pool;
    uint64_t token;
    pthread_mutex_t lock; /* around all below; never held while Redis is asked */
    uint64_t next_id, next_look;
    struct list looks, writing, reading, trash;
};

/* --- names ---------------------------------------------------------------------------------- */

/* Of a name, whatever stands behind it. */
static uint64_t size_of(const char *name)
{
    char digits[REDIS_VALUE_NAME_LEN - ID_LEN + 1];

    memcpy(digits, name + ID_LEN, sizeof(digits) - 1);
    digits[sizeof(digits) - 1] = '\0';
    return strtoull(digits, NULL, 16);
}

static bool is_name(struct span name)
{
    if (name.len != REDIS_VALUE_NAME_LEN)
        return false;
    for (size_t i = 0; i < name.len; i++)
        if (memchr("0123456789abcdef", name.data[i], 16) == NULL)
            return false;
    return size_of((const char *)name.data) <= VALUE_SIZE_LIMIT;
}

static uint64_t n_pieces_of(uint64_t size)
{
    return (size + REDIS_PIECE_LEN - 1) / REDIS_PIECE_LEN;
}

static struct value_ref *find_locked(struct list *in, const char *name)
{
    for (struct list *l = in->next; l != in; l = l->next) {
        struct value_ref *ref = container_of(l, struct value_ref, link);

        if (memcmp(ref->name, name, REDIS_VALUE_NAME_LEN) == 0)
            return ref;
    }
    return NULL;
}

static struct value_ref *ref_new(const char *name)
{
    struct value_ref *ref = calloc(1, sizeof(*ref));

    if (ref == NULL)
        return NULL;
    memcpy(ref->name, name, REDIS_VALUE_NAME_LEN);
    list_init(&ref->link);
    return ref;
}

/* --- writing -------------------------------------------------------------------------------- */

int redis_values_begin(struct redis_values *vs, uint64_t size, struct store_file **out)
{
    struct store_file *f = calloc(1, sizeof(*f) + REDIS_PIECE_LEN);
    int err = redis_pool_state(vs->pool, NULL);

    if (f == NULL || err < 0) {
        free(f);
        return err < 0 ? err : -ENOMEM;
    }
    f->vs = vs;
    f->size = size;
    pthread_mutex_lock(&vs->lock);
    (void)snprintf(f->ref.name, sizeof(f->ref.name), "%016" PRIx64 "%016" PRIx64 "%016" PRIx64,
                   vs->token, vs->next_id++, size);
    list_insert(&vs->writing, &f->ref.link);
    pthread_mutex_unlock(&vs->lock);
    *out = f;
    return 0;
}

struct span redis_file_name(const struct store_file *f)
{
    return span_of(f->ref.name, REDIS_VALUE_NAME_LEN);
}

static int send_piece(struct store_file *f)
{
    char number[24];
    struct span args[] = {redis_file_name(f), span_str(number), span_of(f->piece, f->fill)};
    struct redis_reply *r;
    int err;

    (void)snprintf(number, sizeof(number), "%" PRIu64, f->n_pieces);
    args[1] = span_str(number);
    err = redis_pool_run(f->vs->pool, REDIS_PIECE, args, 3, &r, NULL);
    if (err < 0)
        return err;
    redis_reply_free(r);
    f->n_pieces++;
    f->fill = 0;
    return 0;
}

int redis_file_write(struct store_file *f, struct span part)
{
    if (part.len > f->size - f->written)
        return -EFBIG;
    while (part.len > 0 && f->err == 0) {
        size_t room = REDIS_PIECE_LEN - f->fill, n = part.len < room ? part.len : room;

        memcpy(f->piece + f->fill, part.data, n);
        f->fill += n;
        f->written += n;
        part = span_of(part.data + n, part.len - n);
        if (f->fill == REDIS_PIECE_LEN || f->written == f->size)
            f->err = send_piece(f);
    }
    return f->err;
}

int redis_file_finish(struct store_file *f)
{
    return f->err < 0 ? f->err : f->written == f->size ? 0 : -EINVAL;
}

void redis_file_keep(struct store_file *f)
{
    pthread_mutex_lock(&f->vs->lock);
    list_remove(&f->ref.link);
    pthread_mutex_unlock(&f->vs->lock);
    free(f);
}

void redis_file_abort(struct store_file *f)
{
    struct redis_values *vs;

    if (f == NULL)
        return;
    vs = f->vs;
    if (f->n_pieces > 0 || f->err < 0)
        redis_values_forget(vs, redis_file_name(f));
    redis_file_keep(f);
    redis_values_tidy(vs, false);
}

/* --- reading -------------------------------------------------------------------------------- */

void redis_values_look(struct redis_values *vs, struct redis_look *look)
{
    pthread_mutex_lock(&vs->lock);
    look->number = vs->next_look++;
    list_insert(&vs->looks, &look->link);
    pthread_mutex_unlock(&vs->lock);
}

void redis_values_looked(struct redis_values *vs, struct redis_look *look)
{
    pthread_mutex_lock(&vs->lock);
    list_remove(&look->link);
    pthread_mutex_unlock(&vs->lock);
}

/* Asks for len bytes at offset, piece by piece, and for the session at last. How many answers. */
static int ask_pieces(struct reader *r, struct redis_link *l, uint64_t offset, size_t len)
{
    int n = 0;

    while (len > 0) {
        uint64_t number = offset / REDIS_PIECE_LEN, at = offset % REDIS_PIECE_LEN;
        size_t part = REDIS_PIECE_LEN - at < len ? (size_t)(REDIS_PIECE_LEN - at) : len;
        char key[80], from[24], to[24];
        int err;

        (void)snprintf(key, sizeof(key), "kvfs:f:%.*s:%" PRIu64, (int)ID_LEN, r->ref->name, number);
        (void)snprintf(from, sizeof(from), "%" PRIu64, at);
        (void)snprintf(to, sizeof(to), "%" PRIu64, at + part - 1);
        err = redis_link_add_text(l, "GETRANGE", key, from, to, NULL);
        if (err < 0)
            return err;
        offset += part;
        len -= part;
        n++;
    }
    return redis_link_add_text(l, "GET", "kvfs:session", NULL) < 0 ? -ENOMEM : n + 1;
}

/*
 * Takes the answers. *found: 0, all bytes were there; -EBADMSG; or what a refusal
 * means. It counts where the session does.
 */
static int take_pieces(struct redis_pool *pool, const struct redis_lease *lease, int n,
                       uint8_t *out, size_t len, int *found, struct redis_reply **session,
                       struct err *why)
{
    int good = 0;

    for (int i = 0; i < n; i++) {
        struct redis_reply *reply;
        int err = redis_link_next(lease->link, &reply, why);
        struct span bytes;

        if (err < 0)
            return err;
        if (i == n - 1) {
            *session = reply;
            break;
        }
        bytes = redis_reply_bytes(reply);
        if (good == 0)
            good = redis_lease_refused(pool, lease, reply);
        if (good == 0 &&
            (redis_reply_kind(reply) != REDIS_BYTES || bytes.len > len || bytes.len == 0))
            good = -EBADMSG;
        if (good == 0) {
            memcpy(out, bytes.data, bytes.len);
            out += bytes.len;
            len -= bytes.len;
        }
        redis_reply_free(reply);
    }
    *found = good < 0 ? good : len == 0 ? 0 : -EBADMSG;
    return 0;
}

static int read_once(struct reader *r, uint8_t *out, size_t len, uint64_t offset)
{
    struct redis_reply *session = NULL;
    struct redis_lease lease;
    struct err why = {""};
    int err = redis_pool_borrow(r->vs->pool, &lease), found = -EBADMSG, n;

    if (err < 0)
        return err == -EAGAIN ? -EBUSY : err;
    n = ask_pieces(r, lease.link, offset, len);
    err = n < 0 ? n : take_pieces(r->vs->pool, &lease, n, out, len, &found, &session, &why);
    if (err < 0) {
        redis_pool_give_back(r->vs->pool, &lease, err, &why);
        return err;
    }
    err =
        found == 0 || found == -EBADMSG ? redis_lease_refused(r->vs->pool, &lease, session) : found;
    if (err == 0)
        err = redis_lease_check(r->vs->pool, &lease, redis_reply_bytes(session), -1);
    redis_reply_free(session);
    redis_pool_give_back(r->vs->pool, &lease, 0, NULL);
    return err < 0 ? err : found;
}

static int reader_read(struct store_reader *base, void *out, size_t len, uint64_t offset)
{
    struct reader *r = container_of(base, struct reader, base);
    int err = -EAGAIN;

    if (len > base->size || offset > base->size - len)
        return -EBADMSG;
    for (unsigned i = 0; i < 5 && err == -EAGAIN; i++)
        err = read_once(r, out, len, offset);
    return err == -EBUSY ? -EAGAIN : err;
}

static void reader_close(struct store_reader *base)
{
    struct reader *r = container_of(base, struct reader, base);
    struct redis_values *vs = r->vs;
    bool tidy = false;

    pthread_mutex_lock(&vs->lock);
    if (--r->ref->n_readers == 0) {
        list_remove(&r->ref->link);
        tidy = r->ref->forgotten;
        if (tidy)
            list_insert(&vs->trash, &r->ref->link);
        else
            free(r->ref);
    }
    pthread_mutex_unlock(&vs->lock);
    free(r);
    if (tidy)
        redis_values_tidy(vs, false);
}

int redis_values_open(struct redis_values *vs, struct span name, struct store_reader **out)
{
    static const struct store_reader_ops ops = {reader_read, reader_close};
    struct reader *r = calloc(1, sizeof(*r));
    char text[REDIS_VALUE_NAME_LEN + 1] = "";
    struct value_ref *fresh, *ref;

    if (!is_name(name) || r == NULL) {
        free(r);
        return is_name(name) ? -ENOMEM : -EBADMSG;
    }
    memcpy(text, name.data, name.len);
    fresh = ref_new(text);
    if (fresh == NULL) {
        free(r);
        return -ENOMEM;
    }
    pthread_mutex_lock(&vs->lock);
    ref = find_locked(&vs->reading, text);
    if (ref == NULL) {
        ref = fresh;
        fresh = NULL;
        list_insert(&vs->reading, &ref->link);
    }
    ref->n_readers++;
    pthread_mutex_unlock(&vs->lock);
    free(fresh);
    *r = (struct reader){.base = {&ops, size_of(text)}, .vs = vs, .ref = ref};
    *out = &r->base;
    return 0;
}

/* --- removing ------------------------------------------------------------------------------- */

void redis_values_forget(struct redis_values *vs, struct span name)
{
    char text[REDIS_VALUE_NAME_LEN + 1] = "";
    struct value_ref *ref;

    if (!is_name(name))
        return;
    memcpy(text, name.data, name.len);
    pthread_mutex_lock(&vs->lock);
    ref = find_locked(&vs->reading, text);
    if (ref == NULL && find_locked(&vs->trash, text) == NULL) {
        ref = ref_new(text); /* without memory it stays loose, for the next sweep */
        if (ref != NULL)
            list_insert(&vs->trash, &ref->link);
    }
    if (ref != NULL) {
        ref->forgotten = true;
        ref->after = vs->next_look;
    }
    pthread_mutex_unlock(&vs->lock);
}

/* One that may be removed now, taken out; or NULL. Somebody may have begun to read it since. */
static struct value_ref *take_trash(struct redis_values *vs)
{
    struct value_ref *found = NULL;
    uint64_t oldest;

    pthread_mutex_lock(&vs->lock);
    oldest = list_empty(&vs->looks) ? vs->next_look
                                    : container_of(vs->looks.next, struct redis_look, link)->number;
    for (struct list *l = vs->trash.next, *next; l != &vs->trash && found == NULL; l = next) {
        struct value_ref *ref = container_of(l, struct value_ref, link), *read;

        next = l->next;
        if (ref->after > oldest)
            continue;
        list_remove(&ref->link);
        read = find_locked(&vs->reading, ref->name);
        if (read == NULL) {
            found = ref;
        } else {
            read->forgotten = true;
            read->after = ref->after;
            free(ref);
        }
    }
    pthread_mutex_unlock(&vs->lock);
    return found;
}

/* Removes its pieces. Redis does nothing where it is not loose. */
static int remove_pieces(struct redis_values *vs, const struct value_ref *ref)
{
    uint64_t n = n_pieces_of(size_of(ref->name));
    int err = 0;

    for (uint64_t from = 0; from < n && err == 0; from += FORGET_MAX) {
        uint64_t to = from + FORGET_MAX < n ? from + FORGET_MAX : n;
        char first[24], end[24];
        struct redis_reply *r;

        (void)snprintf(first, sizeof(first), "%" PRIu64, from);
        (void)snprintf(end, sizeof(end), "%" PRIu64, to);
        err = redis_pool_run(vs->pool, REDIS_FORGET,
                             (struct span[]){span_of(ref->name, REDIS_VALUE_NAME_LEN),
                                             span_str(first), span_str(end),
                                             span_str(to == n ? "1" : "0")},
                             4, &r, NULL);
        if (err == 0)
            redis_reply_free(r);
    }
    return err;
}

static bool is_written(struct redis_values *vs, const char *name)
{
    bool found;

    pthread_mutex_lock(&vs->lock);
    found = find_locked(&vs->writing, name) != NULL;
    pthread_mutex_unlock(&vs->lock);
    return found;
}

/*
 * What is loose and not being written is left from a process that ended, or from a change whose
 * outcome was not told. One that a record has come to name meanwhile is not loose when it comes to
 * be removed.
 */
static void sweep_loose(struct redis_values *vs)
{
    struct redis_lease lease;
    struct redis_reply *r = NULL;
    struct err why = {""};
    int err = redis_pool_borrow(vs->pool, &lease);

    if (err < 0)
        return;
    err = redis_link_add_text(lease.link, "SMEMBERS", "kvfs:loose", NULL);
    if (err == 0)
        err = redis_link_next(lease.link, &r, &why);
    redis_pool_give_back(vs->pool, &lease, err, &why);
    for (size_t i = 0; i < redis_reply_len(r); i++) {
        struct span name = redis_reply_bytes(redis_reply_at(r, i));

        if (is_name(name) && !is_written(vs, (const char *)name.data))
            redis_values_forget(vs, name);
    }
    redis_reply_free(r);
}

void redis_values_tidy(struct redis_values *vs, bool sweep)
{
    struct value_ref *ref;

    if (sweep)
        sweep_loose(vs);
    while ((ref = take_trash(vs)) != NULL) {
        if (remove_pieces(vs, ref) < 0) {
            pthread_mutex_lock(&vs->lock);
            list_insert(&vs->trash, &ref->link);
            pthread_mutex_unlock(&vs->lock);
            return;
        }
        free(ref);
    }
}

/* --- life ----------------------------------------------------------------------------------- */

int redis_values_new(struct redis_pool *pool, uint64_t token, struct redis_values **out)
{
    struct redis_values *vs = calloc(1, sizeof(*vs));

    if (vs == NULL)
        return -ENOMEM;
    vs->pool = pool;
    vs->token = token;
    pthread_mutex_init(&vs->lock, NULL);
    list_init(&vs->looks);
    list_init(&vs->writing);
    list_init(&vs->reading);
    list_init(&vs->trash);
    *out = vs;
    return 0;
}

void redis_values_free(struct redis_values *vs)
{
    if (vs == NULL)
        return;
    while (!list_empty(&vs->trash)) {
        struct value_ref *ref = container_of(vs->trash.next, struct value_ref, link);

        list_remove(&ref->link);
        free(ref);
    }
    pthread_mutex_destroy(&vs->lock);
    free(vs);
}

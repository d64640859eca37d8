/*
 * sim_node.c - nodes: a replica over a disk that outlives it, and what a test may have them do
 * wrong.
 */
#include "tests/lib/sim.h"

#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A store that passes all on to a memory store, as far as the sim's options let it. */
struct sim_disk {
    struct store store;
    struct store *inner;
    struct sim *sim;
    bool broken; /* a put failed: so do all until it is opened again */
    /*
     * The put that failed, where it is on the disk all the same: as with a log that was written and
     * not synced, nobody sees it before the next start.
     */
    bool hides;
    bool hidden_keeps;
    struct buf hidden_key, hidden_record, hidden_value;
};

/* Who sent the first ACCEPT of a write: settling is another client doing it. */
struct sim_writer {
    uint64_t op_id;
    unsigned client;
};

/* --- the disk -------------------------------------------------------------------------------- */

static struct sim_disk *disk_of(struct store *s)
{
    return container_of(s, struct sim_disk, store);
}

static int disk_get(struct store *s, struct span key, bool want_value, struct store_item *out)
{
    struct store *inner = disk_of(s)->inner;

    return inner->ops->get(inner, key, want_value, out);
}

static void disk_hide(struct sim_disk *d, struct span key, struct span record, struct span value,
                      bool keep)
{
    d->hides = true;
    d->hidden_keeps = keep;
    buf_add_span(&d->hidden_key, key);
    buf_add_span(&d->hidden_record, record);
    buf_add_span(&d->hidden_value, value);
}

static void disk_forget_hidden(struct sim_disk *d)
{
    d->hides = false;
    buf_fini(&d->hidden_key);
    buf_fini(&d->hidden_record);
    buf_fini(&d->hidden_value);
}

/* It is opened again: what it hid shows. */
static void disk_reopen(struct sim_disk *d)
{
    int err;

    d->broken = false;
    if (!d->hides)
        return;
    err = d->inner->ops->put(d->inner, buf_span(&d->hidden_key), buf_span(&d->hidden_record),
                             buf_span(&d->hidden_value), NULL, d->hidden_keeps);
    assert(err == 0);
    disk_forget_hidden(d);
}

static int disk_put(struct store *s, struct span key, struct span record, struct span value,
                    struct store_file *file, bool keep)
{
    struct sim_disk *d = disk_of(s);
    const struct sim_opts *opts = &d->sim->opts;
    unsigned fate = (unsigned)rng_below(&d->sim->rng, 1000);

    if (d->broken)
        return -EIO;
    if (fate < opts->lies.skip_put) {
        d->inner->ops->file_abort(file);
        return 0;
    }
    if (fate < opts->fail_put / 2)
        return -ENOSPC;
    if (fate < opts->fail_put) {
        d->broken = true;
        if (file == NULL && rng_chance(&d->sim->rng, 500))
            disk_hide(d, key, record, value, keep); /* the other times it was not stored */
        return -EIO;
    }
    return d->inner->ops->put(d->inner, key, record, value, file, keep);
}

static int disk_drop(struct store *s, struct span key)
{
    struct store *inner = disk_of(s)->inner;

    return inner->ops->drop(inner, key);
}

static int disk_file_begin(struct store *s, uint64_t size, struct store_file **out)
{
    struct store *inner = disk_of(s)->inner;

    return inner->ops->file_begin(inner, size, out);
}

static int disk_iter_new(struct store *s, struct store_iter **out)
{
    struct store *inner = disk_of(s)->inner;

    return inner->ops->iter_new(inner, out);
}

static int disk_state_get(struct store *s, const char *name, struct buf *out)
{
    struct store *inner = disk_of(s)->inner;

    return inner->ops->state_get(inner, name, out);
}

static int disk_state_put(struct store *s, const char *name, struct span value)
{
    struct sim_disk *d = disk_of(s);

    return d->broken ? -EIO : d->inner->ops->state_put(d->inner, name, value);
}

static int disk_stats(struct store *s, struct store_stats *out)
{
    struct store *inner = disk_of(s)->inner;

    return inner->ops->stats(inner, out);
}

static int disk_probe(struct store *s)
{
    return disk_of(s)->broken ? -EIO : 0;
}

static void disk_close(struct store *s)
{
    (void)s; /* the disk stays; sim_node_fini() ends it */
}

static struct store *inner_open(void)
{
    struct store *inner;
    int err = store_memory_open(&inner);

    assert(err == 0);
    return inner;
}

/* Files and iterators are the inner store's own: their calls name no store. */
static const struct store_ops *disk_ops(const struct store_ops *inner)
{
    static struct store_ops ops;

    ops = *inner;
    ops.get = disk_get;
    ops.put = disk_put;
    ops.drop = disk_drop;
    ops.file_begin = disk_file_begin;
    ops.iter_new = disk_iter_new;
    ops.state_get = disk_state_get;
    ops.state_put = disk_state_put;
    ops.stats = disk_stats;
    ops.probe = disk_probe;
    ops.close = disk_close;
    return &ops;
}

static struct sim_disk *disk_new(struct sim *s)
{
    struct sim_disk *d = sim_alloc(sizeof *d);

    d->inner = inner_open();
    d->sim = s;
    d->store.ops = disk_ops(d->inner->ops);
    return d;
}

static void disk_forget_floor(struct sim_disk *d)
{
    struct buf zero = {0};

    buf_u64(&zero, 0);
    d->inner->ops->state_put(d->inner, "floor", buf_span(&zero));
    buf_fini(&zero);
}

/* --- coming and going ------------------------------------------------------------------------ */

static void on_restart(struct timer *t)
{
    sim_node_start(container_of(t, struct sim_node, restart));
}

void sim_node_init(struct sim_node *n, struct sim *s, unsigned index)
{
    n->sim = s;
    n->index = index;
    n->restart.fire = on_restart;
    n->disk = disk_new(s);
    sim_clock_init(&n->clock, s);
    n->clock.slow = s->opts.slow_nodes ? 10 : 0;
    sim_node_start(n);
}

void sim_node_fini(struct sim_node *n)
{
    sim_timer_clear(n->sim, &n->restart);
    replica_close(n->replica);
    n->disk->inner->ops->close(n->disk->inner);
    disk_forget_hidden(n->disk);
    free(n->disk);
}

void sim_node_start(struct sim_node *n)
{
    struct replica_opts opts = {
        .ring = n->sim->ring, .self = n->index, .store = &n->disk->store, .clock = &n->clock.clock};
    struct err why = {""};

    sim_timer_clear(n->sim, &n->restart);
    if (n->replica != NULL)
        return;
    if (n->n_starts++ > 0 && n->sim->opts.lies.forget_floor)
        disk_forget_floor(n->disk);
    disk_reopen(n->disk);
    opts.seed = rng_next(&n->sim->rng);
    if (replica_open(&opts, &n->replica, &why) < 0) {
        fprintf(stderr, "sim: node %u does not start: %s\n", n->index, why.msg);
        abort();
    }
}

void sim_node_crash(struct sim_node *n, uint64_t down_us)
{
    if (n->replica == NULL)
        return;
    replica_close(n->replica);
    n->replica = NULL;
    n->thaw_us = 0;
    if (n->sim->opts.lies.forget_disk)
        sim_node_wipe(n);
    sim_timer_set(n->sim, &n->restart, n->sim->now_us + down_us, NULL);
}

bool sim_node_broken(const struct sim_node *n)
{
    return n->disk->broken;
}

void sim_node_wipe(struct sim_node *n)
{
    assert(n->replica == NULL);
    disk_forget_hidden(n->disk);
    n->disk->inner->ops->close(n->disk->inner);
    n->disk->inner = inner_open();
}

/* --- serving --------------------------------------------------------------------------------- */

/* Who sent it first: noted when it passes for the first time. UINT_MAX: nobody. */
static unsigned writer_of(const struct sim *s, uint64_t op_id)
{
    for (unsigned i = 0; i < s->n_writers; i++) {
        if (s->writers[i].op_id == op_id)
            return s->writers[i].client;
    }
    return UINT_MAX;
}

static void note_writer(struct sim *s, const struct message *m, unsigned client)
{
    if (m->kind != MSG_ACCEPT || m->record.n_recent == 0 ||
        writer_of(s, m->record.recent[0]) != UINT_MAX)
        return;
    s->writers = realloc(s->writers, (s->n_writers + 1) * sizeof *s->writers);
    assert(s->writers != NULL);
    s->writers[s->n_writers++] = (struct sim_writer){m->record.recent[0], client};
}

static bool is_settling(const struct sim *s, const struct message *m, unsigned client)
{
    return m->kind == MSG_ACCEPT && m->record.n_recent > 0 &&
           writer_of(s, m->record.recent[0]) != client;
}

static struct blob *lie_accepted(struct sim_node *n)
{
    struct clock *clock = &n->clock.clock;
    struct answer a = {
        .kind = ANS_ACCEPTED,
        .incarnation = replica_incarnation(n->replica),
        .clock_ms = clock->mono_us(clock) / 1000,
    };
    struct buf bytes = {0};
    struct blob *out;

    answer_encode(&bytes, span_of(NULL, 0), &a);
    out = blob_new(bytes.len);
    assert(out != NULL);
    memcpy(out->data, bytes.data, bytes.len);
    buf_fini(&bytes);
    return out;
}

/* Takes the client's own writes out of what a promise says of its record. Frees `in`. */
static struct blob *lie_none_of_yours(const struct sim *s, struct blob *in, struct span key,
                                      unsigned client)
{
    struct buf head = {0};
    struct answer a;
    struct blob *out;
    size_t head_len;
    uint8_t n = 0;

    if (answer_decode(span_of(in->data, in->len), key, &a, &head_len) < 0 || a.kind != ANS_PROMISE)
        return in;
    for (unsigned i = 0; i < a.record.n_recent; i++) {
        if (writer_of(s, a.record.recent[i]) != client)
            a.record.recent[n++] = a.record.recent[i];
    }
    a.record.seq -= a.record.n_recent - n;
    a.record.n_recent = n;
    answer_encode(&head, key, &a);
    buf_add(&head, in->data + head_len, in->len - head_len);
    out = blob_new(head.len);
    assert(out != NULL);
    memcpy(out->data, head.data, head.len);
    buf_fini(&head);
    blob_unref(in);
    return out;
}

/*
 * In one piece or several, as it would come from a socket; at times the sender goes away in the
 * middle.
 */
static int feed(struct sim_node *n, struct span request, struct reply *out)
{
    struct rng *rng = &n->sim->rng;
    bool whole = !rng_chance(rng, 100), cut = rng_chance(rng, n->sim->net.lose / 4);
    struct replica_request *rq;
    size_t end = cut ? rng_below(rng, request.len) : request.len;

    if (replica_begin(n->replica, request.len, &rq) < 0)
        return -ECONNRESET;
    for (size_t pos = 0, part; pos < end; pos += part) {
        part = whole ? end - pos : rng_between(rng, 1, end - pos);
        if (replica_feed(rq, span_of(request.data + pos, part)) < 0)
            break; /* end() tells why */
    }
    if (cut) {
        replica_abort(rq);
        return -ECONNRESET;
    }
    replica_end(rq, out);
    return 0;
}

static int read_reply(struct sim_node *n, struct reply *reply, struct blob **out)
{
    uint64_t len = reply_len(reply), pos = 0;
    struct blob *bytes = blob_new(len);

    assert(bytes != NULL);
    while (pos < len) {
        int64_t got =
            reply_read(reply, pos, bytes->data + pos, rng_between(&n->sim->rng, 1, len - pos));

        if (got < 0) {
            blob_unref(bytes);
            return -ECONNRESET;
        }
        assert(got > 0);
        pos += (uint64_t)got;
    }
    *out = bytes;
    return 0;
}

int sim_node_serve(struct sim_node *n, unsigned client, struct span request, struct blob **out)
{
    const struct sim_lies *lies = &n->sim->opts.lies;
    struct reply reply = REPLY_NONE;
    struct message m;
    size_t head_len;
    int err;

    if (lies->ignore_settling || lies->hide_own_writes) {
        err = message_decode(request, &m, &head_len);
        assert(err == 0);
        note_writer(n->sim, &m, client);
    }
    if (lies->ignore_settling && is_settling(n->sim, &m, client)) {
        *out = lie_accepted(n);
        return 0;
    }
    err = feed(n, request, &reply);
    if (err == 0)
        err = read_reply(n, &reply, out);
    reply_fini(&reply);
    if (err == 0 && lies->hide_own_writes)
        *out = lie_none_of_yours(n->sim, *out, m.key, client);
    return err;
}

/*
 * sim_disk.c - a store that outlives the processes that use it, over the memory store, and all that
 * can happen to it.
 *
 *   a write fails        done or not, and shows only at the next start; nothing is stored before
 *   a crash in a write   done, not done, or torn: nobody was told that it was
 *   a loss of power      what was not synced since a while is gone, the newest part of it
 *   damage               a byte of a record or of a value is another one, and nobody is told
 *   a new disk           all is gone
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/lib/sim.h"

/* All of a key at one moment; record empty: it was not there. */
struct copy {
    struct buf key, record, value;
};

/* What a put or drop that may still be lost took the place of. */
struct unsynced {
    uint64_t at_us;
    struct copy before;
};

struct sim_disk {
    struct store store;
    struct store *inner;
    struct sim *sim;
    bool broken; /* a put failed: so do all until it is opened again */
    bool dead;   /* nobody uses it: what is left of the last process cannot write */
    /*
     * The put that failed, where it is on the disk all the same: as with a log that was written and
     * not synced, nobody sees it before the next start.
     */
    bool hides, hidden_keeps;
    struct copy hidden;
    /* at the next write, the process ends: */
    struct timer *trap; /* this one is then armed; NULL: none is set */
    bool trap_tears;
    struct unsynced *log; /* oldest first; only where sim_opts.sync_us is set */
    size_t n_log, log_cap;
};

static struct sim_disk *disk_of(struct store *s)
{
    return container_of(s, struct sim_disk, store);
}

/* --- copies ---------------------------------------------------------------------------------- */

static void copy_fini(struct copy *c)
{
    buf_fini(&c->key);
    buf_fini(&c->record);
    buf_fini(&c->value);
}

static void copy_file(struct store_reader *r, struct buf *out)
{
    uint8_t *room = buf_reserve(out, (size_t)r->size);
    int err = room == NULL ? -ENOMEM : r->ops->read(r, room, (size_t)r->size, 0);

    assert(err == 0);
    out->len += (size_t)r->size;
}

static struct copy copy_take(struct sim_disk *d, struct span key)
{
    struct store_item item = STORE_ITEM_NONE;
    struct copy c = {{0}, {0}, {0}};
    int err = d->inner->ops->get(d->inner, key, true, &item);

    assert(err == 0);
    buf_add_span(&c.key, key);
    buf_add_span(&c.record, buf_span(&item.record));
    if (item.large != NULL)
        copy_file(item.large, &c.value);
    else
        buf_add_span(&c.value, value_span(item.value));
    store_item_fini(&item);
    return c;
}

static void inner_put(struct sim_disk *d, struct span key, struct span record, struct span value,
                      bool keep)
{
    const struct store_ops *ops = d->inner->ops;
    struct store_file *file = NULL;
    int err = 0;

    if (value.len > INLINE_VALUE_MAX) {
        err = ops->file_begin(d->inner, value.len, &file);
        if (err == 0)
            err = ops->file_write(file, value);
        value = span_of(NULL, 0);
    }
    if (err == 0)
        err = ops->put(d->inner, key, record, value, file, keep);
    assert(err == 0);
}

static void copy_put_back(struct sim_disk *d, const struct copy *c)
{
    if (c->record.len == 0)
        (void)d->inner->ops->drop(d->inner, buf_span(&c->key));
    else
        inner_put(d, buf_span(&c->key), buf_span(&c->record), buf_span(&c->value), false);
}

/* --- what was not synced --------------------------------------------------------------------- */

static void log_forget(struct sim_disk *d, size_t n)
{
    for (size_t i = 0; i < n; i++)
        copy_fini(&d->log[i].before);
    if (n > 0)
        memmove(d->log, d->log + n, (d->n_log - n) * sizeof *d->log);
    d->n_log -= n;
}

/* Before a change: so that it can be lost. */
static void log_note(struct sim_disk *d, struct span key)
{
    uint64_t now = d->sim->now_us, sync_us = d->sim->opts.sync_us;
    size_t n_old = 0;

    if (sync_us == 0)
        return;
    while (n_old < d->n_log && d->log[n_old].at_us + sync_us < now)
        n_old++;
    log_forget(d, n_old);
    if (d->n_log == d->log_cap) {
        d->log_cap = d->log_cap == 0 ? 16 : 2 * d->log_cap;
        d->log = realloc(d->log, d->log_cap * sizeof *d->log);
        assert(d->log != NULL);
    }
    d->log[d->n_log++] = (struct unsynced){now, copy_take(d, key)};
}

void sim_disk_lose_power(struct sim_disk *d)
{
    uint64_t synced_us = d->sim->now_us - rng_below(&d->sim->rng, d->sim->opts.sync_us + 1);

    while (d->n_log > 0 && d->log[d->n_log - 1].at_us >= synced_us) {
        d->n_log--;
        copy_put_back(d, &d->log[d->n_log].before);
        copy_fini(&d->log[d->n_log].before);
    }
    log_forget(d, d->n_log);
}

/* --- writing --------------------------------------------------------------------------------- */

static void hide(struct sim_disk *d, struct span key, struct span record, struct span value,
                 bool keep)
{
    d->hides = true;
    d->hidden_keeps = keep;
    buf_add_span(&d->hidden.key, key);
    buf_add_span(&d->hidden.record, record);
    buf_add_span(&d->hidden.value, value);
}

/* The process dies while it writes. Is the write done? */
static bool spring_trap(struct sim_disk *d)
{
    struct timer *t = d->trap;

    d->trap = NULL;
    d->dead = true;
    sim_timer_set(d->sim, t, 0, NULL);
    return rng_chance(&d->sim->rng, 500);
}

static int put_in_trap(struct sim_disk *d, struct span key, struct span record, struct span value,
                       struct store_file *file, bool keep)
{
    bool tears = d->trap_tears, done = spring_trap(d);

    if (tears && file == NULL && rng_chance(&d->sim->rng, 500)) {
        inner_put(d, key, record, value, keep);
        sim_disk_damage(d, key);
        return -EIO;
    }
    return done ? d->inner->ops->put(d->inner, key, record, value, file, keep) : -EIO;
}

static int disk_put(struct store *s, struct span key, struct span record, struct span value,
                    struct store_file *file, bool keep)
{
    struct sim_disk *d = disk_of(s);
    const struct sim_opts *opts = &d->sim->opts;
    unsigned fate = (unsigned)rng_below(&d->sim->rng, 1000);

    if (d->broken || d->dead)
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
            hide(d, key, record, value, keep); /* the other times it was not stored */
        return -EIO;
    }
    log_note(d, key);
    if (d->trap != NULL)
        return put_in_trap(d, key, record, value, file, keep);
    return d->inner->ops->put(d->inner, key, record, value, file, keep);
}

static int disk_drop(struct store *s, struct span key)
{
    struct sim_disk *d = disk_of(s);

    if (d->broken || d->dead || (d->trap != NULL && !spring_trap(d)))
        return -EIO;
    log_note(d, key);
    return d->inner->ops->drop(d->inner, key);
}

/* Always synced, and with it all that was written before. */
static int disk_state_put(struct store *s, const char *name, struct span value)
{
    struct sim_disk *d = disk_of(s);

    if (d->broken || d->dead || (d->trap != NULL && !spring_trap(d)))
        return -EIO;
    log_forget(d, d->n_log);
    return d->inner->ops->state_put(d->inner, name, value);
}

/* --- reading --------------------------------------------------------------------------------- */

static int disk_get(struct store *s, struct span key, bool want_value, struct store_item *out)
{
    struct sim_disk *d = disk_of(s);

    if (d->sim->opts.lies.hide_damage && !sim_disk_intact(d, key)) {
        *out = STORE_ITEM_NONE;
        return 0;
    }
    return d->inner->ops->get(d->inner, key, want_value, out);
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

/* Free space is a figure of the machine, and must not make two runs differ. */
static int disk_stats(struct store *s, struct store_stats *out)
{
    struct store *inner = disk_of(s)->inner;
    int err = inner->ops->stats(inner, out);

    out->disk_free = out->disk_total = 1ull << 40;
    return err;
}

static int disk_probe(struct store *s)
{
    return disk_of(s)->broken || disk_of(s)->dead ? -EIO : 0;
}

static void disk_close(struct store *s)
{
    (void)s; /* the disk stays; sim_disk_free() ends it */
}

/* --- damage ---------------------------------------------------------------------------------- */

static void flip(struct sim *s, struct buf *bytes)
{
    bytes->data[rng_below(&s->rng, bytes->len)] ^= (uint8_t)(1u << rng_below(&s->rng, 8));
}

void sim_disk_damage(struct sim_disk *d, struct span key)
{
    struct copy c = copy_take(d, key);

    if (c.record.len == 0)
        goto out;
    flip(d->sim, c.value.len > 0 && rng_chance(&d->sim->rng, 500) ? &c.value : &c.record);
    copy_put_back(d, &c);
out:
    copy_fini(&c);
}

bool sim_disk_intact(struct sim_disk *d, struct span key)
{
    struct copy c = copy_take(d, key);
    struct record rec = {.version = BALLOT_NONE};
    bool intact = c.record.len == 0 || record_decode(buf_span(&c.record), key, &rec) == 0;

    if (intact && record_is_live(&rec))
        intact = c.value.len == rec.size && record_verify(&rec, 0, buf_span(&c.value)) == 0;
    copy_fini(&c);
    return intact;
}

bool sim_disk_get(struct sim_disk *d, struct span key, struct record_copy *rec, struct buf *value)
{
    struct copy c = copy_take(d, key);
    struct record r = {.version = BALLOT_NONE};
    int err = c.record.len == 0 ? 0 : record_decode(buf_span(&c.record), key, &r);

    if (err == 0)
        err = record_copy(&r, rec);
    if (err == 0 && value != NULL)
        buf_add_span(value, buf_span(&c.value));
    copy_fini(&c);
    return err == 0;
}

struct ballot sim_disk_version(struct sim_disk *d, struct span key)
{
    struct store_item item = STORE_ITEM_NONE;
    struct record r = {.version = BALLOT_NONE};
    int err = d->inner->ops->get(d->inner, key, false, &item);

    assert(err == 0);
    if (item.record.len > 0 && record_decode(buf_span(&item.record), key, &r) < 0)
        r.version = BALLOT_NONE;
    store_item_fini(&item);
    return r.version;
}

/* --- coming and going ------------------------------------------------------------------------ */

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

struct sim_disk *sim_disk_new(struct sim *s)
{
    struct sim_disk *d = sim_alloc(sizeof *d);

    d->inner = inner_open();
    d->sim = s;
    d->store.ops = disk_ops(d->inner->ops);
    return d;
}

void sim_disk_free(struct sim_disk *d)
{
    log_forget(d, d->n_log);
    free(d->log);
    copy_fini(&d->hidden);
    d->inner->ops->close(d->inner);
    free(d);
}

struct store *sim_disk_open(struct sim_disk *d)
{
    d->broken = d->dead = false;
    d->trap = NULL;
    if (d->hides)
        inner_put(d, buf_span(&d->hidden.key), buf_span(&d->hidden.record),
                  buf_span(&d->hidden.value), d->hidden_keeps);
    d->hides = false;
    copy_fini(&d->hidden);
    return &d->store;
}

void sim_disk_leave(struct sim_disk *d)
{
    d->dead = true;
}

void sim_disk_trap(struct sim_disk *d, struct timer *t, bool tears)
{
    d->trap = t;
    d->trap_tears = tears;
}

bool sim_disk_trap_tears(const struct sim_disk *d)
{
    return d->trap != NULL && d->trap_tears;
}

bool sim_disk_dead(const struct sim_disk *d)
{
    return d->dead;
}

bool sim_disk_broken(const struct sim_disk *d)
{
    return d->broken;
}

void sim_disk_wipe(struct sim_disk *d)
{
    d->hides = false;
    copy_fini(&d->hidden);
    log_forget(d, d->n_log);
    d->inner->ops->close(d->inner);
    d->inner = inner_open();
}

void sim_disk_forget_floor(struct sim_disk *d)
{
    struct buf zero = {0};

    buf_u64(&zero, 0);
    d->inner->ops->state_put(d->inner, "floor", buf_span(&zero));
    buf_fini(&zero);
}

struct store *sim_disk_inside(struct sim_disk *d)
{
    return d->inner;
}

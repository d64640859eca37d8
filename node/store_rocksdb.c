/*
 * store_rocksdb.c - the store on disk: RocksDB for records and small values, a file each for large
 * ones.
 *
 *   DIR/kvnode.lock   held while open            data_dir.c
 *   DIR/node-id       whose data this is         data_dir.c
 *   DIR/reserve       room for deletes           reserve.c
 *   DIR/in-use        not stopped in good order  boot_mark.c
 *   DIR/damaged*      damaged stores, set aside  set_aside.c
 *   DIR/values/XX/ID  large values               value_file.c
 *   DIR/db            RocksDB, three families:   rocks.c
 *       state   the node's own values, and "format"
 *       meta    key -> where the value is (below), then the record. Listings and version reads
 *               touch this alone
 *       data    key -> u64 id, then the bytes of an inline value
 *
 *   where:  0           nowhere: tombstones and empty values
 *           1, u64 id   in data. The id is new with each value, so that a reader who found record
 *                       and value at two moments notices that they do not belong together, and
 *                       looks again
 *           2, u64 id   in the file ID
 */
#include "node/store_disk.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>

#include "common/limits.h"
#include "common/log.h"

/* A value replaced so often while it is being read: something else is wrong. */
#define GET_TRIES 100
/* So many times in a row, WATCH_PERIOD_US apart: it should have noticed that there is room. */
#define REFUSED_MAX 4u

/* --- where a value is ------------------------------------------------------------------ */

static void where_encode(struct buf *out, struct where w)
{
    buf_u8(out, (uint8_t)w.place);
    if (w.place != PLACE_NONE)
        buf_u64(out, w.id);
}

/* Splits what meta holds. A key without any record would look as if it were not there. */
int where_decode(struct span meta, struct where *out, struct span *record)
{
    struct cursor c = cursor_of(meta);
    struct where w = {.place = (enum place)cursor_u8(&c)};

    if (w.place > PLACE_FILE)
        return -EBADMSG;
    if (w.place != PLACE_NONE)
        w.id = cursor_u64(&c);
    if (c.err < 0 || cursor_left(&c) == 0)
        return -EBADMSG;
    *out = w;
    *record = cursor_bytes(&c, cursor_left(&c));
    return 0;
}

/* --- reading --------------------------------------------------------------------------- */

/* The record of key, appended, and where its value is. An absent key appends nothing. */
static int get_meta(struct disk *s, struct span key, struct buf *record, struct where *where)
{
    struct rocks_slice meta;
    struct span rest;
    int err = rocks_get(s->rocks, ROCKS_META, key, &meta);

    if (err < 0 || meta.bytes.data == NULL)
        return err;
    err = where_decode(meta.bytes, where, &rest);
    if (err == 0) {
        buf_add_span(record, rest);
        err = record->err;
    }
    rocks_slice_fini(&meta);
    return err;
}

/* -EAGAIN: the value has another id than the record names. */
static int get_inline(struct disk *s, struct span key, uint64_t id, struct value *out)
{
    struct rocks_slice data;
    struct cursor c;
    int err = rocks_get(s->rocks, ROCKS_DATA, key, &data);

    if (err < 0)
        return err;
    if (data.bytes.data == NULL)
        return -EAGAIN;
    c = cursor_of(data.bytes);
    if (cursor_u64(&c) != id || c.err < 0)
        err = -EAGAIN;
    else
        err = value_copy(cursor_bytes(&c, cursor_left(&c)), out);
    rocks_slice_fini(&data);
    return err;
}

/* -EAGAIN: the file is gone. */
static int get_file(struct disk *s, uint64_t id, struct store_reader **out)
{
    int fd = value_dir_read(s->values, id);

    if (fd < 0)
        return fd == -ENOENT ? -EAGAIN : fd;
    return store_reader_of_fd(fd, out);
}

/*
 * Record first, value second, and both again when a put came between. Where nobody changed the
 * record meanwhile, a value that does not belong to it is damage.
 */
static int disk_get(struct store *base, struct span key, bool want_value, struct store_item *out)
{
    struct disk *s = disk_of(base);
    struct store_item item = STORE_ITEM_NONE;
    struct where where = {0}, before;
    int err = -EAGAIN;

    for (unsigned i = 0; i < GET_TRIES && err == -EAGAIN; i++) {
        before = where;
        where = (struct where){0};
        buf_clear(&item.record);
        err = get_meta(s, key, &item.record, &where);
        if (err < 0 || !want_value || where.place == PLACE_NONE)
            break;
        if (where.place == PLACE_FILE)
            err = get_file(s, where.id, &item.large);
        else
            err = get_inline(s, key, where.id, &item.value);
        if (err == -EAGAIN && where.place == before.place && where.id == before.id)
            err = -EBADMSG;
    }
    if (err < 0) {
        store_item_fini(&item);
        return err == -EAGAIN ? -EBADMSG : err;
    }
    *out = item;
    return 0;
}

/* --- writing --------------------------------------------------------------------------- */

/*
 * Removes a file that nothing names any more; with everysec only once the log that says so is on
 * the disk.
 */
static void forget_file(struct disk *s, uint64_t id)
{
    if (s->flusher != NULL)
        flusher_forget(s->flusher, id);
    else
        value_dir_remove(s->values, id);
}

static int write_batch(struct disk *s, struct rocks_batch *batch)
{
    int err = rocks_write(batch, s->mode == STORE_FSYNC_ALWAYS);

    if (err == 0 && s->flusher != NULL)
        flusher_wrote(s->flusher);
    return err;
}

/* Writes the change of both families. old: where the value was until now. */
static int write_key(struct disk *s, struct span key, struct span record, struct span value,
                     struct where old, struct where now)
{
    struct rocks_batch *batch = rocks_batch_new(s->rocks);
    struct buf where = {0};
    int err = -ENOMEM;

    where_encode(&where, now);
    if (batch == NULL || where.err < 0)
        goto out;
    rocks_batch_put(batch, ROCKS_META, key, buf_span(&where), record);
    if (now.place == PLACE_INLINE && (old.place != PLACE_INLINE || old.id != now.id))
        rocks_batch_put(batch, ROCKS_DATA, key,
                        span_of(where.data + PLACE_LEN, where.len - PLACE_LEN), value);
    else if (now.place != PLACE_INLINE && old.place == PLACE_INLINE)
        rocks_batch_delete(batch, ROCKS_DATA, key);
    err = write_batch(s, batch);
    if (err == 0 && old.place == PLACE_INLINE && now.place != PLACE_INLINE)
        atomic_store(&s->has_waste, true);
out:
    buf_fini(&where);
    rocks_batch_free(batch);
    return err;
}

static int disk_put(struct store *base, struct span key, struct span record, struct span value,
                    struct store_file *file, bool keep)
{
    struct disk *s = disk_of(base);
    struct where old = {0}, now = {0};
    struct buf present = {0};
    int err;

    assert(value.len == 0 || (file == NULL && !keep));
    if (value.len > INLINE_VALUE_MAX)
        return -EFBIG;
    if (value.len > 0 && !reserve_admits(s->reserve, value.len, true))
        return -ENOSPC;
    reserve_yield(s->reserve);
    err = get_meta(s, key, &present, &old);
    /*
     * A damaged record is replaced as a whole. A file that it may have named is swept at the next
     * start.
     */
    if (err == -EBADMSG && !keep)
        err = 0;
    if (err == 0 && keep && present.len == 0)
        err = -ENOENT;
    buf_fini(&present);
    if (err < 0)
        return err;
    if (keep)
        now = old;
    else if (file != NULL)
        now = (struct where){PLACE_FILE, value_file_id(file)};
    else if (value.len > 0)
        now = (struct where){PLACE_INLINE, value_dir_next_id(s->values)};
    err = write_key(s, key, record, value, old, now);
    if (err == -EIO && file != NULL)
        value_file_leave(file); /* perhaps the log names it */
    if (err < 0)
        return err;
    if (file != NULL)
        value_file_keep(file);
    if (old.place == PLACE_FILE && !keep)
        forget_file(s, old.id);
    return 0;
}

static int disk_drop(struct store *base, struct span key)
{
    struct disk *s = disk_of(base);
    struct where old = {0};
    struct buf present = {0};
    struct rocks_batch *batch;
    int err = get_meta(s, key, &present, &old);

    buf_fini(&present);
    if (err < 0 && err != -EBADMSG)
        return err;
    reserve_yield(s->reserve);
    batch = rocks_batch_new(s->rocks);
    if (batch == NULL)
        return -ENOMEM;
    rocks_batch_delete(batch, ROCKS_META, key);
    rocks_batch_delete(batch, ROCKS_DATA, key);
    err = write_batch(s, batch);
    rocks_batch_free(batch);
    if (err == 0 && old.place == PLACE_FILE)
        forget_file(s, old.id);
    return err;
}

static int disk_file_begin(struct store *base, uint64_t size, struct store_file **out)
{
    struct disk *s = disk_of(base);

    if (atomic_load(&s->broken))
        return -EIO; /* its put would fail, and it would be left lying about */
    if (!reserve_admits(s->reserve, size, false))
        return -ENOSPC;
    return value_file_begin(s->values, size, out);
}

/* --- iterators ------------------------------------------------------------------------- */

struct store_iter {
    struct rocks_iter *it;
};

static int disk_iter_new(struct store *base, struct store_iter **out)
{
    struct store_iter *it = calloc(1, sizeof(*it));

    if (it == NULL)
        return -ENOMEM;
    it->it = rocks_iter_new(disk_of(base)->rocks, ROCKS_META);
    if (it->it == NULL) {
        free(it);
        return -ENOMEM;
    }
    *out = it;
    return 0;
}

static void disk_iter_seek(struct store_iter *it, struct span key)
{
    rocks_iter_seek(it->it, key);
}

static bool disk_iter_valid(struct store_iter *it)
{
    return rocks_iter_valid(it->it);
}

static void disk_iter_next(struct store_iter *it)
{
    rocks_iter_next(it->it);
}

static struct span disk_iter_key(struct store_iter *it)
{
    return rocks_iter_key(it->it);
}

/* Empty where even the place cannot be read: no record decodes from that. */
static struct span disk_iter_record(struct store_iter *it)
{
    struct where where;
    struct span record;

    return where_decode(rocks_iter_value(it->it), &where, &record) < 0 ? (struct span){0} : record;
}

static int disk_iter_err(struct store_iter *it)
{
    return rocks_iter_err(it->it);
}

static void disk_iter_free(struct store_iter *it)
{
    if (it == NULL)
        return;
    rocks_iter_free(it->it);
    free(it);
}

/* --- values of the node ---------------------------------------------------------------- */

int disk_state_get(struct store *base, const char *name, struct buf *out)
{
    struct rocks_slice slice;
    int err = rocks_get(disk_of(base)->rocks, ROCKS_STATE, span_str(name), &slice);

    if (err < 0)
        return err;
    if (slice.bytes.data == NULL)
        return -ENOENT;
    buf_add_span(out, slice.bytes);
    rocks_slice_fini(&slice);
    return out->err;
}

int disk_state_put(struct store *base, const char *name, struct span value)
{
    struct disk *s = disk_of(base);
    struct rocks_batch *batch = rocks_batch_new(s->rocks);
    int err;

    if (batch == NULL)
        return -ENOMEM;
    reserve_yield(s->reserve);
    rocks_batch_put(batch, ROCKS_STATE, span_str(name), value, (struct span){0});
    err = rocks_write(batch, true);
    rocks_batch_free(batch);
    return err;
}

static int disk_stats(struct store *base, struct store_stats *out)
{
    struct disk *s = disk_of(base);
    struct store_stats stats = {0};
    struct statvfs fs;
    int err;

    if (statvfs(s->dir, &fs) < 0)
        return -errno;
    stats.disk_free = (uint64_t)fs.f_bavail * fs.f_frsize;
    stats.disk_total = (uint64_t)fs.f_blocks * fs.f_frsize;
    err = rocks_n_keys(s->rocks, ROCKS_META, &stats.n_keys);
    if (err == 0)
        err = rocks_size(s->rocks, &stats.n_bytes);
    stats.n_bytes += value_dir_size(s->values);
    if (err < 0)
        return err;
    *out = stats;
    return 0;
}

static int disk_damage(struct store *base, struct err *why)
{
    return rocks_damage(disk_of(base)->rocks, why);
}

void disk_tend_room(struct disk *s)
{
    uint64_t room;
    bool may;

    if (rocks_rewrite_room(s->rocks, &room) == 0)
        reserve_for_rewriting(s->reserve, room);
    may = reserve_lets_rewrite(s->reserve, s->rewriting);
    if (may == s->rewriting)
        return;
    reserve_yield(s->reserve);
    rocks_let_rewrite(s->rocks, may);
    s->rewriting = may;
    if (may == s->rest_told) {
        s->rest_told = !may;
        log_event(may ? LOG_LEVEL_INFO : LOG_LEVEL_WARN, may ? "disk-has-room" : "disk-full",
                  "effect=\"tables are %srewritten\"", may ? "" : "not ");
    }
}

static int disk_probe(struct store *base)
{
    int err = disk_state_put(base, "probe", span_str("ok"));

    atomic_store(&disk_of(base)->probed, err);
    if (err == 0)
        atomic_store(&disk_of(base)->worked, true);
    return err;
}

static void disk_tend(struct store *base)
{
    struct disk *s = disk_of(base);

    disk_tend_room(s);
    reserve_tend(s->reserve);
    if (reserve_is_full(s->reserve) && s->rewriting && atomic_exchange(&s->has_waste, false) &&
        !rocks_give_back(s->rocks, ROCKS_DATA))
        atomic_store(&s->has_waste, true);
    if (atomic_load(&s->probed) != -ENOSPC || !atomic_load(&s->worked) ||
        !reserve_suffices(s->reserve))
        atomic_store(&s->n_refused, 0);
    else
        atomic_fetch_add(&s->n_refused, 1);
}

/*
 * The library goes on by itself when a log or a table met the end of the disk, trying every 5 s.
 * But where the disk ended under what it was rewriting it waits for as much room as all of that
 * takes, and refuses all writes until then. Not so one that has not worked since it was opened: it
 * is told of a full disk by something that does not show, and would be opened over and over.
 */
static bool disk_stuck(struct store *base)
{
    return atomic_load(&disk_of(base)->n_refused) >= REFUSED_MAX;
}

const struct store_ops disk_ops = {
    .get = disk_get,
    .put = disk_put,
    .drop = disk_drop,
    .file_begin = disk_file_begin,
    .file_write = value_file_write,
    .file_finish = value_file_finish,
    .file_abort = value_file_abort,
    .iter_new = disk_iter_new,
    .iter_seek = disk_iter_seek,
    .iter_valid = disk_iter_valid,
    .iter_next = disk_iter_next,
    .iter_key = disk_iter_key,
    .iter_record = disk_iter_record,
    .iter_err = disk_iter_err,
    .iter_free = disk_iter_free,
    .state_get = disk_state_get,
    .state_put = disk_state_put,
    .stats = disk_stats,
    .probe = disk_probe,
    .tend = disk_tend,
    .damage = disk_damage,
    .stuck = disk_stuck,
    .close = disk_close,
    .kind = "rocksdb",
};

/*
 * store_rocksdb.c - the store on disk: RocksDB for records and small values, a file each for large
 * ones.
 *
 *   DIR/kvnode.lock   held while open            data_dir.c
 *   DIR/node-id       whose data this is         data_dir.c
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
#include "node/store.h"

#include <assert.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "common/limits.h"
#include "common/list.h"
#include "common/log.h"
#include "node/boot_mark.h"
#include "node/data_dir.h"
#include "node/flusher.h"
#include "node/rocks.h"
#include "node/set_aside.h"
#include "node/value_file.h"
#include "node/wal_tail.h"

#define FORMAT 1u
/* A value replaced so often while it is being read: something else is wrong. */
#define GET_TRIES 100

enum place { PLACE_NONE, PLACE_INLINE, PLACE_FILE };
#define PLACE_LEN 1u /* encoded; the id follows */

struct where {
    enum place place;
    uint64_t id;
};

struct disk {
    struct store base;
    enum store_fsync mode;
    char *dir;
    int lock_fd;
    struct rocks *rocks;
    struct value_dir *values;
    struct flusher *flusher; /* with STORE_FSYNC_EVERYSEC, else NULL */
    /* A write or sync failed, in the database or a value's file: so do all later ones. */
    atomic_bool broken;
    bool trusted; /* the boot mark is as this mode needs it */
};

static struct disk *disk_of(struct store *s)
{
    return container_of(s, struct disk, base);
}

/* --- where a value is ------------------------------------------------------------------ */

static void where_encode(struct buf *out, struct where w)
{
    buf_u8(out, (uint8_t)w.place);
    if (w.place != PLACE_NONE)
        buf_u64(out, w.id);
}

/* Splits what meta holds. A key without any record would look as if it were not there. */
static int where_decode(struct span meta, struct where *out, struct span *record)
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
static int get_file(struct disk *s, uint64_t id, int *out)
{
    int fd = value_dir_read(s->values, id);

    if (fd < 0)
        return fd == -ENOENT ? -EAGAIN : fd;
    *out = fd;
    return 0;
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
            err = get_file(s, where.id, &item.fd);
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

static int disk_state_get(struct store *base, const char *name, struct buf *out)
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

static int disk_state_put(struct store *base, const char *name, struct span value)
{
    struct rocks_batch *batch = rocks_batch_new(disk_of(base)->rocks);
    int err;

    if (batch == NULL)
        return -ENOMEM;
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
    if (err < 0)
        return err;
    *out = stats;
    return 0;
}

static int disk_damage(struct store *base, struct err *why)
{
    return rocks_damage(disk_of(base)->rocks, why);
}

static int disk_probe(struct store *base)
{
    return disk_state_put(base, "probe", span_str("ok"));
}

/* --- opening and closing --------------------------------------------------------------- */

static void disk_close(struct store *base)
{
    struct disk *s = disk_of(base);
    bool all_synced;
    int err = 0;

    flusher_stop(s->flusher);
    /* A stop in good order loses nothing, whatever the mode. A failure is logged there. */
    if (s->rocks != NULL && s->mode != STORE_FSYNC_ALWAYS)
        err = rocks_sync(s->rocks);
    all_synced = s->trusted && err == 0 && !atomic_load(&s->broken);
    rocks_close(s->rocks);
    value_dir_close(s->values);
    if (all_synced)
        (void)boot_mark_clear(s->dir); /* what stays makes the next start careful, no more */
    if (s->lock_fd >= 0)
        close(s->lock_fd);
    free(s->dir);
    free(s);
}

static const struct store_ops disk_ops = {
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
    .damage = disk_damage,
    .close = disk_close,
};

/* A new database gets its format written down, an old one must have one that is known here. */
static int check_format(struct disk *s, bool *fresh, struct err *err)
{
    struct buf text = {0};
    int ret = disk_state_get(&s->base, "format", &text);
    uint8_t format = FORMAT;

    if (ret == -ENOENT) {
        *fresh = true;
        ret = disk_state_put(&s->base, "format", span_of(&format, 1));
    } else if (ret == 0 && (text.len != 1 || text.data[0] == 0 || text.data[0] > FORMAT)) {
        ret = -EPROTO;
    }
    if (ret == -EPROTO)
        err_set(err, ret, "%s was written by a newer kvnode", s->dir);
    else if (ret < 0)
        err_set(err, ret, "%s: cannot read or write its format: %s", s->dir, strerror(-ret));
    buf_fini(&text);
    return ret;
}

/* The ids of all files that some record names, as u64 in host order. */
static int named_files(struct disk *s, struct buf *out)
{
    struct rocks_iter *it = rocks_iter_new(s->rocks, ROCKS_META);
    int err = it != NULL ? 0 : -ENOMEM;

    if (it == NULL)
        return err;
    for (rocks_iter_seek(it, (struct span){0}); err == 0 && rocks_iter_valid(it);
         rocks_iter_next(it)) {
        struct span record;
        struct where w;

        err = where_decode(rocks_iter_value(it), &w, &record);
        if (err == 0 && w.place == PLACE_FILE)
            buf_add(out, &w.id, sizeof(w.id));
        if (err == 0)
            err = out->err;
    }
    if (err == 0)
        err = rocks_iter_err(it);
    rocks_iter_free(it);
    return err;
}

/*
 * Removes what a crash left of values that were not yet, or no longer, named. Where that cannot be
 * told for sure, all stay.
 */
static void sweep_orphans(struct disk *s)
{
    struct buf ids = {0};
    int n = value_dir_used(s->values);

    if (n > 0) {
        n = named_files(s, &ids);
        if (n == 0)
            n = value_dir_sweep(s->values, (uint64_t *)(void *)ids.data,
                                ids.len / sizeof(uint64_t));
    }
    if (n < 0)
        log_event(LOG_LEVEL_WARN, "sweep-skipped", "dir=%s error=%s",
                  log_quote(s->dir, strlen(s->dir)), strerror(-n));
    else if (n > 0)
        log_event(LOG_LEVEL_INFO, "swept", "dir=%s files=%d", log_quote(s->dir, strlen(s->dir)), n);
    buf_fini(&ids);
}

/* DIR/name, or NULL without memory; the caller frees it. */
static char *path_in(const struct disk *s, const char *name)
{
    struct buf path = {0};

    buf_addf(&path, "%s/%s", s->dir, name);
    buf_u8(&path, 0);
    if (path.err < 0)
        buf_fini(&path);
    return (char *)path.data;
}

/* forgive: as for rocks_open(). A log that a loss of power has torn is no damage. */
static int open_database(struct disk *s, const char *path, bool forgive, struct err *err)
{
    int ret = rocks_open(path, forgive, &s->broken, &s->rocks, err);
    bool torn = false;

    if (ret != -EBADMSG || forgive || wal_tail_check(path, &torn) < 0 || !torn)
        return ret;
    log_event(LOG_LEVEL_WARN, "log-torn",
              "dir=%s effect=\"its last write, which was not "
              "acknowledged, is dropped\"",
              log_quote(path, strlen(path)));
    return rocks_open(path, true, &s->broken, &s->rocks, err);
}

static int open_parts(struct disk *s, bool forgive, bool *fresh, struct err *err)
{
    char *db = path_in(s, "db"), *values = path_in(s, "values");
    int ret;

    if (db == NULL || values == NULL) {
        ret = err_set(err, -ENOMEM, "no memory");
        goto out;
    }
    /*
     * With everysec large values are synced as with always: were one not on the disk before the log
     * that names it, a power loss could leave a damaged value where the old one was.
     */
    ret = value_dir_open(values, s->mode != STORE_FSYNC_NEVER, &s->broken, &s->values, err);
    if (ret == 0)
        ret = open_database(s, db, forgive, err);
    if (ret == 0)
        ret = data_dir_sync(s->dir, err);
    if (ret == 0)
        ret = check_format(s, fresh, err);
out:
    free(db);
    free(values);
    return ret;
}

static int disk_new(const char *dir, enum store_fsync mode, struct disk **out)
{
    struct disk *s = calloc(1, sizeof(*s));

    if (s == NULL)
        return -ENOMEM;
    s->dir = strdup(dir);
    if (s->dir == NULL) {
        free(s);
        return -ENOMEM;
    }
    s->base.ops = &disk_ops;
    s->mode = mode;
    s->lock_fd = -1;
    *out = s;
    return 0;
}

static void close_parts(struct disk *s)
{
    rocks_close(s->rocks);
    value_dir_close(s->values);
    s->rocks = NULL;
    s->values = NULL;
}

/* What is damaged is set aside, and a new one opened in its place: once. */
static int open_or_set_aside(struct disk *s, bool forgive, bool *fresh, struct err *err)
{
    int ret = set_aside_noted(s->dir, err);

    if (ret == 0)
        ret = open_parts(s, forgive, fresh, err);
    if (ret != -EBADMSG)
        return ret;
    close_parts(s);
    ret = store_rocksdb_condemn(s->dir, err->msg, err);
    if (ret == 0)
        ret = set_aside_noted(s->dir, err);
    if (ret == 0)
        ret = open_parts(s, false, fresh, err);
    return ret;
}

/* The mark as this mode needs it. */
static int set_mark(struct disk *s)
{
    int err = s->mode == STORE_FSYNC_ALWAYS ? boot_mark_clear(s->dir) : boot_mark_set(s->dir);

    s->trusted = err == 0;
    return err;
}

int store_rocksdb_trust(struct store *base)
{
    return set_mark(disk_of(base));
}

int store_rocksdb_condemn(const char *dir, const char *why, struct err *err)
{
    struct err reason;

    (void)err_set(&reason, 0, "%s", why); /* it may be err's own */
    return set_aside_note(dir, reason.msg, err);
}

/*
 * Opens what is in the directory, which is locked. Where a loss of power may have taken any of what
 * was not synced, the log may have holes: what is before the first is as good as it gets.
 */
static int open_locked(struct disk *s, bool *fresh, bool *distrusted, struct err *err)
{
    bool lost = false;
    int ret = boot_mark_check(s->dir, &lost);

    if (ret == 0) {
        ret = open_or_set_aside(s, lost, fresh, err);
        if (ret < 0)
            return ret;
        ret = boot_mark_check(s->dir, distrusted); /* it may have been set aside, too */
    }
    if (ret == 0 && !*distrusted)
        ret = set_mark(s);
    if (ret < 0)
        return err_set(err, ret, "%s: cannot tell how it was stopped: %s", s->dir, strerror(-ret));
    sweep_orphans(s);
    if (s->mode == STORE_FSYNC_EVERYSEC)
        ret = flusher_start(s->rocks, s->values, &s->flusher);
    return ret < 0 ? err_set(err, ret, "cannot start a thread: %s", strerror(-ret)) : 0;
}

int store_rocksdb_open(const char *dir, const char *node_id, enum store_fsync mode,
                       struct store **out, bool *fresh, bool *distrusted, struct err *err)
{
    struct disk *s;
    bool is_new = false, is_lossy = false;
    int ret = disk_new(dir, mode, &s);

    if (ret < 0)
        return err_set(err, ret, "no memory");
    ret = data_dir_open(dir, node_id, &s->lock_fd, err);
    if (ret == 0)
        ret = open_locked(s, &is_new, &is_lossy, err);
    if (ret < 0) {
        disk_close(&s->base);
        return ret;
    }
    *fresh = is_new;
    *distrusted = is_lossy;
    *out = &s->base;
    return 0;
}

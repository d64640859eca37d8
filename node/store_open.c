/*
 * store_open.c - the store on disk, opened and closed: what is damaged is set aside, what a crash
 * left is swept.
 */
#include "node/store_disk.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/log.h"
#include "node/boot_mark.h"
#include "node/data_dir.h"
#include "node/set_aside.h"
#include "node/wal_tail.h"

#define FORMAT 1u

void disk_close(struct store *base)
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
    reserve_close(s->reserve);
    if (all_synced)
        (void)boot_mark_clear(s->dir); /* what stays makes the next start careful, no more */
    if (s->lock_fd >= 0)
        close(s->lock_fd);
    free(s->dir);
    free(s);
}

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

/* What a person can do about it. */
static int explain(int ret, struct err *err)
{
    const char *how = ret == -EIO ? "where the disk is dying, replace it, and start on an empty "
                                    "directory"
                      : ret == -ENOSPC ? "opening needs some room"
                                       : NULL;
    struct err what = *err;

    return how == NULL ? ret : err_set(err, ret, "%s (nothing was changed; %s)", what.msg, how);
}

/* What is damaged is set aside, and a new one opened in its place: once. */
static int open_or_set_aside(struct disk *s, bool forgive, bool *fresh, struct err *err)
{
    int ret = set_aside_noted(s->dir, err);

    if (ret == 0)
        ret = open_parts(s, forgive, fresh, err);
    if (ret != -EBADMSG)
        return explain(ret, err);
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
 * Damage that shows while the store is in use is noted at once: whatever ends this process before
 * it has stopped by itself, the next start must not take the store for a good one again. Where the
 * limits forbid the note, that is for him who stops because of it to tell (store.h, damage()).
 */
static void on_damage(void *arg, const char *why)
{
    const struct disk *s = arg;
    struct err err;

    if (set_aside_note(s->dir, why, &err) < 0)
        log_event(LOG_LEVEL_ERROR, "store-damage-not-noted", "error=%s",
                  log_quote(err.msg, strlen(err.msg)));
}

/* On a full disk the database may never keep up: a request would take a thread away for good. */
static bool may_wait(void *arg)
{
    const struct disk *s = arg;

    return reserve_has_room(s->reserve);
}

/*
 * Opens what is in the directory, which is locked. Where a loss of power may have taken any of what
 * was not synced, the log may have holes: what is before the first is as good as it gets.
 */
static int open_locked(struct disk *s, bool *fresh, bool *distrusted, struct err *err)
{
    bool lost = false;
    int ret = reserve_open(s->dir, &s->reserve, err);

    if (ret < 0)
        return ret;
    ret = boot_mark_check(s->dir, &lost);
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
    rocks_on_damage(s->rocks, on_damage, s);
    rocks_on_stall(s->rocks, may_wait, s);
    disk_tend_room(s);
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

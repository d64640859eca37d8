/*
 * file.c - an open file: its view, brought up to date, written and cut. file_read.c reads it,
 * file_store.c stores it.
 */
#include "fs/file.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/limits.h"
#include "common/log.h"
#include "fs/core.h"

#define WAIT_STEP_MS 100

/* --- life ------------------------------------------------------------------------------------- */

static void file_free(struct file *f)
{
    file_drop_window_locked(f);
    content_fini(&f->base);
    buf_fini(&f->tail);
    value_fini(&f->unsure);
    pthread_cond_destroy(&f->changed);
    pthread_mutex_destroy(&f->lock);
    free(f);
}

static struct file *file_new(void)
{
    struct file *f = calloc(1, sizeof(*f));
    pthread_condattr_t attr;

    if (f == NULL)
        return NULL;
    list_init(&f->link);
    pthread_mutex_init(&f->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&f->changed, &attr);
    pthread_condattr_destroy(&attr);
    return f;
}

int file_get(struct fs *fs, struct inode *in, struct file **out)
{
    struct file *f = inode_file(fs->inodes, in);
    struct file *fresh;

    if (f == NULL) {
        fresh = file_new();
        if (fresh == NULL)
            return -ENOMEM;
        f = inode_attach(fs->inodes, in, fresh);
        if (f != fresh)
            file_free(fresh); /* another thread was first */
    }
    *out = f;
    return 0;
}

void file_put(struct fs *fs, struct file *f)
{
    if (f != NULL && inode_detach(fs->inodes, f))
        file_free(f);
}

/* --- small facts ------------------------------------------------------------------------------ */

uint64_t file_size_locked(const struct file *f)
{
    return (f->loaded ? content_size(&f->base) : f->base_size) + f->tail.len;
}

bool file_is_dirty_locked(const struct file *f)
{
    return f->whole || f->pending || f->tail.len > 0;
}

void file_drop_window_locked(struct file *f)
{
    for (unsigned i = 0; i < WINDOW_CHUNKS; i++) {
        if (f->window[i].coming)
            continue; /* whoever fetches it sees that the version has moved */
        value_fini(&f->window[i].v);
        f->window[i].used = 0;
    }
}

static void meta_locked(const struct file *f, struct meta *out)
{
    *out = f->meta;
    out->size = file_size_locked(f);
}

bool file_dirty_meta(struct file *f, struct meta *out)
{
    bool dirty;

    pthread_mutex_lock(&f->lock);
    dirty = file_is_dirty_locked(f);
    if (dirty)
        meta_locked(f, out);
    pthread_mutex_unlock(&f->lock);
    return dirty;
}

bool file_pending(struct file *f)
{
    bool pending;

    pthread_mutex_lock(&f->lock);
    pending = f->pending;
    pthread_mutex_unlock(&f->lock);
    return pending;
}

bool file_only_emptied(struct file *f)
{
    bool emptied;

    pthread_mutex_lock(&f->lock);
    emptied = f->emptied && file_is_dirty_locked(f) && f->tail.len == 0;
    pthread_mutex_unlock(&f->lock);
    return emptied;
}

bool file_known_meta(struct file *f, struct meta *out)
{
    bool known;

    pthread_mutex_lock(&f->lock);
    known = f->known;
    if (known)
        meta_locked(f, out);
    pthread_mutex_unlock(&f->lock);
    return known;
}

void file_meta(struct file *f, struct meta *out)
{
    pthread_mutex_lock(&f->lock);
    meta_locked(f, out);
    pthread_mutex_unlock(&f->lock);
}

static bool is_fresh_locked(const struct file *f)
{
    return f->pending || (f->fresh && file_is_dirty_locked(f));
}

bool file_is_fresh(struct file *f)
{
    bool fresh;

    pthread_mutex_lock(&f->lock);
    fresh = is_fresh_locked(f);
    pthread_mutex_unlock(&f->lock);
    return fresh;
}

bool file_change_fresh(struct file *f, const struct attr_change *ch)
{
    bool done;

    pthread_mutex_lock(&f->lock);
    done = is_fresh_locked(f);
    if (done) {
        meta_apply(&f->meta, ch, attr_now_ns());
        attr_change_add(&f->asked, ch);
        f->gen++;
    }
    pthread_mutex_unlock(&f->lock);
    return done;
}

void file_set_meta(struct file *f, const struct attr_change *ch, const struct meta *m,
                   struct ballot prev, struct ballot next)
{
    int64_t written_ns;

    pthread_mutex_lock(&f->lock);
    written_ns = f->meta.mtime_ns;
    f->meta = *m;
    if (file_is_dirty_locked(f) && !(ch->set & CHANGE_MTIME))
        f->meta.mtime_ns = written_ns;
    if (ch->set & CHANGE_MODE)
        f->unprivileged = false; /* set after what was written */
    if (ballot_cmp(f->version, prev) == 0)
        f->version = next; /* the value is the same */
    pthread_mutex_unlock(&f->lock);
}

static void changed_locked(struct fs *fs, const struct caller *who, struct file *f)
{
    inode_drop_seen(fs->inodes, f->inode);
    follow_mix_pages(fs->follow, f->inode);
    f->gen++;
    f->meta.mtime_ns = f->meta.ctime_ns = attr_now_ns();
    if (!caller_keeps_privileges(who)) {
        f->meta.mode = attr_drop_privileges(f->meta.mode);
        f->unprivileged = true;
    }
}

/* --- exclusive work --------------------------------------------------------------------------- */

void file_wait_step_locked(struct file *f)
{
    struct timespec until;

    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += WAIT_STEP_MS * 1000000l;
    if (until.tv_nsec >= 1000000000l) {
        until.tv_nsec -= 1000000000l;
        until.tv_sec++;
    }
    pthread_cond_timedwait(&f->changed, &f->lock, &until);
}

int file_wait_idle_locked(struct caller *who, struct file *f)
{
    while (f->busy) {
        if (caller_stopped(who))
            return -EINTR;
        file_wait_step_locked(f);
    }
    return 0;
}

int file_hold(struct caller *who, struct file *f)
{
    int err;

    pthread_mutex_lock(&f->lock);
    err = file_wait_idle_locked(who, f);
    if (err == 0)
        f->busy = true;
    pthread_mutex_unlock(&f->lock);
    return err;
}

void file_unhold(struct file *f)
{
    pthread_mutex_lock(&f->lock);
    f->busy = false;
    pthread_cond_broadcast(&f->changed);
    pthread_mutex_unlock(&f->lock);
}

void file_moved_held(struct file *f)
{
    pthread_mutex_lock(&f->lock);
    f->version = BALLOT_NONE;
    pthread_mutex_unlock(&f->lock);
}

/* --- bringing the view up to date ------------------------------------------------------------- */

/* Takes a value, or its beginning, over as the base. */
static void set_base_locked(struct fs *fs, struct file *f, struct ballot version, uint64_t size,
                            struct value *v)
{
    if (ballot_cmp(version, follow_pages(fs->follow, f->inode).version) != 0)
        follow_mix_pages(fs->follow, f->inode);
    file_drop_window_locked(f);
    f->version = version;
    f->base_size = size;
    f->loaded = size == v->len;
    content_set(&f->base, f->loaded ? *v : (struct value){0});
    f->clock = 0;
    if (!f->loaded && !f->window[0].coming && v->len > 0)
        f->window[0] = (struct chunk){.index = 0, .used = 1, .v = *v};
    else if (!f->loaded)
        value_fini(v);
    *v = (struct value){0};
}

/* What the cluster said counts, unless this mount changed the file meanwhile, or knows newer. */
static void install(struct fs *fs, struct file *f, uint64_t gen, const struct meta *m,
                    struct ballot version, struct value *v, bool have_value)
{
    pthread_mutex_lock(&f->lock);
    if (f->gen == gen && !file_is_dirty_locked(f) &&
        (!f->known || ballot_cmp(version, f->version) >= 0)) {
        if (!f->known || have_value || ballot_cmp(version, f->version) != 0)
            set_base_locked(fs, f, version, m->size, v);
        f->meta = *m;
        f->known = true;
    }
    pthread_mutex_unlock(&f->lock);
}

/* One read for refresh(): pinned to what the lookup just saw, if that is known, for that needs one
 * replica only. */
static int read_base(struct fs *fs, struct caller *who, struct inode *in, struct span key,
                     bool want, const struct found *seen, struct read_result *out)
{
    struct read_args args = {.key = key,
                             .want_value = want,
                             .length = want ? CHUNK_SIZE : 0,
                             .peek = follow_is_named(fs->follow, in, core_now_us())};
    int err;

    if (seen != NULL) {
        args.pin = seen->version;
        err = core_read(fs, who, &args, out);
        if (err != -ESTALE)
            return err;
        read_result_fini(out);
        args.pin = BALLOT_NONE;
    }
    err = core_read(fs, who, &args, out);
    if (err == 0 && out->has_child) { /* a directory hides the file now: the kernel has to look */
        follow_set_named(fs->follow, in, 0);
        err = -ESTALE;
    }
    return err;
}

/* The attributes that came with what was read; mark NULL: it was one replica's word. */
static void keep_read(struct fs *fs, struct inode *in, struct span key, const struct meta *m,
                      const struct read_result *res, const struct follow_mark *mark)
{
    struct found found = {
        .kind = INODE_FILE, .meta = *m, .version = res->rec.rec.version, .followed = res->followed};

    follow_saw(fs->follow, in, key, found.version);
    if (mark != NULL)
        follow_keep(fs->follow, in, key, &found, mark);
}

/* Asks the cluster for version, attributes and (want) the value, or as much of a large one as a
 * chunk holds. */
static int refresh(struct fs *fs, struct caller *who, struct file *f, bool want)
{
    struct read_result res = {0};
    struct buf key = {0};
    struct found seen;
    /* Where the kernel walks over names without asking, that may be of an earlier call. */
    bool was_seen = !follow_is_named(fs->follow, f->inode, core_now_us()) &&
                    inode_take_seen(fs->inodes, f->inode, who->pid, core_now_us(), false, &seen);
    struct follow_mark mark = {0};
    bool have;
    uint64_t gen;
    int err;

    pthread_mutex_lock(&f->lock);
    gen = f->gen;
    have = f->known && f->loaded;
    if (have && was_seen && ballot_cmp(f->version, seen.version) == 0)
        want = false;
    pthread_mutex_unlock(&f->lock);
    if (was_seen && (!want || seen.meta.size == 0)) {
        install(fs, f, gen, &seen.meta, seen.version, &res.value, seen.meta.size == 0);
        return 0;
    }
    err = inode_last_key(fs->inodes, f->inode, &key);
    if (err == 0) {
        mark = follow_mark(fs->follow, buf_span(&key), buf_span(&key));
        err = read_base(fs, who, f->inode, buf_span(&key), want, was_seen ? &seen : NULL, &res);
    }
    if (err == 0 && !record_is_live(&res.rec.rec))
        err = -ENOENT;
    if (err == 0) {
        struct meta m = meta_of_record(&fs->defaults, &res.rec.rec, false);

        if (S_ISREG(m.mode)) {
            keep_read(fs, f->inode, buf_span(&key), &m, &res, was_seen ? NULL : &mark);
            install(fs, f, gen, &m, res.rec.rec.version, &res.value, want);
        } else
            err = -ESTALE; /* replaced by something else: the kernel walks the path again */
    }
    read_result_fini(&res);
    buf_fini(&key);
    return err;
}

/* Fetches the whole base. busy is ours; the lock is held, but not while waiting. */
static int fetch_base_locked(struct fs *fs, struct caller *who, struct file *f)
{
    struct read_result res = {0};
    /* Who has read a part of one version must not get the rest of another. */
    struct read_args args = {
        .want_value = true, .length = READ_ALL, .pin = f->clock > 0 ? f->version : BALLOT_NONE};
    struct buf key = {0};
    int err;

    pthread_mutex_unlock(&f->lock);
    err = inode_last_key(fs->inodes, f->inode, &key);
    args.key = buf_span(&key);
    if (err == 0)
        err = core_read(fs, who, &args, &res);
    buf_fini(&key);
    pthread_mutex_lock(&f->lock);
    if (err == 0 && !f->loaded) { /* it may have been cut to nothing meanwhile */
        bool live = record_is_live(&res.rec.rec);

        if (live)
            set_base_locked(fs, f, res.rec.rec.version, res.rec.rec.size, &res.value);
        else if (f->tail.len >
                 0) /* deleted elsewhere while we append: what we wrote starts it anew */
            set_base_locked(fs, f, BALLOT_NONE, 0, &res.value);
        else
            err = -ESTALE;
    }
    read_result_fini(&res);
    return err;
}

int file_load_locked(struct fs *fs, struct caller *who, struct file *f)
{
    int err = 0;

    while (err == 0 && !f->loaded) {
        err = file_wait_idle_locked(who, f);
        if (err < 0 || f->loaded)
            break;
        f->busy = true;
        err = fetch_base_locked(fs, who, f);
        f->busy = false;
        pthread_cond_broadcast(&f->changed);
    }
    return err;
}

int file_load_held(struct fs *fs, struct caller *who, struct file *f)
{
    int err = 0;

    pthread_mutex_lock(&f->lock);
    if (f->known && !f->loaded)
        err = fetch_base_locked(fs, who, f);
    pthread_mutex_unlock(&f->lock);
    return err;
}

/* --- opening ---------------------------------------------------------------------------------- */

static void empty_locked(struct fs *fs, const struct caller *who, struct file *f)
{
    bool clean = !file_is_dirty_locked(f);

    file_drop_window_locked(f);
    content_set(&f->base, (struct value){0});
    f->loaded = true;
    buf_clear(&f->tail);
    value_fini(&f->unsure);
    f->emptied = clean || f->emptied;
    f->whole = true;
    f->edits = false;
    changed_locked(fs, who, f);
}

static bool must_refresh(struct fs *fs, struct file *f, bool truncate)
{
    bool gone = inode_is_gone(fs->inodes, f->inode);
    bool must;

    pthread_mutex_lock(&f->lock);
    must = !f->known || (!gone && !truncate && !file_is_dirty_locked(f));
    pthread_mutex_unlock(&f->lock);
    return must;
}

/* Does the kernel have pages of the file, and all of the version that is open now? */
static bool pages_serve(struct fs *fs, struct file *f)
{
    struct ballot pages = follow_pages(fs->follow, f->inode).version;
    bool serve;

    pthread_mutex_lock(&f->lock);
    serve = !ballot_is_none(pages) && f->known && ballot_cmp(f->version, pages) == 0;
    pthread_mutex_unlock(&f->lock);
    return serve;
}

static bool is_loaded(struct file *f)
{
    bool loaded;

    pthread_mutex_lock(&f->lock);
    loaded = f->known && f->loaded;
    pthread_mutex_unlock(&f->lock);
    return loaded;
}

/* Nearly every program asks for the attributes of what it has just opened: they are known. */
static void tell_opener_locked(struct fs *fs, struct caller *who, struct file *f)
{
    struct found found = {.kind = INODE_FILE, .version = f->version};

    meta_locked(f, &found.meta);
    inode_set_seen(fs->inodes, f->inode, who->pid, core_now_us() + SEEN_US, false, &found);
}

int file_open(struct fs *fs, struct caller *who, struct file *f, const struct open_mode *mode)
{
    bool truncate = mode->truncate && mode->write;
    bool want = mode->read || (mode->write && !mode->append);
    int err;

    /*
     * Twice at most: what is loaded, or the kernel has, may turn out to be old, and only then its
     * value is asked for.
     * What lost its name between lookup and open is read as what has the name now.
     */
    for (bool asked = false; !asked && must_refresh(fs, f, truncate);) {
        if (mode->write && inode_is_gone(fs->inodes, f->inode))
            return -ESTALE;
        asked = want && !truncate && !is_loaded(f) &&
                ballot_is_none(follow_pages(fs->follow, f->inode).version);
        err = refresh(fs, who, f, asked);
        if (err < 0)
            return err;
        if (!want || truncate || is_loaded(f) || pages_serve(fs, f))
            break;
    }
    pthread_mutex_lock(&f->lock);
    f->n_open++;
    if (truncate)
        empty_locked(fs, who, f);
    tell_opener_locked(fs, who, f);
    pthread_mutex_unlock(&f->lock);
    return 0;
}

void file_open_new(struct fs *fs, const struct caller *who, struct file *f, const struct meta *m,
                   struct ballot version, const struct open_mode *mode)
{
    pthread_mutex_lock(&f->lock);
    f->n_open++;
    if (!f->known || !file_is_dirty_locked(f)) {
        file_drop_window_locked(f);
        content_set(&f->base, (struct value){0});
        f->known = f->loaded = f->fresh = f->emptied = true;
        f->meta = *m;
        f->asked.set = 0;
        f->version = version;
        f->pending = ballot_is_none(version);
        f->whole = f->pending && mode->truncate;
        f->gen++;
        follow_mix_pages(fs->follow, f->inode);
    } else if (mode->truncate) {
        empty_locked(fs, who, f);
    }
    pthread_mutex_unlock(&f->lock);
}

/* Nobody has it open any more, and it could not be stored: the view is void. */
static void discard(struct fs *fs, struct file *f, int why)
{
    struct buf key = {0};
    bool lost;

    pthread_mutex_lock(&f->lock);
    lost = f->n_open == 0 && file_is_dirty_locked(f);
    if (lost) {
        f->whole = f->pending = f->known = f->loaded = false;
        buf_clear(&f->tail);
        content_set(&f->base, (struct value){0});
        f->gen++;
        follow_mix_pages(fs->follow, f->inode);
    }
    pthread_mutex_unlock(&f->lock);
    if (lost && inode_key(fs->inodes, f->inode, &key) == 0)
        log_event(LOG_LEVEL_ERROR, "not_stored", "key=%s error=%s", log_quote(key.data, key.len),
                  strerrorname_np(-why));
    buf_fini(&key);
}

int file_close(struct fs *fs, struct caller *who, struct file *f)
{
    bool last, dirty, tried;
    int err;

    pthread_mutex_lock(&f->lock);
    last = --f->n_open == 0;
    dirty = file_is_dirty_locked(f);
    tried = f->failed_gen == f->gen;
    err = dirty && tried ? f->failed_err : 0;
    pthread_mutex_unlock(&f->lock);
    if (!last || !dirty)
        return 0;
    /* After a close that failed the program thinks that nothing was stored, so it must not be
     * stored later. */
    if (!tried)
        err = file_store(fs, who, f);
    if (err < 0)
        discard(fs, f, err);
    return err;
}

/* --- writing ---------------------------------------------------------------------------------- */

/* Loads the base and puts the tail behind it: the view as one piece, to be changed anywhere. */
static int unfold_locked(struct fs *fs, struct caller *who, struct file *f)
{
    int err = file_load_locked(fs, who, f);

    if (err == 0 && !f->whole)
        f->edits = !f->pending && !ballot_is_none(f->version);
    if (err == 0 && f->tail.len > 0) {
        err = content_write(&f->base, content_size(&f->base), buf_span(&f->tail));
        if (err == 0) {
            buf_clear(&f->tail);
            value_fini(&f->unsure);
            f->whole = true; /* no longer an append */
        }
    }
    return err;
}

static int append_locked(struct file *f, struct span data)
{
    if (f->whole)
        return content_write(&f->base, content_size(&f->base), data);
    buf_add_span(&f->tail, data);
    if (f->tail.err == 0)
        return 0;
    f->tail.err = 0; /* what was there before still is */
    return -ENOMEM;
}

int file_write(struct fs *fs, struct caller *who, struct file *f, uint64_t off, struct span data,
               bool append)
{
    int err = 0;

    pthread_mutex_lock(&f->lock);
    if (append)
        off = file_size_locked(f);
    if (off > fs->max_value_size || data.len > fs->max_value_size - off) {
        err = -EFBIG;
    } else if (append) {
        err = append_locked(f, data);
    } else {
        err = unfold_locked(fs, who, f);
        if (err == 0)
            err = content_write(&f->base, off, data);
        if (err == 0)
            f->whole = true;
    }
    if (err == 0 && data.len > 0) {
        f->emptied = false;
        changed_locked(fs, who, f);
    }
    pthread_mutex_unlock(&f->lock);
    return err;
}

int file_truncate(struct fs *fs, struct caller *who, struct file *f, uint64_t size)
{
    int err = 0;

    pthread_mutex_lock(&f->lock);
    if (size > fs->max_value_size) {
        err = -EFBIG;
    } else if (size == 0) {
        empty_locked(fs, who, f);
    } else {
        err = unfold_locked(fs, who, f);
        if (err == 0)
            err = content_truncate(&f->base, size);
        if (err == 0) {
            f->whole = true;
            f->emptied = false;
            changed_locked(fs, who, f);
        }
    }
    pthread_mutex_unlock(&f->lock);
    return err;
}

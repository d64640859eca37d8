/*
 * file.c - an open file: its life, and its view brought up to date. file_load.c fetches it,
 * file_read.c reads it, file_write.c changes it, file_store.c stores it.
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

void appended_fini(struct appended *a)
{
    value_fini(&a->before);
    value_fini(&a->added);
    a->tail = 0;
}

void unsure_fini(struct unsure *u)
{
    appended_fini(&u->last);
    u->n = 0;
}

static void file_free(struct file *f)
{
    file_drop_window_locked(f);
    content_fini(&f->base);
    content_fini(&f->tail);
    unsure_fini(&f->unsure);
    pthread_cond_destroy(&f->changed);
    pthread_mutex_destroy(&f->lock);
    free(f);
}

static struct file *file_new(struct fs *fs)
{
    struct file *f = calloc(1, sizeof(*f));
    pthread_condattr_t attr;

    if (f == NULL)
        return NULL;
    list_init(&f->link);
    f->base.pool = f->tail.pool = &fs->pool;
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
        fresh = file_new(fs);
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
    return (f->loaded ? content_size(&f->base) : f->base_size) + content_size(&f->tail);
}

bool file_is_dirty_locked(const struct file *f)
{
    return f->whole || f->pending || content_size(&f->tail) > 0;
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

int file_last_error(struct file *f)
{
    int err;

    pthread_mutex_lock(&f->lock);
    err = f->failed_gen != 0 && file_is_dirty_locked(f) ? f->failed_err : 0;
    pthread_mutex_unlock(&f->lock);
    return err;
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
    emptied = f->emptied && file_is_dirty_locked(f) && content_size(&f->tail) == 0;
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

int file_change_fresh(struct caller *who, struct file *f, const struct attr_change *ch, bool *done)
{
    int err = 0;

    pthread_mutex_lock(&f->lock);
    if (is_fresh_locked(f))
        err = file_wait_idle_locked(who, f);
    *done = err == 0 && is_fresh_locked(f);
    if (*done) {
        meta_apply(&f->meta, ch, attr_now_ns());
        attr_change_add(&f->asked, ch);
        f->gen++;
    }
    pthread_mutex_unlock(&f->lock);
    return err;
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

void file_moved(struct file *f, struct ballot from, struct ballot to)
{
    pthread_mutex_lock(&f->lock);
    if (!ballot_is_none(from) && !ballot_is_none(to) && ballot_cmp(f->version, from) == 0)
        f->version = to;
    pthread_mutex_unlock(&f->lock);
}

/* --- bringing the view up to date ------------------------------------------------------------- */

/*
 * One replica's word makes way for a majority's whichever is newer, and is not for those who may be
 * about to change the file.
 */
static bool may_install_locked(const struct file *f, const struct found *found)
{
    if (file_is_dirty_locked(f))
        return false;
    if (!f->known || (f->lone && !found->lone))
        return true;
    return ballot_cmp(found->version, f->version) >= 0 && !(found->lone && f->n_writers > 0);
}

void file_install(struct fs *fs, struct file *f, uint64_t gen, const struct found *found,
                  struct value *v, bool have_value)
{
    pthread_mutex_lock(&f->lock);
    if (f->gen == gen && may_install_locked(f, found)) {
        if (!f->known || have_value || ballot_cmp(found->version, f->version) != 0)
            file_set_base_locked(fs, f, found->version, found->meta.size, v);
        f->meta = found->meta;
        f->lone = found->lone;
        f->known = true;
    }
    pthread_mutex_unlock(&f->lock);
}

/* One read for file_refresh(): pinned to what the lookup just saw, if that is known, for that needs
 * one replica only. */
static int read_base(struct fs *fs, struct caller *who, struct inode *in, struct span key,
                     bool want, bool one, const struct found *seen, struct read_result *out)
{
    struct read_args args = {.key = key,
                             .want_value = want,
                             .length = want ? CHUNK_SIZE : 0,
                             .from = one ? READ_ONE : READ_MAJORITY,
                             .at_least = follow_told(fs->follow, in, key)};
    int err;

    if (seen != NULL) {
        args.pin = seen->version;
        err = core_read(fs, who, &args, out);
        if (err != -ESTALE)
            return err;
        read_result_fini(out);
        args.pin = BALLOT_NONE;
    }
    args.peek = follow_is_named(fs->follow, in);
    err = core_read(fs, who, &args, out);
    if (err == 0 && out->has_child) { /* a directory hides the file now: the kernel has to look */
        follow_set_named(fs->follow, in, 0);
        err = -ESTALE;
    }
    return err;
}

/* mark NULL: the version was known before. */
static void keep_read(struct fs *fs, struct inode *in, struct span key, const struct found *found,
                      const struct follow_mark *mark)
{
    if (found->lone)
        return;
    follow_saw(fs->follow, in, key, found->version);
    if (mark != NULL)
        follow_keep(fs->follow, in, key, found, mark);
}

/* What this caller's last step has just heard of the file; with `one` also what is remembered, or
 * kept, of it. */
static bool recall(struct fs *fs, struct caller *who, struct inode *in, bool one, struct found *out)
{
    /* Where the kernel walks over names without asking, that may be of an earlier call. */
    bool there =
        !follow_is_named(fs->follow, in) &&
        inode_take_seen(fs->inodes, in, who->pid, core_now_us(), one ? SEEN_TOLD : SEEN_ASKED, out);

    if (one)
        there = there || follow_recall(fs->follow, in, out);
    if (there && one)
        out->lone = true;
    return there;
}

/* Asks the cluster for version, attributes and (want) the value, or as much of a large one as a
 * chunk holds; a view that is not dirty becomes that. one: a replica's word will do. */
static int file_refresh(struct fs *fs, struct caller *who, struct file *f, bool want, bool one)
{
    struct read_result res = {0};
    struct buf key = {0};
    struct found seen;
    bool was_seen = recall(fs, who, f->inode, one, &seen);
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
        file_install(fs, f, gen, &seen, &res.value, seen.meta.size == 0);
        return 0;
    }
    err = inode_last_key(fs->inodes, f->inode, &key);
    if (err == 0) {
        mark = follow_mark(fs->follow, buf_span(&key), buf_span(&key));
        err =
            read_base(fs, who, f->inode, buf_span(&key), want, one, was_seen ? &seen : NULL, &res);
    }
    if (err == 0 && !record_is_live(&res.rec.rec))
        err = -ENOENT;
    if (err == 0) {
        struct found found = {.kind = INODE_FILE,
                              .meta = meta_of_record(&fs->defaults, &res.rec.rec, false),
                              .version = res.rec.rec.version,
                              .followed = res.followed,
                              .lone = res.lone || (was_seen && seen.lone)};

        if (S_ISREG(found.meta.mode)) {
            keep_read(fs, f->inode, buf_span(&key), &found, was_seen ? NULL : &mark);
            file_install(fs, f, gen, &found, &res.value, want);
        } else
            err = -ESTALE; /* replaced by something else: the kernel walks the path again */
    }
    read_result_fini(&res);
    buf_fini(&key);
    return err;
}

/* --- opening ---------------------------------------------------------------------------------- */

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

/*
 * May the value be left where it is, for the kernel may have pages of it? Not a small one: that is
 * fetched whole, so that whoever has it open can read it to its end whatever comes to stand there.
 */
static bool may_serve(struct fs *fs, struct file *f)
{
    struct found found;

    return !ballot_is_none(follow_pages(fs->follow, f->inode).version) &&
           follow_recall(fs->follow, f->inode, &found) && found.meta.size > CHUNK_SIZE;
}

static bool is_loaded(struct file *f)
{
    bool loaded;

    pthread_mutex_lock(&f->lock);
    loaded = f->known && f->loaded;
    pthread_mutex_unlock(&f->lock);
    return loaded;
}

static bool has_writers(struct file *f)
{
    bool has;

    pthread_mutex_lock(&f->lock);
    has = f->n_writers > 0;
    pthread_mutex_unlock(&f->lock);
    return has;
}

/* Nearly every program asks for the attributes of what it has just opened: they are known. */
static void tell_opener_locked(struct fs *fs, struct caller *who, struct file *f)
{
    struct found found = {.kind = INODE_FILE, .version = f->version, .lone = f->lone};

    meta_locked(f, &found.meta);
    inode_set_seen(fs->inodes, f->inode, who->pid, core_now_us() + SEEN_US, SEEN_TOLD, &found);
}

/* Brings the view up to date. */
static int renew(struct fs *fs, struct caller *who, struct file *f, const struct open_mode *mode,
                 bool truncate)
{
    bool want = mode->read || (mode->write && !mode->append);
    bool one = fs->read_one && !mode->write && !has_writers(f);
    int err;

    /*
     * Twice at most: what is loaded, or the kernel has, may turn out to be old, and only then its
     * value is asked for.
     * What lost its name between lookup and open is read as what has the name now.
     */
    for (bool asked = false; !asked && must_refresh(fs, f, truncate);) {
        if (mode->write && inode_is_gone(fs->inodes, f->inode))
            return -ESTALE;
        asked = want && !truncate && !is_loaded(f) && !may_serve(fs, f);
        err = file_refresh(fs, who, f, asked, one);
        if (err < 0)
            return err;
        if (!want || truncate || is_loaded(f) || pages_serve(fs, f))
            break;
    }
    return 0;
}

/* Or has a close that failed just given the view up, or another open taken one replica's word? */
static bool is_good_locked(struct fs *fs, struct file *f, bool to_change)
{
    if (!f->known)
        return false;
    return !f->lone || !to_change || file_is_dirty_locked(f) || inode_is_gone(fs->inodes, f->inode);
}

int file_open(struct fs *fs, struct caller *who, struct file *f, const struct open_mode *mode)
{
    bool truncate = mode->truncate && mode->write;
    int err;

    for (;;) {
        err = renew(fs, who, f, mode, truncate);
        if (err < 0)
            return err;
        pthread_mutex_lock(&f->lock);
        if (is_good_locked(fs, f, mode->write && !truncate))
            break;
        pthread_mutex_unlock(&f->lock);
    }
    f->n_open++;
    f->n_writers += mode->write;
    if (truncate)
        file_empty_locked(fs, who, f);
    tell_opener_locked(fs, who, f);
    pthread_mutex_unlock(&f->lock);
    return 0;
}

void file_open_new(struct fs *fs, const struct caller *who, struct file *f,
                   const struct found *fresh, const struct open_mode *mode)
{
    pthread_mutex_lock(&f->lock);
    f->n_open++;
    f->n_writers += mode->write;
    if (!f->known || !file_is_dirty_locked(f)) {
        file_drop_window_locked(f);
        content_fini(&f->base);
        f->known = f->loaded = f->fresh = f->emptied = true;
        f->lone = false;
        f->meta = fresh->meta;
        f->asked.set = 0;
        f->version = fresh->version;
        f->pending = !fresh->made;
        f->whole = f->pending && mode->truncate;
        f->edits = f->unprivileged = false;
        unsure_fini(&f->unsure);
        f->gen++;
        follow_mix_pages(fs->follow, f->inode);
    } else if (mode->truncate) {
        file_empty_locked(fs, who, f);
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
        content_fini(&f->tail);
        content_fini(&f->base);
        unsure_fini(&f->unsure);
        f->gen++;
        f->n_voided++;
        follow_mix_pages(fs->follow, f->inode);
    }
    pthread_mutex_unlock(&f->lock);
    if (lost && inode_key(fs->inodes, f->inode, &key) == 0)
        log_event(LOG_LEVEL_ERROR, "not_stored", "key=%s error=%s", log_quote(key.data, key.len),
                  strerrorname_np(-why));
    buf_fini(&key);
}

int file_close(struct fs *fs, struct caller *who, struct file *f, bool writer)
{
    bool last, dirty, tried;
    int err;

    pthread_mutex_lock(&f->lock);
    last = --f->n_open == 0;
    f->n_writers -= writer;
    if (last) /* what another close left under way may turn out well */
        (void)file_wait_idle_locked(who, f);
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

/* dirtime.c - the times of directories in which this mount makes and removes names. */
#include "fs/dirtime.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/log.h"

#define STORING_MAX 16u
#define RETRY_MS 5000u         /* while some cannot be stored */
#define LAST_TRY_MS 3000u      /* for each, when going down */
#define STOP_LOOK_NS 20000000l /* how soon who waits notices that he is to stop */

struct dirtimes {
    struct fs *fs;
    pthread_mutex_t lock; /* all below, and `time` of all inodes */
    pthread_cond_t changed;
    struct list waiting;      /* for the next round */
    struct list going;        /* in this one, and not begun */
    unsigned n_storing;       /* begun */
    struct delayed_job round; /* the next */
    bool armed;
    bool failing;      /* some of this round or the one before, as the log says */
    unsigned n_failed; /* in this round */
    bool ending;       /* there is no next round */
    unsigned n_lost;   /* then */
};

/* A store under way. */
struct storing {
    struct fs *fs;
    struct inode *in; /* referenced */
    struct buf key;
    struct follow_mark mark; /* from before it began */
    struct write_args args;
    struct dirtime_joined joined;
};

static void store_next(struct dirtimes *d);

/* --- what is to be stored --------------------------------------------------------------------- */

static bool is_pending(const struct dirtime *t)
{
    return t->changed_ns != 0 && ballot_is_none(t->stored_in) && !t->kept_here;
}

static void begin_round_locked(struct dirtimes *d)
{
    while (!list_empty(&d->waiting)) {
        struct list *first = d->waiting.next;

        list_remove(first);
        list_insert(&d->going, first);
    }
}

static void on_round(struct delayed_job *job)
{
    struct dirtimes *d = container_of(job, struct dirtimes, round);

    pthread_mutex_lock(&d->lock);
    d->armed = false;
    begin_round_locked(d);
    pthread_mutex_unlock(&d->lock);
    store_next(d);
}

static void queue_locked(struct dirtimes *d, struct inode *in)
{
    if (in->time.queued || d->ending)
        return;
    in->time.queued = true;
    inode_ref(d->fs->inodes, in);
    list_insert(&d->waiting, &in->time.link);
    if (!d->armed) {
        d->round.fn = on_round;
        d->armed =
            cluster_post_after(d->fs->cluster, &d->round, d->failing ? RETRY_MS : DIRTIME_MS);
    }
}

static void touch_locked(struct dirtimes *d, struct inode *in, const struct dir_facts *facts,
                         int64_t now_ns)
{
    struct dirtime *t = &in->time;

    if (!is_pending(t))
        t->seen_ns = facts->mtime_ns;
    t->changed_ns = now_ns > t->changed_ns ? now_ns : t->changed_ns + 1;
    t->stored_in = BALLOT_NONE;
    t->kept_here = in->id == INODE_ROOT;
    if (!t->storing && !t->kept_here)
        queue_locked(d, in);
}

void dirtime_touch(struct fs *fs, struct inode *in)
{
    struct dir_facts facts = inode_dir_facts(fs->inodes, in);
    int64_t now_ns = attr_now_ns();

    /* Also behind the clock of another mount that changed something in it before. */
    if (facts.mtime_ns == facts.ctime_ns && facts.mtime_ns >= now_ns && facts.mtime_ns < INT64_MAX)
        now_ns = facts.mtime_ns + 1;
    pthread_mutex_lock(&fs->dirtimes->lock);
    touch_locked(fs->dirtimes, in, &facts, now_ns);
    pthread_mutex_unlock(&fs->dirtimes->lock);
}

void dirtime_appeared(struct fs *fs, struct span key)
{
    const uint8_t *slash = (const uint8_t *)memrchr(key.data, '/', key.len);
    struct span prefix = span_of(key.data, slash != NULL ? (size_t)(slash + 1 - key.data) : 0);
    struct inode *in = inode_find(fs->inodes, prefix, INODE_DIR);
    bool told;

    if (in == NULL)
        return;
    pthread_mutex_lock(&fs->dirtimes->lock);
    told = in->time.changed_ns != 0 && (!ballot_is_none(in->time.stored_in) || in->time.storing);
    pthread_mutex_unlock(&fs->dirtimes->lock);
    if (told)
        dirtime_touch(fs, in);
    inode_put(fs->inodes, in);
}

void dirtime_show(struct fs *fs, struct inode *in, struct ballot version, struct meta *m)
{
    const struct dirtime *t = &in->time;

    pthread_mutex_lock(&fs->dirtimes->lock);
    if (t->changed_ns != 0 &&
        (ballot_is_none(t->stored_in) || ballot_cmp(version, t->stored_in) < 0))
        (void)meta_touch(m, t->seen_ns, t->changed_ns);
    pthread_mutex_unlock(&fs->dirtimes->lock);
}

bool dirtime_join(struct fs *fs, struct inode *in, struct ballot version, struct meta *m,
                  struct dirtime_joined *joined)
{
    const struct dirtime *t = &in->time;
    bool moved = false;

    pthread_mutex_lock(&fs->dirtimes->lock);
    *joined = (struct dirtime_joined){.version = version};
    if (is_pending(t)) {
        joined->changed_ns = t->changed_ns;
        moved = meta_touch(m, t->seen_ns, t->changed_ns);
    }
    pthread_mutex_unlock(&fs->dirtimes->lock);
    return moved;
}

static void joined_locked(struct dirtime *t, const struct dirtime_joined *joined,
                          struct ballot version)
{
    if (joined->changed_ns != 0 && t->changed_ns == joined->changed_ns)
        t->stored_in = version;
}

void dirtime_joined(struct fs *fs, struct inode *in, const struct dirtime_joined *joined,
                    struct ballot version)
{
    pthread_mutex_lock(&fs->dirtimes->lock);
    joined_locked(&in->time, joined, version);
    pthread_mutex_unlock(&fs->dirtimes->lock);
}

int64_t dirtime_clear(struct fs *fs, struct inode *in)
{
    struct dirtime *t = &in->time;
    int64_t pending_ns;

    pthread_mutex_lock(&fs->dirtimes->lock);
    pending_ns = is_pending(t) ? t->changed_ns : 0;
    t->changed_ns = 0;
    pthread_mutex_unlock(&fs->dirtimes->lock);
    return pending_ns;
}

void dirtime_give_back(struct fs *fs, struct inode *in, int64_t changed_ns)
{
    struct dir_facts facts = inode_dir_facts(fs->inodes, in);

    pthread_mutex_lock(&fs->dirtimes->lock);
    if (changed_ns != 0 && in->time.changed_ns == 0)
        touch_locked(fs->dirtimes, in, &facts, changed_ns);
    pthread_mutex_unlock(&fs->dirtimes->lock);
}

/* --- storing ---------------------------------------------------------------------------------- */

/* Only the times: whose it is, and what may be done in it, is nobody's to fix here. */
static int time_edit(void *ctx, const struct record *cur, struct value cur_value,
                     struct draft *next)
{
    struct storing *s = (struct storing *)ctx;
    struct meta m;

    (void)cur_value;
    if (!record_is_live(cur))
        return -ENOENT;
    m = meta_of_record(&s->fs->defaults, cur, true);
    if (!dirtime_join(s->fs, s->in, cur->version, &m, &s->joined))
        return -EALREADY;
    next->rec.mtime_ns = m.mtime_ns;
    next->rec.ctime_ns = m.ctime_ns;
    next->rec.atime_ns = m.atime_ns;
    next->same_value = true;
    return 0;
}

/* -ENOENT: there is nothing to be stored, for it has no name, or none that has a record. */
static int storing_begin(struct fs *fs, struct inode *in, struct storing *s)
{
    int err;

    *s = (struct storing){.fs = fs, .in = in};
    err = inode_key(fs->inodes, in, &s->key);
    if (err == 0 && (s->key.len == 0 || s->key.data[s->key.len - 1] != '/'))
        err = -ENOENT;
    s->args = (struct write_args){.key = buf_span(&s->key), .edit = time_edit, .ctx = s};
    if (err == 0)
        s->mark = follow_mark(fs->follow, s->args.key, s->args.key);
    pthread_mutex_lock(&fs->dirtimes->lock);
    if (fs->dirtimes->ending)
        s->args.timeout_ms = LAST_TRY_MS;
    pthread_mutex_unlock(&fs->dirtimes->lock);
    return err;
}

/* What this mount keeps of the directory is what it has stored now. */
static void keep_stored(const struct storing *s, const struct record *rec)
{
    struct fs *fs = s->fs;
    struct dir_facts facts = inode_dir_facts(fs->inodes, s->in);
    struct found found = {.kind = INODE_DIR,
                          .meta = meta_of_record(&fs->defaults, rec, true),
                          .version = rec->version,
                          .has_marker = true,
                          .shadows = facts.shadows};

    follow_keep_own(fs->follow, s->in, s->args.key, &found, &s->mark);
    inode_set_dir_times(fs->inodes, s->in, found.meta.mtime_ns, found.meta.ctime_ns);
}

static void log_failure_locked(struct dirtimes *d, const struct storing *s, int err,
                               const struct err *why)
{
    if (!d->failing)
        log_event(LOG_LEVEL_WARN, "dir_time_not_stored", "key=%s error=%s reason=%s",
                  log_quote(s->key.data, s->key.len), strerrorname_np(-err),
                  log_quote(why->msg, strlen(why->msg)));
    d->failing = true;
    d->n_failed++;
}

/*
 * Is the directory's record still where the store looked for it? While a directory moves nobody can
 * tell whether that was before its record was copied. Of what is gone there is none to look for.
 */
static bool is_there(const struct storing *s)
{
    struct buf key = {0};
    bool moves = dir_moves_has(&s->fs->moves, s->args.key); /* before the key is looked at */
    int err = inode_key(s->fs->inodes, s->in, &key);
    bool there = err == -ENOENT || (err == 0 && !moves && span_eq(buf_span(&key), s->args.key));

    buf_fini(&key);
    return there;
}

/* The store has ended: what there is left to do about it. */
static void settle_locked(struct dirtimes *d, const struct storing *s,
                          const struct write_result *res, bool there)
{
    struct dirtime *t = &s->in->time;
    int err = res->err;

    if (err < 0 && err != -EALREADY && err != -ENOENT)
        log_failure_locked(d, s, err, &res->why);
    if (there && err == 0 && res->rec_is == WRITE_AS_DRAFTED)
        joined_locked(t, &s->joined, res->rec.rec.version);
    else if (there && err == -EALREADY)
        joined_locked(t, &s->joined, s->joined.version);
    else if (there && (err == -ENOENT || err == -EBADMSG))
        t->kept_here = true;
    if (d->ending && is_pending(t) && err < 0 && err != -EALREADY)
        d->n_lost++;
}

static void finish(struct storing *s, const struct write_result *res)
{
    struct dirtimes *d = s->fs->dirtimes;
    bool there = is_there(s);

    if (res->err == 0 && res->rec_is == WRITE_AS_DRAFTED)
        keep_stored(s, &res->rec.rec);
    pthread_mutex_lock(&d->lock);
    settle_locked(d, s, res, there);
    pthread_mutex_unlock(&d->lock);
    buf_fini(&s->key);
}

/* --- in the background ------------------------------------------------------------------------ */

static void end_storing(struct storing *s, const struct write_result *res)
{
    struct dirtimes *d = s->fs->dirtimes;
    struct inode *in = s->in;

    if (res->err == 0)
        follow_wrote(s->fs->follow, s->args.key, write_version(res));
    else if (!res->certain)
        follow_wrote(s->fs->follow, s->args.key, BALLOT_NONE);
    finish(s, res);
    pthread_mutex_lock(&d->lock);
    in->time.storing = false;
    d->n_storing--;
    if (is_pending(&in->time))
        queue_locked(d, in);
    if (d->n_storing == 0 && list_empty(&d->going)) {
        d->failing = d->n_failed > 0;
        d->n_failed = 0;
    }
    pthread_cond_broadcast(&d->changed);
    pthread_mutex_unlock(&d->lock);
    inode_put(d->fs->inodes, in);
}

static void on_stored(void *arg, struct write_result *res)
{
    struct storing *s = (struct storing *)arg;
    struct dirtimes *d = s->fs->dirtimes;

    end_storing(s, res);
    free(s);
    store_next(d);
}

static void store_one(struct dirtimes *d, struct inode *in)
{
    struct storing *s = (struct storing *)calloc(1, sizeof(*s));
    struct storing none = {.fs = d->fs, .in = in};
    int err = s != NULL ? storing_begin(d->fs, in, s) : -ENOMEM;

    if (err == 0)
        err = cluster_write_async(d->fs->cluster, &s->args, on_stored, s);
    if (err < 0) {
        end_storing(s != NULL ? s : &none, &(struct write_result){.err = err, .certain = true});
        free(s);
    }
}

/* The next one to be stored, with its reference; NULL: none now. */
static struct inode *take_next(struct dirtimes *d)
{
    struct inode *in = NULL;

    pthread_mutex_lock(&d->lock);
    while (in == NULL && !list_empty(&d->going) && d->n_storing < STORING_MAX &&
           !(d->ending && d->failing)) {
        in = container_of(d->going.next, struct inode, time.link);
        list_remove(&in->time.link);
        in->time.queued = false;
        if (is_pending(&in->time)) {
            in->time.storing = true;
            d->n_storing++;
        } else {
            inode_put(d->fs->inodes, in);
            in = NULL;
        }
    }
    pthread_mutex_unlock(&d->lock);
    return in;
}

static void store_next(struct dirtimes *d)
{
    struct inode *in;

    while ((in = take_next(d)) != NULL)
        store_one(d, in);
}

/* --- for who waits ---------------------------------------------------------------------------- */

int dirtime_store(struct fs *fs, struct caller *who, struct inode *in)
{
    struct write_result res = {0};
    struct storing s;
    bool pending;

    pthread_mutex_lock(&fs->dirtimes->lock);
    pending = is_pending(&in->time);
    pthread_mutex_unlock(&fs->dirtimes->lock);
    if (!pending)
        return 0;
    res.err = storing_begin(fs, in, &s);
    if (res.err == 0)
        (void)core_write(fs, who, &s.args, &res);
    if (res.err != -EINTR)
        finish(&s, &res);
    else
        buf_fini(&s.key);
    write_result_fini(&res);
    return res.err == -EINTR ? -EINTR : 0;
}

static void wait_step_locked(struct dirtimes *d)
{
    struct timespec until;

    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += STOP_LOOK_NS;
    if (until.tv_nsec >= 1000000000l) {
        until.tv_nsec -= 1000000000l;
        until.tv_sec++;
    }
    pthread_cond_timedwait(&d->changed, &d->lock, &until);
}

/* Takes all off the list; how many of them were to be stored. */
static unsigned drop_locked(struct dirtimes *d, struct list *list)
{
    unsigned n = 0;

    while (!list_empty(list)) {
        struct inode *in = container_of(list->next, struct inode, time.link);

        list_remove(&in->time.link);
        in->time.queued = false;
        n += is_pending(&in->time);
        inode_put(d->fs->inodes, in);
    }
    return n;
}

void dirtimes_store_all(struct fs *fs, struct caller *who)
{
    struct dirtimes *d = fs->dirtimes;

    pthread_mutex_lock(&d->lock);
    d->ending = true;
    d->failing = false;
    d->n_failed = d->n_lost = 0;
    begin_round_locked(d);
    pthread_mutex_unlock(&d->lock);
    if (!caller_stopped(who))
        store_next(d);
    pthread_mutex_lock(&d->lock);
    while (d->n_storing > 0 && !caller_stopped(who))
        wait_step_locked(d);
    d->n_lost += d->n_storing + drop_locked(d, &d->going);
    if (d->n_lost > 0)
        log_event(LOG_LEVEL_WARN, "dir_times_not_stored", "directories=%u", d->n_lost);
    d->ending = false;
    pthread_mutex_unlock(&d->lock);
}

int dirtimes_new(struct fs *fs, struct dirtimes **out)
{
    struct dirtimes *d = (struct dirtimes *)calloc(1, sizeof(*d));
    pthread_condattr_t attr;

    if (d == NULL)
        return -ENOMEM;
    d->fs = fs;
    list_init(&d->waiting);
    list_init(&d->going);
    pthread_mutex_init(&d->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&d->changed, &attr);
    pthread_condattr_destroy(&attr);
    *out = d;
    return 0;
}

void dirtimes_free(struct dirtimes *d)
{
    if (d == NULL)
        return;
    (void)drop_locked(d, &d->going);
    (void)drop_locked(d, &d->waiting);
    pthread_cond_destroy(&d->changed);
    pthread_mutex_destroy(&d->lock);
    free(d);
}

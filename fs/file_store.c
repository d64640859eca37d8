/*
 * file_store.c - storing an open file: a snapshot is taken under the lock, stored without it, and
 * taken note of.
 *
 * A snapshot says which of three writes it needs:
 *   whole   the value is replaced; owner, mode and extended attributes of the record stay;
 *   append  the tail goes behind whatever value is there by then, decided where the write is
 *           decided, so that no other mount's append is lost;
 *   create  created, nothing written, nothing cut: an empty record, if there is still none; else
 *           only what was asked of its attributes goes to what another mount has created.
 *
 * The store is a job of its own: who waits for it may be told to stop (a dying process is, by the
 * kernel, in the close of its files), but the job goes on, and its outcome counts.
 *
 * An append whose outcome is unknown may or may not be in the value that the next one finds: its id
 * tells, or, behind many later writes, that the value begins with all that it wanted stored.
 */
#include "fs/file.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/limits.h"
#include "common/roots.h"
#include "common/spool.h"
#include "fs/core.h"
#include "fs/dirtime.h"

enum store_kind { STORE_WHOLE, STORE_APPEND, STORE_CREATE };

struct snapshot {
    enum store_kind kind;
    uint64_t gen;
    unsigned n_voided; /* as the file's */
    struct value data; /* the whole value, or the tail */
    struct buf sums;   /* of a large whole value: it would hold up the cluster's thread */
    struct meta meta;
    bool fresh; /* attributes are stored too, where the file is not another's of the same name: */
    struct attr_change asked;
    bool unprivileged;
    bool theirs; /* create: the last try left the other's value as it is */
    const struct attr_defaults *defaults;
    bool edits; /* as the file's */
    uint64_t max_size, size_hint;
    struct appended last; /* append: what the last try wanted stored */
    struct ballot found;  /* and what that stands behind */
    uint64_t seq;         /* append: of the first record that a try found */
    bool tried;
    struct unsure unsure; /* of earlier ones */
};

/* One store under way; shared by who waits and the cluster's thread. */
struct store_job {
    struct fs *fs;
    struct file *file; /* referenced */
    struct buf key;
    struct follow_mark mark; /* from before it began */
    struct snapshot snap;    /* the job's alone until it has finished */
    struct write_args args;
    bool finished, abandoned; /* the file's lock, as is: */
    int err;
    struct err why;
};

/* Does v begin with all that was wanted? */
static bool starts_with(struct value v, const struct appended *a)
{
    size_t n = a->before.len;

    return n + a->added.len > 0 && v.len >= n + a->added.len &&
           (n == 0 || memcmp(v.data, a->before.data, n) == 0) &&
           (a->added.len == 0 || memcmp(v.data + n, a->added.data, a->added.len) == 0);
}

/* How much of the tail is in the value already. */
static size_t done_before(const struct unsure *u, const struct record *rec, struct value cur)
{
    bool reaches = true; /* the list of ids, back to each of them */
    size_t done = 0;

    for (unsigned i = 0; i < u->n; i++) {
        if (record_is_recent(rec, u->tries[i].id) && u->tries[i].tail > done)
            done = u->tries[i].tail;
        reaches &= rec->seq <= u->tries[i].seq + RECENT_MAX;
    }
    if (done == 0 && !reaches && starts_with(cur, &u->last))
        done = u->last.tail;
    return done;
}

static void unsure_add(struct unsure *u, uint64_t id, uint64_t seq, struct appended *last)
{
    if (u->n == UNSURE_MAX)
        memmove(&u->tries[0], &u->tries[1], --u->n * sizeof(u->tries[0]));
    u->tries[u->n].id = id;
    u->tries[u->n].seq = seq;
    u->tries[u->n++].tail = last->tail;
    appended_fini(&u->last);
    u->last = *last;
    *last = (struct appended){0};
}

/* What is not in cur yet of the tail goes behind it. */
static int append_value(struct snapshot *s, const struct record *rec, struct value cur,
                        struct draft *next)
{
    size_t done = done_before(&s->unsure, rec, cur), n;

    assert(done <= s->data.len); /* the tail only grew since */
    n = s->data.len - done;
    if (n > s->max_size || cur.len > s->max_size - n)
        return -EFBIG;
    appended_fini(&s->last);
    s->last = (struct appended){.before = value_ref(cur), .added = value_slice(s->data, done, n)};
    s->last.tail = s->data.len;
    s->found = rec->version;
    if (!s->tried || rec->seq < s->seq)
        s->seq = rec->seq;
    s->tried = true;
    next->value = value_ref(s->last.before);
    next->tail = value_ref(s->last.added);
    return 0;
}

/* Was the file replaced by another? Those that were stored over HTTP have no number that tells. */
static bool is_another(const struct snapshot *s, const struct record *cur)
{
    return s->meta.ino != 0 && cur->rdev != 0 && s->meta.ino != cur->rdev;
}

/*
 * Attributes stay what they are in the cluster, but for a file that was created here: they are
 * stored with it. Where another mount was faster to create the name, that was the creation, and
 * ours an open of it: only what was changed since is changed there.
 */
static void store_attributes(const struct snapshot *s, const struct record *cur, bool live,
                             struct record *next)
{
    struct meta m;

    if (!live || (s->fresh && cur->rdev == s->meta.ino)) {
        meta_to_record(&s->meta, next);
        return;
    }
    if (s->fresh && s->asked.set != 0) {
        m = meta_of_record(s->defaults, cur, false);
        meta_apply(&m, &s->asked, s->meta.ctime_ns);
        meta_to_record(&m, next);
    }
    if (!s->theirs)
        next->mtime_ns = s->meta.mtime_ns;
    if (s->meta.ctime_ns > cur->ctime_ns) /* else they were changed while this was on its way */
        next->ctime_ns = s->meta.ctime_ns;
    if (s->unprivileged)
        next->mode = attr_drop_privileges(next->mode);
}

/* Called for each try, on the record that it would replace. */
static int store_edit(void *ctx, const struct record *cur, struct value cur_value,
                      struct draft *next)
{
    struct snapshot *s = (struct snapshot *)ctx;
    uint32_t type = cur->mode & S_IFMT;
    bool live = record_is_live(cur) && (type == 0 || type == S_IFREG);
    int err = 0;

    s->theirs = s->kind == STORE_CREATE && record_is_live(cur);
    if (s->theirs && (!live || s->asked.set == 0))
        return -EEXIST;
    if (s->kind == STORE_WHOLE && s->edits && (!live || is_another(s, cur)))
        return -ESTALE;
    next->same_value = s->theirs;
    if (s->kind == STORE_APPEND)
        err = append_value(s, cur, live ? cur_value : (struct value){0}, next);
    else
        next->value = value_ref(s->data);
    if (s->kind != STORE_APPEND)
        next->sums = buf_span(&s->sums);
    if (err < 0)
        return err;
    store_attributes(s, cur, live, &next->rec);
    if (!live)
        next->rec.attrs = span_of(NULL, 0);
    return 0;
}

static int snapshot_locked(struct fs *fs, struct file *f, struct snapshot *s)
{
    *s = (struct snapshot){
        .gen = f->gen,
        .n_voided = f->n_voided,
        .meta = f->meta,
        .fresh = f->fresh,
        .asked = f->asked,
        .unprivileged = f->unprivileged,
        .defaults = &fs->defaults,
        .max_size = fs->max_value_size,
    };
    if (f->whole) {
        s->kind = STORE_WHOLE;
        s->edits = f->edits;
        s->size_hint = content_size(&f->base);
        return content_lend(&f->base, &s->data);
    }
    if (content_size(&f->tail) > 0) {
        s->kind = STORE_APPEND;
        s->size_hint = file_size_locked(f);
        s->unsure = f->unsure;
        s->unsure.last.before = value_ref(f->unsure.last.before);
        s->unsure.last.added = value_ref(f->unsure.last.added);
        return content_lend(&f->tail, &s->data);
    }
    s->kind = STORE_CREATE;
    return 0;
}

/* A new file, changed while it was stored for the first time: whose it is was decided by then. */
static void stay_fresh_locked(struct fs *fs, struct file *f, const struct record *rec)
{
    struct meta m = meta_of_record(&fs->defaults, rec, false);

    meta_apply(&m, &f->asked, f->meta.ctime_ns);
    m.mtime_ns = f->meta.mtime_ns;
    if (f->unprivileged)
        m.mode = attr_drop_privileges(m.mode);
    f->meta = m;
}

/* The loaded base, of version prev, becomes what the append made of it; false: that would be much
 * work for the cluster's thread, and it is better fetched when it is wanted. */
static bool extend_base_locked(struct fs *fs, struct file *f, const struct snapshot *s,
                               struct ballot prev, const struct record *rec)
{
    const struct appended *a = &s->last;

    if (a->before.len + a->added.len != rec->size || a->added.len > fs->pool.each_max)
        return false;
    if (ballot_cmp(prev, s->found) != 0) { /* others have appended, too */
        if (rec->size > fs->pool.each_max)
            return false;
        content_set(&f->base, value_ref(a->before));
    }
    return content_size(&f->base) == a->before.len &&
           content_write(&f->base, a->before.len, value_span(a->added)) == 0;
}

/* What was appended stands in the value now, and behind what others may have appended before. */
static void appended_locked(struct fs *fs, struct file *f, struct snapshot *s, struct ballot prev,
                            const struct write_result *res)
{
    const struct record *rec = &res->rec.rec;

    content_drop_front(&f->tail, s->data.len);
    unsure_fini(&f->unsure);
    file_drop_window_locked(f);
    f->clock = 0;
    follow_mix_pages(fs->follow, f->inode);
    f->base_size = rec->size;
    if (f->loaded &&
        (res->rec_is != WRITE_AS_DRAFTED || !extend_base_locked(fs, f, s, prev, rec))) {
        content_fini(&f->base);
        f->loaded = false;
    }
}

/* The value in the cluster is another's, and not what is in the view, unless that is dirty. */
static void superseded_locked(struct fs *fs, struct file *f, const struct record *rec)
{
    follow_mix_pages(fs->follow, f->inode);
    if (!f->whole && record_is_live(rec))
        file_set_base_locked(fs, f, rec->version, rec->size, &(struct value){0});
}

/* The cluster has the snapshot, or had it: what was not changed meanwhile is clean. */
static void stored_locked(struct fs *fs, struct file *f, struct snapshot *s,
                          const struct write_result *res)
{
    const struct record *rec = &res->rec.rec;
    struct ballot prev = f->version;

    inode_drop_seen(fs->inodes, f->inode);
    f->version = rec->version;
    f->lone = false;
    f->saved_gen = s->gen;
    f->failed_gen = 0;
    f->pending = f->emptied = false;
    if (s->kind == STORE_APPEND && !f->whole) /* else it was unfolded into the view, which counts */
        appended_locked(fs, f, s, prev, res);
    if (f->gen == s->gen) {
        f->whole = f->unprivileged = f->fresh = false;
        f->asked.set = 0;
        if (record_is_live(rec))
            f->meta = meta_of_record(&fs->defaults, rec, false);
    } else if (f->fresh && record_is_live(rec)) {
        stay_fresh_locked(fs, f, rec);
    }
    if (res->rec_is == WRITE_SUPERSEDED)
        superseded_locked(fs, f, rec);
}

/* Another mount created the file first, with nothing of ours to add: its content is what counts. */
static void lost_creation_locked(struct fs *fs, struct file *f, const struct snapshot *s)
{
    follow_mix_pages(fs->follow, f->inode);
    f->emptied = false;
    f->saved_gen = s->gen;
    if (f->gen == s->gen) { /* else there is something to store by now */
        f->pending = f->fresh = false;
        f->asked.set = 0;
        f->known = f->loaded = false;
        f->base_size = 0;
        f->version = BALLOT_NONE;
    }
}

static void failed_locked(struct file *f, uint64_t gen, int err)
{
    f->failed_gen = gen;
    f->failed_err = err;
    f->n_failed++;
}

/* Not exclusive any more, and with an outcome. */
static void finish_locked(struct fs *fs, struct file *f, struct snapshot *s,
                          const struct write_result *res)
{
    f->busy = false;
    pthread_cond_broadcast(&f->changed);
    if (s->n_voided != f->n_voided)
        return; /* of a view that is no more */
    if (res->err == 0 && !s->theirs) {
        stored_locked(fs, f, s, res);
    } else if (s->theirs && (res->err == 0 || res->err == -EEXIST)) {
        lost_creation_locked(fs, f, s);
    } else {
        failed_locked(f, s->gen, res->err);
    }
    if (res->err < 0 && !res->certain && s->kind == STORE_APPEND && !f->whole)
        unsure_add(&f->unsure, res->id, s->seq, &s->last);
}

/* Of a file that has no name any more, nothing is to be stored; the view goes on. */
static void keep_to_ourselves_locked(struct file *f)
{
    f->saved_gen = f->gen;
    f->whole = f->pending = f->emptied = false;
    unsure_fini(&f->unsure);
    if (f->loaded && content_append(&f->base, &f->tail) == 0)
        content_fini(&f->tail);
}

static void job_free(struct store_job *j)
{
    file_put(j->fs, j->file);
    value_fini(&j->snap.data);
    appended_fini(&j->snap.last);
    unsure_fini(&j->snap.unsure);
    buf_fini(&j->snap.sums);
    buf_fini(&j->key);
    free(j);
}

/* What this mount keeps of the key is what it has stored now. */
static void keep_stored(struct store_job *j, const struct write_result *res)
{
    struct follow *follow = j->fs->follow;
    struct found found = {.kind = INODE_FILE};

    if (res->err == 0 && res->rec_is == WRITE_SUPERSEDED) {
        follow_wrote(follow, buf_span(&j->key), BALLOT_NONE);
    } else if (res->err == 0) {
        found.meta = meta_of_record(&j->fs->defaults, &res->rec.rec, false);
        found.version = res->rec.rec.version;
        follow_wrote(follow, buf_span(&j->key), found.version);
        follow_keep_own(follow, j->file->inode, buf_span(&j->key), &found, &j->mark);
        if (!res->existed)
            dirtime_appeared(j->fs, buf_span(&j->key));
    } else if (!res->certain) {
        follow_wrote(follow, buf_span(&j->key), BALLOT_NONE);
    }
}

/* The write has ended; on the cluster's thread. */
static void job_done(void *arg, struct write_result *res)
{
    struct store_job *j = arg;
    struct file *f = j->file;
    bool abandoned;

    keep_stored(j, res);
    pthread_mutex_lock(&f->lock);
    finish_locked(j->fs, f, &j->snap, res);
    j->err = res->err == -EEXIST && j->snap.kind == STORE_CREATE ? 0 : res->err;
    j->why = res->why;
    j->finished = true;
    abandoned = j->abandoned;
    pthread_mutex_unlock(&f->lock);
    if (abandoned)
        job_free(j);
}

/* A job for what is dirty now, whose key and snapshot nothing will change. */
static int job_new_locked(struct fs *fs, struct file *f, struct store_job **out)
{
    struct store_job *j = calloc(1, sizeof(*j));
    int err;

    if (j == NULL)
        return -ENOMEM;
    j->fs = fs;
    j->file = inode_file(fs->inodes, f->inode); /* f, with a reference more */
    err = inode_key(fs->inodes, f->inode, &j->key);
    if (err == 0)
        err = snapshot_locked(fs, f, &j->snap);
    if (err < 0) {
        pthread_mutex_unlock(&f->lock); /* job_free() may need it */
        job_free(j);
        pthread_mutex_lock(&f->lock);
        return err;
    }
    j->args = (struct write_args){.key = buf_span(&j->key),
                                  .edit = store_edit,
                                  .ctx = &j->snap,
                                  .want_value = j->snap.kind == STORE_APPEND,
                                  .size_hint = j->snap.size_hint};
    j->mark = follow_mark(fs->follow, buf_span(&j->key), buf_span(&j->key));
    *out = j;
    return 0;
}

/* Without memory for them the client will find them. */
static void sum_up(struct snapshot *s)
{
    if (s->kind == STORE_APPEND || s->data.len <= CHUNK_SIZE)
        return;
    for (size_t at = 0; at < s->data.len; at += CHUNK_SIZE) {
        size_t len = s->data.len - at < CHUNK_SIZE ? s->data.len - at : CHUNK_SIZE;

        record_sums(&s->sums, span_of(s->data.data + at, len));
        spool_pass(s->data, at, at + len);
    }
    if (s->sums.err < 0)
        buf_fini(&s->sums);
}

/* Runs the job as far as the caller waits for it. busy is ours, and falls when the job ends. */
static int job_run_locked(struct caller *who, struct file *f, struct store_job *j)
{
    int err;

    pthread_mutex_unlock(&f->lock);
    sum_up(&j->snap);
    err = cluster_write_async(j->fs->cluster, &j->args, job_done, j);
    if (err < 0) /* it never began */
        job_done(j, &(struct write_result){.err = err, .certain = true, .why = who->why});
    pthread_mutex_lock(&f->lock);
    while (!j->finished && !caller_stopped(who))
        file_wait_step_locked(f);
    if (!j->finished) {
        j->abandoned = true; /* job_done() frees it */
        return -EINTR;
    }
    err = j->err;
    if (err < 0)
        who->why = j->why;
    pthread_mutex_unlock(&f->lock);
    job_free(j);
    pthread_mutex_lock(&f->lock);
    return err;
}

/* Waits till nobody works exclusively, nor moves the directory that the file is in: what was stored
 * there would stay behind. 0 or -EINTR. */
static int wait_turn_locked(struct fs *fs, struct caller *who, struct file *f)
{
    uint64_t n_ended;
    int err = 0;

    while (err == 0) {
        err = file_wait_idle_locked(who, f);
        n_ended = dir_moves_ended(&fs->moves);
        if (err < 0 || !fs_is_moving(fs, who, f->inode))
            break;
        pthread_mutex_unlock(&f->lock);
        dir_moves_wait_step(&fs->moves, n_ended);
        pthread_mutex_lock(&f->lock);
        err = caller_stopped(who) ? -EINTR : 0;
    }
    return err;
}

int file_store(struct fs *fs, struct caller *who, struct file *f)
{
    struct store_job *j;
    unsigned n_failed;
    uint64_t need, gen;
    int err;

    pthread_mutex_lock(&f->lock);
    need = f->gen;
    n_failed = f->n_failed;
    err = wait_turn_locked(fs, who, f);
    /* Waiters must not wait for one try after another, when whoever was first tried just this. */
    if (err == 0 && f->n_failed != n_failed && f->failed_gen >= need)
        err = f->failed_err;
    if (err == 0 && file_is_dirty_locked(f)) {
        gen = f->gen;
        err = job_new_locked(fs, f, &j);
        if (err == -ENOENT) {
            keep_to_ourselves_locked(f);
            err = 0;
        } else if (err < 0) {
            failed_locked(f, gen, err);
        } else {
            f->busy = true;
            err = job_run_locked(who, f, j);
        }
    } else if (err == 0) {
        f->fresh = false; /* closed once, as it was created */
    }
    pthread_mutex_unlock(&f->lock);
    return err;
}

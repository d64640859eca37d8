/* gather.c - an answer too large for memory, written by workers as it comes. */
#include "common/gather.h"

#include <errno.h>
#include <stdlib.h>

#include "common/spool.h"

struct gather {
    struct gather_opts opts;
    struct relay *relay;
    size_t come; /* the loop's */

    pthread_mutex_t lock; /* all below */
    struct blob *answer;  /* the worker's to make; it stays where it is */
    size_t written, told;
    bool posted, dropped, room, ended;
    int err;
    unsigned refs; /* the owner's, the relay's, and that of the posted job */
    struct loop_job news;
};

static void gather_unref_unlock(struct gather *g)
{
    bool last = --g->refs == 0;

    pthread_mutex_unlock(&g->lock);
    if (!last)
        return;
    blob_unref(g->answer);
    pthread_mutex_destroy(&g->lock);
    free(g);
}

/* --- on the workers --------------------------------------------------------------------------- */

/* Not when it is dropped: the loop may be gone then. */
static void post_news_locked(struct gather *g)
{
    if (g->posted || g->dropped)
        return;
    g->posted = true;
    g->refs++;
    loop_post(g->opts.loop, &g->news);
}

static int on_take(void *arg, struct span part)
{
    struct gather *g = arg;
    struct blob *b = g->answer; /* nobody else changes it while the relay is there */
    int err = 0;

    if (b == NULL)
        err = spool_reserve(&b, 0, g->opts.len);
    if (err == 0)
        err = spool_write(b, g->written, part);
    pthread_mutex_lock(&g->lock);
    g->answer = b;
    if (err == 0) {
        g->written += part.len;
        post_news_locked(g);
    }
    pthread_mutex_unlock(&g->lock);
    return err;
}

static void on_room(void *arg)
{
    struct gather *g = arg;

    pthread_mutex_lock(&g->lock);
    g->room = true;
    post_news_locked(g);
    pthread_mutex_unlock(&g->lock);
}

static void on_ended(void *arg, int err)
{
    struct gather *g = arg;

    pthread_mutex_lock(&g->lock);
    g->ended = true;
    g->err = err == 0 && g->written < g->opts.len ? -EPROTO : err;
    post_news_locked(g);
    pthread_mutex_unlock(&g->lock);
}

static void on_relay_free(void *arg)
{
    struct gather *g = arg;

    pthread_mutex_lock(&g->lock);
    gather_unref_unlock(g);
}

static const struct relay_ops relay_ops = {on_take, on_room, on_ended, on_relay_free};

/* --- on the loop ------------------------------------------------------------------------------ */

static void on_news(struct loop_job *job)
{
    struct gather *g = container_of(job, struct gather, news);
    struct blob *answer;
    size_t written, told;
    bool room, ended;

    pthread_mutex_lock(&g->lock);
    g->posted = false;
    answer = g->answer;
    written = g->written;
    told = g->told;
    g->told = written;
    room = g->room;
    g->room = false;
    ended = g->ended;
    pthread_mutex_unlock(&g->lock);
    /* Only this thread drops it. */
    if (!g->dropped && written > told && g->opts.progress != NULL)
        g->opts.progress(g->opts.arg, answer, written);
    if (!g->dropped && room)
        g->opts.room(g->opts.arg);
    if (!g->dropped && ended) {
        if (g->err == 0)
            g->answer = NULL; /* the callback's */
        g->opts.done(g->opts.arg, g->err, g->err == 0 ? answer : NULL);
    }
    pthread_mutex_lock(&g->lock);
    gather_unref_unlock(g);
}

int gather_new(const struct gather_opts *opts, struct gather **out)
{
    struct gather *g = calloc(1, sizeof(*g));
    int err;

    if (g == NULL)
        return -ENOMEM;
    g->opts = *opts;
    g->refs = 2;
    g->news.fn = on_news;
    err = relay_new(opts->workers, &relay_ops, g, &g->relay);
    if (err < 0) {
        free(g);
        return err;
    }
    pthread_mutex_init(&g->lock, NULL);
    *out = g;
    return 0;
}

int gather_add(struct gather *g, struct span part)
{
    if (part.len > g->opts.len - g->come)
        return -EFBIG;
    g->come += part.len;
    return relay_add(g->relay, part);
}

void gather_end(struct gather *g)
{
    relay_end(g->relay);
}

void gather_free(struct gather *g)
{
    if (g == NULL)
        return;
    pthread_mutex_lock(&g->lock);
    g->dropped = true;
    pthread_mutex_unlock(&g->lock);
    relay_free(g->relay);
    pthread_mutex_lock(&g->lock);
    gather_unref_unlock(g);
}

/*
 * ops_notify.c - tells the kernel that attributes of a directory, which it may believe, no longer
 * hold, and that the names of some may not.
 *
 * It can take a while: the kernel waits for whoever is just throwing the inode away. So a thread
 * does it, from a queue that is bounded: where it overflows, all inodes are told.
 */
#include "fs/ops.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

#define QUEUE_MAX 4096u

struct news {
    enum { NEWS_ATTRS, NEWS_NAME, NEWS_NAME_GONE } of;
    uint64_t id;
};

struct notifier {
    struct fuse_session *session;
    struct fs *fs;
    pthread_t thread;
    bool started;
    pthread_mutex_t lock; /* all below */
    pthread_cond_t changed;
    struct news news[QUEUE_MAX];
    unsigned head, n;
    bool all, stopping;
};

static void queue(struct notifier *n, struct news news)
{
    const struct news *last;

    pthread_mutex_lock(&n->lock);
    last = &n->news[(n->head + n->n + QUEUE_MAX - 1) % QUEUE_MAX];
    if ((n->all && news.of == NEWS_ATTRS) ||
        (n->n > 0 && last->id == news.id && last->of == news.of)) {
        pthread_mutex_unlock(&n->lock); /* it will be told */
        return;
    }
    if (n->n < QUEUE_MAX)
        n->news[(n->head + n->n++) % QUEUE_MAX] = news;
    else /* a name is healed by who comes by it */
        n->all = true;
    pthread_cond_signal(&n->changed);
    pthread_mutex_unlock(&n->lock);
}

static void forget(void *arg, uint64_t id)
{
    queue(arg, (struct news){NEWS_ATTRS, id});
}

static void forget_name(void *arg, uint64_t id, bool gone)
{
    queue(arg, (struct news){gone ? NEWS_NAME_GONE : NEWS_NAME, id});
}

static void forget_all(void *arg)
{
    struct notifier *n = arg;

    pthread_mutex_lock(&n->lock);
    n->all = true;
    pthread_cond_signal(&n->changed);
    pthread_mutex_unlock(&n->lock);
}

static void forget_now(struct notifier *n, fuse_ino_t ino)
{
    (void)fuse_lowlevel_notify_inval_inode(n->session, ino, -1, 0); /* attributes only */
}

/*
 * To ask for it when somebody comes by next. Where the kernel cannot do that (before Linux 6.2), it
 * has to drop the name, which costs a process its working directory and detaches what is mounted
 * there: only if that would have come of an rmdir here, too.
 */
static void forget_name_now(struct notifier *n, fuse_ino_t ino, bool gone)
{
    struct buf name = {0};
    uint64_t parent;

    if (fs_dir_name(n->fs, ino, &parent, &name) == 0) {
        const char *text = (const char *)name.data;
        int err = fuse_lowlevel_notify_expire_entry(n->session, parent, text, name.len,
                                                    FUSE_LL_EXPIRE_ONLY);

        if (err == -ENOSYS && gone)
            (void)fuse_lowlevel_notify_inval_entry(n->session, parent, text, name.len);
    }
    buf_fini(&name);
}

static void tell(struct notifier *n, struct news news)
{
    if (news.of == NEWS_ATTRS)
        forget_now(n, news.id);
    else
        forget_name_now(n, news.id, news.of == NEWS_NAME_GONE);
}

static bool is_stopping(struct notifier *n)
{
    bool stopping;

    pthread_mutex_lock(&n->lock);
    stopping = n->stopping;
    pthread_mutex_unlock(&n->lock);
    return stopping;
}

static void tell_all(struct notifier *n)
{
    uint64_t *ids;
    size_t n_ids;

    if (fs_dir_ids(n->fs, &ids, &n_ids) < 0)
        return; /* what it believes runs out by itself */
    for (size_t i = 0; i < n_ids && !is_stopping(n); i++)
        forget_now(n, ids[i]);
    free(ids);
}

static void *run(void *arg)
{
    struct notifier *n = arg;

    pthread_mutex_lock(&n->lock);
    while (!n->stopping) {
        if (n->all) {
            n->all = false;
            n->n = 0;
            pthread_mutex_unlock(&n->lock);
            tell_all(n);
            pthread_mutex_lock(&n->lock);
        } else if (n->n > 0) {
            struct news news = n->news[n->head];

            n->head = (n->head + 1) % QUEUE_MAX;
            n->n--;
            pthread_mutex_unlock(&n->lock);
            tell(n, news);
            pthread_mutex_lock(&n->lock);
        } else {
            pthread_cond_wait(&n->changed, &n->lock);
        }
    }
    pthread_mutex_unlock(&n->lock);
    return NULL;
}

int notifier_new(struct fuse_session *session, struct fs *fs, struct notifier **out)
{
    struct notifier *n = calloc(1, sizeof(*n));
    int err;

    if (n == NULL)
        return -ENOMEM;
    n->session = session;
    n->fs = fs;
    pthread_mutex_init(&n->lock, NULL);
    pthread_cond_init(&n->changed, NULL);
    err = -pthread_create(&n->thread, NULL, run, n);
    if (err < 0) {
        notifier_free(n);
        return err;
    }
    n->started = true;
    pthread_setname_np(n->thread, "notify");
    follow_set_kernel(fs_follow(fs), &(struct follow_kernel){.forget = forget,
                                                             .forget_name = forget_name,
                                                             .forget_all = forget_all,
                                                             .arg = n});
    *out = n;
    return 0;
}

void notifier_stop(struct notifier *n)
{
    if (n == NULL || !n->started)
        return;
    pthread_mutex_lock(&n->lock);
    n->stopping = true;
    pthread_cond_signal(&n->changed);
    pthread_mutex_unlock(&n->lock);
    pthread_join(n->thread, NULL);
    n->started = false;
}

void notifier_free(struct notifier *n)
{
    if (n == NULL)
        return;
    notifier_stop(n);
    pthread_cond_destroy(&n->changed);
    pthread_mutex_destroy(&n->lock);
    free(n);
}

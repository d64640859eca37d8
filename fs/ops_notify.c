/*
 * ops_notify.c - tells the kernel that attributes of a directory, which it may believe, no longer
 * hold.
 *
 * It can take a while: the kernel waits for whoever is just throwing the inode away. So a thread
 * does it, from a queue that is bounded: where it overflows, all inodes are told.
 */
#include "fs/ops.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

#define QUEUE_MAX 4096u

struct notifier {
    struct fuse_session *session;
    struct fs *fs;
    pthread_t thread;
    bool started;
    pthread_mutex_t lock; /* all below */
    pthread_cond_t changed;
    uint64_t ids[QUEUE_MAX];
    unsigned head, n;
    bool all, stopping;
};

static void forget(void *arg, uint64_t id)
{
    struct notifier *n = arg;
    unsigned last;

    pthread_mutex_lock(&n->lock);
    last = (n->head + n->n + QUEUE_MAX - 1) % QUEUE_MAX;
    if (n->all || (n->n > 0 && n->ids[last] == id)) {
        pthread_mutex_unlock(&n->lock); /* it will be told */
        return;
    }
    if (n->n < QUEUE_MAX) {
        n->ids[(n->head + n->n) % QUEUE_MAX] = id;
        n->n++;
    } else {
        n->all = true;
    }
    pthread_cond_signal(&n->changed);
    pthread_mutex_unlock(&n->lock);
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
            uint64_t id = n->ids[n->head];

            n->head = (n->head + 1) % QUEUE_MAX;
            n->n--;
            pthread_mutex_unlock(&n->lock);
            forget_now(n, id);
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
    follow_set_kernel(fs_follow(fs), &(struct follow_kernel){
                                         .forget = forget, .forget_all = forget_all, .arg = n});
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

/* caller.c - who asks, and how his wait ends early. */
#include "fs/caller.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "common/clock.h"

#define WATCH_MS 100
#define POOL_MAX 64u
#define FDS_LOOKED_AT_MAX 64u

struct callers {
    pthread_mutex_t lock; /* all below; a leaf: nothing is locked under it but the waiters' own */
    pthread_cond_t changed;
    struct list all;     /* struct caller: under way, the oldest first */
    struct list watched; /* signalled, but not to stop */
    struct waiter *pool[POOL_MAX];
    unsigned n_pool;
    bool stop;
    pthread_t thread;
};

/* --- signals ---------------------------------------------------------------------------------- */

static uint64_t bit(int sig)
{
    return 1ull << (sig - 1);
}

static bool read_file(const char *path, char *out, size_t size)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n;

    if (fd < 0)
        return false;
    n = read(fd, out, size - 1);
    close(fd);
    if (n < 0)
        return false;
    out[n] = 0;
    return true;
}

static uint64_t mask_field(const char *status, const char *name)
{
    const char *p = strstr(status, name);

    return p != NULL ? strtoull(p + strlen(name), NULL, 16) : 0;
}

/* Has the thread a pending signal that means "stop"? A thread that cannot be looked at counts as
 * one that was killed. */
static bool told_to_stop(pid_t pid)
{
    const uint64_t harmless = bit(SIGCHLD) | bit(SIGURG) | bit(SIGWINCH) | bit(SIGCONT) |
                              bit(SIGTSTP) | bit(SIGTTIN) | bit(SIGTTOU) | bit(SIGSTOP);
    const uint64_t wish = bit(SIGINT) | bit(SIGQUIT) | bit(SIGTERM) | bit(SIGHUP) | bit(SIGKILL);
    char path[64], text[4096];
    uint64_t pending;

    snprintf(path, sizeof(path), "/proc/%ld/status", (long)pid);
    if (pid == 0 || !read_file(path, text, sizeof(text)))
        return true;
    pending = mask_field(text, "\nSigPnd:") | mask_field(text, "\nShdPnd:");
    pending &= ~mask_field(text, "\nSigBlk:") & ~mask_field(text, "\nSigIgn:");
    if (pending & wish)
        return true;
    return (pending & ~mask_field(text, "\nSigCgt:") & ~harmless) != 0;
}

void caller_stop(struct caller *who)
{
    atomic_store(&who->stopped, true);
    if (who->waiter != NULL)
        waiter_interrupt(who->waiter);
}

void caller_signalled(struct caller *who)
{
    struct callers *c = who->callers;
    bool stop = told_to_stop(who->pid);

    if (stop) {
        caller_stop(who);
        return;
    }
    pthread_mutex_lock(&c->lock);
    if (list_empty(&who->watched)) {
        list_insert(&c->watched, &who->watched);
        pthread_cond_signal(&c->changed);
    }
    pthread_mutex_unlock(&c->lock);
}

static void *watch(void *arg)
{
    struct callers *c = (struct callers *)arg;
    struct timespec until;

    pthread_mutex_lock(&c->lock);
    while (!c->stop) {
        if (list_empty(&c->watched)) {
            pthread_cond_wait(&c->changed, &c->lock);
            continue;
        }
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_nsec += WATCH_MS * 1000000l;
        if (until.tv_nsec >= 1000000000l) {
            until.tv_nsec -= 1000000000l;
            until.tv_sec++;
        }
        pthread_cond_timedwait(&c->changed, &c->lock, &until);
        for (struct list *l = c->watched.next, *next; l != &c->watched; l = next) {
            struct caller *who = container_of(l, struct caller, watched);

            next = l->next;
            if (told_to_stop(who->pid)) {
                list_remove(l);
                caller_stop(who);
            }
        }
    }
    pthread_mutex_unlock(&c->lock);
    return NULL;
}

/* --- calls ------------------------------------------------------------------------------------ */

int callers_new(struct callers **out)
{
    struct callers *c = calloc(1, sizeof(*c));
    pthread_condattr_t attr;
    int err;

    if (c == NULL)
        return -ENOMEM;
    pthread_mutex_init(&c->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&c->changed, &attr);
    pthread_condattr_destroy(&attr);
    list_init(&c->all);
    list_init(&c->watched);
    err = -pthread_create(&c->thread, NULL, watch, c);
    if (err < 0) {
        pthread_cond_destroy(&c->changed);
        pthread_mutex_destroy(&c->lock);
        free(c);
        return err;
    }
    pthread_setname_np(c->thread, "signals");
    *out = c;
    return 0;
}

void callers_free(struct callers *c)
{
    if (c == NULL)
        return;
    pthread_mutex_lock(&c->lock);
    c->stop = true;
    pthread_cond_signal(&c->changed);
    pthread_mutex_unlock(&c->lock);
    pthread_join(c->thread, NULL);
    for (unsigned i = 0; i < c->n_pool; i++)
        waiter_free(c->pool[i]);
    pthread_cond_destroy(&c->changed);
    pthread_mutex_destroy(&c->lock);
    free(c);
}

void caller_begin(struct callers *c, enum fs_call call, uid_t uid, gid_t gid, pid_t pid,
                  struct caller *who)
{
    struct waiter *w = NULL;

    who->call = call;
    who->begun_us = clock_real()->mono_us(clock_real());
    who->uid = uid;
    who->gid = gid;
    who->pid = pid;
    atomic_init(&who->stopped, false);
    who->moves = false;
    who->why.msg[0] = 0;
    who->callers = c;
    list_init(&who->watched);
    pthread_mutex_lock(&c->lock);
    if (c->n_pool > 0) {
        w = c->pool[--c->n_pool];
    } else {
        pthread_mutex_unlock(&c->lock);
        if (waiter_new(&w) < 0)
            w = NULL; /* then this call cannot be interrupted */
        pthread_mutex_lock(&c->lock);
    }
    who->waiter = w; /* from here on others may end its wait */
    list_insert(&c->all, &who->link);
    pthread_mutex_unlock(&c->lock);
}

uint64_t caller_age_us(const struct caller *who)
{
    return clock_real()->mono_us(clock_real()) - who->begun_us;
}

void caller_end(struct caller *who)
{
    struct callers *c = who->callers;

    pthread_mutex_lock(&c->lock);
    list_remove(&who->link);
    list_remove(&who->watched);
    /* An interrupted waiter stays so, and is of no more use. */
    if (!caller_stopped(who) && who->waiter != NULL && c->n_pool < POOL_MAX) {
        c->pool[c->n_pool++] = who->waiter;
        who->waiter = NULL;
    }
    pthread_mutex_unlock(&c->lock);
    if (who->waiter != NULL)
        waiter_free(who->waiter);
}

void callers_stop_all(struct callers *c)
{
    pthread_mutex_lock(&c->lock);
    for (struct list *l = c->all.next; l != &c->all; l = l->next)
        caller_stop(container_of(l, struct caller, link));
    pthread_mutex_unlock(&c->lock);
}

size_t callers_list(struct callers *c, struct call_info *out, size_t max)
{
    size_t n = 0;

    pthread_mutex_lock(&c->lock);
    for (struct list *l = c->all.next; l != &c->all; l = l->next, n++) {
        const struct caller *who = container_of(l, struct caller, link);

        if (n < max)
            out[n] = (struct call_info){who->call, who->pid, who->begun_us};
    }
    pthread_mutex_unlock(&c->lock);
    return n;
}

/* --- open descriptors ------------------------------------------------------------------------- */

/* Is this /proc/PID/fdinfo text of a descriptor that can write to the file with this st_ino? */
static bool is_writer_of(const char *text, uint64_t st_ino)
{
    const char *ino = strstr(text, "\nino:"), *flags = strstr(text, "flags:");

    return ino != NULL && flags != NULL && strtoull(ino + 5, NULL, 10) == st_ino &&
           (strtoul(flags + 6, NULL, 8) & O_ACCMODE) != O_RDONLY;
}

bool caller_holds_open(const struct caller *who, uint64_t st_ino)
{
    char path[320], text[512];
    bool found = false;
    struct dirent *e;
    unsigned n = 0;
    DIR *d;

    if (who->pid == 0)
        return false;
    snprintf(path, sizeof(path), "/proc/%ld/fdinfo", (long)who->pid);
    d = opendir(path);
    if (d == NULL)
        return false;
    while (!found && n < FDS_LOOKED_AT_MAX && (e = readdir(d)) != NULL) {
        if (e->d_name[0] == '.')
            continue;
        n++;
        snprintf(path, sizeof(path), "/proc/%ld/fdinfo/%s", (long)who->pid, e->d_name);
        found = read_file(path, text, sizeof(text)) && is_writer_of(text, st_ino);
    }
    closedir(d);
    return found;
}

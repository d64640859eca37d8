/*
 * main.c - kvfs: mounts the cluster's keys as files.
 *
 * The folder, in reading order:
 *   fs.h           what the core does, and the order of its locks
 *   inode.[ch]     what the kernel knows of: ids, keys, lookup counts
 *   calls.c        calls of the cluster
 *   names.c        names in a directory become keys; what the cluster has under them
 *   attr.[ch]      records and listing entries to struct stat
 *   fs.c           lookup, attributes
 *   tree.c         names made and removed
 *   rename.c       names moved; rename_dir.c a directory, key by key
 *   dir_moves.[ch] the directories that are just being moved, and who is in them
 *   move.[ch]      one key moved           move_mark.[ch]  how an interrupted move is recognised
 *   content.[ch]   the bytes of an open file: in memory, or spill.[ch]: in a temporary file
 *   file.[ch]      an open file and its view: file_load.c fetches it, file_read.c reads it,
 *                  file_write.c changes it, file_store.c stores it,
 *                  file_grow.c follows what others append
 *   handle.[ch]    open file descriptions: create, open, read, write, close
 *   dir.c          reading directories
 *   feeding.[ch]   the change feed, as the cluster's guest
 *   known.c        what is known of an inode, and how far the kernel may believe it
 *   follow.[ch]    what was read and still holds, while the change feed tells of changes
 *   listings.[ch]  pages of directory listings that still hold
 *   dirtime.[ch]   the times of directories, stored a little later
 *   xattr.c        user.* attributes
 *   caller.[ch]    who asks, and how his wait ends early
 *   metrics.[ch]   counters of what was asked
 *   control.[ch]   .kvfs, what the mount tells of itself; report.[ch] the text of it
 *   ops.c ops_init.c ops_file.c ops_dir.c ops_control.c   handlers, the only ones that know FUSE
 *   ops_notify.c   tells the kernel what it may believe no longer
 *   options.[ch]   the command line        daemon.[ch]   into the background
 *
 * Threads: main (waits for the session's end), libfuse's workers (they run the handlers, at most
 * max_threads), the cluster's I/O threads, "kvfs-disk" (large answers on their way to a temporary
 * file), "signals" (caller.c), "notify" (ops_notify.c), "stop" below.
 *
 * The end, by SIGTERM, SIGINT or umount: no more requests are read; those in flight end, within
 * `timeout`; dirty files are stored or named in the log; the mount goes; the cluster's connections
 * close.
 */
#include <errno.h>
#include <limits.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "fs/ops.h"

#include "common/log.h"
#include "common/spool.h"
#include "common/transport_http.h"
#include "fs/daemon.h"
#include "fs/feeding.h"
#include "fs/options.h"

#define EXIT_USAGE 1 /* mount(8)'s codes */
#define EXIT_FAIL 32
#define ARENAS_MAX 2
#define IDLE_THREADS 10u
#define N_WORKERS 2u
#define CALLS_LIMIT_S 5  /* for calls under way, when going down */
#define FLUSH_LIMIT_S 10 /* for all dirty files together, then */
#define NOFILE_KEPT 192u /* descriptors for connections and files; the rest is for threads */
#define WAKE_MS 20

struct program {
    struct options opts;
    struct config *cfg;
    struct workers *workers; /* for what waits for the disk long */
    struct cluster *cluster;
    struct feeding feeding;
    struct mount mount;
    struct fuse_session *session;
    int ready_fd; /* -1: in the foreground */
    pthread_t main_thread, stop_thread;
    pthread_mutex_t lock; /* all below */
    pthread_cond_t changed;
    bool loop_ended, flushed;
    struct caller *flusher; /* while dirty files are being stored */
};

/* --- stopping --------------------------------------------------------------------------------- */

static void on_wake(int sig)
{
    (void)sig; /* it only has to interrupt a wait */
}

static void wait_ms_locked(struct program *p, long ms)
{
    struct timespec until;

    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += ms / 1000;
    until.tv_nsec += ms % 1000 * 1000000l;
    if (until.tv_nsec >= 1000000000l) {
        until.tv_nsec -= 1000000000l;
        until.tv_sec++;
    }
    pthread_cond_timedwait(&p->changed, &p->lock, &until);
}

/*
 * Waits for SIGTERM or SIGINT. libfuse's loop looks at its exit flag only when the main thread's
 * wait is interrupted, and that may come a moment too early, so it is repeated. Then watches that
 * storing what is dirty ends in time.
 */
static void *stop_on_signal(void *arg)
{
    struct program *p = arg;
    struct timespec limit;
    sigset_t set;
    int sig;

    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGHUP);
    sigwait(&set, &sig);
    pthread_mutex_lock(&p->lock);
    if (!p->loop_ended)
        log_event(LOG_LEVEL_INFO, "stopping", "signal=SIG%s", sigabbrev_np(sig));
    fuse_session_exit(p->session);
    for (unsigned waited_ms = 0; !p->loop_ended; waited_ms += WAKE_MS) {
        if (waited_ms >= CALLS_LIMIT_S * 1000u)
            callers_stop_all(p->mount.callers);
        pthread_kill(p->main_thread, SIGUSR1);
        wait_ms_locked(p, WAKE_MS);
    }
    clock_gettime(CLOCK_MONOTONIC, &limit);
    limit.tv_sec += FLUSH_LIMIT_S;
    while (!p->flushed && pthread_cond_timedwait(&p->changed, &p->lock, &limit) == 0)
        continue;
    if (!p->flushed && p->flusher != NULL)
        caller_stop(p->flusher);
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

static int stop_start(struct program *p)
{
    struct sigaction wake = {.sa_handler = on_wake}; /* no SA_RESTART */
    pthread_condattr_t attr;
    sigset_t set;

    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    pthread_sigmask(SIG_UNBLOCK, &set, NULL);
    sigaction(SIGUSR1, &wake, NULL);
    p->main_thread = pthread_self();
    pthread_mutex_init(&p->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&p->changed, &attr);
    pthread_condattr_destroy(&attr);
    return -pthread_create(&p->stop_thread, NULL, stop_on_signal, p);
}

/* The loop is over: stores what is dirty, watched by the other thread, and joins that. */
static void flush_and_join(struct program *p)
{
    struct caller who;

    caller_begin(p->mount.callers, CALL_NONE, 0, 0, 0, &who);
    pthread_mutex_lock(&p->lock);
    p->loop_ended = true;
    p->flusher = &who;
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
    pthread_kill(p->stop_thread, SIGTERM); /* should it still wait for one */
    fs_flush_all(p->mount.fs, &who);
    pthread_mutex_lock(&p->lock);
    p->flushed = true;
    p->flusher = NULL;
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
    pthread_join(p->stop_thread, NULL);
    caller_end(&who);
    pthread_cond_destroy(&p->changed);
    pthread_mutex_destroy(&p->lock);
}

/* --- starting --------------------------------------------------------------------------------- */

/* The kernel has said hello, on a worker thread. */
static void on_ready(void *arg)
{
    struct program *p = arg;

    if (p->ready_fd >= 0)
        log_to_syslog();
    log_event(LOG_LEVEL_INFO, "mounted", "config=%s mountpoint=%s",
              log_quote(p->cfg->path, strlen(p->cfg->path)),
              log_quote(p->opts.mountpoint, strlen(p->opts.mountpoint)));
    daemon_notify("READY=1");
    if (p->ready_fd >= 0)
        daemon_ready(p->ready_fd);
}

static int fail(const char *what, const char *why)
{
    fprintf(stderr, "kvfs: %s%s%s\n", what, why[0] != 0 ? ": " : "", why);
    return EXIT_FAIL;
}

/* Before anything is started: what can be known to be wrong. */
static int check_mountpoint(const char *path)
{
    struct stat st;

    if (stat(path, &st) < 0)
        return fail(path, errno == ENOTCONN
                              ? "what is mounted here does not answer any more (umount it)"
                              : strerror(errno));
    if (!S_ISDIR(st.st_mode))
        return fail(path, strerror(ENOTDIR));
    return 0;
}

/* FUSE's own options: the mount's name in /proc/mounts, and what the command line passes on. */
static int session_new(struct program *p)
{
    char *source = realpath(p->opts.config, NULL);
    struct fuse_args args = FUSE_ARGS_INIT(0, NULL);
    struct buf name = {0};
    int err;

    buf_add_str(&name, "fsname=");
    for (const char *s = source != NULL ? source : p->opts.config; *s != 0; s++) {
        if (*s == ',' || *s == '\\')
            buf_u8(&name, '\\');
        buf_u8(&name, (uint8_t)*s);
    }
    buf_u8(&name, 0);
    free(source);
    err = name.err < 0 || fuse_opt_add_arg(&args, "kvfs") < 0 ||
          fuse_opt_add_arg(&args, "-o") < 0 ||
          fuse_opt_add_arg(&args, (const char *)name.data) < 0 ||
          fuse_opt_add_arg(&args, "-osubtype=kvfs") < 0;
    if (!err && p->opts.fuse.len > 1)
        err = fuse_opt_add_arg(&args, "-o") < 0 ||
              fuse_opt_add_arg(&args, (const char *)p->opts.fuse.data) < 0;
    if (!err)
        p->session = fuse_session_new(&args, &ops_table, sizeof(ops_table), &p->mount);
    fuse_opt_free_args(&args);
    buf_fini(&name);
    return p->session == NULL ? -ENOMEM : 0;
}

static int start_workers(struct program *p)
{
    int err = workers_new(N_WORKERS, "kvfs-disk", &p->workers);

    if (err < 0)
        return fail("starting", strerror(-err));
    spool_set_workers(p->workers);
    return 0;
}

/* Connects, and waits until the cluster answers. */
static int connect_cluster(struct program *p)
{
    struct cluster_opts opts = {.cfg = p->cfg,
                                .workers = p->workers,
                                .timeout_ms = p->opts.timeout_ms,
                                .self = MESSAGE_NODE_NONE,
                                .guest_start = feeding_guest_start,
                                .guest_stop = feeding_guest_stop,
                                .arg = &p->feeding};
    struct err err = {0};

    if (transport_http_setup() < 0)
        return fail("no memory", "");
    if (cluster_open(&opts, &p->cluster, &err) < 0)
        return fail(p->opts.config, err.msg);
    if (cluster_wait_ready(p->cluster, p->opts.timeout_ms, &err) < 0)
        return fail(p->opts.config, err.msg);
    return 0;
}

/* Each thread has a descriptor, and most have none until they are needed. */
static unsigned threads_max(unsigned wanted)
{
    struct rlimit lim;
    rlim_t most;

    if (getrlimit(RLIMIT_NOFILE, &lim) != 0)
        return wanted;
    lim.rlim_cur = lim.rlim_max;
    (void)setrlimit(RLIMIT_NOFILE, &lim);
    if (getrlimit(RLIMIT_NOFILE, &lim) != 0 || lim.rlim_cur >= wanted + NOFILE_KEPT)
        return wanted;
    most = lim.rlim_cur > 2 * NOFILE_KEPT ? lim.rlim_cur - NOFILE_KEPT : lim.rlim_cur / 2;
    log_event(LOG_LEVEL_WARN, "few-descriptors",
              "limit=%llu effect=\"%u calls may wait for nodes at a time\" remedy=\"a limit "
              "(RLIMIT_NOFILE) of at least %u\"",
              (unsigned long long)lim.rlim_cur, (unsigned)most, wanted + NOFILE_KEPT);
    return (unsigned)most;
}

static int make_control(struct program *p)
{
    struct control_opts opts = {
        .fs = p->mount.fs,
        .cluster = p->cluster,
        .callers = p->mount.callers,
        .metrics = p->mount.metrics,
        .defaults = {.uid = p->opts.uid, .gid = p->opts.gid, .umask = p->opts.umask},
        .mountpoint = p->opts.mountpoint};

    return control_new(&opts, &p->mount.control);
}

static int make_core(struct program *p)
{
    struct fs_opts opts = {
        .cluster = p->cluster,
        .read_one = p->opts.read_one,
        .defaults = {.uid = p->opts.uid, .gid = p->opts.gid, .umask = p->opts.umask}};
    int err = callers_new(&p->mount.callers);

    p->mount.metrics = metrics_new();
    if (p->mount.metrics == NULL)
        err = -ENOMEM;
    if (err == 0)
        err = fs_new(&opts, &p->mount.fs);
    if (err == 0)
        err = make_control(p);
    if (err < 0)
        return fail("starting", strerror(-err));
    p->mount.attr_timeout_s = p->opts.attr_timeout_s;
    p->mount.max_threads = threads_max(p->opts.max_threads);
    p->mount.on_ready = on_ready;
    p->mount.on_ready_arg = p;
    return 0;
}

static int run_loop(struct program *p)
{
    struct fuse_loop_config *loop = fuse_loop_cfg_create();
    int err;

    if (loop == NULL)
        return -ENOMEM;
    fuse_loop_cfg_set_clone_fd(loop, 1);
    fuse_loop_cfg_set_max_threads(loop, p->mount.max_threads);
    fuse_loop_cfg_set_idle_threads(loop, p->mount.max_threads < IDLE_THREADS ? p->mount.max_threads
                                                                             : IDLE_THREADS);
    err = fuse_session_loop_mt(p->session, loop);
    fuse_loop_cfg_destroy(loop);
    return err;
}

/* What changes is told from now on, so what was read can be kept. */
static int start_caching(struct program *p)
{
    int err;

    if (p->opts.attr_timeout_s <= 0)
        return 0;
    err = notifier_new(p->session, p->mount.fs, &p->mount.notifier);
    if (err == 0)
        feeding_begin(&p->feeding, p->cluster, fs_follow(p->mount.fs));
    return err;
}

static int serve(struct program *p)
{
    int code, err;

    code = start_workers(p);
    if (code == 0)
        code = connect_cluster(p);
    if (code == 0)
        code = make_core(p);
    if (code != 0)
        return code;
    err = session_new(p);
    if (err < 0)
        return fail("starting", strerror(-err));
    err = stop_start(p);
    if (err < 0)
        return fail("starting", strerror(-err));
    if (fuse_session_mount(p->session, p->opts.mountpoint) == 0) {
        err = ops_init_io(p->session);
        if (err == 0)
            err = start_caching(p);
        if (err == 0)
            err = run_loop(p);
        if (err < 0)
            code = fail("serving", strerror(-err));
    } else {
        code = fail(p->opts.mountpoint, "cannot be mounted");
    }
    notifier_stop(p->mount.notifier);
    flush_and_join(p);
    log_event(LOG_LEVEL_INFO, "unmounted", "mountpoint=%s",
              log_quote(p->opts.mountpoint, strlen(p->opts.mountpoint)));
    fuse_session_unmount(p->session);
    return code;
}

/* Descriptors are what connections and large open files are made of. */
static void raise_nofile(void)
{
    struct rlimit lim;

    if (getrlimit(RLIMIT_NOFILE, &lim) == 0 && lim.rlim_cur < lim.rlim_max) {
        lim.rlim_cur = lim.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &lim);
    }
}

static void block_signals(void)
{
    sigset_t set;

    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGHUP);
    sigaddset(&set, SIGUSR1); /* for the main thread alone */
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    signal(SIGPIPE, SIG_IGN);
}

static int mount_and_serve(struct program *p)
{
    char *mountpoint;
    struct err err = {0};
    int code;

    log_open("kvfs", p->opts.debug ? LOG_LEVEL_DEBUG : LOG_LEVEL_INFO);
    if (config_load(p->opts.config, &p->cfg, &err) < 0 || config_check_client(p->cfg, &err) < 0)
        return fail(err.msg, "");
    code = check_mountpoint(p->opts.mountpoint);
    if (code != 0)
        return code;
    mountpoint = realpath(p->opts.mountpoint, NULL);
    if (mountpoint == NULL)
        return fail(p->opts.mountpoint, strerror(errno));
    p->opts.mountpoint = mountpoint;
    if (!p->opts.foreground) {
        int failed = daemon_start(EXIT_FAIL, &p->ready_fd);

        if (failed < 0)
            code = fail("starting", strerror(-failed));
    }
    if (code == 0) {
        raise_nofile();
        block_signals();
        code = serve(p);
    }
    if (p->session != NULL)
        fuse_session_destroy(p->session);
    if (p->workers != NULL)
        workers_hurry(p->workers);
    cluster_close(p->cluster);
    feeding_fini(&p->feeding);
    notifier_free(p->mount.notifier);
    control_free(p->mount.control);
    callers_free(p->mount.callers);
    metrics_free(p->mount.metrics);
    fs_free(p->mount.fs);
    spool_set_workers(NULL);
    workers_free(p->workers);
    free(mountpoint);
    return code;
}

int main(int argc, char **argv)
{
    struct program p = {.ready_fd = -1};
    struct err err = {0};
    int code = 0;

    /* Or what one thread takes and another gives back is scattered over many, and stays. */
    mallopt(M_ARENA_MAX, ARENAS_MAX);
    if (options_parse(argc, argv, &p.opts, &err) < 0) {
        fprintf(stderr, "kvfs: %s\nTry 'kvfs --help'.\n", err.msg);
        code = EXIT_USAGE;
    } else if (p.opts.help) {
        fputs(options_usage, stdout);
    } else if (p.opts.version) {
        puts("kvfs " KVFS_VERSION);
    } else {
        code = mount_and_serve(&p);
    }
    options_fini(&p.opts);
    config_free(p.cfg);
    return code;
}

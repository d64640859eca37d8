/*
 * main.c - kvnode: one node of the cluster.
 *
 * The folder, in reading order:
 *
 *   main.c            starts and stops the parts below; options.[ch]: the command line,
 *                     notify.[ch]: tells the service manager
 *   lobby.[ch]        answers while the store is not there yet
 *   server.[ch]       HTTP over libmicrohttpd; exchange.[ch]: a request and its answer; on
 *     listener.[ch]     listening sockets and the thread that accepts
 *     conns.[ch]        open connections and their deadlines
 *     framing.[ch]      where a request ends, and which to refuse
 *     response.[ch]     an answer as a value
 *   service.[ch]      from a path to its route (routes.h), and what all of them share
 *     routes_kv.c       GET and HEAD of a key; conditions.[ch]: If-Match, Range and the like;
 *                       value_stream.[ch]: a large value on its way out
 *     routes_write.c    PUT, DELETE, append; body.[ch], budget.h: bodies within bounds
 *     routes_list.c     listings; query.[ch], base64.[ch]: the part of a URL behind '?'
 *     routes_replica.c  the cluster's own requests
 *     routes_watch.c    changes as they come; changes.[ch]: the last ones; watchers.[ch]: whom to
 *                       wake for them
 *     routes_admin.c    /replicas, /health, /status, /metrics; metrics.[ch]: counters
 *   replica.[ch]      one node's part of the protocol; replica_impl.h: its insides, shared with
 *     request.c         a request on its way in
 *     replica_key.c     PREPARE, ACCEPT, READ, DROP: what is answered about one key
 *     replica_repair.c  DIGEST, KEYS; the walks that count the digests and look for damage
 *     reply.c           an answer on its way out
 *     present.[ch] (a key as the store has it)  damage.[ch] (those that are not whole)
 *     promises.[ch]  incarnations.[ch]  scan.[ch] (listing)  digests.[ch] (for comparing nodes)
 *   upkeep.[ch]       what a node does of its own accord:
 *     scrub.[ch]        a thread that walks over the store: counts digests, verifies
 *     repair.[ch]       on the cluster's first I/O thread; repair_impl.h: what its parts share
 *       recovery.[ch]     a new store, until it votes; census.[ch]: who of the others counts;
 *                         rescue.[ch]: one key
 *       comparison.[ch]   with one peer; key_merge.[ch]: listings side by side
 *       mending.[ch]  tombstones.[ch]
 *   backing.[ch]      which store it is:
 *   store.h           the seam below: store_memory.c;
 *                     store_redis.[ch], over
 *     redis_pool.[ch]   connections, and the session that all accesses name; redis_link.[ch]: one
 *     redis_claim.[ch]  whose data is there, and is it all there? redis_note.[ch]: what the
 *                       directory knows of it; redis_info.[ch]: what it says of itself
 *     redis_url.[ch]    where it is
 *     redis_scripts.[ch]  changes in one step; redis_values.[ch]: large values
 *     redis_iter.[ch]   walks; views.[ch]: moments of what is being changed
 *                     and store_rocksdb.c with store_open.c, over
 *     rocks.[ch]        RocksDB; value_file.[ch]: large values; flusher.[ch]: --fsync everysec
 *     wal_tail.[ch]     is its log damaged, or torn by a loss of power?
 *     reserve.[ch]      room for deletes on a full disk
 *     placement.[ch]    by which ring its keys are here
 *     data_dir.[ch]     whose it is; set_aside.[ch]: damaged ones; boot_mark.[ch]: a power loss?
 *   watch.[ch]        probes the store
 *
 * Threads: the main one waits for a signal; kv-accept; the server's eight, which run handlers and
 * the replica; kv-disk, which write and sync large values; kv-deadlines; kv-watchers;
 * kv-store-watch; kv-scrub; the cluster's I/O threads, which coordinate client requests and reply
 * to them, and the first of which repairs; those of the store.
 *
 * Stop order: end the answers of those who watch -> accept no more, close what only waits ->
 * clients' requests under way are answered, then the cluster's own (at most DRAIN_S) -> the scrub
 * ends -> the workers give up what they have not begun -> the cluster ends, and with it every
 * operation and the repair, so that no connection is left waiting -> the server -> the workers ->
 * watchers, watch, replica, store.
 *
 * A store that is found damaged while it is in use: the node stops in that order, and starts itself
 * anew in the same process; opening the store then sets it aside (set_aside.h). So, without that,
 * where a store works again only after it was closed and opened (store.h, stuck()).
 */
#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <unistd.h>

#include "common/log.h"
#include "common/spool.h"
#include "common/transport_http.h"
#include "node/backing.h"
#include "node/damage.h"
#include "node/listener.h"
#include "node/lobby.h"
#include "node/notify.h"
#include "node/options.h"
#include "node/placement.h"
#include "node/service.h"

#define DRAIN_S 5u
#define NOFILE_MIN 512u
#define STORE_NOFILE 128u
#define GATEWAY_WAIT_MS 2000u /* for nodes to say which ring they hold */
#define IMBALANCE_MAX 1.4
#define WATCHERS_SHARE 4u /* of the connections: so many may watch changes */
#define BODY_MEMORY (256ull << 20)
#define N_WORKERS 8u      /* so many large values are written or synced at a time */
#define BODIES_ON_DISK 4u /* of the largest size, at a time */

/* All parts, in the order in which they start. */
struct node {
    struct options opts;
    struct config *cfg;
    char *host; /* of a gateway's address */
    struct backing backing;
    struct listener *listener; /* until the server, or the lobby, has taken it */
    struct lobby *lobby;       /* while the store is not there */
    struct service service;
    struct server *server;
    struct buf placed_by; /* the ring of the store's data, where that is another one */
    bool damaged;         /* why it could not start: its store opens, and makes no sense */
};

/* --- start ------------------------------------------------------------------------------------ */

/* Descriptors are what connections, files and peers are made of. Returns how many there may be. */
static rlim_t raise_nofile(void)
{
    struct rlimit lim;

    if (getrlimit(RLIMIT_NOFILE, &lim) != 0)
        return 1024;
    if (lim.rlim_cur < lim.rlim_max) {
        struct rlimit most = {lim.rlim_max, lim.rlim_max};

        if (setrlimit(RLIMIT_NOFILE, &most) == 0)
            return most.rlim_cur;
    }
    return lim.rlim_cur;
}

/* The store has its descriptors; of the rest half is for values under way and for peers. */
static unsigned connections_max(void)
{
    rlim_t n = raise_nofile();

    if (n < NOFILE_MIN)
        log_event(LOG_LEVEL_WARN, "few-descriptors",
                  "limit=%llu effect=\"requests may fail for lack of them\" remedy=\"a limit "
                  "(RLIMIT_NOFILE) of at least %u\"",
                  (unsigned long long)n, NOFILE_MIN);
    n = n > STORE_NOFILE ? (n - STORE_NOFILE) / 2 : 0;
    if (n >= CONNECTIONS_MAX)
        return CONNECTIONS_MAX;
    return n < 64 ? 64 : (unsigned)n;
}

static double imbalance(const struct ring *ring)
{
    double most = 0;

    for (unsigned i = 0; i < ring_n_nodes(ring); i++)
        if (ring_share(ring, i) > most)
            most = ring_share(ring, i);
    return most * ring_n_nodes(ring);
}

static void warn_about(const struct config *cfg)
{
    double worst = imbalance(cfg->ring);

    if (cfg->replication_factor > cfg->n_nodes)
        log_event(LOG_LEVEL_WARN, "too-few-nodes",
                  "replication_factor=%u nodes=%u effect=\"every node holds every key\"",
                  cfg->replication_factor, cfg->n_nodes);
    if (cfg->n_nodes > cfg->replication_factor && worst > IMBALANCE_MAX)
        log_event(LOG_LEVEL_WARN, "ring-unbalanced",
                  "busiest=\"%.2f times the average\" remedy=\"\\\"hash\\\": \\\"fnv1a-mix\\\" in "
                  "%s, before there is data\"",
                  worst, cfg->path);
}

static int load_config(struct node *n, struct err *err)
{
    int r = config_load(n->opts.config, &n->cfg, err);
    int self;

    if (r != 0)
        return r;
    n->service.cfg = n->cfg;
    if (n->opts.gateway != NULL) {
        n->service.self = MESSAGE_NODE_NONE;
        n->service.name = n->opts.gateway;
        return config_check_client(n->cfg, err);
    }
    self = config_find(n->cfg, n->opts.id);
    if (self < 0)
        return err_set(err, self, "%s: there is no node \"%s\"", n->opts.config, n->opts.id);
    n->service.self = (uint32_t)self;
    n->service.name = n->opts.id;
    return 0;
}

static int bind_address(struct node *n, struct err *err)
{
    uint16_t port;
    int r;

    if (n->opts.gateway == NULL)
        return listener_bind(n->cfg->nodes[n->service.self].host,
                             n->cfg->nodes[n->service.self].port, &n->listener, err);
    r = config_split_addr(n->opts.gateway, &n->host, &port, err);
    if (r != 0)
        return err_wrap(err, r, "--gateway %s", n->opts.gateway);
    return listener_bind(n->host, port, &n->listener, err);
}

/* The store is not there yet: who asks for the node is told. (Where that fails, nobody is.) */
static void on_store_waits(void *arg, const char *why)
{
    struct node *n = arg;
    struct err err;

    if (n->lobby == NULL && lobby_open(&n->listener, n->service.clock, &n->lobby, &err) == 0)
        notify_manager("READY=1"); /* as far as it can be by itself */
    if (n->lobby != NULL)
        lobby_say(n->lobby, why);
}

static int open_backing(struct node *n, struct err *err)
{
    int r = backing_open(&n->backing, &n->opts, on_store_waits, n, err);
    bool has_waited = n->lobby != NULL;

    lobby_close(n->lobby);
    n->lobby = NULL;
    n->service.store = n->backing.store;
    return r == 0 && has_waited ? bind_address(n, err) : r;
}

/* It opens, and makes no sense: may the node begin anew? */
static void note_damaged(struct node *n, int ret, struct err *err)
{
    n->damaged = ret == -EBADMSG && backing_renewable(&n->backing, err);
}

static int check_placement(struct node *n, struct err *err)
{
    struct err why;
    int r = placement_check(n->service.store, n->cfg, &n->placed_by, err);

    note_damaged(n, r, err);
    if (r != 0)
        return r;
    if (n->placed_by.len > 0) {
        config_ring_compare(n->cfg, buf_span(&n->placed_by), &why);
        log_event(LOG_LEVEL_ERROR, "ring-changed",
                  "dir=%s reason=%s effect=\"all requests get 409\" remedy=\"start it with the "
                  "cluster.json that its data was placed by\"",
                  log_quote(backing_name(&n->backing), strlen(backing_name(&n->backing))),
                  log_quote(why.msg, strlen(why.msg)));
    }
    return 0;
}

/* From the watch, or in the midst of a request's errors: the main thread begins anew. */
static void on_store_unfit(void *arg)
{
    (void)arg;
    (void)kill(getpid(), SIGUSR1);
}

static int open_watch(struct service *s, struct err *err)
{
    int r = watch_new(s->store, s->clock, on_store_unfit, NULL, &s->watch);

    return r == 0 ? 0 : err_set(err, r, "cannot watch the store: %s", strerror(-r));
}

static int open_changes(struct service *s, struct err *err)
{
    uint64_t life;
    int r = -EIO;

    if (getrandom(&life, sizeof(life), 0) == (ssize_t)sizeof(life))
        r = changes_new(life, CHANGES_MAX, CHANGES_BYTES_MAX, &s->changes);
    return r == 0 ? 0 : err_set(err, r, "cannot keep changes: %s", strerror(-r));
}

static int open_replica(struct node *n, struct err *err)
{
    struct service *s = &n->service;
    struct replica_opts opts = {
        .ring = n->cfg->ring,
        .self = s->self,
        .cfg = n->cfg,
        .store = s->store,
        .placed_by = buf_span(&n->placed_by),
        .watch = s->watch,
        .clock = s->clock,
        .max_value_size = n->cfg->max_value_size,
        .distrusted = n->backing.distrusted,
        .changes = s->changes,
        .on_store_damage = on_store_unfit,
    };
    struct upkeep_opts upkeep = {
        .cfg = n->cfg,
        .self = s->self,
        .clock = s->clock,
        .accept_data_loss = n->opts.accept_data_loss,
        .tombstone_age_us = n->opts.tombstone_age_s * 1000000,
        .scrub_period_us = n->opts.scrub_period_s * 1000000,
    };
    int r;

    if (getrandom(&opts.seed, sizeof(opts.seed), 0) != (ssize_t)sizeof(opts.seed))
        return err_set(err, -EIO, "no randomness: %s", strerror(errno));
    r = upkeep_new(&upkeep, &s->upkeep);
    if (r != 0)
        return err_set(err, r, "no memory");
    opts.on_damage = upkeep_damaged;
    opts.on_damage_arg = s->upkeep;
    r = replica_open(&opts, &s->replica, err);
    note_damaged(n, r, err);
    if (r != 0)
        return r;
    if (n->backing.distrusted) {
        r = backing_trust(&n->backing); /* the replica has taken it to heart, durably */
        if (r != 0)
            return err_set(err, r, "%s: cannot be marked: %s", n->backing.dir, strerror(-r));
    }
    return 0;
}

static int open_cluster(struct node *n, struct err *err)
{
    struct cluster_opts opts = {
        .cfg = n->cfg,
        .workers = n->service.workers,
        .timeout_ms = TIMEOUT_DEFAULT_MS,
        .self = n->service.self,
    };
    struct service *s = &n->service;
    int r = transport_http_setup();

    if (r != 0)
        return err_set(err, r, "cannot start libcurl");
    r = listener_listen(n->listener, err);
    if (r != 0)
        return r;
    if (s->upkeep != NULL)
        upkeep_guest(s->upkeep, s->replica, &opts);
    r = cluster_open(&opts, &s->cluster, err);
    if (r != 0 || s->upkeep == NULL)
        return r;
    r = upkeep_start(s->upkeep, s->cluster);
    return r == 0 ? 0 : err_set(err, r, "cannot start the scrub: %s", strerror(-r));
}

/*
 * A gateway of another ring would serve nobody: it does not start. Without nodes to ask it does,
 * and waits for them as they come.
 */
static int check_ring(struct node *n, struct err *err)
{
    int r = cluster_wait_ready(n->service.cluster, GATEWAY_WAIT_MS, err);

    if (r == -EHOSTDOWN) {
        log_event(LOG_LEVEL_WARN, "no-quorum", "reason=%s", log_quote(err->msg, strlen(err->msg)));
        return 0;
    }
    return r == 0 ? 0 : err_wrap(err, r, "%s", n->opts.config);
}

static int open_server(struct node *n, struct err *err)
{
    struct server_opts opts = {
        .handler = service_handler,
        .ctx = &n->service,
        .clock = n->service.clock,
        .listener = n->listener,
        .connections_max = connections_max(),
    };
    uint64_t values = BODIES_ON_DISK * n->cfg->max_value_size;
    int r;

    n->service.metrics = metrics_new();
    if (n->service.metrics == NULL)
        return err_set(err, -ENOMEM, "no memory");
    n->service.clients_max = opts.connections_max / 2;
    if (n->service.changes != NULL) {
        r = watchers_new(n->service.changes, n->service.clock,
                         opts.connections_max / WATCHERS_SHARE, &n->service.watchers);
        if (r != 0)
            return err_set(err, r, "cannot start the thread of the watchers: %s", strerror(-r));
    }
    n->service.room.memory.max = BODY_MEMORY;
    n->service.room.disk.max = values > BODY_MEMORY ? values : BODY_MEMORY;
    r = server_open(&opts, &n->server, err);
    if (r == 0)
        n->listener = NULL;
    return r;
}

static int node_start(struct node *n, struct err *err)
{
    int r;

    n->service.clock = clock_real();
    n->service.started_us = n->service.clock->mono_us(n->service.clock);
    n->service.forward = n->opts.forward;
    r = load_config(n, err);
    if (r == 0) {
        r = workers_new(N_WORKERS, "kv-disk", &n->service.workers);
        if (r != 0)
            err_set(err, r, "cannot start threads: %s", strerror(-r));
    }
    spool_set_workers(n->service.workers);
    if (r == 0)
        r = bind_address(n, err);
    if (r == 0 && n->opts.gateway == NULL) {
        warn_about(n->cfg);
        r = open_backing(n, err);
        if (r == 0)
            r = check_placement(n, err);
        if (r == 0)
            r = open_watch(&n->service, err);
        if (r == 0)
            r = open_changes(&n->service, err);
        if (r == 0)
            r = open_replica(n, err);
    }
    if (r == 0)
        r = open_cluster(n, err);
    if (r == 0 && n->opts.gateway != NULL)
        r = check_ring(n, err);
    if (r == 0)
        r = open_server(n, err);
    return r;
}

/* --- stop ------------------------------------------------------------------------------------- */

static void node_stop(struct node *n)
{
    struct service *s = &n->service;

    watchers_stop(s->watchers);
    if (n->server != NULL)
        server_drain(n->server, DRAIN_S);
    upkeep_stop(s->upkeep);
    if (s->workers != NULL)
        workers_hurry(s->workers);
    /* What is left had DRAIN_S: it is ended, and gets a 503. */
    if (s->cluster != NULL)
        cluster_stop(s->cluster);
    server_close(n->server);
    spool_set_workers(NULL);
    workers_free(s->workers);
    watchers_free(s->watchers);
    cluster_close(s->cluster);
    upkeep_free(s->upkeep);
    listener_free(n->listener);
    watch_free(s->watch);
    if (s->replica != NULL)
        replica_close(s->replica);
    if (s->store != NULL)
        s->store->ops->close(s->store);
    backing_fini(&n->backing);
    changes_free(s->changes);
    metrics_free(s->metrics);
    config_free(n->cfg);
    buf_fini(&n->placed_by);
    free(n->host);
}

/* --- a store that is of no use as it is ------------------------------------------------------ */

/* Stops the node, starts it in the same process. Returns only where it cannot: the exit code. */
static int start_again(struct node *n, char **argv)
{
    struct clock *clock = n->service.clock;
    char reloading[80];

    (void)snprintf(reloading, sizeof(reloading), "RELOADING=1\nMONOTONIC_USEC=%llu",
                   (unsigned long long)clock->mono_us(clock));
    notify_manager(reloading);
    node_stop(n);
    (void)execv("/proc/self/exe", argv);
    fprintf(stderr, "kvnode: cannot start anew: %s\n", strerror(errno));
    return 1;
}

/*
 * Stops the node and begins anew with an empty store in place of the damaged one. Returns only
 * where that is not possible: the exit code.
 */
static int start_anew(struct node *n, char **argv, const char *why)
{
    struct err err;
    int r = backing_condemn(&n->backing, why, &err);

    if (r < 0) {
        log_event(LOG_LEVEL_ERROR, "store-damaged", "error=%s effect=\"stops\"",
                  log_quote(err.msg, strlen(err.msg)));
        notify_manager("STOPPING=1");
        node_stop(n);
        fprintf(stderr, "kvnode: %s\n", err.msg);
        return 1;
    }
    log_event(LOG_LEVEL_ERROR, "store-damaged", "error=%s effect=\"starts anew without it\"",
              log_quote(why, strlen(why)));
    return start_again(n, argv);
}

/* --- main ------------------------------------------------------------------------------------- */

/* Blocked in all threads, which inherit it; the main one waits for them. */
static void block_signals(sigset_t *set)
{
    sigemptyset(set);
    sigaddset(set, SIGTERM);
    sigaddset(set, SIGINT);
    sigaddset(set, SIGHUP);
    sigaddset(set, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, set, NULL);
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN); /* a limit on file sizes is an error of the store, not the end */
}

/* Is the store beyond healing, key by key? */
static bool store_is_damaged(const struct node *n, struct err *why)
{
    struct store *store = n->service.store;

    if (store == NULL)
        return false;
    if (store->ops->damage(store, why) < 0)
        return true;
    if (n->service.replica == NULL || replica_n_damaged(n->service.replica) < DAMAGE_MAX)
        return false;
    err_set(why, -EBADMSG, "more than %u keys are damaged", DAMAGE_MAX - 1);
    return true;
}

/* Serves until a signal says otherwise. Returns the exit code. */
static int serve(struct node *n, char **argv, const sigset_t *signals)
{
    struct err why;
    int sig;

    for (;;) {
        if (sigwait(signals, &sig) != 0)
            sig = SIGTERM;
        if (sig != SIGUSR1)
            break;
        if (store_is_damaged(n, &why))
            return start_anew(n, argv, why.msg);
        if (n->service.store != NULL && store_is_stuck(n->service.store)) {
            log_event(LOG_LEVEL_WARN, "store-stuck",
                      "reason=\"it refuses writes, as if the disk were full still\" "
                      "effect=\"starts again\"");
            return start_again(n, argv);
        }
    }
    log_event(LOG_LEVEL_INFO, "stopping", "signal=%s", sigabbrev_np(sig));
    notify_manager("STOPPING=1");
    node_stop(n);
    log_event(LOG_LEVEL_INFO, "stopped", "node=ok");
    return 0;
}

int main(int argc, char **argv)
{
    struct node n = {0};
    struct err err = {{0}};
    sigset_t signals;
    int code = options_parse(argc, argv, &n.opts), r;

    if (code >= 0)
        return code;
    (void)pthread_setname_np(pthread_self(), "kvnode"); /* also where it started itself anew */
    /*
     * The C library learns from the first large value to keep the memory of all: of those of
     * several chunks it shall not. What most requests need stays: giving it back would cost more
     * than they do.
     */
    mallopt(M_MMAP_THRESHOLD, 2 * CHUNK_SIZE);
    mallopt(M_TRIM_THRESHOLD, 4 * CHUNK_SIZE);
    log_open("kvnode", LOG_LEVEL_INFO);
    block_signals(&signals);
    r = node_start(&n, &err);
    if (r != 0) {
        if (n.damaged)
            return start_anew(&n, argv, err.msg);
        fprintf(stderr, "kvnode: %s\n", err.msg);
        node_stop(&n);
        return r == -ECANCELED ? 0 : 1;
    }
    log_event(LOG_LEVEL_INFO, "listening", "node=%s addr=%s%s",
              log_quote(n.service.name, strlen(n.service.name)),
              n.opts.gateway != NULL ? n.opts.gateway : n.cfg->nodes[n.service.self].addr,
              n.opts.gateway != NULL ? " gateway=yes" : "");
    notify_manager("READY=1");
    return serve(&n, argv, &signals);
}

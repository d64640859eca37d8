/*
 * cluster.h - a running client of the cluster: I/O threads, each with a transport and a client, one
 * health, one prober; and calls that block. Any thread may call. No lock is held while waiting for
 * the network.
 */
#ifndef KVFS_COMMON_CLUSTER_H
#define KVFS_COMMON_CLUSTER_H

#include "common/client.h"
#include "common/config.h"
#include "common/loop.h"
#include "common/workers.h"

struct cluster;

struct cluster_opts {
    const struct config *cfg; /* borrowed */
    unsigned n_threads;       /* 0: a few, by the processors there are */
    struct workers *workers;  /* borrowed; for large answers (transport_http.h); may be NULL */
    uint32_t timeout_ms;
    uint32_t self; /* node index of this process or MESSAGE_NODE_NONE */
    /* A node's own: what HELLO says of self; NULL for others. Any I/O thread, never blocks. */
    void (*self_state)(void *arg, uint64_t *incarnation, uint8_t *state);
    /* every result of the prober, on the guest's thread; may be NULL */
    void (*on_hello)(void *arg, unsigned node, const struct hello_result *res);
    /*
     * What else lives on the prober's I/O thread, with its client; NULL: nothing. start: before
     * the thread runs. stop: on it; calls idle(idle_arg) once, at once or later, when it has
     * nothing under way any more.
     */
    int (*guest_start)(void *arg, struct client *client, struct transport *transport);
    void (*guest_stop)(void *arg, void (*idle)(void *idle_arg), void *idle_arg);
    void *arg; /* of all of these */
};

/* transport_http_setup() before. Starts the threads. */
int cluster_open(const struct cluster_opts *opts, struct cluster **out, struct err *err);
/*
 * Ends what is under way (-ECANCELED reads as -EHOSTDOWN), joins the threads. Later calls fail with
 * -EHOSTDOWN; other threads may make such until cluster_close().
 */
void cluster_stop(struct cluster *c);
void cluster_close(struct cluster *c); /* stops it first; nobody may call any more */
struct health *cluster_health(struct cluster *c);
const struct config *cluster_config(const struct cluster *c);
/*
 * Does the node hold another ring, by the last probe that told? Then with the sentence of
 * config_ring_compare(). Any thread.
 */
bool cluster_ring_differs(struct cluster *c, unsigned node, struct err *why);

/*
 * Runs job->fn on the guest's thread. Any thread; false: the cluster is stopping, it will not run.
 */
bool cluster_post(struct cluster *c, struct loop_job *job);
/*
 * The same, in so many ms. The poster's memory until fn begins, or, where the cluster stops before
 * and it never does, until cluster_close().
 */
struct delayed_job {
    void (*fn)(struct delayed_job *job);
    struct loop_job arm; /* these are the cluster's */
    struct timer timer;
    uint64_t due_us;
    struct transport *transport;
};
bool cluster_post_after(struct cluster *c, struct delayed_job *job, uint32_t ms);

/*
 * Asynchronous: from any thread; done() comes on an I/O thread and must not block. args and all it
 * points to: until done().
 */
int cluster_read_async(struct cluster *c, const struct read_args *args, read_done_fn *done,
                       void *arg);
int cluster_write_async(struct cluster *c, const struct write_args *args, write_done_fn *done,
                        void *arg);
int cluster_list_async(struct cluster *c, const struct list_args *args, list_done_fn *done,
                       void *arg);

/*
 * Blocking: as the client's, with the result moved to *out, which the caller finishes (reports of a
 * write are not kept). Return out->err. Not on an I/O thread. A waiting call ends with -EINTR after
 * waiter_interrupt(w); w may be NULL.
 */
struct waiter;
int cluster_read(struct cluster *c, const struct read_args *args, struct waiter *w,
                 struct read_result *out);
int cluster_write(struct cluster *c, const struct write_args *args, struct waiter *w,
                  struct write_result *out);
int cluster_list(struct cluster *c, const struct list_args *args, struct waiter *w,
                 struct list_result *out);

/*
 * Names one caller's wait, so that another thread can interrupt it: before, during or between
 * calls.
 */
int waiter_new(struct waiter **out);
void waiter_free(struct waiter *w);
/* any thread; sticky: every later call with w ends with -EINTR at once */
void waiter_interrupt(struct waiter *w);

/*
 * Waits until a majority of every replica set answers, at most timeout_ms. 0; -EHOSTDOWN with whom
 * it missed, and why, in err; -EBADE, at once, where that cannot be for the nodes that hold
 * another ring, with which fields differ.
 */
int cluster_wait_ready(struct cluster *c, uint32_t timeout_ms, struct err *err);

#endif

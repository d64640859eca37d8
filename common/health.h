/*
 * health.h - who is reachable: what calls and probes found out about each node. A value behind one
 * mutex, shared by all loops of a process; never blocks on the network. Placement does not depend
 * on it: it only orders whom to ask first and whom not to wait for.
 */
#ifndef KVFS_COMMON_HEALTH_H
#define KVFS_COMMON_HEALTH_H

#include <stdbool.h>
#include <stdint.h>

#include "common/buf.h"

struct health;

struct health_info {
    bool up;
    uint64_t since_us;         /* mono: of the last change of health_alive(), or the first answer */
    uint64_t seen_us;          /* mono: of the last answer; 0: never */
    uint64_t latency_us;       /* smoothed time of small calls (EWMA) */
    int last_err;              /* -errno of the last failure, 0 */
    uint64_t node_clock_ms;    /* the node's clock in its last answer ... */
    uint64_t node_clock_at_us; /* ... and when that came, by ours */
    uint64_t incarnation;
    uint64_t disk_free, disk_total, n_keys, n_bytes; /* from the last ANS_HELLO */
    bool recovering; /* by that, too: it does not vote, and is asked last */
    bool ailing;     /* and so is one whose store does not work: health_get_about() tells why */
    bool doubtful;   /* it failed to do what it should since: the next HELLO tells why */
    uint64_t followed_us; /* mono: the feed follows it without a break since (feed.h); 0: not */
};

int health_new(unsigned n_nodes, struct health **out); /* all nodes start as up, never seen */
void health_free(struct health *h);
/* What a node says of itself in words. */
struct health_about {
    char store[32];    /* the kind of its store; empty: not known yet */
    char ailment[256]; /* why it does not work, printable; empty: it does */
};

/* Can requests be sent there that it will carry out? */
static inline bool health_alive(const struct health_info *info)
{
    return info->up && !info->ailing;
}

/*
 * Called after each change of health_alive(), without the lock, on the thread that found out; two
 * changes may be told at once: look with health_get(). Set before sharing h.
 */
typedef void health_changed_fn(void *arg, unsigned node);
void health_watch(struct health *h, health_changed_fn *changed, void *arg);

/*
 * An answer came (any: also a refusal), after latency_us; large: it carried much data, its time
 * says nothing.
 */
void health_answered(struct health *h, unsigned node, uint64_t now_us, uint64_t latency_us,
                     bool large, uint64_t node_clock_ms, uint64_t incarnation);
/*
 * No answer: refused, reset, timed out. The node counts as down until an answer comes. A time-out
 * says nothing while the node answers other calls: see health_slow_us().
 */
void health_failed(struct health *h, unsigned node, uint64_t now_us, int err);
/* A call has waited for health_slow_us(), and so has every other: as if it had timed out. */
void health_slow(struct health *h, unsigned node, uint64_t now_us);
/* It answered that it cannot answer: it is recovering (503), its disk fails (500). */
void health_refused(struct health *h, unsigned node);
void health_hello(struct health *h, unsigned node, uint64_t disk_free, uint64_t disk_total,
                  uint64_t n_keys, bool recovering);
/* What it says of its store, with that; kept without what is not printable, or too long. */
void health_store(struct health *h, unsigned node, uint64_t now_us, uint64_t n_bytes,
                  struct span kind, struct span ailment);

/* The feed follows it, from since_us on; 0: no longer. */
void health_follow(struct health *h, unsigned node, uint64_t since_us);

bool health_up(const struct health *h, unsigned node);
bool health_fit(const struct health *h, unsigned node); /* alive, and not recovering: it votes */
struct health_info health_get(const struct health *h, unsigned node);
struct health_about health_get_about(const struct health *h, unsigned node);
/*
 * How long to wait for this node before asking another one as well: a few times its usual latency,
 * HEALTH_HEDGE_MIN_US..MAX.
 */
uint64_t health_hedge_us(const struct health *h, unsigned node);
/* When a call to it counts as slow. */
uint64_t health_slow_us(const struct health *h, unsigned node);
/*
 * deadline_ms for a message to this node that must be begun within budget_ms: in the node's clock
 * as last heard, 0 when unknown.
 */
uint64_t health_node_deadline_ms(const struct health *h, unsigned node, uint64_t now_us,
                                 uint64_t budget_ms);

#define HEALTH_HEDGE_MIN_US 3000u
#define HEALTH_HEDGE_MAX_US 50000u
#define HEALTH_SLOW_MIN_US 300000u
/* a node that is down, or was not heard of for so long, is sent a HELLO this often */
#define HEALTH_PROBE_US 500000u
/* and every node this often, by one that recovers */
#define HEALTH_PROBE_RECOVERING_US 100000u

#endif

/*
 * repair_impl.h - what the parts of repair share (repair.c, recovery.c, rescue.c, comparison.c,
 * mending.c, tombstones.c only).
 */
#ifndef KVFS_NODE_REPAIR_IMPL_H
#define KVFS_NODE_REPAIR_IMPL_H

#include "node/repair.h"

/*
 * How fast all of it may go, in one place. Measured on a busy cluster of three nodes that share two
 * processors (docs/operating.md): requests keep their 99th percentile within three times of that
 * without any repair.
 */
#define REPAIR_KEYS_PER_S 500u
#define REPAIR_BYTES_PER_S (16u << 20)
#define REPAIR_PARALLEL 4u
#define REPAIR_LARGE (1u << 20) /* values over this travel alone */
/* A recovery: nothing is safe while it lasts, so it goes faster. */
#define RECOVERY_PARALLEL 16u
#define RECOVERY_BYTES_MAX (32u << 20) /* of values on their way, but for a single one */

#define REPAIR_TIMEOUT_MS 5000u

/* Operations under way, and who waits for their end. */
struct work {
    unsigned n;
    bool stopped;
    void (*on_idle)(void *arg);
    void *arg;
};

static inline void work_begin(struct work *w)
{
    w->n++;
}

/* The last that is done with the work: all may be freed inside. */
static inline void work_end(struct work *w)
{
    if (--w->n == 0 && w->stopped)
        w->on_idle(w->arg);
}

/* Mending and dropping share one pace: when may the next key be touched? */
struct pace {
    uint64_t next_us;
};

#define PACE_SLACK_US 10000u /* what timers that came late may make good */

/* A key is touched now, and `size` bytes travel. */
static inline void pace_take(struct pace *p, uint64_t now_us, uint64_t size)
{
    uint64_t cost = size * 1000000 / REPAIR_BYTES_PER_S;

    if (cost < 1000000 / REPAIR_KEYS_PER_S)
        cost = 1000000 / REPAIR_KEYS_PER_S;
    if (p->next_us + PACE_SLACK_US < now_us)
        p->next_us = now_us - PACE_SLACK_US;
    p->next_us += cost;
}

/* What each part is given. All borrowed. */
struct repair_part {
    const struct repair_opts *opts;
    struct work *work;
    struct pace *pace;
    void (*changed)(void *arg); /* numbers for /status have changed */
    void *arg;
};

static inline uint64_t repair_now_us(const struct repair_part *p)
{
    return transport_now_us(p->opts->transport);
}

static inline void repair_timer_set(const struct repair_part *p, struct timer *t, uint64_t due_us)
{
    p->opts->transport->ops->timer_set(p->opts->transport, t, due_us);
}

static inline void repair_timer_clear(const struct repair_part *p, struct timer *t)
{
    p->opts->transport->ops->timer_clear(p->opts->transport, t);
}

/* Counters below count as old. */
static inline uint64_t repair_old_counter_of(const struct repair_opts *o)
{
    uint64_t now = o->clock->wall_us(o->clock);

    return now > o->tombstone_age_us ? now - o->tombstone_age_us : 0;
}

/* A pause before try number `tries`, counted from 0: doubling from least to most. */
static inline uint64_t repair_backoff_us(unsigned tries, uint64_t least_us, uint64_t most_us)
{
    uint64_t us = tries < 16 ? least_us << tries : most_us;

    return us < most_us ? us : most_us;
}

/* For an operation that moves so many bytes. */
static inline uint32_t repair_timeout_ms(uint64_t size)
{
    return REPAIR_TIMEOUT_MS + (uint32_t)(size >> 20) * 1000;
}

/* Has the digests counted anew where they went wrong. */
static inline void repair_reindex(const struct repair_part *p)
{
    if (p->opts->reindex != NULL && replica_index_needed(p->opts->replica))
        p->opts->reindex(p->opts->reindex_arg);
}

static inline const char *repair_node_name(const struct repair_part *p, unsigned node)
{
    return p->opts->node_name(p->opts->node_name_arg, node);
}

#endif

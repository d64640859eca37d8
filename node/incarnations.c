/* incarnations.c - which life each node of the ring is in, as far as this node knows. */
#include "node/incarnations.h"

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/hash.h"
#include "common/limits.h"

#define RANDOM_BITS 12u
#define BORN_US_MAX (UINT64_MAX >> RANDOM_BITS)

/* The value "recovering" of the store; one that was made before there was such is whole. */
enum wholeness {
    WHOLE = 0,
    RECOVERING = 1,
    RENEWING = 2, /* it is to get a new incarnation, and to recover then */
};

struct incarnations {
    struct incarnations_opts opts;
    _Atomic bool recovering, superseded;
    pthread_mutex_t lock; /* around changes */
    /* By node index. Of the others durable as "known", "whole", "over" and "founders"; 0: none. */
    _Atomic uint64_t *newest, *whole, *over, *founders;
    _Atomic uint64_t *heard_us; /* when the newest was last; 0: since one looks */
    _Atomic uint64_t own;       /* durable as "incarnation" */
    _Atomic uint64_t words[];
};

/* --- lists of nodes ------------------------------------------------------------------ */

/*
 * The name under which a node is kept: a ring with more nodes has other indexes, but the same ids.
 */
static struct span node_name(const struct incarnations *in, unsigned node, char text[16])
{
    if (in->opts.cfg != NULL)
        return span_str(in->opts.cfg->nodes[node].id);
    snprintf(text, 16, "#%u", node);
    return span_str(text);
}

/* Writes what is known of each node; of one of them, instead, this (NODE_NONE: of none). */
#define NODE_NONE UINT_MAX
static int write_list(struct incarnations *in, const char *state, const _Atomic uint64_t *list,
                      unsigned node, uint64_t incarnation)
{
    struct buf text = {0};
    char name[16];
    int err;

    for (unsigned i = 0; i < in->opts.n_nodes; i++) {
        uint64_t v = i == node ? incarnation : atomic_load(&list[i]);

        if (i == in->opts.self || v == 0)
            continue;
        buf_bytes16(&text, node_name(in, i, name));
        buf_u64(&text, v);
    }
    err = text.err;
    if (err == 0)
        err = in->opts.store->ops->state_put(in->opts.store, state, buf_span(&text));
    buf_fini(&text);
    return err;
}

/* -ENOENT: the store has no such list. */
static int read_list(struct incarnations *in, const char *state, _Atomic uint64_t *list)
{
    struct buf text = {0};
    int err = in->opts.store->ops->state_get(in->opts.store, state, &text);
    struct cursor c = cursor_of(buf_span(&text));
    char name[16];

    while (err == 0 && cursor_left(&c) > 0) {
        struct span id = cursor_bytes16(&c);
        uint64_t v = cursor_u64(&c);

        err = c.err;
        for (unsigned i = 0; err == 0 && i < in->opts.n_nodes; i++) {
            if (span_eq(id, node_name(in, i, name)))
                list[i] = v;
        }
    }
    buf_fini(&text);
    return err;
}

static int read_lists(struct incarnations *in)
{
    const struct {
        const char *state;
        _Atomic uint64_t *list;
    } lists[] = {{"known", in->newest}, {"over", in->over}, {"founders", in->founders}};
    int err = 0;

    for (size_t i = 0; i < sizeof(lists) / sizeof(lists[0]) && err == 0; i++) {
        err = read_list(in, lists[i].state, lists[i].list);
        err = err == -ENOENT ? 0 : err;
    }
    if (err == 0)
        err = read_list(in, "whole", in->whole);
    if (err != -ENOENT)
        return err;
    /* It was kept by a program that did not announce: each life that it knew may have voted. */
    for (unsigned i = 0; i < in->opts.n_nodes; i++)
        atomic_store(&in->whole[i], atomic_load(&in->newest[i]));
    return 0;
}

/* --- one's own ----------------------------------------------------------------------- */

static int write_wholeness(struct incarnations *in, enum wholeness w)
{
    uint8_t byte = (uint8_t)w;

    return in->opts.store->ops->state_put(in->opts.store, "recovering", span_of(&byte, 1));
}

static int read_wholeness(struct incarnations *in, enum wholeness *out)
{
    struct buf text = {0};
    int err = in->opts.store->ops->state_get(in->opts.store, "recovering", &text);

    if (err == -ENOENT) {
        *out = WHOLE;
        err = 0;
    } else if (err == 0 && (text.len != 1 || text.data[0] > RENEWING)) {
        err = -EBADMSG;
    } else if (err == 0) {
        *out = (enum wholeness)text.data[0];
    }
    buf_fini(&text);
    return err;
}

/*
 * When the store was made orders it behind those that the node had before. Where the clock went
 * back meanwhile, and the others tell of one that is higher, it gets another, above that.
 */
static int make_own(struct incarnations *in, uint64_t than)
{
    uint64_t random = hash_fmix64(in->opts.seed ^ than) >> (64 - RANDOM_BITS);
    uint64_t born = in->opts.born_us < BORN_US_MAX ? in->opts.born_us : BORN_US_MAX, own;
    struct buf text = {0};
    int err;

    if (born <= than >> RANDOM_BITS)
        born = (than >> RANDOM_BITS) + 1;
    if (born > BORN_US_MAX)
        return -ERANGE;
    own = born << RANDOM_BITS | random | 1;
    buf_u64(&text, own);
    err = text.err;
    if (err == 0)
        err = in->opts.store->ops->state_put(in->opts.store, "incarnation", buf_span(&text));
    if (err == 0)
        atomic_store(&in->own, own);
    buf_fini(&text);
    return err;
}

/* *out: 0 where the store has none. */
static int read_own(struct incarnations *in, uint64_t *out)
{
    struct buf text = {0};
    int err = in->opts.store->ops->state_get(in->opts.store, "incarnation", &text);
    struct cursor c = cursor_of(buf_span(&text));

    if (err == -ENOENT) {
        *out = 0;
        err = 0;
    } else if (err == 0) {
        uint64_t own = cursor_u64(&c);

        if (c.err < 0 || cursor_left(&c) > 0 || own == 0)
            err = -EBADMSG;
        else
            *out = own;
    }
    buf_fini(&text);
    return err;
}

/*
 * What a crash leaves between the steps is begun again by the next start: without an incarnation,
 * or RENEWING.
 */
static int open_own(struct incarnations *in)
{
    enum wholeness w = WHOLE;
    uint64_t own = 0;
    int err = read_wholeness(in, &w);
    bool renew;

    if (err == 0)
        err = read_own(in, &own);
    if (err < 0)
        return err;
    renew = own == 0 || in->opts.distrusted || w == RENEWING;
    in->recovering = renew || w == RECOVERING;
    in->own = own;
    if (renew && w != RENEWING)
        err = write_wholeness(in, RENEWING);
    if (renew && err == 0)
        err = make_own(in, own);
    if (renew && err == 0)
        err = write_wholeness(in, RECOVERING);
    return err;
}

int incarnations_open(const struct incarnations_opts *opts, struct incarnations **out,
                      struct err *err)
{
    struct incarnations *in = calloc(1, sizeof(*in) + 5 * opts->n_nodes * sizeof(in->words[0]));
    int ret;

    if (in == NULL)
        return err_set(err, -ENOMEM, "no memory for %u nodes", opts->n_nodes);
    in->opts = *opts;
    in->newest = in->words;
    in->whole = in->newest + opts->n_nodes;
    in->over = in->whole + opts->n_nodes;
    in->founders = in->over + opts->n_nodes;
    in->heard_us = in->founders + opts->n_nodes;
    pthread_mutex_init(&in->lock, NULL);
    ret = read_lists(in);
    if (ret == 0)
        ret = open_own(in);
    if (ret < 0) {
        incarnations_close(in);
        return err_set(err, ret, "cannot read or make the incarnation of this store: %s",
                       strerror(-ret));
    }
    *out = in;
    return 0;
}

void incarnations_close(struct incarnations *in)
{
    if (in == NULL)
        return;
    pthread_mutex_destroy(&in->lock);
    free(in);
}

bool incarnations_recovering(const struct incarnations *in)
{
    return atomic_load(&in->recovering);
}

int incarnations_renew(struct incarnations *in, uint64_t than)
{
    int err;

    pthread_mutex_lock(&in->lock);
    if (in->recovering)
        err = make_own(in, than > in->own ? than : in->own);
    else
        err = -EINVAL;
    pthread_mutex_unlock(&in->lock);
    return err;
}

void incarnations_supersede(struct incarnations *in)
{
    atomic_store(&in->superseded, true);
}

bool incarnations_superseded(const struct incarnations *in)
{
    return atomic_load(&in->superseded);
}

int incarnations_recovered(struct incarnations *in)
{
    int err = -EINVAL;

    pthread_mutex_lock(&in->lock);
    if (in->recovering)
        err = write_wholeness(in, WHOLE);
    if (err == 0)
        atomic_store(&in->recovering, false);
    pthread_mutex_unlock(&in->lock);
    return err;
}

int incarnations_found(struct incarnations *in, const struct founder *others, unsigned n)
{
    int err = 0;

    if (!incarnations_recovering(in))
        return -EINVAL;
    pthread_mutex_lock(&in->lock);
    for (unsigned i = 0; i < n && err == 0; i++) {
        if (others[i].node >= in->opts.n_nodes)
            err = -EINVAL;
        else
            atomic_store(&in->founders[others[i].node], others[i].incarnation);
    }
    if (err == 0)
        err = write_list(in, "founders", in->founders, NODE_NONE, 0);
    pthread_mutex_unlock(&in->lock);
    return err < 0 ? err : incarnations_recovered(in);
}

/* --- of the others ------------------------------------------------------------------- */

static uint64_t larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

uint64_t incarnations_get(const struct incarnations *in, unsigned node)
{
    uint64_t newest;

    if (node == in->opts.self)
        return atomic_load(&in->own);
    newest = atomic_load(&in->newest[node]);
    if (newest <= atomic_load(&in->over[node]))
        newest = 0;
    return larger(newest, incarnations_whole(in, node));
}

uint64_t incarnations_whole(const struct incarnations *in, unsigned node)
{
    return atomic_load(&in->whole[node]);
}

uint64_t incarnations_highest(const struct incarnations *in, unsigned node)
{
    return larger(larger(atomic_load(&in->newest[node]), atomic_load(&in->over[node])),
                  incarnations_whole(in, node));
}

bool incarnations_cofounder(const struct incarnations *in, unsigned node, uint64_t incarnation)
{
    return incarnation != 0 && atomic_load(&in->founders[node]) == incarnation &&
           incarnations_get(in, node) <= incarnation;
}

/* Durably, in that list. The lock is held. */
static int note(struct incarnations *in, const char *state, _Atomic uint64_t *list, unsigned node,
                uint64_t incarnation)
{
    int err = write_list(in, state, list, node, incarnation);

    if (err == 0)
        atomic_store(&list[node], incarnation);
    return err;
}

int incarnations_learn(struct incarnations *in, unsigned node, uint64_t incarnation, bool is_whole)
{
    int err = 0;

    if (node >= in->opts.n_nodes || node == in->opts.self)
        return -EINVAL;
    if (incarnation <= (is_whole ? incarnations_whole(in, node) : incarnations_highest(in, node)))
        return 0;
    pthread_mutex_lock(&in->lock);
    if (incarnation > incarnations_highest(in, node)) {
        err = note(in, "known", in->newest, node, incarnation);
        if (err == 0)
            atomic_store(&in->heard_us[node], 0);
    }
    if (err == 0 && is_whole && incarnation > incarnations_whole(in, node))
        err = note(in, "whole", in->whole, node, incarnation);
    pthread_mutex_unlock(&in->lock);
    return err;
}

/*
 * A lower life votes, and the newest never announced that it would: once nothing is heard of it any
 * more it is taken for one that has ended, and named no longer. Should it live after all, it is
 * told of a number above its own, which nobody has, and begins again above that. What cannot be
 * stored now will be when the other says HELLO again.
 */
static void give_up(struct incarnations *in, unsigned node, uint64_t now_us)
{
    uint64_t newest, heard_us;

    pthread_mutex_lock(&in->lock);
    newest = atomic_load(&in->newest[node]);
    heard_us = atomic_load(&in->heard_us[node]);
    if (newest > larger(atomic_load(&in->over[node]), incarnations_whole(in, node))) {
        if (heard_us == 0)
            atomic_store(&in->heard_us[node], now_us);
        else if (now_us >= heard_us + INCARNATION_SILENT_US && newest < UINT64_MAX)
            (void)note(in, "over", in->over, node, newest + 1);
    }
    pthread_mutex_unlock(&in->lock);
}

int incarnations_on_hello(struct incarnations *in, unsigned node, uint64_t incarnation,
                          enum node_state state, uint64_t now_us)
{
    int err = incarnations_learn(in, node, incarnation, state == NODE_WHOLE);

    if (err == 0 && incarnation == atomic_load(&in->newest[node]))
        atomic_store(&in->heard_us[node], now_us);
    if (err == 0 && state == NODE_ANNOUNCING && incarnation == incarnations_highest(in, node))
        err = incarnations_learn(in, node, incarnation, true);
    if (err == 0 && state == NODE_WHOLE && incarnation < incarnations_get(in, node))
        give_up(in, node, now_us);
    return err;
}

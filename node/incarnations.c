/* incarnations.c - which life each node of the ring is in, as far as this node knows. */
#include "node/incarnations.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/hash.h"
#include "common/limits.h"

#define RANDOM_BITS 12u
#define BORN_US_MAX (UINT64_MAX >> RANDOM_BITS)

struct incarnations {
    struct store *store;
    const struct config *cfg;
    unsigned n_nodes, self;
    pthread_mutex_t lock;      /* around changes */
    _Atomic uint64_t newest[]; /* by node index; of the others durable as "known" */
};

/*
 * The name under which a node is kept: a ring with more nodes has other indexes, but the same ids.
 */
static struct span node_name(const struct incarnations *in, unsigned node, char text[16])
{
    if (in->cfg != NULL)
        return span_str(in->cfg->nodes[node].id);
    snprintf(text, 16, "#%u", node);
    return span_str(text);
}

static int write_known(struct incarnations *in, unsigned node, uint64_t incarnation)
{
    struct buf text = {0};
    char name[16];
    int err;

    for (unsigned i = 0; i < in->n_nodes; i++) {
        uint64_t v = i == node ? incarnation : atomic_load(&in->newest[i]);

        if (i == in->self || v == 0)
            continue;
        buf_bytes16(&text, node_name(in, i, name));
        buf_u64(&text, v);
    }
    err = text.err;
    if (err == 0)
        err = in->store->ops->state_put(in->store, "known", buf_span(&text));
    buf_fini(&text);
    return err;
}

static int read_known(struct incarnations *in)
{
    struct buf text = {0};
    int err = in->store->ops->state_get(in->store, "known", &text);
    struct cursor c = cursor_of(buf_span(&text));
    char name[16];

    if (err == -ENOENT)
        err = 0;
    while (err == 0 && cursor_left(&c) > 0) {
        struct span id = cursor_bytes16(&c);
        uint64_t v = cursor_u64(&c);

        err = c.err;
        for (unsigned i = 0; err == 0 && i < in->n_nodes; i++) {
            if (span_eq(id, node_name(in, i, name)))
                in->newest[i] = v;
        }
    }
    buf_fini(&text);
    return err;
}

/*
 * When the store was made orders it behind those that the node had before; a clock that went back
 * meanwhile would let a new store look like an old one, which nobody listens to: safe, and seen.
 */
static int make_own(struct incarnations *in, uint64_t born_us, uint64_t seed)
{
    uint64_t random = hash_fmix64(seed) >> (64 - RANDOM_BITS);
    uint64_t own = (born_us < BORN_US_MAX ? born_us : BORN_US_MAX) << RANDOM_BITS | random | 1;
    struct buf text = {0};
    int err;

    buf_u64(&text, own);
    err = text.err;
    if (err == 0)
        err = in->store->ops->state_put(in->store, "incarnation", buf_span(&text));
    if (err == 0)
        in->newest[in->self] = own;
    buf_fini(&text);
    return err;
}

static int read_own(struct incarnations *in, uint64_t born_us, uint64_t seed)
{
    struct buf text = {0};
    int err = in->store->ops->state_get(in->store, "incarnation", &text);
    struct cursor c = cursor_of(buf_span(&text));

    if (err == -ENOENT) {
        err = make_own(in, born_us, seed);
    } else if (err == 0) {
        uint64_t own = cursor_u64(&c);

        if (c.err < 0 || cursor_left(&c) > 0 || own == 0)
            err = -EBADMSG;
        else
            in->newest[in->self] = own;
    }
    buf_fini(&text);
    return err;
}

int incarnations_open(struct store *store, const struct config *cfg, unsigned n_nodes,
                      unsigned self, uint64_t born_us, uint64_t seed, struct incarnations **out,
                      struct err *err)
{
    struct incarnations *in = calloc(1, sizeof(*in) + n_nodes * sizeof(in->newest[0]));
    int ret;

    if (in == NULL)
        return err_set(err, -ENOMEM, "no memory for %u nodes", n_nodes);
    in->store = store;
    in->cfg = cfg;
    in->n_nodes = n_nodes;
    in->self = self;
    pthread_mutex_init(&in->lock, NULL);
    ret = read_known(in);
    if (ret == 0)
        ret = read_own(in, born_us, seed);
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

uint64_t incarnations_get(const struct incarnations *in, unsigned node)
{
    return atomic_load(&in->newest[node]);
}

int incarnations_learn(struct incarnations *in, unsigned node, uint64_t incarnation)
{
    int err = 0;

    if (node >= in->n_nodes || node == in->self)
        return -EINVAL;
    if (incarnation <= atomic_load(&in->newest[node]))
        return 0;
    pthread_mutex_lock(&in->lock);
    if (incarnation > atomic_load(&in->newest[node])) {
        err = write_known(in, node, incarnation);
        if (err == 0)
            atomic_store(&in->newest[node], incarnation);
    }
    pthread_mutex_unlock(&in->lock);
    return err;
}

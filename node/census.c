/* census.c - who of the others counts for a recovery. */
#include "node/census.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

int census_init(struct census *c, const struct ring *ring, unsigned self)
{
    struct citizen *citizens = calloc(ring_n_nodes(ring), sizeof(*citizens));

    if (citizens == NULL)
        return -ENOMEM;
    for (unsigned i = 0; i < ring_n_nodes(ring); i++)
        citizens[i].shares = i != self && ring_shares(ring, self, i);
    *c = (struct census){.ring = ring, .self = self, .citizens = citizens};
    return 0;
}

void census_fini(struct census *c)
{
    free(c->citizens);
    *c = (struct census){0};
}

/* --- what is heard ---------------------------------------------------------------------------- */

void census_begin(struct census *c, bool announcing)
{
    c->announcing = announcing;
    for (unsigned i = 0; i < ring_n_nodes(c->ring); i++)
        c->citizens[i].heard = false;
}

uint64_t census_known_as(const struct census *c, const struct answer *a, uint32_t flag)
{
    for (uint32_t i = 0; i < a->n_known; i++) {
        uint32_t node;
        uint64_t incarnation;

        answer_known(a, i, &node, &incarnation);
        if (node == (c->self | flag))
            return incarnation;
    }
    return 0;
}

bool census_hear(struct census *c, unsigned node, const struct answer *a, uint64_t own)
{
    struct citizen *z = &c->citizens[node];

    z->asked = true;
    z->err = 0;
    z->heard = census_known_as(c, a, 0) == own &&
               (!c->announcing || census_known_as(c, a, KNOWN_WHOLE) == own);
    z->state = a->recovering;
    z->incarnation = a->incarnation;
    z->n_keys = a->n_keys;
    return z->heard;
}

void census_failed(struct census *c, unsigned node, int err)
{
    c->citizens[node].asked = true;
    c->citizens[node].err = err;
}

/* --- what follows ----------------------------------------------------------------------------- */

bool census_is_whole(const struct census *c, unsigned node)
{
    const struct citizen *z = &c->citizens[node];

    return z->err == 0 && z->heard && z->state != NODE_RECOVERING;
}

/* Nothing was ever stored there that this node could have had a part in. */
static bool is_blank(const struct citizen *z)
{
    if (!z->asked || z->err != 0 || !z->heard)
        return false;
    return z->state == NODE_COFOUNDER || (z->state == NODE_RECOVERING && z->n_keys == 0);
}

static bool set_has(const unsigned *nodes, unsigned n, unsigned node)
{
    for (unsigned i = 0; i < n; i++) {
        if (nodes[i] == node)
            return true;
    }
    return false;
}

struct verdict census_verdict(const struct census *c)
{
    unsigned n = ring_n_replicas(c->ring), majority = ring_majority(c->ring);
    unsigned needed = majority < n - 1 ? majority : n - 1;
    struct verdict v = {true, true};

    for (uint32_t s = 0; s < ring_n_sets(c->ring); s++) {
        const unsigned *nodes = ring_set(c->ring, s);
        unsigned n_whole = 0;

        if (!set_has(nodes, n, c->self))
            continue;
        for (unsigned i = 0; i < n; i++) {
            if (nodes[i] == c->self)
                continue;
            n_whole += census_is_whole(c, nodes[i]);
            v.all_blank &= is_blank(&c->citizens[nodes[i]]);
        }
        v.enough &= n_whole >= needed;
    }
    return v;
}

unsigned census_count_whole(const struct census *c, struct span key, unsigned *first)
{
    const unsigned *replicas = ring_replicas(c->ring, key);
    unsigned n = 0;

    for (unsigned i = 0; i < ring_n_replicas(c->ring); i++) {
        if (replicas[i] == c->self || !census_is_whole(c, replicas[i]))
            continue;
        if (n++ == 0)
            *first = replicas[i];
    }
    return n;
}

const char *census_explain(const struct census *c, unsigned node)
{
    const struct citizen *z = &c->citizens[node];

    if (!z->asked)
        return "not asked yet";
    if (z->err == -EBADE)
        return "has another ring";
    if (z->err != 0)
        return strerror(-z->err);
    return z->state == NODE_RECOVERING ? "recovering too"
                                       : "has not learned yet that this node's store is new";
}

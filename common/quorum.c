/* quorum.c - counting one round of answers. */
#include "common/quorum.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

int tally_init(struct tally *t, unsigned n, unsigned need)
{
    void *mem;

    assert(n > 0 && need > 0 && need <= n);
    /* One block; the widest type stands first. */
    mem = calloc(n, 2 * sizeof(uint64_t) + sizeof(enum vote));
    if (mem == NULL)
        return -ENOMEM;
    t->n = n;
    t->need = need;
    t->incarnations = mem;
    t->newest = t->incarnations + n;
    t->votes = (enum vote *)(void *)(t->newest + n);
    tally_reset(t);
    return 0;
}

void tally_fini(struct tally *t)
{
    free(t->incarnations);
    *t = (struct tally){0};
}

void tally_reset(struct tally *t)
{
    for (unsigned i = 0; i < t->n; i++) {
        t->votes[i] = VOTE_IDLE;
        t->incarnations[i] = 0;
        t->newest[i] = 0;
    }
}

void tally_ask(struct tally *t, unsigned i)
{
    assert(i < t->n);
    if (t->votes[i] == VOTE_IDLE)
        t->votes[i] = VOTE_ASKED;
}

void tally_vote(struct tally *t, unsigned i, enum vote v, uint64_t incarnation)
{
    assert(i < t->n);
    assert(v == VOTE_YES || v == VOTE_NO || v == VOTE_FAILED);
    /* Even an ignored answer may tell that the node lost its disk since the one that counted. */
    tally_known(t, i, incarnation);
    if (t->votes[i] != VOTE_IDLE && t->votes[i] != VOTE_ASKED)
        return;
    t->votes[i] = v;
    t->incarnations[i] = incarnation;
}

void tally_known(struct tally *t, unsigned i, uint64_t incarnation)
{
    assert(i < t->n);
    if (incarnation > t->newest[i])
        t->newest[i] = incarnation;
}

enum vote tally_of(const struct tally *t, unsigned i)
{
    assert(i < t->n);
    if ((t->votes[i] == VOTE_YES || t->votes[i] == VOTE_NO) && t->incarnations[i] < t->newest[i])
        return VOTE_FAILED;
    return t->votes[i];
}

unsigned tally_count(const struct tally *t, enum vote v)
{
    unsigned count = 0;

    for (unsigned i = 0; i < t->n; i++)
        count += tally_of(t, i) == v;
    return count;
}

enum tally_state tally_state(const struct tally *t)
{
    unsigned yes = tally_count(t, VOTE_YES);

    if (yes >= t->need)
        return TALLY_MET;
    if (yes + tally_count(t, VOTE_IDLE) + tally_count(t, VOTE_ASKED) < t->need)
        return TALLY_LOST;
    return TALLY_WAIT;
}

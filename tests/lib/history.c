/*
 * history.c - search for an order that explains a history: depth first over (operations left,
 * state), each pair visited once.
 */
#include "tests/lib/history.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "tests/lib/rng.h"

/*
 * The state of the register. A list is known by the hash of its ids in their order; 64 bits make a
 * collision no concern.
 */
struct state {
    uint64_t list;
    uint32_t mark;
};

#define LIST_EMPTY 1u /* hash of the empty list, unlike that of an absent key */
static const struct state absent = {0, 0};

struct visit {
    uint64_t left;
    struct state state;
    bool used;
};

struct search {
    const struct history_op *ops;
    uint64_t must; /* operations that took effect for sure, or saw something */
    uint64_t seen_list[HISTORY_OPS_MAX];
    uint64_t left_best;
    unsigned n;
    unsigned order[HISTORY_OPS_MAX]; /* which to try first */
    struct visit *visits;            /* open addressing */
    size_t n_visits, visits_cap;
    int err;
};

static uint64_t list_add(uint64_t list, uint32_t id)
{
    return rng_mix(list * 0x9e3779b97f4a7c15ull + id) | 2; /* never absent or empty */
}

struct history_op *history_add(struct history *h, enum history_kind kind, unsigned client,
                               uint32_t id, uint64_t now)
{
    struct history_op *op;

    if (h->n == HISTORY_OPS_MAX)
        return NULL;
    op = &h->ops[h->n++];
    memset(op, 0, sizeof *op);
    op->kind = kind;
    op->outcome = HISTORY_UNKNOWN;
    op->client = client;
    op->id = id;
    op->start = now;
    op->end = HISTORY_FOREVER;
    return op;
}

void history_end(struct history_op *op, enum history_outcome outcome, uint64_t now)
{
    op->outcome = outcome;
    op->end = outcome == HISTORY_OK || outcome == HISTORY_FAILED ? now : HISTORY_FOREVER;
}

static bool seen_matches(const struct search *s, unsigned i, struct state st)
{
    const struct history_seen *seen = &s->ops[i].seen;

    if (seen->mark_known && seen->mark != st.mark)
        return false;
    return !seen->list_known || s->seen_list[i] == st.list;
}

static bool condition_holds(const struct history_op *op, struct state st)
{
    switch (op->kind) {
    case HISTORY_CREATE:
        return st.mark == 0;
    case HISTORY_DELETE:
    case HISTORY_TOUCH:
        return st.mark != 0;
    case HISTORY_CAS:
        return st.mark == op->expect;
    default:
        return true;
    }
}

static struct state effect(const struct history_op *op, struct state st)
{
    switch (op->kind) {
    case HISTORY_SET:
    case HISTORY_CREATE:
    case HISTORY_CAS:
        return (struct state){list_add(LIST_EMPTY, op->id), op->id};
    case HISTORY_APPEND:
        return (struct state){list_add(st.mark == 0 ? LIST_EMPTY : st.list, op->id), op->id};
    case HISTORY_DELETE:
        return absent;
    case HISTORY_TOUCH:
        return (struct state){st.list, op->id};
    default:
        return st;
    }
}

/* Can ops[i] happen on st, with the outcome it had? *next: the state behind it. */
static bool apply(const struct search *s, unsigned i, struct state st, struct state *next)
{
    const struct history_op *op = &s->ops[i];

    *next = st;
    if (op->outcome == HISTORY_FAILED)
        return seen_matches(s, i, st) && (op->kind == HISTORY_CAS || !condition_holds(op, st));
    if (!condition_holds(op, st))
        return false;
    if (op->outcome == HISTORY_OK && !seen_matches(s, i, st))
        return false;
    *next = effect(op, st);
    return true;
}

static bool state_eq(struct state a, struct state b)
{
    return a.list == b.list && a.mark == b.mark;
}

/* The slot of (left, st): used, or free for it. */
static struct visit *visit_slot(struct visit *visits, size_t cap, uint64_t left, struct state st)
{
    size_t at = rng_mix(left ^ rng_mix(st.list + st.mark)) & (cap - 1);

    while (visits[at].used && (visits[at].left != left || !state_eq(visits[at].state, st)))
        at = (at + 1) & (cap - 1);
    return &visits[at];
}

static int visits_grow(struct search *s)
{
    size_t cap = s->visits_cap == 0 ? 256 : s->visits_cap * 2;
    struct visit *visits = calloc(cap, sizeof *visits);

    if (visits == NULL)
        return -ENOMEM;
    for (size_t i = 0; i < s->visits_cap; i++) {
        if (s->visits[i].used)
            *visit_slot(visits, cap, s->visits[i].left, s->visits[i].state) = s->visits[i];
    }
    free(s->visits);
    s->visits = visits;
    s->visits_cap = cap;
    return 0;
}

/* Is this the first time here? Also false when the search has to end (err). */
static bool visit_first(struct search *s, uint64_t left, struct state st)
{
    struct visit *v;

    if (s->n_visits == HISTORY_STATES_MAX)
        s->err = -E2BIG;
    else if (s->n_visits * 2 >= s->visits_cap)
        s->err = visits_grow(s);
    if (s->err != 0)
        return false;
    v = visit_slot(s->visits, s->visits_cap, left, st);
    if (v->used)
        return false;
    *v = (struct visit){left, st, true};
    s->n_visits++;
    return true;
}

/* Those of `left` that may come next: that started before the first of them had ended. */
static uint64_t may_be_next(const struct search *s, uint64_t left)
{
    uint64_t first_end = HISTORY_FOREVER, next = 0;

    for (uint64_t b = left; b != 0; b &= b - 1) {
        const struct history_op *op = &s->ops[__builtin_ctzll(b)];

        first_end = op->end < first_end ? op->end : first_end;
    }
    for (uint64_t b = left; b != 0; b &= b - 1) {
        if (s->ops[__builtin_ctzll(b)].start <= first_end)
            next |= b & -b;
    }
    return next;
}

/* Takes out what can come next and changes nothing: to do so at once never spoils an order. */
static uint64_t skip_pure(const struct search *s, uint64_t left, struct state st)
{
    uint64_t before;

    do {
        before = left;
        for (uint64_t b = may_be_next(s, left) & s->must; b != 0; b &= b - 1) {
            struct state next;

            if (apply(s, (unsigned)__builtin_ctzll(b), st, &next) && state_eq(next, st))
                left &= ~(b & -b);
        }
    } while (left != before);
    return left;
}

/* Is there an order of `left`, starting from st? Unknown operations may stay out of it. */
static bool explain(struct search *s, uint64_t left, struct state st)
{
    uint64_t eligible;

    left = skip_pure(s, left, st);
    if (__builtin_popcountll(left & s->must) < __builtin_popcountll(s->left_best & s->must))
        s->left_best = left;
    if ((left & s->must) == 0)
        return true;
    if (!visit_first(s, left, st))
        return false;
    eligible = may_be_next(s, left);
    for (unsigned k = 0; k < s->n && s->err == 0; k++) {
        uint64_t bit = 1ull << s->order[k];
        struct state next;

        if ((eligible & bit) && apply(s, s->order[k], st, &next) && !state_eq(next, st) &&
            explain(s, left & ~bit, next))
            return true;
    }
    return false;
}

/*
 * Two answers: of operations one after the other, the later names no lower version; the same
 * version is the same write. No version at all says nothing: a tombstone may have been dropped.
 */
static bool versions_agree(const struct history_op *a, const struct history_op *b)
{
    int order;

    if (!a->version_known || !b->version_known || ballot_is_none(a->version) ||
        ballot_is_none(b->version))
        return true;
    order = ballot_cmp(a->version, b->version);
    if (a->end < b->start && order > 0)
        return false;
    return order != 0 || a->version_mark == b->version_mark;
}

static bool versions_good(const struct history *h, struct history_verdict *out)
{
    for (unsigned i = 0; i < h->n; i++) {
        for (unsigned j = 0; j < h->n; j++) {
            if (versions_agree(&h->ops[i], &h->ops[j]))
                continue;
            out->unexplained = 1ull << i | 1ull << j;
            snprintf(out->why, sizeof out->why,
                     "two answers name versions that contradict each other");
            return false;
        }
    }
    return true;
}

static bool was_seen(const struct history *h, uint32_t id)
{
    for (unsigned i = 0; i < h->n; i++) {
        const struct history_seen *seen = &h->ops[i].seen;

        if (seen->mark_known && seen->mark == id)
            return true;
        for (unsigned k = 0; seen->list_known && seen->mark != 0 && k < seen->n; k++) {
            if (seen->ids[k] == id)
                return true;
        }
    }
    return false;
}

static unsigned place_in(const struct history_seen *list, uint32_t id)
{
    for (unsigned k = 0; k < list->n; k++) {
        if (list->ids[k] == id)
            return k + 1;
    }
    return 0;
}

/*
 * Those that the longest list shows are tried in its order, and after all others, which came before
 * it or were seen to change nothing: a good history with many unknown writes is explained at the
 * first try instead of after all permutations of them.
 */
static void order_tries(struct search *s, const struct history *h)
{
    const struct history_seen none = {0}, *longest = &none;

    for (unsigned i = 0; i < h->n; i++) {
        const struct history_op *op = &h->ops[i];

        if (op->outcome == HISTORY_OK && op->seen.list_known && op->seen.n > longest->n)
            longest = &op->seen;
    }
    for (unsigned i = 0; i < h->n; i++) {
        unsigned at = s->n++, place = place_in(longest, h->ops[i].id);

        for (; at > 0 && place_in(longest, h->ops[s->order[at - 1]].id) > place; at--)
            s->order[at] = s->order[at - 1];
        s->order[at] = i;
    }
}

/*
 * Sorts the operations: returns those that may be in an order; *likely are those without unknown
 * writes that nobody saw.
 */
static uint64_t prepare(struct search *s, const struct history *h, uint64_t *likely)
{
    uint64_t left = 0;

    *likely = 0;
    for (unsigned i = 0; i < h->n; i++) {
        const struct history_op *op = &h->ops[i];
        uint64_t bit = 1ull << i;

        if (op->outcome == HISTORY_NONE ||
            (op->outcome == HISTORY_UNKNOWN && op->kind == HISTORY_READ))
            continue;
        left |= bit;
        if (op->outcome != HISTORY_UNKNOWN)
            s->must |= bit;
        if (op->outcome != HISTORY_UNKNOWN || op->kind == HISTORY_DELETE || was_seen(h, op->id))
            *likely |= bit;
        if (op->seen.list_known && op->seen.mark != 0) {
            s->seen_list[i] = LIST_EMPTY;
            for (unsigned k = 0; k < op->seen.n; k++)
                s->seen_list[i] = list_add(s->seen_list[i], op->seen.ids[k]);
        }
    }
    return left;
}

int history_check(const struct history *h, struct history_verdict *out)
{
    struct search s = {.ops = h->ops};
    struct history_verdict v = {.good = false};
    uint64_t likely, left = prepare(&s, h, &likely);

    order_tries(&s, h);
    s.left_best = left;
    v.good = explain(&s, likely,
                     absent); /* nearly always enough, and much faster after many unknown writes */
    if (!v.good && s.err == 0 && likely != left)
        v.good = explain(&s, left, absent);
    free(s.visits);
    if (s.err != 0)
        return s.err;
    if (!v.good) {
        v.unexplained = s.left_best & s.must;
        snprintf(v.why, sizeof v.why, "no order of the operations explains what was seen");
    } else {
        v.good = versions_good(h, &v);
    }
    *out = v;
    return 0;
}

static void print_seen(FILE *out, const struct history_seen *seen)
{
    if (!seen->mark_known && !seen->list_known)
        return;
    if (seen->mark == 0) {
        fprintf(out, " saw nothing there");
        return;
    }
    fprintf(out, " saw mark %" PRIu32, seen->mark);
    if (!seen->list_known)
        return;
    fprintf(out, " [");
    for (unsigned i = 0; i < seen->n; i++)
        fprintf(out, "%s%" PRIu32, i == 0 ? "" : " ", seen->ids[i]);
    fprintf(out, "]");
}

static void print_op(FILE *out, const struct history_op *op, bool unexplained)
{
    static const char *const kinds[] = {"read",   "set", "append", "create",
                                        "delete", "cas", "touch"};
    static const char *const outcomes[] = {"ok", "failed", "none", "unknown"};
    char text[BALLOT_TEXT_LEN];

    fprintf(out, "%c %10" PRIu64 " .. ", unexplained ? '*' : ' ', op->start);
    if (op->end == HISTORY_FOREVER)
        fprintf(out, "%10s", "");
    else
        fprintf(out, "%10" PRIu64, op->end);
    fprintf(out, "  client %u: %s", op->client, kinds[op->kind]);
    if (op->kind != HISTORY_READ)
        fprintf(out, " %" PRIu32, op->id);
    if (op->kind == HISTORY_CAS)
        fprintf(out, " if %" PRIu32, op->expect);
    fprintf(out, " %s", outcomes[op->outcome]);
    print_seen(out, &op->seen);
    if (op->version_known) {
        ballot_text(op->version, text);
        fprintf(out, " version %s of %" PRIu32, text, op->version_mark);
    }
    fprintf(out, "\n");
}

void history_print(FILE *out, const struct history *h, const struct history_verdict *verdict)
{
    bool done[HISTORY_OPS_MAX] = {false};

    if (verdict != NULL)
        fprintf(out, "%s\n", verdict->good ? "good" : verdict->why);
    for (unsigned printed = 0; printed < h->n; printed++) {
        unsigned first = HISTORY_OPS_MAX;

        for (unsigned i = 0; i < h->n; i++) {
            if (!done[i] && (first == HISTORY_OPS_MAX || h->ops[i].start < h->ops[first].start))
                first = i;
        }
        done[first] = true;
        print_op(out, &h->ops[first], verdict != NULL && (verdict->unexplained >> first & 1) != 0);
    }
}

/*
 * comparison.c - one peer, again and again:
 *
 *   root      DIGEST of all keys that the two share. The same, nearly always: that was all.
 *   groups    DIGEST of each group that differs, down to the buckets that do.
 *   again     after a pause: a write under way is at one of them a moment before the other, and
 *             what is behind stays so. Only buckets that differ both times count. Not when the
 *             peer has just come back: then it did miss something.
 *   keys      those of the buckets that differ, from both, side by side.
 *
 * A peer that is down, recovering or not ready yet is quietly tried again.
 */
#include "node/comparison.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "node/key_merge.h"

#define PERIOD_US 5000000u
#define PERIOD_MAX_US 60000000u /* while there is a difference that nothing comes of */
#define SECOND_LOOK_US 500000u
#define HURRY_AGAIN_US 250000u
#define WORDS (DIGEST_BUCKETS / 64)
/* So often the node in charge of a key gets nothing done, before this one mends it as well. */
#define LEFT_MAX 2u

_Static_assert(DIGEST_GROUPS == 64 && DIGEST_BUCKETS == 64 * 64, "a group is one word of bits");

enum step { IDLE, ROOT, GROUPS, PAUSE, KEYS };

struct comparison {
    const struct repair_part *part;
    struct comparison_opts opts;
    enum step step;
    struct timer timer; /* IDLE: the next; PAUSE: the second look */
    struct op *op;
    bool hurry;       /* no second look */
    bool hurry_after; /* asked for while this one is under way */
    bool second;      /* look */
    /* In a row: without an answer; nothing was mended since the one before; something was left. */
    unsigned n_failed, n_in_vain, n_left;
    uint64_t mended; /* in all, when the last one ended */

    uint64_t groups;                       /* yet to be asked about, a bit each */
    unsigned group;                        /* asked about now */
    uint64_t differ[WORDS], before[WORDS]; /* buckets; at the first look */
    struct key_merge *merge;
    struct merged_key next; /* pulled, but there was no room */
    bool has_next;
    uint64_t n_differing, n_skipped; /* keys; left to another */
    uint64_t before_skipped;         /* by the comparison before */

    uint64_t n_done, same_us;
};

static void comparison_groups(struct comparison *c);
static void comparison_pump(struct comparison *c);

/* --- the end of one --------------------------------------------------------------------------- */

static void comparison_rest(struct comparison *c, uint64_t us)
{
    c->step = IDLE;
    if (c->hurry_after) {
        c->hurry = true;
        us = 0;
    }
    c->hurry_after = false;
    repair_timer_set(c->part, &c->timer, repair_now_us(c->part) + us);
}

/* The peer could not be asked, or this node has no digests yet. */
static void comparison_fail(struct comparison *c)
{
    comparison_rest(c, c->hurry ? repair_backoff_us(c->n_failed, HURRY_AGAIN_US, PERIOD_US)
                                : PERIOD_US);
    c->n_failed++;
}

static void comparison_done(struct comparison *c)
{
    uint64_t mended = c->opts.n_mended(c->opts.arg);

    c->n_failed = 0;
    c->n_in_vain = c->step == KEYS && mended == c->mended ? c->n_in_vain + 1 : 0;
    c->mended = mended;
    /* As long as it gets less, that node is at it. */
    c->n_left = c->n_skipped > 0 && c->n_skipped >= c->before_skipped ? c->n_left + 1 : 0;
    c->before_skipped = c->n_skipped;
    c->n_done++;
    c->hurry = false;
    comparison_rest(
        c, repair_backoff_us(c->n_in_vain > 0 ? c->n_in_vain - 1 : 0, PERIOD_US, PERIOD_MAX_US));
    c->part->changed(c->part->arg);
}

static void comparison_same(struct comparison *c)
{
    struct clock *clock = c->part->opts->clock;

    c->same_us = clock->wall_us(clock);
    c->n_differing = c->n_skipped = 0;
    comparison_done(c);
}

/* --- keys ------------------------------------------------------------------------------------- */

static void on_merge_closed(void *arg)
{
    work_end(arg);
}

static void merge_close(struct comparison *c)
{
    struct key_merge *m = c->merge;

    c->merge = NULL;
    c->has_next = false;
    if (m != NULL)
        key_merge_close(m, on_merge_closed, c->part->work);
}

static bool entries_differ(const struct entry e[2])
{
    return ((e[0].flags | e[1].flags) & ENTRY_DAMAGED) ||
           ballot_cmp(e[0].version, e[1].version) != 0;
}

/* False: there was no room. */
static bool comparison_take(struct comparison *c, const struct merged_key *k)
{
    uint64_t size = k->entries[0].size;

    if (!entries_differ(k->entries))
        return true;
    if (c->n_left < LEFT_MAX && c->opts.left_to_other(c->opts.arg, k->key)) {
        c->n_skipped++;
        return true;
    }
    if (k->entries[1].size > size)
        size = k->entries[1].size;
    if (!c->opts.found(c->opts.arg, k->key, size))
        return false;
    c->n_differing++;
    return true;
}

static void comparison_pump(struct comparison *c)
{
    int r = 1;

    while (r == 1) {
        r = c->has_next ? 1 : key_merge_next(c->merge, &c->next);
        c->has_next = r == 1;
        if (r == 1 && !comparison_take(c, &c->next))
            return;
        c->has_next = false;
    }
    if (r == -EAGAIN)
        return;
    merge_close(c);
    if (r == 0)
        comparison_done(c);
    else
        comparison_fail(c);
}

static void on_merge_ready(void *arg)
{
    comparison_pump(arg);
}

void comparison_go_on(struct comparison *c)
{
    if (c->has_next)
        comparison_pump(c);
}

static void comparison_keys(struct comparison *c)
{
    unsigned self = c->part->opts->self;
    struct key_source sources[2] = {{self, c->opts.peer}, {c->opts.peer, self}};
    uint8_t bits[DIGEST_BUCKETS / 8];
    struct key_merge_opts opts = {
        .client = c->part->opts->client,
        .sources = sources,
        .n_sources = 2,
        .buckets = span_of(bits, sizeof(bits)),
        .timeout_ms = REPAIR_TIMEOUT_MS,
        .on_ready = on_merge_ready,
        .arg = c,
    };

    for (unsigned i = 0; i < sizeof(bits); i++)
        bits[i] = (uint8_t)(c->differ[i / 8] >> (i % 8 * 8));
    c->n_differing = c->n_skipped = 0;
    if (key_merge_new(&opts, &c->merge) < 0) {
        comparison_fail(c);
        return;
    }
    work_begin(c->part->work);
    c->step = KEYS;
    comparison_pump(c);
}

/* --- digests ---------------------------------------------------------------------------------- */

static uint64_t differing_bits(const uint64_t own[DIGEST_GROUPS], const struct answer *a)
{
    uint64_t bits = 0;

    for (uint32_t i = 0; i < DIGEST_GROUPS; i++) {
        if (own[i] != answer_digest(a, i))
            bits |= 1ull << i;
    }
    return bits;
}

/* All groups were looked at. */
static void comparison_looked(struct comparison *c)
{
    uint64_t any = 0;

    for (unsigned i = 0; i < WORDS; i++) {
        if (c->second)
            c->differ[i] &= c->before[i];
        any |= c->differ[i];
    }
    if (any == 0) {
        comparison_same(c);
    } else if (c->hurry || c->second) {
        comparison_keys(c);
    } else {
        memcpy(c->before, c->differ, sizeof(c->before));
        c->step = PAUSE;
        repair_timer_set(c->part, &c->timer, repair_now_us(c->part) + SECOND_LOOK_US);
    }
}

static void on_digest(void *arg, struct ask_result *res)
{
    struct comparison *c = arg;
    const struct digests *d = replica_digests(c->part->opts->replica);
    struct work *work = c->part->work;
    uint64_t own[DIGEST_GROUPS], bits = 0;

    c->op = NULL;
    if (work->stopped) {
        work_end(work);
        return;
    }
    if (res->err == 0 && d == NULL)
        res->err = -EAGAIN; /* they are counted anew */
    if (res->err == 0 && !res->answer->same && res->answer->n_digests == DIGEST_GROUPS) {
        digests_get(d, c->opts.peer, c->step == ROOT ? MESSAGE_GROUP_NONE : c->group, own);
        bits = differing_bits(own, res->answer);
    }
    if (res->err < 0) {
        comparison_fail(c);
    } else if (c->step == ROOT) {
        c->groups = bits;
        comparison_groups(c);
    } else {
        c->differ[c->group] = bits;
        comparison_groups(c);
    }
    work_end(work);
}

static void comparison_ask(struct comparison *c, uint32_t group, uint64_t digest)
{
    struct message m = {
        .kind = MSG_DIGEST,
        .node = c->part->opts->self,
        .group = group,
        .digest = digest,
    };
    struct ask_args args = {.node = c->opts.peer, .m = &m, .timeout_ms = REPAIR_TIMEOUT_MS};

    c->op = client_ask(c->part->opts->client, &args, on_digest, c);
    if (c->op == NULL)
        comparison_fail(c);
    else
        work_begin(c->part->work);
}

/* The next group that differs, or what they come to. */
static void comparison_groups(struct comparison *c)
{
    const struct digests *d = replica_digests(c->part->opts->replica);
    uint64_t own[DIGEST_GROUPS];

    c->step = GROUPS;
    if (c->groups == 0) {
        comparison_looked(c);
        return;
    }
    if (d == NULL) {
        comparison_fail(c);
        return;
    }
    c->group = (unsigned)__builtin_ctzll(c->groups);
    c->groups &= c->groups - 1;
    digests_get(d, c->opts.peer, MESSAGE_GROUP_NONE, own);
    comparison_ask(c, c->group, own[c->group]);
}

static void comparison_begin(struct comparison *c)
{
    const struct digests *d = replica_digests(c->part->opts->replica);

    repair_reindex(c->part);
    if (d == NULL || !replica_votes(c->part->opts->replica)) {
        comparison_fail(c);
        return;
    }
    c->second = false;
    memset(c->differ, 0, sizeof(c->differ));
    c->step = ROOT;
    comparison_ask(c, MESSAGE_GROUP_NONE, digests_root(d, c->opts.peer));
}

static void comparison_look_again(struct comparison *c)
{
    c->second = true;
    c->groups = 0;
    for (unsigned i = 0; i < WORDS; i++) {
        if (c->before[i] != 0)
            c->groups |= 1ull << i;
    }
    memset(c->differ, 0, sizeof(c->differ));
    comparison_groups(c);
}

static void on_timer(struct timer *t)
{
    struct comparison *c = container_of(t, struct comparison, timer);

    if (c->step == PAUSE)
        comparison_look_again(c);
    else
        comparison_begin(c);
}

void comparison_hurry(struct comparison *c)
{
    if (c->part->work->stopped)
        return;
    c->n_failed = c->n_in_vain = 0;
    if (c->step == IDLE || c->step == PAUSE) {
        c->hurry = true;
        comparison_rest(c, 0);
    } else {
        c->hurry_after = true;
    }
}

/* --- life ------------------------------------------------------------------------------------- */

int comparison_new(const struct comparison_opts *opts, struct comparison **out)
{
    struct comparison *c = calloc(1, sizeof(*c));

    if (c == NULL)
        return -ENOMEM;
    c->opts = *opts;
    c->part = opts->part;
    c->timer.fire = on_timer;
    *out = c;
    return 0;
}

void comparison_free(struct comparison *c)
{
    free(c);
}

void comparison_stop(struct comparison *c)
{
    repair_timer_clear(c->part, &c->timer);
    merge_close(c);
    if (c->op != NULL)
        op_cancel(c->op);
}

uint64_t comparison_count(const struct comparison *c)
{
    return c->n_done;
}

uint64_t comparison_same_us(const struct comparison *c)
{
    return c->same_us;
}

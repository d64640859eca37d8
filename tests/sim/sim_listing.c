/*
 * sim_listing.c - a listing is complete and right, or an error: each page is a linearizable read of
 * every name that it covers.
 *
 * While some clients write and delete, others list, page by page. What a page shows is a read of
 * that key (of a common prefix: of the key that stands for it), and what it leaves out is a read
 * that found nothing; all of that goes into the histories of the keys.
 */
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/lib/chaos.h"
#include "tests/lib/schedule.h"
#include "tests/lib/workload.h"

static const char *const names[] = {
    "a",     "a-",    "a/",  "a/1", "a/2",        "a//x",    "a0",
    "b/c/d", "b/c/e", "b/f", "c",   "c/\xc3\xa9", "d/e/f/g", "\xff\xfe",
};
#define N_NAMES (sizeof names / sizeof names[0])

static const char *const prefixes[] = {"", "", "a", "a/", "b/", "b/c/", "d/", "x", "\xff"};
#define N_PREFIXES (sizeof prefixes / sizeof prefixes[0])

#define PAGES_MAX 20u /* of one lister */
#define OPS_SPARE 16u /* of each history, for what comes after the listers */

struct lister {
    struct workload *w;
    struct sim_client *cl;
    unsigned index, n_left;
    unsigned n_pages, n_failed, n_peeks;
    struct timer next;
    bool running;
    /* the listing under way: */
    struct span prefix;
    bool delimiter;
    uint32_t limit;
    struct buf after;
    uint64_t started_us;
    unsigned peeked; /* index of a name */
};

/* --- what a page says ------------------------------------------------------------------------ */

/* The name under which a listing shows a key: up to the first '/' behind the prefix. */
static struct span shown_name(const struct lister *l, struct span key)
{
    for (size_t i = l->prefix.len; l->delimiter && i < key.len; i++) {
        if (key.data[i] == '/')
            return span_of(key.data, i + 1);
    }
    return key;
}

static struct span entry_name(const struct entry *e)
{
    return span_of(e->key.data, e->prefix_len != 0 ? e->prefix_len : e->key.len);
}

static struct history_op *saw(struct lister *l, unsigned key, uint32_t mark)
{
    struct history_op *op =
        history_add(&l->w->histories[key], HISTORY_READ, 100 + l->index, 0, l->started_us);

    assert(op != NULL);
    op->seen.mark_known = true;
    op->seen.mark = mark;
    history_end(op, HISTORY_OK, l->w->sim->now_us);
    return op;
}

static void saw_entry(struct lister *l, const struct entry *e, bool *found)
{
    struct history_op *op;

    for (unsigned i = 0; i < N_NAMES; i++) {
        if (!span_eq(e->key, span_str(names[i])))
            continue;
        found[i] = true;
        if (e->flags & ENTRY_DAMAGED)
            return; /* it tells nothing but that nobody can tell */
        op = saw(l, i, (uint32_t)e->rdev);
        op->version_known = true;
        op->version = e->version;
        op->version_mark = (uint32_t)e->rdev;
        return;
    }
    workload_complain(l->w, "a listing shows a key that nobody ever wrote");
}

static bool is_below(struct span key, struct span dir)
{
    return key.len > dir.len && span_has_prefix(key, dir) && key.data[dir.len] == '/';
}

/* Names are in order, behind where the page began, below the prefix, and stand for live keys. */
static void check_entry(struct lister *l, const struct entry *e, struct span before)
{
    struct span name = entry_name(e);

    if (e->flags & RECORD_TOMBSTONE)
        workload_complain(l->w, "a listing shows a deleted key");
    if (!span_has_prefix(name, l->prefix))
        workload_complain(l->w, "a listing leaves its prefix");
    if (before.len > 0 && span_cmp(name, before) <= 0)
        workload_complain(l->w, "a listing is out of order, or shows a name twice");
    if (!span_eq(name, shown_name(l, e->key)))
        workload_complain(l->w, "a listing rolls up the wrong part");
}

/*
 * Is the key among those that this page speaks of, with its last name `last` (empty: to the end)?
 */
static bool page_covers(const struct lister *l, struct span key, struct span last)
{
    struct span name = shown_name(l, key);

    return span_has_prefix(key, l->prefix) &&
           (l->after.len == 0 || span_cmp(name, buf_span(&l->after)) > 0) &&
           (last.len == 0 || span_cmp(name, last) <= 0);
}

static void read_page(struct lister *l, const struct list_result *res)
{
    struct cursor c = cursor_of(buf_span(&res->entries));
    struct span before = buf_span(&l->after),
                last = res->more ? buf_span(&res->next) : span_of(NULL, 0);
    struct span rolled_up[N_NAMES];
    bool found[N_NAMES] = {false};
    unsigned n = 0, n_rolled_up = 0;
    struct entry e;

    while (n < N_NAMES && entry_next(&c, &e) == 1) {
        check_entry(l, &e, before);
        saw_entry(l, &e, found);
        before = entry_name(&e);
        if (e.prefix_len != 0)
            rolled_up[n_rolled_up++] = before;
        n++;
    }
    if (n != res->n || n > l->limit || c.err != 0)
        workload_complain(l->w, "a page of %u names was to hold %u, at most %u", n, res->n,
                          l->limit);
    if (res->more && (n == 0 || !span_eq(last, before)))
        workload_complain(l->w, "the next page does not begin where this one ends");
    for (unsigned i = 0; i < N_NAMES; i++) {
        struct span key = span_str(names[i]);
        bool there = found[i] || !page_covers(l, key, last);

        for (unsigned k = 0; k < n_rolled_up && !there; k++)
            there = span_eq(rolled_up[k], shown_name(l, key)); /* another key stands for both */
        if (!there)
            saw(l, i, 0);
    }
}

static void read_peek(struct lister *l, const struct read_result *res)
{
    struct history_op *op =
        saw(l, l->peeked, record_is_live(&res->rec.rec) ? (uint32_t)res->rec.rec.rdev : 0);
    struct span key = span_str(names[l->peeked]);
    bool found[N_NAMES];

    op->version_known = true;
    op->version = res->rec.rec.version;
    op->version_mark = op->seen.mark;
    if (res->has_child) {
        if (!is_below(res->child.key, key) || (res->child.flags & RECORD_TOMBSTONE))
            workload_complain(l->w, "a peek shows a key that is not alive below its own");
        saw_entry(l, &res->child, found);
        return;
    }
    for (unsigned i = 0; i < N_NAMES; i++) {
        if (is_below(span_str(names[i]), key))
            saw(l, i, 0);
    }
}

/* --- listers --------------------------------------------------------------------------------- */

static bool histories_full(const struct workload *w)
{
    for (unsigned i = 0; i < N_NAMES; i++) {
        if (w->histories[i].n + OPS_SPARE >= HISTORY_OPS_MAX)
            return true;
    }
    return false;
}

static void begin_listing(struct lister *l)
{
    struct rng *rng = &l->w->sim->rng;

    l->prefix = span_str(prefixes[rng_below(rng, N_PREFIXES)]);
    l->delimiter = rng_chance(rng, 500);
    l->limit = (uint32_t)rng_between(rng, 1, 6);
    buf_clear(&l->after);
}

static void lister_pause(struct lister *l)
{
    struct sim *s = l->w->sim;

    sim_timer_set(s, &l->next, s->now_us + rng_below(&s->rng, l->w->opts.think_us + 1), l->cl);
}

static void page_done(void *arg, struct list_result *res)
{
    struct lister *l = arg;
    bool more = res->err == 0 && res->more;

    if (l->cl->killed) { /* nobody is left to look at it */
        l->running = false;
        return;
    }
    if (res->err == 0) {
        l->n_pages++;
        read_page(l, res);
    } else {
        l->n_failed++;
    }
    buf_clear(&l->after);
    if (more)
        buf_add_span(&l->after, buf_span(&res->next));
    else
        begin_listing(l);
    lister_pause(l);
}

/* A READ with peek: of the key, and of whether there is anything below it. */
static void peek_done(void *arg, struct read_result *res)
{
    struct lister *l = arg;

    if (l->cl->killed) {
        l->running = false;
        return;
    }
    if (res->err == 0) {
        l->n_peeks++;
        read_peek(l, res);
    }
    begin_listing(l);
    lister_pause(l);
}

static void ask_peek(struct lister *l)
{
    struct read_args args = {.peek = true};
    struct op *op;

    l->peeked = (unsigned)rng_below(&l->w->sim->rng, N_NAMES);
    args.key = span_str(names[l->peeked]);
    l->started_us = l->w->sim->now_us;
    op = client_read(l->cl->client, &args, peek_done, l);
    assert(op != NULL);
}

static void ask_page(struct lister *l, uint32_t timeout_ms)
{
    struct list_args args = {
        .prefix = l->prefix,
        .start_after = buf_span(&l->after),
        .delimiter = l->delimiter,
        .limit = l->limit,
        .timeout_ms = timeout_ms,
    };
    struct op *op;

    l->started_us = l->w->sim->now_us;
    op = client_list(l->cl->client, &args, page_done, l);
    assert(op != NULL);
}

static void on_next(struct timer *t)
{
    struct lister *l = container_of(t, struct lister, next);

    if (l->n_left == 0 || l->cl->killed || histories_full(l->w)) {
        l->running = false;
        return;
    }
    l->n_left--;
    if (l->after.len == 0 && rng_chance(&l->w->sim->rng, 300))
        ask_peek(l);
    else
        ask_page(l, 0);
}

static void lister_start(struct lister *l, struct workload *w, struct sim_client *cl,
                         unsigned index)
{
    *l = (struct lister){.w = w,
                         .cl = cl,
                         .index = index,
                         .n_left = PAGES_MAX,
                         .running = true,
                         .next = {.fire = on_next}};
    begin_listing(l);
    lister_pause(l);
}

/* All names at once, by a new client of a cluster that is whole: this has to succeed. */
static void list_everything(struct workload *w, bool delimiter)
{
    struct lister l = {.w = w, .index = 10, .running = true, .next = {.fire = on_next}};

    l.cl = sim_client_start(w->sim, 5000);
    l.limit = LIST_LIMIT_MAX;
    l.delimiter = delimiter;
    ask_page(&l, 0);
    while (l.running) /* until the pause behind the page is over, with none left to ask for */
        sim_step(w->sim);
    if (l.n_pages != 1)
        workload_complain(w, "the last listing failed");
    buf_fini(&l.after);
}

/* --- schedules ------------------------------------------------------------------------------- */

struct trouble {
    struct chaos chaos;
    struct workload *w;
};

static void on_kill(struct chaos *c, struct sim_client *cl)
{
    workload_killed(container_of(c, struct trouble, chaos)->w, cl);
}

struct totals {
    unsigned n_pages, n_failed, n_peeks, n_written;
};

static void draw(struct rng *rng, bool quiet, struct sim_opts *so, struct workload_opts *wo,
                 struct chaos *c)
{
    so->seed = rng_next(rng);
    so->net = (struct sim_net){.delay_us = 1000};
    *wo = (struct workload_opts){
        .n_clients = 3,
        .n_actors = 4,
        .n_keys = N_NAMES,
        .keys = names,
        .n_ops = (unsigned)rng_between(rng, 5, 40),
        .kinds = WORKLOAD_ALL_KINDS & ~(unsigned)rng_below(rng, WORKLOAD_ALL_KINDS),
        .timeout_ms = quiet ? 5000 : 300,
        .think_us = rng_chance(rng, 500) ? 2000 : 50000,
    };
    if (quiet)
        return;
    so->net.lose = rng_chance(rng, 500) ? 0 : 50;
    so->net.duplicate = rng_chance(rng, 500) ? 0 : 100;
    so->net.linger = rng_chance(rng, 500) ? 0 : 100;
    so->net.linger_us = 500000;
    so->slow_nodes = rng_chance(rng, 500);
    so->fail_put = rng_chance(rng, 250) ? 20 : 0;
    c->faults = CHAOS_ALL & (unsigned)rng_next(rng);
    c->gap_us = rng_chance(rng, 500) ? 5000 : 50000;
    c->length_us = rng_chance(rng, 500) ? 20000 : 200000;
    if (!so->repair)
        return;
    so->scrub_us = 200000;
    so->repair_timeout_ms = 1000;
    so->tombstone_age_us = 2000000;
    so->clocks_apart_us = rng_chance(rng, 500) ? 0 : 1000000;
    so->sync_us = rng_chance(rng, 500) ? 0 : 30000;
    c->loss = rng_chance(rng, 500) ? 100 : 1000;
}

static bool run_one(struct sim_opts so, uint64_t seed, bool quiet, struct totals *t)
{
    struct trouble trouble = {
        .chaos = {
            .only_node = CHAOS_ANY_NODE, .n_kills = 1, .gap_us = 1000000, .on_kill = on_kill}};
    struct rng rng = {seed};
    struct workload_opts wo;
    struct workload w;
    struct lister listers[2];
    struct sim *s;
    unsigned n_broken;
    bool good;

    draw(&rng, quiet, &so, &wo, &trouble.chaos);
    if (sim_new(&so, &s) < 0)
        fail_msg("no memory for a cluster");
    workload_start(&w, s, &wo);
    for (unsigned i = 0; i < 2; i++)
        lister_start(&listers[i], &w, s->clients[i], i);
    trouble.w = &w;
    trouble.chaos.sim = s;
    chaos_start(&trouble.chaos);
    workload_finish(&w);
    while (listers[0].running || listers[1].running)
        sim_step(s);
    chaos_end(&trouble.chaos);
    list_everything(&w, false);
    workload_read_all(&w);
    list_everything(&w, true);
    good = workload_judge(&w, stderr, &n_broken);
    for (unsigned i = 0; i < 2; i++) {
        t->n_pages += listers[i].n_pages;
        t->n_failed += listers[i].n_failed;
        t->n_peeks += listers[i].n_peeks;
        buf_fini(&listers[i].after);
    }
    t->n_written += w.n_outcomes[HISTORY_OK];
    sim_free(s);
    workload_fini(&w);
    return good;
}

static struct totals run_batch(struct sim_opts so, bool quiet, unsigned usual)
{
    unsigned count = schedule_count(usual);
    uint64_t first = schedule_first_seed(1);
    struct totals t = {0, 0, 0, 0};

    for (uint64_t seed = first; seed < first + count; seed++) {
        if (!run_one(so, seed, quiet, &t))
            fail_msg("seed %" PRIu64 ": KVFS_SIM_SEED=%" PRIu64 " KVFS_SIM_COUNT=1 runs it again",
                     seed, seed);
    }
    print_message("%u schedules: %u pages, %u errors, %u peeks, %u writes\n", count, t.n_pages,
                  t.n_failed, t.n_peeks, t.n_written);
    assert_true(t.n_pages > 0);
    assert_true(t.n_peeks > 0);
    assert_true(t.n_written > 0);
    return t;
}

static void listings_of_three_nodes_in_trouble_are_complete_or_errors(void **state)
{
    (void)state;
    run_batch((struct sim_opts){.n_nodes = 3, .replication_factor = 3}, false, 400);
}

static void listings_of_five_nodes_with_three_copies_in_trouble_are_complete_or_errors(void **state)
{
    (void)state;
    run_batch((struct sim_opts){.n_nodes = 5, .replication_factor = 3}, false, 400);
}

static void listings_of_one_copy_on_three_nodes_are_complete_or_errors(void **state)
{
    (void)state;
    run_batch((struct sim_opts){.n_nodes = 3, .replication_factor = 1}, false, 100);
}

static void listings_while_disks_are_lost_are_complete_or_errors(void **state)
{
    (void)state;
    run_batch((struct sim_opts){.n_nodes = 5, .replication_factor = 3, .repair = true}, false, 50);
    run_batch((struct sim_opts){.n_nodes = 3, .replication_factor = 3, .repair = true}, false, 100);
}

static void without_trouble_every_listing_succeeds(void **state)
{
    struct totals t =
        run_batch((struct sim_opts){.n_nodes = 5, .replication_factor = 3}, true, 200);

    (void)state;
    assert_int_equal(t.n_failed, 0);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(listings_of_three_nodes_in_trouble_are_complete_or_errors),
        cmocka_unit_test(
            listings_of_five_nodes_with_three_copies_in_trouble_are_complete_or_errors),
        cmocka_unit_test(listings_of_one_copy_on_three_nodes_are_complete_or_errors),
        cmocka_unit_test(listings_while_disks_are_lost_are_complete_or_errors),
        cmocka_unit_test(without_trouble_every_listing_succeeds),
    };

    if (argc > 1)
        setenv("KVFS_SIM_SEED", argv[1], 1);
    if (argc > 2)
        setenv("KVFS_SIM_COUNT", argv[2], 1);
    if (argc > 3)
        cmocka_set_test_filter(argv[3]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

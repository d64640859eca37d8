/* key_merge.c - listings of several nodes, side by side. */
#include "node/key_merge.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define PAGE_KEYS 1000u

struct source {
    struct key_merge *merge;
    unsigned node, shared_with;
    struct op *op;   /* a page under way */
    struct buf page; /* its entries */
    struct cursor at;
    struct entry entry; /* the next one; borrows from page */
    bool has_entry;
    bool more;        /* behind this page */
    struct buf after; /* where that begins */
};

struct key_merge {
    struct client *client;
    uint32_t timeout_ms;
    void (*on_ready)(void *arg);
    void *arg;
    void (*closed)(void *arg);
    void *closed_arg;
    bool closing;
    struct buf buckets;

    int err; /* a source failed: */
    unsigned failed;
    struct err why;

    bool taken;            /* entries were handed out: go on behind them */
    struct entry *entries; /* by source; what was handed out */
    unsigned n_under_way, n_sources;
    struct source sources[];
};

/* --- life ------------------------------------------------------------------------------------- */

static void merge_free(struct key_merge *m)
{
    for (unsigned i = 0; i < m->n_sources; i++) {
        buf_fini(&m->sources[i].page);
        buf_fini(&m->sources[i].after);
    }
    buf_fini(&m->buckets);
    free(m->entries);
    free(m);
}

int key_merge_new(const struct key_merge_opts *opts, struct key_merge **out)
{
    struct key_merge *m = calloc(1, sizeof(*m) + opts->n_sources * sizeof(m->sources[0]));
    int err;

    if (m == NULL)
        return -ENOMEM;
    m->client = opts->client;
    m->timeout_ms = opts->timeout_ms;
    m->on_ready = opts->on_ready;
    m->arg = opts->arg;
    m->n_sources = opts->n_sources;
    m->entries = calloc(opts->n_sources + 1, sizeof(*m->entries));
    buf_add_span(&m->buckets, opts->buckets);
    err = m->entries == NULL ? -ENOMEM : m->buckets.err;
    for (unsigned i = 0; i < m->n_sources; i++) {
        struct source *s = &m->sources[i];

        s->merge = m;
        s->node = opts->sources[i].node;
        s->shared_with = opts->sources[i].shared_with;
        s->more = true;
        buf_add_span(&s->after, opts->start_after);
        if (s->after.err != 0)
            err = -ENOMEM;
    }
    if (err != 0) {
        merge_free(m);
        return -ENOMEM;
    }
    *out = m;
    return 0;
}

static void merge_end(struct key_merge *m)
{
    void (*closed)(void *) = m->closed;
    void *arg = m->closed_arg;

    merge_free(m);
    closed(arg);
}

void key_merge_close(struct key_merge *m, void (*closed)(void *arg), void *arg)
{
    m->closing = true;
    m->closed = closed;
    m->closed_arg = arg;
    for (unsigned i = 0; i < m->n_sources; i++) {
        if (m->sources[i].op != NULL)
            op_cancel(m->sources[i].op);
    }
    if (m->n_under_way == 0)
        merge_end(m);
}

/* --- pages ------------------------------------------------------------------------------------ */

static void source_fail(struct source *s, int err, const struct err *why)
{
    struct key_merge *m = s->merge;

    if (m->err != 0)
        return;
    m->err = err == -EAGAIN ? -EHOSTDOWN : err; /* -EAGAIN has its own meaning here */
    m->failed = s->node;
    if (why != NULL && why->msg[0] != '\0')
        m->why = *why;
    else
        err_set(&m->why, 0, "%s", strerror(-err));
}

/* The next entry of the page to s->entry. */
static void source_step(struct source *s)
{
    struct entry e;
    int r = entry_next(&s->at, &e);

    s->has_entry = r == 1;
    if (r == 1)
        s->entry = e;
    else if (r < 0)
        source_fail(s, r, NULL);
}

static void source_take_page(struct source *s, const struct ask_result *res)
{
    const struct answer *a = res->answer;

    /* A page that leads nowhere would be asked for for ever. */
    if (a->more && span_cmp(a->next, buf_span(&s->after)) <= 0) {
        source_fail(s, -EPROTO, NULL);
        return;
    }
    buf_clear(&s->page);
    buf_add_span(&s->page, res->entries);
    buf_clear(&s->after);
    buf_add_span(&s->after, a->next);
    s->more = a->more;
    if (s->page.err != 0 || s->after.err != 0) {
        source_fail(s, -ENOMEM, NULL);
        return;
    }
    s->at = cursor_of(buf_span(&s->page));
    source_step(s);
}

static void on_page(void *arg, struct ask_result *res)
{
    struct source *s = arg;
    struct key_merge *m = s->merge;

    s->op = NULL;
    m->n_under_way--;
    if (m->closing) {
        if (m->n_under_way == 0)
            merge_end(m);
        return;
    }
    if (res->err < 0)
        source_fail(s, res->err, &res->why);
    else if (res->answer->kind != ANS_KEYS)
        source_fail(s, -EPROTO, NULL);
    else
        source_take_page(s, res);
    if (m->n_under_way == 0 || m->err != 0)
        m->on_ready(m->arg);
}

static void source_fetch(struct source *s)
{
    struct key_merge *m = s->merge;
    struct message msg = {
        .kind = MSG_KEYS,
        .node = s->shared_with,
        .start_after = buf_span(&s->after),
        .limit = PAGE_KEYS,
        .buckets = buf_span(&m->buckets),
    };
    struct ask_args args = {.node = s->node, .m = &msg, .timeout_ms = m->timeout_ms};

    s->op = client_ask(m->client, &args, on_page, s);
    if (s->op == NULL)
        source_fail(s, -ENOMEM, NULL);
    else
        m->n_under_way++;
}

/* --- merging ---------------------------------------------------------------------------------- */

/* Goes behind the key that was handed out last. */
static void merge_advance(struct key_merge *m)
{
    if (!m->taken)
        return;
    m->taken = false;
    for (unsigned i = 0; i < m->n_sources; i++) {
        if (m->entries[i].key.len > 0)
            source_step(&m->sources[i]);
    }
}

int key_merge_next(struct key_merge *m, struct merged_key *out)
{
    struct span first = {0};

    merge_advance(m);
    for (unsigned i = 0; i < m->n_sources && m->err == 0; i++) {
        struct source *s = &m->sources[i];

        if (!s->has_entry && s->more && s->op == NULL)
            source_fetch(s);
    }
    if (m->err != 0)
        return m->err;
    if (m->n_under_way > 0)
        return -EAGAIN;
    for (unsigned i = 0; i < m->n_sources; i++) {
        struct source *s = &m->sources[i];

        if (s->has_entry && (first.len == 0 || span_cmp(s->entry.key, first) < 0))
            first = s->entry.key;
    }
    if (first.len == 0)
        return 0;
    for (unsigned i = 0; i < m->n_sources; i++) {
        struct source *s = &m->sources[i];
        bool has = s->has_entry && span_eq(s->entry.key, first);

        m->entries[i] = has ? s->entry : (struct entry){0};
    }
    m->taken = true;
    *out = (struct merged_key){.key = first, .entries = m->entries};
    return 1;
}

unsigned key_merge_failed(const struct key_merge *m, const struct err **why)
{
    *why = &m->why;
    return m->failed;
}

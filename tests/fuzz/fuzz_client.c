/*
 * fuzz_client.c - reads and writes of a client whose replicas' answers the input decides about.
 *
 * Whatever is answered: every operation ends in its time, and what a read gives is a value that
 * fits its record. Where only one of three nodes is hostile and what it says can be seen to be no
 * answer, nothing that was acknowledged may get lost either, and all goes on when it has come to
 * reason.
 *
 * Input: hostile nodes (bits), lies (u8), then operations and fates, see step().
 */
#include <errno.h>
#include <string.h>

#include "tests/fuzz/net.h"

#define STEPS_MAX 12u
#define MAYBE_MAX 64u

/* What a key can hold: by id_of(). Only one client writes, one operation after the other. */
struct truth {
    uint64_t now;
    /* written, but not known whether */
    unsigned n_maybe;
    uint64_t maybe[MAYBE_MAX];
};

enum what { PUT, DELETE, CREATE, APPEND, TOUCH, N_WHATS };

struct run {
    struct net net;
    struct truth truths[2];
    unsigned counter; /* makes every value another */

    /* the operation under way */
    bool done;
    enum what what;
    bool large;
    struct truth *truth;
    unsigned n_tries;
    uint64_t from[MAYBE_MAX], to[MAYBE_MAX]; /* each try of a write: what it builds on, and makes */
    struct read_args read;
    bool must_work;
};

static bool claims_truth(const struct run *r)
{
    return !r->net.lies;
}

/* 0: absent or deleted, 1: empty, else the checksum of its first chunk. */
static uint64_t id_of(const struct record *rec)
{
    struct cursor c = cursor_of(rec->sums);

    if (!record_is_live(rec))
        return 0;
    return rec->size == 0 ? 1 : cursor_u64(&c);
}

/* A majority holds id now. */
static void observe(struct truth *t, uint64_t id)
{
    if (id == t->now)
        return;
    for (unsigned i = 0; i < t->n_maybe; i++) {
        if (t->maybe[i] != id)
            continue;
        t->maybe[i] = t->maybe[--t->n_maybe];
        t->now = id;
        return;
    }
    CLAIM(!"what was found had been written, and not replaced");
}

static bool is_possible(const struct truth *t, uint64_t id)
{
    bool found = id == t->now;

    for (unsigned i = 0; i < t->n_maybe; i++)
        found |= t->maybe[i] == id;
    return found;
}

/* --- reading ---------------------------------------------------------------------------------- */

static void read_done(void *arg, struct read_result *res)
{
    struct run *r = arg;
    const struct record *rec = &res->rec.rec;
    const struct read_args *args = &r->read;

    r->done = true;
    CLAIM(!r->must_work || res->err == 0);
    if (res->err < 0)
        return;
    if (res->value.len > 0)
        CLAIM(record_verify(rec, res->value_offset, value_span(res->value)) == 0);
    if (args->want_value && record_is_live(rec) && args->offset < rec->size && args->length > 0) {
        uint64_t left = rec->size - args->offset;
        uint64_t end = args->offset + (args->length < left ? args->length : left);

        CLAIM(res->value_offset <= args->offset && res->value_offset + res->value.len >= end);
    }
    if (claims_truth(r))
        observe(r->truth, id_of(rec));
}

static void do_read(struct run *r, struct span key, struct input *in)
{
    unsigned how = input_u8(in);

    r->read = (struct read_args){.key = key,
                                 .want_value = !(how & 1),
                                 .length = how & 4 ? input_u16(in) : READ_ALL,
                                 .peek = how & 2};
    if (how & 4)
        r->read.offset = input_u16(in);
    CLAIM(client_read(r->net.client, &r->read, read_done, r) != NULL);
}

/* --- writing ---------------------------------------------------------------------------------- */

static void fill(struct run *r, struct span before, struct value *out)
{
    static const uint8_t zeros[INLINE_VALUE_MAX];
    struct buf bytes = {0};

    buf_add_span(&bytes, before);
    buf_addf(&bytes, "%u,", ++r->counter);
    if (r->large)
        buf_add(&bytes, zeros, sizeof zeros);
    CLAIM(value_copy(buf_span(&bytes), out) == 0);
    buf_fini(&bytes);
}

static int edit(void *ctx, const struct record *cur, struct value cur_value, struct draft *next)
{
    struct run *r = ctx;
    struct buf sums = {0};
    struct record made = {.version = {1, 1}};
    bool live = record_is_live(cur);
    uint64_t from = id_of(cur), to;

    if (r->what == APPEND && live) {
        CLAIM(cur_value.len == cur->size);
        CLAIM(record_verify(cur, 0, value_span(cur_value)) == 0);
    }
    if ((r->what == CREATE && live) || (r->what == TOUCH && !live))
        return -ECANCELED;
    if (r->what == DELETE)
        next->rec.flags = RECORD_TOMBSTONE;
    else if (r->what == TOUCH)
        next->same_value = true;
    else
        fill(r, r->what == APPEND ? value_span(cur_value) : span_of(NULL, 0), &next->value);
    next->rec.mode = r->what == DELETE ? 0 : 0100600;
    record_sums(&sums, value_span(next->value));
    made.size = next->value.len;
    made.sums = buf_span(&sums);
    to = r->what == DELETE ? 0 : r->what == TOUCH ? from : id_of(&made);
    buf_fini(&sums);
    CLAIM(r->n_tries < MAYBE_MAX || r->net.lies);
    if (r->n_tries < MAYBE_MAX) {
        r->from[r->n_tries] = from;
        r->to[r->n_tries++] = to;
    }
    return 0;
}

/* It was stored: by the try that made this, on what was possible before. */
static void wrote(struct run *r, uint64_t id)
{
    bool found = false;

    for (unsigned i = 0; i < r->n_tries; i++)
        found |= r->to[i] == id && (r->what == PUT || r->what == DELETE || r->what == CREATE ||
                                    is_possible(r->truth, r->from[i]));
    CLAIM(found);
    CLAIM(r->what != CREATE || is_possible(r->truth, 0));
    r->truth->now = id;
    r->truth->n_maybe = 0;
}

static void write_done(void *arg, struct write_result *res)
{
    struct run *r = arg;
    struct truth *t = r->truth;

    r->done = true;
    CLAIM(!r->must_work || res->err == 0);
    if (!claims_truth(r))
        return;
    if (res->err == 0)
        wrote(r, id_of(&res->rec.rec));
    else if (res->err == -ECANCELED)
        observe(t, id_of(&res->rec.rec));
    for (unsigned i = 0; res->err < 0 && !res->certain && i < r->n_tries; i++) {
        CLAIM(t->n_maybe < MAYBE_MAX);
        t->maybe[t->n_maybe++] = r->to[i];
    }
}

static void do_write(struct run *r, struct span key, struct input *in)
{
    unsigned how = input_u8(in);
    struct write_args args = {.key = key,
                              .edit = edit,
                              .ctx = r,
                              .want_value = r->what == APPEND,
                              .report_wait_ms = how & 1 ? 20 : 0};

    r->large = how & 2;
    r->n_tries = 0;
    CLAIM(client_write(r->net.client, &args, write_done, r) != NULL);
}

/* --- the run ---------------------------------------------------------------------------------- */

/* One operation, to its end. */
static void step(struct run *r, struct input *in)
{
    unsigned what = input_pick(in, N_WHATS + 2), key = input_u8(in) & 1;
    uint64_t begun_us = r->net.now_us;

    r->done = false;
    r->truth = &r->truths[key];
    r->what = (enum what)what;
    if (what < N_WHATS)
        do_write(r, grammar_key(2 * key), in);
    else
        do_read(r, grammar_key(2 * key), in);
    /* Some of its time is for the bytes that a read wants, at 10 MiB/s. */
    net_run(&r->net, &r->done, begun_us + 1000 * NET_TIMEOUT_MS + 30000);
}

/* The input has run out, so all are honest now: the same client writes and reads. */
static void end_well(struct run *r)
{
    struct input none = {0};

    r->net.hostile = 0;
    for (unsigned key = 0; key < 2 && !r->net.lies; key++) {
        uint8_t put[] = {PUT, (uint8_t)key}, read[] = {N_WHATS, (uint8_t)key};
        struct input in = {put, sizeof put};

        r->net.in = &none;
        r->must_work = true;
        step(r, &in);
        in = (struct input){read, sizeof read};
        step(r, &in);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct input in = {data, size};
    struct run *r = calloc(1, sizeof *r);
    unsigned hostile = input_pick(&in, 8);

    CLAIM(r != NULL);
    net_init(&r->net, &in);
    r->net.lies = input_u8(&in) & 1;
    /* One alone, unless no more is claimed than that all comes to an end. */
    r->net.hostile = r->net.lies ? hostile : hostile & (~hostile + 1);
    for (unsigned i = 0; i < STEPS_MAX && in.len > 0; i++)
        step(r, &in);
    end_well(r);
    net_fini(&r->net);
    free(r);
    return 0;
}

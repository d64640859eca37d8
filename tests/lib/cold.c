/* cold.c - keys that are written once. */
#include "tests/lib/cold.h"

#include <assert.h>
#include <stdio.h>

#define TIMEOUT_MS 1000u

struct cold {
    unsigned i;
    bool ended, stored;
};

static struct span cold_key(unsigned i, char name[16])
{
    return span_of(name, (size_t)snprintf(name, 16, "cold-%u", i));
}

static int edit(void *ctx, const struct record *cur, struct value cur_value, struct draft *next)
{
    const struct cold *c = ctx;
    uint8_t byte = (uint8_t)c->i;

    (void)cur;
    (void)cur_value;
    next->rec.rdev = c->i + 1;
    return value_copy(span_of(&byte, 1), &next->value);
}

static void done(void *arg, struct write_result *res)
{
    struct cold *c = arg;

    c->stored = res->err == 0;
    c->ended = true;
}

static void write_one(struct sim *s, struct sim_client *cl, unsigned i)
{
    struct cold c = {.i = i};
    char name[16];
    struct write_args args = {
        .key = cold_key(i, name), .edit = edit, .ctx = &c, .timeout_ms = TIMEOUT_MS};

    for (unsigned tries = 0; !c.stored; tries++) {
        assert(tries < 1000);
        c.ended = false;
        if (client_write(cl->client, &args, done, &c) == NULL)
            assert(!"no memory");
        while (!c.ended)
            sim_step(s);
    }
}

void cold_write(struct sim *s, unsigned n)
{
    struct sim_client *cl = n > 0 ? sim_client_start(s, TIMEOUT_MS) : NULL;
    unsigned fail_put = s->opts.fail_put;
    char name[16];

    s->opts.fail_put = 0; /* nobody would start such a node anew */
    for (unsigned i = 0; i < n; i++) {
        write_one(s, cl, i);
        sim_use_key(s, cold_key(i, name));
    }
    s->opts.fail_put = fail_put;
}

static bool is_there(struct sim *s, unsigned node, unsigned i)
{
    struct record_copy rec = {0};
    struct buf value = {0};
    char name[16];
    bool there = sim_disk_get(s->nodes[node].disk, cold_key(i, name), &rec, &value) &&
                 record_is_live(&rec.rec) && rec.rec.rdev == i + 1 && value.len == 1 &&
                 value.data[0] == (uint8_t)i;

    record_copy_fini(&rec);
    buf_fini(&value);
    return there;
}

bool cold_intact(struct sim *s, unsigned n, struct err *why)
{
    char name[16];

    for (unsigned i = 0; i < n; i++) {
        const unsigned *replicas = ring_replicas(s->ring, cold_key(i, name));

        for (unsigned k = 0; k < ring_n_replicas(s->ring); k++) {
            if (is_there(s, replicas[k], i))
                continue;
            err_set(why, 0, "node %u has not what was written to %s", replicas[k], name);
            return false;
        }
    }
    return true;
}

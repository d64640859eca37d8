/* replica_rig.c - one replica over the store in memory, and messages to it. */
#include "tests/lib/replica_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "common/list.h"

static uint64_t clock_us(struct clock *c)
{
    struct rig *f = container_of(c, struct rig, clock);

    if (f->tick > 0)
        f->now_us += f->tick;
    return f->now_us;
}

/* --- opening ------------------------------------------------------------------------- */

static void note_damage(void *arg, struct span key)
{
    struct rig *f = arg;

    f->n_damage_told++;
    buf_clear(&f->damaged);
    buf_add_span(&f->damaged, key);
}

static void note_store_damage(void *arg)
{
    ((struct rig *)arg)->n_store_damage_told++;
}

void rig_open_replica(struct rig *f)
{
    struct replica_opts opts = {.ring = f->cfg->ring,
                                .self = 0,
                                .cfg = f->cfg,
                                .store = f->store,
                                .clock = &f->clock,
                                .seed = 7,
                                .max_value_size = 4u << 20,
                                .floor_ahead_us = 100,
                                .distrusted = f->distrusted,
                                .on_damage = note_damage,
                                .on_store_damage = note_store_damage,
                                .on_damage_arg = f};
    struct err err = {""};

    if (replica_open(&opts, &f->r, &err) < 0)
        fail_msg("%s", err.msg);
    if (!f->lets_it_recover && replica_recovering(f->r))
        assert_int_equal(replica_found(f->r, NULL, 0), 0);
}

void rig_open_cluster(struct rig *f, const char *json)
{
    struct err err = {""};

    if (config_parse("test", span_str(json), &f->cfg, &err) < 0)
        fail_msg("%s", err.msg);
    rig_open_replica(f);
}

const char rig_three_nodes[] = "{\"nodes\":[{\"id\":\"n0\",\"addr\":\"h0:1\"},{\"id\":\"n1\","
                               "\"addr\":\"h1:1\"},{\"id\":\"n2\",\"addr\":\"h2:1\"}],"
                               "\"replication_factor\":3}";
const char rig_no_copies[] = "{\"nodes\":[{\"id\":\"n0\",\"addr\":\"h0:1\"},{\"id\":\"n1\","
                             "\"addr\":\"h1:1\"},{\"id\":\"n2\",\"addr\":\"h2:1\"}],"
                             "\"replication_factor\":1}";

int rig_setup(void **state)
{
    struct rig *f = calloc(1, sizeof(*f));

    f->clock = (struct clock){clock_us, clock_us};
    f->now_us = 5000000;
    assert_int_equal(store_memory_open(&f->store), 0);
    rig_open_cluster(f, rig_three_nodes);
    *state = f;
    return 0;
}

int rig_teardown(void **state)
{
    struct rig *f = *state;

    replica_close(f->r);
    f->store->ops->close(f->store);
    config_free(f->cfg);
    buf_fini(&f->damaged);
    free(f);
    return 0;
}

void rig_restart(struct rig *f)
{
    replica_close(f->r);
    rig_open_replica(f);
}

/* --- helpers ------------------------------------------------------------------------- */

struct message rig_message(struct rig *f, enum message_kind kind, const char *key)
{
    return (struct message){.kind = kind,
                            .ring = ring_fingerprint(f->cfg->ring),
                            .budget_ms = 1000,
                            .key = span_str(key),
                            .limit = LIST_LIMIT_DEFAULT,
                            .length = UINT64_MAX,
                            .node = MESSAGE_NODE_NONE};
}

void got_fini(struct got *g)
{
    buf_fini(&g->bytes);
    *g = (struct got){0};
}

/* The whole answer in small and odd pieces, as a server reads it. */
int64_t rig_read_reply(struct reply *reply, struct buf *out)
{
    uint64_t total = reply_len(reply), pos = 0;
    size_t piece = total > 100000 ? 70001 : 7;

    while (pos < total) {
        uint8_t *to = buf_reserve(out, piece);
        int64_t n = reply_read(reply, pos, to, piece);

        if (n < 0)
            return n;
        assert_true(n > 0);
        out->len += (size_t)n;
        pos += (uint64_t)n;
    }
    return (int64_t)total;
}

/* Feeds bytes in pieces of this size and decodes what is answered. */
void rig_send_bytes(struct rig *f, struct span bytes, size_t piece, struct span key, struct got *g)
{
    struct replica_request *rq;
    struct reply reply;
    size_t head_len;

    got_fini(g);
    assert_int_equal(replica_begin(f->r, bytes.len, &rq), 0);
    for (size_t at = 0; at < bytes.len; at += piece) {
        if (replica_feed(
                rq, span_of(bytes.data + at, bytes.len - at < piece ? bytes.len - at : piece)) < 0)
            break;
    }
    replica_end(rq, &reply);
    g->status = reply.status;
    assert_true(rig_read_reply(&reply, &g->bytes) >= 0);
    assert_int_equal(answer_decode(buf_span(&g->bytes), key, &g->a, &head_len), 0);
    g->value = span_of(g->bytes.data + head_len, g->bytes.len - head_len);
    assert_int_equal(g->status, g->a.kind == ANS_ERROR ? g->a.status : 200);
    reply_fini(&reply);
}

void rig_send_in_pieces(struct rig *f, const struct message *m, struct span value, size_t piece,
                        struct got *g)
{
    struct buf bytes = {0};
    struct span key = m->kind == MSG_LIST ? (struct span){0} : m->key;

    message_encode(&bytes, m);
    buf_add_span(&bytes, value);
    assert_int_equal(bytes.err, 0);
    rig_send_bytes(f, buf_span(&bytes), piece, key, g);
    buf_fini(&bytes);
}

void rig_send(struct rig *f, const struct message *m, struct span value, struct got *g)
{
    rig_send_in_pieces(f, m, value, SIZE_MAX / 2, g);
}

struct ballot rig_ballot(uint64_t counter)
{
    return (struct ballot){counter, 1};
}

enum answer_kind rig_prepare(struct rig *f, const char *key, uint64_t counter, struct got *g)
{
    struct message m = rig_message(f, MSG_PREPARE, key);

    m.ballot = rig_ballot(counter);
    m.flags = MSG_WANT_VALUE;
    rig_send(f, &m, (struct span){0}, g);
    return g->a.kind;
}

/* A record for an ACCEPT; sums is finished by the caller. */
struct record rig_record_for(uint64_t counter, struct span value, struct buf *sums)
{
    record_sums(sums, value);
    return (struct record){.version = rig_ballot(counter),
                           .seq = 1,
                           .n_recent = 1,
                           .recent = {counter},
                           .size = value.len,
                           .sums = buf_span(sums),
                           .mode = 0100644,
                           .mtime_ns = 77};
}

enum answer_kind rig_accept_in_pieces(struct rig *f, const char *key, uint64_t counter,
                                      struct span value, size_t piece, struct got *g)
{
    struct message m = rig_message(f, MSG_ACCEPT, key);
    struct buf sums = {0};

    m.record = rig_record_for(counter, value, &sums);
    rig_send_in_pieces(f, &m, value, piece, g);
    buf_fini(&sums);
    return g->a.kind;
}

enum answer_kind rig_accept_value(struct rig *f, const char *key, uint64_t counter,
                                  const char *value, struct got *g)
{
    return rig_accept_in_pieces(f, key, counter, span_str(value), SIZE_MAX / 2, g);
}

enum answer_kind rig_accept_tombstone(struct rig *f, const char *key, uint64_t counter,
                                      struct got *g)
{
    struct message m = rig_message(f, MSG_ACCEPT, key);

    m.record = (struct record){.version = rig_ballot(counter), .flags = RECORD_TOMBSTONE, .seq = 2};
    rig_send(f, &m, (struct span){0}, g);
    return g->a.kind;
}

enum answer_kind rig_read_range(struct rig *f, const char *key, uint64_t offset, uint64_t length,
                                struct got *g)
{
    struct message m = rig_message(f, MSG_READ, key);

    m.flags = MSG_WANT_VALUE;
    m.offset = offset;
    m.length = length;
    rig_send(f, &m, (struct span){0}, g);
    return g->a.kind;
}

enum answer_kind rig_read_value(struct rig *f, const char *key, struct got *g)
{
    return rig_read_range(f, key, 0, UINT64_MAX, g);
}

void rig_assert_value(const struct got *g, const char *text)
{
    assert_true(g->a.has_value);
    assert_true(span_eq(g->value, span_str(text)));
}

/* Bytes of which no two chunks are alike; the caller frees them. */
struct span rig_pattern(size_t len)
{
    uint8_t *p = malloc(len);

    assert_non_null(p);
    for (size_t i = 0; i < len; i++)
        p[i] = (uint8_t)(i * 31 + i / 251 + i / CHUNK_SIZE);
    return span_of(p, len);
}

void rig_span_free(struct span s)
{
    free((void *)(uintptr_t)s.data);
}

void rig_new_store(struct rig *f)
{
    replica_close(f->r);
    f->store->ops->close(f->store);
    assert_int_equal(store_memory_open(&f->store), 0);
    rig_open_replica(f);
}

enum answer_kind rig_restore(struct rig *f, const char *key, uint64_t counter, const char *value,
                             struct got *g)
{
    struct message m = rig_message(f, MSG_ACCEPT, key);
    struct buf sums = {0};

    m.flags = MSG_RESTORE;
    m.record = rig_record_for(counter, span_str(value), &sums);
    rig_send(f, &m, span_str(value), g);
    buf_fini(&sums);
    return g->a.kind;
}

void rig_hello(struct rig *f, uint32_t node, uint64_t incarnation, struct got *g)
{
    struct message m = rig_message(f, MSG_HELLO, "");

    m.node = node;
    m.incarnation = incarnation;
    rig_send(f, &m, (struct span){0}, g);
}

void rig_damage(struct rig *f, const char *key)
{
    assert_int_equal(f->store->ops->put(f->store, span_str(key), span_str("KVR garbage"),
                                        (struct span){0}, NULL, false),
                     0);
}

void rig_damage_value(struct rig *f, const char *key, uint64_t counter, size_t size, size_t at)
{
    struct span value = rig_pattern(size);
    struct buf sums = {0}, record = {0};
    struct record rec = rig_record_for(counter, value, &sums);
    struct store_file *file = NULL;

    record_encode(&record, span_str(key), &rec);
    ((uint8_t *)(uintptr_t)value.data)[at] ^= 1;
    if (size > INLINE_VALUE_MAX) {
        assert_int_equal(f->store->ops->file_begin(f->store, size, &file), 0);
        assert_int_equal(f->store->ops->file_write(file, value), 0);
        assert_int_equal(f->store->ops->file_finish(file), 0);
    }
    assert_int_equal(f->store->ops->put(f->store, span_str(key), buf_span(&record),
                                        file == NULL ? value : (struct span){0}, file, false),
                     0);
    buf_fini(&record);
    buf_fini(&sums);
    rig_span_free(value);
}

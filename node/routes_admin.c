/*
 * routes_admin.c - /replicas/{key}, /health, /status, /metrics: answered from what this process
 * knows, at once.
 */
#include "node/routes.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "common/json.h"
#include "common/peers.h"
#include "common/prometheus.h"

/* Replies with the JSON in *text; takes it. */
static struct task *reply_json(struct exchange *x, struct buf *text)
{
    struct response r = {0};

    buf_u8(text, '\n');
    if (text->err != 0) {
        buf_fini(text);
        reply_problem(x, 503, "out of memory");
    } else {
        response_json(&r, 200, text);
        exchange_reply(x, &r);
    }
    return NULL;
}

struct task *replicas_begin(struct service *s, struct exchange *x, struct span rest)
{
    struct buf key = {0}, text = {0};
    struct response r = {0};

    if (!only_get(x) || !no_query(x) || !take_key(x, rest, &key))
        return NULL;
    config_owners_json(s->cfg, buf_span(&key), &text);
    buf_fini(&key);
    if (text.err != 0) {
        buf_fini(&text);
        reply_problem(x, 503, "out of memory");
        return NULL;
    }
    response_json(&r, 200, &text);
    exchange_reply(x, &r);
    return NULL;
}

/* --- health ----------------------------------------------------------------------------------- */

/* 1234567 as "1,234,567". */
static void add_grouped(struct buf *out, uint64_t n)
{
    if (n >= 1000) {
        add_grouped(out, n / 1000);
        buf_addf(out, ",%03u", (unsigned)(n % 1000));
    } else {
        buf_addf(out, "%u", (unsigned)n);
    }
}

static void reply_no_vote(struct service *s, struct exchange *x)
{
    struct repair_progress p;
    struct scrub_progress scrub;
    struct buf text = {0};

    upkeep_get(s->upkeep, &p, &scrub);
    if (replica_superseded(s->replica)) {
        reply_problem(x, 503, "superseded: %s", p.waits_for);
        return;
    }
    buf_add_str(&text, "recovering: ");
    add_grouped(&text, p.n_done);
    buf_add_str(&text, " of ");
    add_grouped(&text, p.n_found);
    buf_add_str(&text, " keys");
    if (p.waits_for[0] != '\0')
        buf_addf(&text, "; waits for %s", p.waits_for);
    reply_problem(x, 503, "%.*s", text.err == 0 ? (int)text.len : 0,
                  text.err == 0 ? (const char *)text.data : "");
    buf_fini(&text);
}

struct task *health_begin(struct service *s, struct exchange *x, struct span rest)
{
    struct buf text = {0};
    struct json j = {.out = &text};
    struct err why;

    (void)rest;
    if (!only_get(x) || !no_query(x))
        return NULL;
    if (s->watch != NULL && watch_explain(s->watch, &why) < 0) {
        reply_problem(x, 503, "the store does not work: %s", why.msg);
        return NULL;
    }
    if (s->replica != NULL && !replica_votes(s->replica)) {
        reply_no_vote(s, x);
        return NULL;
    }
    json_begin(&j, '{');
    json_key(&j, "status");
    json_str(&j, span_str("ok"));
    json_key(&j, "node");
    json_str(&j, span_str(s->name));
    json_key(&j, "version");
    json_str(&j, span_str(KVFS_VERSION));
    json_end(&j, '}');
    return reply_json(x, &text);
}

/* --- status ----------------------------------------------------------------------------------- */

static void add_number(struct json *j, const char *name, uint64_t n)
{
    json_key(j, name);
    json_u64(j, n);
}

static void add_self(struct json *j, struct service *s)
{
    struct store_stats st;
    struct err why;
    int err = watch_explain(s->watch, &why);

    json_key(j, "alive");
    json_bool(j, err == 0);
    json_key(j, "since");
    peers_json_moment(j, watch_since_us(s->watch));
    json_key(j, "self");
    json_bool(j, true);
    if (err != 0) {
        json_key(j, "last_error");
        json_str(j, span_str(why.msg));
    }
    json_key(j, "ring_agrees");
    json_bool(j, !cluster_ring_differs(s->cluster, s->self, &why));
    json_key(j, "store");
    json_str(j, span_str(s->store->ops->kind));
    peers_json_hex(j, "incarnation", replica_incarnation(s->replica));
    json_key(j, "recovering");
    json_bool(j, !replica_votes(s->replica) ||
                     health_get(cluster_health(s->cluster), s->self).recovering);
    if (s->store->ops->stats(s->store, &st) != 0)
        return;
    json_key(j, "keys");
    json_u64(j, st.n_keys);
    json_key(j, "bytes");
    json_u64(j, st.n_bytes);
    json_key(j, "disk_free");
    json_u64(j, st.disk_free);
    json_key(j, "disk_total");
    json_u64(j, st.disk_total);
}

/* What this node does of its own accord. */
static void add_repair(struct json *j, struct service *s)
{
    struct repair_progress p;
    struct scrub_progress scrub;

    upkeep_get(s->upkeep, &p, &scrub);
    json_key(j, "repair");
    json_begin(j, '{');
    json_key(j, "recovering");
    json_bool(j, p.recovering);
    add_number(j, "keys_found", p.n_found);
    add_number(j, "keys_recovered", p.n_done);
    json_key(j, "waits_for");
    json_str(j, span_str(p.waits_for));
    add_number(j, "compared", p.n_compared);
    add_number(j, "behind", p.n_behind);
    add_number(j, "mended", p.n_mended);
    add_number(j, "healed", p.n_healed);
    add_number(j, "failed", p.n_failed);
    add_number(j, "tombstones_dropped", p.n_dropped);
    add_number(j, "damaged", replica_n_damaged(s->replica));
    if (p.last_same_us != 0) {
        json_key(j, "last_same");
        peers_json_wall(j, p.last_same_us);
    }
    json_key(j, "scrub");
    json_begin(j, '{');
    add_number(j, "passes", scrub.n_passes);
    add_number(j, "keys", scrub.n_keys);
    add_number(j, "bytes", scrub.n_bytes);
    add_number(j, "damaged", scrub.n_damaged);
    if (scrub.last_us != 0) {
        json_key(j, "last");
        peers_json_wall(j, scrub.last_us);
    }
    json_end(j, '}');
    json_end(j, '}');
}

struct task *status_begin(struct service *s, struct exchange *x, struct span rest)
{
    struct buf text = {0};
    struct json j = {.out = &text};

    (void)rest;
    if (!only_get(x) || !no_query(x))
        return NULL;
    json_begin(&j, '{');
    json_key(&j, "nodes");
    json_begin(&j, '[');
    for (unsigned i = 0; i < s->cfg->n_nodes; i++) {
        json_begin(&j, '{');
        peers_json_name(&j, s->cfg, i);
        if (i == s->self)
            add_self(&j, s);
        else
            peers_json_state(&j, s->cluster, i);
        json_end(&j, '}');
    }
    json_end(&j, ']');
    peers_json_ring(&j, s->cfg);
    if (s->upkeep != NULL)
        add_repair(&j, s);
    json_key(&j, "node");
    json_str(&j, span_str(s->name));
    json_key(&j, "version");
    json_str(&j, span_str(KVFS_VERSION));
    json_end(&j, '}');
    return reply_json(x, &text);
}

/* --- metrics ---------------------------------------------------------------------------------- */

static void write_store(struct service *s, struct buf *out)
{
    struct store_stats st;

    prom_gauge(out, "kvfs_store_healthy", "Whether the store could last be written and synced.",
               watch_state(s->watch) == 0);
    if (s->store->ops->stats(s->store, &st) != 0)
        return;
    prom_gauge(out, "kvfs_store_keys", "Keys in this node's store (an estimate).",
               (double)st.n_keys);
    prom_gauge(out, "kvfs_store_disk_free_bytes", "Free bytes of the file system below.",
               (double)st.disk_free);
    prom_gauge(out, "kvfs_store_disk_total_bytes", "Size of the file system below.",
               (double)st.disk_total);
}

struct task *metrics_begin(struct service *s, struct exchange *x, struct span rest)
{
    struct response r = {.status = 200};
    struct buf *out = &r.text;

    (void)rest;
    if (!only_get(x) || !no_query(x))
        return NULL;
    metrics_write(s->metrics, out);
    if (s->watchers != NULL)
        prom_gauge(out, "kvfs_watchers", "Clients that watch this node's changes.",
                   watchers_count(s->watchers));
    prom_gauge(out, "kvfs_http_connections", "Open connections.", exchange_connections(x));
    prom_gauge(out, "kvfs_memory_bytes", "Memory held by bodies and large values under way.",
               (double)atomic_load(&s->room.memory.used));
    prom_gauge(out, "kvfs_spool_bytes", "Temporary files that hold large bodies under way.",
               (double)atomic_load(&s->room.disk.used));
    prom_gauge(out, "kvfs_uptime_seconds", "Since the process started.",
               (double)(s->clock->mono_us(s->clock) - s->started_us) / 1e6);
    if (s->store != NULL)
        write_store(s, out);
    peers_metrics(out, s->cluster, s->self);
    if (out->err != 0) {
        response_fini(&r);
        reply_problem(x, 503, "out of memory");
        return NULL;
    }
    response_header(&r, "Content-Type", "text/plain; version=0.0.4; charset=utf-8");
    exchange_reply(x, &r);
    return NULL;
}

/* peers.c - what a process knows of the nodes of its cluster, told as JSON and as metrics. */
#include "common/peers.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "common/clock.h"
#include "common/health.h"
#include "common/prometheus.h"

/* --- values ----------------------------------------------------------------------------------- */

void peers_json_wall(struct json *j, uint64_t us)
{
    time_t t = (time_t)(us / 1000000);
    struct tm tm;
    char date[64], text[96];

    if (gmtime_r(&t, &tm) == NULL || strftime(date, sizeof(date), "%Y-%m-%dT%H:%M:%S", &tm) == 0)
        date[0] = '\0';
    snprintf(text, sizeof(text), "%s.%03uZ", date, (unsigned)(us / 1000 % 1000));
    json_str(j, span_str(text));
}

void peers_json_moment(struct json *j, uint64_t mono_us)
{
    struct clock *clock = clock_real();

    peers_json_wall(j, clock->wall_us(clock) - (clock->mono_us(clock) - mono_us));
}

void peers_json_hex(struct json *j, const char *name, uint64_t v)
{
    char hex[17];

    snprintf(hex, sizeof(hex), "%016" PRIx64, v);
    json_key(j, name);
    json_str(j, span_str(hex));
}

static void add_number(struct json *j, const char *name, uint64_t n)
{
    json_key(j, name);
    json_u64(j, n);
}

/* --- nodes and ring --------------------------------------------------------------------------- */

void peers_json_name(struct json *j, const struct config *cfg, unsigned node)
{
    json_key(j, "id");
    json_str(j, span_str(cfg->nodes[node].id));
    json_key(j, "addr");
    json_str(j, span_str(cfg->nodes[node].addr));
}

bool peers_error(struct cluster *c, unsigned node, struct err *out)
{
    struct health_info h = health_get(cluster_health(c), node);
    struct err why;

    if (!h.up)
        err_set(out, h.last_err, "%s", strerror(-h.last_err));
    else if (cluster_ring_differs(c, node, &why))
        *out = why;
    else if (h.ailing)
        err_set(out, 0, "%s", health_get_about(cluster_health(c), node).ailment);
    else
        return false;
    return true;
}

void peers_json_state(struct json *j, struct cluster *c, unsigned node)
{
    struct health_info h = health_get(cluster_health(c), node);
    struct health_about about = health_get_about(cluster_health(c), node);
    struct err why;

    json_key(j, "alive");
    json_bool(j, health_alive(&h) && h.seen_us != 0);
    if (h.since_us != 0) {
        json_key(j, "since");
        peers_json_moment(j, h.since_us);
    }
    if (peers_error(c, node, &why)) {
        json_key(j, "last_error");
        json_str(j, span_str(why.msg));
    }
    if (h.seen_us == 0)
        return;
    json_key(j, "ring_agrees");
    json_bool(j, !cluster_ring_differs(c, node, &why));
    if (about.store[0] != '\0') {
        json_key(j, "store");
        json_str(j, span_str(about.store));
    }
    add_number(j, "latency_us", h.latency_us);
    peers_json_hex(j, "incarnation", h.incarnation);
    json_key(j, "recovering");
    json_bool(j, h.recovering);
    add_number(j, "keys", h.n_keys);
    add_number(j, "bytes", h.n_bytes);
    add_number(j, "disk_free", h.disk_free);
    add_number(j, "disk_total", h.disk_total);
}

void peers_json_ring(struct json *j, const struct config *cfg)
{
    json_key(j, "ring");
    json_begin(j, '{');
    add_number(j, "total_vnodes", ring_n_points(cfg->ring));
    json_key(j, "hash");
    json_str(j, span_str(config_hash_name(cfg)));
    add_number(j, "replication_factor", cfg->replication_factor);
    peers_json_hex(j, "fingerprint", ring_fingerprint(cfg->ring));
    json_key(j, "share");
    json_begin(j, '{');
    for (unsigned i = 0; i < cfg->n_nodes; i++) {
        json_key(j, cfg->nodes[i].id);
        json_double(j, ring_share(cfg->ring, i));
    }
    json_end(j, '}');
    json_end(j, '}');
}

void peers_metrics(struct buf *out, struct cluster *c, unsigned self)
{
    const struct config *cfg = cluster_config(c);

    prom_head(out, "kvfs_peer_up", "gauge", "Whether this process reaches the node.");
    for (unsigned i = 0; i < cfg->n_nodes; i++) {
        struct health_info h = health_get(cluster_health(c), i);

        if (i == self)
            continue;
        buf_add_str(out, "kvfs_peer_up{node=\"");
        prom_label(out, cfg->nodes[i].id);
        buf_addf(out, "\"} %d\n", health_alive(&h) && h.seen_us != 0);
    }
}

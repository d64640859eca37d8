/* report.c - what a mount tells of itself, as text: for the control directory. */
#include "fs/report.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "common/keypath.h"
#include "common/peers.h"
#include "common/prometheus.h"

#define SHOWN_MAX 100u /* of calls and of dirty files; all are counted */

static void add_number(struct json *j, const char *name, uint64_t n)
{
    json_key(j, name);
    json_u64(j, n);
}

/* --- files ------------------------------------------------------------------------------------ */

struct dirty_list {
    struct json *j;
    unsigned n;
};

static void add_dirty(void *arg, struct span key, uint64_t size, int err)
{
    struct dirty_list *l = arg;

    if (l->n++ >= SHOWN_MAX)
        return;
    json_begin(l->j, '{');
    json_field_key(l->j, "key", key);
    add_number(l->j, "size", size);
    if (err < 0) {
        json_key(l->j, "last_error");
        json_str(l->j, span_str(strerror(-err)));
    }
    json_end(l->j, '}');
}

static void add_files(struct json *j, struct fs *fs)
{
    struct dirty_list l = {.j = j};
    struct fs_usage u;

    json_key(j, "files");
    json_begin(j, '{');
    json_key(j, "dirty");
    json_begin(j, '[');
    fs_get_usage(fs, add_dirty, &l, &u);
    json_end(j, ']');
    add_number(j, "n_dirty", u.n_dirty);
    add_number(j, "dirty_bytes", u.dirty_bytes);
    add_number(j, "n_open", u.n_open);
    json_end(j, '}');
    json_key(j, "feed_live");
    json_bool(j, u.feed_live);
}

/* --- calls ------------------------------------------------------------------------------------ */

static void add_calls(struct json *j, struct callers *callers)
{
    struct call_info info[SHOWN_MAX];
    size_t n = callers_list(callers, info, SHOWN_MAX);
    uint64_t now_us = clock_real()->mono_us(clock_real());

    json_key(j, "calls");
    json_begin(j, '[');
    for (size_t i = 0; i < n && i < SHOWN_MAX; i++) {
        json_begin(j, '{');
        json_key(j, "call");
        json_str(j, span_str(call_name(info[i].call)));
        add_number(j, "pid", (uint64_t)info[i].pid);
        add_number(j, "for_ms", now_us > info[i].begun_us ? (now_us - info[i].begun_us) / 1000 : 0);
        json_end(j, '}');
    }
    json_end(j, ']');
    add_number(j, "n_calls", n);
}

/* --- all of it -------------------------------------------------------------------------------- */

void report_status(const struct report_source *src, struct buf *out)
{
    const struct config *cfg = cluster_config(src->cluster);
    struct json j = {.out = out};

    json_begin(&j, '{');
    json_key(&j, "nodes");
    json_begin(&j, '[');
    for (unsigned i = 0; i < cfg->n_nodes; i++) {
        json_begin(&j, '{');
        peers_json_name(&j, cfg, i);
        peers_json_state(&j, src->cluster, i);
        json_end(&j, '}');
    }
    json_end(&j, ']');
    peers_json_ring(&j, cfg);
    add_files(&j, src->fs);
    add_calls(&j, src->callers);
    if (json_is_utf8(span_str(src->mountpoint))) {
        json_key(&j, "mountpoint");
        json_str(&j, span_str(src->mountpoint));
    }
    json_key(&j, "since");
    peers_json_moment(&j, src->since_us);
    add_number(&j, "pid", (uint64_t)getpid());
    json_key(&j, "version");
    json_str(&j, span_str(KVFS_VERSION));
    json_end(&j, '}');
    buf_u8(out, '\n');
}

void report_metrics(const struct report_source *src, struct buf *out)
{
    uint64_t now_us = clock_real()->mono_us(clock_real());
    struct fs_usage u;

    fs_get_usage(src->fs, NULL, NULL, &u);
    metrics_write(src->metrics, out);
    prom_gauge(out, "kvfs_calls_in_flight", "Calls begun and not yet answered.",
               (double)callers_list(src->callers, NULL, 0));
    prom_gauge(out, "kvfs_open_files", "Files that are open.", (double)u.n_open);
    prom_gauge(out, "kvfs_dirty_files", "Files with something that is not stored yet.",
               (double)u.n_dirty);
    prom_gauge(out, "kvfs_dirty_bytes", "Their sizes together.", (double)u.dirty_bytes);
    prom_gauge(out, "kvfs_feed_live", "Whether the nodes tell this mount of changes.", u.feed_live);
    prom_gauge(out, "kvfs_uptime_seconds", "Since it was mounted.",
               (double)(now_us - src->since_us) / 1e6);
    peers_metrics(out, src->cluster, MESSAGE_NODE_NONE);
}

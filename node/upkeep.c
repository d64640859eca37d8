/* upkeep.c - the engine of repair and the scrub of this node, and the way between them. */
#include "node/upkeep.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "common/log.h"

/* On their way to the loop; more are found again. */
#define NOTES_MAX 65536u
#define NOTES_FEW (NOTES_MAX / 8)

struct upkeep {
    struct upkeep_opts opts;
    struct replica *replica;
    struct repair *repair;
    /* From upkeep_start() on, while others run already: */
    _Atomic(struct cluster *) cluster;
    _Atomic(struct scrub *) scrub;
    _Atomic unsigned n_notes;
};

/* --- from other threads to the loop ----------------------------------------------------------- */

enum note_kind { NOTE_INDEXED, NOTE_DAMAGED, NOTE_TOMBSTONE };

struct note {
    struct loop_job job;
    struct upkeep *up;
    enum note_kind kind;
    struct ballot version;
    size_t key_len;
    uint8_t key[];
};

static void note_free(struct note *n)
{
    atomic_fetch_sub(&n->up->n_notes, 1);
    free(n);
}

static void take_note(struct loop_job *job)
{
    struct note *n = container_of(job, struct note, job);
    struct span key = span_of(n->key, n->key_len);

    switch (n->kind) {
    case NOTE_INDEXED:
        repair_indexed(n->up->repair);
        break;
    case NOTE_DAMAGED:
        repair_damaged(n->up->repair, key);
        break;
    case NOTE_TOMBSTONE:
        repair_tombstone(n->up->repair, key, n->version);
        break;
    }
    note_free(n);
}

static void post_note(struct upkeep *up, enum note_kind kind, struct span key,
                      struct ballot version)
{
    struct cluster *cluster = atomic_load(&up->cluster);
    struct note *n;

    if (cluster == NULL || atomic_load(&up->n_notes) >= NOTES_MAX)
        return;
    n = malloc(sizeof(*n) + key.len);
    if (n == NULL)
        return;
    *n = (struct note){.up = up, .kind = kind, .version = version, .key_len = key.len};
    n->job.fn = take_note;
    if (key.len > 0)
        memcpy(n->key, key.data, key.len);
    atomic_fetch_add(&up->n_notes, 1);
    if (!cluster_post(cluster, &n->job))
        note_free(n);
}

void upkeep_damaged(void *arg, struct span key)
{
    log_event(LOG_LEVEL_ERROR, "damaged", "key=%s", log_quote(key.data, key.len));
    post_note(arg, NOTE_DAMAGED, key, BALLOT_NONE);
}

static void on_indexed(void *arg)
{
    post_note(arg, NOTE_INDEXED, span_of(NULL, 0), BALLOT_NONE);
}

static void on_tombstone(void *arg, struct span key, struct ballot version)
{
    post_note(arg, NOTE_TOMBSTONE, key, version);
}

static bool has_room(void *arg)
{
    const struct upkeep *up = arg;

    return atomic_load(&up->n_notes) < NOTES_FEW && repair_has_room(up->repair);
}

static uint64_t old_counter(void *arg)
{
    const struct upkeep *up = arg;

    return repair_old_counter(up->repair);
}

/* --- the guest of the cluster ----------------------------------------------------------------- */

static void self_state(void *arg, uint64_t *incarnation, uint8_t *state)
{
    const struct upkeep *up = arg;

    *incarnation = replica_incarnation(up->replica);
    *state = replica_state(up->replica);
}

/* A peer has said hello: what it is now must be known here, durably. */
static void on_hello(void *arg, unsigned node, const struct hello_result *res)
{
    struct upkeep *up = arg;
    int err = 0;

    if (res->err == 0 && node != up->opts.self)
        err = replica_learn(up->replica, node, &res->answer);
    if (err != 0)
        log_event(LOG_LEVEL_ERROR, "cannot-store-incarnation", "node=%s error=%s",
                  up->opts.cfg->nodes[node].id, log_quote(strerror(-err), strlen(strerror(-err))));
    repair_on_hello(up->repair, node, res);
}

static const char *node_name(void *arg, unsigned node)
{
    const struct upkeep *up = arg;

    return up->opts.cfg->nodes[node].id;
}

static void reindex(void *arg)
{
    struct upkeep *up = arg;
    struct scrub *scrub = atomic_load(&up->scrub);

    if (scrub != NULL)
        scrub_reindex(scrub);
}

static int guest_start(void *arg, struct client *client, struct transport *transport)
{
    struct upkeep *up = arg;
    struct repair_opts opts = {
        .ring = up->opts.cfg->ring,
        .self = up->opts.self,
        .client = client,
        .transport = transport,
        .clock = up->opts.clock,
        .replica = up->replica,
        .node_name = node_name,
        .node_name_arg = up,
        .reindex = reindex,
        .reindex_arg = up,
        .tombstone_age_us = up->opts.tombstone_age_us,
        .accept_data_loss = up->opts.accept_data_loss,
    };

    return repair_new(&opts, &up->repair);
}

static void guest_stop(void *arg, void (*idle)(void *idle_arg), void *idle_arg)
{
    struct upkeep *up = arg;

    repair_stop(up->repair, idle, idle_arg);
    if (repair_idle(up->repair))
        idle(idle_arg);
}

void upkeep_guest(struct upkeep *up, struct replica *replica, struct cluster_opts *out)
{
    up->replica = replica;
    out->self_state = self_state;
    out->on_hello = on_hello;
    out->guest_start = guest_start;
    out->guest_stop = guest_stop;
    out->arg = up;
}

/* --- life ------------------------------------------------------------------------------------- */

int upkeep_new(const struct upkeep_opts *opts, struct upkeep **out)
{
    struct upkeep *up = calloc(1, sizeof(*up));

    if (up == NULL)
        return -ENOMEM;
    up->opts = *opts;
    *out = up;
    return 0;
}

int upkeep_start(struct upkeep *up, struct cluster *cluster)
{
    struct scrub_opts opts = {
        .replica = up->replica,
        .clock = up->opts.clock,
        .period_us = up->opts.scrub_period_us,
        .on_indexed = on_indexed,
        .old_counter = old_counter,
        .on_tombstone = on_tombstone,
        .has_room = has_room,
        .arg = up,
    };

    struct scrub *scrub;
    int err;

    atomic_store(&up->cluster, cluster);
    err = scrub_new(&opts, &scrub);
    if (err == 0)
        atomic_store(&up->scrub, scrub);
    return err;
}

void upkeep_stop(struct upkeep *up)
{
    struct scrub *scrub = up == NULL ? NULL : atomic_load(&up->scrub);

    if (scrub != NULL)
        scrub_stop(scrub);
}

void upkeep_free(struct upkeep *up)
{
    if (up == NULL)
        return;
    scrub_free(atomic_load(&up->scrub));
    repair_free(up->repair);
    free(up);
}

void upkeep_get(struct upkeep *up, struct repair_progress *repair, struct scrub_progress *scrub)
{
    struct scrub *s = atomic_load(&up->scrub);

    repair_get_progress(up->repair, repair);
    *scrub = (struct scrub_progress){0};
    if (s != NULL)
        scrub_get_progress(s, scrub);
}

/*
 * sim_node.c - nodes: a process with a replica and the repair beside it, over a disk that outlives
 * it.
 */
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/lib/sim.h"

#define INDEX_WITHIN_US 50000u /* the digests are built so soon after a start */

/* --- what a node does of its own accord ------------------------------------------------------ */

static void self_state(void *arg, uint64_t *incarnation, uint8_t *state)
{
    const struct sim_node *n = arg;

    *incarnation = replica_incarnation(n->replica);
    *state = replica_state(n->replica);
}

static void on_hello(void *arg, unsigned node, const struct hello_result *res)
{
    struct sim_node *n = arg;

    if (res->err == 0 && node != n->index)
        (void)replica_learn(n->replica, node, &res->answer);
    repair_on_hello(n->repair, node, res);
}

static void count_all(struct sim_node *n)
{
    int err = replica_index(n->replica, NULL);

    assert(err == 0);
    repair_indexed(n->repair);
}

static void on_index(struct timer *t)
{
    count_all(container_of(t, struct sim_node, index_timer));
}

/* The digests are to be counted anew: soon, as it would be by a thread. */
static void reindex(void *arg)
{
    struct sim_node *n = arg;

    sim_timer_set(n->sim, &n->index_timer,
                  n->sim->now_us + rng_below(&n->sim->rng, INDEX_WITHIN_US), n->agent);
}

/* Under the lock of the key: told later. */
static void on_damage(void *arg, struct span key)
{
    struct sim_node *n = arg;

    if (n->repair == NULL)
        return;
    for (unsigned i = 0; i < n->n_damaged; i++) {
        if (span_eq(buf_span(&n->damaged[i]), key))
            return;
    }
    n->damaged = realloc(n->damaged, (n->n_damaged + 1) * sizeof *n->damaged);
    assert(n->damaged != NULL);
    n->damaged[n->n_damaged] = (struct buf){0};
    buf_add_span(&n->damaged[n->n_damaged++], key);
    sim_timer_set(n->sim, &n->damage_timer, n->sim->now_us, n->agent);
}

static void forget_damaged(struct sim_node *n)
{
    while (n->n_damaged > 0)
        buf_fini(&n->damaged[--n->n_damaged]);
}

static void on_damage_timer(struct timer *t)
{
    struct sim_node *n = container_of(t, struct sim_node, damage_timer);

    for (unsigned i = 0; i < n->n_damaged; i++)
        repair_damaged(n->repair, buf_span(&n->damaged[i]));
    forget_damaged(n);
}

static void on_tombstone(void *arg, struct span key, struct ballot version)
{
    struct sim_node *n = arg;

    if (!sim_lies_tombstone(n, key, version) && repair_has_room(n->repair))
        repair_tombstone(n->repair, key, version);
}

static void on_scrub(struct timer *t)
{
    struct sim_node *n = container_of(t, struct sim_node, scrub_timer);
    struct scrub_result res = {.done = false};
    uint64_t bytes = rng_chance(&n->sim->rng, 500) ? 1 : 1 << 20; /* one key, or all */

    (void)replica_scrub(n->replica, &n->scrubbed, bytes, repair_old_counter(n->repair),
                        on_tombstone, n, &res);
    if (res.done)
        buf_clear(&n->scrubbed);
    if (replica_index_needed(n->replica))
        count_all(n);
    sim_timer_set(n->sim, t, n->sim->now_us + n->sim->opts.scrub_us, n->agent);
}

static const char *node_name(void *arg, unsigned node)
{
    static char names[4][12];
    static unsigned turn;
    char *name = names[turn++ % 4];

    (void)arg;
    snprintf(name, sizeof names[0], "node-%02u", node + 1);
    return name;
}

static void agent_start(struct sim_node *n)
{
    const struct sim_opts *opts = &n->sim->opts;
    struct sim_client *agent = sim_client_of_node(n->sim, n->index, opts->repair_timeout_ms);
    struct repair_opts repair = {
        .ring = n->sim->ring,
        .self = n->index,
        .client = agent->client,
        .transport = &agent->transport,
        .clock = &agent->clock.clock,
        .replica = n->replica,
        .node_name = node_name,
        .reindex = reindex,
        .reindex_arg = n,
        .tombstone_age_us = opts->tombstone_age_us,
        .accept_data_loss = n->accept_data_loss,
    };
    struct prober_opts prober = {
        .client = agent->client,
        .transport = &agent->transport,
        .health = agent->health,
        .n_nodes = opts->n_nodes,
        .self = n->index,
        .self_state = self_state,
        .on_result = on_hello,
        .arg = n,
    };
    int err = repair_new(&repair, &n->repair);

    assert(err == 0);
    err = prober_new(&prober, &n->prober);
    assert(err == 0);
    n->agent = agent;
    reindex(n);
    sim_timer_set(n->sim, &n->scrub_timer, n->sim->now_us + rng_below(&n->sim->rng, opts->scrub_us),
                  agent);
}

static void nothing(void *arg)
{
    (void)arg;
}

/* It writes no more, and nothing of it gets out. */
static void agent_end(struct sim_node *n)
{
    struct sim_client *agent = n->agent;

    sim_note_repaired(n);
    agent->killed = true;
    agent->thaw_us = 0;
    sim_timer_clear(n->sim, &n->index_timer);
    sim_timer_clear(n->sim, &n->scrub_timer);
    sim_timer_clear(n->sim, &n->damage_timer);
    repair_stop(n->repair, nothing, NULL);
    prober_stop(n->prober, nothing, NULL);
    sim_client_hang_up(agent);
    for (unsigned i = 0; !repair_idle(n->repair) || !prober_idle(n->prober); i++) {
        assert(i < SIM_STEPS_TO_END);
        sim_step(n->sim); /* what was cancelled ends at once */
        sim_client_hang_up(agent);
    }
    repair_free(n->repair);
    prober_free(n->prober);
    sim_client_bury(agent);
    n->repair = NULL;
    n->prober = NULL;
    n->agent = NULL;
    forget_damaged(n);
    buf_fini(&n->scrubbed);
}

/* --- coming and going ------------------------------------------------------------------------ */

static void on_restart(struct timer *t)
{
    sim_node_start(container_of(t, struct sim_node, restart));
}

static void on_trapped(struct timer *t)
{
    struct sim_node *n = container_of(t, struct sim_node, trapped);

    sim_node_crash(n, rng_below(&n->sim->rng, 50000));
}

void sim_node_init(struct sim_node *n, struct sim *s, unsigned index)
{
    n->sim = s;
    n->index = index;
    n->restart.fire = on_restart;
    n->trapped.fire = on_trapped;
    n->index_timer.fire = on_index;
    n->scrub_timer.fire = on_scrub;
    n->damage_timer.fire = on_damage_timer;
    n->disk = sim_disk_new(s);
    sim_clock_init(&n->clock, s);
    if (s->opts.nodes_ahead)
        n->clock.wall_base += s->opts.clocks_apart_us;
    n->clock.slow = s->opts.slow_nodes ? 10 : 0;
    sim_node_start(n);
}

static void process_end(struct sim_node *n)
{
    struct replica *r = n->replica;

    n->outdated = sim_node_recovering(n);
    n->sim->n_superseded += replica_superseded(r);
    sim_disk_leave(n->disk);
    sim_timer_clear(n->sim, &n->trapped);
    if (n->agent != NULL)
        agent_end(n);
    n->replica = NULL;
    replica_close(r);
    n->thaw_us = 0;
}

void sim_node_fini(struct sim_node *n)
{
    sim_timer_clear(n->sim, &n->restart);
    if (n->replica != NULL)
        process_end(n);
    free(n->damaged);
    sim_disk_free(n->disk);
}

/* Does it vote at once, whatever it may have forgotten? */
static bool is_trusted(const struct sim_node *n)
{
    const struct sim_opts *opts = &n->sim->opts;

    if (n->n_starts == 1)
        return !opts->repair || !opts->new_cluster;
    return opts->lies.forget_disk || opts->lies.vote_while_recovering;
}

void sim_node_start(struct sim_node *n)
{
    struct replica_opts opts = {
        .ring = n->sim->ring,
        .self = n->index,
        .clock = &n->clock.clock,
        .distrusted = n->power_lost,
        .on_damage = on_damage,
        .on_damage_arg = n,
    };
    struct err why = {""};
    int err;

    sim_timer_clear(n->sim, &n->restart);
    if (n->replica != NULL)
        return;
    if ((n->n_starts++ > 0 && n->sim->opts.lies.forget_floor) || n->forgets_once)
        sim_disk_forget_floor(n->disk);
    n->forgets_once = false;
    opts.store = sim_disk_open(n->disk);
    opts.seed = rng_next(&n->sim->rng);
    n->power_lost = false;
    err = replica_open(&opts, &n->replica, &why);
    if (err == 0 && replica_recovering(n->replica) && is_trusted(n))
        err = replica_found(n->replica, NULL, 0);
    if (err < 0) {
        fprintf(stderr, "sim: node %u does not start: %s\n", n->index, why.msg);
        abort();
    }
    if (n->sim->opts.repair)
        agent_start(n);
}

void sim_node_crash(struct sim_node *n, uint64_t down_us)
{
    if (n->replica == NULL)
        return;
    process_end(n);
    if (n->sim->opts.lies.forget_disk)
        sim_node_wipe(n);
    sim_timer_set(n->sim, &n->restart, n->sim->now_us + down_us, NULL);
}

void sim_node_freeze(struct sim_node *n, uint64_t until_us)
{
    n->thaw_us = until_us;
    if (n->agent != NULL)
        n->agent->thaw_us = until_us;
}

void sim_node_wipe(struct sim_node *n)
{
    assert(n->replica == NULL);
    sim_disk_wipe(n->disk);
    n->outdated = true;
    n->power_lost = false;
}

void sim_node_lose_power(struct sim_node *n)
{
    assert(n->replica == NULL);
    if (n->sim->opts.sync_us == 0)
        return; /* all that was acknowledged was synced */
    sim_disk_lose_power(n->disk);
    n->outdated = true;
    n->power_lost = true;
}

bool sim_node_recovering(const struct sim_node *n)
{
    return n->replica != NULL ? !replica_votes(n->replica) : n->outdated;
}

/* --- serving --------------------------------------------------------------------------------- */

/*
 * In one piece or several, as it would come from a socket; at times the sender goes away in the
 * middle.
 */
static int feed(struct sim_node *n, struct span request, struct reply *out)
{
    struct rng *rng = &n->sim->rng;
    bool whole = !rng_chance(rng, 100), cut = rng_chance(rng, n->sim->net.lose / 4);
    struct replica_request *rq;
    size_t end = cut ? rng_below(rng, request.len) : request.len;

    if (replica_begin(n->replica, request.len, &rq) < 0)
        return -ECONNRESET;
    for (size_t pos = 0, part; pos < end; pos += part) {
        part = whole ? end - pos : rng_between(rng, 1, end - pos);
        if (replica_feed(rq, span_of(request.data + pos, part)) < 0)
            break; /* end() tells why */
    }
    if (cut) {
        replica_abort(rq);
        return -ECONNRESET;
    }
    replica_end(rq, out);
    return 0;
}

static int read_reply(struct sim_node *n, struct reply *reply, struct blob **out)
{
    uint64_t len = reply_len(reply), pos = 0;
    struct blob *bytes = blob_new(len);

    assert(bytes != NULL);
    while (pos < len) {
        int64_t got =
            reply_read(reply, pos, bytes->data + pos, rng_between(&n->sim->rng, 1, len - pos));

        if (got < 0) {
            blob_unref(bytes);
            return -ECONNRESET;
        }
        assert(got > 0);
        pos += (uint64_t)got;
    }
    *out = bytes;
    return 0;
}

int sim_node_serve(struct sim_node *n, const struct sim_client *from, struct span request,
                   struct blob **out)
{
    struct reply reply = REPLY_NONE;
    struct blob *answer;
    int err;

    if (sim_lies_before(n, from, request, out))
        return 0;
    err = feed(n, request, &reply);
    if (err == 0)
        err = read_reply(n, &reply, &answer);
    reply_fini(&reply);
    if (err == 0)
        answer = sim_lies_after(n, from, request, answer);
    if (err == 0 && sim_disk_dead(n->disk)) { /* it died in the midst of this */
        blob_unref(answer);
        err = -ECONNRESET;
    }
    if (err == 0)
        *out = answer;
    return err;
}

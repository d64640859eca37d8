/*
 * sim_lies.c - rules of the protocol broken on purpose, between the network and a node: what it
 * does with a request, and what is told of its answer. None of this is in the programs.
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "tests/lib/sim.h"

/* Who sent the first ACCEPT of a write: settling is another client doing it. */
struct writer {
    uint64_t op_id;
    unsigned client;
};

/* Whether what is settled under this ballot was held by a majority already. */
struct settled {
    struct ballot ballot;
    bool by_majority;
};

struct sim_rumours {
    struct writer *writers;
    unsigned n_writers;
    struct settled *settled;
    unsigned n_settled;
};

static struct sim_rumours *rumours(struct sim *s)
{
    if (s->rumours == NULL)
        s->rumours = sim_alloc(sizeof *s->rumours);
    return s->rumours;
}

void sim_lies_free(struct sim *s)
{
    if (s->rumours == NULL)
        return;
    free(s->rumours->writers);
    free(s->rumours->settled);
    free(s->rumours);
}

static bool is_any(const struct sim_lies *l)
{
    return l->ignore_settling || l->settle_lazily || l->hide_own_writes || l->accept_superseded ||
           l->hide_incarnations || l->copy_blindly || l->drop_promises;
}

/* --- who wrote what -------------------------------------------------------------------------- */

/* UINT_MAX: nobody. */
static unsigned writer_of(struct sim *s, uint64_t op_id)
{
    const struct sim_rumours *r = rumours(s);

    for (unsigned i = 0; i < r->n_writers; i++) {
        if (r->writers[i].op_id == op_id)
            return r->writers[i].client;
    }
    return UINT_MAX;
}

/* Noted when it passes for the first time. */
static void note_writer(struct sim *s, const struct message *m, unsigned client)
{
    struct sim_rumours *r = rumours(s);

    if (m->kind != MSG_ACCEPT || m->record.n_recent == 0 ||
        writer_of(s, m->record.recent[0]) != UINT_MAX)
        return;
    r->writers = realloc(r->writers, (r->n_writers + 1) * sizeof *r->writers);
    assert(r->writers != NULL);
    r->writers[r->n_writers++] = (struct writer){m->record.recent[0], client};
}

static bool is_settling(struct sim *s, const struct message *m, const struct sim_client *from)
{
    return from->node == SIM_NO_NODE && m->kind == MSG_ACCEPT && m->record.n_recent > 0 &&
           writer_of(s, m->record.recent[0]) != from->index;
}

/* Is what this message settles, under whatever version, the newest of a majority? */
static bool majority_has(struct sim *s, const struct message *m)
{
    const unsigned *replicas = ring_replicas(s->ring, m->key);
    unsigned n = ring_n_replicas(s->ring), n_have = 0;
    struct ballot version = BALLOT_NONE;

    for (unsigned i = 0; i < n; i++) {
        struct record_copy c = {0};

        if (sim_disk_get(s->nodes[replicas[i]].disk, m->key, &c, NULL) &&
            c.rec.seq == m->record.seq && c.rec.n_recent > 0 &&
            c.rec.recent[0] == m->record.recent[0] &&
            (n_have == 0 || ballot_cmp(c.rec.version, version) == 0)) {
            version = c.rec.version;
            n_have++;
        }
        record_copy_fini(&c);
    }
    return n_have >= n / 2 + 1;
}

/* Decided when the first of the messages arrives. */
static bool is_needless(struct sim *s, const struct message *m)
{
    struct sim_rumours *r = rumours(s);
    struct settled fresh = {m->record.version, false};

    for (unsigned i = 0; i < r->n_settled; i++) {
        if (ballot_cmp(r->settled[i].ballot, m->record.version) == 0)
            return r->settled[i].by_majority;
    }
    fresh.by_majority = majority_has(s, m);
    r->settled = realloc(r->settled, (r->n_settled + 1) * sizeof *r->settled);
    assert(r->settled != NULL);
    r->settled[r->n_settled++] = fresh;
    return fresh.by_majority;
}

/* --- false answers --------------------------------------------------------------------------- */

static struct blob *encoded(struct span key, const struct answer *a, struct span rest)
{
    struct buf bytes = {0};
    struct blob *out;

    answer_encode(&bytes, key, a);
    buf_add_span(&bytes, rest);
    out = blob_new(bytes.len);
    assert(out != NULL);
    memcpy(out->data, bytes.data, bytes.len);
    buf_fini(&bytes);
    return out;
}

static struct blob *accepted(struct sim_node *n)
{
    struct clock *clock = &n->clock.clock;
    struct answer a = {
        .kind = ANS_ACCEPTED,
        .incarnation = replica_incarnation(n->replica),
        .clock_ms = clock->mono_us(clock) / 1000,
    };

    return encoded(span_of(NULL, 0), &a, span_of(NULL, 0));
}

/* Takes the client's own writes out of what a promise says of its record. */
static void none_of_yours(struct sim *s, struct answer *a, unsigned client)
{
    uint8_t n = 0;

    for (unsigned i = 0; i < a->record.n_recent; i++) {
        if (writer_of(s, a->record.recent[i]) != client)
            a->record.recent[n++] = a->record.recent[i];
    }
    a->record.seq -= a->record.n_recent - n;
    a->record.n_recent = n;
}

/* Past all promises. */
static void store_blindly(struct sim_node *n, const struct message *m, struct span value)
{
    struct store *inside = sim_disk_inside(n->disk);
    struct buf record = {0};
    int err;

    record_encode(&record, m->key, &m->record);
    err =
        inside->ops->put(inside, m->key, buf_span(&record), value, NULL, m->flags & MSG_SAME_VALUE);
    assert(err == 0);
    buf_fini(&record);
}

/* --- what nodes call ------------------------------------------------------------------------- */

bool sim_lies_before(struct sim_node *n, const struct sim_client *from, struct span request,
                     struct blob **out)
{
    const struct sim_lies *lies = &n->sim->opts.lies;
    struct message m;
    size_t head_len;
    int err;

    if (!is_any(lies))
        return false;
    err = message_decode(request, &m, &head_len);
    assert(err == 0);
    note_writer(n->sim, &m, from->index);
    if (!is_settling(n->sim, &m, from))
        return false;
    if (!lies->ignore_settling &&
        !(lies->settle_lazily && m.record.version.proposer == from->proposer &&
          is_needless(n->sim, &m)))
        return false;
    *out = accepted(n);
    return true;
}

struct blob *sim_lies_after(struct sim_node *n, const struct sim_client *from, struct span request,
                            struct blob *answer)
{
    const struct sim_lies *lies = &n->sim->opts.lies;
    struct span bytes = span_of(answer->data, answer->len), rest;
    struct blob *out = answer;
    struct message m;
    struct answer a;
    size_t head_len, request_len;
    bool newer;

    if (!is_any(lies) || message_decode(request, &m, &request_len) < 0)
        return answer;
    if (answer_decode(bytes, m.key, &a, &head_len) < 0)
        return answer;
    rest = span_of(bytes.data + head_len, bytes.len - head_len);
    newer = m.kind == MSG_ACCEPT && a.kind == ANS_REFUSE &&
            ballot_cmp(m.record.version, sim_disk_version(n->disk, m.key)) > 0;
    if (lies->hide_own_writes && a.kind == ANS_PROMISE) {
        none_of_yours(n->sim, &a, from->index);
        out = encoded(m.key, &a, rest);
    } else if (lies->hide_incarnations && a.kind != ANS_HELLO && a.n_known > 0) {
        a.n_known = 0;
        a.known = span_of(NULL, 0);
        out = encoded(a.kind == ANS_PROMISE || a.kind == ANS_STATE ? m.key : span_of(NULL, 0), &a,
                      rest);
    } else if (lies->accept_superseded && m.kind == MSG_ACCEPT && a.kind == ANS_REFUSE && !newer) {
        out = accepted(n);
    } else if (lies->copy_blindly && newer && from->node != SIM_NO_NODE &&
               m.record.version.proposer != from->proposer) {
        store_blindly(n, &m, span_of(request.data + request_len, request.len - request_len));
        out = accepted(n);
    } else if (lies->drop_promises && m.kind == MSG_DROP && a.kind == ANS_ACCEPTED) {
        n->forgets_once = true;
        sim_timer_set(n->sim, &n->trapped, 0, NULL);
    }
    if (out != answer)
        blob_unref(answer);
    return out;
}

static void dropped(void *arg, struct ask_result *res)
{
    (void)arg;
    (void)res;
}

bool sim_lies_tombstone(struct sim_node *n, struct span key, struct ballot version)
{
    const unsigned *replicas = ring_replicas(n->sim->ring, key);
    struct message m = {.kind = MSG_DROP, .key = key, .ballot = version};
    unsigned n_all = ring_n_replicas(n->sim->ring), n_have = 0;

    if (!n->sim->opts.lies.drop_some)
        return false;
    for (unsigned i = 0; i < n_all; i++) {
        struct sim_disk *d = n->sim->nodes[replicas[i]].disk;

        n_have += ballot_cmp(sim_disk_version(d, key), version) == 0;
    }
    for (unsigned i = 0; i < n_all && n_have > n_all / 2; i++) {
        struct ask_args args = {.node = replicas[i], .m = &m, .timeout_ms = 300};

        if (client_ask(n->agent->client, &args, dropped, NULL) == NULL)
            abort();
    }
    return true;
}

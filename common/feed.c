/*
 * feed.c - follows the change feeds of all nodes: who of them counts, and what that comes to.
 *
 * A node's stream begins with a greeting, which tells whose it is and which changes there were by
 * then; when those have been told it is *current*. The node *counts* from then on, until something
 * may have been missed: a gap, another life, the end of its process, or silence. A connection that
 * merely broke is taken up again behind the last change that came; if that succeeds before the
 * silence has lasted too long nothing was missed, and the node has counted all the time.
 */
#include "common/feed.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/json.h"
#include "common/keypath.h"
#include "common/limits.h"

/* Pauses before a stream is opened again: at once, then doubling from the least to the most. */
#define AGAIN_MIN_US 50000u
#define AGAIN_MAX_US 500000u
#define N_DOUBLED 4u
/* And to a node that will not have us, or is not the one we mean. */
#define AGAIN_REFUSED_US 2000000u
/* Every byte of a key as \u0000, and what else there is in a line. */
#define LINE_LEN_MAX (6u * KEY_LEN_MAX + 1024u)

enum { POSITION, LATEST, NODE, RING, GAP, KEY, VERSION, KIND, N_MEMBERS };

struct follow {
    struct feed *feed;
    unsigned node;
    struct stream stream;
    bool open;
    bool greeted, current; /* of the open stream */
    bool counts;
    struct ballot position; /* what came last: (life, number); none: never */
    struct ballot latest;   /* by the greeting: up to there it is not current */
    uint64_t opened_us;
    uint64_t came_us;   /* the last bytes, or the opening */
    uint64_t heard_us;  /* the last bytes while current */
    unsigned n_failed;  /* since one was current for a while */
    struct timer again; /* opens the next stream */
    struct timer silence;
    struct buf in; /* an unfinished line */
};

struct feed {
    struct feed_opts opts;
    const struct ring *ring;
    struct health *health;
    bool live, stopped;
    struct json_member members[N_MEMBERS]; /* scratch: of the line being read */
    bool *counting;                        /* scratch */
    unsigned n;
    struct follow nodes[];
};

static uint64_t now_us(const struct feed *f)
{
    return transport_now_us(f->opts.transport);
}

/* --- who counts ------------------------------------------------------------------------------- */

static bool covered(struct feed *f)
{
    for (unsigned i = 0; i < f->n; i++)
        f->counting[i] = f->nodes[i].counts;
    return ring_covered(f->ring, f->counting);
}

static void set_live(struct feed *f, bool live)
{
    if (f->live == live)
        return;
    f->live = live;
    f->opts.live(f->opts.arg, live);
}

static void lose(struct follow *fl)
{
    struct feed *f = fl->feed;

    if (!fl->counts)
        return;
    fl->counts = false;
    health_follow(f->health, fl->node, 0); /* first: from here on nothing is read on its word */
    set_live(f, false);
    set_live(f, covered(f));
}

static void gain(struct follow *fl)
{
    struct feed *f = fl->feed;

    fl->counts = true;
    health_follow(f->health, fl->node, now_us(f));
    set_live(f, covered(f));
}

/* --- streams ---------------------------------------------------------------------------------- */

static void watch_silence(struct follow *fl)
{
    struct transport *t = fl->feed->opts.transport;
    uint64_t due = UINT64_MAX;

    if (fl->counts)
        due = fl->heard_us + FEED_SILENT_US;
    if (fl->open && fl->came_us + FEED_SILENT_US < due)
        due = fl->came_us + FEED_SILENT_US;
    if (due == UINT64_MAX)
        t->ops->timer_clear(t, &fl->silence);
    else
        t->ops->timer_set(t, &fl->silence, due);
}

static void open_again(struct follow *fl, int err)
{
    struct transport *t = fl->feed->opts.transport;
    uint64_t pause = 0;

    if (err != 0 && err != -ECONNRESET && err != -ECONNREFUSED && err != -ETIMEDOUT)
        pause = AGAIN_REFUSED_US;
    else if (fl->n_failed > 0)
        pause = fl->n_failed > N_DOUBLED ? AGAIN_MAX_US : AGAIN_MIN_US << (fl->n_failed - 1);
    fl->n_failed++;
    t->ops->timer_set(t, &fl->again, now_us(fl->feed) + pause);
}

/* The stream has ended, or is to. err: why. */
static void stream_over(struct follow *fl, int err)
{
    struct transport *t = fl->feed->opts.transport;

    if (fl->open)
        t->ops->stream_close(t, &fl->stream);
    fl->open = false;
    buf_clear(&fl->in);
    if (err != -ECONNRESET) /* its process may be there all the same, and know where we were */
        lose(fl);
    open_again(fl, err);
    watch_silence(fl);
}

static void on_ended(struct stream *s, int err)
{
    struct follow *fl = container_of(s, struct follow, stream);

    fl->open = false;
    if (err == -ECANCELED) {
        lose(fl); /* the transport ends */
        return;
    }
    stream_over(fl, err);
}

static void on_silence(struct timer *t)
{
    struct follow *fl = container_of(t, struct follow, silence);
    uint64_t now = now_us(fl->feed);

    if (fl->counts && now >= fl->heard_us + FEED_SILENT_US)
        lose(fl);
    if (fl->open && now >= fl->came_us + FEED_SILENT_US)
        stream_over(fl, -ETIMEDOUT);
    else
        watch_silence(fl);
}

/* --- lines ------------------------------------------------------------------------------------ */

static int read_ballot(const struct json_member *m, struct ballot *out)
{
    char text[BALLOT_TEXT_LEN];

    if (!m->given || m->value.len != sizeof(text) - 1)
        return -EBADMSG;
    memcpy(text, m->value.data, sizeof(text) - 1);
    text[sizeof(text) - 1] = '\0';
    return ballot_parse(text, out) == 0 ? 0 : -EBADMSG;
}

static bool is_text(const struct json_member *m, const char *text)
{
    return m->given && span_eq(buf_span(&m->value), span_str(text));
}

/* Does the greeting come from the node that we mean, and does it place keys as we do? */
static bool is_node(const struct follow *fl)
{
    const struct client_opts *c = client_options(fl->feed->opts.client);
    const struct json_member *m = fl->feed->members;
    char ring[17];

    (void)snprintf(ring, sizeof(ring), "%016" PRIx64, ring_fingerprint(fl->feed->ring));
    if (!is_text(&m[RING], ring))
        return false;
    return c->node_name == NULL || is_text(&m[NODE], c->node_name(c->node_name_arg, fl->node));
}

static int take_greeting(struct follow *fl, struct ballot position)
{
    struct ballot latest;
    int err = read_ballot(&fl->feed->members[LATEST], &latest);

    if (err == 0 && !is_node(fl))
        err = -EBADE;
    if (err == 0 && (latest.counter != position.counter || latest.proposer < position.proposer))
        err = -EBADMSG;
    if (err < 0)
        return err;
    if (ballot_cmp(position, fl->position) != 0)
        lose(fl); /* it does not go on where it ended */
    fl->greeted = true;
    fl->position = position;
    fl->latest = latest;
    return 0;
}

static int take_change(struct follow *fl, struct ballot position)
{
    struct feed *f = fl->feed;
    const struct json_member *m = f->members;
    struct span key = buf_span(&m[KEY].value);
    struct ballot version;
    int err = read_ballot(&m[VERSION], &version);

    if (err == 0 && (key_check(key) != 0 || position.proposer == fl->position.proposer))
        err = -EBADMSG;
    if (err == 0 && !is_text(&m[KIND], "put") && !is_text(&m[KIND], "delete"))
        err = -EBADMSG;
    if (err < 0)
        return err;
    fl->position = position;
    f->opts.changed(f->opts.arg, key, version, is_text(&m[KIND], "put") ? FEED_PUT : FEED_DELETE);
    return 0;
}

static int take_line(struct follow *fl, struct span line)
{
    struct json_member *m = fl->feed->members;
    struct ballot position;
    int err = json_read(line, m, N_MEMBERS);

    if (err == 0)
        err = read_ballot(&m[POSITION], &position);
    if (err < 0)
        return err;
    if (!fl->greeted)
        return take_greeting(fl, position);
    if (m[GAP].given) {
        lose(fl);
        fl->position = position;
        return 0;
    }
    if (position.counter != fl->position.counter || position.proposer < fl->position.proposer)
        return -EBADMSG;
    if (m[KEY].given)
        return take_change(fl, position);
    fl->position = position; /* a heartbeat, or what a later node says beside changes */
    return 0;
}

/* Takes the whole lines off in. */
static int take_lines(struct follow *fl)
{
    size_t from = 0;
    int err = fl->in.err;

    while (err == 0 && from < fl->in.len) {
        const uint8_t *start = fl->in.data + from;
        const uint8_t *end = memchr(start, '\n', fl->in.len - from);

        if (end == NULL)
            break;
        err = take_line(fl, span_of(start, (size_t)(end - start)));
        from += (size_t)(end - start) + 1;
    }
    if (err == 0 && fl->in.len - from > LINE_LEN_MAX)
        err = -EBADMSG;
    if (err < 0)
        return err;
    if (from > 0) {
        memmove(fl->in.data, fl->in.data + from, fl->in.len - from);
        fl->in.len -= from;
    }
    return 0;
}

static void on_data(struct stream *s, struct span bytes)
{
    struct follow *fl = container_of(s, struct follow, stream);
    uint64_t now = now_us(fl->feed);
    int err;

    buf_add_span(&fl->in, bytes);
    err = take_lines(fl);
    if (err < 0) {
        stream_over(fl, err);
        return;
    }
    fl->came_us = now;
    if (fl->greeted && fl->position.proposer >= fl->latest.proposer)
        fl->current = true;
    if (fl->current) {
        fl->heard_us = now;
        if (now >= fl->opened_us + AGAIN_MAX_US)
            fl->n_failed = 0;
        if (!fl->counts)
            gain(fl);
    }
    watch_silence(fl);
}

static void on_again(struct timer *timer)
{
    struct follow *fl = container_of(timer, struct follow, again);
    struct transport *t = fl->feed->opts.transport;
    char target[sizeof("/watch?after=") + BALLOT_TEXT_LEN], after[BALLOT_TEXT_LEN];
    int err;

    ballot_text(fl->position, after);
    (void)snprintf(
        target, sizeof(target), "/watch%s%s",
        ballot_is_none(fl->position) ? "" : "?after=", ballot_is_none(fl->position) ? "" : after);
    fl->greeted = fl->current = false;
    fl->came_us = fl->opened_us = now_us(fl->feed);
    fl->stream.target = target;
    err = t->ops->stream_open(t, &fl->stream);
    fl->open = err == 0;
    if (err < 0)
        stream_over(fl, err);
    else
        watch_silence(fl);
}

/* --- from birth to death ---------------------------------------------------------------------- */

int feed_new(const struct feed_opts *opts, struct feed **out)
{
    const struct client_opts *c = client_options(opts->client);
    unsigned n = ring_n_nodes(c->ring);
    struct feed *f = calloc(1, sizeof(*f) + n * sizeof(f->nodes[0]));

    if (f == NULL)
        return -ENOMEM;
    f->opts = *opts;
    f->ring = c->ring;
    f->health = c->health;
    f->counting = calloc(n, sizeof(*f->counting));
    if (f->counting == NULL) {
        free(f);
        return -ENOMEM;
    }
    f->members[POSITION].name = "position";
    f->members[LATEST].name = "latest";
    f->members[NODE].name = "node";
    f->members[RING].name = "ring";
    f->members[GAP].name = "gap";
    f->members[KEY] = (struct json_member){.name = "key", .coded = true};
    f->members[VERSION].name = "version";
    f->members[KIND].name = "kind";
    f->n = n;
    for (unsigned i = 0; i < n; i++) {
        f->nodes[i] = (struct follow){
            .feed = f,
            .node = i,
            .stream = {.node = i, .data = on_data, .ended = on_ended},
            .again.fire = on_again,
            .silence.fire = on_silence,
        };
        opts->transport->ops->timer_set(opts->transport, &f->nodes[i].again, 0);
    }
    *out = f;
    return 0;
}

void feed_stop(struct feed *f, void (*idle)(void *idle_arg), void *idle_arg)
{
    struct transport *t = f->opts.transport;

    assert(!f->stopped);
    f->stopped = true;
    for (unsigned i = 0; i < f->n; i++) {
        struct follow *fl = &f->nodes[i];

        t->ops->timer_clear(t, &fl->again);
        t->ops->timer_clear(t, &fl->silence);
        if (fl->open)
            t->ops->stream_close(t, &fl->stream);
        fl->open = false;
        health_follow(f->health, i, 0);
    }
    idle(idle_arg);
}

void feed_free(struct feed *f)
{
    if (f == NULL)
        return;
    for (unsigned i = 0; i < f->n; i++)
        buf_fini(&f->nodes[i].in);
    json_members_fini(f->members, N_MEMBERS);
    free(f->counting);
    free(f);
}

/*
 * fuzz_listing.c - the client's listing, fed with the answers of nodes of which some say anything.
 *
 * Whatever they say: it ends in its time, and a page that it gives is in order, within what was
 * asked for, each name once, and gets on. Where one of three nodes answers what is no answer (see
 * net.h), the page also has just the keys there are.
 *
 * Input: hostile nodes (bits), lies (u8); for each key what each node has of it (u8); the listing:
 * how (u8: 1 roll up, 2 another prefix, 4 another position, 8 another limit), then fates, see
 * net.c.
 */
#include <errno.h>
#include <string.h>

#include "tests/fuzz/net.h"

#define PAGES_MAX 12u

struct run {
    struct net net;
    bool live[GRAMMAR_KEYS]; /* what a listing has to say */
    struct list_args args;
    bool done, more;
    int err;
    struct buf names; /* of all pages: u16 bytes, one behind the other */
    struct buf next;
};

/* --- what there is ---------------------------------------------------------------------------- */

/*
 * A majority at least has version 1, alive or dead; one node may have nothing or something older.
 */
static void put_key(struct run *r, unsigned key, unsigned what)
{
    struct record old = {.version = {1, 1}}, rec = {.version = {2, 1}};
    unsigned odd = what / 8 % 4; /* the node that is behind; 3: none */

    if (what % 8 == 7) /* nobody ever wrote it */
        return;
    if (what & 1)
        rec.flags = RECORD_TOMBSTONE;
    if (what & 2)
        old.flags = RECORD_TOMBSTONE;
    for (unsigned node = 0; node < NET_NODES; node++) {
        if (node != odd)
            net_put(&r->net, node, grammar_key(key), &rec, span_of(NULL, 0));
        else if (what & 4)
            net_put(&r->net, node, grammar_key(key), &old, span_of(NULL, 0));
    }
    r->live[key] = !(what & 1);
}

/* --- what comes ------------------------------------------------------------------------------- */

static bool next_entry(struct cursor *c, struct entry *e)
{
    int more = entry_next(c, e);

    CLAIM(more >= 0);
    return more == 1;
}

static void claim_entry(const struct run *r, const struct entry *e, struct span name)
{
    const struct list_args *args = &r->args;
    struct span rest = span_of(name.data + args->prefix.len, name.len - args->prefix.len);

    CLAIM(span_has_prefix(name, args->prefix) && span_has_prefix(e->key, name));
    CLAIM(!(e->flags & RECORD_TOMBSTONE));
    CLAIM(span_cmp(name, args->start_after) > 0);
    if (!args->delimiter) {
        CLAIM(e->prefix_len == 0);
    } else if (e->prefix_len > 0) { /* up to the first '/' behind the prefix */
        CLAIM(rest.len > 0 && memchr(rest.data, '/', rest.len) == rest.data + rest.len - 1);
    } else {
        CLAIM(rest.len == 0 || memchr(rest.data, '/', rest.len) == NULL);
    }
}

static void claim_page(struct run *r, const struct list_result *res)
{
    struct cursor c = cursor_of(buf_span(&res->entries));
    struct span last = {0};
    struct entry e;
    unsigned n = 0;

    for (; next_entry(&c, &e); n++) {
        struct span name = span_of(e.key.data, e.prefix_len > 0 ? e.prefix_len : e.key.len);

        claim_entry(r, &e, name);
        CLAIM(last.data == NULL || span_cmp(name, last) > 0);
        last = name;
        buf_bytes16(&r->names, name);
    }
    CLAIM(n == res->n && n <= r->args.limit);
    if (res->more) /* it gets on */
        CLAIM(n > 0 && span_cmp(buf_span(&res->next), last) >= 0);
}

static void list_done(void *arg, struct list_result *res)
{
    struct run *r = arg;

    r->done = true;
    r->err = res->err;
    r->more = res->err == 0 && res->more;
    if (res->err < 0)
        return;
    claim_page(r, res);
    buf_clear(&r->next);
    buf_add_span(&r->next, buf_span(&res->next));
}

/* --- what should have come -------------------------------------------------------------------- */

static struct span name_of(const struct list_args *args, struct span key)
{
    const uint8_t *rest = key.data + args->prefix.len, *slash = NULL;

    if (args->delimiter && key.len > args->prefix.len)
        slash = memchr(rest, '/', key.len - args->prefix.len);
    return slash != NULL ? span_of(key.data, (size_t)(slash + 1 - key.data)) : key;
}

/* The names of all pages, from start_after on, are those of the live keys. */
static void claim_names(const struct run *r, struct span start_after)
{
    struct cursor c = cursor_of(buf_span(&r->names));
    struct span last = {0};

    for (unsigned i = 0; i < GRAMMAR_KEYS; i++) {
        struct span key = grammar_key(i), name;

        if (!r->live[i] || !span_has_prefix(key, r->args.prefix) || span_cmp(key, start_after) <= 0)
            continue;
        name = name_of(&r->args, key);
        if ((last.data != NULL && span_eq(name, last)) ||
            (name.len > r->args.prefix.len && r->args.delimiter && name.data[name.len - 1] == '/' &&
             span_has_prefix(start_after, name)))
            continue;
        last = name;
        CLAIM(span_eq(cursor_bytes16(&c), name));
    }
    CLAIM(c.err == 0 && cursor_left(&c) == 0);
}

/* Page after page, to the end or until one fails. */
static void list_all(struct run *r, struct span start_after)
{
    for (unsigned page = 0; page < PAGES_MAX; page++) {
        struct buf after = {0};

        buf_add_span(&after, page == 0 ? start_after : buf_span(&r->next));
        r->args.start_after = buf_span(&after);
        r->done = false;
        CLAIM(client_list(r->net.client, &r->args, list_done, r) != NULL);
        net_run(&r->net, &r->done, r->net.now_us + 1000 * NET_TIMEOUT_MS + 1000);
        buf_fini(&after);
        if (r->err < 0)
            return;
        if (!r->more) {
            if (!r->net.lies)
                claim_names(r, start_after);
            return;
        }
    }
    CLAIM(r->net.lies); /* there are only so many keys */
}

static void choose(struct run *r, struct input *in, struct span *start_after)
{
    static const char *const positions[] = {"", "a", "a/", "a/b", "a/b/", "a0", "b"};
    unsigned how = input_u8(in);

    r->args = (struct list_args){.delimiter = how & 1, .limit = 5};
    if (how & 2)
        r->args.prefix = span_str(positions[input_pick(in, 7)]);
    if (how & 4)
        *start_after = span_str(positions[input_pick(in, 7)]);
    if (how & 8)
        r->args.limit = 1 + input_pick(in, 20);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct input in = {data, size}, none = {0};
    struct run *r = calloc(1, sizeof *r);
    unsigned hostile = input_pick(&in, 8);
    struct span start_after = {0};

    CLAIM(r != NULL);
    net_init(&r->net, &in);
    r->net.lies = input_u8(&in) & 1;
    r->net.hostile = r->net.lies ? hostile : hostile & (~hostile + 1);
    for (unsigned i = 0; i < GRAMMAR_KEYS; i++)
        put_key(r, i, input_u8(&in));
    choose(r, &in, &start_after);
    list_all(r, start_after);
    if (!r->net.lies) { /* all come to reason: then it works */
        r->net.in = &none;
        r->net.hostile = 0;
        buf_clear(&r->names);
        list_all(r, start_after);
        CLAIM(r->err == 0);
    }
    net_fini(&r->net);
    buf_fini(&r->names);
    buf_fini(&r->next);
    free(r);
    return 0;
}

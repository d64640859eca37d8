/*
 * config_ring.c - a cluster.json as told to others: all of it, who keeps a key, its ring to someone
 * who holds another, and the sentence for people that he makes of it.
 */
#include "common/config.h"

#include <jansson.h>
#include <string.h>

#include "common/json.h"

/* Of many long ids only the number is told: an answer to a stranger stays small. */
#define IDS_LEN_MAX (64u << 10)
#define SHOWN_IDS_MAX 3u

const char *config_hash_name(const struct config *c)
{
    return c->hash == RING_FNV1A_MIX ? "fnv1a-mix" : "fnv1a";
}

void config_ring_json(const struct config *c, struct buf *out)
{
    struct json j = {.out = out};
    size_t ids_len = 0;

    for (unsigned i = 0; i < c->n_nodes; i++)
        ids_len += strlen(c->nodes[i].id) + 3;
    json_begin(&j, '{');
    json_key(&j, "hash");
    json_str(&j, span_str(config_hash_name(c)));
    json_key(&j, "virtual_nodes");
    json_u64(&j, c->virtual_nodes);
    json_key(&j, "replication_factor");
    json_u64(&j, c->replication_factor);
    json_key(&j, "n_nodes");
    json_u64(&j, c->n_nodes);
    if (ids_len <= IDS_LEN_MAX) {
        json_key(&j, "nodes");
        json_begin(&j, '[');
        for (unsigned i = 0; i < c->n_nodes; i++)
            json_str(&j, span_str(c->nodes[i].id));
        json_end(&j, ']');
    }
    json_end(&j, '}');
}

void config_json(const struct config *c, struct buf *out)
{
    struct json j = {.out = out};

    json_begin(&j, '{');
    json_key(&j, "nodes");
    json_begin(&j, '[');
    for (unsigned i = 0; i < c->n_nodes; i++) {
        json_begin(&j, '{');
        json_key(&j, "id");
        json_str(&j, span_str(c->nodes[i].id));
        json_key(&j, "addr");
        json_str(&j, span_str(c->nodes[i].addr));
        json_end(&j, '}');
    }
    json_end(&j, ']');
    json_key(&j, "replication_factor");
    json_u64(&j, c->replication_factor);
    json_key(&j, "virtual_nodes");
    json_u64(&j, c->virtual_nodes);
    json_key(&j, "hash");
    json_str(&j, span_str(config_hash_name(c)));
    json_key(&j, "max_value_size");
    json_u64(&j, c->max_value_size);
    json_end(&j, '}');
    buf_u8(out, '\n');
}

void config_owners_json(const struct config *cfg, struct span key, struct buf *out)
{
    const unsigned *nodes = ring_replicas(cfg->ring, key);
    struct json j = {.out = out};

    json_begin(&j, '{');
    json_field_key(&j, "key", key);
    json_key(&j, "replicas");
    json_begin(&j, '[');
    for (unsigned i = 0; i < ring_n_replicas(cfg->ring); i++) {
        json_begin(&j, '{');
        json_key(&j, "id");
        json_str(&j, span_str(cfg->nodes[nodes[i]].id));
        json_key(&j, "addr");
        json_str(&j, span_str(cfg->nodes[nodes[i]].addr));
        json_end(&j, '}');
    }
    json_end(&j, ']');
    json_end(&j, '}');
    buf_u8(out, '\n');
}

/* --- the sentence ----------------------------------------------------------------------------- */

static const char *file_name(const struct config *c)
{
    const char *slash = strrchr(c->path, '/');

    return slash != NULL ? slash + 1 : c->path;
}

static void add_number(struct buf *out, const struct config *c, const char *field,
                       const json_t *theirs, unsigned ours)
{
    if (!json_is_integer(theirs) || json_integer_value(theirs) == (json_int_t)ours)
        return;
    buf_addf(out, "; %s: %" JSON_INTEGER_FORMAT " there, %u in %s", field,
             json_integer_value(theirs), ours, file_name(c));
}

/* Ids that one side has and the other has not: the first few by name. */
struct only {
    struct buf names;
    unsigned n;
};

static void only_add(struct only *o, const char *id)
{
    if (++o->n <= SHOWN_IDS_MAX)
        buf_addf(&o->names, "%s%.40s", o->n == 1 ? "" : ", ", id);
}

static void only_tell(struct only *o, struct buf *out, const char *lead, const char *where)
{
    if (o->n > SHOWN_IDS_MAX)
        buf_addf(&o->names, " and %u more", o->n - SHOWN_IDS_MAX);
    if (o->n > 0)
        buf_addf(out, "%s%.*s only %s", lead, (int)o->names.len, (const char *)o->names.data,
                 where);
    buf_fini(&o->names);
}

static void add_nodes(struct buf *out, const struct config *c, const json_t *theirs)
{
    struct only there = {0}, here = {0};
    json_t *known = json_object();
    const char *id;

    for (size_t i = 0; i < json_array_size(theirs); i++) {
        id = json_string_value(json_array_get(theirs, i));
        if (id == NULL || known == NULL)
            continue;
        (void)json_object_set_new(known, id, json_true());
        if (config_find(c, id) < 0)
            only_add(&there, id);
    }
    for (unsigned i = 0; i < c->n_nodes && known != NULL; i++)
        if (json_object_get(known, c->nodes[i].id) == NULL)
            only_add(&here, c->nodes[i].id);
    json_decref(known);
    only_tell(&there, out, "; nodes: ", "there");
    only_tell(&here, out, there.n > 0 ? ", " : "; nodes: ", "in ");
    if (here.n > 0)
        buf_add_str(out, file_name(c));
}

void config_ring_compare(const struct config *c, struct span theirs, struct err *why)
{
    json_t *top = json_loadb(theirs.len > 0 ? (const char *)theirs.data : "", theirs.len,
                             JSON_REJECT_DUPLICATES, NULL);
    const char *hash = json_string_value(json_object_get(top, "hash"));
    const json_t *nodes = json_object_get(top, "nodes");
    struct buf out = {0};

    if (json_is_array(nodes))
        add_nodes(&out, c, nodes);
    else
        add_number(&out, c, "number of nodes", json_object_get(top, "n_nodes"), c->n_nodes);
    add_number(&out, c, "replication_factor", json_object_get(top, "replication_factor"),
               c->replication_factor);
    add_number(&out, c, "virtual_nodes", json_object_get(top, "virtual_nodes"), c->virtual_nodes);
    if (hash != NULL && strcmp(hash, config_hash_name(c)) != 0)
        buf_addf(&out, "; hash: %.40s there, %s in %s", hash, config_hash_name(c), file_name(c));
    /* Nothing found, or nothing understood: another program's ring, or ids that were not told. */
    if (out.err == 0 && out.len > 2)
        err_set(why, 0, "another ring: %.*s", (int)out.len - 2, (const char *)out.data + 2);
    else
        err_set(why, 0, "another ring");
    buf_fini(&out);
    json_decref(top);
}

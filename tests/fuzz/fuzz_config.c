/*
 * fuzz_config.c - any bytes as cluster.json: refused with a reason, or a ring that keeps every key
 * on as many different nodes as it says.
 *
 * Input: the file.
 */
#include "tests/fuzz/fuzz.h"

#include <errno.h>
#include <string.h>

#include "common/config.h"
#include "common/json.h"

static void claim_nodes(const struct config *c)
{
    CLAIM(c->n_nodes >= 1);
    for (unsigned i = 0; i < c->n_nodes; i++) {
        const struct config_node *n = &c->nodes[i];
        char *host = NULL;
        uint16_t port = 0;
        struct err err = {""};

        CLAIM(n->id[0] != '\0' && n->port > 0);
        CLAIM(i == 0 || strcmp(c->nodes[i - 1].id, n->id) < 0);
        CLAIM(config_find(c, n->id) == (int)i);
        CLAIM(config_split_addr(n->addr, &host, &port, &err) == 0);
        CLAIM(strcmp(host, n->host) == 0 && port == n->port);
        free(host);
    }
    CLAIM(config_find(c, "") == -ENOENT);
}

static void claim_ring(const struct config *c)
{
    unsigned n = ring_n_replicas(c->ring);
    bool *up = calloc(c->n_nodes, sizeof *up);

    CLAIM(up != NULL);
    CLAIM(ring_n_nodes(c->ring) == c->n_nodes);
    CLAIM(n == (c->replication_factor < c->n_nodes ? c->replication_factor : c->n_nodes));
    CLAIM(2 * ring_majority(c->ring) > n && ring_majority(c->ring) <= n);
    CLAIM(!ring_covered(c->ring, up));
    for (unsigned k = 0; k < 64; k++) {
        char key[8];
        const unsigned *nodes;

        (void)snprintf(key, sizeof key, "k%u", k);
        nodes = ring_replicas(c->ring, span_str(key));
        memset(up, 0, c->n_nodes * sizeof *up);
        for (unsigned i = 0; i < n; i++) {
            CLAIM(nodes[i] < c->n_nodes && !up[nodes[i]]);
            up[nodes[i]] = true;
            CLAIM(ring_is_replica(c->ring, span_str(key), nodes[i]));
        }
    }
    memset(up, true, c->n_nodes * sizeof *up);
    CLAIM(ring_covered(c->ring, up));
    free(up);
}

static void add_node(struct json *j, const struct config_node *n)
{
    json_begin(j, '{');
    json_key(j, "id");
    json_str(j, span_str(n->id));
    json_key(j, "addr");
    json_str(j, span_str(n->addr));
    json_end(j, '}');
}

/* Written out anew, with the nodes backwards, it is the same ring. */
static void claim_order_is_no_matter(const struct config *c)
{
    struct config *again = NULL;
    struct buf text = {0};
    struct json j = {.out = &text};
    struct err err = {""};

    json_begin(&j, '{');
    json_key(&j, "nodes");
    json_begin(&j, '[');
    for (unsigned i = c->n_nodes; i > 0; i--)
        add_node(&j, &c->nodes[i - 1]);
    json_end(&j, ']');
    json_key(&j, "replication_factor");
    json_u64(&j, c->replication_factor);
    json_key(&j, "virtual_nodes");
    json_u64(&j, c->virtual_nodes);
    json_key(&j, "max_value_size");
    json_u64(&j, c->max_value_size);
    json_key(&j, "hash");
    json_str(&j, span_str(c->hash == RING_FNV1A ? "fnv1a" : "fnv1a-mix"));
    json_end(&j, '}');
    CLAIM(config_parse("again", buf_span(&text), &again, &err) == 0);
    CLAIM(ring_fingerprint(again->ring) == ring_fingerprint(c->ring));
    CLAIM(again->max_value_size == c->max_value_size);
    config_free(again);
    buf_fini(&text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct config *c = NULL;
    struct err err = {""};
    int r = config_parse("cluster.json", span_of(data, size), &c, &err);

    if (r < 0) {
        CLAIM(r == -EINVAL && c == NULL);
        CLAIM(strncmp(err.msg, "cluster.json: ", 14) == 0 && err.msg[14] != '\0');
        return 0;
    }
    claim_nodes(c);
    claim_ring(c);
    claim_order_is_no_matter(c);
    CLAIM((config_check_client(c, &err) == 0) == (c->replication_factor <= c->n_nodes));
    config_free(c);
    return 0;
}

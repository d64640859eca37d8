/*
 * config.c - cluster.json: read, checked to the last field, and made into a ring.
 *
 * A wrong configuration is refused whole, with a message that names the file, the field and what
 * was found there; nothing is guessed, rounded or ignored. Each helper says what is wrong behind
 * the field's name, config_parse() puts the file in front.
 */
#include "common/config.h"

#include <arpa/inet.h>
#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/limits.h"
#include "common/nearest.h"

#define FILE_LEN_MAX (16u << 20) /* some 200,000 nodes */
#define FIELD_LEN_MAX 64u        /* "nodes[123].addr" */
#define SHOWN_LEN_MAX 80u        /* of a value in a message */
#define HOST_LEN_MAX 253u        /* of a DNS name */

static const char *const top_fields[] = {"nodes", "replication_factor", "virtual_nodes", "hash",
                                         "max_value_size"};
static const char *const node_fields[] = {"id", "addr"};

#define N_ELEMENTS(a) (sizeof(a) / sizeof((a)[0]))

/* --- what stands in the file, in words -------------------------------------------------------- */

static const char *type_name(json_type type)
{
    switch (type) {
    case JSON_OBJECT:
        return "an object";
    case JSON_ARRAY:
        return "an array";
    case JSON_STRING:
        return "a string";
    case JSON_INTEGER:
        return "an integer";
    case JSON_REAL:
        return "a number with a fraction or exponent";
    case JSON_TRUE:
    case JSON_FALSE:
        return "a boolean";
    case JSON_NULL:
        break;
    }
    return "null";
}

/* The value as JSON, printable and cut to fit a message. */
static const char *show(const json_t *value, char out[SHOWN_LEN_MAX])
{
    size_t n;

    /* json_dumpb() adds no NUL, and fills only so far as whole pieces fit. */
    memset(out, 0, SHOWN_LEN_MAX);
    n = json_dumpb(value, out, SHOWN_LEN_MAX - 4,
                   JSON_ENCODE_ANY | JSON_COMPACT | JSON_ENSURE_ASCII);
    if (n > SHOWN_LEN_MAX - 4)
        memcpy(out + strlen(out), "...", 4);
    return out;
}

static int check_type(const char *field, const json_t *value, json_type wanted, struct err *err)
{
    char shown[SHOWN_LEN_MAX];

    if (json_typeof(value) == wanted)
        return 0;
    if (json_is_null(value))
        return err_set(err, -EINVAL, "%s: needs %s, found null", field, type_name(wanted));
    return err_set(err, -EINVAL, "%s: needs %s, found %s: %s", field, type_name(wanted),
                   type_name(json_typeof(value)), show(value, shown));
}

/* --- unknown fields --------------------------------------------------------------------------- */

static const char *nearest_field(const char *name, const char *const *known, size_t n_known)
{
    size_t nearest = 0;

    for (size_t i = 1; i < n_known; i++) {
        if (nearest_distance(name, known[i]) < nearest_distance(name, known[nearest]))
            nearest = i;
    }
    return known[nearest];
}

/* where: the field that the object stands in, with ": " behind it. */
static int check_fields(const char *where, json_t *object, const char *const *known, size_t n_known,
                        struct err *err)
{
    for (void *it = json_object_iter(object); it != NULL; it = json_object_iter_next(object, it)) {
        const char *name = json_object_iter_key(it), *nearest = nearest_field(name, known, n_known);
        char shown[SHOWN_LEN_MAX], value[SHOWN_LEN_MAX];
        json_t *quoted;

        if (strcmp(name, nearest) == 0)
            continue;
        quoted = json_string(name);
        if (quoted == NULL)
            return -ENOMEM;
        err_set(err, -EINVAL, "%sunknown field %s: %s, the nearest known one is \"%s\"", where,
                show(quoted, shown), show(json_object_iter_value(it), value), nearest);
        json_decref(quoted);
        return -EINVAL;
    }
    return 0;
}

/* --- single fields ---------------------------------------------------------------------------- */

/* An optional integer: *out keeps its default where the field is missing. */
static int get_integer(json_t *object, const char *field, uint64_t min, uint64_t max, uint64_t *out,
                       struct err *err)
{
    json_t *value = json_object_get(object, field);
    json_int_t n;
    int e;

    if (value == NULL)
        return 0;
    e = check_type(field, value, JSON_INTEGER, err);
    if (e < 0)
        return e;
    n = json_integer_value(value);
    if (n < (json_int_t)min)
        return err_set(err, -EINVAL, "%s: %" JSON_INTEGER_FORMAT " is below %llu", field, n,
                       (unsigned long long)min);
    if ((uint64_t)n > max)
        return err_set(err, -EINVAL, "%s: %" JSON_INTEGER_FORMAT " is above %llu", field, n,
                       (unsigned long long)max);
    *out = (uint64_t)n;
    return 0;
}

static int get_hash(json_t *top, enum ring_hash *out, struct err *err)
{
    json_t *value = json_object_get(top, "hash");
    char shown[SHOWN_LEN_MAX];
    int e;

    if (value == NULL)
        return 0;
    e = check_type("hash", value, JSON_STRING, err);
    if (e < 0)
        return e;
    if (strcmp(json_string_value(value), "fnv1a") == 0)
        *out = RING_FNV1A;
    else if (strcmp(json_string_value(value), "fnv1a-mix") == 0)
        *out = RING_FNV1A_MIX;
    else
        return err_set(err, -EINVAL, "hash: %s is neither \"fnv1a\" nor \"fnv1a-mix\"",
                       show(value, shown));
    return 0;
}

/* A string of node i that must be there. Borrowed from node. */
static int get_string(json_t *node, size_t i, const char *name, const char **out, struct err *err)
{
    json_t *value = json_object_get(node, name);
    char field[FIELD_LEN_MAX];
    int e;

    (void)snprintf(field, sizeof(field), "nodes[%zu].%s", i, name);
    if (value == NULL)
        return err_set(err, -EINVAL, "%s: missing", field);
    e = check_type(field, value, JSON_STRING, err);
    if (e < 0)
        return e;
    if (json_string_length(value) == 0)
        return err_set(err, -EINVAL, "%s: \"\" is empty", field);
    *out = json_string_value(value);
    return 0;
}

/* --- addresses -------------------------------------------------------------------------------- */

static int parse_port(const char *s, uint16_t *out, struct err *err)
{
    unsigned long port = 0;

    for (const char *p = s; *p != '\0'; p++) {
        if (!isdigit((unsigned char)*p))
            return err_set(err, -EINVAL, "port %s is not a number", s);
        if (port <= UINT16_MAX)
            port = port * 10 + (unsigned long)(*p - '0');
    }
    if (*s == '\0')
        return err_set(err, -EINVAL, "no port behind the ':'");
    if (port > UINT16_MAX)
        return err_set(err, -EINVAL, "port %s is above %u", s, UINT16_MAX);
    if (port == 0)
        return err_set(err, -EINVAL, "port %s is below 1", s);
    *out = (uint16_t)port;
    return 0;
}

static bool is_host_byte(char c)
{
    return isalnum((unsigned char)c) || c == '.' || c == '-' || c == '_';
}

/*
 * A DNS name or an IPv4 address. What looks like the latter must be one: resolvers disagree on
 * "1.2.3" and "010.0.0.1".
 */
static int check_host(const char *host, struct err *err)
{
    struct in_addr v4;

    if (host[0] == '\0')
        return err_set(err, -EINVAL, "no host before the ':'");
    if (strlen(host) > HOST_LEN_MAX)
        return err_set(err, -EINVAL, "host of %zu bytes is over %u", strlen(host), HOST_LEN_MAX);
    if (strchr(host, ':') != NULL && strspn(host, "0123456789abcdefABCDEF:.") == strlen(host))
        return err_set(err, -EINVAL, "an IPv6 address stands in brackets, as in [::1]:8081");
    for (const char *p = host; *p != '\0'; p++) {
        if (!is_host_byte(*p))
            return err_set(err, -EINVAL,
                           "host \"%s\" has a byte that is no letter, digit, '.', '-' or '_'",
                           host);
    }
    if (strspn(host, "0123456789.") == strlen(host) && inet_pton(AF_INET, host, &v4) != 1)
        return err_set(err, -EINVAL, "host %s is no IPv4 address", host);
    return 0;
}

/* An IPv6 address, perhaps with a zone ("fe80::1%eth0"). */
static int check_v6(const char *host, struct err *err)
{
    char addr[INET6_ADDRSTRLEN];
    size_t len = strcspn(host, "%"), zone_len = strlen(host) - len;
    struct in6_addr v6;

    for (const char *p = host + len; *p != '\0'; p++) {
        if (p != host + len && !is_host_byte(*p))
            return err_set(
                err, -EINVAL,
                "host [%s] has a zone with a byte that is no letter, digit, '.', '-' or '_'", host);
    }
    if (len < sizeof(addr)) {
        memcpy(addr, host, len);
        addr[len] = '\0';
        if (inet_pton(AF_INET6, addr, &v6) == 1 && zone_len != 1 && zone_len <= HOST_LEN_MAX)
            return 0;
    }
    return err_set(err, -EINVAL, "host [%s] is no IPv6 address", host);
}

int config_split_addr(const char *addr, char **host, uint16_t *port, struct err *err)
{
    const char *colon = strrchr(addr, ':');
    bool bracketed = addr[0] == '[';
    uint16_t port_found = 0;
    char *copy;
    int e;

    if (bracketed) {
        const char *end = strchr(addr, ']');

        if (end == NULL || end[1] != ':')
            return err_set(err, -EINVAL, "%s is not [IPV6]:PORT", addr);
        colon = end + 1;
    } else if (colon == NULL) {
        return err_set(err, -EINVAL, "%s is not HOST:PORT", addr);
    }
    copy = bracketed ? strndup(addr + 1, (size_t)(colon - addr) - 2)
                     : strndup(addr, (size_t)(colon - addr));
    if (copy == NULL)
        return -ENOMEM;
    e = bracketed ? check_v6(copy, err) : check_host(copy, err);
    if (e == 0)
        e = parse_port(colon + 1, &port_found, err);
    if (e < 0) {
        free(copy);
        return e;
    }
    *host = copy;
    *port = port_found;
    return 0;
}

/* --- nodes ------------------------------------------------------------------------------------ */

/* Ids and addresses met so far, each with the index of its node. */
struct seen {
    json_t *ids, *addrs;
};

static int remember(json_t *seen, const char *what, const char *name, size_t i, const char *shown,
                    struct err *err)
{
    json_t *before = json_object_get(seen, name);

    if (before != NULL)
        return err_set(err, -EINVAL,
                       "nodes[%zu].%s: \"%s\" is also that of nodes[%" JSON_INTEGER_FORMAT "]", i,
                       what, shown, json_integer_value(before));
    return json_object_set_new(seen, name, json_integer((json_int_t)i)) == 0 ? 0 : -ENOMEM;
}

/* Two spellings of one address are one: letters in lower case, IPv6 in its shortest form. */
static int remember_addr(json_t *seen, size_t i, const struct config_node *node, struct err *err)
{
    char host[HOST_LEN_MAX + INET6_ADDRSTRLEN + 1], name[sizeof(host) + 8];
    struct in6_addr v6;

    (void)snprintf(host, sizeof(host), "%s", node->host);
    if (inet_pton(AF_INET6, host, &v6) == 1)
        (void)inet_ntop(AF_INET6, &v6, host, sizeof(host));
    (void)snprintf(name, sizeof(name), "%s %u", host, node->port);
    for (char *p = name; *p != '\0'; p++)
        *p = (char)tolower((unsigned char)*p);
    return remember(seen, "addr", name, i, node->addr, err);
}

static int get_node(json_t *value, size_t i, struct seen *seen, struct config_node *out,
                    struct err *err)
{
    char field[FIELD_LEN_MAX];
    const char *id, *addr;
    int e;

    (void)snprintf(field, sizeof(field), "nodes[%zu]", i);
    e = check_type(field, value, JSON_OBJECT, err);
    if (e < 0)
        return e;
    (void)snprintf(field, sizeof(field), "nodes[%zu]: ", i);
    e = check_fields(field, value, node_fields, N_ELEMENTS(node_fields), err);
    if (e == 0)
        e = get_string(value, i, "id", &id, err);
    if (e == 0)
        e = get_string(value, i, "addr", &addr, err);
    if (e < 0)
        return e;
    if (strlen(id) > NODE_ID_LEN_MAX)
        return err_set(err, -EINVAL, "nodes[%zu].id: \"%.32s...\" of %zu bytes is over %u", i, id,
                       strlen(id), NODE_ID_LEN_MAX);
    out->id = strdup(id);
    out->addr = strdup(addr);
    if (out->id == NULL || out->addr == NULL)
        return -ENOMEM;
    e = config_split_addr(addr, &out->host, &out->port, err);
    if (e < 0)
        return err_wrap(err, e, "nodes[%zu].addr", i);
    e = remember(seen->ids, "id", id, i, id, err);
    return e < 0 ? e : remember_addr(seen->addrs, i, out, err);
}

static int node_cmp(const void *a, const void *b)
{
    const struct config_node *x = a, *y = b;

    return strcmp(x->id, y->id); /* unsigned bytes, as the ring sorts */
}

static int get_nodes(json_t *top, struct config *c, struct err *err)
{
    json_t *nodes = json_object_get(top, "nodes");
    struct seen seen;
    int e;

    if (nodes == NULL)
        return err_set(err, -EINVAL, "nodes: missing");
    e = check_type("nodes", nodes, JSON_ARRAY, err);
    if (e < 0)
        return e;
    if (json_array_size(nodes) == 0)
        return err_set(err, -EINVAL, "nodes: [] is empty, a cluster has at least one");
    c->nodes = calloc(json_array_size(nodes), sizeof(*c->nodes));
    if (c->nodes == NULL)
        return -ENOMEM;
    c->n_nodes = (unsigned)json_array_size(nodes);
    seen = (struct seen){json_object(), json_object()};
    for (unsigned i = 0; e == 0 && i < c->n_nodes; i++)
        e = get_node(json_array_get(nodes, i), i, &seen, &c->nodes[i], err);
    if (e == 0)
        qsort(c->nodes, c->n_nodes, sizeof(*c->nodes), node_cmp);
    json_decref(seen.ids);
    json_decref(seen.addrs);
    return e;
}

/* --- the whole -------------------------------------------------------------------------------- */

static int make_ring(struct config *c, struct err *err)
{
    const char **ids = calloc(c->n_nodes, sizeof(*ids));
    int e = -ENOMEM;

    for (unsigned i = 0; ids != NULL && i < c->n_nodes; i++)
        ids[i] = c->nodes[i].id;
    if (ids != NULL)
        e = ring_new(ids, c->n_nodes, c->virtual_nodes, c->hash, c->replication_factor, &c->ring);
    free(ids);
    if (e < 0)
        return err_set(err, e,
                       "virtual_nodes: no memory for a ring of %u nodes with %u points each",
                       c->n_nodes, c->virtual_nodes);
    return 0;
}

static int get_top(json_t *top, struct config *c, struct err *err)
{
    uint64_t replication_factor = 0, virtual_nodes = VIRTUAL_NODES_DEFAULT;
    int e;

    c->max_value_size = VALUE_SIZE_DEFAULT_MAX;
    e = check_fields("", top, top_fields, N_ELEMENTS(top_fields), err);
    if (e == 0)
        e = get_nodes(top, c, err);
    if (e == 0)
        e = get_integer(top, "replication_factor", 1, UINT32_MAX, &replication_factor, err);
    if (e == 0 && replication_factor == 0)
        e = err_set(err, -EINVAL, "replication_factor: missing");
    if (e == 0)
        e = get_integer(top, "virtual_nodes", 1, VIRTUAL_NODES_MAX, &virtual_nodes, err);
    if (e == 0)
        e = get_hash(top, &c->hash, err);
    if (e == 0)
        e = get_integer(top, "max_value_size", 1, VALUE_SIZE_LIMIT, &c->max_value_size, err);
    if (e < 0)
        return e;
    c->replication_factor = (unsigned)replication_factor;
    c->virtual_nodes = (unsigned)virtual_nodes;
    return make_ring(c, err);
}

static int parse(struct span text, struct config *c, struct err *err)
{
    json_error_t where;
    json_t *top;
    int e;

    top = json_loadb(text.len > 0 ? (const char *)text.data : "", text.len,
                     JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &where);
    if (top == NULL) {
        if (json_error_code(&where) == json_error_out_of_memory)
            return -ENOMEM;
        if (json_error_code(&where) == json_error_null_character)
            return err_set(err, -EINVAL, "line %d, column %d: a NUL (\\u0000) in a string",
                           where.line, where.column);
        return err_set(err, -EINVAL, "line %d, column %d: %s", where.line, where.column,
                       where.text);
    }
    e = check_type("the whole file", top, JSON_OBJECT, err);
    if (e == 0)
        e = get_top(top, c, err);
    json_decref(top);
    return e;
}

int config_parse(const char *path, struct span text, struct config **out, struct err *err)
{
    struct err why = {0};
    struct config *c;
    int e = -ENOMEM;

    c = calloc(1, sizeof(*c));
    if (c == NULL)
        goto out;
    c->path = strdup(path);
    if (c->path == NULL)
        goto out;
    e = parse(text, c, &why);
    if (e < 0)
        goto out;
    *out = c; /* the caller owns it from here */
    c = NULL;
out:
    config_free(c);
    if (e < 0)
        err_set(err, e, "%s: %s", path, why.msg[0] != '\0' ? why.msg : strerror(-e));
    return e;
}

static int read_file(const char *path, struct buf *out)
{
    int fd, err = 0;

    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    while (err == 0) {
        uint8_t *room = buf_reserve(out, 65536);
        ssize_t n;

        if (room == NULL) {
            err = out->err;
            break;
        }
        n = read(fd, room, 65536);
        if (n == 0)
            break;
        if (n > 0)
            out->len += (size_t)n;
        else if (errno != EINTR)
            err = -errno;
        if (out->len > FILE_LEN_MAX)
            err = -EFBIG;
    }
    close(fd);
    return err;
}

int config_load(const char *path, struct config **out, struct err *err)
{
    struct buf text = {0};
    int e;

    e = read_file(path, &text);
    if (e < 0)
        err_set(err, e, "%s: %s", path, strerror(-e));
    else
        e = config_parse(path, buf_span(&text), out, err);
    buf_fini(&text);
    return e;
}

void config_free(struct config *c)
{
    if (c == NULL)
        return;
    for (unsigned i = 0; i < c->n_nodes; i++) {
        free(c->nodes[i].id);
        free(c->nodes[i].addr);
        free(c->nodes[i].host);
    }
    free(c->nodes);
    ring_free(c->ring);
    free(c->path);
    free(c);
}

int config_find(const struct config *c, const char *id)
{
    unsigned low = 0, high = c->n_nodes;

    while (low < high) {
        unsigned mid = low + (high - low) / 2;
        int order = strcmp(c->nodes[mid].id, id);

        if (order == 0)
            return (int)mid;
        if (order < 0)
            low = mid + 1;
        else
            high = mid;
    }
    return -ENOENT;
}

int config_check_client(const struct config *c, struct err *err)
{
    if (c->replication_factor <= c->n_nodes)
        return 0;
    return err_set(err, -EINVAL, "%s: replication_factor: %u is above the number of nodes, %u",
                   c->path, c->replication_factor, c->n_nodes);
}

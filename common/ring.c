/* ring.c - consistent hashing: which nodes hold a key. */
#include "common/ring.h"

#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "common/hash.h"

/*
 * The ring is the circle of 64-bit hashes. Each node puts virtual_nodes points on it; a key belongs
 * to the first point at or after its hash, and its replicas are the nodes of that point and of the
 * following ones, each node once:
 *
 *        hash  0 ----A----B---A----C-----------B---- 2^64 -> 0
 *                       ^ key           replicas, best first: B A C
 *
 * All of that is worked out once: every point knows its list of replicas, so a lookup is a binary
 * search. Lists repeat (three nodes have only six), so each distinct one is stored once; and for
 * coverage, where order does not matter, each distinct set once.
 */
struct point {
    uint64_t hash;
    uint32_t node;
    uint32_t list; /* index in ring.lists */
};

/* Distinct rows of `width` node indexes each. */
struct rows {
    unsigned width;
    uint32_t n, cap;
    unsigned *items;
    /* While building: open addressing, row + 1 or 0; a power of two, at least twice the rows. */
    uint32_t *slots;
    size_t n_slots;
};

struct ring {
    unsigned n_nodes, n_replicas;
    enum ring_hash hash;
    uint32_t n_points;
    struct point *points; /* by hash, ties by node */
    struct rows lists;    /* replicas in ring order */
    struct rows sets;     /* replicas in order of their index */
    double *shares;       /* of each node */
    uint64_t fingerprint;
};

/* --- rows ---------------------------------------------------------------------------------- */

static int rows_init(struct rows *rows, unsigned width, uint32_t n_max)
{
    size_t n_slots = 2;

    while (n_slots < 2 * (size_t)n_max)
        n_slots *= 2;
    *rows = (struct rows){.width = width, .n_slots = n_slots};
    rows->slots = calloc(n_slots, sizeof(*rows->slots));
    return rows->slots != NULL ? 0 : -ENOMEM;
}

static void rows_fini(struct rows *rows)
{
    free(rows->items);
    free(rows->slots);
}

static const unsigned *rows_get(const struct rows *rows, uint32_t i)
{
    return rows->items + (size_t)i * rows->width;
}

static int rows_grow(struct rows *rows)
{
    uint32_t cap = rows->cap == 0 ? 16 : rows->cap * 2;
    unsigned *items = reallocarray(rows->items, cap, rows->width * sizeof(*items));

    if (items == NULL)
        return -ENOMEM;
    rows->items = items;
    rows->cap = cap;
    return 0;
}

/* Index of the row with these items, added where it is new. */
static int rows_intern(struct rows *rows, const unsigned *items, uint32_t *out)
{
    size_t size = rows->width * sizeof(*items);
    size_t mask = rows->n_slots - 1;
    size_t at = (size_t)hash_xxh3(span_of(items, size)) & mask;

    while (rows->slots[at] != 0) {
        uint32_t row = rows->slots[at] - 1;

        if (memcmp(rows_get(rows, row), items, size) == 0) {
            *out = row;
            return 0;
        }
        at = (at + 1) & mask;
    }
    if (rows->n == rows->cap && rows_grow(rows) != 0)
        return -ENOMEM;
    memcpy(rows->items + (size_t)rows->n * rows->width, items, size);
    *out = rows->n++;
    rows->slots[at] = rows->n;
    return 0;
}

/* No more rows come: gives back what only building needed. */
static void rows_seal(struct rows *rows)
{
    unsigned *items = reallocarray(rows->items, rows->n, rows->width * sizeof(*items));

    if (items != NULL) {
        rows->items = items;
        rows->cap = rows->n;
    }
    free(rows->slots);
    rows->slots = NULL;
}

/* --- building ------------------------------------------------------------------------------ */

static uint64_t place(enum ring_hash hash, struct span s)
{
    uint64_t h = hash_fnv1a(s);

    return hash == RING_FNV1A_MIX ? hash_fmix64(h) : h;
}

static int point_cmp(const void *a, const void *b)
{
    const struct point *x = a, *y = b;

    if (x->hash != y->hash)
        return x->hash < y->hash ? -1 : 1;
    return x->node < y->node ? -1 : x->node > y->node;
}

static int build_points(struct ring *r, const char *const *ids, unsigned virtual_nodes)
{
    struct buf name = {0};
    struct point *p = r->points;
    int err;

    for (unsigned node = 0; node < r->n_nodes; node++) {
        for (unsigned i = 0; i < virtual_nodes; i++, p++) {
            buf_clear(&name);
            buf_addf(&name, "%s#%u", ids[node], i);
            if (name.err != 0)
                goto out;
            p->hash = place(r->hash, buf_span(&name));
            p->node = node;
        }
    }
    qsort(r->points, r->n_points, sizeof(*r->points), point_cmp);
out:
    err = name.err;
    buf_fini(&name);
    return err;
}

/* Puts node in front of a list of at most cap: from where it stood, or in place of the last. */
static void list_move_to_front(unsigned *list, unsigned *n, unsigned cap, unsigned node)
{
    unsigned at = 0;

    while (at < *n && list[at] != node)
        at++;
    if (at == *n && *n < cap)
        (*n)++;
    else if (at == *n)
        at--;
    memmove(list + 1, list, at * sizeof(*list));
    list[0] = node;
}

static int node_cmp(const void *a, const void *b)
{
    const unsigned *x = a, *y = b;

    return *x < *y ? -1 : *x > *y;
}

/*
 * A point's list is its own node, then the next point's list without that node: so walk backwards,
 * moving each node to the front. The last point builds on the first one's list; a lap before the
 * one that counts finds that.
 */
static int build_lists(struct ring *r)
{
    unsigned n = 0;
    uint32_t set;
    unsigned *list = calloc(2 * (size_t)r->n_replicas, sizeof(*list)), *sorted;
    int err = list != NULL ? 0 : -ENOMEM;

    if (err != 0)
        goto out;
    sorted = list + r->n_replicas;
    for (uint32_t i = r->n_points; i-- > 0;)
        list_move_to_front(list, &n, r->n_replicas, r->points[i].node);
    assert(n == r->n_replicas);
    for (uint32_t i = r->n_points; err == 0 && i-- > 0;) {
        uint32_t n_before = r->lists.n;

        list_move_to_front(list, &n, r->n_replicas, r->points[i].node);
        err = rows_intern(&r->lists, list, &r->points[i].list);
        if (err != 0 || r->lists.n == n_before)
            continue;
        memcpy(sorted, list, n * sizeof(*list));
        qsort(sorted, n, sizeof(*sorted), node_cmp);
        err = rows_intern(&r->sets, sorted, &set);
    }
    rows_seal(&r->lists);
    rows_seal(&r->sets);
out:
    free(list);
    return err;
}

/* A point owns the hashes above the point before it, up to its own; the first one wraps round. */
static void build_shares(struct ring *r)
{
    const double circle = 18446744073709551616.0; /* 2^64 */
    uint64_t before = r->points[r->n_points - 1].hash;

    if (r->points[0].hash == before) { /* a single point, which owns all */
        r->shares[r->points[0].node] = 1;
        return;
    }
    for (uint32_t i = 0; i < r->n_points; i++) {
        const struct point *p = &r->points[i];

        r->shares[p->node] += (double)(p->hash - before) / circle;
        before = p->hash;
    }
}

/*
 * The hash of: u32 number of ids, u16 length and bytes of each, u32 virtual_nodes, u32 hash
 * (0 fnv1a, 1 fnv1a-mix), u32 replication_factor.
 */
static int build_fingerprint(struct ring *r, const char *const *ids, unsigned virtual_nodes,
                             unsigned replication_factor)
{
    struct buf b = {0};
    int err;

    buf_u32(&b, r->n_nodes);
    for (unsigned i = 0; i < r->n_nodes; i++)
        buf_bytes16(&b, span_str(ids[i]));
    buf_u32(&b, virtual_nodes);
    buf_u32(&b, r->hash);
    buf_u32(&b, replication_factor);
    r->fingerprint = hash_xxh3(buf_span(&b));
    err = b.err;
    buf_fini(&b);
    return err;
}

int ring_new(const char *const *ids, unsigned n, unsigned virtual_nodes, enum ring_hash hash,
             unsigned replication_factor, struct ring **out)
{
    struct ring *r;
    int err = -ENOMEM;

    assert(n > 0 && virtual_nodes > 0 && replication_factor > 0);
    for (unsigned i = 0; i < n; i++)
        assert(ids[i][0] != '\0' && (i == 0 || strcmp(ids[i - 1], ids[i]) < 0));

    r = calloc(1, sizeof(*r));
    if (r == NULL || virtual_nodes > INT32_MAX / n)
        goto out;
    r->n_nodes = n;
    r->n_replicas = replication_factor < n ? replication_factor : n;
    r->hash = hash;
    r->n_points = n * virtual_nodes;
    r->points = calloc(r->n_points, sizeof(*r->points));
    r->shares = calloc(n, sizeof(*r->shares));
    if (r->points == NULL || r->shares == NULL)
        goto out;
    if (rows_init(&r->lists, r->n_replicas, r->n_points) != 0 ||
        rows_init(&r->sets, r->n_replicas, r->n_points) != 0)
        goto out;
    if (build_points(r, ids, virtual_nodes) != 0 || build_lists(r) != 0)
        goto out;
    build_shares(r);
    err = build_fingerprint(r, ids, virtual_nodes, replication_factor);
out:
    if (err == 0)
        *out = r;
    else
        ring_free(r);
    return err;
}

void ring_free(struct ring *r)
{
    if (r == NULL)
        return;
    rows_fini(&r->lists);
    rows_fini(&r->sets);
    free(r->points);
    free(r->shares);
    free(r);
}

/* --- asking -------------------------------------------------------------------------------- */

unsigned ring_n_replicas(const struct ring *r)
{
    return r->n_replicas;
}

unsigned ring_majority(const struct ring *r)
{
    return r->n_replicas / 2 + 1;
}

unsigned ring_n_nodes(const struct ring *r)
{
    return r->n_nodes;
}

unsigned ring_n_points(const struct ring *r)
{
    return r->n_points;
}

const unsigned *ring_replicas(const struct ring *r, struct span key)
{
    uint64_t hash = place(r->hash, key);
    uint32_t low = 0, high = r->n_points;

    /* Points below low are before the key, those from high on are not. */
    while (low < high) {
        uint32_t mid = low + (high - low) / 2;

        if (r->points[mid].hash < hash)
            low = mid + 1;
        else
            high = mid;
    }
    return rows_get(&r->lists, r->points[low < r->n_points ? low : 0].list);
}

bool ring_is_replica(const struct ring *r, struct span key, unsigned node)
{
    const unsigned *replicas = ring_replicas(r, key);

    for (unsigned i = 0; i < r->n_replicas; i++) {
        if (replicas[i] == node)
            return true;
    }
    return false;
}

bool ring_covered(const struct ring *r, const bool *answered)
{
    for (uint32_t set = 0; set < r->sets.n; set++) {
        const unsigned *nodes = rows_get(&r->sets, set);
        unsigned n = 0;

        for (unsigned i = 0; i < r->n_replicas; i++)
            n += answered[nodes[i]];
        if (n < ring_majority(r))
            return false;
    }
    return true;
}

uint32_t ring_n_sets(const struct ring *r)
{
    return r->sets.n;
}

const unsigned *ring_set(const struct ring *r, uint32_t i)
{
    assert(i < r->sets.n);
    return rows_get(&r->sets, i);
}

bool ring_shares(const struct ring *r, unsigned a, unsigned b)
{
    for (uint32_t set = 0; set < r->sets.n; set++) {
        const unsigned *nodes = rows_get(&r->sets, set);
        bool has_a = false, has_b = false;

        for (unsigned i = 0; i < r->n_replicas; i++) {
            has_a |= nodes[i] == a;
            has_b |= nodes[i] == b;
        }
        if (has_a && has_b)
            return true;
    }
    return false;
}

uint64_t ring_fingerprint(const struct ring *r)
{
    return r->fingerprint;
}

double ring_share(const struct ring *r, unsigned node)
{
    assert(node < r->n_nodes);
    return r->shares[node];
}

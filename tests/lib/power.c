/* power.c - what a power loss leaves of a directory. */
#include "tests/lib/power.h"

#include <assert.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/lib/disk_trace.h"

#define PAGE 4096u
#define SECTOR 512u
#define NONE UINT32_MAX
#define TOP 0u

/* A record, and what it is about: inode numbers are used again, objects are not. */
struct event {
    struct trace_record r;
    const char *name, *to; /* in their directory */
    const uint8_t *data;
    uint32_t dir;    /* of a change of a name */
    uint32_t object; /* NONE: not ours, or nothing new */
};

struct object {
    uint64_t ino;
    bool is_dir;
};

struct name {
    uint32_t dir, object; /* NONE: gone */
    const char *name;
};

struct power {
    uint8_t *bytes;
    struct event *events;
    size_t n_events;
    struct object *objects;
    uint32_t n_objects;
    struct name *names; /* while loading: as the process saw them */
    size_t n_names;
};

static void *grown(void *p, size_t n, size_t size)
{
    if ((n & (n - 1)) == 0) /* at each power of two */
        p = realloc(p, (n == 0 ? 1 : 2 * n) * size);
    assert(p != NULL);
    return p;
}

/* --- names ----------------------------------------------------------------------------- */

static struct name *name_find(struct name *names, size_t n, uint32_t dir, const char *name)
{
    for (size_t i = 0; i < n; i++)
        if (names[i].dir == dir && strcmp(names[i].name, name) == 0)
            return &names[i];
    return NULL;
}

static void name_set(struct name **names, size_t *n, uint32_t dir, const char *name,
                     uint32_t object)
{
    struct name *old = name_find(*names, *n, dir, name);

    if (old == NULL) {
        *names = grown(*names, *n, sizeof(**names));
        old = &(*names)[(*n)++];
        *old = (struct name){dir, NONE, name};
    }
    old->object = object;
}

/* The directory of a path; *last: the name in it. NONE: it is not there. */
static uint32_t resolve(struct power *p, const char *path, const char **last)
{
    uint32_t dir = TOP;
    const char *slash;

    while ((slash = strchr(path, '/')) != NULL) {
        char part[256];
        struct name *n;

        snprintf(part, sizeof(part), "%.*s", (int)(slash - path), path);
        n = name_find(p->names, p->n_names, dir, part);
        if (n == NULL || n->object == NONE)
            return NONE;
        dir = n->object;
        path = slash + 1;
    }
    *last = path;
    return dir;
}

static uint32_t object_new(struct power *p, uint64_t ino, bool is_dir)
{
    p->objects = grown(p->objects, p->n_objects, sizeof(p->objects[0]));
    p->objects[p->n_objects] = (struct object){ino, is_dir};
    return p->n_objects++;
}

static uint32_t object_of(const struct power *p, uint64_t ino)
{
    for (uint32_t i = p->n_objects; i > 0; i--)
        if (p->objects[i - 1].ino == ino)
            return i - 1;
    return NONE;
}

/* --- loading --------------------------------------------------------------------------- */

static void load_link(struct power *p, struct event *e)
{
    const char *path = e->name;
    struct name *there;

    if (path[0] == '\0') { /* the directory itself, again in each life of the process */
        p->objects[TOP].ino = e->r.ino;
        return;
    }
    e->dir = resolve(p, path, &e->name);
    assert(e->dir != NONE);
    there = name_find(p->names, p->n_names, e->dir, e->name);
    if (there != NULL && there->object != NONE)
        return; /* opened again */
    e->object = object_new(p, e->r.ino, e->r.kind == TRACE_MKDIR);
    name_set(&p->names, &p->n_names, e->dir, e->name, e->object);
}

static void load_change(struct power *p, struct event *e)
{
    struct name *there;

    e->dir = resolve(p, e->name, &e->name);
    there = e->dir == NONE ? NULL : name_find(p->names, p->n_names, e->dir, e->name);
    if (there == NULL)
        return;
    e->object = there->object;
    there->object = NONE;
    if (e->r.kind == TRACE_RENAME) {
        uint32_t dir = resolve(p, e->to, &e->to);

        assert(dir == e->dir);
        name_set(&p->names, &p->n_names, dir, e->to, e->object);
    }
}

static void load_event(struct power *p, struct event *e)
{
    e->dir = e->object = NONE;
    switch (e->r.kind) {
    case TRACE_CREATE:
    case TRACE_MKDIR:
        load_link(p, e);
        break;
    case TRACE_UNLINK:
    case TRACE_RENAME:
        load_change(p, e);
        break;
    default:
        assert(e->r.number <= p->n_events + 1);
        e->object = object_of(p, e->r.ino);
        break;
    }
}

static uint8_t *read_file(const char *path, size_t *len)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct stat st;
    uint8_t *bytes;

    assert(fd >= 0 && fstat(fd, &st) == 0);
    bytes = malloc((size_t)st.st_size + 1);
    assert(bytes != NULL);
    *len = 0;
    while (*len < (size_t)st.st_size) {
        ssize_t n = read(fd, bytes + *len, (size_t)st.st_size - *len);

        assert(n > 0);
        *len += (size_t)n;
    }
    close(fd);
    return bytes;
}

struct power *power_load(const char *trace_path)
{
    struct power *p = calloc(1, sizeof(*p));
    size_t len, at = 0;

    assert(p != NULL);
    p->bytes = read_file(trace_path, &len);
    (void)object_new(p, 0, true);
    while (at < len) {
        struct event e = {0};

        assert(len - at >= sizeof(e.r));
        memcpy(&e.r, p->bytes + at, sizeof(e.r));
        at += sizeof(e.r);
        assert(len - at >= (size_t)e.r.name_len + e.r.to_len + e.r.len);
        e.name = (const char *)p->bytes + at;
        e.to = e.name + e.r.name_len;
        e.data = p->bytes + at + e.r.name_len + e.r.to_len;
        at += (size_t)e.r.name_len + e.r.to_len + e.r.len;
        load_event(p, &e);
        p->events = grown(p->events, p->n_events, sizeof(e));
        p->events[p->n_events++] = e;
    }
    return p;
}

void power_free(struct power *p)
{
    if (p == NULL)
        return;
    free(p->bytes);
    free(p->events);
    free(p->objects);
    free(p->names);
    free(p);
}

size_t power_n(const struct power *p)
{
    return p->n_events;
}

uint64_t power_us(const struct power *p, size_t at)
{
    return at == 0 ? 0 : p->events[at - 1].r.us;
}

uint8_t *power_written(const struct power *p, size_t at, const char *name, size_t *len)
{
    uint32_t object = NONE;
    uint8_t *out = NULL;
    size_t n = 0;

    for (size_t i = 0; i < at; i++) {
        const struct event *e = &p->events[i];

        if (e->r.kind == TRACE_CREATE && e->dir == TOP && strcmp(e->name, name) == 0 &&
            e->object != NONE)
            object = e->object;
        if (e->r.kind != TRACE_WRITE || e->object != object || object == NONE)
            continue;
        out = realloc(out, n + e->r.len);
        assert(out != NULL);
        memcpy(out + n, e->data, e->r.len);
        n += e->r.len;
    }
    *len = n;
    return out;
}

/* --- the loss -------------------------------------------------------------------------- */

struct loss {
    const struct power *p;
    size_t at;
    enum power_mode mode;
    uint64_t seed;
    size_t *synced; /* by object: what came before this record is on the disk */
    struct name *names;
    size_t n_names;
};

static uint64_t chance(const struct loss *l, uint64_t object, uint64_t what)
{
    return rng_mix(l->seed ^ rng_mix(object * 1000003 + what));
}

static void find_synced(struct loss *l)
{
    size_t *begun = calloc(l->p->n_events + 2, sizeof(*begun));

    assert(begun != NULL);
    for (size_t i = 0; i < l->at; i++) {
        const struct event *e = &l->p->events[i];

        if (e->r.kind == TRACE_SYNC_BEGIN)
            begun[e->r.number] = i;
        if (e->r.kind != TRACE_SYNC_END)
            continue;
        for (uint32_t k = 0; k < l->p->n_objects; k++)
            if ((k == e->object || e->r.ino == TRACE_INO_ALL) && begun[e->r.number] > l->synced[k])
                l->synced[k] = begun[e->r.number];
    }
    free(begun);
}

/* How many of n changes that are not synced are there all the same. */
static size_t n_kept(const struct loss *l, uint64_t object, size_t n, uint64_t what)
{
    switch (l->mode) {
    case POWER_DROP:
        return 0;
    case POWER_KEEP:
        return n;
    default:
        return chance(l, object, what) % (n + 1);
    }
}

static bool changes_name(const struct event *e, uint32_t dir)
{
    return e->dir == dir && e->object != NONE;
}

static void lose_names(struct loss *l, uint32_t dir)
{
    size_t left = 0;

    for (size_t i = l->synced[dir]; i < l->at; i++)
        left += changes_name(&l->p->events[i], dir);
    left = n_kept(l, dir, left, 0);
    for (size_t i = 0; i < l->at; i++) {
        const struct event *e = &l->p->events[i];

        if (!changes_name(e, dir))
            continue;
        if (i >= l->synced[dir] && left-- == 0)
            break;
        if (e->r.kind == TRACE_CREATE || e->r.kind == TRACE_MKDIR) {
            name_set(&l->names, &l->n_names, dir, e->name, e->object);
        } else {
            name_set(&l->names, &l->n_names, dir, e->name, NONE);
            if (e->r.kind == TRACE_RENAME)
                name_set(&l->names, &l->n_names, dir, e->to, e->object);
        }
    }
}

struct image {
    uint8_t *bytes;
    size_t len, cap;
};

static void image_put(struct image *m, size_t at, const uint8_t *data, size_t len)
{
    if (at + len > m->cap) {
        m->cap = 2 * (at + len);
        m->bytes = realloc(m->bytes, m->cap);
        assert(m->bytes != NULL);
    }
    if (at > m->len)
        memset(m->bytes + m->len, 0, at - m->len);
    memcpy(m->bytes + at, data, len);
    m->len = at + len > m->len ? at + len : m->len;
}

/*
 * Of the unsynced changes of a file, how many the sector has seen: a page goes to the disk as it is
 * at some moment, and a page that is on its way has some sectors of that moment and some of before.
 */
static size_t seen_by(const struct loss *l, uint64_t object, size_t sector, size_t n)
{
    uint64_t page = chance(l, object, 1 + sector / (PAGE / SECTOR));

    switch (page >> 32 & 3) {
    case 0:
        return 0;
    case 1:
        return n;
    case 2:
        return page % (n + 1);
    default:
        return chance(l, object, ~sector) & 1 ? n : page % (n + 1);
    }
}

/* One change, the rank-th of n that are not synced. */
static void change_file(const struct loss *l, uint32_t object, const struct event *e, size_t rank,
                        size_t n, struct image *m)
{
    size_t at = (size_t)e->r.offset, end = at + e->r.len;

    if (e->r.kind == TRACE_CUT) {
        if (rank < n_kept(l, object, n, 0) && at < m->len)
            m->len = at;
        return;
    }
    if (l->mode != POWER_MIX) {
        size_t kept = n_kept(l, object, n, 0), len = e->r.len;

        if (rank > kept || (rank == kept && l->mode != POWER_ORDER))
            return;
        if (rank == kept) /* under way when the power went */
            len = chance(l, object, 2) % (len + 1);
        if (len > 0)
            image_put(m, at, e->data, len);
        return;
    }
    while (at < end) {
        size_t sector = at / SECTOR, to = (sector + 1) * SECTOR < end ? (sector + 1) * SECTOR : end;

        if (rank < seen_by(l, object, sector, n))
            image_put(m, at, e->data + (at - (size_t)e->r.offset), to - at);
        at = to;
    }
}

static void make_file(const struct loss *l, uint32_t object, int dir_fd, const char *name)
{
    struct image m = {0};
    size_t n = 0, rank = 0;
    int fd = openat(dir_fd, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);

    assert(fd >= 0);
    for (size_t i = l->synced[object]; i < l->at; i++) {
        const struct event *e = &l->p->events[i];

        n += e->object == object && (e->r.kind == TRACE_WRITE || e->r.kind == TRACE_CUT);
    }
    for (size_t i = 0; i < l->at; i++) {
        const struct event *e = &l->p->events[i];

        if (e->object != object || (e->r.kind != TRACE_WRITE && e->r.kind != TRACE_CUT))
            continue;
        if (i >= l->synced[object])
            change_file(l, object, e, rank++, n, &m);
        else if (e->r.kind == TRACE_WRITE)
            image_put(&m, (size_t)e->r.offset, e->data, e->r.len);
        else if ((size_t)e->r.offset < m.len)
            m.len = (size_t)e->r.offset;
    }
    for (size_t done = 0; done < m.len;) {
        ssize_t w = write(fd, m.bytes + done, m.len - done);

        assert(w > 0);
        done += (size_t)w;
    }
    close(fd);
    free(m.bytes);
}

static void make_dir(struct loss *l, uint32_t dir, int fd)
{
    lose_names(l, dir);
    for (size_t i = 0; i < l->n_names; i++) {
        struct name n = l->names[i];

        if (n.dir != dir || n.object == NONE)
            continue;
        if (l->p->objects[n.object].is_dir) {
            int sub;

            if (mkdirat(fd, n.name, 0700) < 0)
                abort();
            sub = openat(fd, n.name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
            assert(sub >= 0);
            make_dir(l, n.object, sub);
            close(sub);
        } else {
            make_file(l, n.object, fd, n.name);
        }
    }
}

void power_cut(const struct power *p, size_t at, enum power_mode mode, struct rng *rng,
               const char *dir)
{
    struct loss l = {.p = p, .at = at, .mode = mode, .seed = rng_next(rng)};
    int fd;

    l.synced = calloc(p->n_objects, sizeof(*l.synced));
    assert(l.synced != NULL);
    find_synced(&l);
    if (mkdir(dir, 0700) < 0)
        abort();
    fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert(fd >= 0);
    make_dir(&l, TOP, fd);
    close(fd);
    free(l.synced);
    free(l.names);
}

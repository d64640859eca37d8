/*
 * value_file.c - values too large for the database: a file each, DIR/XX/ID, named by an id that is
 * used once.
 */
#include "node/value_file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "node/store.h"

#define N_DIRS 256u
#define NAME_LEN 20 /* "xx/", 16 hex digits, NUL */
/* So much is handed to the disk at a time, so that the sync at the end finds little left. */
#define WRITEBACK_LEN (4u << 20)

struct value_dir {
    int fd;
    bool sync;
    atomic_bool *broken;
    _Atomic uint64_t next_id;
    _Atomic uint64_t size; /* of those that were kept */
};

struct store_file {
    struct value_dir *dir;
    int fd;
    bool left;
    uint64_t id, size, written, started; /* started: on its way to the disk */
};

/* By the low byte: ids that follow each other go to different directories. */
static void file_name(uint64_t id, char out[NAME_LEN])
{
    snprintf(out, NAME_LEN, "%02x/%016" PRIx64, (unsigned)(id & (N_DIRS - 1)), id);
}

static int make_dirs(int fd)
{
    bool made = false;
    char name[12];

    for (unsigned i = 0; i < N_DIRS; i++) {
        snprintf(name, sizeof(name), "%02x", i);
        if (mkdirat(fd, name, 0700) == 0)
            made = true;
        else if (errno != EEXIST)
            return -errno;
    }
    return made && fsync(fd) < 0 ? -errno : 0;
}

int value_dir_open(const char *path, bool sync, atomic_bool *broken, struct value_dir **out,
                   struct err *err)
{
    struct value_dir *d = calloc(1, sizeof(*d));
    uint64_t base;
    int ret = 0;

    if (d == NULL)
        return err_set(err, -ENOMEM, "no memory");
    d->fd = -1;
    d->sync = sync;
    d->broken = broken;
    /* Ids count on from a random start: never read back, and still never used twice. */
    if ((mkdir(path, 0700) < 0 && errno != EEXIST) || getrandom(&base, sizeof(base), 0) < 0)
        ret = -errno;
    if (ret == 0) {
        d->fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        ret = d->fd < 0 ? -errno : make_dirs(d->fd);
    }
    if (ret < 0) {
        value_dir_close(d);
        return err_set(err, ret, "%s: %s", path, strerror(-ret));
    }
    d->next_id = base;
    *out = d;
    return 0;
}

void value_dir_close(struct value_dir *d)
{
    if (d == NULL)
        return;
    if (d->fd >= 0)
        close(d->fd);
    free(d);
}

uint64_t value_dir_next_id(struct value_dir *d)
{
    return atomic_fetch_add(&d->next_id, 1);
}

int value_dir_read(struct value_dir *d, uint64_t id)
{
    char name[NAME_LEN];
    int fd;

    file_name(id, name);
    fd = openat(d->fd, name, O_RDONLY | O_CLOEXEC);
    return fd < 0 ? -errno : fd;
}

uint64_t value_dir_size(const struct value_dir *d)
{
    return atomic_load(&d->size);
}

static uint64_t file_size(const struct value_dir *d, const char *name)
{
    struct stat st;

    return fstatat(d->fd, name, &st, 0) == 0 ? (uint64_t)st.st_size : 0;
}

/* kept: it counts as what there is. */
static void remove_file(struct value_dir *d, uint64_t id, bool kept)
{
    char name[NAME_LEN];
    uint64_t size;

    file_name(id, name);
    size = kept ? file_size(d, name) : 0;
    if (unlinkat(d->fd, name, 0) == 0) /* what stays is swept at the next start */
        atomic_fetch_sub(&d->size, size);
}

void value_dir_remove(struct value_dir *d, uint64_t id)
{
    remove_file(d, id, true);
}

/* --- what a crash left ----------------------------------------------------------------- */

static int id_cmp(const void *a, const void *b)
{
    const uint64_t *x = a, *y = b;

    return *x < *y ? -1 : *x > *y;
}

/* The id in a file's name; anything else in there is not ours to touch. */
static bool parse_name(const char *name, uint64_t *out)
{
    char again[17];
    char *end;
    uint64_t id = strtoull(name, &end, 16);

    snprintf(again, sizeof(again), "%016" PRIx64, id);
    if (strcmp(again, name) != 0)
        return false;
    *out = id;
    return true;
}

static DIR *open_part(struct value_dir *d, unsigned i)
{
    char name[12];
    DIR *dir;
    int fd;

    snprintf(name, sizeof(name), "%02x", i);
    fd = openat(d->fd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return NULL;
    dir = fdopendir(fd);
    if (dir == NULL)
        close(fd);
    return dir;
}

int value_dir_used(struct value_dir *d)
{
    bool found = false;

    for (unsigned i = 0; i < N_DIRS && !found; i++) {
        DIR *dir = open_part(d, i);
        const struct dirent *e;
        uint64_t id;

        if (dir == NULL)
            return -errno;
        while (!found && (e = readdir(dir)) != NULL)
            found = parse_name(e->d_name, &id);
        closedir(dir);
    }
    return found;
}

int value_dir_sweep(struct value_dir *d, uint64_t *ids, size_t n_ids)
{
    int n = 0;

    if (n_ids > 0)
        qsort(ids, n_ids, sizeof(ids[0]), id_cmp);
    for (unsigned i = 0; i < N_DIRS; i++) {
        DIR *dir = open_part(d, i);
        const struct dirent *e;
        uint64_t id;

        if (dir == NULL)
            return -errno;
        while ((e = readdir(dir)) != NULL) {
            char name[NAME_LEN];

            if (!parse_name(e->d_name, &id))
                continue;
            if (n_ids > 0 && bsearch(&id, ids, n_ids, sizeof(id), id_cmp) != NULL) {
                file_name(id, name);
                atomic_fetch_add(&d->size, file_size(d, name));
            } else {
                remove_file(d, id, false);
                n++;
            }
        }
        closedir(dir);
    }
    return n;
}

/* --- a file on its way in -------------------------------------------------------------- */

int value_file_begin(struct value_dir *d, uint64_t size, struct store_file **out)
{
    struct store_file *f = calloc(1, sizeof(*f));
    char name[NAME_LEN];
    int err = 0;

    if (f == NULL)
        return -ENOMEM;
    f->dir = d;
    f->size = size;
    f->id = value_dir_next_id(d);
    file_name(f->id, name);
    f->fd = openat(d->fd, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (f->fd < 0) {
        err = -errno;
        free(f);
        return err;
    }
    if (fallocate(f->fd, FALLOC_FL_KEEP_SIZE, 0, (off_t)size) < 0 && errno != EOPNOTSUPP &&
        errno != ENOSYS) {
        err = -errno;
        value_file_abort(f);
        return err;
    }
    *out = f;
    return 0;
}

/* What failed on a disk that has room shall not look well at the next try. */
static int disk_failed(struct value_dir *d, int err)
{
    if (err != -ENOSPC && err != -EDQUOT && err != -EFBIG)
        atomic_store(d->broken, true);
    return err;
}

int value_file_write(struct store_file *f, struct span part)
{
    int err;

    if (part.len > f->size - f->written)
        return -EFBIG;
    err = store_write_all(f->fd, part);
    if (err < 0)
        return disk_failed(f->dir, err);
    f->written += part.len;
    if (f->written - f->started >= WRITEBACK_LEN) {
        (void)sync_file_range(f->fd, (off_t)f->started, (off_t)(f->written - f->started),
                              SYNC_FILE_RANGE_WRITE);
        f->started = f->written; /* only a hint: the sync at the end is what counts */
    }
    return 0;
}

static int sync_part(struct value_dir *d, uint64_t id)
{
    char name[NAME_LEN];
    int fd, err = 0;

    file_name(id, name);
    name[2] = '\0';
    fd = openat(d->fd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    if (fsync(fd) < 0)
        err = disk_failed(d, -errno);
    close(fd);
    return err;
}

int value_file_finish(struct store_file *f)
{
    if (f->written != f->size)
        return -EINVAL;
    if (!f->dir->sync)
        return 0;
    if (fdatasync(f->fd) < 0)
        return disk_failed(f->dir, -errno);
    return sync_part(f->dir, f->id);
}

uint64_t value_file_id(const struct store_file *f)
{
    return f->id;
}

void value_file_keep(struct store_file *f)
{
    atomic_fetch_add(&f->dir->size, f->size);
    close(f->fd);
    free(f);
}

void value_file_leave(struct store_file *f)
{
    f->left = true;
}

void value_file_abort(struct store_file *f)
{
    if (f == NULL)
        return;
    if (!f->left)
        remove_file(f->dir, f->id, false);
    close(f->fd);
    free(f);
}

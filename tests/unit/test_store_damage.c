/*
 * test_store_damage.c - a store whose files are damaged, or whose machine lost its power: what
 * opening it does, and that whatever is flipped, no other bytes than those that were put ever come
 * out.
 *
 * DAMAGE_FLIPS=1000 flips more.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "common/hash.h"
#include "common/limits.h"
#include "common/log.h"
#include "node/set_aside.h"
#include "node/store.h"
#include "tests/lib/rng.h"

#define N_KEYS 60u
#define SKIPPED 77

struct fixture {
    char top[64], dir[80];
    struct store *s;
    bool fresh, distrusted;
    enum store_fsync mode;
};

/* --- fixture --------------------------------------------------------------------------- */

static int setup(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));
    const char *in = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp"; /* quicker by far */

    assert_non_null(f);
    snprintf(f->top, sizeof(f->top), "%s/test-damage-XXXXXX", in);
    assert_non_null(mkdtemp(f->top));
    snprintf(f->dir, sizeof(f->dir), "%s/data", f->top);
    *state = f;
    return 0;
}

static int try_open(struct fixture *f, struct err *err)
{
    return store_rocksdb_open(f->dir, "node-1", f->mode, &f->s, &f->fresh, &f->distrusted, err);
}

static void open_store(struct fixture *f)
{
    struct err err = {""};

    if (try_open(f, &err) < 0)
        fail_msg("%s", err.msg);
}

static void close_store(struct fixture *f)
{
    if (f->s != NULL)
        f->s->ops->close(f->s);
    f->s = NULL;
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void)st;
    (void)type;
    (void)ftw;
    return remove(path);
}

static int teardown(void **state)
{
    struct fixture *f = *state;

    close_store(f);
    (void)nftw(f->top, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    free(f);
    return 0;
}

/* --- what is in the store -------------------------------------------------------------- */

static size_t size_of(unsigned i)
{
    return i % 20 == 19 ? INLINE_VALUE_MAX + 1 + i : i % 7 * 700;
}

static void fill(uint8_t *out, unsigned i)
{
    for (size_t k = 0; k < size_of(i); k++)
        out[k] = (uint8_t)(hash_fmix64(i * 1000003ull + k / 8) >> (k % 8 * 8));
}

static int put(struct store *s, unsigned i)
{
    static uint8_t bytes[2 * INLINE_VALUE_MAX];
    struct span key = span_of(&i, sizeof(i)), value = span_of(bytes, size_of(i));
    struct store_file *file = NULL;
    int err = 0;

    fill(bytes, i);
    if (value.len <= INLINE_VALUE_MAX)
        return s->ops->put(s, key, key, value, NULL, false);
    err = s->ops->file_begin(s, value.len, &file);
    if (err < 0)
        return err;
    err = s->ops->file_write(file, value);
    if (err == 0)
        err = s->ops->file_finish(file);
    if (err == 0)
        err = s->ops->put(s, key, key, (struct span){0}, file, false);
    if (err < 0)
        s->ops->file_abort(file);
    return err;
}

/* 1: as it was put; 0: not there; -EBADMSG: damaged, and so told; else -EIO. */
static int look(struct store *s, unsigned i)
{
    static uint8_t want[2 * INLINE_VALUE_MAX], got[2 * INLINE_VALUE_MAX];
    struct span key = span_of(&i, sizeof(i)), value;
    struct store_item item = STORE_ITEM_NONE;
    int ret = s->ops->get(s, key, true, &item);

    if (ret < 0)
        return ret;
    fill(want, i);
    value = value_span(item.value);
    if (item.large != NULL) {
        size_t n = item.large->size < sizeof(got) ? (size_t)item.large->size : sizeof(got);

        value = span_of(got, item.large->ops->read(item.large, got, n, 0) < 0 ? 0 : n);
    }
    if (item.record.len > 0)
        ret = span_eq(buf_span(&item.record), key) && span_eq(value, span_of(want, size_of(i)))
                  ? 1
                  : -EIO;
    /* A value's file has its checksums in the record: the replica looks at those. */
    if (ret == -EIO && item.large != NULL)
        ret = -EBADMSG;
    store_item_fini(&item);
    return ret;
}

static void fill_store(struct fixture *f)
{
    open_store(f);
    for (unsigned i = 0; i < N_KEYS; i++) {
        assert_int_equal(put(f->s, i), 0);
        if (i == N_KEYS / 2) { /* so that one half is in tables, and the other in the log */
            close_store(f);
            open_store(f);
        }
    }
    close_store(f);
}

/* --- files ----------------------------------------------------------------------------- */

/* Calls fn for every regular file below path; returns how many. */
static unsigned each_file(const char *path, void (*fn)(const char *path, void *arg), void *arg)
{
    struct dirent *e;
    unsigned n = 0;
    DIR *dir = opendir(path);

    if (dir == NULL)
        return 0;
    while ((e = readdir(dir)) != NULL) {
        char below[600];

        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
            continue;
        snprintf(below, sizeof(below), "%s/%s", path, e->d_name);
        if (e->d_type == DT_DIR)
            n += each_file(below, fn, arg);
        if (e->d_type == DT_REG) {
            fn(below, arg);
            n++;
        }
    }
    closedir(dir);
    return n;
}

static void flip_byte(const char *path, off_t at)
{
    uint8_t byte;
    int fd = open(path, O_RDWR | O_CLOEXEC);

    assert_true(fd >= 0);
    assert_int_equal(pread(fd, &byte, 1, at), 1);
    byte ^= (uint8_t)(1u << (at % 8));
    assert_int_equal(pwrite(fd, &byte, 1, at), 1);
    close(fd);
}

static bool ends_in(const char *path, const char *end)
{
    size_t len = strlen(path), end_len = strlen(end);

    return len >= end_len && strcmp(path + len - end_len, end) == 0;
}

/* The middle byte of the log. */
static void flip_log(const char *path, void *arg)
{
    struct stat st;

    (void)arg;
    assert_int_equal(stat(path, &st), 0);
    if (ends_in(path, ".log") && st.st_size > 0)
        flip_byte(path, st.st_size / 2);
}

static void damage(struct fixture *f)
{
    char db[100];

    snprintf(db, sizeof(db), "%s/db", f->dir);
    assert_true(each_file(db, flip_log, NULL) > 0);
}

/* How many names in the data directory begin so; the last of them in out, if there. */
static unsigned names(const struct fixture *f, const char *begin, char *out, size_t cap)
{
    DIR *dir = opendir(f->dir);
    struct dirent *e;
    unsigned n = 0;

    assert_non_null(dir);
    while ((e = readdir(dir)) != NULL) {
        if (strncmp(e->d_name, begin, strlen(begin)) != 0)
            continue;
        n++;
        if (out != NULL)
            snprintf(out, cap, "%s", e->d_name);
    }
    closedir(dir);
    return n;
}

/* As if it had been set aside long ago, or was moved away. */
static void age(struct fixture *f, const char *as)
{
    char name[300] = "", from[400], to[400];

    assert_int_equal(names(f, "damaged-2", name, sizeof(name)), 1);
    snprintf(from, sizeof(from), "%s/%s", f->dir, name);
    snprintf(to, sizeof(to), "%s/%s", f->dir, as);
    assert_int_equal(rename(from, to), 0);
}

/* --- set aside ------------------------------------------------------------------------- */

static void a_damaged_store_is_set_aside_whole_with_its_reason(void **state)
{
    struct fixture *f = *state;
    char name[300], path[500], reason[700] = "";
    struct stat st;
    int fd;

    fill_store(f);
    damage(f);
    open_store(f);
    assert_true(f->fresh);
    assert_int_equal(look(f->s, 1), 0);
    assert_int_equal(put(f->s, 1), 0); /* and works */
    assert_int_equal(names(f, "damaged", name, sizeof(name)), 1);
    snprintf(path, sizeof(path), "%s/%s/REASON", f->dir, name);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_true(read(fd, reason, sizeof(reason) - 1) > 0);
    close(fd);
    assert_non_null(strstr(reason, "Corruption"));
    snprintf(path, sizeof(path), "%s/%s/db/CURRENT", f->dir, name);
    assert_int_equal(stat(path, &st), 0);
    snprintf(path, sizeof(path), "%s/%s/values/00", f->dir, name);
    assert_int_equal(stat(path, &st), 0);
    snprintf(path, sizeof(path), "%s/node-id", f->dir);
    assert_int_equal(stat(path, &st), 0);
    close_store(f);
    open_store(f); /* once is enough */
    assert_false(f->fresh);
    assert_int_equal(look(f->s, 1), 1);
}

static void a_store_condemned_while_in_use_is_set_aside_by_the_next_start(void **state)
{
    struct fixture *f = *state;
    struct err err;

    fill_store(f);
    open_store(f);
    assert_false(f->fresh);
    assert_int_equal(store_rocksdb_condemn(f->dir, "its books make no sense", &err), 0);
    close_store(f);
    open_store(f);
    assert_true(f->fresh);
    assert_int_equal(names(f, "damaged-", NULL, 0), 1);
}

static void setting_aside_goes_on_where_a_crash_ended_it(void **state)
{
    struct fixture *f = *state;
    char name[300], from[400], to[400], path[400], line[40] = "";
    struct stat st;
    struct err err;
    int fd;

    fill_store(f);
    assert_int_equal(store_rocksdb_condemn(f->dir, "damage", &err), 0);
    /* One of two was moved when the machine went down. */
    snprintf(path, sizeof(path), "%s/damaged", f->dir);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    assert_true(fd >= 0 && read(fd, line, sizeof(line) - 1) > 0);
    close(fd);
    line[strcspn(line, "\n")] = '\0';
    snprintf(to, sizeof(to), "%s/%s", f->dir, line);
    assert_int_equal(mkdir(to, 0700), 0);
    snprintf(from, sizeof(from), "%s/db", f->dir);
    snprintf(to, sizeof(to), "%s/%s/db", f->dir, line);
    assert_int_equal(rename(from, to), 0);
    open_store(f);
    assert_true(f->fresh);
    assert_int_equal(names(f, "damaged", name, sizeof(name)), 1);
    snprintf(path, sizeof(path), "%s/%s/values", f->dir, name);
    assert_int_equal(stat(path, &st), 0);
    snprintf(path, sizeof(path), "%s/%s/REASON", f->dir, name);
    assert_int_equal(stat(path, &st), 0);
}

static void a_second_damage_soon_after_is_refused_and_later_is_not(void **state)
{
    struct fixture *f = *state;
    struct err err;

    fill_store(f);
    damage(f);
    open_store(f);
    close_store(f);
    fill_store(f);
    damage(f);
    assert_int_equal(try_open(f, &err), -EBADMSG);
    f->s = NULL;
    assert_non_null(strstr(err.msg, "Corruption"));
    assert_non_null(strstr(err.msg, "memory"));
    assert_int_equal(names(f, "damaged-", NULL, 0), 1);
    age(f, "damaged-20200101T000000Z");
    open_store(f);
    assert_true(f->fresh);
    assert_int_equal(names(f, "damaged-", NULL, 0), 2);
}

static void three_damaged_stores_in_one_place_are_enough(void **state)
{
    struct fixture *f = *state;
    struct err err;

    for (unsigned i = 0; i < SET_ASIDE_MAX; i++) {
        char as[40];

        fill_store(f);
        damage(f);
        open_store(f);
        close_store(f);
        snprintf(as, sizeof(as), "damaged-1999010%uT000000Z", i + 1);
        age(f, as);
    }
    fill_store(f);
    damage(f);
    assert_int_equal(try_open(f, &err), -EBADMSG);
    f->s = NULL;
    assert_int_equal(names(f, "damaged-", NULL, 0), SET_ASIDE_MAX);
}

static const char *const books[] = {"CURRENT", "MANIFEST-", ".sst"};

static void remove_book(const char *path, void *arg)
{
    if (strstr(path, *(const char *const *)arg) != NULL)
        assert_int_equal(unlink(path), 0);
}

static void books_that_are_gone_are_damage_and_not_a_new_store(void **state)
{
    struct fixture *f = *state;

    for (size_t i = 0; i < sizeof(books) / sizeof(books[0]); i++) {
        const char *book = books[i];
        char db[100], as[60];

        fill_store(f);
        snprintf(db, sizeof(db), "%s/db", f->dir);
        (void)each_file(db, remove_book, &book);
        open_store(f);
        if (!f->fresh || names(f, "damaged-2", NULL, 0) != 1)
            fail_msg("without %s it was not set aside", book);
        close_store(f);
        snprintf(as, sizeof(as), "damaged-1999010%zuT000000Z", i + 1);
        age(f, as);
    }
}

static void a_directory_that_does_not_tell_whose_it_is_is_refused(void **state)
{
    struct fixture *f = *state;
    char path[100];
    struct err err;

    fill_store(f);
    snprintf(path, sizeof(path), "%s/node-id", f->dir);
    flip_byte(path, 2);
    assert_int_equal(try_open(f, &err), -EINVAL);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(try_open(f, &err), -EINVAL);
    assert_non_null(strstr(err.msg, "node-id"));
    f->s = NULL;
    assert_int_equal(names(f, "damaged", NULL, 0), 0);
}

/* --- a torn log ------------------------------------------------------------------------ */

/* Empties the sector that is so far from the log's end. */
static void empty_sector(const char *path, void *arg)
{
    static const uint8_t zeros[512];
    const off_t *from_end = arg;
    struct stat st;
    int fd;

    assert_int_equal(stat(path, &st), 0);
    if (!ends_in(path, ".log") || st.st_size < *from_end)
        return;
    fd = open(path, O_WRONLY | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(pwrite(fd, zeros, sizeof(zeros), (st.st_size - *from_end) / 512 * 512), 512);
    close(fd);
}

/* Three values of 3,500 bytes in the log, and a hole in it. */
static void make_hole(struct fixture *f, off_t from_end)
{
    char db[100];

    open_store(f);
    for (unsigned i = 5; i < 20; i += 7) /* 5, 12 and 19: the last is 3,500 bytes, too */
        assert_int_equal(put(f->s, i == 19 ? 26 : i), 0);
    close_store(f);
    snprintf(db, sizeof(db), "%s/db", f->dir);
    assert_int_equal(each_file(db, empty_sector, &from_end) > 0, 1);
    open_store(f);
}

static void a_log_torn_in_its_last_record_loses_that_alone(void **state)
{
    struct fixture *f = *state;

    make_hole(f, 1800);
    assert_false(f->fresh);
    assert_false(f->distrusted);
    assert_int_equal(look(f->s, 5), 1);
    assert_int_equal(look(f->s, 12), 1);
    assert_int_equal(look(f->s, 26), 0); /* never acknowledged: it would have been synced */
    assert_int_equal(put(f->s, 26), 0);
    close_store(f);
    open_store(f);
    assert_int_equal(look(f->s, 26), 1);
}

static void a_hole_before_the_last_record_is_damage(void **state)
{
    struct fixture *f = *state;

    make_hole(f, 5500);
    assert_true(f->fresh);
    assert_int_equal(names(f, "damaged-", NULL, 0), 1);
}

/* --- flipped bytes --------------------------------------------------------------------- */

struct pick {
    uint64_t left; /* bytes still to go before the one to flip */
    bool done;
};

static void add_size(const char *path, void *arg)
{
    struct stat st;

    if (stat(path, &st) == 0)
        *(uint64_t *)arg += (uint64_t)st.st_size;
}

static void flip_picked(const char *path, void *arg)
{
    struct pick *p = arg;
    struct stat st;

    if (p->done || stat(path, &st) < 0)
        return;
    p->done = p->left < (uint64_t)st.st_size;
    if (p->done) {
        flip_byte(path, (off_t)p->left);
        (void)fprintf(stderr, "flipped byte %llu of %s\n", (unsigned long long)p->left, path);
    } else {
        p->left -= (uint64_t)st.st_size;
    }
}

/*
 * This program once more, for the library's threads do not survive a fork. What it exited with, or
 * 128 and more where a signal ended it.
 */
static int run_self(const char *what, const char *top, const char *dir, unsigned number)
{
    char text[12];
    int status;
    pid_t pid;

    snprintf(text, sizeof(text), "%u", number);
    pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        (void)execl("/proc/self/exe", "test_store_damage", what, top, dir, text, (char *)NULL);
        _exit(127);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

#define FLIPPED "--flipped"

/* As a program of its own, for an assertion of the library may end it. */
static int use_flipped(struct fixture *f)
{
    struct store_iter *it;
    char note[100];
    struct err err;
    unsigned n = 0;
    int ret = try_open(f, &err);

    if (ret < 0)
        return 1;
    for (unsigned i = 0; i < N_KEYS; i++) {
        ret = look(f->s, i);
        if (ret < 0 && ret != -EBADMSG)
            return 2;
        if (ret == 0 && !f->fresh)
            return 3;
    }
    if (f->s->ops->iter_new(f->s, &it) < 0)
        return 4;
    for (f->s->ops->iter_seek(it, (struct span){0}); f->s->ops->iter_valid(it);
         f->s->ops->iter_next(it))
        n++;
    ret = f->s->ops->iter_err(it);
    f->s->ops->iter_free(it);
    if (ret == 0 && n != (f->fresh ? 0 : N_KEYS))
        return 5;
    if (ret < 0 && f->s->ops->damage(f->s, &err) == 0)
        return 6;
    (void)snprintf(note, sizeof(note), "%s/damaged", f->dir);
    if (ret < 0 && access(note, F_OK) < 0) /* a kill -9 may come now */
        return 8;
    for (unsigned i = 0; i < N_KEYS; i++)
        if (put(f->s, i) == 0 && look(f->s, i) != 1)
            return 7;
    close_store(f);
    return 0;
}

static int copy_tree(const char *from, const char *to)
{
    char command[300];

    snprintf(command, sizeof(command), "cp -a %s %s", from, to);
    return system(command);
}

static void no_flipped_byte_shows_other_bytes_or_ends_the_process(void **state)
{
    struct fixture *f = *state;
    const char *more = getenv("DAMAGE_FLIPS");
    unsigned n = more != NULL ? (unsigned)strtoul(more, NULL, 10) : 12;
    uint64_t seed = (uint64_t)time(NULL);
    struct rng rng = {seed};

    fill_store(f);
    for (unsigned i = 0; i < n; i++) {
        struct fixture child = *f;
        struct pick pick = {0};
        uint64_t total = 0;
        char db[120];
        int ret;

        snprintf(child.dir, sizeof(child.dir), "%s/flipped", f->top);
        assert_int_equal(copy_tree(f->dir, child.dir), 0);
        snprintf(db, sizeof(db), "%s/%s", child.dir, i % 8 == 0 ? "values" : "db");
        (void)each_file(db, add_size, &total);
        assert_true(total > 0);
        pick.left = rng_below(&rng, total);
        (void)each_file(db, flip_picked, &pick);
        ret = run_self(FLIPPED, f->top, child.dir, 0);
        if (ret != 0)
            fail_msg("seed %llu, flip %u: ended with %d", (unsigned long long)seed, i, ret);
        (void)nftw(child.dir, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    }
}

/* --- power ----------------------------------------------------------------------------- */

/* As after a reboot: this process, and nobody else, sees another boot id. */
static bool reboot_seemingly(const struct fixture *f)
{
    char path[100];
    int fd;

    if (unshare(CLONE_NEWNS) < 0 || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0)
        return false;
    snprintf(path, sizeof(path), "%s/boot-id", f->top);
    fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0 || dprintf(fd, "01234567-89ab-cdef-0123-456789abcdef\n") < 0)
        return false;
    close(fd);
    return mount(path, "/proc/sys/kernel/random/boot_id", NULL, MS_BIND, NULL) == 0;
}

enum end { STOPPED, KILLED, UNTRUSTED };

#define LIFE "--life"
#define REBOOTED 100u

/* As a program of its own. how: REBOOTED? + 10 * mode + end. */
static int live(struct fixture *f, unsigned how)
{
    enum end end = how % 10;
    struct err err;

    f->mode = how % REBOOTED / 10;
    if (how >= REBOOTED && !reboot_seemingly(f))
        return SKIPPED;
    if (try_open(f, &err) < 0 || put(f->s, 1) < 0)
        return 2;
    if (f->distrusted && end != UNTRUSTED && store_rocksdb_trust(f->s) < 0)
        return 3;
    if (end == STOPPED)
        close_store(f);
    _exit(f->distrusted);
}

/* Opens the store, writes, and ends so: did the store say that it is to be distrusted? */
static int one_life(struct fixture *f, enum store_fsync mode, bool rebooted, enum end end)
{
    int ret = run_self(LIFE, f->top, f->dir, (rebooted ? REBOOTED : 0) + 10 * mode + end);

    if (ret == SKIPPED)
        skip(); /* only root may have a boot id of its own */
    return ret;
}

static void only_a_power_loss_in_a_mode_that_does_not_sync_is_distrusted(void **state)
{
    static const enum store_fsync weak[] = {STORE_FSYNC_EVERYSEC, STORE_FSYNC_NEVER};
    struct fixture *f = *state;

    for (unsigned i = 0; i < 2; i++) {
        assert_int_equal(one_life(f, weak[i], false, KILLED), 0);
        assert_int_equal(one_life(f, weak[i], false, KILLED), 0); /* the kernel has it all */
        assert_int_equal(one_life(f, weak[i], false, STOPPED), 0);
        assert_int_equal(one_life(f, weak[i], true, STOPPED), 0); /* rebooted in good order */
        assert_int_equal(one_life(f, weak[i], false, KILLED), 0);
        assert_int_equal(one_life(f, weak[i], true, STOPPED), 1); /* the power was gone */
        assert_int_equal(one_life(f, weak[i], false, STOPPED), 0);
    }
    assert_int_equal(one_life(f, STORE_FSYNC_ALWAYS, false, KILLED), 0);
    assert_int_equal(one_life(f, STORE_FSYNC_ALWAYS, true, KILLED), 0);
}

static void the_mode_that_counts_is_the_one_before_the_loss(void **state)
{
    struct fixture *f = *state;

    assert_int_equal(one_life(f, STORE_FSYNC_NEVER, false, KILLED), 0);
    assert_int_equal(one_life(f, STORE_FSYNC_ALWAYS, true, KILLED), 1);
    assert_int_equal(one_life(f, STORE_FSYNC_NEVER, false, KILLED), 0);
    assert_int_equal(one_life(f, STORE_FSYNC_ALWAYS, false, KILLED), 0); /* synced all */
    assert_int_equal(one_life(f, STORE_FSYNC_ALWAYS, true, KILLED), 0);
}

static void distrust_stays_until_it_was_taken_to_heart(void **state)
{
    struct fixture *f = *state;

    assert_int_equal(one_life(f, STORE_FSYNC_EVERYSEC, false, KILLED), 0);
    assert_int_equal(one_life(f, STORE_FSYNC_EVERYSEC, true, UNTRUSTED), 1);
    assert_int_equal(one_life(f, STORE_FSYNC_EVERYSEC, true, UNTRUSTED), 1);
    assert_int_equal(one_life(f, STORE_FSYNC_ALWAYS, true, KILLED), 1);
    assert_int_equal(one_life(f, STORE_FSYNC_ALWAYS, true, KILLED), 0);
}

#define SPOIL "--spoil"

/* For scripts: a value of the node that makes no sense, in a store that is otherwise well. */
static int spoil(struct fixture *f)
{
    struct err err;

    if (try_open(f, &err) < 0 || f->s->ops->state_put(f->s, "floor", span_str("x")) < 0)
        return 1;
    close_store(f);
    return 0;
}

int main(int argc, char **argv)
{
#define CLAIM(claim) cmocka_unit_test_setup_teardown(claim, setup, teardown)
    const struct CMUnitTest tests[] = {
        CLAIM(a_damaged_store_is_set_aside_whole_with_its_reason),
        CLAIM(a_store_condemned_while_in_use_is_set_aside_by_the_next_start),
        CLAIM(setting_aside_goes_on_where_a_crash_ended_it),
        CLAIM(a_second_damage_soon_after_is_refused_and_later_is_not),
        CLAIM(three_damaged_stores_in_one_place_are_enough),
        CLAIM(books_that_are_gone_are_damage_and_not_a_new_store),
        CLAIM(a_directory_that_does_not_tell_whose_it_is_is_refused),
        CLAIM(a_log_torn_in_its_last_record_loses_that_alone),
        CLAIM(a_hole_before_the_last_record_is_damage),
        CLAIM(no_flipped_byte_shows_other_bytes_or_ends_the_process),
        CLAIM(only_a_power_loss_in_a_mode_that_does_not_sync_is_distrusted),
        CLAIM(the_mode_that_counts_is_the_one_before_the_loss),
        CLAIM(distrust_stays_until_it_was_taken_to_heart),
    };

    if (argc == 5) {
        struct fixture f = {.mode = STORE_FSYNC_ALWAYS};

        snprintf(f.top, sizeof(f.top), "%s", argv[2]);
        snprintf(f.dir, sizeof(f.dir), "%s", argv[3]);
        if (strcmp(argv[1], FLIPPED) == 0)
            return use_flipped(&f);
        if (strcmp(argv[1], SPOIL) == 0)
            return spoil(&f);
        return live(&f, (unsigned)strtoul(argv[4], NULL, 10));
    }
    return cmocka_run_group_tests_name("store damage", tests, NULL, NULL);
}

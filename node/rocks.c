/*
 * rocks.c - RocksDB, as far as it is used here (the only user of the library, through its C API).
 */
#include "node/rocks.h"

#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <rocksdb/c.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "common/log.h"

/*
 * An idle node is to stay below 64 MiB; a busy one adds two buffers of each family and the cache.
 */
#define META_BUFFER_LEN (8u << 20)
#define DATA_BUFFER_LEN (16u << 20)
#define CACHE_LEN (32u << 20)
#define WAL_LEN_MAX (64u << 20)
#define OPEN_FILES_MAX 512
/* So much of one family is rewritten at a time (what is new, level 0, may make it more) ... */
#define REWRITE_LEN_MAX (384ull << 20)
/* ... and so much of all: two at a time, the first of them all of level 0 and all of the next. */
#define REWRITE_ROOM_MAX (1ull << 30)
/* A table in which so many of so many entries in a row are deletes is rewritten soon. */
#define DELETES_WINDOW 1000
#define DELETES_MANY 300
#define INFO_LOG_SILENT 5 /* all but the headers: no name for it in the C API */

static const char *const family_names[ROCKS_N_FAMILIES] = {"default", "meta", "data"};

struct rocks {
    rocksdb_t *db;
    rocksdb_column_family_handle_t *families[ROCKS_N_FAMILIES];
    rocksdb_options_t *options[ROCKS_N_FAMILIES];
    rocksdb_block_based_table_options_t *table_options;
    rocksdb_cache_t *cache;
    rocksdb_readoptions_t *read_options;
    rocksdb_writeoptions_t *write_options[2][2]; /* synced? patient? */
    rocks_may_wait_fn *may_wait;                 /* NULL: it may */
    void *may_wait_arg;
    atomic_bool *broken;
    atomic_int last_err; /* logged already */
    pthread_mutex_t lock;
    struct err damage;          /* lock; the first that was found; "": none; as is: */
    rocks_damage_fn *on_damage; /* to be told of it; NULL: not (any more) */
    void *on_damage_arg;
};

struct rocks_batch {
    struct rocks *rocks;
    rocksdb_writebatch_t *batch;
};

struct rocks_iter {
    struct rocks *rocks;
    rocksdb_iterator_t *it;
};

/* --- errors ---------------------------------------------------------------------------- */

/* The C API tells kinds of failure apart only in its text. */
static int errno_of_text(const char *text)
{
    if (strncmp(text, "Corruption", strlen("Corruption")) == 0 ||
        strstr(text, "No such file or directory") != NULL) /* one that its books name */
        return -EBADMSG;
    return strstr(text, "No space left on device") != NULL ? -ENOSPC : -EIO;
}

/* Tells, once, that there is damage. */
static void tell_damage(struct rocks *r)
{
    rocks_damage_fn *tell = NULL;
    struct err why;

    pthread_mutex_lock(&r->lock);
    if (r->damage.msg[0] != '\0') {
        tell = r->on_damage;
        r->on_damage = NULL;
        why = r->damage;
    }
    pthread_mutex_unlock(&r->lock);
    if (tell != NULL)
        tell(r->on_damage_arg, why.msg);
}

static void note_damage(struct rocks *r, const char *text)
{
    pthread_mutex_lock(&r->lock);
    if (r->damage.msg[0] == '\0')
        err_set(&r->damage, -EBADMSG, "%s", text);
    pthread_mutex_unlock(&r->lock);
    tell_damage(r);
}

void rocks_on_damage(struct rocks *r, rocks_damage_fn *fn, void *arg)
{
    pthread_mutex_lock(&r->lock);
    r->on_damage = fn;
    r->on_damage_arg = arg;
    pthread_mutex_unlock(&r->lock);
    tell_damage(r);
}

int rocks_damage(struct rocks *r, struct err *why)
{
    int ret = 0;

    pthread_mutex_lock(&r->lock);
    if (r->damage.msg[0] != '\0')
        ret = err_set(why, -EBADMSG, "%s", r->damage.msg);
    pthread_mutex_unlock(&r->lock);
    return ret;
}

/* Frees the text. */
static int take_error(struct rocks *r, char *text)
{
    int err;

    if (text == NULL)
        return 0;
    err = errno_of_text(text);
    if (err == -EBADMSG)
        note_damage(r, text);
    if (atomic_exchange(&r->last_err, err) != err)
        log_event(LOG_LEVEL_ERROR, "rocksdb", "error=%s", log_quote(text, strlen(text)));
    rocksdb_free(text);
    return err;
}

/* The end of a write. A full disk passes: RocksDB goes on by itself once there is room. */
static int end_write(struct rocks *r, char *text)
{
    int err = take_error(r, text);

    if (err == 0 && atomic_load(&r->last_err) != 0)
        atomic_store(&r->last_err, 0);
    if (err == 0 || err == -ENOSPC)
        return err;
    atomic_store(r->broken, true);
    return -EIO;
}

/* --- opening and closing --------------------------------------------------------------- */

/* Index and filter blocks count as cache, so that memory does not grow with the number of keys. */
static rocksdb_block_based_table_options_t *make_table_options(rocksdb_cache_t *cache)
{
    rocksdb_block_based_table_options_t *t = rocksdb_block_based_options_create();

    rocksdb_block_based_options_set_block_cache(t, cache);
    rocksdb_block_based_options_set_filter_policy(t, rocksdb_filterpolicy_create_bloom_full(10));
    rocksdb_block_based_options_set_format_version(t, 5);
    rocksdb_block_based_options_set_cache_index_and_filter_blocks(t, 1);
    rocksdb_block_based_options_set_pin_l0_filter_and_index_blocks_in_cache(t, 1);
    return t;
}

static rocksdb_options_t *make_family_options(rocksdb_block_based_table_options_t *t,
                                              enum rocks_family family)
{
    rocksdb_options_t *o = rocksdb_options_create();

    rocksdb_options_set_block_based_table_factory(o, t);
    rocksdb_options_set_compression(o, rocksdb_no_compression);
    rocksdb_options_set_write_buffer_size(o,
                                          family == ROCKS_DATA ? DATA_BUFFER_LEN : META_BUFFER_LEN);
    rocksdb_options_set_max_write_buffer_number(o, 2);
    rocksdb_options_set_target_file_size_base(o, 32u << 20);
    rocksdb_options_set_level_compaction_dynamic_level_bytes(o, 1);
    rocksdb_options_set_max_compaction_bytes(o, REWRITE_LEN_MAX);
    rocksdb_options_set_disable_auto_compactions(o, 1); /* until rocks_let_rewrite() */
    if (family == ROCKS_DATA)
        rocksdb_options_add_compact_on_deletion_collector_factory(o, DELETES_WINDOW, DELETES_MANY);
    return o;
}

static void set_database_options(rocksdb_options_t *o, bool forgive)
{
    rocksdb_options_set_create_if_missing(o, 1);
    rocksdb_options_set_create_missing_column_families(o, 1);
    rocksdb_options_set_paranoid_checks(o, 1);
    /*
     * A record of the log that was cut short by a crash was never acknowledged: it is dropped.
     * Damage anywhere else could hide what was: better not to start (and be repaired by the other
     * replicas) than to go on without it, as point-in-time recovery, the default, would.
     */
    rocksdb_options_set_wal_recovery_mode(
        o, forgive ? rocksdb_point_in_time_recovery
                   : rocksdb_tolerate_corrupted_tail_records_recovery);
    rocksdb_options_set_max_total_wal_size(o, WAL_LEN_MAX);
    rocksdb_options_set_max_open_files(o, OPEN_FILES_MAX);
    rocksdb_options_set_max_background_jobs(o, 3);
    rocksdb_options_set_bytes_per_sync(o, 1u << 20);
    rocksdb_options_set_manifest_preallocation_size(o, 64u << 10);
    rocksdb_options_set_max_manifest_file_size(o, 16u << 20);
    /*
     * Its own log, in the same directory, stays silent: when the disk is full, the second line that
     * it cannot write ends the process with an assertion. What matters comes back as an error text,
     * and is logged by us.
     */
    rocksdb_options_set_info_log_level(o, INFO_LOG_SILENT);
    rocksdb_options_set_keep_log_file_num(o, 2);
    rocksdb_options_set_stats_dump_period_sec(o, 0);
    rocksdb_options_set_stats_persist_period_sec(o, 0);
    rocksdb_options_set_skip_stats_update_on_db_open(o, 1);
}

/* Two threads to compact, one to flush, shared by all databases of the process. */
static void set_background_threads(void)
{
    rocksdb_env_t *env = rocksdb_create_default_env();

    rocksdb_env_set_background_threads(env, 2);
    rocksdb_env_set_high_priority_background_threads(env, 1);
    rocksdb_env_destroy(env);
}

static void make_all_options(struct rocks *r, bool forgive)
{
    r->cache = rocksdb_cache_create_lru(CACHE_LEN);
    r->table_options = make_table_options(r->cache);
    for (unsigned i = 0; i < ROCKS_N_FAMILIES; i++)
        r->options[i] = make_family_options(r->table_options, (enum rocks_family)i);
    /* Those of the first family are the database's too. */
    set_database_options(r->options[ROCKS_STATE], forgive);
    r->read_options = rocksdb_readoptions_create();
    for (unsigned i = 0; i < 4; i++) {
        rocksdb_writeoptions_t *o = rocksdb_writeoptions_create();

        rocksdb_writeoptions_set_sync(o, i / 2);
        rocksdb_writeoptions_set_no_slowdown(o, i % 2 == 0);
        r->write_options[i / 2][i % 2] = o;
    }
}

/*
 * Without the file that tells which of the others count, the library would make a new database over
 * them, and delete them.
 */
static int check_current(const char *path, struct err *err)
{
    bool tables = false, current = false;
    const struct dirent *e;
    DIR *dir = opendir(path);

    if (dir == NULL)
        return errno == ENOENT ? 0 : err_set(err, -errno, "%s: %s", path, strerror(errno));
    while ((e = readdir(dir)) != NULL) {
        const char *end = strrchr(e->d_name, '.');

        current |= strcmp(e->d_name, "CURRENT") == 0;
        tables |= end != NULL && (strcmp(end, ".sst") == 0 || strcmp(end, ".log") == 0);
    }
    closedir(dir);
    return tables && !current ? err_set(err, -EBADMSG, "%s/CURRENT is gone", path) : 0;
}

int rocks_open(const char *path, bool forgive, atomic_bool *broken, struct rocks **out,
               struct err *err)
{
    struct rocks *r;
    char *text = NULL;
    int ret = check_current(path, err);

    if (ret < 0)
        return ret;
    r = calloc(1, sizeof(*r));
    if (r == NULL)
        return err_set(err, -ENOMEM, "no memory");
    r->broken = broken;
    pthread_mutex_init(&r->lock, NULL);
    set_background_threads();
    make_all_options(r, forgive);
    r->db = rocksdb_open_column_families(r->options[ROCKS_STATE], path, ROCKS_N_FAMILIES,
                                         family_names, (const rocksdb_options_t *const *)r->options,
                                         r->families, &text);
    if (text != NULL) {
        r->db = NULL;
        ret = err_set(err, errno_of_text(text), "%s: %s", path, text);
        rocksdb_free(text);
        rocks_close(r);
        return ret;
    }
    *out = r;
    return 0;
}

void rocks_close(struct rocks *r)
{
    if (r == NULL)
        return;
    if (r->db != NULL) {
        rocksdb_cancel_all_background_work(r->db, 1);
        for (unsigned i = 0; i < ROCKS_N_FAMILIES; i++)
            rocksdb_column_family_handle_destroy(r->families[i]);
        rocksdb_close(r->db);
    }
    rocksdb_readoptions_destroy(r->read_options);
    for (unsigned i = 0; i < 4; i++)
        rocksdb_writeoptions_destroy(r->write_options[i / 2][i % 2]);
    for (unsigned i = 0; i < ROCKS_N_FAMILIES; i++)
        rocksdb_options_destroy(r->options[i]);
    rocksdb_block_based_options_destroy(r->table_options);
    rocksdb_cache_destroy(r->cache);
    pthread_mutex_destroy(&r->lock);
    free(r);
}

/* --- reading --------------------------------------------------------------------------- */

int rocks_get(struct rocks *r, enum rocks_family family, struct span key, struct rocks_slice *out)
{
    char *text = NULL;
    size_t len;
    rocksdb_pinnableslice_t *pin = rocksdb_get_pinned_cf(
        r->db, r->read_options, r->families[family], (const char *)key.data, key.len, &text);

    if (text != NULL)
        return take_error(r, text);
    *out = ROCKS_SLICE_NONE;
    if (pin != NULL) {
        const char *data = rocksdb_pinnableslice_value(pin, &len);

        *out = (struct rocks_slice){span_of(data, len), pin};
    }
    return 0;
}

void rocks_slice_fini(struct rocks_slice *s)
{
    if (s->pin != NULL)
        rocksdb_pinnableslice_destroy(s->pin);
    *s = ROCKS_SLICE_NONE;
}

struct rocks_iter *rocks_iter_new(struct rocks *r, enum rocks_family family)
{
    struct rocks_iter *it = calloc(1, sizeof(*it));

    if (it == NULL)
        return NULL;
    it->rocks = r;
    it->it = rocksdb_create_iterator_cf(r->db, r->read_options, r->families[family]);
    return it;
}

void rocks_iter_free(struct rocks_iter *it)
{
    if (it == NULL)
        return;
    rocksdb_iter_destroy(it->it);
    free(it);
}

void rocks_iter_seek(struct rocks_iter *it, struct span key)
{
    rocksdb_iter_seek(it->it, (const char *)key.data, key.len);
}

bool rocks_iter_valid(struct rocks_iter *it)
{
    return rocksdb_iter_valid(it->it);
}

void rocks_iter_next(struct rocks_iter *it)
{
    rocksdb_iter_next(it->it);
}

struct span rocks_iter_key(struct rocks_iter *it)
{
    size_t len;
    const char *key = rocksdb_iter_key(it->it, &len);

    return span_of(key, len);
}

struct span rocks_iter_value(struct rocks_iter *it)
{
    size_t len;
    const char *value = rocksdb_iter_value(it->it, &len);

    return span_of(value, len);
}

int rocks_iter_err(struct rocks_iter *it)
{
    char *text = NULL;

    rocksdb_iter_get_error(it->it, &text);
    return take_error(it->rocks, text);
}

int rocks_n_keys(struct rocks *r, enum rocks_family family, uint64_t *out)
{
    return rocksdb_property_int_cf(r->db, r->families[family], "rocksdb.estimate-num-keys", out) ==
                   0
               ? 0
               : -EIO;
}

/* The sum of some of the library's numbers over all families. 0 or -EIO. */
static int sum_properties(struct rocks *r, const char *const *names, unsigned n_names,
                          uint64_t *out)
{
    uint64_t sum = 0, n;

    for (unsigned f = 0; f < ROCKS_N_FAMILIES; f++)
        for (unsigned i = 0; i < n_names; i++) {
            if (rocksdb_property_int_cf(r->db, r->families[f], names[i], &n) != 0)
                return -EIO;
            sum += n;
        }
    *out = sum;
    return 0;
}

int rocks_size(struct rocks *r, uint64_t *out)
{
    static const char *const parts[] = {"rocksdb.estimate-live-data-size",
                                        "rocksdb.cur-size-all-mem-tables"};

    return sum_properties(r, parts, 2, out);
}

/* --- writing --------------------------------------------------------------------------- */

struct rocks_batch *rocks_batch_new(struct rocks *r)
{
    struct rocks_batch *b = calloc(1, sizeof(*b));

    if (b == NULL)
        return NULL;
    b->rocks = r;
    b->batch = rocksdb_writebatch_create();
    return b;
}

void rocks_batch_free(struct rocks_batch *b)
{
    if (b == NULL)
        return;
    rocksdb_writebatch_destroy(b->batch);
    free(b);
}

void rocks_batch_put(struct rocks_batch *b, enum rocks_family family, struct span key,
                     struct span head, struct span body)
{
    const char *keys[] = {(const char *)key.data};
    const char *parts[] = {(const char *)head.data, (const char *)body.data};
    size_t lens[] = {head.len, body.len};

    rocksdb_writebatch_putv_cf(b->batch, b->rocks->families[family], 1, keys, &key.len, 2, parts,
                               lens);
}

void rocks_batch_delete(struct rocks_batch *b, enum rocks_family family, struct span key)
{
    rocksdb_writebatch_delete_cf(b->batch, b->rocks->families[family], (const char *)key.data,
                                 key.len);
}

void rocks_on_stall(struct rocks *r, rocks_may_wait_fn *fn, void *arg)
{
    r->may_wait = fn;
    r->may_wait_arg = arg;
}

int rocks_write(struct rocks_batch *b, bool sync)
{
    static const char stalled[] = "Result incomplete";
    struct rocks *r = b->rocks;
    char *text = NULL;

    if (atomic_load(r->broken))
        return -EIO;
    rocksdb_write(r->db, r->write_options[sync][0], b->batch, &text);
    if (text != NULL && strncmp(text, stalled, sizeof(stalled) - 1) == 0) {
        rocksdb_free(text);
        if (r->may_wait != NULL && !r->may_wait(r->may_wait_arg))
            return -ENOSPC;
        text = NULL;
        rocksdb_write(r->db, r->write_options[sync][1], b->batch, &text);
    }
    return end_write(r, text);
}

/*
 * An empty batch, synced: what is before it in the log goes to the disk with it. The call made for
 * this purpose, rocksdb_flush_wal(), does not look whether an earlier write failed, and then ends
 * the process with an assertion.
 */
int rocks_sync(struct rocks *r)
{
    struct rocks_batch *b = rocks_batch_new(r);
    int err;

    if (b == NULL)
        return -ENOMEM;
    err = rocks_write(b, true);
    rocks_batch_free(b);
    return err;
}

void rocks_let_rewrite(struct rocks *r, bool may)
{
    static const char *const name = "disable_auto_compactions";
    const char *value = may ? "false" : "true";
    char *text = NULL;

    for (unsigned f = 0; f < ROCKS_N_FAMILIES; f++) {
        rocksdb_set_options_cf(r->db, r->families[f], 1, &name, &value, &text);
        (void)take_error(r, text); /* logged; it holds in memory all the same */
        text = NULL;
    }
}

int rocks_rewrite_room(struct rocks *r, uint64_t *out)
{
    static const char *const parts[] = {"rocksdb.live-sst-files-size",
                                        "rocksdb.cur-size-all-mem-tables"};
    uint64_t sum;
    int err = sum_properties(r, parts, 2, &sum);

    if (err == 0)
        *out = sum < REWRITE_ROOM_MAX ? sum : REWRITE_ROOM_MAX;
    return err;
}

/*
 * The deletes in memory become a table, and that one is picked for rewriting.
 *
 * With an earlier table still to be written the library would wait until that is done, whatever
 * the options say: on a full disk for ever.
 */
bool rocks_give_back(struct rocks *r, enum rocks_family family)
{
    rocksdb_flushoptions_t *o;
    char *text = NULL;
    uint64_t n_waiting;

    if (rocksdb_property_int_cf(r->db, r->families[family], "rocksdb.num-immutable-mem-table",
                                &n_waiting) != 0 ||
        n_waiting > 0)
        return false;
    o = rocksdb_flushoptions_create();
    rocksdb_flushoptions_set_wait(o, 0);
    rocksdb_flush_cf(r->db, o, r->families[family], &text);
    rocksdb_flushoptions_destroy(o);
    (void)take_error(r, text); /* logged; the next write tells what it means */
    return true;
}

/*
 * file_load.c - the base of an open file, from the cluster: whole, or its beginning. What is too
 * large for memory comes piece by piece into a temporary file.
 */
#include "fs/file.h"

#include <errno.h>
#include <string.h>

#include "common/limits.h"
#include "fs/core.h"

#define PIECE (4u << 20)
#define BLOCK (64u << 10) /* of zeros: becomes a hole */
#define TRIES_MAX 8       /* while others keep replacing it */

void file_set_base_locked(struct fs *fs, struct file *f, struct ballot version, uint64_t size,
                          struct value *v)
{
    if (ballot_cmp(version, follow_pages(fs->follow, f->inode).version) != 0)
        follow_mix_pages(fs->follow, f->inode);
    file_drop_window_locked(f);
    f->version = version;
    f->base_size = size;
    f->loaded = size == v->len;
    content_set(&f->base, f->loaded ? *v : (struct value){0});
    f->clock = 0;
    if (!f->loaded && !f->window[0].coming && v->len > 0)
        f->window[0] = (struct chunk){.index = 0, .used = 1, .v = *v};
    else if (!f->loaded)
        value_fini(v);
    *v = (struct value){0};
}

/* --- piece by piece --------------------------------------------------------------------------- */

/* What was fetched, not yet in the file. */
struct load {
    bool live;
    struct ballot version;
    uint64_t size;
    struct value value;  /* in one piece */
    struct content base; /* or in many */
    bool pieces;
};

static bool is_zero(struct span s)
{
    return s.len > 0 && s.data[0] == 0 && memcmp(s.data, s.data + 1, s.len - 1) == 0;
}

static int add_piece(struct content *c, struct span piece)
{
    uint64_t start = content_size(c);
    int err = 0;

    for (size_t at = 0; err == 0 && at < piece.len; at += BLOCK) {
        size_t n = piece.len - at < BLOCK ? piece.len - at : BLOCK;
        struct span block = span_of(piece.data + at, n);

        if (!is_zero(block))
            err = content_write(c, start + at, block);
    }
    return err == 0 ? content_truncate(c, start + piece.len) : err;
}

/* version: none: whichever is the newest; all pieces are of one. */
static int fetch_pieces(struct fs *fs, struct caller *who, struct span key, struct ballot version,
                        struct load *out)
{
    uint64_t off = 0;
    int err = 0;

    out->size = 1;
    while (err == 0 && off < out->size) {
        struct read_args args = {
            .key = key, .want_value = true, .offset = off, .length = PIECE, .pin = version};
        struct read_result res = {0};

        err = core_read(fs, who, &args, &res);
        out->live = err == 0 && record_is_live(&res.rec.rec);
        if (out->live) {
            version = res.rec.rec.version;
            out->size = res.rec.rec.size;
            if (res.value_offset != off || (res.value.len == 0 && off < out->size))
                err = -EIO;
            else
                err = add_piece(&out->base, value_span(res.value));
            off += res.value.len;
        } else {
            out->size = 0;
        }
        read_result_fini(&res);
    }
    out->version = version;
    out->pieces = true;
    return err;
}

static int fetch_large(struct fs *fs, struct caller *who, struct span key, struct ballot pin,
                       struct load *out)
{
    int err = fetch_pieces(fs, who, key, pin, out);

    for (int i = 1; err == -ESTALE && ballot_is_none(pin) && i < TRIES_MAX; i++) {
        content_fini(&out->base);
        err = fetch_pieces(fs, who, key, pin, out);
    }
    return err;
}

/* --- whole ------------------------------------------------------------------------------------ */

static int fetch_small(struct fs *fs, struct caller *who, struct span key, struct ballot pin,
                       struct load *out)
{
    struct read_args args = {.key = key, .want_value = true, .length = READ_ALL, .pin = pin};
    struct read_result res = {0};
    int err = core_read(fs, who, &args, &res);

    if (err == 0) {
        out->live = record_is_live(&res.rec.rec);
        out->version = res.rec.rec.version;
        out->size = res.rec.rec.size;
        out->value = res.value;
        res.value = (struct value){0};
    }
    read_result_fini(&res);
    return err;
}

static void take_pieces_locked(struct fs *fs, struct file *f, struct load *l)
{
    file_set_base_locked(fs, f, l->version, 0, &(struct value){0});
    content_move(&f->base, &l->base);
}

/* Fetches the whole base. busy is ours; the lock is held, but not while waiting. */
static int fetch_base_locked(struct fs *fs, struct caller *who, struct file *f)
{
    /* Who has read a part of one version must not get the rest of another. */
    struct ballot pin = f->clock > 0 ? f->version : BALLOT_NONE;
    bool large = f->base_size > fs->pool.each_max;
    struct load l = {.base = {.pool = &fs->pool}};
    struct buf key = {0};
    int err;

    pthread_mutex_unlock(&f->lock);
    err = inode_last_key(fs->inodes, f->inode, &key);
    if (err == 0)
        err = (large ? fetch_large : fetch_small)(fs, who, buf_span(&key), pin, &l);
    buf_fini(&key);
    pthread_mutex_lock(&f->lock);
    if (err == 0 && !f->loaded) { /* it may have been cut to nothing meanwhile */
        if (l.live && l.pieces)
            take_pieces_locked(fs, f, &l);
        else if (l.live)
            file_set_base_locked(fs, f, l.version, l.size, &l.value);
        else if (content_size(&f->tail) > 0)
            /* deleted elsewhere while we append: what we wrote starts it anew */
            file_set_base_locked(fs, f, BALLOT_NONE, 0, &l.value);
        else
            err = -ESTALE;
    }
    value_fini(&l.value);
    content_fini(&l.base);
    return err;
}

int file_load_locked(struct fs *fs, struct caller *who, struct file *f)
{
    int err = 0;

    while (err == 0 && !f->loaded) {
        err = file_wait_idle_locked(who, f);
        if (err < 0 || f->loaded)
            break;
        f->busy = true;
        err = fetch_base_locked(fs, who, f);
        f->busy = false;
        pthread_cond_broadcast(&f->changed);
    }
    return err;
}

int file_load_held(struct fs *fs, struct caller *who, struct file *f)
{
    int err = 0;

    pthread_mutex_lock(&f->lock);
    if (f->known && !f->loaded)
        err = fetch_base_locked(fs, who, f);
    pthread_mutex_unlock(&f->lock);
    return err == -ESTALE ? 0 : err;
}

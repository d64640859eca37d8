/*
 * wal_tail.c - was RocksDB's log damaged, or only torn by a loss of power?
 *
 * The format of the log: blocks of 32 KiB; in each, fragments of records, none of which crosses the
 * end of a block; less than a header's room there stays empty.
 *
 *   u32 checksum (crc32c of type and bytes, masked), u16 length, u8 type, bytes
 *   type: 1 a whole record; 2 the first, 3 a middle, 4 the last fragment of one
 */
#include "node/wal_tail.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/buf.h"

#define BLOCK 32768u
#define HEAD 7u
#define SECTOR 512u
#define TYPE_FULL 1
#define TYPE_FIRST 2
#define TYPE_LAST 4
/* So many zeros in a row are a sector's, or the end of one, and not some value's. */
#define ZEROS_MIN 64u

static uint32_t crc_table[256];

static void make_table(void)
{
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t c = i;

        for (unsigned k = 0; k < 8; k++)
            c = c & 1 ? c >> 1 ^ 0x82f63b78u : c >> 1;
        crc_table[i] = c;
    }
}

static uint32_t masked_crc32c(const uint8_t *p, size_t len)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    uint32_t c = UINT32_MAX;

    (void)pthread_once(&once, make_table);
    for (size_t i = 0; i < len; i++)
        c = crc_table[(c ^ p[i]) & 0xff] ^ c >> 8;
    c = ~c;
    return (c >> 15 | c << 17) + 0xa282ead8u;
}

/* How long the fragment at `at` is, with its header; 0: there is no whole one. */
static size_t fragment_at(struct span log, size_t at, uint8_t *type)
{
    size_t room = BLOCK - at % BLOCK;
    struct cursor c;
    uint32_t crc;
    size_t len;

    if (room > log.len - at)
        room = log.len - at;
    if (room < HEAD)
        return 0;
    c = cursor_of(span_of(log.data + at, HEAD));
    crc = cursor_u32(&c);
    len = cursor_u16(&c);
    *type = cursor_u8(&c);
    if (*type < TYPE_FULL || *type > TYPE_LAST || len > room - HEAD ||
        crc != masked_crc32c(log.data + at + HEAD - 1, len + 1))
        return 0;
    return HEAD + len;
}

/* Where the first fragment that is not whole begins; the end of the log: there is none. */
static size_t first_bad(struct span log)
{
    size_t at = 0, len;
    uint8_t type;

    while (at < log.len) {
        if (BLOCK - at % BLOCK < HEAD) {
            at += BLOCK - at % BLOCK;
            continue;
        }
        len = fragment_at(log, at, &type);
        if (len == 0)
            return at;
        at += len;
    }
    return log.len;
}

static bool all_zero(const uint8_t *p, size_t len)
{
    return len == 0 || (p[0] == 0 && memcmp(p, p + 1, len - 1) == 0);
}

/* Is a sector from `at` on, or what of the first one is behind `at`, empty? */
static bool has_empty_sector(struct span log, size_t at)
{
    while (at < log.len) {
        size_t end = at - at % SECTOR + SECTOR;

        if (end > log.len)
            end = log.len;
        if (end - at >= ZEROS_MIN && all_zero(log.data + at, end - at))
            return true;
        at = end;
    }
    return false;
}

/* Does a record begin anywhere behind `at`? Then what is there is not the last. */
static bool has_record_behind(struct span log, size_t at)
{
    uint8_t type;

    for (at++; at + HEAD <= log.len; at++) {
        type = log.data[at + HEAD - 1];
        if ((type == TYPE_FULL || type == TYPE_FIRST) && fragment_at(log, at, &type) > 0)
            return true;
    }
    return false;
}

enum verdict { WHOLE, TORN, DAMAGED };

static enum verdict judge(struct span log)
{
    size_t bad = first_bad(log);

    if (bad == log.len || all_zero(log.data + bad, log.len - bad))
        return WHOLE;
    return has_empty_sector(log, bad) && !has_record_behind(log, bad) ? TORN : DAMAGED;
}

/* All of a file. */
static int read_log(const char *db, uint64_t number, struct buf *out)
{
    struct buf path = {0};
    struct stat st = {0};
    int fd, err = 0;

    buf_addf(&path, "%s/%06llu.log", db, (unsigned long long)number);
    buf_u8(&path, 0);
    fd = path.err < 0 ? -1 : open((const char *)path.data, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) < 0)
        err = path.err < 0 ? path.err : -errno;
    buf_fini(&path);
    while (err == 0 && out->len < (size_t)st.st_size) {
        size_t left = (size_t)st.st_size - out->len;
        uint8_t *to = buf_reserve(out, left);
        ssize_t n = to == NULL ? 0 : read(fd, to, left);

        if (n > 0)
            out->len += (size_t)n;
        else
            err = to == NULL ? -ENOMEM : n < 0 ? -errno : -EIO;
    }
    if (fd >= 0)
        close(fd);
    return err;
}

static int number_cmp(const void *a, const void *b)
{
    const uint64_t *x = a, *y = b;

    return *x < *y ? -1 : *x > *y;
}

/* The numbers of the logs, in order, as u64 in host order. */
static int list_logs(const char *db, struct buf *out)
{
    DIR *dir = opendir(db);
    const struct dirent *e;

    if (dir == NULL)
        return -errno;
    while ((e = readdir(dir)) != NULL) {
        char *end;
        uint64_t number = strtoull(e->d_name, &end, 10);

        if (end != e->d_name && strcmp(end, ".log") == 0)
            buf_add(out, &number, sizeof(number));
    }
    closedir(dir);
    if (out->err == 0 && out->len > 0)
        qsort(out->data, out->len / sizeof(uint64_t), sizeof(uint64_t), number_cmp);
    return out->err;
}

int wal_tail_check(const char *db, bool *torn)
{
    struct buf numbers = {0};
    enum verdict verdict = WHOLE;
    int err = list_logs(db, &numbers);

    for (size_t at = 0; err == 0 && verdict == WHOLE && at < numbers.len; at += sizeof(uint64_t)) {
        struct buf log = {0};
        uint64_t number;

        memcpy(&number, numbers.data + at, sizeof(number));
        err = read_log(db, number, &log);
        if (err == 0)
            verdict = judge(buf_span(&log));
        if (verdict == TORN && at + sizeof(number) < numbers.len)
            verdict = DAMAGED; /* this one was synced long ago */
        buf_fini(&log);
    }
    buf_fini(&numbers);
    if (err == 0)
        *torn = verdict == TORN;
    return err;
}

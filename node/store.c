/* store.c - what all stores share. */
#include "node/store.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/list.h"

void store_item_fini(struct store_item *item)
{
    buf_fini(&item->record);
    value_fini(&item->value);
    store_reader_close(item->large);
    *item = STORE_ITEM_NONE;
}

/* --- reading large values ------------------------------------------------------------------- */

struct file_reader {
    struct store_reader base;
    int fd;
};

static int file_reader_read(struct store_reader *base, void *out, size_t len, uint64_t offset)
{
    const struct file_reader *r = container_of(base, struct file_reader, base);
    uint8_t *to = out;

    while (len > 0) {
        ssize_t n = pread(r->fd, to, len, (off_t)offset);

        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return -EBADMSG;
        to += n;
        len -= (size_t)n;
        offset += (uint64_t)n;
    }
    return 0;
}

static void file_reader_close(struct store_reader *base)
{
    struct file_reader *r = container_of(base, struct file_reader, base);

    close(r->fd);
    free(r);
}

int store_reader_of_fd(int fd, struct store_reader **out)
{
    static const struct store_reader_ops ops = {file_reader_read, file_reader_close};
    struct file_reader *r = calloc(1, sizeof(*r));
    struct stat st = {0};
    int err = r == NULL ? -ENOMEM : fstat(fd, &st) < 0 ? -errno : 0;

    if (err < 0) {
        free(r);
        close(fd);
        return err;
    }
    *r = (struct file_reader){.base = {&ops, (uint64_t)st.st_size}, .fd = fd};
    *out = &r->base;
    return 0;
}

void store_reader_close(struct store_reader *r)
{
    if (r != NULL)
        r->ops->close(r);
}

/* --- what all stores need ------------------------------------------------------------------- */

int store_write_all(int fd, struct span bytes)
{
    while (bytes.len > 0) {
        ssize_t n = write(fd, bytes.data, bytes.len);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -errno;
        bytes = span_of(bytes.data + n, bytes.len - (size_t)n);
    }
    return 0;
}

int store_is_empty(struct store *s, bool *out)
{
    struct store_iter *it;
    int err = s->ops->iter_new(s, &it);

    if (err < 0)
        return err;
    s->ops->iter_seek(it, (struct span){0});
    err = s->ops->iter_err(it);
    if (err == 0)
        *out = !s->ops->iter_valid(it);
    s->ops->iter_free(it);
    return err;
}

bool store_is_stuck(struct store *s)
{
    return s->ops->stuck != NULL && s->ops->stuck(s);
}

void store_explain(struct store *s, int error, struct err *out)
{
    out->msg[0] = '\0';
    if (s->ops->explain != NULL)
        s->ops->explain(s, out);
    if (out->msg[0] == '\0')
        err_set(out, error, "%s", strerror(-error));
}

/* store.c - what all stores share. */
#include "node/store.h"

#include <errno.h>
#include <unistd.h>

void store_item_fini(struct store_item *item)
{
    buf_fini(&item->record);
    value_fini(&item->value);
    if (item->fd >= 0)
        close(item->fd);
    *item = STORE_ITEM_NONE;
}

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

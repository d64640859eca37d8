/*
 * placement.c - the ring that a store's data was placed by, kept with the data.
 *
 * The state "ring" of the store: the fingerprint, u64 little endian, then the ring as JSON for the
 * sentence that tells people what has changed.
 */
#include "node/placement.h"

#include <errno.h>
#include <string.h>

#define STATE "ring"

static int take(struct store *s, const struct config *cfg)
{
    struct buf text = {0};
    int err;

    buf_u64(&text, ring_fingerprint(cfg->ring));
    config_ring_json(cfg, &text);
    err = text.err != 0 ? text.err : s->ops->state_put(s, STATE, buf_span(&text));
    buf_fini(&text);
    return err;
}

int placement_check(struct store *s, const struct config *cfg, struct buf *foreign, struct err *err)
{
    struct buf text = {0};
    struct cursor at;
    bool empty = false;
    uint64_t placed_by;
    int ret = s->ops->state_get(s, STATE, &text);

    if (ret == -ENOENT) {
        ret = take(s, cfg);
        goto out;
    }
    if (ret < 0)
        goto out;
    at = cursor_of(buf_span(&text));
    placed_by = cursor_u64(&at);
    if (at.err != 0) {
        ret = at.err;
        goto out;
    }
    if (placed_by == ring_fingerprint(cfg->ring))
        goto out;
    ret = store_is_empty(s, &empty);
    if (ret == 0 && empty) {
        ret = take(s, cfg);
    } else if (ret == 0) {
        buf_add_span(foreign, span_of(text.data + sizeof(placed_by), text.len - sizeof(placed_by)));
        ret = foreign->err;
    }
out:
    buf_fini(&text);
    return ret < 0 ? err_set(err, ret, "the ring of its data: %s", strerror(-ret)) : 0;
}

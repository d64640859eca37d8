/* query.c - the part of a URL behind '?'. */
#include "node/query.h"

#include <errno.h>
#include <string.h>

#include "common/base64.h"
#include "common/keypath.h"
#include "common/limits.h"

static struct span take_until(struct span *rest, char mark)
{
    const uint8_t *p = rest->len == 0 ? NULL : memchr(rest->data, mark, rest->len);
    struct span head = {rest->data, p == NULL ? rest->len : (size_t)(p - rest->data)};
    size_t skip = p == NULL ? rest->len : head.len + 1;

    *rest = span_of(rest->data + skip, rest->len - skip);
    return head;
}

static int parse_one(struct span name, struct span value, struct query_param *params, unsigned n,
                     struct err *err)
{
    for (unsigned i = 0; i < n; i++) {
        struct query_param *p = &params[i];
        int r;

        if (!span_eq(name, span_str(p->name)))
            continue;
        if (p->given)
            return err_set(err, -EINVAL, "query parameter %s is given twice", p->name);
        p->given = true;
        r = url_decode(&p->value, value, p->max != 0 ? p->max : KEY_LEN_MAX);
        if (r == -ENAMETOOLONG)
            return err_set(err, r, "query parameter %s is too long", p->name);
        if (r != 0)
            return err_set(err, r, "query parameter %s holds a bad %%-escape or a NUL", p->name);
        return p->value.err;
    }
    return err_set(err, -EINVAL, "unknown query parameter %.*s (a '?' in a key is written %%3F)",
                   (int)(name.len < 64 ? name.len : 64), (const char *)name.data);
}

int query_parse(struct span query, struct query_param *params, unsigned n, struct err *err)
{
    while (query.len > 0) {
        struct span value = take_until(&query, '&');
        struct span name = take_until(&value, '=');
        int r;

        if (name.len == 0 && value.len == 0)
            continue;
        r = parse_one(name, value, params, n, err);
        if (r != 0)
            return r;
    }
    return 0;
}

void query_fini(struct query_param *params, unsigned n)
{
    for (unsigned i = 0; i < n; i++)
        buf_fini(&params[i].value);
}

int query_bytes(struct query_param *plain, struct query_param *coded, struct span *out,
                struct err *why)
{
    struct buf bytes = {0};

    if (plain->given && coded->given)
        return err_set(why, -EINVAL, "%s and %s exclude each other", plain->name, coded->name);
    if (coded->given) {
        if (base64_decode(&bytes, buf_span(&coded->value)) != 0)
            return err_set(why, -EINVAL, "%s is not base64", coded->name);
        buf_fini(&plain->value);
        plain->value = bytes;
    }
    if (plain->value.len > KEY_LEN_MAX)
        return err_set(why, -EINVAL, "%s is too long", coded->name);
    if (plain->value.err != 0)
        return err_set(why, plain->value.err, "out of memory");
    *out = buf_span(&plain->value);
    return 0;
}

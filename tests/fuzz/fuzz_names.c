/*
 * fuzz_names.c - keys, their URL paths and their file names: each way there and back.
 *
 * Input: what (0 a key, 1 a URL path, 2 a file path, 3 two keys), then its bytes; of two keys the
 * first has its length before it.
 */
#include "tests/fuzz/fuzz.h"

#include <errno.h>
#include <string.h>

#include "common/keypath.h"
#include "common/limits.h"

static bool is_marker(struct span key)
{
    return key.len > 0 && key.data[key.len - 1] == '/';
}

/* Only what no URL parser touches; and no part that it would fold away. */
static void claim_url_is_safe(struct span url)
{
    size_t part = 0;

    for (size_t i = 0; i <= url.len; i++) {
        if (i == url.len || url.data[i] == '/') {
            struct span s = span_of(url.data + part, i - part);

            CLAIM(!span_eq(s, span_str(".")) && !span_eq(s, span_str("..")));
            part = i + 1;
        } else {
            CLAIM(strchr("0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-._~%",
                         url.data[i]) != NULL);
        }
    }
}

static void claim_name_is_legal(struct span name)
{
    CLAIM(name.len >= 1 && name.len <= FILE_NAME_LEN_MAX);
    CLAIM(memchr(name.data, '/', name.len) == NULL && memchr(name.data, 0, name.len) == NULL);
    CLAIM(!span_eq(name, span_str(".")) && !span_eq(name, span_str("..")));
}

/* Down from the root to the key, one name after the other, as the mount does it. */
static void walk_to(struct span key)
{
    struct buf prefix = {0}, path = {0}, walked = {0};
    bool is_dir = true;

    while (is_dir) {
        struct buf name = {0}, next = {0};

        if (key.len == prefix.len) /* the marker: it has no name of its own */
            break;
        CLAIM(key_name_in(&name, buf_span(&prefix), key, &is_dir) == 0);
        claim_name_is_legal(buf_span(&name));
        CLAIM(key_of_name(&next, buf_span(&prefix), buf_span(&name), is_dir) == 0);
        CLAIM(next.len > prefix.len && span_has_prefix(key, buf_span(&next)));
        CLAIM(is_dir || next.len == key.len);
        if (walked.len > 0)
            buf_u8(&walked, '/');
        buf_add_span(&walked, buf_span(&name));
        buf_fini(&name);
        buf_fini(&prefix);
        prefix = next;
    }
    key_to_path(&path, key);
    CLAIM(span_eq(buf_span(&path), buf_span(&walked)));
    buf_fini(&prefix);
    buf_fini(&path);
    buf_fini(&walked);
}

static void try_key(struct span key)
{
    struct buf url = {0}, path = {0}, back = {0};

    if (key_check(key) < 0) {
        CLAIM(key.len == 0 || key.len > KEY_LEN_MAX || memchr(key.data, 0, key.len) != NULL);
        return;
    }
    key_to_url(&url, key);
    claim_url_is_safe(buf_span(&url));
    CLAIM(key_from_url(&back, buf_span(&url)) == 0);
    CLAIM(span_eq(buf_span(&back), key));
    buf_clear(&back);
    walk_to(key);
    if (!is_marker(key)) {
        key_to_path(&path, key);
        CLAIM(key_from_path(&back, buf_span(&path)) == 0);
        CLAIM(span_eq(buf_span(&back), key));
    }
    buf_fini(&url);
    buf_fini(&path);
    buf_fini(&back);
}

static void try_url(struct span url)
{
    struct buf key = {0};
    int err = key_from_url(&key, url);

    CLAIM(err == 0 || err == -EINVAL || err == -ENAMETOOLONG);
    CLAIM(err == 0 || key.len == 0);
    if (err == 0) {
        CLAIM(key_check(buf_span(&key)) == 0);
        try_key(buf_span(&key));
    }
    buf_fini(&key);
}

/* The last name of a path. */
static struct span last_name(struct span path)
{
    const uint8_t *slash = path.len > 0 ? memrchr(path.data, '/', path.len) : NULL;
    size_t at = slash != NULL ? (size_t)(slash + 1 - path.data) : 0;

    return span_of(path.data + at, path.len - at);
}

static void try_path(struct span path)
{
    struct buf key = {0}, back = {0};
    int err = key_from_path(&key, path);

    CLAIM(err == 0 || err == -EINVAL || err == -ENAMETOOLONG);
    CLAIM(err == 0 || key.len == 0);
    if (err == 0) {
        CLAIM(key_check(buf_span(&key)) == 0 && !is_marker(buf_span(&key)));
        key_to_path(&back, buf_span(&key));
        /* One key, one path: but the key that its own directory hides has a second one. */
        if (!span_eq(last_name(path), span_str(KEY_SHADOWED)))
            CLAIM(span_eq(buf_span(&back), path));
    }
    buf_fini(&key);
    buf_fini(&back);
}

/* Different keys differ in name in the first directory where they part, or one is in the other. */
static void try_two(struct span a, struct span b)
{
    struct buf path_a = {0}, path_b = {0};

    if (key_check(a) < 0 || key_check(b) < 0 || span_eq(a, b) || is_marker(a) || is_marker(b))
        return;
    key_to_path(&path_a, a);
    key_to_path(&path_b, b);
    CLAIM(!span_eq(buf_span(&path_a), buf_span(&path_b)));
    buf_clear(&path_a);
    buf_clear(&path_b);
    key_to_url(&path_a, a);
    key_to_url(&path_b, b);
    CLAIM(!span_eq(buf_span(&path_a), buf_span(&path_b)));
    buf_fini(&path_a);
    buf_fini(&path_b);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct input in = {data, size};
    struct span first;

    switch (input_pick(&in, 4)) {
    case 0:
        try_key(input_rest(&in));
        break;
    case 1:
        try_url(input_rest(&in));
        break;
    case 2:
        try_path(input_rest(&in));
        break;
    default:
        first = input_bytes(&in, input_u16(&in));
        try_two(first, input_rest(&in));
    }
    return 0;
}

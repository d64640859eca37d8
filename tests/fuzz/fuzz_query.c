/*
 * fuzz_query.c - the part of a URL behind '?', and base64: what is accepted is read in one way.
 *
 * Input: what (0 a query, 1 bytes for base64, 2 base64 text), then its bytes.
 */
#include "tests/fuzz/fuzz.h"

#include <errno.h>
#include <string.h>

#include "common/base64.h"
#include "common/keypath.h"
#include "node/query.h"

enum { PREFIX, PREFIX_BASE64, START_AFTER, START_AFTER_BASE64, DELIMITER, LIMIT, N_PARAMS };

/* Those of a listing, routes_list.c. */
static const char *const names[N_PARAMS] = {
    "prefix", "prefix_base64", "start_after", "start_after_base64", "delimiter", "limit"};

static void params_init(struct query_param *p)
{
    for (unsigned i = 0; i < N_PARAMS; i++)
        p[i] = (struct query_param){.name = names[i]};
}

/* Written out again, percent-encoded and in order, it says the same. */
static void claim_again(struct query_param *p)
{
    struct query_param again[N_PARAMS];
    struct buf text = {0};
    struct err err = {""};

    params_init(again);
    for (unsigned i = 0; i < N_PARAMS; i++) {
        if (!p[i].given)
            continue;
        if (text.len > 0)
            buf_u8(&text, '&');
        buf_add_str(&text, names[i]);
        buf_u8(&text, '=');
        key_to_url(&text, buf_span(&p[i].value));
    }
    CLAIM(query_parse(buf_span(&text), again, N_PARAMS, &err) == 0);
    for (unsigned i = 0; i < N_PARAMS; i++) {
        CLAIM(again[i].given == p[i].given);
        CLAIM(span_eq(buf_span(&again[i].value), buf_span(&p[i].value)));
    }
    buf_fini(&text);
    query_fini(again, N_PARAMS);
}

static void try_decode(struct span text)
{
    struct buf bytes = {0}, again = {0}, twice = {0};
    int err;

    buf_u8(&bytes, 'x'); /* stays */
    err = base64_decode(&bytes, text);
    CLAIM(err == 0 || err == -EINVAL);
    CLAIM(bytes.len >= 1 && bytes.data[0] == 'x' && (err == 0 || bytes.len == 1));
    if (err == 0) {
        struct span got = span_of(bytes.data + 1, bytes.len - 1);

        CLAIM(got.len == text.len / 4 * 3 || got.len <= (text.len + 1) * 3 / 4);
        base64_encode(&again, got);
        CLAIM(again.len % 4 == 0);
        CLAIM(base64_decode(&twice, buf_span(&again)) == 0);
        CLAIM(span_eq(buf_span(&twice), got));
    }
    buf_fini(&bytes);
    buf_fini(&again);
    buf_fini(&twice);
}

static void try_encode(struct span bytes)
{
    struct buf text = {0}, back = {0};

    base64_encode(&text, bytes);
    CLAIM(text.len == (bytes.len + 2) / 3 * 4);
    CLAIM(base64_decode(&back, buf_span(&text)) == 0);
    CLAIM(span_eq(buf_span(&back), bytes));
    buf_fini(&text);
    buf_fini(&back);
}

static void try_query(struct span text)
{
    struct query_param p[N_PARAMS];
    struct err err = {""};
    int r;

    params_init(p);
    r = query_parse(text, p, N_PARAMS, &err);
    CLAIM(r == 0 || r == -EINVAL || r == -ENAMETOOLONG);
    if (r < 0) {
        CLAIM(err.msg[0] != '\0');
    } else {
        for (unsigned i = 0; i < N_PARAMS; i++) {
            CLAIM(p[i].given || p[i].value.len == 0);
            CLAIM(p[i].value.len == 0 || key_check(buf_span(&p[i].value)) == 0);
        }
        claim_again(p);
        try_decode(buf_span(&p[PREFIX_BASE64].value));
        try_decode(buf_span(&p[START_AFTER_BASE64].value));
    }
    query_fini(p, N_PARAMS);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct input in = {data, size};

    switch (input_pick(&in, 3)) {
    case 0:
        try_query(input_rest(&in));
        break;
    case 1:
        try_encode(input_rest(&in));
        break;
    default:
        try_decode(input_rest(&in));
    }
    return 0;
}

/*
 * fuzz_lines.c - the lines of GET /watch as a mount reads them: flat JSON objects. What is accepted
 * says the same when it is written again.
 *
 * Input: one line.
 */
#include "tests/fuzz/fuzz.h"

#include <errno.h>
#include <string.h>

#include "common/json.h"

#define N_MEMBERS 3u

static const struct json_member asked[N_MEMBERS] = {
    {.name = "key", .coded = true}, {.name = "version"}, {.name = "kind"}};

static void members_init(struct json_member *m)
{
    for (unsigned i = 0; i < N_MEMBERS; i++)
        m[i] = asked[i];
}

static void claim_again(const struct json_member *m)
{
    struct json_member again[N_MEMBERS];
    struct buf text = {0};
    struct json j = {.out = &text};

    members_init(again);
    json_begin(&j, '{');
    for (unsigned i = 0; i < N_MEMBERS; i++) {
        if (m[i].given) {
            CLAIM(m[i].coded || json_is_utf8(buf_span(&m[i].value)));
            json_field_key(&j, m[i].name, buf_span(&m[i].value));
        }
    }
    json_end(&j, '}');
    CLAIM(json_read(buf_span(&text), again, N_MEMBERS) == (text.err != 0 ? -EBADMSG : 0));
    for (unsigned i = 0; i < N_MEMBERS; i++) {
        CLAIM(again[i].given == m[i].given);
        CLAIM(!m[i].given || span_eq(buf_span(&again[i].value), buf_span(&m[i].value)));
    }
    buf_fini(&text);
    json_members_fini(again, N_MEMBERS);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct json_member m[N_MEMBERS];
    int err;

    members_init(m);
    err = json_read(span_of(data, size), m, N_MEMBERS);
    CLAIM(err == 0 || err == -EBADMSG);
    /* A NUL comes in base64 only, and no string of jansson holds one. */
    if (err == 0 && (m[0].value.len == 0 || !json_is_utf8(buf_span(&m[0].value)) ||
                     memchr(m[0].value.data, 0, m[0].value.len) == NULL))
        claim_again(m);
    json_members_fini(m, N_MEMBERS);
    return 0;
}

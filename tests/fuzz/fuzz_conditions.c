/*
 * fuzz_conditions.c - If-Match and its like, Range, and dates, with any bytes in them.
 *
 * Input: the record it is about (live or not, size, time, as u8, u64, u64), then up to six header
 * values, each ended by a line feed; an empty one is a header that is not there.
 */
#include "tests/fuzz/fuzz.h"

#include <errno.h>
#include <string.h>

#include "node/conditions.h"

#define SECOND_NS 1000000000

static char *take_header(struct input *in)
{
    const uint8_t *end = in->len > 0 ? memchr(in->data, '\n', in->len) : NULL;
    struct span s = input_bytes(in, end != NULL ? (size_t)(end - in->data) : in->len);
    char *text;

    (void)input_u8(in); /* the line feed */
    if (s.len == 0)
        return NULL;
    text = strndup((const char *)s.data, s.len);
    CLAIM(text != NULL);
    return text;
}

/* A tag list that is no list matches nothing; the version's own tag always matches itself. */
static void claim_etags(const char *list, struct ballot version)
{
    char own[BALLOT_TEXT_LEN + 2], text[BALLOT_TEXT_LEN];
    struct buf longer = {0};

    ballot_text(version, text);
    (void)snprintf(own, sizeof own, "\"%s\"", text);
    CLAIM(etags_check(own) == 0 && etags_match(own, version, false));
    if (list == NULL)
        return;
    if (etags_match(list, version, false))
        CLAIM(etags_match(list, version, true));
    if (etags_check(list) == 0 && strchr(list, '*') == NULL) {
        buf_addf(&longer, "%s, %s", list, own);
        buf_u8(&longer, 0);
        CLAIM(etags_check((const char *)longer.data) == 0);
        CLAIM(etags_match((const char *)longer.data, version, false));
        buf_fini(&longer);
    }
}

static void claim_range(const char *header, uint64_t size)
{
    struct range r = range_parse(header);
    uint64_t offset = UINT64_MAX, length = UINT64_MAX;
    unsigned status = range_resolve(&r, size, &offset, &length);

    switch (status) {
    case 200:
        CLAIM(r.kind == RANGE_NONE && offset == 0 && length == size);
        break;
    case 206:
        CLAIM(r.kind != RANGE_NONE && length > 0 && offset < size && length <= size - offset);
        if (r.kind == RANGE_SUFFIX)
            CLAIM(offset + length == size && (length == r.suffix || offset == 0));
        else
            CLAIM(offset == r.first && (offset + length == size || length - 1 == r.last - offset));
        break;
    default:
        CLAIM(status == 416 && offset == UINT64_MAX && length == UINT64_MAX);
        CLAIM(r.kind == RANGE_SUFFIX ? r.suffix == 0 || size == 0 : r.first >= size);
    }
}

static void claim_date(int64_t ns)
{
    char text[HTTP_DATE_LEN];
    int64_t seconds = 0, whole = ns / SECOND_NS - (ns % SECOND_NS < 0);

    http_date(ns, text);
    CLAIM(memchr(text, 0, sizeof text) != NULL);
    CLAIM(strlen(text) == HTTP_DATE_LEN - 1);
    CLAIM(http_date_parse(text, &seconds) == 0 && seconds == whole);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct input in = {data, size};
    unsigned what = input_u8(&in);
    struct record rec = {.version = {7, 9}};
    struct conditions c = {0};
    char *range;
    int err;

    rec.flags = what & 1 ? RECORD_TOMBSTONE : 0;
    rec.size = input_u64(&in) % (VALUE_SIZE_LIMIT + 1);
    rec.mtime_ns = (int64_t)input_u64(&in);
    c.if_match = take_header(&in);
    c.if_none_match = take_header(&in);
    c.if_modified_since = take_header(&in);
    c.if_unmodified_since = take_header(&in);
    c.if_range = take_header(&in);
    range = take_header(&in);

    claim_date(rec.mtime_ns);
    claim_etags(c.if_match, rec.version);
    claim_etags(c.if_none_match, rec.version);
    claim_range(range, rec.size);
    err = conditions_write(&c, &rec);
    CLAIM(err == 0 || err == -ECANCELED);
    if (!record_is_live(&rec))
        CLAIM((err == 0) == (c.if_match == NULL));
    else
        CLAIM(conditions_read(&c, &rec) != 412 || c.if_match != NULL ||
              c.if_unmodified_since != NULL);
    (void)conditions_range(&c, &rec);
    conditions_fini(&c);
    free(range);
    return 0;
}

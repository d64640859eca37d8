/* response.c - an answer of the server, as a value. */
#include "node/response.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "common/json.h"
#include "common/status.h"

void response_header(struct response *r, const char *name, const char *fmt, ...)
{
    size_t start = r->headers.len;
    va_list ap;
    char value[1024];
    int n;

    va_start(ap, fmt);
    n = vsnprintf(value, sizeof(value), fmt, ap);
    va_end(ap);
    assert(n >= 0 && (size_t)n < sizeof(value));
    for (const char *p = value; *p != '\0'; p++)
        if ((unsigned char)*p < ' ' || *p == 0x7f)
            return;
    buf_add(&r->headers, name, strlen(name) + 1);
    buf_add(&r->headers, value, (size_t)n + 1);
    if (r->headers.err != 0)
        r->headers.len = start;
}

bool response_next_header(const struct response *r, size_t *pos, const char **name,
                          const char **value)
{
    const char *all = (const char *)r->headers.data;

    if (*pos >= r->headers.len)
        return false;
    *name = all + *pos;
    *pos += strlen(*name) + 1;
    *value = all + *pos;
    *pos += strlen(*value) + 1;
    return true;
}

void response_fini(struct response *r)
{
    buf_fini(&r->headers);
    buf_fini(&r->text);
    value_fini(&r->value);
    if (r->read_free != NULL)
        r->read_free(r->read_arg);
    *r = (struct response){0};
}

uint64_t response_len(const struct response *r)
{
    if (r->body_len > 0)
        return r->body_len;
    return r->text.len > 0 ? r->text.len : r->value.len;
}

void response_write(const struct response *r, struct buf *out)
{
    const char *name, *value;
    size_t pos = 0;

    buf_addf(out, "HTTP/1.1 %u %s\r\nConnection: close\r\nContent-Length: %zu\r\n", r->status,
             status_reason(r->status), r->text.len);
    while (response_next_header(r, &pos, &name, &value))
        buf_addf(out, "%s: %s\r\n", name, value);
    buf_add_str(out, "\r\n");
    buf_add_span(out, buf_span(&r->text));
}

void response_json(struct response *r, unsigned status, struct buf *json)
{
    r->status = status;
    response_header(r, "Content-Type", "application/json");
    r->text = *json;
    *json = (struct buf){0};
}

void response_problem(struct response *r, unsigned status, const char *fmt, ...)
{
    struct json j = {.out = &r->text};
    char detail[800];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(detail, sizeof(detail), fmt, ap);
    va_end(ap);
    if (!json_is_utf8(span_str(detail)))
        for (char *p = detail; *p != '\0'; p++)
            if ((unsigned char)*p >= 0x80)
                *p = '?';
    r->status = status;
    response_header(r, "Content-Type", "application/problem+json");
    if (status == 503)
        response_header(r, "Retry-After", "1");
    json_begin(&j, '{');
    json_key(&j, "type");
    json_str(&j, span_str("about:blank"));
    json_key(&j, "title");
    json_str(&j, span_str(status_reason(status)));
    json_key(&j, "status");
    json_u64(&j, status);
    json_key(&j, "detail");
    json_str(&j, span_str(detail));
    json_end(&j, '}');
    buf_u8(&r->text, '\n');
}

/* json.h - writing JSON answers (jansson stays behind json.c and config.c). */
#ifndef KVFS_COMMON_JSON_H
#define KVFS_COMMON_JSON_H

#include <stdbool.h>
#include <stdint.h>

#include "common/buf.h"

/*
 * A writer that appends compact JSON to a buffer: json_begin/json_end nest, json_key names the next
 * value inside an object. Commas are its business, memory is the buffer's (out->err). Strings must
 * be UTF-8: see json_is_utf8(). {0}-initialise with .out set.
 */
struct json {
    struct buf *out;
    uint64_t started; /* one bit per depth: something stands there already */
    unsigned depth;
    bool after_key;
};

void json_begin(struct json *j, char bracket); /* '{' or '[' */
void json_end(struct json *j, char bracket);   /* '}' or ']' */
void json_key(struct json *j, const char *name);
void json_str(struct json *j, struct span s); /* asserts UTF-8; jansson has taken json_string */
void json_u64(struct json *j, uint64_t v);
void json_i64(struct json *j, int64_t v);
void json_double(struct json *j, double v); /* infinities and NaN become null */
void json_bool(struct json *j, bool v);
void json_none(struct json *j); /* null; jansson has taken json_null */
/* "name":"key" where the key is UTF-8, else "name_base64":"...". */
void json_field_key(struct json *j, const char *name, struct span key);
bool json_is_utf8(struct span s);

/*
 * One member of an object that is read: a string, into value; NAME_base64, too, where `coded` says
 * so. {.name = ...} at first; the memory of value is used again by the next json_read().
 */
struct json_member {
    const char *name;
    bool coded;
    bool given;
    struct buf value;
};

/*
 * Reads one object whose values are no objects or arrays, from text that holds nothing else; fills
 * those members that it has, and skips all others. -EBADMSG: it is no such object, or a member is
 * no string, given twice or bad base64; -ENOMEM.
 */
int json_read(struct span text, struct json_member *members, unsigned n);
void json_members_fini(struct json_member *members, unsigned n);

#endif

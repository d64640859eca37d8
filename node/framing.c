/* framing.c - where a request ends, and whether its header can be trusted to say so. */
#include "node/framing.h"

#include <ctype.h>
#include <string.h>
#include <strings.h>

bool framing_add(struct framing *f, const char *name, size_t name_len, const char *value,
                 size_t value_len)
{
    if (name <= f->at || name - f->at > 2 || value == NULL)
        f->why = "the header holds a NUL byte or a folded line";
    else if (name_len == 0)
        f->why = "a header has no name";
    for (size_t i = 0; i < name_len; i++)
        if ((unsigned char)name[i] <= ' ' || name[i] == 0x7f)
            f->why = "a header's name holds a space or a control character";
    if (f->why != NULL)
        return false;
    f->at = value + value_len;
    if (strcasecmp(name, "Content-Length") == 0) {
        f->n_length++;
        f->length = value;
    } else if (strcasecmp(name, "Transfer-Encoding") == 0) {
        f->n_coding++;
        f->coding = value;
    } else if (strcasecmp(name, "Host") == 0) {
        f->n_host++;
    }
    return true;
}

/* Digits only. */
static bool parse_length(const char *s, uint64_t *out)
{
    uint64_t v = 0;

    if (*s == '\0')
        return false;
    for (; *s != '\0'; s++) {
        unsigned d = (unsigned)*s - '0';

        if (d > 9 || v > (BODY_LENGTH_UNKNOWN - 1 - d) / 10)
            return false;
        v = v * 10 + d;
    }
    *out = v;
    return true;
}

/* Only line ends, or the NULs in their place, from the last value to the end of the header? */
static bool is_all_seen(const char *at, const char *end)
{
    if (end - at < 2 || end - at > 4)
        return false;
    for (; at < end; at++)
        if (*at != '\0' && *at != '\r' && *at != '\n')
            return false;
    return true;
}

const char *framing_finish(struct framing *f, const char *end, const char *version,
                           uint64_t *length, bool *has_length)
{
    bool old = strcmp(version, "HTTP/1.0") == 0;
    uint64_t n = 0;

    if (f->why != NULL)
        return f->why;
    if (!is_all_seen(f->at, end))
        return "the header holds a NUL byte";
    if (f->n_host > 1 || (f->n_host == 0 && !old))
        return "there must be one Host header";
    if (f->n_length > 1)
        return "there is more than one Content-Length header";
    if (f->n_coding > 0 && f->n_length > 0)
        return "there are both Content-Length and Transfer-Encoding";
    if (f->n_coding > 1 || (f->n_coding == 1 && (old || strcasecmp(f->coding, "chunked") != 0)))
        return "the only Transfer-Encoding understood is chunked, of HTTP/1.1";
    if (f->n_length > 0 && !parse_length(f->length, &n))
        return "Content-Length is not a number";
    *has_length = f->n_length + f->n_coding > 0;
    *length = f->n_coding > 0 ? BODY_LENGTH_UNKNOWN : n;
    return NULL;
}

/*
 * fuzz_framing.c - any header block: where framing.c says that a request ends, a second, plain
 * reading of the same bytes finds the same end and no other.
 *
 * Input: 0 HTTP/1.1 or 1 HTTP/1.0, then the header block up to its empty line.
 */
#include "tests/fuzz/fuzz.h"

#include <ctype.h>
#include <string.h>
#include <strings.h>

#include "node/framing.h"

/*
 * Goes through the block as the server's parser leaves it: lines cut at LF or CR LF, names at the
 * first colon, blanks before a value skipped, C strings from there on. False: there is no end.
 */
static bool read_block(char *block, size_t len, struct framing *f, const char **end)
{
    char *p = block;

    while (p < block + len) {
        char *eol = memchr(p, '\n', (size_t)(block + len - p)), *next, *colon;

        if (eol == NULL)
            return false;
        next = eol + 1;
        *eol = '\0';
        if (eol > p && eol[-1] == '\r')
            *--eol = '\0';
        if (eol == p) {
            *end = next;
            return true;
        }
        colon = strchr(p, ':');
        if (colon == NULL || colon > eol)
            return false; /* the parser refuses it itself */
        *colon++ = '\0';
        colon += strspn(colon, " \t");
        if (!framing_add(f, p, strlen(p), colon, strlen(colon)))
            return true;
        p = next;
    }
    return false;
}

/* How many lines of the text begin with this name and a colon, in any case. */
static unsigned count_lines(struct span text, const char *name, struct span *value)
{
    size_t n = strlen(name);
    unsigned count = 0;

    while (text.len > 0) {
        const uint8_t *eol = memchr(text.data, '\n', text.len);
        size_t len = eol != NULL ? (size_t)(eol - text.data) : text.len;
        size_t skip = eol != NULL ? len + 1 : len;

        if (len > n && strncasecmp((const char *)text.data, name, n) == 0 && text.data[n] == ':') {
            count++;
            *value = span_of(text.data + n + 1, len - n - 1);
        }
        text = span_of(text.data + skip, text.len - skip);
    }
    return count;
}

/* Nothing but NULs, and perhaps a CR, before the next LF? */
static bool is_line_end(const uint8_t *p, const uint8_t *end)
{
    while (p < end && (*p == 0 || *p == '\r'))
        p++;
    return p < end && *p == '\n';
}

/* Without the blanks before the value, and the line end and NULs behind it. */
static struct span trim(struct span s)
{
    while (s.len > 0 && (s.data[0] == ' ' || s.data[0] == '\t'))
        s = span_of(s.data + 1, s.len - 1);
    while (s.len > 0 && (s.data[s.len - 1] == '\r' || s.data[s.len - 1] == 0))
        s.len--;
    return s;
}

/* What a second reader makes of an accepted block. */
static void claim_one_reading(struct span text, uint64_t length, bool has_length, bool old)
{
    struct span value = {0};
    uint64_t n = 0;
    unsigned n_length, n_coding, n_host;

    /* A NUL in the place of a CR hides nothing; any other would. */
    for (size_t i = 0; i < text.len; i++)
        CLAIM(text.data[i] != 0 || is_line_end(text.data + i, text.data + text.len));
    n_host = count_lines(text, "host", &value);
    n_coding = count_lines(text, "transfer-encoding", &value);
    CLAIM(n_coding == 0 ||
          (trim(value).len == 7 && strncasecmp((const char *)trim(value).data, "chunked", 7) == 0));
    n_length = count_lines(text, "content-length", &value);
    CLAIM(n_host == 1 || (n_host == 0 && old));
    CLAIM(n_length + n_coding <= 1 && has_length == (n_length + n_coding == 1));
    CLAIM(n_coding == 0 || !old);
    if (n_coding == 1) {
        CLAIM(length == BODY_LENGTH_UNKNOWN);
        return;
    }
    value = trim(value);
    for (size_t i = 0; n_length == 1 && i < value.len; i++) {
        CLAIM(isdigit(value.data[i]));
        CLAIM(!__builtin_mul_overflow(n, 10, &n) &&
              !__builtin_add_overflow(n, value.data[i] - '0', &n));
    }
    CLAIM(length == n && n != BODY_LENGTH_UNKNOWN);
    CLAIM(n_length == 0 || value.len > 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct input in = {data, size};
    bool old = input_u8(&in) & 1, has_length = false;
    struct span text = input_rest(&in);
    uint64_t length = 0;
    /* A NUL stands for the end of the request line, and one ends the parser's buffer. */
    char *block = calloc(1, text.len + 2);
    struct framing f = {.at = block};
    const char *end = NULL, *why = NULL;

    CLAIM(block != NULL);
    if (text.len > 0)
        memcpy(block + 1, text.data, text.len);
    if (read_block(block + 1, text.len, &f, &end)) {
        if (f.why == NULL)
            why = framing_finish(&f, end, old ? "HTTP/1.0" : "HTTP/1.1", &length, &has_length);
        CLAIM((f.why == NULL) || end == NULL);
        if (f.why == NULL && why == NULL)
            claim_one_reading(span_of(text.data, (size_t)(end - block) - 1), length, has_length,
                              old);
    }
    free(block);
    return 0;
}

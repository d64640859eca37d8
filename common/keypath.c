/*
 * keypath.c - names of a key: in a URL path, and as files of the mount.
 *
 * THE GRAMMAR OF FILE NAMES
 *
 *   key      = part *( "/" part )      a part is any bytes but '/' and NUL, perhaps none
 *   path     = name *( "/" name )      a name is 1..255 bytes but '/' and NUL, not "." or ".."
 *
 *   base     = "%00" | "%2E" | "%2E%2E" | "%00key" | 240 bytes "%00+" | in the root: "%2Ekvfs"
 *   esc(s)   = s with every '%' written "%25"
 *   reserved = base | esc(reserved)    all names that mean something else than themselves
 *
 * A directory is known by its prefix, the bytes that its keys share. Its *stem* is what stands in
 * it behind the last '/': nothing in an ordinary directory, whole pieces of 240 bytes in the
 * directory of a piece. What follows the prefix in a key up to the next '/' or the end is the
 * *rest*, and that is what gets a name there:
 *
 *   name("") = "%00"   name(".") = "%2E"   name("..") = "%2E%2E"
 *   name(".kvfs") = "%2Ekvfs" in the root, where ".kvfs" is the name of no key
 *   name(r)  = esc(r)  if r is reserved
 *   name(r)  = r       else
 *   and where name(r) would be over 255 bytes: the directory (first 240 bytes of r)"%00+", whose
 *   prefix is 240 bytes longer.
 *
 * Where '/' follows the rest in the key, the name is that of a directory, and the prefix goes on
 * behind the '/'. A key that ends in '/' is the marker of the directory whose prefix it is and has
 * no other name. So "" is the rest of directories only: of "a//b" in "a", of "/b" in the root.
 *
 * WHY IT IS ONE-TO-ONE
 *
 * 1. esc is one-to-one, and no base is esc of anything: each has a '%' that "25" does not follow.
 *    So a reserved name is esc^n(base) for one n and one base only, and n is how often "25" at
 *    least follows every '%' of it.
 * 2. Short rests. A name that is a base names what the table says; for 240 bytes and "%00+" that is
 *    a piece. Another reserved name is esc(r) with r reserved, and names r. Any other name names
 *    itself. These three sets do not meet, and name() maps "", ".", ".." (and in the root ".kvfs")
 *    into the first, the reserved rests into the second, all others into the third, one-to-one in
 *    each. What is reserved depends on the directory, as the prefix tells: the root or another.
 * 3. Long rests. Whether a rest is cut depends on nothing but the rest, and a cut one is over 240
 *    bytes: either it is over 255; or it is esc^n of a piece, over 243; or of another base, and
 *    then esc made it longer by 2 or 4 bytes only, and the next time would bring it over 255. So
 *    something is left for the next directory: cutting ends, always in the same places. Read back,
 *    a name in a piece's directory is accepted only if the last piece and what it names together
 *    are a rest that is cut; all pieces before stand in front of at least 480 bytes and so were cut
 *    in any case.
 * 4. "%00key" is the name of no rest (the part "%00key" is reserved and shows as "%2500key"), so it
 *    is free to name, in directory "a/", the key "a" that the directory hides. Where the prefix
 *    less its '/' is no key or is a marker itself (the root, "/", "a//", a piece) it names nothing.
 */
#include "common/keypath.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "common/limits.h"

#define MARK_LEN (sizeof(KEY_PIECE_MARK) - 1)
#define CONTROL_ESCAPED "%2Ekvfs"

_Static_assert(KEY_PIECE_LEN + MARK_LEN <= FILE_NAME_LEN_MAX,
               "a piece and its mark are a legal name");

int key_check(struct span key)
{
    if (key.len == 0)
        return -EINVAL;
    if (key.len > KEY_LEN_MAX)
        return -ENAMETOOLONG;
    return memchr(key.data, 0, key.len) == NULL ? 0 : -EINVAL;
}

static bool is_str(struct span s, const char *str)
{
    return span_eq(s, span_str(str));
}

static bool is_dots(struct span s)
{
    return is_str(s, ".") || is_str(s, "..");
}

static struct span skip(struct span s, size_t n)
{
    return span_of(s.data + n, s.len - n);
}

/* How many bytes stand before the next '/' or the end. */
static size_t part_len(struct span s)
{
    const uint8_t *slash = s.len > 0 ? memchr(s.data, '/', s.len) : NULL;

    return slash != NULL ? (size_t)(slash - s.data) : s.len;
}

/* --- URL paths -------------------------------------------------------------------------------- */

static bool is_unreserved(uint8_t c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '.' || c == '_' || c == '~';
}

void key_to_url(struct buf *out, struct span key)
{
    static const char hex[] = "0123456789ABCDEF";
    bool dots = is_dots(span_of(key.data, part_len(key)));

    for (size_t i = 0; i < key.len; i++) {
        uint8_t c = key.data[i];

        if (c == '/')
            dots = is_dots(span_of(key.data + i + 1, part_len(skip(key, i + 1))));
        if (c == '/' || (is_unreserved(c) && !dots)) {
            buf_u8(out, c);
        } else {
            buf_u8(out, '%');
            buf_u8(out, (uint8_t)hex[c >> 4]);
            buf_u8(out, (uint8_t)hex[c & 15]);
        }
    }
}

static int hex_digit(uint8_t c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'A' && c <= 'F')
        return c - 'A' + 10;
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    return -1;
}

int url_decode(struct buf *out, struct span text, size_t max)
{
    size_t start = out->len;
    int err = 0;

    for (size_t i = 0; i < text.len && err == 0; i++) {
        uint8_t c = text.data[i];

        if (c == '%') {
            int high = text.len - i > 2 ? hex_digit(text.data[i + 1]) : -1;
            int low = text.len - i > 2 ? hex_digit(text.data[i + 2]) : -1;

            c = high < 0 || low < 0 ? 0 : (uint8_t)(high << 4 | low);
            i += 2;
        }
        if (c == 0)
            err = -EINVAL;
        else if (out->len - start == max)
            err = -ENAMETOOLONG;
        else
            buf_u8(out, c);
    }
    if (err == 0)
        err = out->err;
    if (err < 0)
        out->len = start;
    return err;
}

int key_from_url(struct buf *out, struct span path)
{
    return path.len == 0 ? -EINVAL : url_decode(out, path, KEY_LEN_MAX);
}

/* --- file names: the grammar ------------------------------------------------------------------ */

static size_t count_percent(struct span s)
{
    size_t n = 0;

    for (size_t i = 0; i < s.len; i++)
        n += s.data[i] == '%';
    return n;
}

/* How often "25" follows the '%' at the start of s. */
static size_t n_escaped(struct span s)
{
    size_t n = 0;

    for (s = skip(s, 1); s.len >= 2 && s.data[0] == '2' && s.data[1] == '5'; s = skip(s, 2))
        n++;
    return n;
}

/* Undoes esc `depth` times; every '%' has depth times "25" behind it. Returns the length. */
static size_t unescape(struct span s, size_t depth, uint8_t out[FILE_NAME_LEN_MAX])
{
    size_t len = 0;

    for (size_t i = 0; i < s.len; i++) {
        out[len++] = s.data[i];
        if (s.data[i] == '%')
            i += 2 * depth;
    }
    return len;
}

static bool is_piece(struct span s)
{
    return s.len == KEY_PIECE_LEN + MARK_LEN &&
           memcmp(s.data + KEY_PIECE_LEN, KEY_PIECE_MARK, MARK_LEN) == 0;
}

static bool is_base(struct span s, bool in_root)
{
    return is_str(s, "%00") || is_str(s, "%2E") || is_str(s, "%2E%2E") || is_str(s, KEY_SHADOWED) ||
           is_piece(s) || (in_root && is_str(s, CONTROL_ESCAPED));
}

/* Is s (255 bytes at most) esc^n of a base, and of which n? */
static bool is_reserved(struct span s, bool in_root, size_t *n)
{
    uint8_t base[FILE_NAME_LEN_MAX];
    size_t depth = SIZE_MAX;

    assert(s.len <= FILE_NAME_LEN_MAX);
    for (size_t i = 0; i < s.len; i++) {
        if (s.data[i] == '%') {
            size_t here = n_escaped(skip(s, i));

            depth = here < depth ? here : depth;
        }
    }
    if (depth == SIZE_MAX) /* nearly all names: no '%' */
        return false;
    *n = depth;
    return is_base(span_of(base, unescape(s, depth, base)), in_root);
}

/* Would one name for this rest be too long? */
static bool is_cut(struct span rest, bool in_root)
{
    size_t depth;

    if (rest.len > FILE_NAME_LEN_MAX)
        return true;
    return is_reserved(rest, in_root, &depth) &&
           rest.len + 2 * count_percent(rest) > FILE_NAME_LEN_MAX;
}

/* name(rest) for a rest that is not cut. */
static void add_name(struct buf *out, struct span rest, bool in_root)
{
    size_t depth;

    if (rest.len == 0) {
        buf_add_str(out, "%00");
    } else if (is_dots(rest)) {
        buf_add_str(out, rest.len == 1 ? "%2E" : "%2E%2E");
    } else if (in_root && is_str(rest, KEY_CONTROL)) {
        buf_add_str(out, CONTROL_ESCAPED);
    } else if (is_reserved(rest, in_root, &depth)) {
        for (size_t i = 0; i < rest.len; i++) {
            buf_u8(out, rest.data[i]);
            if (rest.data[i] == '%')
                buf_add_str(out, "25");
        }
    } else {
        buf_add_span(out, rest);
    }
}

enum name_kind { NAME_REST, NAME_PIECE, NAME_SHADOWED };

/* What a legal name means: a rest (or the bytes of a piece) in out. */
static enum name_kind read_name(struct span name, bool in_root, uint8_t out[FILE_NAME_LEN_MAX],
                                size_t *len)
{
    size_t depth;

    *len = 0;
    if (!is_reserved(name, in_root, &depth)) {
        *len = unescape(name, 0, out);
    } else if (depth > 0) {
        *len = unescape(name, 1, out);
    } else if (is_str(name, KEY_SHADOWED)) {
        return NAME_SHADOWED;
    } else if (is_piece(name)) {
        *len = unescape(span_of(name.data, KEY_PIECE_LEN), 0, out);
        return NAME_PIECE;
    } else if (is_str(name, CONTROL_ESCAPED)) {
        *len = sizeof(KEY_CONTROL) - 1;
        memcpy(out, KEY_CONTROL, *len);
    } else if (!is_str(name, "%00")) {
        *len = name.len / 3; /* "%2E" or "%2E%2E" */
        memset(out, '.', *len);
    }
    return NAME_REST;
}

/* The stem of a directory; false if there is no such directory. */
static bool stem_of(struct span prefix, struct span *stem)
{
    const uint8_t *slash = prefix.len > 0 ? memrchr(prefix.data, '/', prefix.len) : NULL;

    *stem = slash != NULL ? skip(prefix, (size_t)(slash + 1 - prefix.data)) : prefix;
    return stem->len % KEY_PIECE_LEN == 0;
}

/*
 * Is a part that is `stem` and `rest` cut behind the stem? Rests in an ordinary directory (no stem)
 * are not in question. prefix: of the directory.
 */
static bool belongs_behind(struct span prefix, struct span stem, struct span rest)
{
    uint8_t both[KEY_PIECE_LEN + FILE_NAME_LEN_MAX];

    if (stem.len == 0)
        return true;
    if (rest.len == 0 || rest.len > FILE_NAME_LEN_MAX)
        return rest.len > 0;
    memcpy(both, stem.data + stem.len - KEY_PIECE_LEN, KEY_PIECE_LEN);
    memcpy(both + KEY_PIECE_LEN, rest.data, rest.len);
    return is_cut(span_of(both, KEY_PIECE_LEN + rest.len), prefix.len == KEY_PIECE_LEN);
}

/* --- file names: one step --------------------------------------------------------------------- */

static int check_name(struct span name, bool in_root)
{
    if (name.len == 0 || is_dots(name) || (in_root && is_str(name, KEY_CONTROL)))
        return -EINVAL;
    if (name.len > FILE_NAME_LEN_MAX)
        return -ENAMETOOLONG;
    return memchr(name.data, '/', name.len) == NULL && memchr(name.data, 0, name.len) == NULL
               ? 0
               : -EINVAL;
}

/* The key that directory `prefix` hides. */
static int shadowed_key(struct buf *out, struct span prefix)
{
    if (prefix.len < 2 || prefix.data[prefix.len - 1] != '/' || prefix.data[prefix.len - 2] == '/')
        return -EINVAL;
    buf_add(out, prefix.data, prefix.len - 1);
    return out->err;
}

int key_of_name(struct buf *out, struct span prefix, struct span name, bool as_dir)
{
    uint8_t bytes[FILE_NAME_LEN_MAX];
    enum name_kind kind;
    struct span stem, rest;
    size_t len;
    int err;

    err = check_name(name, prefix.len == 0);
    if (err < 0)
        return err;
    if (!stem_of(prefix, &stem))
        return -EINVAL;
    kind = read_name(name, prefix.len == 0, bytes, &len);
    if (kind == NAME_SHADOWED)
        return as_dir ? -EINVAL : shadowed_key(out, prefix);
    if (!as_dir && (kind == NAME_PIECE || len == 0))
        return -EINVAL; /* pieces and empty parts are directories */
    rest = span_of(bytes, len);
    if (kind == NAME_REST && !belongs_behind(prefix, stem, rest))
        return -EINVAL;
    /* A directory's prefix brings its '/', a piece at least one byte more. */
    if (prefix.len + len + as_dir > KEY_LEN_MAX)
        return -ENAMETOOLONG;
    buf_add_span(out, prefix);
    buf_add_span(out, rest);
    if (as_dir && kind == NAME_REST)
        buf_u8(out, '/');
    return out->err;
}

int key_name_in(struct buf *out, struct span prefix, struct span key, bool *is_dir)
{
    struct span stem, rest;
    size_t left;

    if (!stem_of(prefix, &stem) || key.len == prefix.len || !span_has_prefix(key, prefix))
        return -ENOENT;
    left = key.len - prefix.len;
    rest = skip(key, prefix.len);
    rest.len = part_len(rest);
    if (!belongs_behind(prefix, stem, rest))
        return -ENOENT;
    if (is_cut(rest, prefix.len == 0)) {
        buf_add(out, rest.data, KEY_PIECE_LEN);
        buf_add_str(out, KEY_PIECE_MARK);
        *is_dir = true;
    } else {
        add_name(out, rest, prefix.len == 0);
        *is_dir = rest.len < left;
    }
    return out->err;
}

/* --- file names: whole paths ------------------------------------------------------------------ */

void key_to_path(struct buf *out, struct span key)
{
    size_t done =
        0; /* bytes of the key that have been named: the prefix of the directory reached */

    assert(key_check(key) == 0);
    while (done < key.len) {
        struct span rest = skip(key, done);

        rest.len = part_len(rest);
        if (done > 0)
            buf_u8(out, '/');
        if (is_cut(rest, done == 0)) {
            buf_add(out, rest.data, KEY_PIECE_LEN);
            buf_add_str(out, KEY_PIECE_MARK);
            done += KEY_PIECE_LEN;
        } else {
            add_name(out, rest, done == 0);
            done += rest.len + 1; /* and its '/', or past the end */
        }
    }
}

int key_from_path(struct buf *out, struct span path)
{
    struct buf prefix = {0}, next = {0};
    int err;

    for (;;) {
        struct span name = span_of(path.data, part_len(path));
        bool last = name.len == path.len;

        err = key_of_name(&next, buf_span(&prefix), name, !last);
        if (err < 0 || last)
            break;
        buf_fini(&prefix);
        prefix = next;
        next = (struct buf){0};
        path = skip(path, name.len + 1);
    }
    if (err == 0) {
        buf_add_span(out, buf_span(&next));
        err = out->err;
    }
    buf_fini(&prefix);
    buf_fini(&next);
    return err;
}

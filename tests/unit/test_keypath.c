/*
 * test_keypath.c - keys as URL paths and as file names: one-to-one, for the worst keys there are.
 */
#include "common/keypath.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/limits.h"
#include "tests/lib/rng.h"

#define N_RANDOM 20000u

/* --- random bytes that look for trouble ------------------------------------------------------- */

static const char *const fragments[] = {
    "%",  "0",  "2",    "5",        "E",      "k",      "e",    "y",   ".",     "..",       "+",
    "/",  "//", "%00",  "%2E",      "%2E%2E", "%00key", "%00+", "%25", "%2500", "%2500key", "%252E",
    "25", "a",  "\xff", "\xfe\x01", " ",      "%2e",    "\n",   "?",   "#",     "kvfs",     ".kvfs",
};
static const unsigned long_lengths[] = {14,  15,  16,  239, 240, 241, 244, 254,
                                        255, 256, 480, 481, 495, 496, 720, 4096};

static bool is_legal_name(struct span s)
{
    return s.len >= 1 && s.len <= FILE_NAME_LEN_MAX && memchr(s.data, '/', s.len) == NULL &&
           memchr(s.data, 0, s.len) == NULL && !span_eq(s, span_str(".")) &&
           !span_eq(s, span_str(".."));
}

static void add_fragment(struct rng *rng, struct buf *out)
{
    buf_add_str(out, fragments[rng_below(rng, sizeof(fragments) / sizeof(fragments[0]))]);
}

/*
 * A run of one byte, or the escape of a base as deep as fits, so that it is about as long as a name
 * may be.
 */
static void add_long(struct rng *rng, struct buf *out)
{
    size_t len = long_lengths[rng_below(rng, sizeof(long_lengths) / sizeof(long_lengths[0]))];

    if (rng_chance(rng, 300)) {
        buf_add_str(out, "%");
        for (size_t i = 0; i < 120 + rng_below(rng, 6); i++)
            buf_add_str(out, "25");
        buf_add_str(out, rng_chance(rng, 500) ? "00key" : rng_chance(rng, 500) ? "2Ekvfs" : "00");
        return;
    }
    for (size_t i = 0; i < len; i++)
        buf_u8(out, rng_chance(rng, 2) ? '%' : (uint8_t)('a' + len % 26));
    if (rng_chance(rng, 400))
        buf_add_str(out, KEY_PIECE_MARK);
}

static void random_bytes(struct rng *rng, struct buf *out, size_t max)
{
    unsigned n = (unsigned)rng_between(rng, 1, 8);

    buf_clear(out);
    for (unsigned i = 0; i < n; i++) {
        unsigned what = (unsigned)rng_below(rng, 20);

        if (what == 0)
            add_long(rng, out);
        else if (what == 1)
            buf_u8(out, (uint8_t)rng_between(rng, 1, 255));
        else
            add_fragment(rng, out);
    }
    if (out->len > max)
        out->len = max;
}

/* --- assertions ------------------------------------------------------------------------------- */

static void assert_bytes(struct span got, struct span want)
{
    assert_int_equal(got.len, want.len);
    if (want.len > 0)
        assert_memory_equal(got.data, want.data, want.len);
}

static void assert_url(const char *key, const char *url)
{
    struct buf b = {0}, back = {0};

    key_to_url(&b, span_str(key));
    assert_bytes(buf_span(&b), span_str(url));
    assert_int_equal(key_from_url(&back, buf_span(&b)), 0);
    assert_bytes(buf_span(&back), span_str(key));
    buf_fini(&b);
    buf_fini(&back);
}

static void assert_url_refused(struct span url, int err)
{
    struct buf b = {0};

    buf_u8(&b, 'x');
    assert_int_equal(key_from_url(&b, url), err);
    assert_int_equal(b.len, 1);
    buf_fini(&b);
}

static void assert_path(struct span key, const char *path)
{
    struct buf b = {0}, back = {0};

    key_to_path(&b, key);
    assert_bytes(buf_span(&b), span_str(path));
    if (key.data[key.len - 1] != '/') {
        assert_int_equal(key_from_path(&back, buf_span(&b)), 0);
        assert_bytes(buf_span(&back), key);
    }
    buf_fini(&b);
    buf_fini(&back);
}

static void assert_key_of(const char *prefix, const char *name, bool as_dir, int err,
                          const char *key)
{
    struct buf b = {0};

    assert_int_equal(key_of_name(&b, span_str(prefix), span_str(name), as_dir), err);
    assert_bytes(buf_span(&b), span_str(err == 0 ? key : ""));
    buf_fini(&b);
}

/*
 * Goes from the root to the key by one name after the other, checking each both ways; the depth in
 * *out.
 */
static void assert_walk_reaches(struct span key, unsigned *depth)
{
    struct buf prefix = {0}, name = {0}, next = {0};
    bool is_dir = true;

    *depth = 0;
    while (!span_eq(buf_span(&prefix), key)) {
        buf_clear(&name);
        buf_clear(&next);
        assert_true(is_dir); /* a file has nothing below it */
        assert_int_equal(key_name_in(&name, buf_span(&prefix), key, &is_dir), 0);
        assert_true(is_legal_name(buf_span(&name)));
        assert_false(span_eq(buf_span(&name), span_str(KEY_SHADOWED)));
        assert_int_equal(key_of_name(&next, buf_span(&prefix), buf_span(&name), is_dir), 0);
        assert_true(next.len > prefix.len);
        assert_true(span_has_prefix(key, buf_span(&next)));
        buf_clear(&prefix);
        buf_add_span(&prefix, buf_span(&next));
        (*depth)++;
    }
    assert_int_equal(is_dir, key.data[key.len - 1] == '/');
    buf_fini(&prefix);
    buf_fini(&name);
    buf_fini(&next);
}

/* --- keys ------------------------------------------------------------------------------------- */

static void a_key_has_1_to_4096_bytes_without_nul(void **state)
{
    uint8_t bytes[KEY_LEN_MAX + 1];

    (void)state;
    memset(bytes, 0xff, sizeof(bytes));
    assert_int_equal(key_check(span_of(bytes, 0)), -EINVAL);
    assert_int_equal(key_check(span_of(bytes, 1)), 0);
    assert_int_equal(key_check(span_of(bytes, KEY_LEN_MAX)), 0);
    assert_int_equal(key_check(span_of(bytes, KEY_LEN_MAX + 1)), -ENAMETOOLONG);
    bytes[KEY_LEN_MAX - 1] = 0;
    assert_int_equal(key_check(span_of(bytes, KEY_LEN_MAX)), -EINVAL);
    assert_int_equal(key_check(span_of(bytes, KEY_LEN_MAX - 1)), 0);
}

/* --- URL paths -------------------------------------------------------------------------------- */

static void urls_escape_what_is_reserved_and_nothing_else(void **state)
{
    (void)state;
    assert_url("azAZ09-._~", "azAZ09-._~");
    assert_url("user:42", "user%3A42");
    assert_url("a b+c", "a%20b%2Bc");
    assert_url("100%", "100%25");
    assert_url("\xff\xfe\x01\x7f", "%FF%FE%01%7F");
    assert_url("a/b//c/", "a/b//c/");
    assert_url("/", "/");
    assert_url("?#[]@!$&'()*,;=", "%3F%23%5B%5D%40%21%24%26%27%28%29%2A%2C%3B%3D");
}

static void urls_hide_dots_from_clients_that_fold_them(void **state)
{
    (void)state;
    assert_url(".", "%2E");
    assert_url("..", "%2E%2E");
    assert_url("a/../b/.", "a/%2E%2E/b/%2E");
    assert_url("./..", "%2E/%2E%2E");
    assert_url("/.", "/%2E");
    assert_url(".../.a/a..", ".../.a/a..");
}

static void urls_are_decoded_once_and_plus_is_a_plus(void **state)
{
    struct buf b = {0};

    (void)state;
    assert_int_equal(key_from_url(&b, span_str("a+b%2bc%252F%2f%ffx:y")), 0);
    assert_bytes(buf_span(&b), span_str("a+b+c%2F/\xffx:y"));
    buf_clear(&b);
    assert_int_equal(key_from_url(&b, span_str("\xff/../.")),
                     0); /* raw bytes and dots stand for themselves */
    assert_bytes(buf_span(&b), span_str("\xff/../."));
    buf_fini(&b);
}

static void bad_urls_are_refused_and_nothing_is_appended(void **state)
{
    char long_url[KEY_LEN_MAX + 1];
    struct buf b = {0}, key = {0};

    (void)state;
    assert_url_refused(span_str(""), -EINVAL);
    assert_url_refused(span_str("%"), -EINVAL);
    assert_url_refused(span_str("a%2"), -EINVAL);
    assert_url_refused(span_str("%g0"), -EINVAL);
    assert_url_refused(span_str("%0g"), -EINVAL);
    assert_url_refused(span_str("% 1"), -EINVAL);
    assert_url_refused(span_str("a%00b"), -EINVAL);
    assert_url_refused(span_of("a\0b", 3), -EINVAL);
    memset(long_url, 'a', sizeof(long_url));
    assert_url_refused(span_of(long_url, sizeof(long_url)), -ENAMETOOLONG);
    assert_int_equal(key_from_url(&b, span_of(long_url, KEY_LEN_MAX)), 0);
    buf_clear(&b);
    for (unsigned i = 0; i < KEY_LEN_MAX; i++)
        buf_add_str(&b, "%ff");
    assert_int_equal(key_from_url(&key, buf_span(&b)),
                     0); /* the limit counts the key's bytes, not the URL's */
    buf_fini(&key);
    buf_fini(&b);
}

static void every_key_survives_its_url(void **state)
{
    struct buf key = {0}, url = {0}, back = {0};
    struct rng rng = {11};

    (void)state;
    for (unsigned i = 0; i < N_RANDOM; i++) {
        random_bytes(&rng, &key, KEY_LEN_MAX);
        buf_clear(&url);
        buf_clear(&back);
        key_to_url(&url, buf_span(&key));
        assert_int_equal(key_from_url(&back, buf_span(&url)), 0);
        assert_bytes(buf_span(&back), buf_span(&key));
    }
    buf_fini(&key);
    buf_fini(&url);
    buf_fini(&back);
}

/* --- file names ------------------------------------------------------------------------------- */

static void most_keys_are_their_paths(void **state)
{
    (void)state;
    assert_path(span_str("a"), "a");
    assert_path(span_str("a/b c/d%"), "a/b c/d%");
    assert_path(span_str("%25/%2e/100%/%00k/%00+/%2E."), "%25/%2e/100%/%00k/%00+/%2E.");
    assert_path(span_str("\xff\xfe"), "\xff\xfe");
    assert_path(span_str("a/"), "a"); /* the marker of a directory is the directory */
}

static void parts_that_no_name_can_be_are_escaped(void **state)
{
    (void)state;
    assert_path(span_str("/"), "%00");
    assert_path(span_str("/a"), "%00/a");
    assert_path(span_str("a//b"), "a/%00/b");
    assert_path(span_str("a//"), "a/%00");
    assert_path(span_str("///x"), "%00/%00/%00/x");
    assert_path(span_str("."), "%2E");
    assert_path(span_str("../a/."), "%2E%2E/a/%2E");
}

static void parts_that_read_as_an_escape_are_escaped_too(void **state)
{
    (void)state;
    assert_path(span_str("%00"), "%2500");
    assert_path(span_str("%2500"), "%252500");
    assert_path(span_str("%2E"), "%252E");
    assert_path(span_str("%252E%252E"), "%25252E%25252E");
    assert_path(span_str("%252E%2E"), "%252E%2E"); /* no escape of anything: itself */
    assert_path(span_str("%ab2E%252E"), "%ab2E%252E");
    assert_path(span_str("%00key"), "%2500key");
    assert_path(span_str("a/%00key"), "a/%2500key");
    assert_path(span_str("%2500key/x"), "%252500key/x");
}

/* The name of the control directory is no key's; elsewhere it is a name like any other. */
static void the_keys_of_the_control_directorys_name_are_escaped_in_the_root(void **state)
{
    (void)state;
    assert_path(span_str(".kvfs"), "%2Ekvfs");
    assert_path(span_str(".kvfs/x"), "%2Ekvfs/x");
    assert_path(span_str(".kvfs/"), "%2Ekvfs");
    assert_path(span_str("%2Ekvfs"), "%252Ekvfs");
    assert_path(span_str("%252Ekvfs/x"), "%25252Ekvfs/x");
    assert_path(span_str("a/.kvfs"), "a/.kvfs");
    assert_path(span_str("a/%2Ekvfs"), "a/%2Ekvfs");
    assert_path(span_str("/.kvfs"), "%00/.kvfs");
    assert_path(span_str(".kvfs0"), ".kvfs0");
    assert_key_of("", KEY_CONTROL, false, -EINVAL, NULL);
    assert_key_of("", KEY_CONTROL, true, -EINVAL, NULL);
    assert_key_of("a/", KEY_CONTROL, true, 0, "a/.kvfs/");
    assert_key_of(".kvfs/", KEY_SHADOWED, false, 0, ".kvfs");
}

/* Where the escape would be too long for a name, the part is cut; but only in the root. */
static void deep_escapes_of_the_control_directorys_name_are_cut(void **state)
{
    struct buf key = {0};
    unsigned depth;

    (void)state;
    for (unsigned n = 122; n <= 125; n++) { /* of "25": parts of 251 to 257 bytes */
        for (unsigned sub = 0; sub <= 1; sub++) {
            buf_clear(&key);
            buf_add_str(&key, sub ? "a/%" : "%");
            for (unsigned i = 0; i < n; i++)
                buf_add_str(&key, "25");
            buf_add_str(&key, "2Ekvfs");
            assert_walk_reaches(buf_span(&key), &depth);
            assert_int_equal(depth, 1 + sub + (7 + 2 * n + (sub ? 0 : 2) > FILE_NAME_LEN_MAX));
        }
    }
    buf_fini(&key);
}

static void long_parts_are_cut_into_pieces(void **state)
{
    static const unsigned lengths[] = {240, 244, 255, 256, 480, 481, 495, 496, 720, 721, 4096};

    (void)state;
    for (unsigned i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
        struct buf key = {0}, path = {0}, want = {0};
        unsigned left = lengths[i], depth;

        for (unsigned k = 0; k < left; k++)
            buf_u8(&key, 'x');
        for (; left > FILE_NAME_LEN_MAX; left -= KEY_PIECE_LEN) {
            buf_add(&want, key.data, KEY_PIECE_LEN);
            buf_add_str(&want, "%00+/");
        }
        buf_add(&want, key.data, left);
        key_to_path(&path, buf_span(&key));
        assert_bytes(buf_span(&path), buf_span(&want));
        assert_walk_reaches(buf_span(&key), &depth);
        buf_fini(&key);
        buf_fini(&path);
        buf_fini(&want);
    }
}

/*
 * A part that looks like a piece is escaped while that fits, else it is cut as any name that would
 * be too long.
 */
static void parts_that_read_as_pieces_are_no_pieces(void **state)
{
    struct buf part = {0}, path = {0};
    unsigned depth;

    (void)state;
    for (unsigned n_percent = 0; n_percent <= KEY_PIECE_LEN; n_percent++) {
        buf_clear(&part);
        buf_clear(&path);
        for (unsigned i = 0; i < KEY_PIECE_LEN; i++)
            buf_u8(&part, i < n_percent ? '%' : 'x');
        buf_add_str(&part, KEY_PIECE_MARK);
        key_to_path(&path, buf_span(&part));
        if (n_percent <= 4)
            assert_int_equal(path.len, 246 + 2 * n_percent);
        else
            assert_int_equal(path.len, part.len + 4 + 1); /* mark and slash of one piece */
        assert_walk_reaches(buf_span(&part), &depth);
        assert_int_equal(depth, n_percent <= 4 ? 1 : 2);
    }
    buf_fini(&part);
    buf_fini(&path);
}

static void a_shadowed_key_has_a_name_in_the_directory_that_hides_it(void **state)
{
    (void)state;
    assert_key_of("a/", KEY_SHADOWED, false, 0, "a");
    assert_key_of("a/b/", KEY_SHADOWED, false, 0, "a/b");
    assert_key_of("./", KEY_SHADOWED, false, 0, ".");
    assert_key_of("a/", KEY_SHADOWED, true, -EINVAL, NULL);
    assert_key_of("", KEY_SHADOWED, false, -EINVAL, NULL);
    assert_key_of("/", KEY_SHADOWED, false, -EINVAL, NULL);
    assert_key_of("a//", KEY_SHADOWED, false, -EINVAL,
                  NULL); /* "a/" is a marker and has its name already */
}

static void names_that_nothing_makes_are_refused(void **state)
{
    char piece[KEY_PIECE_LEN + 5], stem[KEY_PIECE_LEN + 1], name[FILE_NAME_LEN_MAX + 2];

    (void)state;
    memset(stem, 'p', sizeof(stem));
    stem[KEY_PIECE_LEN] = '\0';
    memcpy(piece, stem, KEY_PIECE_LEN);
    memcpy(piece + KEY_PIECE_LEN, "%00+", 5);
    memset(name, 'n', sizeof(name));
    name[FILE_NAME_LEN_MAX + 1] = '\0';
    assert_key_of("", "", false, -EINVAL, NULL);
    assert_key_of("", ".", true, -EINVAL, NULL);
    assert_key_of("", "..", false, -EINVAL, NULL);
    assert_key_of("", "a/b", false, -EINVAL, NULL);
    assert_key_of("", "/", true, -EINVAL, NULL);
    assert_key_of("a/", "%00", false, -EINVAL, NULL); /* it would be the marker of a */
    assert_key_of("a/", "%00", true, 0, "a//");
    assert_key_of("", "%00", true, 0, "/");
    assert_key_of("", name, false, -ENAMETOOLONG, NULL);
    assert_key_of("", piece, false, -EINVAL, NULL);
    assert_key_of("", piece, true, 0, stem);
    assert_key_of("a", "b", false, -EINVAL, NULL);      /* "a" is the prefix of no directory */
    assert_key_of(stem, "short", false, -EINVAL, NULL); /* the whole has a name of its own */
    assert_key_of(stem, "short", true, -EINVAL, NULL);
    assert_key_of(stem, "%00", true, -EINVAL, NULL);
    assert_key_of(stem, KEY_SHADOWED, false, -EINVAL, NULL);
}

static void names_that_would_make_too_long_a_key_are_refused(void **state)
{
    struct buf prefix = {0}, b = {0};

    (void)state;
    while (prefix.len < KEY_LEN_MAX - 2)
        buf_add_str(&prefix, prefix.len % 200 == 199 ? "/" : "d");
    prefix.data[prefix.len - 1] = '/';
    assert_int_equal(key_of_name(&b, buf_span(&prefix), span_str("ab"), false), 0);
    assert_int_equal(b.len, KEY_LEN_MAX);
    assert_int_equal(key_of_name(&b, buf_span(&prefix), span_str("abc"), false), -ENAMETOOLONG);
    assert_int_equal(key_of_name(&b, buf_span(&prefix), span_str("ab"), true), -ENAMETOOLONG);
    assert_int_equal(b.len, KEY_LEN_MAX);
    assert_int_equal(key_of_name(&b, buf_span(&prefix), span_str("a"), true), 0);
    buf_fini(&prefix);
    buf_fini(&b);
}

static void keys_are_shown_only_where_they_belong(void **state)
{
    static const struct {
        const char *prefix, *key;
    } nowhere[] = {{"a/", "a/"}, {"a/", "a"}, {"a/", "b/c"}, {"a", "a/b"}, {"a", "ab"}};
    char stem[KEY_PIECE_LEN + 1], key[KEY_PIECE_LEN + 12];
    struct buf b = {0};
    bool is_dir;

    (void)state;
    for (unsigned i = 0; i < sizeof(nowhere) / sizeof(nowhere[0]); i++)
        assert_int_equal(
            key_name_in(&b, span_str(nowhere[i].prefix), span_str(nowhere[i].key), &is_dir),
            -ENOENT);
    memset(stem, 'p', sizeof(stem));
    stem[KEY_PIECE_LEN] = '\0';
    memcpy(key, stem, KEY_PIECE_LEN);
    memcpy(key + KEY_PIECE_LEN, "short/more", 11);
    assert_int_equal(key_name_in(&b, span_str(stem), span_str(key), &is_dir), -ENOENT);
    memcpy(key + KEY_PIECE_LEN, "/more", 6);
    assert_int_equal(key_name_in(&b, span_str(stem), span_str(key), &is_dir), -ENOENT);
    assert_int_equal(b.len, 0);
    assert_int_equal(key_name_in(&b, span_str("a/"), span_str("a//b"), &is_dir), 0);
    assert_true(is_dir);
    assert_bytes(buf_span(&b), span_str("%00"));
    buf_fini(&b);
}

/* --- both ways, for all ----------------------------------------------------------------------- */

static void every_key_is_reached_by_its_path(void **state)
{
    struct buf key = {0}, path = {0}, back = {0};
    struct rng rng = {12};
    unsigned depth;

    (void)state;
    for (unsigned i = 0; i < N_RANDOM; i++) {
        random_bytes(&rng, &key, KEY_LEN_MAX);
        assert_walk_reaches(buf_span(&key), &depth);
        buf_clear(&path);
        buf_clear(&back);
        key_to_path(&path, buf_span(&key));
        if (key.data[key.len - 1] == '/')
            continue;
        assert_int_equal(key_from_path(&back, buf_span(&path)), 0);
        assert_bytes(buf_span(&back), buf_span(&key));
    }
    buf_fini(&key);
    buf_fini(&path);
    buf_fini(&back);
}

static void check_name_both_ways(struct span prefix, struct span name, bool as_dir,
                                 unsigned *n_accepted)
{
    struct buf key = {0}, shown = {0};
    bool is_dir;
    int err;

    err = key_of_name(&key, prefix, name, as_dir);
    assert_true(err == 0 || err == -EINVAL || err == -ENAMETOOLONG);
    if (err == 0 && !span_eq(name, span_str(KEY_SHADOWED))) {
        (*n_accepted)++;
        if (as_dir) /* a directory is seen by what is in it; 16 bytes make any piece one */
            buf_add_str(&key, "0123456789abcdef");
        assert_int_equal(key_name_in(&shown, prefix, buf_span(&key), &is_dir), 0);
        assert_bytes(buf_span(&shown), name);
        assert_int_equal(is_dir, as_dir);
    }
    buf_fini(&key);
    buf_fini(&shown);
}

static void every_name_that_is_accepted_is_shown_as_it_is(void **state)
{
    struct buf name = {0}, stem = {0};
    struct rng rng = {13};
    unsigned n_accepted = 0, n_in_piece = 0;

    (void)state;
    for (unsigned i = 0; i < N_RANDOM; i++) {
        random_bytes(&rng, &name, FILE_NAME_LEN_MAX);
        if (!is_legal_name(buf_span(&name)))
            continue;
        check_name_both_ways(span_str(""), buf_span(&name), false, &n_accepted);
        check_name_both_ways(span_str("a/"), buf_span(&name), true, &n_accepted);
        check_name_both_ways(span_str("a//"), buf_span(&name), false, &n_accepted);
        buf_clear(&stem);
        buf_add_str(&stem, rng_chance(&rng, 500) ? "a/" : "");
        /* A stem that may be the start of a deep escape, or nothing special. */
        for (unsigned k = 0; k < KEY_PIECE_LEN; k++)
            buf_u8(&stem, i % 2 == 0 ? 'p' : (uint8_t)(k == 0 ? '%' : k % 2 == 1 ? '2' : '5'));
        check_name_both_ways(buf_span(&stem), buf_span(&name), false, &n_in_piece);
        check_name_both_ways(buf_span(&stem), buf_span(&name), true, &n_in_piece);
    }
    assert_true(n_accepted > N_RANDOM); /* most names are plain */
    assert_true(n_in_piece > 100);
    buf_fini(&name);
    buf_fini(&stem);
}

/* All names of 1 to 5 letters from those that escapes are made of: no two may name one key. */
static void short_names_are_all_themselves_or_refused(void **state)
{
    static const char letters[] = "%025E.k";
    char name[6] = "";
    unsigned n = 0;

    (void)state;
    for (unsigned len = 1; len <= 5; len++) {
        unsigned n_names = 1;

        for (unsigned i = 0; i < len; i++)
            n_names *= sizeof(letters) - 1;
        for (unsigned k = 0; k < n_names; k++) {
            unsigned rest = k;

            for (unsigned i = 0; i < len; i++, rest /= sizeof(letters) - 1)
                name[i] = letters[rest % (sizeof(letters) - 1)];
            name[len] = '\0';
            if (is_legal_name(span_str(name)))
                check_name_both_ways(span_str("d/"), span_str(name), false, &n);
        }
    }
    assert_int_equal(n, 7 + 49 + 343 + 2401 + 16807 - 2 /* dots */ - 1 /* "%00" */);
}

/* --- listing ---------------------------------------------------------------------------------- */

#define SET_MAX 40u

struct key_set {
    struct buf keys[SET_MAX];
    unsigned reached[SET_MAX], n;
};

static int find_in_set(const struct key_set *set, struct span key)
{
    for (unsigned i = 0; i < set->n; i++) {
        if (span_eq(buf_span(&set->keys[i]), key))
            return (int)i;
    }
    return -1;
}

static void reach(struct key_set *set, struct span key)
{
    int i = find_in_set(set, key);

    if (i >= 0)
        set->reached[i]++;
}

/*
 * Lists the directory as a mount would: names once each, a directory wins, its hidden key shows
 * inside it as KEY_SHADOWED.
 */
static void walk(struct key_set *set, struct span prefix, unsigned depth)
{
    struct buf names[SET_MAX] = {0}, key = {0};
    bool dirs[SET_MAX], is_dir;
    unsigned n = 0;

    assert_true(depth < 2 * KEY_LEN_MAX);
    if (prefix.len > 0 && prefix.data[prefix.len - 1] == '/')
        reach(set, prefix); /* the marker, where there is one */
    if (key_of_name(&key, prefix, span_str(KEY_SHADOWED), false) == 0)
        reach(set, buf_span(&key));
    for (unsigned i = 0; i < set->n; i++) {
        struct buf name = {0};
        unsigned at = 0;

        if (key_name_in(&name, prefix, buf_span(&set->keys[i]), &is_dir) != 0)
            continue;
        while (at < n && !span_eq(buf_span(&names[at]), buf_span(&name)))
            at++;
        if (at == n) {
            names[n] = name;
            dirs[n++] = is_dir;
        } else {
            dirs[at] = dirs[at] || is_dir;
            buf_fini(&name);
        }
    }
    for (unsigned i = 0; i < n; i++) {
        buf_clear(&key);
        assert_int_equal(key_of_name(&key, prefix, buf_span(&names[i]), dirs[i]), 0);
        if (dirs[i])
            walk(set, buf_span(&key), depth + 1);
        else
            reach(set, buf_span(&key));
        buf_fini(&names[i]);
    }
    buf_fini(&key);
}

static void random_set(struct rng *rng, struct key_set *set)
{
    struct buf key = {0};
    unsigned n = (unsigned)rng_between(rng, 1, SET_MAX);

    *set = (struct key_set){0};
    for (unsigned i = 0; i < n; i++) {
        random_bytes(rng, &key, KEY_LEN_MAX);
        if (set->n > 0 && rng_chance(rng, 500)) { /* below, beside or above one that is there */
            struct buf *other = &set->keys[rng_below(rng, set->n)];
            struct buf joined = {0};

            buf_add(&joined, other->data,
                    rng_chance(rng, 700) ? other->len : rng_between(rng, 1, other->len));
            buf_add_str(&joined, rng_chance(rng, 500) ? "/" : "");
            if (rng_chance(rng, 500))
                buf_add_span(&joined, buf_span(&key));
            buf_fini(&key);
            key = joined;
            if (key.len > KEY_LEN_MAX)
                key.len = KEY_LEN_MAX;
        }
        if (find_in_set(set, buf_span(&key)) < 0) {
            set->keys[set->n++] = key;
            key = (struct buf){0};
        }
    }
    buf_fini(&key);
}

static void a_walk_reaches_every_key_exactly_once(void **state)
{
    struct rng rng = {14};

    (void)state;
    for (unsigned round = 0; round < 400; round++) {
        struct key_set set;

        random_set(&rng, &set);
        walk(&set, span_str(""), 0);
        for (unsigned i = 0; i < set.n; i++) {
            if (set.reached[i] != 1)
                fail_msg("round %u: a key of %zu bytes was reached %u times: %.*s", round,
                         set.keys[i].len, set.reached[i], (int)set.keys[i].len,
                         (const char *)set.keys[i].data);
            buf_fini(&set.keys[i]);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_key_has_1_to_4096_bytes_without_nul),
        cmocka_unit_test(urls_escape_what_is_reserved_and_nothing_else),
        cmocka_unit_test(urls_hide_dots_from_clients_that_fold_them),
        cmocka_unit_test(urls_are_decoded_once_and_plus_is_a_plus),
        cmocka_unit_test(bad_urls_are_refused_and_nothing_is_appended),
        cmocka_unit_test(every_key_survives_its_url),
        cmocka_unit_test(most_keys_are_their_paths),
        cmocka_unit_test(parts_that_no_name_can_be_are_escaped),
        cmocka_unit_test(parts_that_read_as_an_escape_are_escaped_too),
        cmocka_unit_test(the_keys_of_the_control_directorys_name_are_escaped_in_the_root),
        cmocka_unit_test(deep_escapes_of_the_control_directorys_name_are_cut),
        cmocka_unit_test(long_parts_are_cut_into_pieces),
        cmocka_unit_test(parts_that_read_as_pieces_are_no_pieces),
        cmocka_unit_test(a_shadowed_key_has_a_name_in_the_directory_that_hides_it),
        cmocka_unit_test(names_that_nothing_makes_are_refused),
        cmocka_unit_test(names_that_would_make_too_long_a_key_are_refused),
        cmocka_unit_test(keys_are_shown_only_where_they_belong),
        cmocka_unit_test(every_key_is_reached_by_its_path),
        cmocka_unit_test(every_name_that_is_accepted_is_shown_as_it_is),
        cmocka_unit_test(short_names_are_all_themselves_or_refused),
        cmocka_unit_test(a_walk_reaches_every_key_exactly_once),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

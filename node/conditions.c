/* conditions.c - conditional and range requests. */
#include "node/conditions.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* --- entity tags ------------------------------------------------------------------------------ */

static const char *skip_blanks(const char *p)
{
    return p + strspn(p, " \t");
}

/*
 * Reads one tag at *p; its text (without quotes) and weakness. Moves *p behind it. False: there is
 * none.
 */
static bool take_tag(const char **p, struct span *text, bool *weak)
{
    const char *s = *p, *end;

    *weak = strncmp(s, "W/", 2) == 0;
    if (*weak)
        s += 2;
    if (*s != '"' || (end = strchr(s + 1, '"')) == NULL)
        return false;
    *text = span_of(s + 1, (size_t)(end - s - 1));
    *p = end + 1;
    return true;
}

/* Steps through a list. 1: a tag, 0: the end, -EINVAL. */
static int next_tag(const char **p, struct span *text, bool *weak)
{
    *p += strspn(*p, " \t,");
    if (**p == '\0')
        return 0;
    if (!take_tag(p, text, weak))
        return -EINVAL;
    *p = skip_blanks(*p);
    return **p == ',' || **p == '\0' ? 1 : -EINVAL;
}

static bool is_any(const char *list)
{
    const char *p = skip_blanks(list);

    return *p == '*' && *skip_blanks(p + 1) == '\0';
}

int etags_check(const char *list)
{
    struct span text;
    bool weak;
    int r, n = 0;

    if (is_any(list))
        return 0;
    while ((r = next_tag(&list, &text, &weak)) == 1)
        n++;
    return r == 0 && n > 0 ? 0 : -EINVAL;
}

bool etags_match(const char *list, struct ballot version, bool weak_ok)
{
    char own[BALLOT_TEXT_LEN];
    struct span text;
    bool weak;

    if (is_any(list))
        return true;
    ballot_text(version, own);
    while (next_tag(&list, &text, &weak) == 1)
        if ((weak_ok || !weak) && span_eq(text, span_str(own)))
            return true;
    return false;
}

/* Of this list and `newest`. */
static struct ballot newest_of(const char *list, struct ballot newest)
{
    struct span text;
    bool weak;

    while (list != NULL && next_tag(&list, &text, &weak) == 1) {
        char version[BALLOT_TEXT_LEN];
        struct ballot b;

        if (text.len >= sizeof(version))
            continue;
        memcpy(version, text.data, text.len);
        version[text.len] = '\0';
        if (ballot_parse(version, &b) == 0 && ballot_cmp(b, newest) > 0)
            newest = b;
    }
    return newest;
}

struct ballot conditions_newest(const struct conditions *c)
{
    return newest_of(c->if_range, newest_of(c->if_match, newest_of(c->if_none_match, BALLOT_NONE)));
}

/* --- dates ------------------------------------------------------------------------------------ */

static int64_t whole_seconds(int64_t ns)
{
    return ns / 1000000000 - (ns % 1000000000 < 0);
}

void http_date(int64_t ns, char out[HTTP_DATE_LEN])
{
    time_t t = (time_t)whole_seconds(ns);
    struct tm tm;

    if (gmtime_r(&t, &tm) == NULL ||
        strftime(out, HTTP_DATE_LEN, "%a, %d %b %Y %H:%M:%S GMT", &tm) == 0)
        out[0] = '\0';
}

int http_date_parse(const char *s, int64_t *out)
{
    static const char *const forms[] = {"%a, %d %b %Y %H:%M:%S GMT", "%A, %d-%b-%y %H:%M:%S GMT",
                                        "%a %b %d %H:%M:%S %Y"};

    for (size_t i = 0; i < sizeof(forms) / sizeof(forms[0]); i++) {
        struct tm tm = {0};
        const char *end = strptime(s, forms[i], &tm);

        if (end != NULL && *skip_blanks(end) == '\0') {
            *out = timegm(&tm);
            return 0;
        }
    }
    return -EINVAL;
}

/* Was it changed after that date? A date that is none does not count: no. */
static bool modified_since(const struct record *rec, const char *date, bool otherwise)
{
    int64_t t;

    return http_date_parse(date, &t) == 0 ? whole_seconds(rec->mtime_ns) > t : otherwise;
}

/* --- conditions ------------------------------------------------------------------------------- */

int conditions_write(const struct conditions *c, const struct record *cur)
{
    bool live = record_is_live(cur);

    if (c->if_match != NULL) {
        if (!live || !etags_match(c->if_match, cur->version, false))
            return -ECANCELED;
    } else if (c->if_unmodified_since != NULL && live &&
               modified_since(cur, c->if_unmodified_since, false)) {
        return -ECANCELED;
    }
    if (c->if_none_match != NULL && live && etags_match(c->if_none_match, cur->version, true))
        return -ECANCELED;
    return 0;
}

unsigned conditions_read(const struct conditions *c, const struct record *rec)
{
    if (c->if_match != NULL) {
        if (!etags_match(c->if_match, rec->version, false))
            return 412;
    } else if (c->if_unmodified_since != NULL &&
               modified_since(rec, c->if_unmodified_since, false)) {
        return 412;
    }
    if (c->if_none_match != NULL)
        return etags_match(c->if_none_match, rec->version, true) ? 304 : 0;
    if (c->if_modified_since != NULL && !modified_since(rec, c->if_modified_since, true))
        return 304;
    return 0;
}

bool conditions_range(const struct conditions *c, const struct record *rec)
{
    int64_t date;

    if (c->if_range == NULL)
        return true;
    if (strchr(c->if_range, '"') != NULL)
        return etags_check(c->if_range) == 0 && etags_match(c->if_range, rec->version, false);
    return http_date_parse(c->if_range, &date) == 0 && whole_seconds(rec->mtime_ns) == date;
}

void conditions_fini(struct conditions *c)
{
    free(c->if_match);
    free(c->if_none_match);
    free(c->if_modified_since);
    free(c->if_unmodified_since);
    free(c->if_range);
    *c = (struct conditions){0};
}

/* --- ranges ----------------------------------------------------------------------------------- */

/*
 * Digits into *out, saturating: positions beyond 64 bits are beyond every value. False: no digit.
 */
static bool take_number(const char **p, uint64_t *out)
{
    uint64_t v = 0;
    const char *s = *p;

    if (!isdigit((unsigned char)*s))
        return false;
    for (; isdigit((unsigned char)*s); s++) {
        unsigned d = (unsigned)(*s - '0');

        v = v > (UINT64_MAX - d) / 10 ? UINT64_MAX : v * 10 + d;
    }
    *p = s;
    *out = v;
    return true;
}

struct range range_parse(const char *header)
{
    const struct range none = {0};
    struct range r = {.kind = RANGE_FROM, .last = UINT64_MAX};
    const char *p = header;

    if (p == NULL || strncasecmp(p, "bytes=", 6) != 0)
        return none;
    p = skip_blanks(p + 6);
    if (*p == '-') {
        p++;
        r.kind = RANGE_SUFFIX;
        if (!take_number(&p, &r.suffix))
            return none;
    } else {
        if (!take_number(&p, &r.first) || *p != '-')
            return none;
        p++;
        if (take_number(&p, &r.last) && r.last < r.first)
            return none;
    }
    return *skip_blanks(p) == '\0' ? r : none;
}

unsigned range_resolve(const struct range *r, uint64_t size, uint64_t *offset, uint64_t *length)
{
    uint64_t first, end = size;

    switch (r->kind) {
    case RANGE_NONE:
        *offset = 0;
        *length = size;
        return 200;
    case RANGE_SUFFIX:
        if (r->suffix == 0 || size == 0)
            return 416;
        first = r->suffix < size ? size - r->suffix : 0;
        break;
    default:
        if (r->first >= size)
            return 416;
        first = r->first;
        if (r->last < size)
            end = r->last + 1;
    }
    *offset = first;
    *length = end - first;
    return 206;
}

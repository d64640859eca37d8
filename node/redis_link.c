/* redis_link.c - one connection to a Redis. */
#include "node/redis_link.h"

#include <errno.h>
#include <hiredis/hiredis.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>

#define WORDS_MAX 1100u /* of one command */
#define TEXT_WORDS_MAX 16u

struct redis_link {
    redisContext *c;
};

static struct timeval timeval_of(unsigned ms)
{
    return (struct timeval){ms / 1000, ms % 1000 * 1000};
}

/* --- commands and answers ------------------------------------------------------------------- */

int redis_link_add(struct redis_link *l, const struct span *words, size_t n)
{
    const char *argv[WORDS_MAX];
    size_t lens[WORDS_MAX];

    if (n > WORDS_MAX)
        return -EINVAL;
    for (size_t i = 0; i < n; i++) {
        argv[i] = words[i].len > 0 ? (const char *)words[i].data : "";
        lens[i] = words[i].len;
    }
    return redisAppendCommandArgv(l->c, (int)n, argv, lens) == REDIS_OK ? 0 : -ENOMEM;
}

int redis_link_add_text(struct redis_link *l, const char *word, ...)
{
    struct span words[TEXT_WORDS_MAX];
    size_t n = 0;
    va_list ap;

    va_start(ap, word);
    for (; word != NULL && n < TEXT_WORDS_MAX; word = va_arg(ap, const char *))
        words[n++] = span_str(word);
    va_end(ap);
    return redis_link_add(l, words, n);
}

int redis_link_next(struct redis_link *l, struct redis_reply **out, struct err *err)
{
    void *reply = NULL;

    errno = 0;
    if (redisGetReply(l->c, &reply) != REDIS_OK || reply == NULL) {
        bool late = l->c->err == REDIS_ERR_IO && (errno == EAGAIN || errno == EWOULDBLOCK);

        if (late)
            return err_set(err, -EHOSTDOWN, "it does not answer");
        return err_set(err, -EHOSTDOWN, "the connection broke: %s",
                       l->c->errstr[0] != '\0' ? l->c->errstr : "no memory");
    }
    *out = reply;
    return 0;
}

/* --- what an answer is ---------------------------------------------------------------------- */

static const redisReply *raw(const struct redis_reply *r)
{
    return (const redisReply *)(const void *)r;
}

enum redis_kind redis_reply_kind(const struct redis_reply *r)
{
    switch (r == NULL ? REDIS_REPLY_NIL : raw(r)->type) {
    case REDIS_REPLY_STRING:
    case REDIS_REPLY_STATUS:
        return REDIS_BYTES;
    case REDIS_REPLY_INTEGER:
        return REDIS_NUMBER;
    case REDIS_REPLY_ARRAY:
        return REDIS_LIST;
    case REDIS_REPLY_ERROR:
        return REDIS_ERROR;
    default:
        return REDIS_NONE;
    }
}

struct span redis_reply_bytes(const struct redis_reply *r)
{
    enum redis_kind kind = redis_reply_kind(r);

    return kind == REDIS_BYTES || kind == REDIS_ERROR ? span_of(raw(r)->str, raw(r)->len)
                                                      : (struct span){0};
}

int64_t redis_reply_number(const struct redis_reply *r)
{
    char *end;
    int64_t n;

    if (redis_reply_kind(r) == REDIS_NUMBER)
        return raw(r)->integer;
    if (redis_reply_kind(r) != REDIS_BYTES || raw(r)->len == 0)
        return -1;
    errno = 0;
    n = strtoll(raw(r)->str, &end, 10); /* hiredis puts a NUL behind it */
    return errno == 0 && end == raw(r)->str + raw(r)->len ? n : -1;
}

size_t redis_reply_len(const struct redis_reply *r)
{
    return redis_reply_kind(r) == REDIS_LIST ? raw(r)->elements : 0;
}

const struct redis_reply *redis_reply_at(const struct redis_reply *r, size_t i)
{
    return i < redis_reply_len(r) ? (const struct redis_reply *)(const void *)raw(r)->element[i]
                                  : NULL;
}

bool redis_reply_is_error(const struct redis_reply *r, const char *word)
{
    return redis_reply_kind(r) == REDIS_ERROR &&
           span_has_prefix(redis_reply_bytes(r), span_str(word));
}

/* What a command in a script was told stands behind more words, before Redis 7. */
static struct span innermost(struct span text)
{
    static const char wrapped[] = "ERR Error running script", mark[] = ": -";
    struct span found = text;

    if (!span_has_prefix(text, span_str(wrapped)))
        return text;
    for (size_t i = sizeof(wrapped) - 1; i + sizeof(mark) - 1 < text.len; i++)
        if (memcmp(text.data + i, mark, sizeof(mark) - 1) == 0)
            found = span_of(text.data + i + sizeof(mark) - 1, text.len - i - (sizeof(mark) - 1));
    return found;
}

int redis_reply_errno(const struct redis_reply *r, struct err *err)
{
    static const struct {
        const char *word;
        int err;
    } known[] = {
        {"LOADING", -EAGAIN},   {"BUSY", -EAGAIN},   {"TRYAGAIN", -EAGAIN}, {"OOM", -ENOSPC},
        {"WRONGPASS", -EACCES}, {"NOAUTH", -EACCES}, {"NOPERM", -EACCES},
    };
    struct span text = innermost(redis_reply_bytes(r));
    bool is_error = redis_reply_kind(r) == REDIS_ERROR;
    int len = text.len < 300 ? (int)text.len : 300;

    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
        if (is_error && span_has_prefix(text, span_str(known[i].word)))
            return err_set(err, known[i].err, "Redis says: %.*s", len, (const char *)text.data);
    if (is_error)
        return err_set(err, -EIO, "Redis says: %.*s", len, (const char *)text.data);
    return err_set(err, -EIO, "Redis answers something else than it was asked for");
}

void redis_reply_free(struct redis_reply *r)
{
    if (r != NULL)
        freeReplyObject(r);
}

/* --- life ----------------------------------------------------------------------------------- */

/* The answers to the n commands that were queued must be "OK", but for one that may fail. */
static int expect_ok(struct redis_link *l, unsigned n, unsigned may_fail, struct err *err)
{
    int ret = 0;

    for (unsigned i = 0; i < n; i++) {
        struct redis_reply *r;
        int e = redis_link_next(l, &r, ret == 0 ? err : NULL);

        if (e < 0)
            return ret < 0 ? ret : e;
        if (ret == 0 && i != may_fail && redis_reply_kind(r) != REDIS_BYTES)
            ret = redis_reply_errno(r, err);
        redis_reply_free(r);
    }
    return ret;
}

static int greet(struct redis_link *l, const struct redis_url *url, const char *name,
                 struct err *err)
{
    char db[16];
    unsigned n = 2;
    int ret = 0;

    (void)snprintf(db, sizeof(db), "%u", url->db);
    if (url->password != NULL && url->user != NULL)
        ret = redis_link_add_text(l, "AUTH", url->user, url->password, NULL);
    else if (url->password != NULL)
        ret = redis_link_add_text(l, "AUTH", url->password, NULL);
    n += url->password != NULL;
    if (ret == 0)
        ret = redis_link_add_text(l, "CLIENT", "SETNAME", name, NULL);
    if (ret == 0)
        ret = redis_link_add_text(l, "SELECT", db, NULL);
    if (ret < 0)
        return err_set(err, ret, "no memory");
    /* A name is for people: who may not give it goes on without. */
    return expect_ok(l, n, n - 2, err);
}

int redis_link_open(const struct redis_url *url, const char *name, struct redis_link **out,
                    struct err *err)
{
    struct redis_link *l = calloc(1, sizeof(*l));
    int ret = 0;

    if (l == NULL)
        return err_set(err, -ENOMEM, "no memory");
    l->c = redisConnectWithTimeout(url->host, url->port, timeval_of(REDIS_CONNECT_MS));
    if (l->c == NULL)
        ret = err_set(err, -ENOMEM, "no memory");
    else if (l->c->err != 0)
        ret = err_set(err, -EHOSTDOWN, "%s", l->c->errstr);
    else if (redisSetTimeout(l->c, timeval_of(REDIS_CONNECT_MS)) != REDIS_OK)
        ret = err_set(err, -EHOSTDOWN, "%s", l->c->errstr);
    if (ret == 0) {
        (void)redisEnableKeepAlive(l->c);
        ret = greet(l, url, name, err);
    }
    if (ret == 0 && redisSetTimeout(l->c, timeval_of(REDIS_ANSWER_MS)) != REDIS_OK)
        ret = err_set(err, -EHOSTDOWN, "%s", l->c->errstr);
    if (ret < 0) {
        redis_link_close(l);
        return ret;
    }
    *out = l;
    return 0;
}

void redis_link_close(struct redis_link *l)
{
    if (l == NULL)
        return;
    if (l->c != NULL)
        redisFree(l->c);
    free(l);
}

bool redis_link_alive(const struct redis_link *l)
{
    struct pollfd p = {.fd = l->c->fd, .events = POLLIN};

    return l->c->err == 0 && poll(&p, 1, 0) == 0;
}

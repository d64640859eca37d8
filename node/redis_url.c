/* redis_url.c - which Redis a node keeps its data in, and the password. */
#include "node/redis_url.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define SCHEME "redis://"
#define PASSWORD_LEN_MAX 4096u

static int take_number(const char *text, unsigned long max, unsigned long *out)
{
    char *end;

    if (!isdigit((unsigned char)text[0]))
        return -EINVAL;
    errno = 0;
    *out = strtoul(text, &end, 10);
    return *end != '\0' || errno != 0 || *out > max ? -EINVAL : 0;
}

/* HOST, HOST:PORT, [::1] or [::1]:PORT. */
static int take_host(char *text, struct redis_url *u)
{
    char *host = text, *rest;
    unsigned long port = REDIS_PORT_DEFAULT;

    if (text[0] == '[') {
        host = text + 1;
        rest = strchr(host, ']');
        if (rest == NULL)
            return -EINVAL;
        *rest++ = '\0';
        if (rest[0] != '\0' && rest[0] != ':')
            return -EINVAL;
    } else {
        rest = text + strcspn(text, ":");
    }
    if (rest[0] == ':') {
        *rest++ = '\0';
        if (take_number(rest, UINT16_MAX, &port) < 0 || port == 0)
            return -EINVAL;
    }
    if (host[0] == '\0')
        return -EINVAL;
    u->port = (uint16_t)port;
    u->host = strdup(host);
    return u->host == NULL ? -ENOMEM : 0;
}

static int hex_digit(char c)
{
    const char *digits = "0123456789abcdef", *at = strchr(digits, tolower((unsigned char)c));

    return c != '\0' && at != NULL ? (int)(at - digits) : -1;
}

/* %XX is a byte, though not NUL; in place. */
static int decode_percent(char *text)
{
    char *to = text;

    for (const char *at = text; *at != '\0'; at++) {
        int high, low;

        if (*at != '%') {
            *to++ = *at;
            continue;
        }
        high = hex_digit(at[1]);
        low = high < 0 ? -1 : hex_digit(at[2]);
        if (low < 0 || high + low == 0)
            return -EINVAL;
        *to++ = (char)(high << 4 | low);
        at += 2;
    }
    *to = '\0';
    return 0;
}

static int take_user(char *text, struct redis_url *u, struct err *err)
{
    if (strchr(text, ':') != NULL)
        return err_set(err, -EINVAL,
                       "a password in the address would show in the list of processes: it "
                       "belongs into a file (--redis-password-file) or into the environment "
                       "(" REDIS_PASSWORD_ENV ")");
    if (text[0] == '\0')
        return err_set(err, -EINVAL, "there is no name of a user before the @");
    if (decode_percent(text) < 0)
        return err_set(
            err, -EINVAL,
            "in the name of its user a percent sign, and each of /:@, is written as %%25 "
            "and the like");
    u->user = strdup(text);
    return u->user == NULL ? err_set(err, -ENOMEM, "no memory") : 0;
}

/* What stands behind the scheme; writes into it. */
static int take_parts(char *text, struct redis_url *u, struct err *err)
{
    char *at = strrchr(text, '@'), *slash;
    unsigned long db = 0;
    int ret;

    if (at != NULL) {
        *at = '\0';
        ret = take_user(text, u, err);
        if (ret < 0)
            return ret;
        text = at + 1;
    }
    slash = strchr(text, '/');
    if (slash != NULL) {
        *slash++ = '\0';
        if (slash[0] != '\0' && take_number(slash, REDIS_DB_MAX, &db) < 0)
            return err_set(err, -EINVAL, "\"%s\" is no number of a Redis database", slash);
    }
    u->db = (unsigned)db;
    ret = take_host(text, u);
    if (ret < 0)
        return err_set(err, ret, ret == -ENOMEM ? "no memory" : "it is " SCHEME "HOST:PORT/DB");
    return 0;
}

int redis_url_parse(const char *text, struct redis_url *out, struct err *err)
{
    struct redis_url u = {0};
    char *copy;
    int ret;

    if (strncmp(text, "rediss://", 9) == 0)
        return err_set(err, -EINVAL, "Redis over TLS is not supported: put it on this machine");
    if (strncmp(text, SCHEME, strlen(SCHEME)) != 0)
        return err_set(err, -EINVAL, "it is " SCHEME "HOST:PORT/DB");
    copy = strdup(text + strlen(SCHEME));
    if (copy == NULL)
        return err_set(err, -ENOMEM, "no memory");
    ret = take_parts(copy, &u, err);
    free(copy);
    if (ret < 0) {
        redis_url_fini(&u);
        return ret;
    }
    (void)snprintf(u.shown, sizeof(u.shown),
                   strchr(u.host, ':') != NULL ? SCHEME "[%s]:%u/%u" : SCHEME "%s:%u/%u", u.host,
                   (unsigned)u.port, u.db);
    *out = u;
    return 0;
}

static int read_line(const char *path, char *line, size_t len, struct err *err)
{
    FILE *f = fopen(path, "re");
    struct stat st;
    int ret = 0;

    if (f == NULL)
        return err_set(err, -errno, "%s: %s", path, strerror(errno));
    if (fstat(fileno(f), &st) < 0)
        ret = err_set(err, -errno, "%s: %s", path, strerror(errno));
    else if (S_ISREG(st.st_mode) && (st.st_mode & S_IROTH))
        ret = err_set(err, -EACCES, "%s can be read by everybody: chmod 600 it", path);
    else if (fgets(line, (int)len, f) == NULL && ferror(f))
        ret = err_set(err, -EIO, "%s cannot be read", path);
    fclose(f);
    line[strcspn(line, "\r\n")] = '\0';
    if (ret == 0 && line[0] == '\0')
        ret = err_set(err, -EINVAL, "%s has no password in its first line", path);
    return ret;
}

int redis_url_password(struct redis_url *u, const char *file, struct err *err)
{
    char line[PASSWORD_LEN_MAX] = "";
    const char *env = getenv(REDIS_PASSWORD_ENV);
    int ret = 0;

    if (file != NULL)
        ret = read_line(file, line, sizeof(line), err);
    else if (env != NULL)
        (void)snprintf(line, sizeof(line), "%s", env);
    if (ret == 0 && line[0] != '\0') {
        u->password = strdup(line);
        if (u->password == NULL)
            ret = err_set(err, -ENOMEM, "no memory");
    }
    explicit_bzero(line, sizeof(line));
    if (ret == 0 && u->user != NULL && u->password == NULL)
        ret = err_set(err, -EINVAL, "the user \"%s\" needs a password", u->user);
    return ret;
}

void redis_url_fini(struct redis_url *u)
{
    if (u->password != NULL)
        explicit_bzero(u->password, strlen(u->password));
    free(u->password);
    free(u->user);
    free(u->host);
    *u = (struct redis_url){0};
}

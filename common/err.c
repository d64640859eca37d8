/* err.c - error text for people, wrapped outward. */
#include "common/err.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

static void append(struct err *e, const char *s)
{
    size_t len = strlen(e->msg), room = sizeof(e->msg) - 1 - len, n = strlen(s);

    if (n > room)
        n = room;
    memcpy(e->msg + len, s, n);
    e->msg[len + n] = '\0';
}

/* Both build the text aside first: their arguments may point into the message they replace. */

int err_set(struct err *e, int code, const char *fmt, ...)
{
    struct err text;
    va_list ap;

    if (e == NULL)
        return code;
    va_start(ap, fmt);
    (void)vsnprintf(text.msg, sizeof(text.msg), fmt, ap);
    va_end(ap);
    *e = text;
    return code;
}

int err_wrap(struct err *e, int code, const char *fmt, ...)
{
    struct err text;
    va_list ap;

    if (e == NULL)
        return code;
    va_start(ap, fmt);
    (void)vsnprintf(text.msg, sizeof(text.msg), fmt, ap);
    va_end(ap);
    if (e->msg[0] != '\0') {
        append(&text, ": ");
        append(&text, e->msg);
    }
    *e = text;
    return code;
}

/* err.h - error text for people, wrapped outward: each level puts what it knows in front. */
#ifndef KVFS_COMMON_ERR_H
#define KVFS_COMMON_ERR_H

struct err {
    char msg[512];
};

/*
 * Sets the message (cut when too long) and returns `code`, so that `return err_set(e, -EINVAL,
 * ...)` reads well. e may be NULL.
 */
int err_set(struct err *e, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* Puts "text: " before the message and returns `code`. */
int err_wrap(struct err *e, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

#endif

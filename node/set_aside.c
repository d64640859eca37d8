/* set_aside.c - a damaged store is moved out of the way, with the reason, and never deleted. */
#include "node/set_aside.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "common/log.h"
#include "node/data_dir.h"

#define NOTE_NAME "damaged"
#define REASON_NAME "REASON"
#define NAME_FORMAT "damaged-%Y%m%dT%H%M%SZ"
#define NAME_LEN 32 /* with its NUL, and room to spare */

/* What a store is made of. The lock and the node's id stay. */
static const char *const parts[] = {"db", "values", "in-use"};

static int open_dir(const char *dir, struct err *err)
{
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    return fd >= 0 ? fd : err_set(err, -errno, "%s: %s", dir, strerror(errno));
}

/* Adds how many were set aside, and when the last was. */
static int look_back(const char *dir, unsigned *n, time_t *last, struct err *err)
{
    DIR *d = opendir(dir);
    const struct dirent *e;

    if (d == NULL)
        return err_set(err, -errno, "%s: %s", dir, strerror(errno));
    while ((e = readdir(d)) != NULL) {
        struct tm tm = {0};
        const char *end = strptime(e->d_name, NAME_FORMAT, &tm);
        time_t at;

        if (end == NULL || *end != '\0')
            continue;
        at = timegm(&tm);
        *last = at > *last ? at : *last;
        ++*n;
    }
    closedir(d);
    return 0;
}

static int check_limits(const char *dir, const char *why, time_t now, struct err *err)
{
    unsigned n = 0;
    time_t last = 0;
    int ret = look_back(dir, &n, &last, err);

    if (ret < 0)
        return ret;
    if (n >= SET_ASIDE_MAX)
        return err_set(err, -EBADMSG,
                       "%s is damaged (%s), and %u damaged stores stand in it already: check this "
                       "machine's memory and disk, move %s/damaged-* away, and start again",
                       dir, why, n, dir);
    if (n > 0 && now >= last && now - last < SET_ASIDE_EVERY_S)
        return err_set(err, -EBADMSG,
                       "%s is damaged (%s), and so it was %ld s ago: check this machine's memory "
                       "and disk; a start more than %d s after that, or once %s/damaged-* is moved "
                       "away, begins anew",
                       dir, why, (long)(now - last), SET_ASIDE_EVERY_S, dir);
    return 0;
}

int set_aside_note(const char *dir, const char *why, struct err *err)
{
    time_t now = time(NULL);
    char text[700], name[NAME_LEN];
    struct tm tm;
    int fd, ret = check_limits(dir, why, now, err);

    if (ret < 0)
        return ret;
    fd = open_dir(dir, err);
    if (fd < 0)
        return fd;
    if (gmtime_r(&now, &tm) == NULL || strftime(name, sizeof(name), NAME_FORMAT, &tm) == 0)
        (void)snprintf(name, sizeof(name), "damaged-19700101T000000Z");
    (void)snprintf(text, sizeof(text), "%s\n%s\n", name, why);
    ret = data_dir_write(fd, NOTE_NAME, text);
    close(fd);
    return ret < 0 ? err_set(err, ret, "%s/" NOTE_NAME ": %s", dir, strerror(-ret)) : 0;
}

/* The place that the note names; one that cannot be read is as good as any. -ENOENT: no note. */
static int read_note(int dir_fd, char name[NAME_LEN])
{
    char text[NAME_LEN] = "";
    struct tm tm = {0};
    int fd = openat(dir_fd, NOTE_NAME, O_RDONLY | O_CLOEXEC), err = 0;
    const char *end;
    ssize_t n;

    if (fd < 0)
        return -errno;
    n = read(fd, text, sizeof(text) - 1);
    if (n < 0)
        err = -errno;
    close(fd);
    if (err < 0)
        return err;
    text[strcspn(text, "\n")] = '\0';
    end = strptime(text, NAME_FORMAT, &tm);
    (void)snprintf(name, NAME_LEN, "%s",
                   end != NULL && *end == '\0' ? text : "damaged-19700101T000000Z");
    return 0;
}

/* The note is renamed last, when all else is durably where it belongs: it becomes the reason. */
static int move_parts(int dir_fd, const char *name)
{
    int to, err = 0;

    if (mkdirat(dir_fd, name, 0700) < 0 && errno != EEXIST)
        return -errno;
    to = openat(dir_fd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (to < 0)
        return -errno;
    for (size_t i = 0; err == 0 && i < sizeof(parts) / sizeof(parts[0]); i++)
        if (renameat(dir_fd, parts[i], to, parts[i]) < 0 && errno != ENOENT)
            err = -errno;
    if (err == 0 && (fsync(to) < 0 || fsync(dir_fd) < 0))
        err = -errno;
    if (err == 0 &&
        (renameat(dir_fd, NOTE_NAME, to, REASON_NAME) < 0 || fsync(to) < 0 || fsync(dir_fd) < 0))
        err = -errno;
    close(to);
    return err;
}

int set_aside_noted(const char *dir, struct err *err)
{
    char name[NAME_LEN];
    int fd = open_dir(dir, err), ret;

    if (fd < 0)
        return fd;
    ret = read_note(fd, name);
    if (ret == 0) {
        ret = move_parts(fd, name);
        if (ret == 0)
            log_event(LOG_LEVEL_ERROR, "store-set-aside", "dir=%s to=%s reason=\"see %s in it\"",
                      log_quote(dir, strlen(dir)), name, REASON_NAME);
    } else if (ret == -ENOENT) {
        ret = 0;
    }
    close(fd);
    return ret < 0 ? err_set(err, ret, "%s: cannot set aside what is damaged in it: %s", dir,
                             strerror(-ret))
                   : 0;
}

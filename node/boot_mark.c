/* boot_mark.c - may a power loss have taken what was acknowledged? */
#include "node/boot_mark.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "node/data_dir.h"

#define MARK_NAME "in-use"
#define BOOT_ID "/proc/sys/kernel/random/boot_id"
#define BOOT_ID_LEN 40 /* 36 characters, the end of line, NUL */

/* As text with its end of line, at most that much; "" when there is nothing in it. */
static int read_text(int dir_fd, const char *name, char out[BOOT_ID_LEN])
{
    int fd = openat(dir_fd, name, O_RDONLY | O_CLOEXEC), err = 0;
    ssize_t n;

    if (fd < 0)
        return -errno;
    n = read(fd, out, BOOT_ID_LEN - 1);
    if (n < 0)
        err = -errno;
    else
        out[n] = '\0';
    close(fd);
    return err;
}

static int open_dir(const char *dir)
{
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    return fd >= 0 ? fd : -errno;
}

int boot_mark_check(const char *dir, bool *lost)
{
    char mark[BOOT_ID_LEN], boot[BOOT_ID_LEN];
    int fd = open_dir(dir), err;

    if (fd < 0)
        return fd;
    err = read_text(fd, MARK_NAME, mark);
    if (err == 0) {
        /* Where the boot cannot be told, it counts as another one. */
        *lost = read_text(AT_FDCWD, BOOT_ID, boot) < 0 || strcmp(mark, boot) != 0;
        if (!*lost && syncfs(fd) < 0)
            err = -errno;
    } else if (err == -ENOENT) {
        *lost = false;
        err = 0;
    }
    close(fd);
    return err;
}

int boot_mark_set(const char *dir)
{
    char boot[BOOT_ID_LEN];
    int fd = open_dir(dir), err;

    if (fd < 0)
        return fd;
    if (read_text(AT_FDCWD, BOOT_ID, boot) < 0)
        boot[0] = '\0'; /* matches none */
    err = data_dir_write(fd, MARK_NAME, boot);
    close(fd);
    return err;
}

int boot_mark_clear(const char *dir)
{
    int fd = open_dir(dir), err = 0;

    if (fd < 0)
        return fd;
    if (faccessat(fd, MARK_NAME, F_OK, 0) < 0)
        err = errno == ENOENT ? 0 : -errno;
    else if (syncfs(fd) < 0 || unlinkat(fd, MARK_NAME, 0) < 0 || fsync(fd) < 0)
        err = -errno;
    close(fd);
    return err;
}

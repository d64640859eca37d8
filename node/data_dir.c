/*
 * data_dir.c - a node's data directory: made, locked against a second process, bound to one node
 * id.
 */
#include "node/data_dir.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/limits.h"
#include "node/store.h"

#define LOCK_NAME "kvnode.lock"
#define ID_NAME "node-id"

static int sync_dir(const char *path)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC), err = 0;

    if (fd < 0)
        return -errno;
    if (fsync(fd) < 0)
        err = -errno;
    close(fd);
    return err;
}

/*
 * mkdir -p; only the last one is closed to others. Each new name is on the disk before something is
 * stored below it.
 */
static int make_dirs(const char *dir)
{
    char *path = strdup(dir), *parent = strdup(dir);
    size_t len = strlen(dir);
    int err = 0;

    if (path == NULL || parent == NULL)
        err = -ENOMEM;
    for (size_t i = 1; err == 0 && i <= len; i++) {
        if (dir[i] != '/' && dir[i] != '\0')
            continue;
        path[i] = '\0';
        if (mkdir(path, dir[i + strspn(dir + i, "/")] == '\0' ? 0700 : 0777) == 0) {
            memcpy(parent, path, i + 1);
            err = sync_dir(dirname(parent));
        } else if (errno != EEXIST) {
            err = -errno;
        }
        path[i] = dir[i];
    }
    free(parent);
    free(path);
    return err;
}

int data_dir_sync(const char *dir, struct err *err)
{
    int ret = sync_dir(dir);

    return ret < 0 ? err_set(err, ret, "%s: %s", dir, strerror(-ret)) : 0;
}

static int lock_dir(int dir_fd, const char *dir, int *out, struct err *err)
{
    int fd = openat(dir_fd, LOCK_NAME, O_RDWR | O_CREAT | O_CLOEXEC, 0600), ret;

    if (fd < 0) {
        ret = -errno;
        return err_set(err, ret, "%s/" LOCK_NAME ": %s", dir, strerror(-ret));
    }
    if (flock(fd, LOCK_EX | LOCK_NB) < 0) {
        ret = errno == EWOULDBLOCK ? -EBUSY : -errno;
        close(fd);
        return err_set(err, ret, "%s: %s", dir,
                       ret == -EBUSY ? "in use by another kvnode" : strerror(-ret));
    }
    *out = fd;
    return 0;
}

/* The id, without the end of line. -ENOENT: it has none yet. */
static int read_id(int dir_fd, char id[NODE_ID_LEN_MAX + 2])
{
    int fd = openat(dir_fd, ID_NAME, O_RDONLY | O_CLOEXEC), err = 0;
    ssize_t n;

    if (fd < 0)
        return -errno;
    n = read(fd, id, NODE_ID_LEN_MAX + 1);
    if (n < 0)
        err = -errno;
    else
        id[n] = '\0';
    close(fd);
    if (err == 0)
        id[strcspn(id, "\n")] = '\0';
    return err;
}

/* Written under another name first. */
int data_dir_write(int dir_fd, const char *name, const char *text)
{
    char temporary[64];
    int fd, err;

    (void)snprintf(temporary, sizeof(temporary), "%s.new", name);
    fd = openat(dir_fd, temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0)
        return -errno;
    err = store_write_all(fd, span_str(text));
    if (err == 0 && fsync(fd) < 0)
        err = -errno;
    close(fd);
    if (err == 0 && (renameat(dir_fd, temporary, dir_fd, name) < 0 || fsync(dir_fd) < 0))
        err = -errno;
    return err;
}

/*
 * Whose data this is, is asked of a person where the directory cannot tell: the data of two nodes
 * in one place would be lost data.
 */
static int bind_id(int dir_fd, const char *dir, const char *node_id, struct err *err)
{
    char id[NODE_ID_LEN_MAX + 2];
    int ret = read_id(dir_fd, id);

    if (ret == -ENOENT && faccessat(dir_fd, "db", F_OK, 0) == 0)
        return err_set(err, -EINVAL,
                       "%s has data but no file " ID_NAME
                       ": write the id of the node whose data it "
                       "is into that",
                       dir);
    if (ret == -ENOENT) {
        (void)snprintf(id, sizeof(id), "%s\n", node_id);
        ret = data_dir_write(dir_fd, ID_NAME, id);
    } else if (ret == 0 && strcmp(id, node_id) != 0) {
        return err_set(err, -EINVAL, "%s holds the data of node %s, not of %s", dir, id, node_id);
    }
    if (ret < 0)
        return err_set(err, ret, "%s/" ID_NAME ": %s", dir, strerror(-ret));
    return 0;
}

int data_dir_open(const char *dir, const char *node_id, int *lock_fd, struct err *err)
{
    int dir_fd = -1, fd = -1, ret;

    if (strlen(node_id) > NODE_ID_LEN_MAX)
        return err_set(err, -EINVAL, "the node id is longer than %u bytes", NODE_ID_LEN_MAX);
    ret = make_dirs(dir);
    if (ret < 0)
        return err_set(err, ret, "%s: %s", dir, strerror(-ret));
    dir_fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (dir_fd < 0) {
        ret = -errno;
        return err_set(err, ret, "%s: %s", dir, strerror(-ret));
    }
    ret = lock_dir(dir_fd, dir, &fd, err);
    if (ret == 0)
        ret = bind_id(dir_fd, dir, node_id, err);
    close(dir_fd);
    if (ret < 0) {
        if (fd >= 0)
            close(fd);
        return ret;
    }
    *lock_fd = fd;
    return 0;
}

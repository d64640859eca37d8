/* daemon.c - into the background, but only once there is something to wait for; and telling whoever
 * started us. */
#include "fs/daemon.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

int daemon_start(int fail_code, int *ready_fd)
{
    int fds[2], err;
    ssize_t n;
    pid_t pid;
    char byte;

    if (pipe2(fds, O_CLOEXEC) < 0)
        return -errno;
    pid = fork();
    if (pid < 0) {
        err = -errno;
        close(fds[0]);
        close(fds[1]);
        return err;
    }
    if (pid == 0) {
        close(fds[0]);
        *ready_fd = fds[1];
        return 0;
    }
    close(fds[1]);
    do {
        n = read(fds[0], &byte, 1);
    } while (n < 0 && errno == EINTR);
    _exit(n == 1 ? 0 : fail_code);
}

void daemon_ready(int ready_fd)
{
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    ssize_t n;

    (void)setsid();
    (void)!chdir("/");
    if (null >= 0) {
        (void)dup2(null, STDIN_FILENO);
        (void)dup2(null, STDOUT_FILENO);
        (void)dup2(null, STDERR_FILENO);
        if (null > STDERR_FILENO)
            close(null);
    }
    do {
        n = write(ready_fd, "", 1);
    } while (n < 0 && errno == EINTR);
    close(ready_fd);
}

void daemon_notify(const char *state)
{
    const char *path = getenv("NOTIFY_SOCKET");
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    size_t len;
    int fd;

    if (path == NULL || (path[0] != '/' && path[0] != '@') || strlen(path) >= sizeof(addr.sun_path))
        return;
    len = strlen(path);
    memcpy(addr.sun_path, path, len);
    if (path[0] == '@')
        addr.sun_path[0] = 0;
    fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return;
    (void)sendto(fd, state, strlen(state), MSG_NOSIGNAL, (const struct sockaddr *)&addr,
                 (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len));
    close(fd);
}

/* redis_note.c - what a node's data directory knows of its Redis. */
#include "node/redis_note.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "node/data_dir.h"

#define NOTE_NAME "redis"
#define NOTE_LEN 160

static const char *const words[] = {"none", "open", "closed", "lost"};

int redis_note_read(const char *dir, struct redis_note *out)
{
    char path[4096], text[NOTE_LEN] = "", word[16] = "";
    struct redis_note n = {0};
    int fd;
    ssize_t len;

    (void)snprintf(path, sizeof(path), "%s/" NOTE_NAME, dir);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return errno == ENOENT ? 0 : -errno;
    len = read(fd, text, sizeof(text) - 1);
    close(fd);
    if (len < 0)
        return -EIO;
    if (sscanf(text, "1 %16" SCNx64 " %" SCNu64 " %16" SCNx64 " %15s %" SCNu64, &n.store, &n.life,
               &n.token, word, &n.seq) != 5)
        return -EBADMSG;
    for (unsigned i = REDIS_NOTE_OPEN; i <= REDIS_NOTE_LOST; i++)
        if (strcmp(word, words[i]) == 0)
            n.state = (enum redis_note_state)i;
    if (n.state == REDIS_NOTE_NONE)
        return -EBADMSG;
    *out = n;
    return 0;
}

int redis_note_write(const char *dir, const struct redis_note *n)
{
    char text[NOTE_LEN];
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC), err;

    if (fd < 0)
        return -errno;
    (void)snprintf(text, sizeof(text),
                   "1 %016" PRIx64 " %" PRIu64 " %016" PRIx64 " %s %" PRIu64 "\n", n->store,
                   n->life, n->token, words[n->state], n->seq);
    err = data_dir_write(fd, NOTE_NAME, text);
    close(fd);
    return err;
}

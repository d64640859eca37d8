/* mounts.h - two mounts, a and b, of one cluster in memory, without a kernel; as cmocka's state. */
#ifndef KVFS_TESTS_LIB_MOUNTS_H
#define KVFS_TESTS_LIB_MOUNTS_H

#include <pthread.h>

#include "fs/fs.h"
#include "tests/lib/fake_cluster.h"

#define MOUNTS_VALUE_MAX (16u << 20)

struct mounted {
    struct fs *fs;
    struct caller root, user;
};

struct world {
    struct cluster *cluster;
    struct callers *callers;
    struct mounted a, b;
};

/* *state: a world. 0. */
int mounts_setup(void **state);
int mounts_teardown(void **state);

/*
 * What programs do, as root, with a file in the root directory; a failure fails the test. *id: the
 * inode, may be NULL.
 */
struct handle *mounted_create(struct mounted *m, const char *name, uint32_t mode, int flags,
                              uint64_t *id);
struct handle *mounted_open(struct mounted *m, const char *name, int flags, uint64_t *id);
void mounted_write(struct mounted *m, struct handle *h, uint64_t off, const char *text);
void mounted_close(struct mounted *m, struct handle *h);
/* As `echo -n text > name`. */
void mounted_put(struct mounted *m, const char *name, const char *text);

/*
 * A thread that is to wait for something gets a moment in which it could go on wrongly. True: it
 * has ended, and is joined.
 */
bool ended_early(pthread_t thread);

#endif

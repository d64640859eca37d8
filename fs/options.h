/* options.h - the command line of kvfs, which is also what mount(8) calls. */
#ifndef KVFS_FS_OPTIONS_H
#define KVFS_FS_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "common/buf.h"
#include "common/err.h"

struct options {
    const char *config, *mountpoint; /* borrowed from argv */
    bool help, version;              /* then nothing else counts */
    bool foreground, debug;
    uint32_t uid, gid, umask;
    double attr_timeout_s;
    uint32_t timeout_ms;
    unsigned max_threads;
    bool read_one;
    struct buf fuse; /* options that are the kernel's, separated by commas, with a NUL */
};

/* 0, or -EINVAL with the reason. *out is to be finished either way. */
int options_parse(int argc, char **argv, struct options *out, struct err *err);
void options_fini(struct options *o);
extern const char options_usage[];

#endif

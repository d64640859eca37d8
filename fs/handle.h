/* handle.h - an open file description: a file and how it was opened. */
#ifndef KVFS_FS_HANDLE_H
#define KVFS_FS_HANDLE_H

#include "fs/file.h"

struct handle {
    struct file *file; /* referenced, and counted as open */
    bool write, append;
    struct list link; /* fs->open_files */
};

#endif

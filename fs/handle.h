/* handle.h - an open file description: a file and how it was opened. */
#ifndef KVFS_FS_HANDLE_H
#define KVFS_FS_HANDLE_H

#include "fs/file.h"
#include "fs/follow.h"

struct handle {
    struct file *file; /* referenced, and counted as open */
    bool write, append;
    bool keeps_pages;          /* those that the kernel had were of the version that was opened */
    bool dropping;             /* else it drops them, before anything comes through this handle */
    struct follow_pages pages; /* dropping: what it has afterwards. The file's lock, as dropping */
    struct list link;          /* fs->open_files */
};

#endif

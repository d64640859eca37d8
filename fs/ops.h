/* ops.h - the handlers: each unpacks what the kernel asks, calls the core, and replies once. */
#ifndef KVFS_FS_OPS_H
#define KVFS_FS_OPS_H

#define FUSE_USE_VERSION 312
#include <fuse_lowlevel.h>

#include "fs/control.h"
#include "fs/fs.h"

/* What each request finds as its session's userdata. */
struct mount {
    struct fs *fs;
    struct control *control;
    struct callers *callers;
    struct metrics *metrics;
    struct notifier *notifier;   /* NULL: nothing is cached */
    double attr_timeout_s;       /* for what is known to hold, see fs_attrs_hold() */
    unsigned max_threads;        /* that serve calls */
    void (*on_ready)(void *arg); /* the kernel has said hello: the mount answers */
    void *on_ready_arg;
    bool parallel_dirops; /* the kernel can, see ops_init.c */
    atomic_bool greeted;
};

extern const struct fuse_lowlevel_ops ops_table;

/* Every handler begins and ends with these. request_end() gives the errno for the kernel. */
void request_begin(fuse_req_t req, enum fs_call call, struct caller *who);
int request_end(fuse_req_t req, struct caller *who, int err);
/* Replies with an entry, or the error; the core forgets it where the kernel did not get it. */
void reply_entry(fuse_req_t req, struct caller *who, int err, const struct fs_entry *e);
void fill_entry(const struct mount *m, const struct fs_entry *e, struct fuse_entry_param *out);

static inline struct mount *mount_of(fuse_req_t req)
{
    return fuse_req_userdata(req);
}

/* ops_init.c */
void on_init(void *userdata, struct fuse_conn_info *conn);
/* Between mounting and the loop. */
int ops_init_io(struct fuse_session *session);

/* ops_notify.c: tells the kernel what it may believe no longer. */
struct notifier;
int notifier_new(struct fuse_session *session, struct fs *fs, struct notifier **out);
/* Nothing is told from now on; waits for what is being told. */
void notifier_stop(struct notifier *n); /* accepts NULL */
void notifier_free(struct notifier *n); /* accepts NULL; after the end of all who could tell it */

/* ops_control.c: of ids for which control_has(); the handlers of their names hand on to them. */
void on_control_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void on_control_read(fuse_req_t req, size_t size, off_t off, struct fuse_file_info *fi);
void on_control_release(fuse_req_t req, struct fuse_file_info *fi);
void on_control_opendir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void on_control_readdir(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off, bool plus);

/* ops_file.c */
void on_create(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode,
               struct fuse_file_info *fi);
void on_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void on_read(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off, struct fuse_file_info *fi);
void on_write(fuse_req_t req, fuse_ino_t ino, const char *data, size_t size, off_t off,
              struct fuse_file_info *fi);
void on_flush(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void on_fsync(fuse_req_t req, fuse_ino_t ino, int datasync, struct fuse_file_info *fi);
void on_release(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void on_fallocate(fuse_req_t req, fuse_ino_t ino, int mode, off_t off, off_t len,
                  struct fuse_file_info *fi);
void on_lseek(fuse_req_t req, fuse_ino_t ino, off_t off, int whence, struct fuse_file_info *fi);
void on_copy_file_range(fuse_req_t req, fuse_ino_t ino_in, off_t off_in,
                        struct fuse_file_info *fi_in, fuse_ino_t ino_out, off_t off_out,
                        struct fuse_file_info *fi_out, size_t len, int flags);

/* ops_dir.c */
void on_mkdir(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode);
void on_mknod(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode, dev_t rdev);
void on_symlink(fuse_req_t req, const char *target, fuse_ino_t parent, const char *name);
void on_link(fuse_req_t req, fuse_ino_t ino, fuse_ino_t parent, const char *name);
void on_unlink(fuse_req_t req, fuse_ino_t parent, const char *name);
void on_rmdir(fuse_req_t req, fuse_ino_t parent, const char *name);
void on_rename(fuse_req_t req, fuse_ino_t parent, const char *name, fuse_ino_t new_parent,
               const char *new_name, unsigned flags);
void on_opendir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void on_readdir(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off, struct fuse_file_info *fi);
void on_readdirplus(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off,
                    struct fuse_file_info *fi);
void on_releasedir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void on_fsyncdir(fuse_req_t req, fuse_ino_t ino, int datasync, struct fuse_file_info *fi);

#endif

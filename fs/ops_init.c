/* ops_init.c - how a session begins: what the kernel and the mount agree on. */
#include "fs/ops.h"

#include <linux/fuse.h>
#include <stdatomic.h>
#include <sys/uio.h>
#include <unistd.h>

#define MAX_WRITE (1u << 20)

void on_init(void *userdata, struct fuse_conn_info *conn)
{
    struct mount *m = userdata;

    conn->max_write = MAX_WRITE;
    /*
     * Reading ahead, writing back and closing. The kernel holds all of it up once so much is under
     * way, as it is where some wait for dead nodes; and it must leave threads to the rest.
     */
    conn->max_background = (m->max_threads + 1) / 2;
    conn->time_gran = 1;
    /*
     * Pages are dropped by an open that finds another version than they are of, and where a size
     * changes, so there is no need to ask for attributes before each read. Each listing brings the
     * attributes, so each may as well hand them on. The old way of leaving set-user-ID bits to the
     * mount is not wanted: see below.
     */
    conn->want &= ~(unsigned)(FUSE_CAP_AUTO_INVAL_DATA | FUSE_CAP_HANDLE_KILLPRIV |
                              FUSE_CAP_READDIRPLUS_AUTO);
    conn->want |= conn->capable & FUSE_CAP_READDIRPLUS;
    m->parallel_dirops = conn->capable & FUSE_CAP_PARALLEL_DIROPS;
    m->on_ready(m->on_ready_arg);
}

/* --- what libfuse forgets --------------------------------------------------------------------- */

/*
 * libfuse 3.14 has FUSE_CAP_PARALLEL_DIROPS, but does not pass it on, and the kernel lets only one
 * lookup at a time into a directory then: one that waits for a dead node holds up all others. So
 * the first answer of a session, which is the one to INIT, gets the flag here.
 *
 * It does not know FUSE_HANDLE_KILLPRIV_V2 at all: what writes, cuts and chowns take from a program
 * is then the mount's to take (attr_drop_privileges(): it does so in any case, for the kernel never
 * did where it does not cache), and the kernel need not ask for security.capability before each
 * write, which was every other request of a program that writes. A kernel without it ignores the
 * flag. Nor does it know that what bypasses the pages (handles that append) may be mapped all the
 * same; the kernel keeps the two in step.
 */
#define ALLOW_MMAP (1u << 4) /* FUSE_DIRECT_IO_ALLOW_MMAP, in flags2: Linux 6.6 */

static ssize_t write_answer(int fd, struct iovec *iov, int count, void *userdata)
{
    const struct fuse_out_header *head = iov[0].iov_base;
    struct mount *m = userdata;

    if (head->unique != 0 /* not a notification */ && m->parallel_dirops &&
        !atomic_exchange(&m->greeted, true) && count == 2 &&
        iov[1].iov_len >= offsetof(struct fuse_init_out, max_background)) {
        struct fuse_init_out *hello = iov[1].iov_base;

        hello->flags |= FUSE_PARALLEL_DIROPS | FUSE_HANDLE_KILLPRIV_V2;
        if (iov[1].iov_len >= offsetof(struct fuse_init_out, unused)) {
            hello->flags |= FUSE_INIT_EXT;
            hello->flags2 |= ALLOW_MMAP;
        }
    }
    return writev(fd, iov, count);
}

static ssize_t read_request(int fd, void *buf, size_t len, void *userdata)
{
    (void)userdata;
    return read(fd, buf, len);
}

int ops_init_io(struct fuse_session *session)
{
    static const struct fuse_custom_io io = {.writev = write_answer, .read = read_request};

    return fuse_session_custom_io(session, &io, fuse_session_fd(session));
}

/* status.h - the one table between errno and HTTP status, used by both sides. */
#ifndef KVFS_COMMON_STATUS_H
#define KVFS_COMMON_STATUS_H

/*
 * kvfs's own meaning of some codes, inside all programs:
 *   -EHOSTDOWN   no quorum reached            503
 *   -EBADMSG     damaged data                 500   (EIO to the kernel)
 *   -EBADE       another ring                 409   (EIO to the kernel)
 *   -EREMCHG     not a replica of this key    421
 *   -ECANCELED   condition failed             412
 *   -EAGAIN      overloaded, recovering       503 (-ENOMEM, -EMFILE, -ENFILE too)
 *   -ENOENT 404, -EFBIG 413, -ENAMETOOLONG 414, -EINVAL 400, -ENOSPC 507, -EIO 500, -ETIMEDOUT 504,
 *   -EEXIST 412 ...
 */
unsigned status_from_errno(int err);        /* negative errno or 0 to HTTP; unknown ones 500 */
int status_to_errno(unsigned status);       /* 2xx: 0; unknown ones -EIO */
const char *status_reason(unsigned status); /* "Not Found"; static */

#endif

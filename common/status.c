/* status.c - the one table between errno and HTTP status. */
#include "common/status.h"

#include <errno.h>
#include <stddef.h>

/*
 * Read from the top in both directions, the first row that matches decides: several errnos may
 * share a status, which maps back to the first of them, and several statuses may mean one errno,
 * which is sent as the first of them.
 */
static const struct row {
    int err; /* positive, or 0 */
    unsigned status;
    const char *reason;
} table[] = {
    {0, 200, "OK"},
    {0, 201, "Created"},
    {0, 204, "No Content"},
    {0, 206, "Partial Content"},
    {EINVAL, 400, "Bad Request"},
    {ENOENT, 404, "Not Found"},
    {EOPNOTSUPP, 405, "Method Not Allowed"},
    {ETIMEDOUT, 504, "Gateway Timeout"},
    {ETIMEDOUT, 408, "Request Timeout"},
    {EBADE, 409, "Conflict"},
    {EINVAL, 411, "Length Required"},
    {ECANCELED, 412, "Precondition Failed"},
    {EEXIST, 412, "Precondition Failed"},
    {EFBIG, 413, "Content Too Large"},
    {ENAMETOOLONG, 414, "URI Too Long"},
    {ERANGE, 416, "Range Not Satisfiable"},
    {EREMCHG, 421, "Misdirected Request"},
    {EINVAL, 431, "Request Header Fields Too Large"},
    {EIO, 500, "Internal Server Error"},
    {EBADMSG, 500, "Internal Server Error"},
    {EPROTO, 501, "Not Implemented"}, /* a format version from the future */
    {EHOSTDOWN, 503, "Service Unavailable"},
    {EAGAIN, 503, "Service Unavailable"},
    {EMFILE, 503, "Service Unavailable"},
    {ENFILE, 503, "Service Unavailable"},
    {ENOMEM, 503, "Service Unavailable"},
    {EINTR, 503, "Service Unavailable"}, /* stopping */
    {ENOSPC, 507, "Insufficient Storage"},
    {EIO, 304, "Not Modified"}, /* never asked for between our programs */
};

#define N_ROWS (sizeof(table) / sizeof(table[0]))

static const struct row *row_of_status(unsigned status)
{
    for (size_t i = 0; i < N_ROWS; i++) {
        if (table[i].status == status)
            return &table[i];
    }
    return NULL;
}

unsigned status_from_errno(int err)
{
    for (size_t i = 0; i < N_ROWS; i++) {
        if (-table[i].err == err)
            return table[i].status;
    }
    return 500;
}

int status_to_errno(unsigned status)
{
    const struct row *row = row_of_status(status);

    if (status / 100 == 2)
        return 0;
    return row != NULL ? -row->err : -EIO;
}

const char *status_reason(unsigned status)
{
    const struct row *row = row_of_status(status);

    return row != NULL ? row->reason : "Unknown";
}

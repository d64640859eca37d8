/* base64.h - RFC 4648 base64, for keys that are not UTF-8. */
#ifndef KVFS_COMMON_BASE64_H
#define KVFS_COMMON_BASE64_H

#include "common/buf.h"

void base64_encode(struct buf *out, struct span bytes);
/* Also the URL alphabet ('-', '_'), padded or not. 0, or -EINVAL with out as it was. */
int base64_decode(struct buf *out, struct span text);

#endif

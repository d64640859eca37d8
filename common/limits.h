/* limits.h - every limit of kvfs in one place, with the relations that must hold between them. */
#ifndef KVFS_COMMON_LIMITS_H
#define KVFS_COMMON_LIMITS_H

#include <stdint.h>

#define KEY_LEN_MAX 4096u                   /* bytes of a key; 1 is the least */
#define VALUE_SIZE_DEFAULT_MAX (1ull << 30) /* max_value_size where cluster.json does not say */
#define VALUE_SIZE_LIMIT (1ull << 40)       /* no configuration may ask for more */
#define CHUNK_SIZE (1u << 20)               /* a value has one checksum per chunk of this size */
#define INLINE_VALUE_MAX (64u << 10)        /* larger values are kept in a file of their own */
#define MEMORY_BLOB_MAX (8u << 20)          /* larger ones are in temporary files, see spool.h */
#define RECENT_MAX 32u                      /* operation ids remembered in a record */
/* content type and extended attributes of one record, encoded */
#define ATTRS_LEN_MAX (128u << 10)
#define ATTR_NAME_LEN_MAX 255u
#define ATTR_VALUE_LEN_MAX (64u << 10)
#define NODE_ID_LEN_MAX 255u
#define VIRTUAL_NODES_DEFAULT 100u
#define VIRTUAL_NODES_MAX 10000u
#define LIST_LIMIT_DEFAULT 1000u /* entries of one listing answer */
#define LIST_LIMIT_MAX 10000u
/* bytes of a listing's entries from which on it ends: a page of long keys has fewer */
#define LIST_LEN_MAX (4u << 20)
#define FILE_NAME_LEN_MAX 255u /* NAME_MAX of the mount */
/* bytes of one open file, and of all, that are kept in memory; more goes to temporary files */
#define CONTENT_MEMORY_MAX (8u << 20)
#define CONTENTS_MEMORY_MAX (256u << 20)

#define TIMEOUT_DEFAULT_MS 5000u
#define RECORD_LEN_MAX (ATTRS_LEN_MAX + 4096u + 8u * (uint32_t)(VALUE_SIZE_LIMIT / CHUNK_SIZE))
#define MESSAGE_HEAD_MAX (RECORD_LEN_MAX + 2u * KEY_LEN_MAX + 4096u)

_Static_assert(CHUNK_SIZE % 4096 == 0, "a chunk is whole pages");
_Static_assert(INLINE_VALUE_MAX <= CHUNK_SIZE, "an inline value has one checksum");
_Static_assert(CONTENT_MEMORY_MAX % CHUNK_SIZE == 0 && CONTENT_MEMORY_MAX < CONTENTS_MEMORY_MAX,
               "many open files fit in memory");
_Static_assert(VALUE_SIZE_DEFAULT_MAX <= VALUE_SIZE_LIMIT, "the default is allowed");
_Static_assert(ATTR_VALUE_LEN_MAX < ATTRS_LEN_MAX, "one attribute of the largest size fits");

#endif

/*
 * keypath.h - names of a key: in a URL path, and as files of the mount. Both ways are one-to-one.
 */
#ifndef KVFS_COMMON_KEYPATH_H
#define KVFS_COMMON_KEYPATH_H

#include <stdbool.h>

#include "common/buf.h"

/* Is it a key at all: 1..KEY_LEN_MAX bytes without NUL? 0, -EINVAL, -ENAMETOOLONG. */
int key_check(struct span key);

/*
 * Key to the part of a URL path behind "/kv/": unreserved characters of RFC 3986 and '/' stand raw,
 * all else is %XX in upper case. A part "." or ".." between slashes is written %2E or %2E%2E:
 * clients fold dots.
 */
void key_to_url(struct buf *out, struct span key);
/*
 * What stands in a URL, decoded once; '+' is a plus. -EINVAL: bad escape, NUL (%00). -ENAMETOOLONG:
 * more than max bytes. Appends to out only on success.
 */
int url_decode(struct buf *out, struct span text, size_t max);
/*
 * The raw path bytes to the key: one decode, '+' is a plus, slashes as they stand. -EINVAL: bad
 * escape, NUL (%00), empty. -ENAMETOOLONG: over KEY_LEN_MAX. Appends to out only on success.
 */
int key_from_url(struct buf *out, struct span path);

/*
 * File names. A key is parts between slashes; a part is shown as one name, almost always itself.
 * The directory that holds it is known by its *prefix*, the key bytes that all in it share: "" for
 * the root, "a/b/" for a/b. What no name can be is escaped:
 *
 *   ""  -> %00     "."  -> %2E     ".."  -> %2E%2E
 *   a part over 255 bytes: pieces of KEY_PIECE_LEN bytes, each shown as a directory whose name is
 *   the piece's bytes and KEY_PIECE_MARK; the rest
 *   (never empty) is the name in the last of them. The prefix of such a directory does not end in
 *   '/'.
 *   ".kvfs", as the first part of a key -> %2Ekvfs: the name .kvfs in the root is no key's, but
 *   the mount's control directory
 *   a part that would read as one of these: each '%' in it becomes %25
 *
 * A name that is not the escape of anything is itself, so every legal file name but that one
 * round-trips. keypath.c proves one-to-one. KEY_SHADOWED names, inside directory "a/", the key "a"
 * that the directory hides.
 */
#define KEY_PIECE_LEN 240u
#define KEY_PIECE_MARK "%00+"
#define KEY_SHADOWED "%00key"
#define KEY_CONTROL ".kvfs"

/*
 * The key (or, as_dir, the prefix) of `name` in the directory `prefix`. as_dir of an ordinary name
 * ends in '/', which is also the key of the marker that mkdir stores; as_dir of a piece does not.
 * -EINVAL: not a name that name_of_key() makes (it does not exist and cannot be made).
 * -ENAMETOOLONG: name over 255 bytes or key over KEY_LEN_MAX. Appends only on success.
 */
int key_of_name(struct buf *out, struct span prefix, struct span name, bool as_dir);
/*
 * The name under which a key below `prefix` shows in that directory, and whether it shows as a
 * directory (more of the key follows). -ENOENT: the key is not shown there: it is the prefix itself
 * (the marker), does not start with it, or belongs into no piece. Appends only on success.
 */
int key_name_in(struct buf *out, struct span prefix, struct span key, bool *is_dir);
/*
 * The whole path below the mount root, names joined by '/', of a key (a marker "a/" gives "a"); for
 * messages and the control directory.
 */
void key_to_path(struct buf *out, struct span key);
/* The opposite of key_to_path for a key that is not a marker. -EINVAL as above. */
int key_from_path(struct buf *out, struct span path);

#endif

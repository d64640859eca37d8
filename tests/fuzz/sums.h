/*
 * sums.h - puts the right checksums into bytes that are to look like a record, a message or a
 * listing: without it nothing that a fuzzer changes would get past the first check.
 *
 * All of these read what they can and leave alone what makes no sense; the lengths within the bytes
 * are believed only as far as they fit. Nothing is moved.
 */
#ifndef KVFS_TESTS_FUZZ_SUMS_H
#define KVFS_TESTS_FUZZ_SUMS_H

#include "common/buf.h"

void sums_record(uint8_t *data, size_t len, struct span key);
/*
 * The head at the start of data: where its length field says nothing possible it is set to len;
 * then the sums of what the head carries (record, peek), and its own.
 */
void sums_request(uint8_t *data, size_t len);
void sums_answer(uint8_t *data, size_t len, struct span key);
/* Entries, one behind the other, as far as they can be told apart. */
void sums_entries(uint8_t *data, size_t len);

#endif

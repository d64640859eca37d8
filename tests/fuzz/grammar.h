/*
 * grammar.h - replica requests, answers and entries made of choices: well-formed, of few keys and
 * versions so that they meet one another; and edits, which are then not so well-formed any more.
 *
 * A new kind of message is a line in grammar.c.
 */
#ifndef KVFS_TESTS_FUZZ_GRAMMAR_H
#define KVFS_TESTS_FUZZ_GRAMMAR_H

#include "common/message.h"
#include "tests/fuzz/fuzz.h"

/* The keys that all is about, in byte order. */
#define GRAMMAR_KEYS 8u
struct span grammar_key(unsigned i);

/* What a made message borrows from; {0} to begin with. */
struct made {
    struct buf attrs, sums, value, known, bytes;
};
void made_fini(struct made *m);

struct ballot grammar_ballot(struct input *in);
/* A record of that version, perhaps none; its value is in made->value. */
void grammar_record(struct input *in, struct ballot version, struct made *made, struct record *out);
/* A request of a node or client of this ring; the value of an ACCEPT is in made->value. */
void grammar_request(struct input *in, uint64_t ring, struct made *made, struct message *out);
/* An answer of that kind, 0: of any; its value is in made->value, its entries in made->bytes. */
void grammar_answer(struct input *in, enum answer_kind wanted, uint64_t clock_ms, struct made *made,
                    struct answer *out);
/* Entries in any order, appended. Returns how many. */
unsigned grammar_entries(struct input *in, struct buf *out);

/* Up to three changes of any kind anywhere in the bytes. */
void grammar_edit(struct input *in, struct buf *bytes);

#endif

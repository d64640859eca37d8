/* cold.h - keys that are written once, before any trouble, and must be there in the end. */
#ifndef KVFS_TESTS_LIB_COLD_H
#define KVFS_TESTS_LIB_COLD_H

#include "tests/lib/sim.h"

/* Writes n keys, each until it is acknowledged. They are among those that the sim checks. */
void cold_write(struct sim *s, unsigned n);
/* Has each of their replicas what was written? All are up and whole. */
bool cold_intact(struct sim *s, unsigned n, struct err *why);

#endif

/* clock.h - seam: time. The real one, and one that tests step. */
#ifndef KVFS_COMMON_CLOCK_H
#define KVFS_COMMON_CLOCK_H

#include <stdint.h>

struct clock {
    /* only grows, also through suspend (CLOCK_BOOTTIME); for deadlines */
    uint64_t (*mono_us)(struct clock *c);
    /* since the epoch; makes ballots likely to be fresh and mtimes; nothing depends on it */
    uint64_t (*wall_us)(struct clock *c);
};

/* The machine's clock; static, thread safe. */
struct clock *clock_real(void);

#endif

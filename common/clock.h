/* clock.h - seam: time. The real one, and one that tests step. */
#ifndef KVFS_COMMON_CLOCK_H
#define KVFS_COMMON_CLOCK_H

#include <stdint.h>
#include <time.h>

struct clock {
    /* only grows, also through suspend (CLOCK_BOOTTIME); for deadlines. No wait for a condition can
     * go by it: see clock_after_us(). */
    uint64_t (*mono_us)(struct clock *c);
    /* since the epoch; makes ballots likely to be fresh and mtimes; nothing depends on it */
    uint64_t (*wall_us)(struct clock *c);
};

/* The machine's clock; static, thread safe. */
struct clock *clock_real(void);
/* CLOCK_MONOTONIC: it stands still in suspend, as the kernel's own timeouts do, so it is behind
 * mono_us by all the time that the machine ever slept. */
uint64_t clock_awake_us(void);
/* The moment so long from now by that clock: for pthread_cond_clockwait(). */
struct timespec clock_after_us(uint64_t us);

#endif

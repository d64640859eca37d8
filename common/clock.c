/* clock.c - the machine's clock. */
#include "common/clock.h"

#include <assert.h>

static uint64_t read_us(clockid_t id)
{
    struct timespec ts;
    int err = clock_gettime(id, &ts);

    assert(err == 0); /* fails only for clocks that Linux does not have */
    return (uint64_t)ts.tv_sec * 1000000u + (uint64_t)ts.tv_nsec / 1000u;
}

static uint64_t real_mono_us(struct clock *c)
{
    (void)c;
    return read_us(CLOCK_BOOTTIME);
}

static uint64_t real_wall_us(struct clock *c)
{
    (void)c;
    return read_us(CLOCK_REALTIME);
}

struct clock *clock_real(void)
{
    static struct clock real = {real_mono_us, real_wall_us};

    return &real;
}

uint64_t clock_awake_us(void)
{
    return read_us(CLOCK_MONOTONIC);
}

struct timespec clock_after_us(uint64_t us)
{
    uint64_t at = clock_awake_us() + us;

    return (struct timespec){(time_t)(at / 1000000), (long)(at % 1000000 * 1000)};
}

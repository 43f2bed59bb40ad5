/* clock_gettime with CLOCK_MONOTONIC and CLOCK_THREAD_CPUTIME_ID. */
#include "graph/base/clock.h"

#include <time.h>

static double seconds_of(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

double smp_clock_s(void)
{
    return seconds_of(CLOCK_MONOTONIC);
}

double smp_clock_thread_s(void)
{
    return seconds_of(CLOCK_THREAD_CPUTIME_ID);
}

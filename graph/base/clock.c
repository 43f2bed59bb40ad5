/* clock_gettime with CLOCK_MONOTONIC. */
#include "graph/base/clock.h"

#include <time.h>

double smp_clock_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

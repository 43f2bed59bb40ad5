/* The greatest common divisor, by Euclid. */
#ifndef SMP_GRAPH_BASE_DIVISOR_H
#define SMP_GRAPH_BASE_DIVISOR_H

#include <stdint.h>

/* Of numbers >= 0; of 0 and a number that number. */
static inline int64_t smp_common_divisor(int64_t a, int64_t b)
{
    while (b != 0) {
        const int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

#endif

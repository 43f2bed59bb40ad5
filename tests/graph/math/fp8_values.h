/* fp8 by the definition of its formats, in double: what rounding is tested against. */
#ifndef SMP_TESTS_GRAPH_MATH_FP8_VALUES_H
#define SMP_TESTS_GRAPH_MATH_FP8_VALUES_H

#include <math.h>
#include <stdint.h>

#include "graph/math/fp8.h"

/* Codes of finite sizes. */
static inline int fp8_sizes(smp_fp8 format)
{
    return format == SMP_E4M3 ? 0x7f : 0x7c;
}

/* Of a size: 1.f 2^(e - bias), or 0.f 2^(1 - bias). */
static inline double fp8_value(smp_fp8 format, int size)
{
    const int bits = format == SMP_E4M3 ? 3 : 2, bias = format == SMP_E4M3 ? 7 : 15;
    const int exponent = size >> bits, steps = 1 << bits, fraction = size % steps;
    return exponent > 0 ? ldexp(1.0 + fraction / (double)steps, exponent - bias)
                        : ldexp(fraction / (double)steps, 1 - bias);
}

/* The nearest size; of two the even code. What is larger than all is the largest. */
static inline int fp8_nearest(smp_fp8 format, double x)
{
    int best = 0;
    for (int size = 1; size < fp8_sizes(format); size++) {
        const double own = fabs(fabs(x) - fp8_value(format, size));
        const double its = fabs(fabs(x) - fp8_value(format, best));
        if (own < its || (own == its && size % 2 == 0))
            best = size;
    }
    return best;
}

/* x of a tensor whose largest size is `largest`, as a product has it. */
static inline double fp8_factor(smp_fp8 format, double x, double largest)
{
    int exponent = 0;
    if (largest > 0)
        (void)frexp(fp8_value(format, fp8_sizes(format) - 1) / largest, &exponent);
    const double scale = ldexp(1.0, largest > 0 ? exponent - 1 : 0);
    return copysign(fp8_value(format, fp8_nearest(format, x * scale)) / scale, x);
}

/* A tensor in place, of whose values the first `counted` have a say in the scale. */
static inline void fp8_round_all(smp_fp8 format, float *x, int64_t n, int64_t counted)
{
    double largest = 0;
    for (int64_t i = 0; i < counted; i++)
        largest = fmax(largest, fabs((double)x[i]));
    for (int64_t i = 0; i < n; i++)
        x[i] = (float)fp8_factor(format, (double)x[i], largest);
}

#endif

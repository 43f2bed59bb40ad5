/* Sizes of buffers: every place in an arena is a multiple of 64 bytes (a cache line, and what the
 * kernels may count on), and every sum is checked. */
#ifndef SMP_SCHEDULE_MEMORY_BYTES_H
#define SMP_SCHEDULE_MEMORY_BYTES_H

#include "graph/base/status.h"

enum { SMP_BUFFER_ALIGN = 64 };

/* bytes must be at most INT64_MAX - 63; smp__bytes_add checks. */
static inline int64_t smp__bytes_align(int64_t bytes)
{
    return (bytes + SMP_BUFFER_ALIGN - 1) & ~(int64_t)(SMP_BUFFER_ALIGN - 1);
}

/* *sum += bytes, rounded up to 64. SMP_ERR_INPUT if the sum leaves 2^62. */
static inline smp_status smp__bytes_add(int64_t *sum, int64_t bytes)
{
    const int64_t limit = (int64_t)1 << 62;
    if (bytes < 0 || bytes > limit || *sum > limit - smp__bytes_align(bytes))
        return smp_fail(SMP_ERR_INPUT, "buffers of one rank exceed 2^62 bytes");
    *sum += smp__bytes_align(bytes);
    return SMP_OK;
}

#endif

/* One pass over buffers by rising begin: all that a long list with few buffers alive needs. */
#ifndef SMP_SCHEDULE_MEMORY_INTERVAL_SWEEP_H
#define SMP_SCHEDULE_MEMORY_INTERVAL_SWEEP_H

#include <stdbool.h>
#include <stdint.h>

/* Places buffers of size[i] bytes, alive from begin[i] to end[i], in the order given, which must be
 * that of rising begin; buffers without bytes keep their offset. *bound: the largest sum alive at
 * one time. Sizes are at most 2^61. False, and nothing of use in the results, if the order is
 * another, or if too many are alive at one time, or sums are too large. O(n * alive). */
bool smp__interval_sweep(int64_t n, const int64_t *size, const int64_t *begin, const int64_t *end,
                         int64_t *offset, int64_t *total, int64_t *bound);

#endif

/* What the element-wise kernels over a rank's arena share: 16-byte accesses where the addresses
 * allow them, and a grid that depends on the number of elements alone. */
#ifndef SMP_EXEC_OPTIMIZER_CUDA_UPDATE_CUH
#define SMP_EXEC_OPTIMIZER_CUDA_UPDATE_CUH

#include "exec/optimizer/optimizer.h"
#include "graph/cuda/cuda_kernel.cuh"

/* 0 for NULL too: an array that is not there allows everything. */
static inline uintptr_t smp_misaligned(const void *p, uintptr_t bytes)
{
    return reinterpret_cast<uintptr_t>(p) % bytes;
}

/* Blocks for `items` items of a thread: up to several times what fits on any device. */
static inline unsigned smp_arena_grid(int64_t items)
{
    return smp_blocks(items, SMP_BLOCK, 1 << 14);
}

#endif

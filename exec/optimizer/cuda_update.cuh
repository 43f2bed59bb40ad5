/* What the element-wise kernels over a rank's arena share: 16-byte accesses where the addresses
 * allow them, and a grid that depends on the number of elements alone. */
#ifndef SMP_EXEC_OPTIMIZER_CUDA_UPDATE_CUH
#define SMP_EXEC_OPTIMIZER_CUDA_UPDATE_CUH

#include "exec/optimizer/optimizer.h"
#include "graph/cuda/cuda_kernel.cuh"

/* Four bf16 values: what goes with 16 bytes of floats. */
struct alignas(8) smp_quad16 {
    bf16 v[4];
};

/* 0 for NULL too: an array that is not there allows everything. */
static inline uintptr_t smp_misaligned(const void *p, uintptr_t bytes)
{
    return reinterpret_cast<uintptr_t>(p) % bytes;
}

/* Blocks for `items` items of a thread; the kernels loop over the rest. */
static inline unsigned smp_arena_grid(int64_t items)
{
    const int64_t limit = 1 << 14; /* several times what fits on any device */
    const int64_t blocks = (items + SMP_BLOCK - 1) / SMP_BLOCK;
    return (unsigned)(blocks < 1 ? 1 : blocks < limit ? blocks : limit);
}

/* A thread's first item and the distance to its next. */
__device__ __forceinline__ int64_t smp_first_item()
{
    return (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
}
__device__ __forceinline__ int64_t smp_item_stride()
{
    return (int64_t)gridDim.x * blockDim.x;
}

#endif

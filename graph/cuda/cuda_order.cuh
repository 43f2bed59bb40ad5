/* Positions 0 .. n-1 in the order of index[position], equal indices in the order of positions: a
 * stable radix sort from the lowest of as many 8-bit digits as indices have.
 *
 * One pass over a digit: every block counts the digits of its chunk of positions, then every
 * block adds up where the digits of its chunk begin and writes its positions there. A thread
 * stands for a digit and looks at all positions of the chunk in order, so the order is kept
 * without atomics or barriers between blocks. 256 n comparisons a pass, and no input is worse
 * than another. */
#ifndef SMP_GRAPH_CUDA_CUDA_ORDER_CUH
#define SMP_GRAPH_CUDA_CUDA_ORDER_CUH

#include "graph/cuda/cuda_kernel.cuh"
#include "graph/cuda/cuda_order.h"

/* What is sorted: n positions in the order of `from` (NULL: as they are), by 8 bits of their index.
 * An index outside of 0 .. limit-1 counts as `limit`. */
struct smp_order_pass {
    const int32_t *index; // (n)
    const int32_t *from;  // (n)
    int64_t n, chunk;
    int32_t limit;
    int shift;
};

/* Digits and positions from `begin` on, up to a tile; a place after the end of the chunk gets a
 * digit that no thread has. */
__device__ __forceinline__ void smp_order_tile(const smp_order_pass &s, int64_t begin, int64_t end,
                                               int *digit, int32_t *position)
{
    for (int k = threadIdx.x; k < SMP__ORDER_TILE; k += SMP__ORDER_DIGITS) {
        const bool inside = begin + k < end;
        const int32_t p = !inside ? 0 : s.from ? s.from[begin + k] : (int32_t)(begin + k);
        const int32_t key = inside ? s.index[p] : 0;
        const int32_t checked = key < 0 || key > s.limit ? s.limit : key;
        digit[k] = inside ? checked >> s.shift & (SMP__ORDER_DIGITS - 1) : -1;
        position[k] = p;
    }
}

static __global__ void __launch_bounds__(SMP__ORDER_DIGITS)
    smp_order_count(smp_order_pass s, int32_t *counts) // counts (chunks, digits)
{
    __shared__ int digit[SMP__ORDER_TILE];
    __shared__ int32_t position[SMP__ORDER_TILE];
    const int64_t first = blockIdx.x * s.chunk;
    const int64_t end = first + s.chunk < s.n ? first + s.chunk : s.n;
    const int own = (int)threadIdx.x;
    int32_t count = 0;
    for (int64_t begin = first; begin < end; begin += SMP__ORDER_TILE) {
        smp_order_tile(s, begin, end, digit, position);
        __syncthreads();
        for (int k = 0; k < SMP__ORDER_TILE; k++)
            count += digit[k] == own;
        __syncthreads();
    }
    counts[(int64_t)blockIdx.x * SMP__ORDER_DIGITS + own] = count;
}

static __global__ void __launch_bounds__(SMP__ORDER_DIGITS)
    smp_order_scatter(smp_order_pass s, const int32_t *counts, int32_t *to) // to (n)
{
    __shared__ int digit[SMP__ORDER_TILE];
    __shared__ int32_t position[SMP__ORDER_TILE];
    __shared__ int32_t total[SMP__ORDER_DIGITS];
    const int64_t first = blockIdx.x * s.chunk;
    const int64_t end = first + s.chunk < s.n ? first + s.chunk : s.n;
    const int own = (int)threadIdx.x;
    int32_t at = 0, sum = 0; /* of this digit in earlier chunks, and in all */
    for (unsigned c = 0; c < gridDim.x; c++) {
        const int32_t count = counts[(int64_t)c * SMP__ORDER_DIGITS + own];
        at += c < blockIdx.x ? count : 0;
        sum += count;
    }
    total[own] = sum;
    __syncthreads();
    for (int d = 0; d < SMP__ORDER_DIGITS; d++)
        at += d < own ? total[d] : 0;
    for (int64_t begin = first; begin < end; begin += SMP__ORDER_TILE) {
        smp_order_tile(s, begin, end, digit, position);
        __syncthreads();
        for (int k = 0; k < SMP__ORDER_TILE; k++)
            if (digit[k] == own)
                to[at++] = position[k];
        __syncthreads();
    }
}

/* *order [n] in `workspace` [smp__order_bytes(n)]; indices outside of 0 .. limit-1 come last. Both
 * counts are at most INT32_MAX. */
static inline smp_status smp_order(const smp_cuda *cuda, const int32_t *index, int64_t n,
                                   int64_t limit, void *workspace, const int32_t **order)
{
    int32_t *target = static_cast<int32_t *>(workspace), *other = target + n;
    int32_t *counts = other + n;
    smp_order_pass s = {index, NULL, n, smp__order_chunk(n), (int32_t)limit, 0};
    const unsigned chunks = (unsigned)smp__order_chunks(n);
    for (; s.shift < 32 && limit >> s.shift > 0; s.shift += 8) {
        SMP_LAUNCH(smp_order_count, chunks, SMP__ORDER_DIGITS, 0, cuda->stream, s, counts);
        SMP_LAUNCH(smp_order_scatter, chunks, SMP__ORDER_DIGITS, 0, cuda->stream, s, counts,
                   target);
        s.from = target;
        target = other;
        other = const_cast<int32_t *>(s.from);
    }
    *order = s.from;
    return smp__cuda_launched("sorting indices");
}

#endif

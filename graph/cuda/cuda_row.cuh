/* What the kernels over rows of values share (softmax, cross_entropy, layernorm): who works on
 * which row, sums over a row's lanes, and a walk over a row in 16-byte accesses.
 *
 * A row belongs to a group of threads: one warp of a block of several rows if the row is short,
 * otherwise a whole block. The group's size, and with it the order of every sum, depends on the
 * row's length and the type of its values alone; how many blocks there are changes nothing. */
#ifndef SMP_GRAPH_CUDA_CUDA_ROW_CUH
#define SMP_GRAPH_CUDA_CUDA_ROW_CUH

#include "graph/cuda/cuda_kernel.cuh"

enum {
    SMP_ROW_MAX_LANES = 512,
    SMP_WARP_ROWS = 8 /* rows of a block in which a row is a warp's */
};

/* Launch: block (lanes, rows of a block). */
static inline dim3 smp_row_block(int lanes)
{
    return dim3((unsigned)lanes, lanes == SMP_WARP ? SMP_WARP_ROWS : 1);
}

/* One block per row (or SMP_WARP_ROWS), but never more than fit a grid. */
static inline unsigned smp_row_grid(int64_t rows, int lanes)
{
    return smp_blocks(rows, lanes == SMP_WARP ? SMP_WARP_ROWS : 1, 1 << 30);
}

/* Lanes for rows that are read more than once or not kept in registers: a few accesses each. */
template <typename T> static inline int smp_row_lanes(int64_t columns)
{
    const int64_t packs = columns / smp_pack<T>::N;
    return packs <= 128 ? SMP_WARP : packs <= 1024 ? 128 : packs <= 8192 ? 256 : SMP_ROW_MAX_LANES;
}

/* The first row of this thread's group and the distance to its next. */
__device__ __forceinline__ int64_t smp_first_row()
{
    return (int64_t)blockIdx.x * blockDim.y + threadIdx.y;
}
__device__ __forceinline__ int64_t smp_row_stride()
{
    return (int64_t)gridDim.x * blockDim.y;
}

/* Over the lanes of a row, on every lane; ONE_WARP: blockDim.x is SMP_WARP. scratch: [32] shared
 * floats, used by rows of a block only. */
template <bool ONE_WARP> __device__ __forceinline__ float smp_row_sum(float x, float *scratch)
{
    return ONE_WARP ? smp_warp_sum(x) : smp_block_sum(x, scratch);
}
template <bool ONE_WARP> __device__ __forceinline__ float smp_row_max(float x, float *scratch)
{
    return ONE_WARP ? smp_warp_max(x) : smp_block_max(x, scratch);
}

/* A row of `columns` values inside an array whose start is 16-byte aligned: single values up to the
 * first 16-byte boundary, packs, single values. Depends on the row's place in the array, not on the
 * address. */
struct smp_row_parts {
    int64_t head; /* columns before the first pack */
    int64_t packs;
    int64_t tail; /* first column after the last pack */
};
template <typename T>
__device__ __forceinline__ smp_row_parts smp_split_row(int64_t row, int64_t columns)
{
    constexpr int N = smp_pack<T>::N;
    const int64_t past = row * columns % N, gap = past ? N - past : 0;
    smp_row_parts parts;
    parts.head = gap < columns ? gap : columns;
    parts.packs = (columns - parts.head) / N;
    parts.tail = parts.head + parts.packs * N;
    return parts;
}

/* exp(x) for x <= 0 where 16 bits are what comes out of it: two operations; a relative error of
 * 2e-5 at worst. For floats the accurate one. */
template <typename T> __device__ __forceinline__ float smp_exp(float x)
{
    return __expf(x);
}
template <> __device__ __forceinline__ float smp_exp<float>(float x)
{
    return expf(x);
}

/* The maximum of some values and the sum of exp(value - maximum), made in one pass: when a larger
 * value comes, the sum so far is scaled (Milakov and Gimelshein, "Online normalizer calculation for
 * softmax", 2018). The maximum starts at the least finite number, so that -inf adds 0. */
struct smp_normalizer {
    float max, sum;
};

template <typename T, int COUNT>
__device__ __forceinline__ void smp_normalizer_add(smp_normalizer &z, const T *value)
{
    float x[COUNT], max = z.max, sum = 0;
    for (int k = 0; k < COUNT; k++) {
        x[k] = smp_float(value[k]);
        max = fmaxf(max, x[k]);
    }
    if (max > z.max) {
        z.sum *= smp_exp<T>(z.max - max);
        z.max = max;
    }
    for (int k = 0; k < COUNT; k++)
        sum += smp_exp<T>(x[k] - max);
    z.sum += sum;
}

/* The normalizer of a row, on every lane of it. */
template <typename T, bool ONE_WARP>
__device__ __forceinline__ smp_normalizer smp_normalize_row(const T *x, int64_t row,
                                                            int64_t columns, float *scratch)
{
    const smp_row_parts parts = smp_split_row<T>(row, columns);
    smp_normalizer z = {-3.402823466e38f, 0.0f};
    x += row * columns;
    for (int64_t c = threadIdx.x; c < parts.head; c += blockDim.x)
        smp_normalizer_add<T, 1>(z, x + c);
    for (int64_t p = threadIdx.x; p < parts.packs; p += blockDim.x) {
        const smp_pack<T> pack = smp_load16(x + parts.head + p * smp_pack<T>::N);
        smp_normalizer_add<T, smp_pack<T>::N>(z, pack.v);
    }
    for (int64_t c = parts.tail + threadIdx.x; c < columns; c += blockDim.x)
        smp_normalizer_add<T, 1>(z, x + c);
    const float max = smp_row_max<ONE_WARP>(z.max, scratch);
    const float sum = smp_row_sum<ONE_WARP>(z.sum * smp_exp<float>(z.max - max), scratch);
    return smp_normalizer{max, sum};
}

#endif

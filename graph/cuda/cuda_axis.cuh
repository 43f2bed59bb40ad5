/* Sums along one dimension, [outer][size][inner] -> [outer][inner], times a factor, and their
 * gradient (mean, sum and the global pools).
 *
 * Where the dimension is the last, a warp or a block adds a row (cuda_row.cuh). Elsewhere a
 * block takes 32 columns of a slab, one to a lane; its warps add every 8th row each, then the 8
 * partial sums are added in their order. Which block does it does not matter. The gradient spreads
 * dout over the dimension, 16 bytes at a time where rows allow it. */
#ifndef SMP_GRAPH_CUDA_CUDA_AXIS_CUH
#define SMP_GRAPH_CUDA_CUDA_AXIS_CUH

#include "graph/cuda/cuda_elementwise.cuh"
#include "graph/cuda/cuda_row.cuh"

enum { SMP_AXIS_WARPS = SMP_BLOCK / SMP_WARP };

template <typename T, bool ONE_WARP>
__global__ void __launch_bounds__(SMP_ROW_MAX_LANES)
    smp_axis_sum_rows(const T *x, T *out, int64_t rows, int64_t columns,
                      float factor) // x (rows, columns), out (rows)
{
    __shared__ float scratch[32];
    constexpr int N = smp_pack<T>::N;
    for (int64_t r = smp_first_row(); r < rows; r += smp_row_stride()) {
        const smp_row_parts parts = smp_split_row<T>(r, columns);
        const T *row = x + r * columns;
        float sum = 0;
        for (int64_t c = threadIdx.x; c < parts.head; c += blockDim.x)
            sum += smp_float(row[c]);
        for (int64_t p = threadIdx.x; p < parts.packs; p += blockDim.x) {
            const smp_pack<T> pack = smp_load16(row + parts.head + p * N);
            for (int k = 0; k < N; k++)
                sum += smp_float(pack.v[k]);
        }
        for (int64_t c = parts.tail + threadIdx.x; c < columns; c += blockDim.x)
            sum += smp_float(row[c]);
        sum = smp_row_sum<ONE_WARP>(sum, scratch);
        if (threadIdx.x == 0)
            out[r] = smp_from<T>(sum * factor);
    }
}

template <typename T>
__global__ void __launch_bounds__(SMP_BLOCK)
    smp_axis_sum_columns(const T *x, T *out, int64_t outer, int64_t size, int64_t inner,
                         float factor) // x (outer, size, inner), out (outer, inner)
{
    __shared__ float part[SMP_AXIS_WARPS][SMP_WARP];
    const int lane = threadIdx.x % SMP_WARP, warp = threadIdx.x / SMP_WARP;
    const int64_t tiles = (inner + SMP_WARP - 1) / SMP_WARP;
    for (int64_t item = blockIdx.x; item < outer * tiles; item += gridDim.x) {
        const int64_t slab = item / tiles, column = item % tiles * SMP_WARP + lane;
        const T *top = x + slab * size * inner + column;
        float sum = 0;
        for (int64_t i = warp; column < inner && i < size; i += SMP_AXIS_WARPS)
            sum += smp_float(top[i * inner]);
        part[warp][lane] = sum;
        __syncthreads();
        if (warp == 0 && column < inner) {
            for (int w = 1; w < SMP_AXIS_WARPS; w++)
                sum += part[w][lane];
            out[slab * inner + column] = smp_from<T>(sum * factor);
        }
        __syncthreads();
    }
}

template <int W, typename T>
__global__ void __launch_bounds__(SMP_BLOCK)
    smp_axis_spread_rows(const T *dout, T *dx, int64_t rows, int64_t size, int64_t inner,
                         float factor) // dout (rows / size, inner), dx (rows, inner), W | inner
{
    const int64_t columns = inner / W;
    for (int64_t i = smp_thread(); i < rows * columns; i += smp_threads()) {
        const int64_t row = i / columns, column = i - row * columns;
        float value[W];
        smp_read<W>(value, dout + row / size * inner + column * W);
        for (int k = 0; k < W; k++)
            value[k] *= factor;
        smp_write<W>(dx + i * W, value);
    }
}

/* out = factor * sums of in[0] */
template <typename T>
static smp_status smp_axis_sum(const smp_op_call *call, int64_t outer, int64_t size, int64_t inner,
                               float factor)
{
    const smp_cuda *cuda = smp_cuda_of(call);
    const T *x = static_cast<const T *>(call->in[0]);
    T *out = static_cast<T *>(call->out);
    if (inner == 1) {
        const int lanes = smp_row_lanes<T>(size);
        const auto kernel =
            lanes == SMP_WARP ? smp_axis_sum_rows<T, true> : smp_axis_sum_rows<T, false>;
        SMP_LAUNCH(kernel, smp_row_grid(outer, lanes), smp_row_block(lanes), 0, cuda->stream, x,
                   out, outer, size, factor);
    } else {
        const int64_t tiles = outer * ((inner + SMP_WARP - 1) / SMP_WARP);
        SMP_LAUNCH(smp_axis_sum_columns<T>, smp_grid(cuda, tiles * SMP_BLOCK), SMP_BLOCK, 0,
                   cuda->stream, x, out, outer, size, inner, factor);
    }
    return smp__cuda_launched(call->op->kind->name);
}

/* din[0] = factor * dout, along the dimension; nothing if it is not wanted */
template <typename T>
static smp_status smp_axis_spread(const smp_op_call *call, int64_t outer, int64_t size,
                                  int64_t inner, float factor)
{
    const smp_cuda *cuda = smp_cuda_of(call);
    const int width = smp_width<T>(inner);
    const auto kernel =
        width > 1 ? smp_axis_spread_rows<smp_pack<T>::N, T> : smp_axis_spread_rows<1, T>;
    if (!call->din[0])
        return SMP_OK;
    SMP_LAUNCH(kernel, smp_grid(cuda, outer * size * (inner / width)), SMP_BLOCK, 0, cuda->stream,
               (const T *)call->dout, (T *)call->din[0], outer * size, size, inner, factor);
    return smp__cuda_launched(call->op->kind->name);
}

#endif

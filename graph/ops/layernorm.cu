/* layernorm on a GPU, the formulas of layernorm.c. Forward and input gradient read and write each
 * value once: a row stays in the registers of a warp or of a block. Rows of odd width, and such as
 * no block can hold, take a path that reads a row again from the caches.
 *
 * Weight gradients in two stages: blocks sum tiles of columns over a part of the rows, then the
 * parts are added in order. The parts depend on the sizes alone (cuda_needs), so the result does
 * too. Bound by memory: O(rows * columns). */
#include "graph/cuda/cuda_row.cuh"
#include "graph/ops/ops.h"

namespace
{
enum { EPS };
enum { MAX_LANES = 1024, MAX_PACKS = 4 /* of a lane */ };
enum { TILE_LANES = 32, TILE_ROWS = SMP_BLOCK / TILE_LANES, FOLD_ROWS = 32 };

struct alignas(8) row_stats {
    float mean, rstd;
};

/* How the rows of a micro-batch are shared out. */
struct layout {
    int64_t rows, columns;
    int lanes; // of a row, and
    int each;  // how many packs each of them holds at most; 0: the row is not held
    cudaStream_t stream;
};
} // namespace

/* N weights that belong to one pack. */
template <int N> struct pack_weights {
    float v[N];
    __device__ __forceinline__ explicit pack_weights(const float *from)
    {
        for (int q = 0; q < N; q += smp_pack<float>::N) {
            const smp_pack<float> four = smp_load16(from + q);
            for (int k = 0; k < smp_pack<float>::N; k++)
                v[q + k] = four.v[k];
        }
    }
};

template <typename T, int LANES, int PACKS>
__global__ void __launch_bounds__(LANES == SMP_WARP ? SMP_BLOCK : LANES)
    layernorm_forward(const T *in, const float *weight, const float *bias, T *out, row_stats *stats,
                      int64_t rows, int columns, float eps) // (rows, columns), (columns), (rows)
{
    __shared__ float scratch[32];
    constexpr bool ONE_WARP = LANES == SMP_WARP;
    constexpr int N = smp_pack<T>::N;
    const int packs = columns / N;
    for (int64_t r = smp_first_row(); r < rows; r += smp_row_stride()) {
        smp_pack<T> x[PACKS] = {};
        float sum = 0, squares = 0;
        for (int i = 0; i < PACKS; i++) {
            const int p = threadIdx.x + i * blockDim.x;
            if (p < packs)
                x[i] = smp_load16(in + r * columns + p * N);
        }
        for (int i = 0; i < PACKS; i++)
            for (int k = 0; k < N; k++)
                sum += smp_float(x[i].v[k]);
        const float mean = smp_row_sum<ONE_WARP>(sum, scratch) / (float)columns;
        for (int i = 0; i < PACKS; i++) {
            const int p = threadIdx.x + i * blockDim.x;
            for (int k = 0; k < N; k++) {
                const float d = smp_float(x[i].v[k]) - mean;
                squares += p < packs ? d * d : 0.0f;
            }
        }
        const float variance = smp_row_sum<ONE_WARP>(squares, scratch) / (float)columns;
        const float rstd = 1.0f / sqrtf(variance + eps);
        if (threadIdx.x == 0)
            stats[r] = row_stats{mean, rstd};
        for (int i = 0; i < PACKS; i++) {
            const int p = threadIdx.x + i * blockDim.x;
            if (p >= packs)
                break;
            const pack_weights<N> w(weight + p * N), b(bias + p * N);
            for (int k = 0; k < N; k++)
                x[i].v[k] = smp_from<T>((smp_float(x[i].v[k]) - mean) * rstd * w.v[k] + b.v[k]);
            smp_store(out + r * columns + p * N, x[i]);
        }
    }
}

template <typename T, int LANES, int PACKS>
__global__ void __launch_bounds__(LANES == SMP_WARP ? SMP_BLOCK : LANES)
    layernorm_backward(const T *in, const float *weight, const row_stats *stats, const T *dout,
                       T *din, int64_t rows, int columns)
{
    __shared__ float scratch[32];
    constexpr bool ONE_WARP = LANES == SMP_WARP;
    constexpr int N = smp_pack<T>::N;
    const int packs = columns / N;
    for (int64_t r = smp_first_row(); r < rows; r += smp_row_stride()) {
        smp_pack<T> x[PACKS] = {}, dy[PACKS] = {};
        const row_stats s = stats[r];
        float sum = 0, dot = 0; // of g = dy * weight, of g * (x - mean)
        for (int i = 0; i < PACKS; i++) {
            const int p = threadIdx.x + i * blockDim.x;
            if (p >= packs)
                continue;
            x[i] = smp_load16(in + r * columns + p * N);
            dy[i] = smp_load16(dout + r * columns + p * N);
            const pack_weights<N> w(weight + p * N);
            for (int k = 0; k < N; k++) {
                const float g = smp_float(dy[i].v[k]) * w.v[k];
                sum += g;
                dot += g * (smp_float(x[i].v[k]) - s.mean);
            }
        }
        const float mean_g = smp_row_sum<ONE_WARP>(sum, scratch) / (float)columns;
        const float mean_gx = smp_row_sum<ONE_WARP>(dot, scratch) * s.rstd / (float)columns;
        for (int i = 0; i < PACKS; i++) {
            const int p = threadIdx.x + i * blockDim.x;
            if (p >= packs)
                break;
            const pack_weights<N> w(weight + p * N);
            for (int k = 0; k < N; k++) {
                const float xhat = (smp_float(x[i].v[k]) - s.mean) * s.rstd;
                const float g = smp_float(dy[i].v[k]) * w.v[k];
                x[i].v[k] = smp_from<T>(s.rstd * (g - mean_g - xhat * mean_gx));
            }
            smp_store(din + r * columns + p * N, x[i]);
        }
    }
}

/* The same for rows of any width, which are read again from the caches. */
template <typename T, bool ONE_WARP>
__global__ void __launch_bounds__(SMP_BLOCK)
    layernorm_forward_any(const T *in, const float *weight, const float *bias, T *out,
                          row_stats *stats, int64_t rows, int64_t columns, float eps)
{
    __shared__ float scratch[32];
    for (int64_t r = smp_first_row(); r < rows; r += smp_row_stride()) {
        const T *x = in + r * columns;
        float sum = 0, squares = 0;
        for (int64_t c = threadIdx.x; c < columns; c += blockDim.x)
            sum += smp_float(x[c]);
        const float mean = smp_row_sum<ONE_WARP>(sum, scratch) / (float)columns;
        for (int64_t c = threadIdx.x; c < columns; c += blockDim.x)
            squares += (smp_float(x[c]) - mean) * (smp_float(x[c]) - mean);
        const float variance = smp_row_sum<ONE_WARP>(squares, scratch) / (float)columns;
        const float rstd = 1.0f / sqrtf(variance + eps);
        if (threadIdx.x == 0)
            stats[r] = row_stats{mean, rstd};
        for (int64_t c = threadIdx.x; c < columns; c += blockDim.x)
            out[r * columns + c] =
                smp_from<T>((smp_float(x[c]) - mean) * rstd * weight[c] + bias[c]);
    }
}

template <typename T, bool ONE_WARP>
__global__ void __launch_bounds__(SMP_BLOCK)
    layernorm_backward_any(const T *in, const float *weight, const row_stats *stats, const T *dout,
                           T *din, int64_t rows, int64_t columns)
{
    __shared__ float scratch[32];
    for (int64_t r = smp_first_row(); r < rows; r += smp_row_stride()) {
        const T *x = in + r * columns, *dy = dout + r * columns;
        const row_stats s = stats[r];
        float sum = 0, dot = 0;
        for (int64_t c = threadIdx.x; c < columns; c += blockDim.x) {
            const float g = smp_float(dy[c]) * weight[c];
            sum += g;
            dot += g * (smp_float(x[c]) - s.mean);
        }
        const float mean_g = smp_row_sum<ONE_WARP>(sum, scratch) / (float)columns;
        const float mean_gx = smp_row_sum<ONE_WARP>(dot, scratch) * s.rstd / (float)columns;
        for (int64_t c = threadIdx.x; c < columns; c += blockDim.x) {
            const float xhat = (smp_float(x[c]) - s.mean) * s.rstd;
            din[r * columns + c] =
                smp_from<T>(s.rstd * (smp_float(dy[c]) * weight[c] - mean_g - xhat * mean_gx));
        }
    }
}

/* Sums over one part of the rows, N columns to a thread: weight gradients at part[2 y], bias
 * gradients at part[2 y + 1] for y = blockIdx.y of gridDim.y parts. */
template <typename T, int N>
__global__ void __launch_bounds__(SMP_BLOCK)
    layernorm_weight_parts(const T *in, const T *dout, const row_stats *stats, float *part,
                           int64_t rows, int64_t columns) // part: (parts, 2, columns)
{
    __shared__ float sums[TILE_ROWS][TILE_LANES * N];
    const int64_t tile = (int64_t)blockIdx.x * (TILE_LANES * N);
    const int64_t column = tile + threadIdx.x * N;
    const int64_t begin = rows * blockIdx.y / gridDim.y, end = rows * (blockIdx.y + 1) / gridDim.y;
    float total[2][N] = {};
    for (int64_t r = begin + threadIdx.y; r < end && column < columns; r += TILE_ROWS) {
        const smp_pack<T, N> x = smp_load<N>(in + r * columns + column);
        const smp_pack<T, N> dy = smp_load<N>(dout + r * columns + column);
        const row_stats s = stats[r];
        for (int k = 0; k < N; k++) {
            total[0][k] += smp_float(dy.v[k]) * ((smp_float(x.v[k]) - s.mean) * s.rstd);
            total[1][k] += smp_float(dy.v[k]);
        }
    }
    const int thread = threadIdx.y * TILE_LANES + threadIdx.x;
    for (int which = 0; which < 2; which++) {
        for (int k = 0; k < N; k++)
            sums[threadIdx.y][threadIdx.x * N + k] = total[which][k];
        __syncthreads();
        if (thread < TILE_LANES * N && tile + thread < columns) {
            float sum = 0;
            for (int y = 0; y < TILE_ROWS; y++)
                sum += sums[y][thread];
            part[((int64_t)blockIdx.y * 2 + which) * columns + tile + thread] = sum;
        }
        __syncthreads();
    }
}

/* Adds the parts to the accumulator of the weight (blockIdx.y 0) or the bias (1). */
static __global__ void __launch_bounds__(TILE_LANES *FOLD_ROWS)
    layernorm_weight_sum(const float *part, int parts, float *dweight, float *dbias,
                         int64_t columns) // (parts, 2, columns), (columns)
{
    __shared__ float sums[FOLD_ROWS][TILE_LANES];
    const int64_t column = (int64_t)blockIdx.x * TILE_LANES + threadIdx.x;
    float sum = 0;
    for (int p = threadIdx.y; p < parts && column < columns; p += FOLD_ROWS)
        sum += part[((int64_t)p * 2 + blockIdx.y) * columns + column];
    sums[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y > 0 || column >= columns)
        return;
    for (int y = 1; y < FOLD_ROWS; y++)
        sum += sums[y][threadIdx.x];
    (blockIdx.y == 0 ? dweight : dbias)[column] += sum;
}

template <typename T> static layout layout_of(const smp_op_call *call)
{
    const smp_tensor *in = smp__in(call->graph, call->op, 0);
    layout l;
    l.columns = smp__columns(in);
    l.rows = smp__count(in, call->batch) / l.columns;
    l.stream = smp_cuda_of(call)->stream;
    const int64_t packs = l.columns / smp_pack<T>::N;
    if (l.columns % smp_pack<T>::N != 0 || packs > MAX_LANES * MAX_PACKS) {
        l.each = 0;
        l.lanes = l.columns <= 512 ? SMP_WARP : SMP_BLOCK;
        return l;
    }
    const int64_t lanes = (packs + MAX_PACKS - 1) / MAX_PACKS;
    l.lanes = (int)((lanes + SMP_WARP - 1) / SMP_WARP * SMP_WARP);
    l.each = (int)((packs + l.lanes - 1) / l.lanes);
    return l;
}

template <typename T> static smp_status forward(const smp_op_call *call)
{
    const layout l = layout_of<T>(call);
    const unsigned grid = smp_row_grid(l.rows, l.lanes);
    const float eps = (float)call->op->attr[EPS].f;
    const T *in = static_cast<const T *>(call->in[0]);
    T *out = static_cast<T *>(call->out);
    row_stats *stats = static_cast<row_stats *>(call->aux);
    if (l.each > 0) {
        const auto kernel = l.lanes > 512        ? layernorm_forward<T, MAX_LANES, 4>
                            : l.lanes > SMP_WARP ? layernorm_forward<T, 512, 4>
                            : l.each == 1        ? layernorm_forward<T, SMP_WARP, 1>
                            : l.each == 2        ? layernorm_forward<T, SMP_WARP, 2>
                                                 : layernorm_forward<T, SMP_WARP, 4>;
        SMP_LAUNCH(kernel, grid, smp_row_block(l.lanes), 0, l.stream, in, call->param[0],
                   call->param[1], out, stats, l.rows, (int)l.columns, eps);
    } else {
        const auto kernel =
            l.lanes == SMP_WARP ? layernorm_forward_any<T, true> : layernorm_forward_any<T, false>;
        SMP_LAUNCH(kernel, grid, smp_row_block(l.lanes), 0, l.stream, in, call->param[0],
                   call->param[1], out, stats, l.rows, l.columns, eps);
    }
    return smp__cuda_launched("layernorm");
}

template <typename T> static smp_status backward_input(const smp_op_call *call)
{
    if (!call->din[0])
        return SMP_OK;
    const layout l = layout_of<T>(call);
    const unsigned grid = smp_row_grid(l.rows, l.lanes);
    const T *in = static_cast<const T *>(call->in[0]);
    const T *dout = reinterpret_cast<const T *>(call->dout);
    T *din = reinterpret_cast<T *>(call->din[0]);
    const row_stats *stats = static_cast<const row_stats *>(call->aux);
    if (l.each > 0) {
        const auto kernel = l.lanes > 512        ? layernorm_backward<T, MAX_LANES, 4>
                            : l.lanes > SMP_WARP ? layernorm_backward<T, 512, 4>
                            : l.each == 1        ? layernorm_backward<T, SMP_WARP, 1>
                            : l.each == 2        ? layernorm_backward<T, SMP_WARP, 2>
                                                 : layernorm_backward<T, SMP_WARP, 4>;
        SMP_LAUNCH(kernel, grid, smp_row_block(l.lanes), 0, l.stream, in, call->param[0], stats,
                   dout, din, l.rows, (int)l.columns);
    } else {
        const auto kernel = l.lanes == SMP_WARP ? layernorm_backward_any<T, true>
                                                : layernorm_backward_any<T, false>;
        SMP_LAUNCH(kernel, grid, smp_row_block(l.lanes), 0, l.stream, in, call->param[0], stats,
                   dout, din, l.rows, l.columns);
    }
    return smp__cuda_launched("layernorm backward");
}

template <typename T> static smp_status backward_weight(const smp_op_call *call)
{
    const layout l = layout_of<T>(call);
    constexpr int N = smp_pack<T>::N;
    const bool packed = l.columns % N == 0;
    const int64_t tile = TILE_LANES * (packed ? N : 1);
    float *part = static_cast<float *>(call->workspace);
    smp_op_needs needs; // made room for as many parts as there shall be
    smp_op_needs_get(call->graph, call->op, call->batch, &needs);
    const int parts = (int)(needs.workspace_bytes / (l.columns * 2 * (int64_t)sizeof *part));
    const auto kernel = packed ? layernorm_weight_parts<T, N> : layernorm_weight_parts<T, 1>;
    SMP_LAUNCH(kernel, dim3((unsigned)((l.columns + tile - 1) / tile), (unsigned)parts),
               dim3(TILE_LANES, TILE_ROWS), 0, l.stream, static_cast<const T *>(call->in[0]),
               reinterpret_cast<const T *>(call->dout), static_cast<const row_stats *>(call->aux),
               part, l.rows, l.columns);
    SMP_LAUNCH(layernorm_weight_sum, dim3((unsigned)((l.columns + TILE_LANES - 1) / TILE_LANES), 2),
               dim3(TILE_LANES, FOLD_ROWS), 0, l.stream, static_cast<const float *>(part), parts,
               call->dparam[0], call->dparam[1], l.columns);
    return smp__cuda_launched("layernorm weight");
}

SMP_CUDA_KERNELS(layernorm) = {
    NULL, NULL, SMP_TYPED(forward), SMP_TYPED(backward_input), SMP_TYPED(backward_weight), NULL};

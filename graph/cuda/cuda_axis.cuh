/* Sums along one dimension, [outer][size][inner] -> [outer][inner], times a factor, and their
 * gradient (mean, sum and the global pools); and sums over all but one, which are gradients of
 * biases (linear, conv2d, bias).
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
    T *out = static_cast<T *>(call->out[0]);
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
               (const T *)call->dout[0], (T *)call->din[0], outer * size, size, inner, factor);
    return smp__cuda_launched(call->op->kind->name);
}

/* out[chunk, c] = sum over the rows of a chunk of x[row, c], or += with ADD. A block takes 32 N
 * columns of one chunk (blockIdx.y): a thread N of them and every eighth row, in order; then the
 * eight sums are added in order. N > 1 needs aligned rows. */
enum {
    SMP_SUM_ROWS = 8,
    SMP_SUM_AHEAD = 4
}; /* rows of threads of a block; that one loads at once */

template <typename T, int N, bool ADD>
__global__ void __launch_bounds__(SMP_WARP *SMP_SUM_ROWS)
    smp_column_sums_kernel(const T *x, float *out, int64_t rows, int64_t columns,
                           int64_t chunk_rows)
{
    __shared__ float part[SMP_SUM_ROWS]
                         [N * (SMP_WARP + 1)]; /* column lane * N + k at k * 33 + lane */
    const int lane = threadIdx.x, row = threadIdx.y;
    const int64_t column = ((int64_t)blockIdx.x * SMP_WARP + lane) * N;
    const int64_t begin = (int64_t)blockIdx.y * chunk_rows;
    const int64_t end = begin + chunk_rows < rows ? begin + chunk_rows : rows;
    float sum[N] = {};
    if (column < columns)
        for (int64_t r = begin + row; r < end; r += SMP_SUM_AHEAD * SMP_SUM_ROWS) {
            smp_pack<T, N> value[SMP_SUM_AHEAD] = {};
            for (int j = 0; j < SMP_SUM_AHEAD; j++)
                if (r + j * SMP_SUM_ROWS < end)
                    value[j] = smp_load<N>(x + (r + j * SMP_SUM_ROWS) * columns + column);
            for (int j = 0; j < SMP_SUM_AHEAD; j++)
                for (int k = 0; k < N; k++)
                    sum[k] += smp_float(value[j].v[k]);
        }
    for (int k = 0; k < N; k++)
        part[row][k * (SMP_WARP + 1) + lane] = sum[k];
    __syncthreads();

    const int local = row * SMP_WARP + lane; /* of the block's columns; N <= SMP_SUM_ROWS */
    const int64_t target = (int64_t)blockIdx.x * SMP_WARP * N + local;
    if (local >= SMP_WARP * N || target >= columns)
        return;
    float total = 0.0f;
    for (int i = 0; i < SMP_SUM_ROWS; i++)
        total += part[i][local % N * (SMP_WARP + 1) + local / N];
    float *to = out + (int64_t)blockIdx.y * columns + target;
    *to = ADD ? *to + total : total;
}

template <typename T, int N, bool ADD>
static smp_status smp_launch_column_sums(const smp_cuda *cuda, const T *x, float *out, int64_t rows,
                                         int64_t columns, int64_t chunks)
{
    const auto kernel = smp_column_sums_kernel<T, N, ADD>;
    const int64_t tiles = (columns + SMP_WARP * N - 1) / (SMP_WARP * N);
    SMP_LAUNCH(kernel, dim3((unsigned)tiles, (unsigned)chunks), dim3(SMP_WARP, SMP_SUM_ROWS), 0,
               cuda->stream, x, out, rows, columns, (rows + chunks - 1) / chunks);
    return smp__cuda_launched("sums of columns");
}

/* to[columns] += column sums of dout (rows, columns), or = (fresh), through the sums of chunks of
 * rows in the workspace (chunks, columns), in an order that the sizes alone decide: dout is read
 * once. */
template <typename T>
static smp_status smp_add_column_sums(const smp_op_call *call, float *to, int64_t rows,
                                      int64_t columns, int64_t chunks)
{
    constexpr int N = smp_pack<T>::N;
    const smp_cuda *cuda = smp_cuda_of(call);
    const T *dout = reinterpret_cast<const T *>(call->dout[0]);
    float *partial = static_cast<float *>(call->workspace);
    if (columns % N == 0)
        SMP_TRY((smp_launch_column_sums<T, N, false>(cuda, dout, partial, rows, columns, chunks)));
    else
        SMP_TRY((smp_launch_column_sums<T, 1, false>(cuda, dout, partial, rows, columns, chunks)));
    return call->fresh
               ? smp_launch_column_sums<float, 1, false>(cuda, partial, to, chunks, columns, 1)
               : smp_launch_column_sums<float, 1, true>(cuda, partial, to, chunks, columns, 1);
}

/* A block takes a plane's place `c`, a thread every SMP_BLOCK-th value of every slab, in order. */
template <typename T>
__global__ void __launch_bounds__(SMP_BLOCK)
    smp_plane_sums_kernel(const T *x, float *to, int64_t outer, int64_t size, int64_t inner)
{
    __shared__ float scratch[SMP_WARP];
    for (int64_t c = blockIdx.x; c < size; c += gridDim.x) {
        float sum = 0.0f;
        for (int64_t b = 0; b < outer; b++)
            for (int64_t i = threadIdx.x; i < inner; i += SMP_BLOCK)
                sum += smp_float(x[(b * size + c) * inner + i]);
        sum = smp_block_sum(sum, scratch);
        if (threadIdx.x == 0)
            to[c] += sum;
    }
}

/* to[size] += the sums of dout (outer, size, inner) over all else. */
template <typename T>
static smp_status smp_add_plane_sums(const smp_op_call *call, float *to, int64_t outer,
                                     int64_t size, int64_t inner)
{
    const smp_cuda *cuda = smp_cuda_of(call);
    SMP_LAUNCH(smp_plane_sums_kernel<T>, smp_grid(cuda, size * SMP_BLOCK), SMP_BLOCK, 0,
               cuda->stream, reinterpret_cast<const T *>(call->dout[0]), to, outer, size, inner);
    return smp__cuda_launched(call->op->kind->name);
}

#endif

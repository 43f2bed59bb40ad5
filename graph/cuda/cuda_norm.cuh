/* Rows normalised and weighed, (x - mean) * rstd * weight + bias over the last dimension: what
 * layernorm and, CENTERED false, rmsnorm are made of, which has neither mean nor bias. The formulas
 * are those of graph/ops/layernorm.c and rmsnorm.c.
 *
 * Forward and input gradient read and write each value once: a row stays in the registers of a warp
 * or of a block. Rows of odd width, and such as no block can hold, take a path that reads a row
 * again from the caches.
 *
 * Weight gradients in two stages: blocks sum tiles of columns over a part of the rows, then the
 * parts are added in order. The parts depend on the sizes alone (smp__weight_parts), so the result
 * does too. Bound by memory: O(rows * columns). */
#ifndef SMP_GRAPH_CUDA_CUDA_NORM_CUH
#define SMP_GRAPH_CUDA_CUDA_NORM_CUH

#include "graph/cuda/cuda_row.cuh"

enum { SMP_NORM_LANES = 1024, SMP_NORM_PACKS = 4 /* of a lane */ };
enum { SMP_TILE_LANES = 32, SMP_TILE_ROWS = SMP_BLOCK / SMP_TILE_LANES, SMP_FOLD_ROWS = 32 };

/* What forward saves of a row, as the operators' row_stats. */
template <bool CENTERED> struct alignas(8) smp_norm_stats {
    float mean, rstd;
    static __device__ __forceinline__ smp_norm_stats make(float mean, float rstd)
    {
        return smp_norm_stats{mean, rstd};
    }
};
template <> struct alignas(4) smp_norm_stats<false> {
    static constexpr float mean = 0; /* x - mean is x, bit for bit */
    float rstd;
    static __device__ __forceinline__ smp_norm_stats make(float, float rstd)
    {
        return smp_norm_stats{rstd};
    }
};

/* The tensors of a call: in, out, dout, din, plus (rows, columns), weight, bias (columns), and
 * stats (rows). plus, which is added to din as if in a second pass, may be NULL, or din. */
template <typename T, bool CENTERED> struct smp_norm {
    const T *in;
    const float *weight, *bias;
    T *out;
    smp_norm_stats<CENTERED> *stats;
    const T *dout;
    T *din;
    const T *plus;
    int64_t rows, columns;
    float eps;
};

/* N weights that belong to one pack; `from` NULL: zeros. */
template <int N> struct smp_pack_weights {
    float v[N] = {};
    __device__ __forceinline__ smp_pack_weights(const float *from, int64_t at)
    {
        for (int q = 0; from && q < N; q += smp_pack<float>::N) {
            const smp_pack<float> four = smp_load16(from + at + q);
            for (int k = 0; k < smp_pack<float>::N; k++)
                v[q + k] = four.v[k];
        }
    }
};

/* Says that the values may be others by now: what was made of them is made again where it is
 * wanted, and not kept in registers meanwhile, where floats take twice the room of a pack. */
template <typename T> __device__ __forceinline__ void smp_hold(smp_pack<T> &values)
{
    uint32_t(&word)[4] = reinterpret_cast<uint32_t(&)[4]>(values);
    asm volatile("" : "+r"(word[0]), "+r"(word[1]), "+r"(word[2]), "+r"(word[3]));
}

template <bool CENTERED>
__device__ __forceinline__ float smp_normalized(float x, smp_norm_stats<CENTERED> s, float weight,
                                                float bias)
{
    const float y = (x - s.mean) * s.rstd * weight;
    return CENTERED ? y + bias : y;
}

/* From g = dy * weight, and its means over the row: of g, and of g times x normalised. */
template <bool CENTERED>
__device__ __forceinline__ float smp_norm_gradient(float x, smp_norm_stats<CENTERED> s, float g,
                                                   float mean_g, float mean_gx)
{
    const float xhat = (x - s.mean) * s.rstd;
    return s.rstd * ((CENTERED ? g - mean_g : g) - xhat * mean_gx);
}

/* The mean over a row from the lanes' shares; not asked for unless WANTED. */
template <bool WANTED, bool ONE_WARP>
__device__ __forceinline__ float smp_row_mean(float sum, int64_t columns, float *scratch)
{
    return WANTED ? smp_row_sum<ONE_WARP>(sum, scratch) / (float)columns : 0.0f;
}

template <typename T, bool CENTERED, int LANES, int PACKS>
__global__ void __launch_bounds__(LANES == SMP_WARP ? SMP_BLOCK : LANES)
    smp_norm_forward_held(smp_norm<T, CENTERED> a)
{
    __shared__ float scratch[32];
    constexpr bool ONE_WARP = LANES == SMP_WARP;
    constexpr int N = smp_pack<T>::N;
    const int columns = (int)a.columns, packs = columns / N;
    for (int64_t r = smp_first_row(); r < a.rows; r += smp_row_stride()) {
        smp_pack<T> x[PACKS] = {};
        float sum = 0, squares = 0;
        for (int i = 0; i < PACKS; i++) {
            const int p = threadIdx.x + i * blockDim.x;
            if (p < packs)
                x[i] = smp_load16(a.in + r * columns + p * N);
        }
        for (int i = 0; i < PACKS; i++)
            for (int k = 0; k < N; k++)
                sum += smp_float(x[i].v[k]);
        const float mean = smp_row_mean<CENTERED, ONE_WARP>(sum, columns, scratch);
        for (int i = 0; i < PACKS; i++) {
            const int p = threadIdx.x + i * blockDim.x;
            smp_hold(x[i]);
            for (int k = 0; k < N; k++) {
                const float d = smp_float(x[i].v[k]) - mean;
                squares += p < packs ? d * d : 0.0f;
            }
        }
        const float variance = smp_row_mean<true, ONE_WARP>(squares, columns, scratch);
        const auto s = smp_norm_stats<CENTERED>::make(mean, 1.0f / sqrtf(variance + a.eps));
        if (threadIdx.x == 0)
            a.stats[r] = s;
        for (int i = 0; i < PACKS; i++) {
            const int p = threadIdx.x + i * blockDim.x;
            if (p >= packs)
                break;
            smp_hold(x[i]);
            const smp_pack_weights<N> w(a.weight, p * N), b(a.bias, p * N);
            for (int k = 0; k < N; k++)
                x[i].v[k] =
                    smp_from<T>(smp_normalized<CENTERED>(smp_float(x[i].v[k]), s, w.v[k], b.v[k]));
            smp_store(a.out + r * columns + p * N, x[i]);
        }
    }
}

template <typename T, bool CENTERED, int LANES, int PACKS>
__global__ void __launch_bounds__(LANES == SMP_WARP ? SMP_BLOCK : LANES)
    smp_norm_backward_held(smp_norm<T, CENTERED> a)
{
    __shared__ float scratch[32];
    constexpr bool ONE_WARP = LANES == SMP_WARP;
    constexpr int N = smp_pack<T>::N;
    const int columns = (int)a.columns, packs = columns / N;
    for (int64_t r = smp_first_row(); r < a.rows; r += smp_row_stride()) {
        smp_pack<T> x[PACKS] = {}, dy[PACKS] = {};
        const smp_norm_stats<CENTERED> s = a.stats[r];
        float sum = 0, dot = 0; // of g = dy * weight, of g * (x - mean)
        for (int i = 0; i < PACKS; i++) {
            const int p = threadIdx.x + i * blockDim.x;
            if (p >= packs)
                continue;
            x[i] = smp_load16(a.in + r * columns + p * N);
            dy[i] = smp_load16(a.dout + r * columns + p * N);
            const smp_pack_weights<N> w(a.weight, p * N);
            for (int k = 0; k < N; k++) {
                const float g = smp_float(dy[i].v[k]) * w.v[k];
                sum += g;
                dot += g * (smp_float(x[i].v[k]) - s.mean);
            }
        }
        const float mean_g = smp_row_mean<CENTERED, ONE_WARP>(sum, columns, scratch);
        const float mean_gx = smp_row_sum<ONE_WARP>(dot, scratch) * s.rstd / (float)columns;
        for (int i = 0; i < PACKS; i++) {
            const int p = threadIdx.x + i * blockDim.x;
            if (p >= packs)
                break;
            smp_hold(x[i]);
            smp_hold(dy[i]);
            const smp_pack_weights<N> w(a.weight, p * N);
            for (int k = 0; k < N; k++)
                x[i].v[k] = smp_from<T>(smp_norm_gradient<CENTERED>(
                    smp_float(x[i].v[k]), s, smp_float(dy[i].v[k]) * w.v[k], mean_g, mean_gx));
            if (a.plus) { /* rounded as if in two passes */
                const smp_pack<T, N> more = smp_load16(a.plus + r * columns + p * N);
                for (int k = 0; k < N; k++)
                    x[i].v[k] = smp_from<T>(smp_float(more.v[k]) + smp_float(x[i].v[k]));
            }
            smp_store(a.din + r * columns + p * N, x[i]);
        }
    }
}

/* The same for rows of any width, which are read again from the caches. */
template <typename T, bool CENTERED, bool ONE_WARP>
__global__ void __launch_bounds__(SMP_BLOCK) smp_norm_forward_any(smp_norm<T, CENTERED> a)
{
    __shared__ float scratch[32];
    for (int64_t r = smp_first_row(); r < a.rows; r += smp_row_stride()) {
        const T *x = a.in + r * a.columns;
        float sum = 0, squares = 0;
        for (int64_t c = threadIdx.x; CENTERED && c < a.columns; c += blockDim.x)
            sum += smp_float(x[c]);
        const float mean = smp_row_mean<CENTERED, ONE_WARP>(sum, a.columns, scratch);
        for (int64_t c = threadIdx.x; c < a.columns; c += blockDim.x)
            squares += (smp_float(x[c]) - mean) * (smp_float(x[c]) - mean);
        const float variance = smp_row_mean<true, ONE_WARP>(squares, a.columns, scratch);
        const auto s = smp_norm_stats<CENTERED>::make(mean, 1.0f / sqrtf(variance + a.eps));
        if (threadIdx.x == 0)
            a.stats[r] = s;
        for (int64_t c = threadIdx.x; c < a.columns; c += blockDim.x)
            a.out[r * a.columns + c] = smp_from<T>(smp_normalized<CENTERED>(
                smp_float(x[c]), s, a.weight[c], CENTERED ? a.bias[c] : 0.0f));
    }
}

template <typename T, bool CENTERED, bool ONE_WARP>
__global__ void __launch_bounds__(SMP_BLOCK) smp_norm_backward_any(smp_norm<T, CENTERED> a)
{
    __shared__ float scratch[32];
    for (int64_t r = smp_first_row(); r < a.rows; r += smp_row_stride()) {
        const T *x = a.in + r * a.columns, *dy = a.dout + r * a.columns;
        const smp_norm_stats<CENTERED> s = a.stats[r];
        float sum = 0, dot = 0;
        for (int64_t c = threadIdx.x; c < a.columns; c += blockDim.x) {
            const float g = smp_float(dy[c]) * a.weight[c];
            sum += g;
            dot += g * (smp_float(x[c]) - s.mean);
        }
        const float mean_g = smp_row_mean<CENTERED, ONE_WARP>(sum, a.columns, scratch);
        const float mean_gx = smp_row_sum<ONE_WARP>(dot, scratch) * s.rstd / (float)a.columns;
        for (int64_t c = threadIdx.x; c < a.columns; c += blockDim.x) {
            const T gradient = smp_from<T>(smp_norm_gradient<CENTERED>(
                smp_float(x[c]), s, smp_float(dy[c]) * a.weight[c], mean_g, mean_gx));
            const int64_t at = r * a.columns + c;
            a.din[at] =
                a.plus ? smp_from<T>(smp_float(a.plus[at]) + smp_float(gradient)) : gradient;
        }
    }
}

/* Sums over one part of the rows, N columns to a thread: of y = blockIdx.y of gridDim.y parts,
 * weight gradients, and bias gradients if there is a bias. part: (parts, 2 or 1, columns) */
template <typename T, bool CENTERED, int N>
__global__ void __launch_bounds__(SMP_BLOCK)
    smp_norm_weight_parts(smp_norm<T, CENTERED> a, float *part)
{
    constexpr int SUMS = CENTERED ? 2 : 1;
    __shared__ float sums[SMP_TILE_ROWS][SMP_TILE_LANES * N];
    const int64_t tile = (int64_t)blockIdx.x * (SMP_TILE_LANES * N);
    const int64_t column = tile + threadIdx.x * N;
    const int64_t begin = a.rows * blockIdx.y / gridDim.y,
                  end = a.rows * (blockIdx.y + 1) / gridDim.y;
    float total[SUMS][N] = {};
    for (int64_t r = begin + threadIdx.y; r < end && column < a.columns; r += SMP_TILE_ROWS) {
        const smp_pack<T, N> x = smp_load<N>(a.in + r * a.columns + column);
        const smp_pack<T, N> dy = smp_load<N>(a.dout + r * a.columns + column);
        const smp_norm_stats<CENTERED> s = a.stats[r];
        for (int k = 0; k < N; k++) {
            total[0][k] += smp_float(dy.v[k]) * ((smp_float(x.v[k]) - s.mean) * s.rstd);
            if (CENTERED)
                total[SUMS - 1][k] += smp_float(dy.v[k]);
        }
    }
    const int thread = threadIdx.y * SMP_TILE_LANES + threadIdx.x;
    for (int which = 0; which < SUMS; which++) {
        for (int k = 0; k < N; k++)
            sums[threadIdx.y][threadIdx.x * N + k] = total[which][k];
        __syncthreads();
        if (thread < SMP_TILE_LANES * N && tile + thread < a.columns) {
            float sum = 0;
            for (int y = 0; y < SMP_TILE_ROWS; y++)
                sum += sums[y][thread];
            part[((int64_t)blockIdx.y * SUMS + which) * a.columns + tile + thread] = sum;
        }
        __syncthreads();
    }
}

/* Adds the parts to the accumulator of the weight (blockIdx.y 0) or the bias (1); fresh: to
 * nothing. */
static __global__ void __launch_bounds__(SMP_TILE_LANES *SMP_FOLD_ROWS)
    smp_norm_weight_sum(const float *part, int parts, float *dweight, float *dbias, int64_t columns,
                        bool fresh) // (parts, gridDim.y, columns), (columns)
{
    __shared__ float sums[SMP_FOLD_ROWS][SMP_TILE_LANES];
    const int64_t column = (int64_t)blockIdx.x * SMP_TILE_LANES + threadIdx.x;
    float sum = 0;
    for (int p = threadIdx.y; p < parts && column < columns; p += SMP_FOLD_ROWS)
        sum += part[((int64_t)p * gridDim.y + blockIdx.y) * columns + column];
    sums[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y > 0 || column >= columns)
        return;
    for (int y = 1; y < SMP_FOLD_ROWS; y++)
        sum += sums[y][threadIdx.x];
    float *to = (blockIdx.y == 0 ? dweight : dbias) + column;
    *to = fresh ? sum : *to + sum;
}

/* Host side: a call of an operator with input, output, weight and bias in slots 0 and 1, stats as
 * aux; attribute 0 is eps. */
template <typename T, bool CENTERED>
static smp_norm<T, CENTERED> smp_norm_of(const smp_op_call *call)
{
    const smp_tensor *in = &call->graph->tensor[call->op->in[0]];
    smp_norm<T, CENTERED> a = {};
    a.in = static_cast<const T *>(call->in[0]);
    a.weight = call->param[0];
    a.bias = CENTERED ? call->param[1] : NULL;
    a.out = static_cast<T *>(call->out);
    a.stats = static_cast<smp_norm_stats<CENTERED> *>(call->aux);
    a.dout = reinterpret_cast<const T *>(call->dout);
    a.din = call->din ? reinterpret_cast<T *>(call->din[0]) : NULL;
    a.plus = reinterpret_cast<const T *>(call->plus);
    a.columns = in->shape.dim[in->shape.n_dim - 1];
    a.rows = in->elements / a.columns * call->batch;
    a.eps = (float)call->op->attr[0].f;
    return a;
}

/* How a row is shared out. */
struct smp_norm_layout {
    int lanes; // of a row, and
    int each;  // how many packs each of them holds at most; 0: the row is not held
};

template <typename T> static smp_norm_layout smp_norm_layout_of(int64_t columns)
{
    const int64_t packs = columns / smp_pack<T>::N;
    if (columns % smp_pack<T>::N != 0 || packs > SMP_NORM_LANES * SMP_NORM_PACKS)
        return {columns <= 512 ? SMP_WARP : SMP_BLOCK, 0};
    const int64_t lanes = (packs + SMP_NORM_PACKS - 1) / SMP_NORM_PACKS;
    const int whole = (int)((lanes + SMP_WARP - 1) / SMP_WARP * SMP_WARP);
    return {whole, (int)((packs + whole - 1) / whole)};
}

template <typename T, bool CENTERED> static smp_status smp_norm_forward(const smp_op_call *call)
{
    const smp_norm<T, CENTERED> a = smp_norm_of<T, CENTERED>(call);
    const smp_norm_layout l = smp_norm_layout_of<T>(a.columns);
    const auto kernel = l.each == 0 && l.lanes == SMP_WARP ? smp_norm_forward_any<T, CENTERED, true>
                        : l.each == 0        ? smp_norm_forward_any<T, CENTERED, false>
                        : l.lanes > 512      ? smp_norm_forward_held<T, CENTERED, SMP_NORM_LANES, 4>
                        : l.lanes > SMP_WARP ? smp_norm_forward_held<T, CENTERED, 512, 4>
                        : l.each == 1        ? smp_norm_forward_held<T, CENTERED, SMP_WARP, 1>
                        : l.each == 2        ? smp_norm_forward_held<T, CENTERED, SMP_WARP, 2>
                                             : smp_norm_forward_held<T, CENTERED, SMP_WARP, 4>;
    SMP_LAUNCH(kernel, smp_row_grid(a.rows, l.lanes), smp_row_block(l.lanes), 0,
               smp_cuda_of(call)->stream, a);
    return smp__cuda_launched(call->op->kind->name);
}

template <typename T, bool CENTERED>
static smp_status smp_norm_backward_input(const smp_op_call *call)
{
    const smp_norm<T, CENTERED> a = smp_norm_of<T, CENTERED>(call);
    if (!a.din)
        return SMP_OK;
    const smp_norm_layout l = smp_norm_layout_of<T>(a.columns);
    const auto kernel = l.each == 0 && l.lanes == SMP_WARP
                            ? smp_norm_backward_any<T, CENTERED, true>
                        : l.each == 0   ? smp_norm_backward_any<T, CENTERED, false>
                        : l.lanes > 512 ? smp_norm_backward_held<T, CENTERED, SMP_NORM_LANES, 4>
                        : l.lanes > SMP_WARP ? smp_norm_backward_held<T, CENTERED, 512, 4>
                        : l.each == 1        ? smp_norm_backward_held<T, CENTERED, SMP_WARP, 1>
                        : l.each == 2        ? smp_norm_backward_held<T, CENTERED, SMP_WARP, 2>
                                             : smp_norm_backward_held<T, CENTERED, SMP_WARP, 4>;
    SMP_LAUNCH(kernel, smp_row_grid(a.rows, l.lanes), smp_row_block(l.lanes), 0,
               smp_cuda_of(call)->stream, a);
    return smp__cuda_launched(call->op->kind->name);
}

template <typename T, bool CENTERED>
static smp_status smp_norm_backward_weight(const smp_op_call *call)
{
    constexpr int N = smp_pack<T>::N, SUMS = CENTERED ? 2 : 1;
    const smp_norm<T, CENTERED> a = smp_norm_of<T, CENTERED>(call);
    const cudaStream_t stream = smp_cuda_of(call)->stream;
    const bool packed = a.columns % N == 0;
    const int64_t tile = SMP_TILE_LANES * (packed ? N : 1);
    float *part = static_cast<float *>(call->workspace);
    smp_op_needs needs; // made room for as many parts as there shall be
    smp_op_needs_get(call->graph, call->op, call->batch, &needs);
    const int parts = (int)(needs.workspace_bytes / (a.columns * SUMS * (int64_t)sizeof *part));
    const auto kernel =
        packed ? smp_norm_weight_parts<T, CENTERED, N> : smp_norm_weight_parts<T, CENTERED, 1>;
    SMP_LAUNCH(kernel, dim3((unsigned)((a.columns + tile - 1) / tile), (unsigned)parts),
               dim3(SMP_TILE_LANES, SMP_TILE_ROWS), 0, stream, a, part);
    SMP_LAUNCH(smp_norm_weight_sum,
               dim3((unsigned)((a.columns + SMP_TILE_LANES - 1) / SMP_TILE_LANES), SUMS),
               dim3(SMP_TILE_LANES, SMP_FOLD_ROWS), 0, stream, static_cast<const float *>(part),
               parts, call->dparam[0], CENTERED ? call->dparam[1] : NULL, a.columns, call->fresh);
    return smp__cuda_launched(call->op->kind->name);
}

#endif

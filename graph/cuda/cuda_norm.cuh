/* Rows normalised and weighed, (x - mean) * rstd * weight + bias over the last dimension: what
 * layernorm and, CENTERED false, rmsnorm are made of, which has neither mean nor bias. The formulas
 * are those of graph/ops/norm/layernorm.c and rmsnorm.c.
 *
 * Forward and input gradient read and write each value once: a row stays in the registers of a warp
 * or of a block. Rows of odd width, and such as no block can hold, take a path that reads a row
 * again from the caches. Forward of a sum (`add`) makes it in the same pass: it is rounded and
 * written as by a kernel of its own, and what was rounded is normalised, so the bits are those of
 * two.
 *
 * Weight gradients in two stages: sums over parts of the rows, then the parts are added in order. A
 * part's rows are taken in turns by strands, whose sums are added in order, too. Parts and strands
 * depend on the sizes alone (row_norm.c, smp_norm_strands), so the result does too, and does
 * not know which kernel makes the first stage: one of its own, which reads rows by columns, or that
 * of the input gradient, which has them in registers (`backward`). Both write the fused operations
 * down that a compiler might choose, for the same bits.
 *
 * Bound by memory: O(rows * columns). */
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

/* The tensors of a call: in, also, sum, out, dout, din, plus (rows, columns), weight, bias
 * (columns), and stats (rows). also, which is added to in as if in a pass before that writes sum,
 * may be NULL. plus, which is added to din as if in a second pass, may be NULL, or din. */
template <typename T, bool CENTERED> struct smp_norm {
    const T *in, *also;
    T *sum;
    const float *weight, *bias;
    T *out;
    smp_norm_stats<CENTERED> *stats;
    const T *dout;
    T *din;
    const T *plus;
    int64_t rows, columns;
    float eps, offset;
    __device__ __forceinline__ float moved(float weight) const
    {
        return CENTERED ? weight : weight + offset;
    }
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

/* What one value adds to a lane's share of the sums over its row: of g = dy * weight, and of g
 * times (x - mean). */
template <bool CENTERED>
__device__ __forceinline__ void smp_norm_share(float &sum, float &dot, float x,
                                               smp_norm_stats<CENTERED> s, float dy, float weight)
{
    sum = fmaf(dy, weight, sum);
    dot = fmaf(dy * weight, x - s.mean, dot);
}

/* From the means over the row: of g, and of g times x normalised. Rounded before anything is added
 * to it. */
template <bool CENTERED>
__device__ __forceinline__ float smp_norm_gradient(float x, smp_norm_stats<CENTERED> s, float dy,
                                                   float weight, float mean_g, float mean_gx)
{
    const float xhat = (x - s.mean) * s.rstd;
    const float g = CENTERED ? fmaf(dy, weight, -mean_g) : dy * weight;
    return __fmul_rn(s.rstd, fmaf(-xhat, mean_gx, g));
}

/* What one value adds to the sums over its column: of the weight's gradient, and of the bias' if
 * there is one. */
template <bool CENTERED, int SUMS>
__device__ __forceinline__ void smp_norm_add(float (&total)[SUMS], float x,
                                             smp_norm_stats<CENTERED> s, float dy)
{
    total[0] = fmaf(dy, (x - s.mean) * s.rstd, total[0]);
    if (CENTERED)
        total[SUMS - 1] += dy;
}

/* Adds to what a lane holds of row r what belongs there of `also`, and writes the sum. All is read
 * before anything is waited for. */
template <typename T, bool CENTERED, int PACKS>
__device__ __forceinline__ void smp_norm_add_held(smp_pack<T> (&x)[PACKS],
                                                  const smp_norm<T, CENTERED> &a, int64_t r)
{
    constexpr int N = smp_pack<T>::N;
    const int columns = (int)a.columns, packs = columns / N;
    smp_pack<T> more[PACKS] = {};
    for (int i = 0; i < PACKS; i++) {
        const int p = threadIdx.x + i * blockDim.x;
        if (p < packs)
            more[i] = smp_load16(a.also + r * columns + p * N);
    }
    for (int i = 0; i < PACKS; i++) {
        const int p = threadIdx.x + i * blockDim.x;
        if (p >= packs)
            break;
        for (int k = 0; k < N; k++)
            x[i].v[k] = smp_from<T>(smp_float(x[i].v[k]) + smp_float(more[i].v[k]));
        smp_store(a.sum + r * columns + p * N, x[i]);
    }
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
        if (a.also)
            smp_norm_add_held(x, a, r);
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
                x[i].v[k] = smp_from<T>(
                    smp_normalized<CENTERED>(smp_float(x[i].v[k]), s, a.moved(w.v[k]), b.v[k]));
            smp_store(a.out + r * columns + p * N, x[i]);
        }
    }
}

/* The first stage of weight gradients: (parts, 2 or 1, columns) sums, of which the first are the
 * weight's. */
struct smp_norm_parts {
    float *sum;
    int parts, strands;
};

/* Sums of `count` columns of one part from its strands' shares; `shares` (strands, count). */
__device__ __forceinline__ void smp_norm_fold(const float *shares, int strands, int count,
                                              float *to, int64_t columns, int thread, int threads)
{
    for (int c = thread; c < count && c < columns; c += threads) {
        float sum = 0;
        for (int y = 0; y < strands; y++)
            sum += shares[y * count + c];
        to[c] = sum;
    }
}

/* WEIGHTS: a block has a part of the rows and is a row of lanes for each strand. */
template <typename T, bool CENTERED, int LANES, int PACKS, bool WEIGHTS>
__global__ void __launch_bounds__(LANES == SMP_WARP ? SMP_BLOCK : LANES)
    smp_norm_backward_held(smp_norm<T, CENTERED> a, smp_norm_parts part)
{
    constexpr bool ONE_WARP = LANES == SMP_WARP;
    constexpr int N = smp_pack<T>::N, SUMS = CENTERED ? 2 : 1;
    constexpr int GROUPS = WEIGHTS && !ONE_WARP ? SMP_TILE_ROWS / 2 : 1; // of lanes, at most
    __shared__ float scratch[GROUPS][32];
    float *own_scratch = scratch[GROUPS > 1 ? threadIdx.y : 0];
    const int columns = (int)a.columns;
    const int64_t begin = WEIGHTS ? a.rows * blockIdx.x / gridDim.x : smp_first_row();
    const int64_t end = WEIGHTS ? a.rows * (blockIdx.x + 1) / gridDim.x : a.rows;
    float total[WEIGHTS ? PACKS : 1][N][SUMS] = {};
    for (int64_t first = begin; first < end; first += WEIGHTS ? blockDim.y : smp_row_stride()) {
        /* strands wait for each other: the last ones may have no row any more */
        const int64_t r = WEIGHTS && first + threadIdx.y < end ? first + threadIdx.y : first;
        const int packs = WEIGHTS && first + threadIdx.y >= end ? 0 : columns / N;
        smp_pack<T> x[PACKS] = {}, dy[PACKS] = {};
        const smp_norm_stats<CENTERED> s = a.stats[r];
        float sum = 0, dot = 0;
        for (int i = 0; i < PACKS; i++) {
            const int p = threadIdx.x + i * blockDim.x;
            if (p >= packs)
                continue;
            x[i] = smp_load16(a.in + r * columns + p * N);
            dy[i] = smp_load16(a.dout + r * columns + p * N);
            const smp_pack_weights<N> w(a.weight, p * N);
            for (int k = 0; k < N; k++)
                smp_norm_share(sum, dot, smp_float(x[i].v[k]), s, smp_float(dy[i].v[k]),
                               a.moved(w.v[k]));
        }
        const float mean_g = smp_row_mean<CENTERED, ONE_WARP>(sum, columns, own_scratch);
        const float mean_gx = smp_row_sum<ONE_WARP>(dot, own_scratch) * s.rstd / (float)columns;
        for (int i = 0; i < PACKS; i++) {
            const int p = threadIdx.x + i * blockDim.x;
            if (p >= packs)
                break;
            smp_hold(x[i]);
            smp_hold(dy[i]);
            const smp_pack_weights<N> w(a.weight, p * N);
            for (int k = 0; k < N; k++) {
                const float value = smp_float(x[i].v[k]), dout = smp_float(dy[i].v[k]);
                if (WEIGHTS)
                    smp_norm_add<CENTERED>(total[WEIGHTS ? i : 0][k], value, s, dout);
                x[i].v[k] = smp_from<T>(
                    smp_norm_gradient(value, s, dout, a.moved(w.v[k]), mean_g, mean_gx));
            }
            if (a.plus) { /* rounded as if in two passes */
                const smp_pack<T, N> more = smp_load16(a.plus + r * columns + p * N);
                for (int k = 0; k < N; k++)
                    x[i].v[k] = smp_from<T>(smp_float(more.v[k]) + smp_float(x[i].v[k]));
            }
            smp_store(a.din + r * columns + p * N, x[i]);
        }
    }
    if (!WEIGHTS)
        return;
    SMP_SHARED(float, shares); // (strands, lanes, N)
    const int count = blockDim.x * N, thread = threadIdx.y * blockDim.x + threadIdx.x;
    for (int i = 0; i < PACKS; i++)
        for (int which = 0; which < SUMS; which++) {
            for (int k = 0; k < N; k++)
                shares[thread * N + k] = total[WEIGHTS ? i : 0][k][which];
            __syncthreads();
            smp_norm_fold(shares, blockDim.y, count,
                          part.sum + ((int64_t)blockIdx.x * SUMS + which) * columns + i * count,
                          columns - i * count, thread, blockDim.x * blockDim.y);
            __syncthreads();
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
        if (a.also) { /* a thread reads no more than it has written itself */
            T *const total = a.sum + r * a.columns;
            for (int64_t c = threadIdx.x; c < a.columns; c += blockDim.x)
                total[c] = smp_from<T>(smp_float(x[c]) + smp_float(a.also[r * a.columns + c]));
            x = total;
        }
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
                smp_float(x[c]), s, a.moved(a.weight[c]), CENTERED ? a.bias[c] : 0.0f));
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
        for (int64_t c = threadIdx.x; c < a.columns; c += blockDim.x)
            smp_norm_share(sum, dot, smp_float(x[c]), s, smp_float(dy[c]), a.moved(a.weight[c]));
        const float mean_g = smp_row_mean<CENTERED, ONE_WARP>(sum, a.columns, scratch);
        const float mean_gx = smp_row_sum<ONE_WARP>(dot, scratch) * s.rstd / (float)a.columns;
        for (int64_t c = threadIdx.x; c < a.columns; c += blockDim.x) {
            const T gradient = smp_from<T>(smp_norm_gradient(
                smp_float(x[c]), s, smp_float(dy[c]), a.moved(a.weight[c]), mean_g, mean_gx));
            const int64_t at = r * a.columns + c;
            a.din[at] =
                a.plus ? smp_from<T>(smp_float(a.plus[at]) + smp_float(gradient)) : gradient;
        }
    }
}

/* The first stage alone, N columns to a thread: a block has some parts, all strands of each. */
template <typename T, bool CENTERED, int N>
__global__ void __launch_bounds__(SMP_BLOCK)
    smp_norm_weight_parts(smp_norm<T, CENTERED> a, smp_norm_parts part)
{
    constexpr int SUMS = CENTERED ? 2 : 1, COUNT = SMP_TILE_LANES * N;
    __shared__ float shares[SMP_TILE_ROWS][COUNT];
    const int64_t tile = (int64_t)blockIdx.x * COUNT, column = tile + threadIdx.x * N;
    const int each = SMP_TILE_ROWS / part.strands, first = blockIdx.y * each;
    const int own = first + threadIdx.y / part.strands, strand = threadIdx.y % part.strands;
    const int64_t begin = a.rows * own / part.parts;
    const int64_t end = own < part.parts ? a.rows * (own + 1) / part.parts : begin;
    float total[N][SUMS] = {};
    for (int64_t r = begin + strand; r < end && column < a.columns; r += part.strands) {
        const smp_pack<T, N> x = smp_load<N>(a.in + r * a.columns + column);
        const smp_pack<T, N> dy = smp_load<N>(a.dout + r * a.columns + column);
        const smp_norm_stats<CENTERED> s = a.stats[r];
        for (int k = 0; k < N; k++)
            smp_norm_add<CENTERED>(total[k], smp_float(x.v[k]), s, smp_float(dy.v[k]));
    }
    const int thread = threadIdx.y * SMP_TILE_LANES + threadIdx.x;
    for (int which = 0; which < SUMS; which++) {
        for (int k = 0; k < N; k++)
            shares[threadIdx.y][threadIdx.x * N + k] = total[k][which];
        __syncthreads();
        for (int p = 0; p < each && first + p < part.parts; p++)
            smp_norm_fold(shares[p * part.strands], part.strands, COUNT,
                          part.sum + ((int64_t)(first + p) * SUMS + which) * a.columns + tile,
                          a.columns - tile, thread, SMP_BLOCK);
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
 * aux; attribute 0 is eps, and without CENTERED attribute 1 the offset. */
template <typename T, bool CENTERED>
static smp_norm<T, CENTERED> smp_norm_of(const smp_op_call *call)
{
    const smp_tensor *in = &call->graph->tensor[call->op->in[0]];
    smp_norm<T, CENTERED> a = {};
    a.in = static_cast<const T *>(call->in[0]);
    a.weight = call->param[0];
    a.bias = CENTERED ? call->param[1] : NULL;
    a.out = static_cast<T *>(call->out[0]);
    a.stats = static_cast<smp_norm_stats<CENTERED> *>(call->aux);
    a.dout = call->dout ? reinterpret_cast<const T *>(call->dout[0]) : NULL;
    a.din = call->din ? reinterpret_cast<T *>(call->din[0]) : NULL;
    a.plus = reinterpret_cast<const T *>(call->plus);
    a.columns = in->shape.dim[in->shape.n_dim - 1];
    a.rows = in->elements / a.columns * call->batch;
    a.eps = (float)call->op->attr[0].f;
    a.offset = CENTERED ? 0.0f : (float)call->op->attr[1].i;
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

/* sum: the call of an `add` of two tensors whose output is the call's input, to be made too; NULL:
 * the input is there. */
template <typename T, bool CENTERED>
static smp_status smp_norm_forward(const smp_op_call *call, const smp_op_call *sum)
{
    smp_norm<T, CENTERED> a = smp_norm_of<T, CENTERED>(call);
    if (sum) {
        a.in = static_cast<const T *>(sum->in[0]);
        a.also = static_cast<const T *>(sum->in[1]);
        a.sum = static_cast<T *>(sum->out[0]);
    }
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

/* Do lanes have room for the sums over their columns beside their values? */
static inline bool smp_norm_sums_fit(smp_norm_layout l)
{
    return l.each > 0 && l.lanes <= 512;
}

/* As many as make a block of the kernel that has rows in registers. */
static inline int smp_norm_strands(smp_norm_layout l)
{
    int strands = SMP_TILE_ROWS;
    while (smp_norm_sums_fit(l) && strands > 1 && strands * l.lanes > SMP_BLOCK)
        strands /= 2;
    return strands;
}

template <bool CENTERED>
static smp_norm_parts smp_norm_parts_of(const smp_op_call *call, smp_norm_layout l, int64_t columns)
{
    const int64_t bytes = columns * (CENTERED ? 2 : 1) * (int64_t)sizeof(float);
    smp_op_needs needs; // made room for as many parts as there shall be
    smp_op_needs_get(call->graph, call->op, call->batch, &needs);
    return {static_cast<float *>(call->workspace), (int)(needs.workspace_bytes / bytes),
            smp_norm_strands(l)};
}

template <typename T, bool CENTERED>
static smp_status smp_norm_backward_input(const smp_op_call *call)
{
    const smp_norm<T, CENTERED> a = smp_norm_of<T, CENTERED>(call);
    if (!a.din)
        return SMP_OK;
    const smp_norm_layout l = smp_norm_layout_of<T>(a.columns);
    const unsigned grid = smp_row_grid(a.rows, l.lanes);
    const cudaStream_t stream = smp_cuda_of(call)->stream;
    if (l.each == 0) {
        const auto kernel = l.lanes == SMP_WARP ? smp_norm_backward_any<T, CENTERED, true>
                                                : smp_norm_backward_any<T, CENTERED, false>;
        SMP_LAUNCH(kernel, grid, smp_row_block(l.lanes), 0, stream, a);
        return smp__cuda_launched(call->op->kind->name);
    }
    const auto kernel = l.lanes > 512
                            ? smp_norm_backward_held<T, CENTERED, SMP_NORM_LANES, 4, false>
                        : l.lanes > SMP_WARP ? smp_norm_backward_held<T, CENTERED, 512, 4, false>
                        : l.each == 1 ? smp_norm_backward_held<T, CENTERED, SMP_WARP, 1, false>
                        : l.each == 2 ? smp_norm_backward_held<T, CENTERED, SMP_WARP, 2, false>
                                      : smp_norm_backward_held<T, CENTERED, SMP_WARP, 4, false>;
    SMP_LAUNCH(kernel, grid, smp_row_block(l.lanes), 0, stream, a, smp_norm_parts{});
    return smp__cuda_launched(call->op->kind->name);
}

/* The second stage. */
template <bool CENTERED>
static smp_status smp_norm_sum_parts(const smp_op_call *call, smp_norm_parts part, int64_t columns)
{
    SMP_LAUNCH(smp_norm_weight_sum,
               dim3((unsigned)((columns + SMP_TILE_LANES - 1) / SMP_TILE_LANES), CENTERED ? 2 : 1),
               dim3(SMP_TILE_LANES, SMP_FOLD_ROWS), 0, smp_cuda_of(call)->stream,
               static_cast<const float *>(part.sum), part.parts, call->dparam[0],
               CENTERED ? call->dparam[1] : NULL, columns, call->fresh);
    return smp__cuda_launched(call->op->kind->name);
}

template <typename T, bool CENTERED>
static smp_status smp_norm_backward_weight(const smp_op_call *call)
{
    constexpr int N = smp_pack<T>::N;
    const smp_norm<T, CENTERED> a = smp_norm_of<T, CENTERED>(call);
    const smp_norm_parts part =
        smp_norm_parts_of<CENTERED>(call, smp_norm_layout_of<T>(a.columns), a.columns);
    const bool packed = a.columns % N == 0;
    const int64_t tile = SMP_TILE_LANES * (packed ? N : 1), strands = part.strands;
    const auto kernel =
        packed ? smp_norm_weight_parts<T, CENTERED, N> : smp_norm_weight_parts<T, CENTERED, 1>;
    SMP_LAUNCH(kernel,
               dim3((unsigned)((a.columns + tile - 1) / tile),
                    (unsigned)((part.parts * strands + SMP_TILE_ROWS - 1) / SMP_TILE_ROWS)),
               dim3(SMP_TILE_LANES, SMP_TILE_ROWS), 0, smp_cuda_of(call)->stream, a, part);
    SMP_TRY(smp__cuda_launched(call->op->kind->name));
    return smp_norm_sum_parts<CENTERED>(call, part, a.columns);
}

/* Both in one pass over the rows, with the bits of two. */
template <typename T, bool CENTERED> static smp_status smp_norm_backward(const smp_op_call *call)
{
    const smp_norm<T, CENTERED> a = smp_norm_of<T, CENTERED>(call);
    const smp_norm_layout l = smp_norm_layout_of<T>(a.columns);
    const smp_norm_parts part = smp_norm_parts_of<CENTERED>(call, l, a.columns);
    if (!smp_norm_sums_fit(l)) {
        SMP_TRY((smp_norm_backward_weight<T, CENTERED>(call)));
        return smp_norm_backward_input<T, CENTERED>(call);
    }
    const auto kernel = l.lanes > SMP_WARP ? smp_norm_backward_held<T, CENTERED, 512, 4, true>
                        : l.each == 1      ? smp_norm_backward_held<T, CENTERED, SMP_WARP, 1, true>
                        : l.each == 2      ? smp_norm_backward_held<T, CENTERED, SMP_WARP, 2, true>
                                           : smp_norm_backward_held<T, CENTERED, SMP_WARP, 4, true>;
    SMP_LAUNCH(kernel, (unsigned)part.parts, dim3((unsigned)l.lanes, (unsigned)part.strands),
               part.strands * l.lanes * smp_pack<T>::N * sizeof(float), smp_cuda_of(call)->stream,
               a, part);
    SMP_TRY(smp__cuda_launched(call->op->kind->name));
    return smp_norm_sum_parts<CENTERED>(call, part, a.columns);
}

#endif

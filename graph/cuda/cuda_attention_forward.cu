/* Attention in 16 bits on a GPU, forward: Dao, "FlashAttention-2" (2023). A block owns a tile
 * of queries and passes over the keys once, keeping for each row the maximum and the sum of
 * exponentials so far and rescaling what it has summed when the maximum grows. The next keys are on
 * their way while the values are multiplied, the values while the scores are computed. Products run
 * on tensor cores with fp32 sums; the softmax is fp32, in powers of two. O(Tq Tk w) time per head,
 * O(T w) traffic per tile, no T x T memory. */
#include "graph/cuda/cuda_attention_half.cuh"

namespace
{

/* Rows per warp, keys per tile: what fits 255 registers. */
template <typename T, int W> struct shape {
    static constexpr int WARPS = 4, MT = W <= 128 ? 2 : 1, N = W <= 128 ? 64 : 32;
    static constexpr int M = WARPS * MT * 16, THREADS = WARPS * SMP_WARP,
                         LD = attention_tile<T, W>::LD;
    static constexpr size_t BYTES = (M + 2 * N) * LD * sizeof(T);
    static_assert(BYTES <= SMP_CUDA_SHARED_LEAST, "has no smaller variant");
};

/* Running statistics of the rows g and g + 8 of each fragment; `sum` of this lane's columns. */
template <int MT> struct softmax {
    float max[MT][2], sum[MT][2];
};

/* Scores to exponentials in place; rescales acc. */
template <int MT, int N, int C, int EXTRA>
__device__ __forceinline__ void exponentials(float (&s)[MT][N / 8][4], float (&acc)[MT][C / 8][4],
                                             softmax<MT> &rows, float scale2)
{
    SMP_UNROLL
    for (int m = 0; m < MT; m++)
        for (int half = 0; half < 2; half++) {
            float top = rows.max[m][half];
            SMP_UNROLL
            for (int n = 0; n < N / 8; n++)
                top = fmaxf(top, fmaxf(s[m][n][2 * half], s[m][n][2 * half + 1]));
            top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
            top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
            /* finite: without EXTRA key 0 is never hidden */
            const float from = EXTRA && top == -INFINITY ? 0 : top, shift = from * scale2;
            const float factor = smp_exp2((rows.max[m][half] - from) * scale2);
            float sum = rows.sum[m][half] * factor;
            rows.max[m][half] = top;
            SMP_UNROLL
            for (int n = 0; n < N / 8; n++)
                for (int e = 2 * half; e < 2 * half + 2; e++) {
                    s[m][n][e] = smp_exp2(fmaf(s[m][n][e], scale2, -shift));
                    sum += s[m][n][e];
                }
            rows.sum[m][half] = sum;
            SMP_UNROLL
            for (int c = 0; c < C / 8; c++)
                for (int e = 2 * half; e < 2 * half + 2; e++)
                    acc[m][c][e] *= factor;
        }
}

template <typename T, int W, int EXTRA>
__global__ void __launch_bounds__(shape<T, W>::THREADS)
    attention_forward_kernel(attention_args<T> args)
{
    typedef shape<T, W> of;
    typedef attention_tile<T, W> tile;
    const int M = of::M, N = of::N, MT = of::MT, THREADS = of::THREADS, LD = of::LD;
    SMP_SHARED(T, q); // (M, LD)
    T *k = q + M * LD, *v = k + N * LD;
    const attention_place place(args, false);
    const int first = (args.tiles - 1 - place.tile) * M; /* causal: the long ones first */
    const int begin = EXTRA ? max(0, args.before + first + 1 - args.window) / N * N : 0;
    const int warp = threadIdx.x / SMP_WARP, lane = threadIdx.x % SMP_WARP;
    const int row = first + warp * MT * 16 + lane / 4;
    const T *keys = args.k.head(place.sample, place.key_head, args.width);
    const T *values = args.v.head(place.sample, place.key_head, args.width);
    T *own = q + warp * MT * 16 * LD;
    tile::template load<M, THREADS>(q, args.q.head(place.sample, place.first, args.width),
                                    args.q.stride, first, args.queries, args.width);
    tile::template load<N, THREADS>(k, keys, args.k.stride, begin, args.keys, args.width);
    smp_cp_async_commit();

    float out[MT][W / 8][4] = {};
    softmax<MT> rows;
    SMP_UNROLL
    for (int i = 0; i < 2 * MT; i++) {
        rows.max[i / 2][i % 2] = -INFINITY;
        rows.sum[i / 2][i % 2] = 0;
    }
    const float scale = EXTRA ? 1 : args.scale, scale2 = scale * ATTENTION_LOG2_E; // of s
    const int end = args.causal ? min(args.keys, args.before + first + M) : args.keys;
    for (int key = begin; key < end; key += N) {
        float s[MT][N / 8][4];
        smp_cp_async_wait<0>();
        __syncthreads(); /* these keys are here, the values before are done with */
        tile::template load<N, THREADS>(v, values, args.v.stride, key, args.keys, args.width);
        smp_cp_async_commit();
        attention_nt<T, MT, N, W, LD>(s, own, k);
        smp_cp_async_wait<0>();
        __syncthreads(); /* the values are here, these keys are done with */
        if (key + N < end)
            tile::template load<N, THREADS>(k, keys, args.k.stride, key + N, args.keys, args.width);
        smp_cp_async_commit();
        if (EXTRA)
            attention_scores<T, MT, N, false, EXTRA>(s, args, place.sample, place.first, row,
                                                     key + lane % 4 * 2);
        else if (key + N > args.keys || (args.causal && key + N > args.before + first + 1))
            attention_hide<MT, N, false>(s, row, key + lane % 4 * 2, args.keys, args.causal,
                                         args.before);
        exponentials<MT, N, W, EXTRA>(s, out, rows, scale2);
        attention_nn<T, MT, N, W, LD>(out, s, v);
    }

    SMP_UNROLL
    for (int i = 0; i < 2 * MT; i++) {
        float sum = rows.sum[i / 2][i % 2];
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        const bool none = EXTRA && sum == 0;
        rows.sum[i / 2][i % 2] = none ? 0 : 1.0f / sum;
        const int at = row + i * 8;
        if (lane % 4 == 0 && at < args.queries)
            args.lse[place.row(args, place.first) + at] =
                none ? args.lse_of_none : fmaf(rows.max[i / 2][i % 2], scale, logf(sum));
    }
    const int mine = first + warp * MT * 16;
    if (mine < args.queries)
        attention_store<T, MT, W, W>(out, rows.sum, own,
                                     args.out.head(place.sample, place.first, args.width) +
                                         mine * args.out.stride,
                                     args.out.stride, args.queries - mine, args.width, args.width);
}

template <typename T, int W, int EXTRA>
smp_status forward_of(const smp_cuda *cuda, const attention_args<T> &args)
{
    return attention_launch(attention_forward_kernel<T, W, EXTRA>, "attention", cuda, args,
                            args.heads, args.queries, shape<T, W>::M, 1, shape<T, W>::THREADS,
                            shape<T, W>::BYTES);
}

} // namespace

template <typename T>
smp_status attention_forward(const smp_cuda *cuda, const attention_args<T> &args)
{
    const int width = args.width;
    if (args.softcap > 0)
        return width <= 128 ? forward_of<T, 128, ATTENTION_CAPPED>(cuda, args)
                            : forward_of<T, 256, ATTENTION_CAPPED>(cuda, args);
    if (attention_has_extra(args))
        return width <= 64    ? forward_of<T, 64, ATTENTION_EXTRA>(cuda, args)
               : width <= 128 ? forward_of<T, 128, ATTENTION_EXTRA>(cuda, args)
                              : forward_of<T, 256, ATTENTION_EXTRA>(cuda, args);
    return width <= 32    ? forward_of<T, 32, ATTENTION_PLAIN>(cuda, args)
           : width <= 64  ? forward_of<T, 64, ATTENTION_PLAIN>(cuda, args)
           : width <= 96  ? forward_of<T, 96, ATTENTION_PLAIN>(cuda, args)
           : width <= 112 ? forward_of<T, 112, ATTENTION_PLAIN>(cuda, args)
           : width <= 128 ? forward_of<T, 128, ATTENTION_PLAIN>(cuda, args)
                          : forward_of<T, 256, ATTENTION_PLAIN>(cuda, args);
}

template smp_status attention_forward(const smp_cuda *cuda, const attention_args<bf16> &args);
template smp_status attention_forward(const smp_cuda *cuda, const attention_args<fp16> &args);

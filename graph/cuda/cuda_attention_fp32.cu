/* Attention in fp32 on a GPU: tiles of R queries by R keys (Dao, "FlashAttention-2", 2023), in
 * plain FMA, so that nothing is rounded below fp32. 256 threads as 16 x 16; of a tile of scores
 * thread (y, x) has rows y + 16 i and columns x + 16 j, of one of values rows y + 16 i and columns
 * 4 x + 64 c .. + 3. O(Tq Tk w) time per head, no memory besides the tiles. */
#include "graph/cuda/cuda_attention.cuh"

namespace
{

enum { SIDE = 16, THREADS = SIDE * SIDE };

/* s (R, R) = A B^T, both (R, W) */
template <int W, int I>
__device__ __forceinline__ void multiply_nt(float (&s)[I][I], const float *a, const float *b)
{
    const int LD = attention_tile<float, W>::LD, y = threadIdx.x / SIDE, x = threadIdx.x % SIDE;
    for (int i = 0; i < I; i++)
        for (int j = 0; j < I; j++)
            s[i][j] = 0;
    SMP_UNROLL
    for (int k = 0; k < W; k += 4) {
        smp_pack<float> left[I], right[I];
        SMP_UNROLL
        for (int i = 0; i < I; i++) {
            left[i] = smp_load16(a + (y + SIDE * i) * LD + k);
            right[i] = smp_load16(b + (x + SIDE * i) * LD + k);
        }
        SMP_UNROLL
        for (int i = 0; i < I; i++)
            for (int j = 0; j < I; j++)
                for (int e = 0; e < 4; e++)
                    s[i][j] = fmaf(left[i].v[e], right[j].v[e], s[i][j]);
    }
}

/* out (R, W) += P (R, R) B (R, W); rows of P are R + 4 apart. */
template <int W, int I>
__device__ __forceinline__ void multiply_nn(float (&out)[I][W / SIDE], const float *p,
                                            const float *b)
{
    const int R = SIDE * I, LD = attention_tile<float, W>::LD;
    const int y = threadIdx.x / SIDE, x = threadIdx.x % SIDE;
    SMP_UNROLL
    for (int n = 0; n < R; n++) {
        float left[I];
        SMP_UNROLL
        for (int i = 0; i < I; i++)
            left[i] = p[(y + SIDE * i) * (R + 4) + n];
        SMP_UNROLL
        for (int c = 0; c < W / 64; c++) {
            const smp_pack<float> right = smp_load16(b + n * LD + 64 * c + 4 * x);
            SMP_UNROLL
            for (int i = 0; i < I; i++)
                for (int e = 0; e < 4; e++)
                    out[i][4 * c + e] = fmaf(left[i], right.v[e], out[i][4 * c + e]);
        }
    }
}

/* Writes factor[i] * out to rows first .. of one head. `tile` (R, LD) is free. */
template <int W, int I>
__device__ __forceinline__ void store(const float (&out)[I][W / SIDE], const float (&factor)[I],
                                      float *tile, float *to, int64_t stride, int first, int limit,
                                      int width)
{
    const int R = SIDE * I, LD = attention_tile<float, W>::LD;
    const int y = threadIdx.x / SIDE, x = threadIdx.x % SIDE;
    for (int i = 0; i < I; i++)
        for (int c = 0; c < W / SIDE; c++)
            tile[(y + SIDE * i) * LD + c / 4 * 64 + 4 * x + c % 4] = factor[i] * out[i][c];
    __syncthreads();
    attention_tile<float, W>::store(to + first * stride, tile, stride, min(R, limit - first), width,
                                    width, threadIdx.x, THREADS);
}

/* Over the 16 threads of a row. */
__device__ __forceinline__ float row_max(float value)
{
    for (int step = SIDE / 2; step > 0; step /= 2)
        value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, step));
    return value;
}
__device__ __forceinline__ float row_sum(float value)
{
    for (int step = SIDE / 2; step > 0; step /= 2)
        value += __shfl_xor_sync(0xffffffffu, value, step);
    return value;
}

template <int W> constexpr int forward_rows = W <= 128 ? 64 : 32;
template <int W>
constexpr size_t forward_bytes = sizeof(float) *
                                 (2 * forward_rows<W> * attention_tile<float, W>::LD +
                                  forward_rows<W> * (forward_rows<W> + 4));

template <int W, int EXTRA>
__global__ void __launch_bounds__(THREADS) attention_forward_kernel(attention_args<float> args)
{
    typedef attention_tile<float, W> tile;
    const int R = forward_rows<W>, I = R / SIDE, LD = tile::LD;
    SMP_SHARED(float, q);
    float *kv = q + R * LD, *p = kv + R * LD;
    const attention_place place(args, false);
    const int first = (args.tiles - 1 - place.tile) * R; /* causal: the long ones first */
    const int y = threadIdx.x / SIDE, x = threadIdx.x % SIDE;
    const float *keys = args.k.head(place.sample, place.key_head, args.width);
    const float *values = args.v.head(place.sample, place.key_head, args.width);
    tile::template load<R, THREADS>(q, args.q.head(place.sample, place.first, args.width),
                                    args.q.stride, first, args.queries, args.width);

    const int begin = EXTRA ? max(0, args.before + first + 1 - args.window) : 0;
    float out[I][W / SIDE] = {}, max[I], sum[I] = {};
    for (int i = 0; i < I; i++)
        max[i] = -INFINITY;
    const int end = args.causal ? min(args.keys, args.before + first + R) : args.keys;
    for (int key = begin; key < end; key += R) {
        tile::template load<R, THREADS>(kv, keys, args.k.stride, key, args.keys, args.width);
        smp_cp_async_commit();
        smp_cp_async_wait<0>();
        __syncthreads();
        float s[I][I];
        multiply_nt<W, I>(s, q, kv);
        for (int i = 0; i < I; i++) {
            const int row = first + y + SIDE * i;
            const int seen = args.causal ? min(args.before + row + 1, end) : end;
            float top = max[i];
            for (int j = 0; j < I; j++) {
                const int column = key + x + SIDE * j;
                if (EXTRA)
                    s[i][j] = attention_score<EXTRA>(args, place.sample, place.first, row, column,
                                                     s[i][j]);
                else
                    s[i][j] = column < seen ? s[i][j] * args.scale : -INFINITY;
                top = fmaxf(top, s[i][j]);
            }
            top = row_max(top);
            /* without EXTRA key 0 is always seen: top is finite */
            const float shift = EXTRA && top == -INFINITY ? 0 : top;
            const float factor = expf(max[i] - shift);
            max[i] = top;
            sum[i] *= factor;
            for (int c = 0; c < W / SIDE; c++)
                out[i][c] *= factor;
            for (int j = 0; j < I; j++) {
                const float value = expf(s[i][j] - shift);
                sum[i] += value;
                p[(y + SIDE * i) * (R + 4) + x + SIDE * j] = value;
            }
        }
        __syncthreads();
        tile::template load<R, THREADS>(kv, values, args.v.stride, key, args.keys, args.width);
        smp_cp_async_commit();
        smp_cp_async_wait<0>();
        __syncthreads();
        multiply_nn<W, I>(out, p, kv);
        __syncthreads();
    }
    for (int i = 0; i < I; i++) {
        const int row = first + y + SIDE * i;
        sum[i] = row_sum(sum[i]);
        const bool none = EXTRA && sum[i] == 0;
        if (x == 0 && row < args.queries)
            args.lse[place.row(args, place.first) + row] =
                none ? args.lse_of_none : max[i] + logf(sum[i]);
        sum[i] = none ? 0 : 1.0f / sum[i];
    }
    store<W, I>(out, sum, q, args.out.head(place.sample, place.first, args.width), args.out.stride,
                first, args.queries, args.width);
}

/* Two blocks fit a multiprocessor of 164 KB, one fits where a block may have 99 KB. */
template <int W> constexpr int backward_rows = W <= 64 ? 48 : W <= 128 ? 32 : 16;
template <int W>
constexpr size_t backward_bytes = sizeof(float) *
                                  (4 * backward_rows<W> * attention_tile<float, W>::LD +
                                   2 * backward_rows<W> * (backward_rows<W> + 4));

static_assert(forward_bytes<128> <= SMP_CUDA_SHARED_LEAST &&
                  forward_bytes<256> <= SMP_CUDA_SHARED_LEAST &&
                  backward_bytes<128> <= SMP_CUDA_SHARED_LEAST &&
                  backward_bytes<256> <= SMP_CUDA_SHARED_LEAST,
              "have no smaller variant");

/* The gradients of R keys (KEYS: dK and dV) or of R queries (dQ), whose tiles a0 and a1 stay in
 * shared memory while those of the other side, b0 and b1, pass by:
 *   KEYS:      a = K, V;  b = Q, dO;  dV += P dO, dK += dS Q
 *   otherwise: a = Q, dO; b = K, V;   dQ += dS K
 * P and dS are computed with the block's own rows as rows. */
template <int W, bool KEYS, int EXTRA>
__global__ void __launch_bounds__(THREADS) attention_backward_kernel(attention_args<float> args)
{
    typedef attention_tile<float, W> tile;
    const int R = backward_rows<W>, I = R / SIDE, LD = tile::LD;
    SMP_SHARED(float, a0);
    float *a1 = a0 + R * LD, *b0 = a1 + R * LD, *b1 = b0 + R * LD, *p = b1 + R * LD;
    float *ds = p + R * (R + 4);
    const attention_place place(args, KEYS);
    const int own = KEYS ? args.keys : args.queries, other = KEYS ? args.queries : args.keys;
    const int first = (KEYS ? place.tile : args.tiles - 1 - place.tile) * R;
    const int y = threadIdx.x / SIDE, x = threadIdx.x % SIDE;
    const attention_part<float> parts[4] = {KEYS ? args.k : args.q, KEYS ? args.v : args.dout,
                                            KEYS ? args.q : args.k, KEYS ? args.dout : args.v};
    const int own_head = KEYS ? place.key_head : place.first;
    for (int i = 0; i < 2; i++)
        tile::template load<R, THREADS>(i ? a1 : a0,
                                        parts[i].head(place.sample, own_head, args.width),
                                        parts[i].stride, first, own, args.width);

    float out0[I][W / SIDE] = {}, out1[I][W / SIDE] = {}, scale[I], one[I];
    const int before = args.before; /* keys that no query sees take one tile of zeroes */
    const int oldest = EXTRA && !KEYS ? max(0, before + first + 1 - args.window) : 0;
    const int newest = EXTRA && KEYS ? min(other, first + R - 1 + args.window - before) : other;
    const int begin = KEYS && args.causal ? max(0, first - before) : oldest;
    const int end = !KEYS && args.causal ? min(other, before + first + R) : newest;
    for (int head = place.first, start = begin; head < place.last;
         start = start + R < end ? start + R : begin, head += start == begin) {
        for (int i = 2; i < 4; i++)
            tile::template load<R, THREADS>(
                i == 3 ? b1 : b0,
                parts[i].head(place.sample, KEYS ? head : place.key_head, args.width),
                parts[i].stride, start, other, args.width);
        smp_cp_async_commit();
        smp_cp_async_wait<0>();
        __syncthreads();
        float s[I][I], dp[I][I];
        multiply_nt<W, I>(s, a0, b0);
        multiply_nt<W, I>(dp, a1, b1);
        const int64_t statistics = place.row(args, head);
        for (int i = 0; i < I; i++)
            for (int j = 0; j < I; j++) {
                const int row = first + y + SIDE * i, column = start + x + SIDE * j;
                const int query = KEYS ? column : row, key = KEYS ? row : column;
                bool seen = query < args.queries && key < args.keys &&
                            (!args.causal || key <= before + query);
                float score = s[i][j] * args.scale;
                if (EXTRA) {
                    score = attention_score<EXTRA>(args, place.sample, head, query, key, s[i][j]);
                    seen = score != -INFINITY;
                }
                const float lse = seen ? args.lse[statistics + query] : 0;
                const float delta = seen ? args.delta[statistics + query] : 0;
                const float value = seen ? expf(score - lse) : 0;
                const int at = (y + SIDE * i) * (R + 4) + x + SIDE * j;
                p[at] = value;
                ds[at] = value * (dp[i][j] - delta);
                if (EXTRA == ATTENTION_CAPPED)
                    ds[at] *= attention_slope(score, args.softcap);
            }
        __syncthreads();
        if (KEYS)
            multiply_nn<W, I>(out1, p, b1);
        multiply_nn<W, I>(out0, ds, b0);
        __syncthreads();
    }
    for (int i = 0; i < I; i++) {
        scale[i] = args.scale;
        one[i] = 1;
    }
    const attention_part<float> grad0 = KEYS ? args.dk : args.dq;
    if (grad0.at)
        store<W, I>(out0, scale, a0, grad0.head(place.sample, own_head, args.width), grad0.stride,
                    first, own, args.width);
    if (KEYS && args.dv.at)
        store<W, I>(out1, one, a1, args.dv.head(place.sample, own_head, args.width), args.dv.stride,
                    first, own, args.width);
}

template <int W, int EXTRA>
smp_status forward_of(const smp_cuda *cuda, const attention_args<float> &args)
{
    return attention_launch(attention_forward_kernel<W, EXTRA>, "attention", cuda, args, args.heads,
                            args.queries, forward_rows<W>, 1, THREADS, forward_bytes<W>);
}

template <int W, int EXTRA>
smp_status backward_of(const smp_cuda *cuda, const attention_args<float> &args)
{
    if (args.dk.at || args.dv.at)
        SMP_TRY(attention_launch(attention_backward_kernel<W, true, EXTRA>, "attention, dK and dV",
                                 cuda, args, args.heads / args.group, args.keys, backward_rows<W>,
                                 1, THREADS, backward_bytes<W>));
    if (args.dq.at)
        SMP_TRY(attention_launch(attention_backward_kernel<W, false, EXTRA>, "attention, dQ", cuda,
                                 args, args.heads, args.queries, backward_rows<W>, 1, THREADS,
                                 backward_bytes<W>));
    return SMP_OK;
}

template <int EXTRA> smp_status forward_as(const smp_cuda *cuda, const attention_args<float> &args)
{
    constexpr int LEAST = EXTRA == ATTENTION_CAPPED ? 128 : 64;
    return args.width <= LEAST ? forward_of<LEAST, EXTRA>(cuda, args)
           : args.width <= 128 ? forward_of<128, EXTRA>(cuda, args)
                               : forward_of<256, EXTRA>(cuda, args);
}

template <int EXTRA> smp_status backward_as(const smp_cuda *cuda, const attention_args<float> &args)
{
    constexpr int LEAST = EXTRA == ATTENTION_CAPPED ? 128 : 64;
    return args.width <= LEAST ? backward_of<LEAST, EXTRA>(cuda, args)
           : args.width <= 128 ? backward_of<128, EXTRA>(cuda, args)
                               : backward_of<256, EXTRA>(cuda, args);
}

} // namespace

smp_status attention_forward(const smp_cuda *cuda, const attention_args<float> &args)
{
    return args.softcap > 0            ? forward_as<ATTENTION_CAPPED>(cuda, args)
           : attention_has_extra(args) ? forward_as<ATTENTION_EXTRA>(cuda, args)
                                       : forward_as<ATTENTION_PLAIN>(cuda, args);
}

smp_status attention_backward(const smp_cuda *cuda, const attention_args<float> &args)
{
    return args.softcap > 0            ? backward_as<ATTENTION_CAPPED>(cuda, args)
           : attention_has_extra(args) ? backward_as<ATTENTION_EXTRA>(cuda, args)
                                       : backward_as<ATTENTION_PLAIN>(cuda, args);
}

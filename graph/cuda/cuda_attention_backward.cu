/* Attention in 16 bits on a GPU, backward: Dao, "FlashAttention-2" (2023), but in one order always.
 * Probabilities are computed again from the scores and the saved logarithms of their sums. A block
 * keeps a tile of its own side (a0, a1) in shared memory, and tiles of the other side (b0, b1) pass
 * by, the next arriving during the products of the last. With the block's rows as rows of P and dS,
 * both are already in the registers where the next product wants them:
 *   KEYS:      a = K, V;  b = Q, dO;  P = exp(K Q^T), dP = V dO^T;  dV += P dO,  dK += dS Q
 *   otherwise: a = Q, dO; b = K, V;   P = exp(Q K^T), dP = dO V^T;  dQ += dS K
 * with dS = P * (dP - delta). Every block writes its own rows once. Two kernels, 7 products.
 *
 * DQ: the blocks of keys make dQ too, 5 products in all, and add to its sums in fp32 by turns, from
 * the last key tile that a tile of queries sees to the first, which rounds (FlashAttention-3 has
 * such a mode, by rising key tiles). From the diagonal on that order is the one in which blocks
 * come by, if they begin together: a block's first tile of queries is one that those after it are
 * done with. A block takes its place from a counter when it begins, so whoever it waits for has
 * begun before it, however blocks are scheduled: that cannot deadlock. O(Tq Tk w) time per head. */
#include "graph/cuda/cuda_attention_half.cuh"

namespace
{

/* Rows per warp, rows of the passing tile, and columns of gradients per block: what fits 255
 * registers. Where C < W a key tile is worked on by W / C blocks. SMALL: fits every GPU, with half
 * the rows. */
template <typename T, int W, bool KEYS, bool SMALL> struct shape {
    static constexpr int MT = W <= 64 ? 2 : 1, HALF = SMALL ? 2 : 1;
    static constexpr int WARPS = (W <= 64 || W > 128 ? 4 : 8) / HALF;
    static constexpr int N = (W <= 64 || W > 128 ? 32 : 64) / HALF, C = KEYS && W > 128 ? 128 : W;
    static constexpr int M = WARPS * MT * 16, THREADS = WARPS * SMP_WARP,
                         LD = attention_tile<T, W>::LD;
    static constexpr size_t BYTES = (2 * M + 4 * N) * LD * sizeof(T) + 4 * N * sizeof(float);
    static constexpr bool FITS_ALL = BYTES <= SMP_CUDA_SHARED_LEAST;
    static_assert(!SMALL || FITS_ALL, "as cuda.h says");
};

/* What passes by: rows of b0 and b1, and the logarithms and deltas of those rows if they are
 * queries. */
template <typename T, int W, bool KEYS, bool SMALL> struct passing {
    typedef shape<T, W, KEYS, SMALL> of;
    T *b0, *b1;         // (2, N, LD)
    float *lse, *delta; // (2, N)
    __device__ __forceinline__ explicit passing(T *shared)
        : b0(shared), b1(b0 + 2 * of::N * of::LD),
          lse(reinterpret_cast<float *>(b1 + 2 * of::N * of::LD)), delta(lse + 2 * of::N)
    {
    }
    /* Loads head `head` of the queries. */
    __device__ __forceinline__ void load(const attention_args<T> &args,
                                         const attention_place &place,
                                         const attention_part<T> (&parts)[2], int head, int start,
                                         int limit, int slot) const
    {
        const int N = of::N;
        T *const to[2] = {b0 + slot * N * of::LD, b1 + slot * N * of::LD};
        SMP_UNROLL
        for (int i = 0; i < 2; i++)
            attention_tile<T, W>::template load<N, of::THREADS>(
                to[i], parts[i].head(place.sample, KEYS ? head : place.key_head, args.width),
                parts[i].stride, start, limit, args.width);
        if (KEYS && threadIdx.x < 2 * N) {
            const int i = threadIdx.x % N;
            const bool inside = start + i < limit;
            const float *from = (threadIdx.x < N ? args.lse : args.delta) + place.row(args, head);
            smp_cp_async_4((threadIdx.x < N ? lse : delta) + slot * N + i,
                           inside ? from + start + i : from, inside);
        }
        smp_cp_async_commit();
    }
};

/* This block's number in the order in which blocks begin. */
__device__ __forceinline__ unsigned take_place(int *places)
{
    __shared__ unsigned place;
    if (threadIdx.x == 0)
        place = (unsigned)atomicAdd(places, 1);
    __syncthreads();
    return place;
}

/* What a block of keys adds to dQ. A warp has the rows 16 (warp % ROWS) of a tile of queries, and
 * of every SIDES * 16 columns its 16; sums lie in memory as they lie in registers. Where columns
 * are no multiple of that, what is read for the last ones is some other part of the tiles, and
 * nobody reads their sums. */
template <typename T, int W> struct query_sums {
    typedef shape<T, W, true, false> of;
    static constexpr int ROWS = of::N / 16, SIDES = of::WARPS / ROWS, LD = of::N + 8;
    static constexpr int PIECES = (W / 16 + SIDES - 1) / SIDES, FLOATS = 8 * PIECES * of::THREADS;
    static constexpr int AT_ONCE = PIECES == 4 ? 2 : PIECES;
    static constexpr size_t BYTES = of::BYTES + of::M * LD * sizeof(T);
    T *ds;          // (M, LD)
    int tiles, own; /* of queries; this block's tile of keys */
    int *turn;      /* to be passed on when all threads have written; NULL: none */
    int value;
    __device__ __forceinline__ query_sums(const attention_args<T> &args, T *shared, int first)
        : ds(shared), tiles((args.queries + of::N - 1) / of::N), own(first / of::M), turn(NULL),
          value(0)
    {
    }

    /* By all warps, before a barrier: dS of their rows, rounded. Of `rows` keys: after them there
     * are none, and what scores of 0 make of a query's logarithm may be no number. */
    __device__ __forceinline__ void keep(const float (&dp)[of::MT][of::N / 8][4], int mine,
                                         int rows) const
    {
        const int lane = threadIdx.x % SMP_WARP;
        T *to = ds + (mine + lane / 4) * LD + lane % 4 * 2;
        SMP_UNROLL
        for (int m = 0; m < of::MT; m++)
            for (int n = 0; n < of::N / 8; n++)
                for (int half = 0; half < 2; half++)
                    *reinterpret_cast<uint32_t *>(to + (m * 16 + half * 8) * LD + n * 8) =
                        smp_pair<T>(dp[m][n][2 * half], dp[m][n][2 * half + 1]);
        if (mine + of::MT * 16 <= rows)
            return;
        SMP_UNROLL_BY(1) /* after the others, whose registers are free by now */
        for (int row = 0; row < of::MT * 16; row += 8)
            for (int n = 0; n < of::N && mine + lane / 4 + row >= rows; n += 8)
                *reinterpret_cast<uint32_t *>(to + row * LD + n) = 0;
    }

    /* Before the same barrier: waits until those after have added to the tile at `start`. */
    __device__ __forceinline__ void await(const attention_args<T> &args, int64_t sample, int head,
                                          int start)
    {
        const int seen = (args.before + start + of::N - 1) / of::M;
        const int last = args.causal ? min(args.tiles - 1, seen) : args.tiles - 1;
        turn = args.turns + 1 + (sample * args.heads + head) * tiles + start / of::N;
        value = last - own;
        if (threadIdx.x == 0 && value > 0)
            smp_await_turn(turn, value);
    }

    /* After it. keys: (M, attention_tile's LD). As many pieces at a time as registers hold. */
    __device__ __forceinline__ void add(const attention_args<T> &args, int64_t sample, int head,
                                        int start, const T *keys) const
    {
        const int warp = threadIdx.x / SMP_WARP;
        const int row = warp % ROWS * 16, side = warp / ROWS * 16;
        const int64_t tile = (sample * args.heads + head) * tiles + start / of::N;
        float *at = args.sums + tile * FLOATS + 4 * threadIdx.x;
        SMP_UNROLL_BY(1)
        for (int p = 0; p < PIECES; p += AT_ONCE, at += 8 * AT_ONCE * of::THREADS)
            add_pieces(args, sample, head, start + row, p * SIDES * 16 + side, ds + row,
                       keys + p * SIDES * 16 + side, at);
    }

    /* Those from query `row` and column `column` on; a, b: of the same. */
    __device__ __forceinline__ void add_pieces(const attention_args<T> &args, int64_t sample,
                                               int head, int row, int column, const T *a,
                                               const T *b, float *at) const
    {
        const int lane = threadIdx.x % SMP_WARP;
        a += (lane / 16 * 8 + lane % 8) * LD + lane / 8 % 2 * 8;
        b += lane % 16 * of::LD + lane / 16 * 8;
        float sum[AT_ONCE][2][4] = {};
        SMP_UNROLL
        for (int k = 0; k < of::M; k += 16) {
            uint32_t x[4], y[4];
            smp_ldmatrix_x4_trans(x, a + k * LD);
            SMP_UNROLL
            for (int p = 0; p < AT_ONCE; p++) {
                smp_ldmatrix_x4_trans(y, b + k * of::LD + p * SIDES * 16);
                smp_mma_m16n8k16<T>(sum[p][0], x, y[0], y[1]);
                smp_mma_m16n8k16<T>(sum[p][1], x, y[2], y[3]);
            }
        }
        SMP_UNROLL
        for (int p = 0; p < AT_ONCE; p++)
            for (int n = 0; n < 2; n++, at += 4 * of::THREADS) {
                float before[4] = {};
                if (value > 0)
                    smp_load_from_host(before, at);
                for (int e = 0; e < 4; e++)
                    sum[p][n][e] += before[e];
                if (own > 0)
                    smp_store_to_host(at, sum[p][n]);
                else
                    finish(args, sample, head, row + lane / 4,
                           column + p * SIDES * 16 + n * 8 + lane % 4 * 2, sum[p][n]);
            }
    }

    /* The sums are whole: those of two columns in the rows `row` and row + 8. */
    __device__ __forceinline__ void finish(const attention_args<T> &args, int64_t sample, int head,
                                           int row, int column, const float (&sum)[4]) const
    {
        T *to = args.dq.head(sample, head, args.width) + column;
        for (int half = 0; half < 2; half++, row += 8)
            for (int e = 0; e < 2; e++)
                if (row < args.queries && column + e < args.width)
                    to[row * args.dq.stride + e] = smp_from<T>(args.scale * sum[2 * half + e]);
    }

    /* Behind a barrier after `add`. */
    __device__ __forceinline__ void pass()
    {
        if (turn && threadIdx.x == 0)
            smp_pass_turn(turn, value + 1);
        turn = NULL;
    }
};

/* s = P and dp = dS from s = scores and dp = dP. lse, delta: of the rows, [MT][2], or, if KEYS, of
 * this lane's columns, at [8 n + e % 2]. CAPPED: by softcap. */
template <int MT, int N, bool KEYS, bool CAPPED>
__device__ __forceinline__ void score_gradients(float (&s)[MT][N / 8][4], float (&dp)[MT][N / 8][4],
                                                const float *lse, const float *delta, float scale2,
                                                float softcap)
{
    SMP_UNROLL
    for (int n = 0; n < N / 8; n++)
        for (int m = 0; m < MT; m++)
            for (int e = 0; e < 4; e++) {
                const int at = KEYS ? 8 * n + e % 2 : 2 * m + e / 2;
                const float slope = CAPPED ? attention_slope(s[m][n][e], softcap) : 1;
                s[m][n][e] = smp_exp2(fmaf(s[m][n][e], scale2, -ATTENTION_LOG2_E * lse[at]));
                dp[m][n][e] = s[m][n][e] * (dp[m][n][e] - delta[at]) * slope;
            }
}

template <typename T, int W, bool KEYS, int EXTRA, bool SMALL, bool DQ>
__global__ void __launch_bounds__(shape<T, W, KEYS, SMALL>::THREADS)
    attention_backward_kernel(attention_args<T> args)
{
    typedef shape<T, W, KEYS, SMALL> of;
    const int M = of::M, N = of::N, MT = of::MT, C = of::C, THREADS = of::THREADS, LD = of::LD;
    SMP_SHARED(T, a0); // (M, LD)
    T *a1 = a0 + M * LD;
    const passing<T, W, KEYS, SMALL> pass(a1 + M * LD);
    const attention_place place(args, KEYS, DQ ? take_place(args.turns) : blockIdx.x);
    const int tile = place.tile / (W / C), from = place.tile % (W / C) * C;
    const int own = KEYS ? args.keys : args.queries, other = KEYS ? args.queries : args.keys;
    /* causal: the long ones first; DQ: whom others wait for */
    const int first = (KEYS && !DQ ? tile : args.tiles / (W / C) - 1 - tile) * M;
    const int warp = threadIdx.x / SMP_WARP, lane = threadIdx.x % SMP_WARP;
    const int mine = warp * MT * 16; /* first row of the warp in the tile */
    const attention_part<T> kept[2] = {KEYS ? args.k : args.q, KEYS ? args.v : args.dout};
    const attention_part<T> passed[2] = {KEYS ? args.q : args.k, KEYS ? args.dout : args.v};
    const int before = args.before; /* keys that no query sees take one tile of zeroes */
    const int oldest = EXTRA && !KEYS ? max(0, before + first + 1 - args.window) / N * N : 0;
    const int newest = EXTRA && KEYS ? min(other, first + M - 1 + args.window - before) : other;
    const int begin = KEYS && args.causal ? max(0, first - before) / N * N : oldest;
    const int end = !KEYS && args.causal ? min(other, before + first + M) : newest;
    const int own_head = KEYS ? place.key_head : place.first;
    SMP_UNROLL
    for (int i = 0; i < 2; i++)
        attention_tile<T, W>::template load<M, THREADS>(
            i ? a1 : a0, kept[i].head(place.sample, own_head, args.width), kept[i].stride, first,
            own, args.width);
    pass.load(args, place, passed, place.first, begin, other, 0);

    /* without DQ it is not used */
    query_sums<T, DQ ? W : 64> sums(args, reinterpret_cast<T *>(pass.delta + 2 * N), first);
    float out0[MT][C / 8][4] = {}, out1[MT][C / 8][4] = {}, lse[2 * MT], delta[2 * MT];
    for (int i = 0; i < 2 * MT && !KEYS; i++) {
        const int row = first + mine + lane / 4 + 8 * i;
        lse[i] = row < own ? args.lse[place.row(args, place.first) + row] : 0;
        delta[i] = row < own ? args.delta[place.row(args, place.first) + row] : 0;
    }
    const float scale2 = EXTRA ? ATTENTION_LOG2_E : args.scale * ATTENTION_LOG2_E; // of s
    for (int head = place.first, start = begin, next, slot = 0; head < place.last;
         start = next, head += start == begin, slot ^= 1) {
        next = start + N < end ? start + N : begin;
        if (head + (next == begin) < place.last)
            pass.load(args, place, passed, head + (next == begin), next, other, slot ^ 1);
        else
            smp_cp_async_commit();
        smp_cp_async_wait<1>();
        __syncthreads();
        if constexpr (DQ)
            sums.pass();
        const T *b0 = pass.b0 + slot * N * LD, *b1 = pass.b1 + slot * N * LD;
        const int lanes_column = lane % 4 * 2;
        float s[MT][N / 8][4], dp[MT][N / 8][4];
        attention_nt<T, MT, N, W, LD>(s, a0 + mine * LD, b0);
        attention_nt<T, MT, N, W, LD>(dp, a1 + mine * LD, b1);
        if (EXTRA)
            attention_scores<T, MT, N, KEYS, EXTRA>(s, args, place.sample, head,
                                                    first + mine + lane / 4, start + lanes_column);
        else if (start + N > other || (args.causal && (KEYS ? before + start < first + M - 1
                                                            : start + N > before + first + 1)))
            attention_hide<MT, N, KEYS>(s, first + mine + lane / 4, start + lanes_column, other,
                                        args.causal, before);
        score_gradients<MT, N, KEYS, EXTRA == ATTENTION_CAPPED>(
            s, dp, KEYS ? pass.lse + slot * N + lanes_column : lse,
            KEYS ? pass.delta + slot * N + lanes_column : delta, scale2, args.softcap);
        if (KEYS)
            attention_nn<T, MT, N, C, LD>(out1, s, b1 + from);
        attention_nn<T, MT, N, C, LD>(out0, dp, b0 + from);
        if constexpr (DQ) {
            sums.keep(dp, mine, own - first);
            if (start < other)
                sums.await(args, place.sample, head, start);
        }
        __syncthreads(); /* the slot is free for the next but one, or a0 and a1 for results */
        if constexpr (DQ)
            if (start < other)
                sums.add(args, place.sample, head, start, a0);
    }
    if constexpr (DQ) {
        __syncthreads(); /* a0 is free, too */
        sums.pass();
    }

    const int rows = own - first - mine, columns = args.width - from;
    if (rows <= 0 || columns <= 0)
        return;
    float scale[MT][2], one[MT][2];
    for (int i = 0; i < 2 * MT; i++) {
        scale[i / 2][i % 2] = args.scale;
        one[i / 2][i % 2] = 1;
    }
    const attention_part<T> grad[2] = {KEYS ? args.dk : args.dq, args.dv};
    const int64_t row = first + mine;
    if (grad[0].at)
        attention_store<T, MT, C, W>(out0, scale, a0 + mine * LD,
                                     grad[0].head(place.sample, own_head, args.width) +
                                         row * grad[0].stride + from,
                                     grad[0].stride, rows, columns, args.width);
    if (KEYS && grad[1].at)
        attention_store<T, MT, C, W>(out1, one, a1 + mine * LD,
                                     grad[1].head(place.sample, own_head, args.width) +
                                         row * grad[1].stride + from,
                                     grad[1].stride, rows, columns, args.width);
}

template <typename T, int W, bool KEYS, int EXTRA, bool SMALL>
smp_status launch(const smp_cuda *cuda, const attention_args<T> &args, const char *name)
{
    typedef shape<T, W, KEYS, SMALL> of;
    return attention_launch(attention_backward_kernel<T, W, KEYS, EXTRA, SMALL, false>, name, cuda,
                            args, KEYS ? args.heads / args.group : args.heads,
                            KEYS ? args.keys : args.queries, of::M, W / of::C, of::THREADS,
                            of::BYTES);
}

/* All three gradients at once. */
template <typename T, int W>
smp_status launch_whole(const smp_cuda *cuda, const attention_args<T> &args)
{
    typedef shape<T, W, true, false> of;
    const int64_t turns =
        1 + (int64_t)args.batch * args.heads * ((args.queries + of::N - 1) / of::N);
    SMP_TRY(
        SMP_CUDA(cudaMemsetAsync, args.turns, 0, (size_t)turns * sizeof *args.turns, cuda->stream));
    return attention_launch(attention_backward_kernel<T, W, true, ATTENTION_PLAIN, false, true>,
                            "attention, dQ, dK and dV", cuda, args, args.heads / args.group,
                            args.keys, of::M, 1, of::THREADS, query_sums<T, W>::BYTES);
}

template <typename T, int W, int EXTRA, bool SMALL = false>
smp_status backward_of(const smp_cuda *cuda, const attention_args<T> &args)
{
    const bool keys = args.dk.at || args.dv.at;
    if constexpr (!EXTRA && !SMALL && W <= SMP__DQ_WIDTH)
        if (args.sums && args.dq.at && keys && cuda->shared_bytes >= (int)query_sums<T, W>::BYTES)
            return launch_whole<T, W>(cuda, args);
    if (keys)
        SMP_TRY((launch<T, W, true, EXTRA, SMALL>(cuda, args, "attention, dK and dV")));
    if (args.dq.at)
        SMP_TRY((launch<T, W, false, EXTRA, SMALL>(cuda, args, "attention, dQ")));
    return SMP_OK;
}

/* On a GPU with little shared memory; one kernel for two widths and every kind but capped scores.
 * Where there is no window the longest hides nothing. */
template <typename T> smp_status backward_small(const smp_cuda *cuda, attention_args<T> args)
{
    if (args.softcap > 0)
        return args.width <= 128 ? backward_of<T, 128, ATTENTION_CAPPED, true>(cuda, args)
                                 : backward_of<T, 256, ATTENTION_CAPPED, true>(cuda, args);
    if (!attention_has_extra(args))
        args.window = ATTENTION_MAX_ROWS;
    return args.width <= 128 ? backward_of<T, 128, ATTENTION_EXTRA, true>(cuda, args)
                             : backward_of<T, 256, ATTENTION_EXTRA, true>(cuda, args);
}

} // namespace

template <typename T>
smp_status attention_backward(const smp_cuda *cuda, const attention_args<T> &args)
{
    const int width = args.width;
    static_assert(shape<T, 64, true, false>::FITS_ALL, "has no smaller variant");
    if (width > 64 && cuda->shared_bytes < (int)shape<T, 128, true, false>::BYTES)
        return backward_small(cuda, args);
    if (args.softcap > 0)
        return width <= 128 ? backward_of<T, 128, ATTENTION_CAPPED>(cuda, args)
                            : backward_of<T, 256, ATTENTION_CAPPED>(cuda, args);
    if (attention_has_extra(args))
        return width <= 64    ? backward_of<T, 64, ATTENTION_EXTRA>(cuda, args)
               : width <= 128 ? backward_of<T, 128, ATTENTION_EXTRA>(cuda, args)
                              : backward_of<T, 256, ATTENTION_EXTRA>(cuda, args);
    return width <= 32    ? backward_of<T, 32, ATTENTION_PLAIN>(cuda, args)
           : width <= 64  ? backward_of<T, 64, ATTENTION_PLAIN>(cuda, args)
           : width <= 96  ? backward_of<T, 96, ATTENTION_PLAIN>(cuda, args)
           : width <= 112 ? backward_of<T, 112, ATTENTION_PLAIN>(cuda, args)
           : width <= 128 ? backward_of<T, 128, ATTENTION_PLAIN>(cuda, args)
                          : backward_of<T, 256, ATTENTION_PLAIN>(cuda, args);
}

template smp_status attention_backward(const smp_cuda *cuda, const attention_args<bf16> &args);
template smp_status attention_backward(const smp_cuda *cuda, const attention_args<fp16> &args);

/* What the attention kernels share: their arguments, and tiles between global and shared memory. */
#ifndef SMP_GRAPH_CUDA_CUDA_ATTENTION_CUH
#define SMP_GRAPH_CUDA_CUDA_ATTENTION_CUH

#include "graph/cuda/cuda_mma.cuh"
extern "C" {
#include "graph/math/attention.h"
}

/* Value x of head h of row t of sample b: at[b * sample + t * stride + h * width + x]. Heads of k,
 * v and their gradients are key heads, of which there are fewer: head / group. */
template <typename T> struct attention_part {
    T *at; /* NULL: not wanted (gradients) */
    int64_t sample, stride;
    __device__ __forceinline__ T *head(int64_t b, int h, int width) const
    {
        return at + b * sample + (int64_t)h * width;
    }
};

template <typename T> struct attention_args {
    attention_part<T> q, k, v, out;     // (B, T, heads, width)
    attention_part<T> dq, dk, dv, dout; // the same
    float *lse;                         // (B, heads, Tq) log of the sum of exponentials
    float lse_of_none;                  /* of a query that sees no key; backward wants 0 */
    float *delta;                       // (B, heads, Tq) sum of dout * out
    float *sums;                        // of dQ, as smp__attention_dq_floats says; NULL: none
    int *turns;                         // after them, zeroes: places taken, turns of query tiles
    const int32_t *mask;                // (B, Tk) 0: hidden from every query; NULL: none
    int64_t mask_keys;                  /* from one sample's mask to the next */
    const float *bias;                  // (heads, Tq + Tk - 1) by key - query + Tq - 1; NULL: none
    int queries, keys, heads, width, batch;
    int before; /* query 0 is at this position; key 0 is at 0 */
    int window; /* of keys, the query's own being the last; all: the longer of queries and keys */
    int group;  /* heads that read one key head */
    int tiles;  /* blocks per head, or per key head if its keys are what a block works on */
    bool causal;
    float scale, softcap; // 0: none
};

/* Which tile, heads and sample this block works on: the tiles of a head are neighbours, so they
 * find its keys and values in the cache. A block of keys (KEYS) goes through all heads that read
 * them. */
struct attention_place {
    int tile, first, last, key_head; /* heads first .. last-1 */
    int64_t sample;
    template <typename T>
    __device__ __forceinline__ attention_place(const attention_args<T> &args, bool KEYS,
                                               unsigned block = blockIdx.x)
    {
        const int64_t head_of_batch = block / args.tiles;
        const int step = KEYS ? args.group : 1, steps = args.heads / step;
        tile = (int)(block % args.tiles);
        first = (int)(head_of_batch % steps) * step;
        last = first + step;
        key_head = first / args.group;
        sample = head_of_batch / steps;
    }
    /* First of (B, heads, Tq) of a head. */
    template <typename T>
    __device__ __forceinline__ int64_t row(const attention_args<T> &args, int head) const
    {
        return (sample * args.heads + head) * args.queries;
    }
};

/* Is there more to a score than the product, its scale and causality? Kernels of their own (EXTRA)
 * do what attention_score says; a query may then see no key at all, and gets zeros. Capped scores
 * have others, since a tanh takes registers. */
enum { ATTENTION_PLAIN, ATTENTION_EXTRA, ATTENTION_CAPPED };
template <typename T> static inline bool attention_has_extra(const attention_args<T> &args)
{
    return args.mask || args.bias || args.window < args.queries || args.window < args.keys ||
           (args.causal && args.window < args.before + args.queries);
}

/* The score of a product of q and k, -infinity where the key is hidden or one of both not there. */
template <int EXTRA = ATTENTION_EXTRA, typename T>
__device__ __forceinline__ float attention_score(const attention_args<T> &args, int64_t sample,
                                                 int head, int query, int key, float product)
{
    const int position = query + args.before;
    if (query >= args.queries || key >= args.keys || position - key >= args.window ||
        (args.causal && key > position) ||
        (args.mask && args.mask[sample * args.mask_keys + key] == 0))
        return -INFINITY;
    if (EXTRA == ATTENTION_CAPPED)
        return args.softcap * tanhf(product * args.scale / args.softcap);
    const int64_t distances = (int64_t)args.queries + args.keys - 1;
    const float bias =
        args.bias ? args.bias[head * distances + key - query + args.queries - 1] : 0.0f;
    return fmaf(product, args.scale, bias);
}

/* What a capped score changes by if the score before changes by 1; 0 where it is -infinity. */
__device__ __forceinline__ float attention_slope(float score, float softcap)
{
    const float share = score / softcap;
    return 1 - fminf(share * share, 1.0f);
}

/* Rows of a tile of W values are W + 16 bytes apart: eight rows, read 16 bytes each, meet every
 * bank once. */
template <typename T, int W> struct attention_tile {
    static constexpr int PACK = smp_pack<T>::N, LD = W + PACK;

    /* Rows first .. first+ROWS-1 of one head to shared memory (ROWS, LD), asynchronously where rows
     * are whole packs; what lies outside (limit, width) becomes zero. */
    template <int ROWS, int THREADS>
    static __device__ __forceinline__ void load(T *to, const T *from, int64_t stride, int first,
                                                int limit, int width)
    {
        if (width % PACK == 0) {
            SMP_UNROLL_BY(1) /* nothing waits for a copy; registers are scarce */
            for (int chunk = threadIdx.x; chunk < ROWS * (W / PACK); chunk += THREADS) {
                const int row = chunk / (W / PACK), x = chunk % (W / PACK) * PACK;
                const bool inside = first + row < limit && x < width;
                smp_cp_async_16(to + row * LD + x,
                                inside ? from + (first + row) * stride + x : from, inside);
            }
        } else {
            for (int i = threadIdx.x; i < ROWS * W; i += THREADS) {
                const int row = i / W, x = i % W;
                const bool inside = first + row < limit && x < width;
                to[row * LD + x] = inside ? from[(first + row) * stride + x] : smp_from<T>(0.0f);
            }
        }
    }

    /* Rows 0 .. rows-1 and columns 0 .. columns-1 of (ROWS, LD) of shared memory to global memory,
     * by `threads` threads of which this is number `thread`. */
    static __device__ __forceinline__ void store(T *to, const T *from, int64_t stride, int rows,
                                                 int columns, int width, int thread, int threads)
    {
        if (width % PACK == 0) {
            const int chunks = columns / PACK;
            for (int i = thread; i < rows * chunks; i += threads) {
                const int row = i / chunks, x = i % chunks * PACK;
                smp_store(to + row * stride + x, smp_load16(from + row * LD + x));
            }
        } else {
            for (int i = thread; i < rows * columns; i += threads)
                to[i / columns * stride + i % columns] = from[i / columns * LD + i % columns];
        }
    }
};

/* Host side, fp32 and 16 bits (T: bf16, fp16). Widths up to ATTENTION_MAX_WIDTH; positions, and
 * the window, up to ATTENTION_MAX_ROWS, so that sums of them are no overflow. */
enum { ATTENTION_MAX_WIDTH = 256, ATTENTION_MAX_ROWS = 1 << 29 };
smp_status attention_forward(const smp_cuda *cuda, const attention_args<float> &args);
smp_status attention_backward(const smp_cuda *cuda, const attention_args<float> &args);
template <typename T>
smp_status attention_forward(const smp_cuda *cuda, const attention_args<T> &args);
template <typename T>
smp_status attention_backward(const smp_cuda *cuda, const attention_args<T> &args);

/* Launches kernel(args) with `parts` blocks for every tile of `rows` rows out of `total` of each of
 * `heads` heads. */
template <typename T>
static smp_status attention_launch(void (*kernel)(attention_args<T>), const char *name,
                                   const smp_cuda *cuda, attention_args<T> args, int heads,
                                   int total, int rows, int parts, int threads, size_t shared_bytes)
{
    args.tiles = ((total - 1) / rows + 1) * parts;
    const int64_t blocks = (int64_t)args.tiles * heads * args.batch;
    if (blocks > INT32_MAX)
        return smp_fail(SMP_ERR_INPUT, "%s: %lld blocks, expected fewer than 2^31", name,
                        (long long)blocks);
    if (shared_bytes > 48 << 10)
        SMP_TRY(smp__cuda_check(cudaFuncSetAttribute((const void *)kernel,
                                                     cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                     (int)shared_bytes),
                                name));
    SMP_LAUNCH(kernel, (unsigned)blocks, threads, shared_bytes, cuda->stream, args);
    return smp__cuda_launched(name);
}

#endif

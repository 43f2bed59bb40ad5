/* What normalisations of channels share on a GPU: sums over the values of a channel, and maps that
 * know what belongs to it.
 *
 * Images that lie channels last are rows of channels, [slabs][rows][channels]; a slab has
 * statistics of its own. There a block has lanes and lines of threads: a lane has W neighbouring
 * channels, a line every so many rows of a part, in order. What the lines have is folded by halves,
 * and what each part of a slab's rows comes to lies in the workspace, [slabs][channels][parts],
 * where a warp adds the parts of a channel, or of a group of them, in double. All of it is a
 * function of the sizes alone. Each pass reads its arrays once. */
#ifndef SMP_GRAPH_OPS_NORM_CHANNELS_CUH
#define SMP_GRAPH_OPS_NORM_CHANNELS_CUH

#include "graph/cuda/cuda_elementwise.cuh"
#include "graph/ops/norm/norm.h"

/* Sizes; rows: of a slab, or values of a channel where it lies in one piece. */
struct smp_channels {
    int64_t slabs, rows, channels, parts;
};

/* What a part of a channel comes to: mean and sum of (x - mean)^2, or sums of the gradient and of
 * that times (x - mean). */
struct smp_channel_sums {
    float first, second;
};

static __device__ __forceinline__ int64_t smp_part_begin(const smp_channels &l, int64_t part)
{
    return l.rows * part / l.parts;
}
static __device__ __forceinline__ int64_t smp_part_size(const smp_channels &l, int64_t part)
{
    return smp_part_begin(l, part + 1) - smp_part_begin(l, part);
}

/* Values so far, their mean, and the sum of (x - mean)^2 (Chan et al. 1979). */
struct smp_moments {
    float n, first, second;
    __device__ __forceinline__ void add(const smp_moments &other)
    {
        const float all = n + other.n, share = all > 0 ? other.n / all : 0.0f;
        const float off = other.first - first;
        second += other.second + off * off * n * share;
        first += off * share;
        n = all;
    }
};

struct smp_dots {
    float first, second;
    __device__ __forceinline__ void add(const smp_dots &other)
    {
        first += other.first;
        second += other.second;
    }
};

/* This thread's channels: block (lanes, lines), grid (slabs * tiles of channels, parts). */
struct smp_channel_place {
    int64_t slab, channel; // the first of W
    __device__ smp_channel_place(const smp_channels &l, int width)
    {
        const int64_t across = (int64_t)blockDim.x * width;
        const int64_t tiles = (l.channels + across - 1) / across;
        slab = blockIdx.x / tiles;
        channel = blockIdx.x % tiles * across + threadIdx.x * width;
    }
};

/* Adds what the lines of a block have to what the first has, and writes that. */
template <int W, typename A>
static __device__ __forceinline__ void smp_fold_lines(A (&own)[W], const smp_channel_place &at,
                                                      const smp_channels &l, smp_channel_sums *part)
{
    __shared__ A scratch[W][SMP_BLOCK / 2];
    const int line = threadIdx.y, thread = line * blockDim.x + threadIdx.x;
    for (int half = blockDim.y / 2; half > 0; half /= 2) {
        if (line >= half && line < 2 * half)
            for (int k = 0; k < W; k++)
                scratch[k][thread - half * blockDim.x] = own[k];
        __syncthreads();
        if (line < half)
            for (int k = 0; k < W; k++)
                own[k].add(scratch[k][thread]);
        __syncthreads();
    }
    if (line == 0 && at.channel < l.channels)
        for (int k = 0; k < W; k++)
            part[((at.slab * l.channels + at.channel + k) * l.parts) + blockIdx.y] =
                smp_channel_sums{own[k].first, own[k].second};
}

enum { SMP_CHANNELS_AHEAD = 4, SMP_CHANNELS_DOTS_AHEAD = 2 }; /* rows that a thread loads at once */

template <int W, typename T>
__global__ void __launch_bounds__(SMP_BLOCK)
    smp_channel_moments(const T *x, smp_channel_sums *part, smp_channels l)
{
    constexpr int AHEAD = SMP_CHANNELS_AHEAD;
    const smp_channel_place at(l, W);
    const int64_t end = smp_part_begin(l, blockIdx.y + 1), lines = blockDim.y;
    smp_moments own[W] = {};
    x += at.slab * l.rows * l.channels + at.channel;
    for (int64_t row = smp_part_begin(l, blockIdx.y) + threadIdx.y;
         at.channel < l.channels && row < end; row += AHEAD * lines) {
        float value[AHEAD][W] = {};
        const int64_t left = (end - row + lines - 1) / lines;
        const int n = left < AHEAD ? (int)left : AHEAD;
        for (int j = 0; j < AHEAD; j++)
            if (j < n)
                smp_read<W>(value[j], x + (row + j * lines) * l.channels);
        for (int k = 0; k < W; k++) {
            smp_moments some = {(float)n, 0, 0};
            for (int j = 0; j < AHEAD; j++)
                some.first += value[j][k];
            some.first /= (float)n;
            for (int j = 0; j < AHEAD; j++)
                if (j < n)
                    some.second += (value[j][k] - some.first) * (value[j][k] - some.first);
            own[k].add(some);
        }
    }
    smp_fold_lines(own, at, l, part);
}

/* f.of(slab, channel): what belongs to a channel, its `mean` among it; f.gradient of that, x and
 * dy: what is added up, which is dy or made of it. */
template <int W, typename T, typename F>
__global__ void __launch_bounds__(SMP_BLOCK)
    smp_channel_dots(const T *x, const T *dy, smp_channel_sums *part, smp_channels l, F f)
{
    constexpr int AHEAD = SMP_CHANNELS_DOTS_AHEAD;
    const smp_channel_place at(l, W);
    const int64_t end = smp_part_begin(l, blockIdx.y + 1), lines = blockDim.y;
    const int64_t first = at.slab * l.rows * l.channels + at.channel;
    typename F::channel of[W];
    smp_dots own[W] = {};
    for (int k = 0; k < W && at.channel < l.channels; k++)
        of[k] = f.of(at.slab, at.channel + k);
    for (int64_t row = smp_part_begin(l, blockIdx.y) + threadIdx.y;
         at.channel < l.channels && row < end; row += AHEAD * lines) {
        float value[AHEAD][W] = {}, by[AHEAD][W] = {};
        for (int j = 0; j < AHEAD; j++)
            if (row + j * lines < end) {
                smp_read<W>(value[j], x + first + (row + j * lines) * l.channels);
                smp_read<W>(by[j], dy + first + (row + j * lines) * l.channels);
            }
        for (int j = 0; j < AHEAD; j++)
            for (int k = 0; k < W && row + j * lines < end; k++) {
                const float gradient = f.gradient(of[k], value[j][k], by[j][k]);
                own[k].add(smp_dots{gradient, gradient * (value[j][k] - of[k].mean)});
            }
    }
    smp_fold_lines(own, at, l, part);
}

/* f(what belongs to the channel, in values, out values) of every value; zeroes from row `counted`
 * of a slab on. Grid (slabs * tiles, some). */
template <int W, typename T, int IN, int OUT, typename F>
__global__ void __launch_bounds__(SMP_BLOCK)
    smp_channel_map(smp_streams<T, IN, OUT> s, smp_channels l, int64_t counted, F f)
{
    const smp_channel_place at(l, W);
    if (at.channel >= l.channels)
        return;
    typename F::channel of[W];
    for (int k = 0; k < W; k++)
        of[k] = f.of(at.slab, at.channel + k);
    for (int64_t row = (int64_t)blockIdx.y * blockDim.y + threadIdx.y; row < l.rows;
         row += (int64_t)gridDim.y * blockDim.y) {
        const int64_t place = (at.slab * l.rows + row) * l.channels + at.channel;
        float x[IN][W], y[OUT][W] = {};
        for (int i = 0; i < IN && row < counted; i++)
            smp_read<W>(x[i], s.in[i] + place);
        for (int k = 0; k < W && row < counted; k++) {
            float in[IN], out[OUT];
            for (int i = 0; i < IN; i++)
                in[i] = x[i][k];
            f(of[k], in, out);
            for (int i = 0; i < OUT; i++)
                y[i][k] = out[i];
        }
        for (int i = 0; i < OUT; i++)
            smp_write<W>(s.out[i] + place, y[i]);
    }
}

/* Over the lanes of a warp, on every lane. */
static __device__ __forceinline__ double smp_warp_sum_double(double x)
{
    for (int step = SMP_WARP / 2; step > 0; step /= 2)
        x += __shfl_xor_sync(0xffffffffu, x, step);
    return x;
}

/* This thread's warp among those of the launch, and how many there are. */
static __device__ __forceinline__ int64_t smp_warp_number()
{
    return smp_thread() / SMP_WARP;
}
static __device__ __forceinline__ int64_t smp_warp_count()
{
    return smp_threads() / SMP_WARP;
}

/* Of groups of `each` neighbouring channels of a slab: f(group, mean, variance), a warp each. Of no
 * values the mean is 0 and the variance 1. */
template <typename F>
__global__ void __launch_bounds__(SMP_BLOCK)
    smp_channel_statistics(const smp_channel_sums *part, smp_channels l, int64_t each, F f)
{
    const int lane = threadIdx.x % SMP_WARP;
    const double n = (double)(each * l.rows);
    for (int64_t g = smp_warp_number(); g < l.slabs * l.channels / each; g += smp_warp_count()) {
        const smp_channel_sums *own = part + g * each * l.parts;
        double sum = 0, squares = 0;
        for (int64_t i = lane; i < each * l.parts; i += SMP_WARP)
            sum += (double)smp_part_size(l, (uint32_t)i % (uint32_t)l.parts) * (double)own[i].first;
        sum = smp_warp_sum_double(sum);
        const double mean = n > 0 ? sum / n : 0;
        for (int64_t i = lane; i < each * l.parts; i += SMP_WARP) {
            const double off = (double)own[i].first - mean;
            squares += (double)own[i].second +
                       (double)smp_part_size(l, (uint32_t)i % (uint32_t)l.parts) * off * off;
        }
        squares = smp_warp_sum_double(squares);
        if (lane == 0)
            f(g, (float)mean, n > 0 ? (float)(squares / n) : 1.0f);
    }
}

/* The sums of such a group, each channel's times its weight (NULL: 1), into its first part. */
static __global__ void __launch_bounds__(SMP_BLOCK)
    smp_channel_group_sums(smp_channel_sums *part, smp_channels l, int64_t each,
                           const float *weight)
{
    const int lane = threadIdx.x % SMP_WARP;
    for (int64_t g = smp_warp_number(); g < l.slabs * l.channels / each; g += smp_warp_count()) {
        smp_channel_sums *own = part + g * each * l.parts;
        double first = 0, second = 0;
        for (int64_t i = lane; i < each * l.parts; i += SMP_WARP) {
            const float by = weight ? weight[g * each % l.channels + i / l.parts] : 1.0f;
            first += (double)own[i].first * (double)by;
            second += (double)own[i].second * (double)by;
        }
        first = smp_warp_sum_double(first);
        second = smp_warp_sum_double(second);
        if (lane == 0)
            own[0] = smp_channel_sums{(float)first, (float)second};
    }
}

/* f(channel, sum of the gradient, sum of the dots, which count f.factor(slab, channel) times). */
template <typename F>
__global__ void __launch_bounds__(SMP_BLOCK)
    smp_channel_gradients(const smp_channel_sums *part, smp_channels l, F f)
{
    const int lane = threadIdx.x % SMP_WARP;
    for (int64_t c = smp_warp_number(); c < l.channels; c += smp_warp_count()) {
        double first = 0, second = 0;
        for (int64_t i = lane; i < l.slabs * l.parts; i += SMP_WARP) {
            const int64_t slab = i / l.parts;
            const smp_channel_sums own =
                part[(slab * l.channels + c) * l.parts + (i - slab * l.parts)];
            first += (double)own.first;
            second += (double)own.second * f.factor(slab, c);
        }
        first = smp_warp_sum_double(first);
        second = smp_warp_sum_double(second);
        if (lane == 0)
            f(c, first, second);
    }
}

/* Launches; channels that lie last come in whole accesses or one by one. */
template <typename T> static inline dim3 smp_channel_block(const smp_channels &l)
{
    const int lanes = smp__channel_lanes(l.channels, (int)sizeof(T));
    return dim3((unsigned)lanes, (unsigned)(SMP_BLOCK / lanes));
}

template <typename T> static inline dim3 smp_channel_grid(const smp_channels &l, int64_t rows)
{
    return dim3((unsigned)(l.slabs * smp__channel_tiles(l.channels, (int)sizeof(T))),
                (unsigned)rows);
}

template <typename T>
static void smp_launch_moments(const smp_op_call *call, const void *x, const smp_channels &l)
{
    const auto kernel = smp_width<T>(l.channels) > 1 ? smp_channel_moments<smp_pack<T>::N, T>
                                                     : smp_channel_moments<1, T>;
    SMP_LAUNCH(kernel, smp_channel_grid<T>(l, l.parts), smp_channel_block<T>(l), 0,
               smp_cuda_of(call)->stream, static_cast<const T *>(x),
               static_cast<smp_channel_sums *>(call->workspace), l);
}

template <typename T, typename F>
static void smp_launch_dots(const smp_op_call *call, const void *x, const void *dy,
                            const smp_channels &l, const F &f)
{
    const auto kernel = smp_width<T>(l.channels) > 1 ? smp_channel_dots<smp_pack<T>::N, T, F>
                                                     : smp_channel_dots<1, T, F>;
    SMP_LAUNCH(kernel, smp_channel_grid<T>(l, l.parts), smp_channel_block<T>(l), 0,
               smp_cuda_of(call)->stream, static_cast<const T *>(x), static_cast<const T *>(dy),
               static_cast<smp_channel_sums *>(call->workspace), l, f);
}

template <typename T, int IN, int OUT, typename F>
static void smp_launch_channel_map(const smp_op_call *call, const smp_streams<T, IN, OUT> &s,
                                   const smp_channels &l, int64_t counted, const F &f)
{
    const smp_cuda *cuda = smp_cuda_of(call);
    const dim3 block = smp_channel_block<T>(l);
    const int64_t across = smp_channel_grid<T>(l, 1).x, resident = 2048 / SMP_BLOCK;
    const int64_t some = (cuda->multiprocessors * resident + across - 1) / across;
    const auto kernel = smp_width<T>(l.channels) > 1
                            ? smp_channel_map<smp_pack<T>::N, T, IN, OUT, F>
                            : smp_channel_map<1, T, IN, OUT, F>;
    SMP_LAUNCH(kernel, smp_channel_grid<T>(l, smp_blocks(l.rows, block.y, some)), block, 0,
               cuda->stream, s, l, counted, f);
}

/* So many warps. */
static inline unsigned smp_warp_grid(int64_t warps)
{
    return smp_blocks(warps, SMP_BLOCK / SMP_WARP, 1 << 30);
}

#endif

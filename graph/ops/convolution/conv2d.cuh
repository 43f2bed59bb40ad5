/* conv2d on a GPU by products of ours, a run of samples at a time: conv2d.cu says how. */
#ifndef SMP_GRAPH_OPS_CONV2D_CUH
#define SMP_GRAPH_OPS_CONV2D_CUH

#include "graph/cuda/cuda_axis.cuh"
#include "graph/ops/dnn_choice.cuh"
#include "graph/ops/convolution/conv2d.h"
extern "C" {
#include "graph/ops/ops.h"
}

/* What kernels have to know of a convolution. They divide numbers of 32 bits, as dividing those of
 * 64 is more work than moving 16 bytes; prepare sees to it that runs have no more. */
struct conv2d_sizes {
    smp_convolution_shape shape;
    int64_t pixel_step, channel_step; /* of x and dx, in values; samples lie one after another */
    int64_t row;                      /* of U, in values */
    int taps;                         /* of a group in it, with zeroes after the last */
    int of_group;                     /* channels of x */
};

struct conv2d_state {
    conv2d_sizes sizes, dnn_sizes; /* cuDNN's filters have no zeroes after the last tap */
    smp__conv2d_windows windows;
    smp__conv2d_room room[3];      /* by smp_op_part */
    smp__gemm *whole[3], *last[3]; /* of a run, of the last if it is shorter; or NULL */
    smp__conv2d_dnn_room dnn_room[3];
    smp_dnn_product dnn[3];
    int64_t pixels, places, in, out, sums; /* sums: chunks of rows of dy, of a bias */
};

/* Value r of a row of U. */
struct conv2d_tap {
    int ky, kx;
    int64_t channel; /* -1: one of the zeroes after the last tap */
};

static __device__ __forceinline__ conv2d_tap conv2d_tap_of(const conv2d_sizes &s, int r)
{
    const int group = r / s.taps, rest = r - group * s.taps;
    const int tap = rest / s.of_group, kernel_width = (int)s.shape.kernel[1];
    const int ky = tap / kernel_width;
    const bool is_tap = ky < s.shape.kernel[0];
    return {ky, tap - ky * kernel_width,
            is_tap ? (int64_t)group * s.of_group + rest - tap * s.of_group : -1};
}

/* W values of U for a thread, which are a pack of one tap's, or each its own. */
template <int W, bool PACKS, typename T>
__global__ void __launch_bounds__(SMP_BLOCK)
    conv2d_unfold(const T *x, T *u, conv2d_sizes s, int64_t n) // (S, H, W, C), (n, W)
{
    const smp_convolution_shape &c = s.shape;
    const int64_t image = c.in[0] * c.in[1] * c.in[2];
    const uint32_t units = (uint32_t)s.row / W;
    const uint32_t height = (uint32_t)c.out[SMP_HEIGHT], width = (uint32_t)c.out[SMP_WIDTH];
    for (int64_t i = smp_thread(); i < n; i += smp_threads()) {
        const uint32_t place = (uint32_t)i / units, row = place / width, sample = row / height;
        const int64_t line = row - sample * height, column = place - row * width;
        smp_pack<T, W> pack = {};
        for (int k = 0; k < (PACKS ? 1 : W); k++) {
            const conv2d_tap tap = conv2d_tap_of(s, (int)(((uint32_t)i - place * units) * W + k));
            const int64_t py = line * c.stride[0] + tap.ky * c.dilation[0] - c.padding[0];
            const int64_t px = column * c.stride[1] + tap.kx * c.dilation[1] - c.padding[1];
            if (tap.channel < 0 || py < 0 || py >= c.in[SMP_HEIGHT] || px < 0 ||
                px >= c.in[SMP_WIDTH])
                continue;
            const T *from = x + sample * image + (py * c.in[SMP_WIDTH] + px) * s.pixel_step +
                            tap.channel * s.channel_step;
            if (PACKS)
                pack = smp_load<W>(from);
            else
                pack.v[k] = *from;
        }
        smp_store(u + i * W, pack);
    }
}

/* The place whose window has the pixel at `tap`, -1 if there is none. */
static __device__ __forceinline__ int64_t conv2d_place(const smp_convolution_shape &s, int axis,
                                                       int64_t pixel, int64_t tap)
{
    const int64_t first = pixel + s.padding[axis] - tap * s.dilation[axis];
    const uint32_t stride = (uint32_t)s.stride[axis], place = (uint32_t)first / stride;
    return first >= 0 && place * stride == first && place < s.out[SMP_HEIGHT + axis]
               ? (int64_t)place
               : -1;
}

/* W channels of a pixel for a thread. */
template <int W, typename T>
__global__ void __launch_bounds__(SMP_BLOCK)
    conv2d_fold(const float *u, T *dx, conv2d_sizes s, int64_t n) // (S places, row), (n, W)
{
    const smp_convolution_shape &c = s.shape;
    const int64_t channels = c.in[SMP_CHANNELS];
    const uint32_t units = (uint32_t)channels / W;
    const uint32_t height = (uint32_t)c.in[SMP_HEIGHT], width = (uint32_t)c.in[SMP_WIDTH];
    const int height_of_kernel = (int)c.kernel[0], width_of_kernel = (int)c.kernel[1];
    for (int64_t i = smp_thread(); i < n; i += smp_threads()) {
        const uint32_t pixel = (uint32_t)i / units, row = pixel / width, sample = row / height;
        const uint32_t channel = ((uint32_t)i - pixel * units) * W, group = channel / s.of_group;
        const int64_t py = row - sample * height, px = pixel - row * width;
        const float *from = u + (int64_t)group * s.taps + channel - group * s.of_group;
        float sum[W] = {};
        for (int ky = 0; ky < height_of_kernel; ky++) {
            const int64_t line = conv2d_place(c, 0, py, ky);
            for (int kx = 0; line >= 0 && kx < width_of_kernel; kx++) {
                const int64_t column = conv2d_place(c, 1, px, kx);
                if (column < 0)
                    continue;
                const int64_t place =
                    (sample * c.out[SMP_HEIGHT] + line) * c.out[SMP_WIDTH] + column;
                float value[W];
                smp_read<W>(value, from + place * s.row +
                                       (int64_t)(ky * width_of_kernel + kx) * s.of_group);
                for (int k = 0; k < W; k++)
                    sum[k] += value[k];
            }
        }
        smp_write<W>(dx + sample * channels * c.in[SMP_HEIGHT] * c.in[SMP_WIDTH] +
                         (py * c.in[SMP_WIDTH] + px) * s.pixel_step + channel * s.channel_step,
                     sum);
    }
}

constexpr int CONV2D_TILE = 32;

/* (S, rows, columns) -> (S, columns, rows). A block turns a tile; no two values of a column of it
 * share a bank. */
template <typename T>
__global__ void __launch_bounds__(SMP_BLOCK)
    conv2d_turn(const T *from, T *to, int64_t rows, int64_t columns, int64_t samples)
{
    __shared__ T tile[CONV2D_TILE][CONV2D_TILE + 4 / sizeof(T)];
    const int64_t down = (rows + CONV2D_TILE - 1) / CONV2D_TILE;
    const int64_t across = (columns + CONV2D_TILE - 1) / CONV2D_TILE;
    const int x = threadIdx.x % CONV2D_TILE, y = threadIdx.x / CONV2D_TILE;
    for (int64_t item = blockIdx.x; item < samples * down * across; item += gridDim.x) {
        const int64_t sample = item / (down * across), of_sample = item - sample * down * across;
        const int64_t row = of_sample / across * CONV2D_TILE;
        const int64_t column = of_sample % across * CONV2D_TILE;
        const T *in = from + sample * rows * columns;
        T *out = to + sample * rows * columns;
        for (int i = y; i < CONV2D_TILE; i += (int)SMP_BLOCK / CONV2D_TILE)
            if (row + i < rows && column + x < columns)
                tile[i][x] = in[(row + i) * columns + column + x];
        __syncthreads();
        for (int i = y; i < CONV2D_TILE; i += (int)SMP_BLOCK / CONV2D_TILE)
            if (column + i < columns && row + x < rows)
                out[(column + i) * rows + row + x] = tile[x][i];
        __syncthreads();
    }
}

/* Where value i of the weights, [out][channels of a group][ky][kx], is among filters. */
static __device__ __forceinline__ int64_t conv2d_filter_at(const conv2d_sizes &s, int64_t i)
{
    const int64_t area = s.shape.kernel[0] * s.shape.kernel[1], plane = i / area;
    const int64_t out = plane / s.of_group;
    return out * s.taps + (i - plane * area) * s.of_group + plane - out * s.of_group;
}

/* The filters of weights, and the zeroes between them. */
template <typename T>
__global__ void __launch_bounds__(SMP_BLOCK)
    conv2d_order(const T *weights, T *filters, conv2d_sizes s, int64_t n) // [n] of (out, taps)
{
    const int64_t area = s.shape.kernel[0] * s.shape.kernel[1];
    for (int64_t i = smp_thread(); i < n; i += smp_threads()) {
        const int64_t out = i / s.taps, rest = i - out * s.taps, tap = rest / s.of_group;
        const int64_t plane = out * s.of_group + rest - tap * s.of_group;
        filters[i] = tap < area ? weights[plane * area + tap] : smp_from<T>(0.0f);
    }
}

static __global__ void __launch_bounds__(SMP_BLOCK)
    conv2d_add(const float *filters, float *weights, conv2d_sizes s, int64_t n) // [n] of weights
{
    for (int64_t i = smp_thread(); i < n; i += smp_threads())
        weights[i] += filters[conv2d_filter_at(s, i)];
}

template <typename T>
__global__ void __launch_bounds__(SMP_BLOCK)
    conv2d_spread(const T *bias, T *y, int64_t n, int64_t channels) // [n]
{
    for (int64_t i = smp_thread(); i < n; i += smp_threads())
        y[i] = bias[i % channels];
}

/* The most, up to 64, of which every group starts at a multiple, and every run, if there are
 * several. */
static int64_t alignment_of(const conv2d_state *s, const smp__conv2d_room *room, int64_t bytes)
{
    const smp_convolution_shape *of = &s->sizes.shape;
    const int64_t groups[] = {s->in / of->groups, s->out / of->groups, s->sizes.taps};
    const int64_t runs[] = {room->samples * s->in * s->pixels, room->samples * s->out * s->places};
    int64_t alignment = 64;
    for (int64_t n : groups)
        while (of->groups > 1 && n * bytes % alignment != 0)
            alignment /= 2;
    for (int64_t n : runs)
        while (room->samples < of->batch && n * bytes % alignment != 0)
            alignment /= 2;
    return alignment;
}

/* Of a run of `samples`: all groups at once, which lie beside one another in rows. */
static smp__gemm_shape shape_of(const conv2d_state *s, smp_op_part part, bool bias, smp_dtype type,
                                int64_t samples)
{
    const int64_t groups = s->sizes.shape.groups, out = s->out / groups, taps = s->sizes.taps;
    const int64_t rows = samples * s->places;
    smp__gemm_shape shape = {};
    shape.in = shape.out = type;
    shape.count = groups;
    shape.alignment = alignment_of(s, &s->room[part], smp_dtype_bytes(type));
    if (part == SMP_OP_FORWARD) { /* U, W, y */
        shape.trans_b = true;
        shape.m = rows, shape.n = out, shape.k = taps;
        shape.lda = s->sizes.row, shape.ldb = taps, shape.ldc = s->out;
        shape.step[0] = taps, shape.step[1] = out * taps, shape.step[2] = out;
        shape.epilogue = bias && groups == 1 ? SMP__GEMM_BIAS : SMP__GEMM_PLAIN;
    } else if (part == SMP_OP_BACKWARD_INPUT) { /* dy, W, dU */
        shape.out = s->windows.are_pixels ? type : SMP_F32;
        shape.m = rows, shape.n = taps, shape.k = out;
        shape.lda = s->out, shape.ldb = taps, shape.ldc = s->sizes.row;
        shape.step[0] = out, shape.step[1] = out * taps, shape.step[2] = taps;
    } else { /* dy, U, dW */
        shape.trans_a = true;
        shape.out = SMP_F32;
        shape.m = out, shape.n = taps, shape.k = rows;
        shape.lda = s->out, shape.ldb = s->sizes.row, shape.ldc = taps;
        shape.step[0] = out, shape.step[1] = taps, shape.step[2] = out * taps;
    }
    return shape;
}

/* A part of a call: samples from `first` on. */
struct conv2d_run {
    const smp_cuda *cuda;
    const conv2d_state *s;
    const smp__conv2d_room *room;
    char *workspace;
    int64_t first, samples;
    smp__gemm *product;
};

static conv2d_run run_of(const smp_op_call *call, smp_op_part part, int64_t first)
{
    const conv2d_state *s = static_cast<const conv2d_state *>(call->state);
    const int64_t each = s->room[part].samples, left = call->batch - first;
    return {smp_cuda_of(call),
            s,
            &s->room[part],
            static_cast<char *>(call->workspace),
            first,
            left < each ? left : each,
            left < each ? s->last[part] : s->whole[part]};
}

template <typename T> static T *region_of(const conv2d_run &run, int64_t offset)
{
    return reinterpret_cast<T *>(run.workspace + offset);
}

template <typename T>
static smp_status turn(const conv2d_run &run, const T *from, T *to, int64_t rows, int64_t columns)
{
    const int64_t tiles = run.samples * ((rows + CONV2D_TILE - 1) / CONV2D_TILE) *
                          ((columns + CONV2D_TILE - 1) / CONV2D_TILE);
    SMP_LAUNCH(conv2d_turn<T>, smp_grid(run.cuda, tiles * SMP_BLOCK), SMP_BLOCK, 0,
               run.cuda->stream, from, to, rows, columns, run.samples);
    return smp__cuda_launched("conv2d, channels last");
}

/* Samples of the image with that many channels and pixels, channels last: where they lie, or in
 * `region`. */
template <typename T>
static smp_status take_image(const conv2d_run &run, const void *image, int64_t channels,
                             int64_t pixels, bool turns, int64_t region, const T **out)
{
    const T *from = static_cast<const T *>(image) + run.first * channels * pixels;
    *out = turns ? region_of<T>(run, region) : from;
    return turns ? turn(run, from, region_of<T>(run, region), channels, pixels) : SMP_OK;
}

template <typename T>
static smp_status take_dy(const conv2d_run &run, const smp_op_call *call, const T **out)
{
    return take_image(run, call->dout[0], run.s->out, run.s->places, run.s->windows.turns_y,
                      run.room->y, out);
}

/* *u: windows of x. */
template <typename T>
static smp_status take_windows(const conv2d_run &run, const void *image, const T **u)
{
    constexpr int N = smp_pack<T>::N;
    const conv2d_state *s = run.s;
    const T *x;
    SMP_TRY(take_image(run, image, s->in, s->pixels, s->windows.turns_x, run.room->x, &x));
    *u = x;
    if (s->windows.are_pixels)
        return SMP_OK;
    T *to = region_of<T>(run, run.room->windows);
    *u = to;
    const int width = smp_width<T>(s->sizes.row);
    const int64_t n = run.samples * s->places * s->sizes.row / width;
    const auto kernel = s->windows.are_packs ? conv2d_unfold<N, true, T>
                        : width > 1          ? conv2d_unfold<N, false, T>
                                             : conv2d_unfold<1, false, T>;
    SMP_LAUNCH(kernel, smp_grid(run.cuda, n), SMP_BLOCK, 0, run.cuda->stream, x, to, s->sizes, n);
    return smp__cuda_launched("conv2d");
}

/* *filters: of the weights, in the workspace unless they are stored so. */
template <typename T>
static smp_status order_filters(const conv2d_run &run, const smp_op_call *call,
                                const conv2d_sizes &sizes, T *to)
{
    const int64_t n = run.s->out * sizes.taps;
    SMP_LAUNCH(conv2d_order<T>, smp_grid(run.cuda, n), SMP_BLOCK, 0, run.cuda->stream,
               static_cast<const T *>(smp_factor(call, 0)), to, sizes, n);
    return smp__cuda_launched("conv2d filters");
}

template <typename T>
static smp_status take_filters(const conv2d_run &run, const smp_op_call *call, const T **filters)
{
    T *to = region_of<T>(run, run.room->filters);
    const bool own = run.s->windows.are_filters;
    *filters = own ? static_cast<const T *>(smp_factor(call, 0)) : to;
    return own ? SMP_OK : order_filters(run, call, run.s->sizes, to);
}

/* The bias of groups, where it is no epilogue. */
template <typename T>
static smp_status spread_bias(const conv2d_run &run, const smp_op_call *call, T *y)
{
    const int64_t n = run.samples * run.s->places * run.s->out;
    SMP_LAUNCH(conv2d_spread<T>, smp_grid(run.cuda, n), SMP_BLOCK, 0, run.cuda->stream,
               static_cast<const T *>(smp_factor(call, 1)), y, n, run.s->out);
    return smp__cuda_launched("conv2d bias");
}

/* y: of the run, channels last. */
template <typename T>
static smp_status make_y(const conv2d_run &run, const smp_op_call *call, const T *filters, T *y)
{
    const bool bias = call->op->n_param > 1, spreads = bias && run.s->sizes.shape.groups > 1;
    const T *u;
    SMP_TRY(take_windows(run, call->in[0], &u));
    if (spreads)
        SMP_TRY(spread_bias(run, call, y));
    return smp__gemm_run(run.cuda, run.product, 1, u, filters, spreads ? 1 : 0, y,
                         bias && !spreads ? smp_factor(call, 1) : NULL, NULL);
}

template <typename T> static smp_status fold(const conv2d_run &run, const float *windows, T *dx)
{
    const conv2d_state *s = run.s;
    const int width = s->windows.are_packs ? smp_pack<T>::N : 1;
    const int64_t n = run.samples * s->in * s->pixels / width;
    const auto kernel = width > 1 ? conv2d_fold<smp_pack<T>::N, T> : conv2d_fold<1, T>;
    SMP_LAUNCH(kernel, smp_grid(run.cuda, n), SMP_BLOCK, 0, run.cuda->stream, windows, dx, s->sizes,
               n);
    return smp__cuda_launched("conv2d input gradient");
}

/* dx: of the run, as kernels write it. */
template <typename T>
static smp_status make_dx(const conv2d_run &run, const smp_op_call *call, const T *filters, T *dx)
{
    const bool folds = !run.s->windows.are_pixels;
    float *windows = region_of<float>(run, run.room->windows);
    const T *dy;
    SMP_TRY(take_dy(run, call, &dy));
    SMP_TRY(smp__gemm_run(run.cuda, run.product, 1, dy, filters, 0,
                          folds ? static_cast<void *>(windows) : dx, NULL, NULL));
    return folds ? fold(run, windows, dx) : SMP_OK;
}

template <typename T> static smp_status add_bias_gradient(const smp_op_call *call)
{
    const conv2d_state *s = static_cast<const conv2d_state *>(call->state);
    return s->windows.turns_y
               ? smp_add_plane_sums<T>(call, call->dparam[1], call->batch, s->out, s->places)
               : smp_add_column_sums<T>(call, call->dparam[1], call->batch * s->places, s->out,
                                        s->sums);
}

/* filters: what runs add to. */
template <typename T>
static smp_status add_to_filters(const conv2d_run &run, const smp_op_call *call, float beta,
                                 float *filters)
{
    const T *u, *dy;
    SMP_TRY(take_windows(run, call->in[0], &u));
    SMP_TRY(take_dy(run, call, &dy));
    return smp__gemm_run(run.cuda, run.product, 1, dy, u, beta, filters, NULL, NULL);
}

static smp_status add_to_weights(const smp_op_call *call, const conv2d_sizes &sizes,
                                 const float *filters)
{
    const smp_cuda *cuda = smp_cuda_of(call);
    const int64_t n = call->graph->param[call->op->param[0]].elements;
    SMP_LAUNCH(conv2d_add, smp_grid(cuda, n), SMP_BLOCK, 0, cuda->stream, filters, call->dparam[0],
               sizes, n);
    return smp__cuda_launched("conv2d weight gradient");
}

#endif

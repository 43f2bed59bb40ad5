/* conv2d on a GPU by unfolding: the windows of a run of samples become the columns of matrices
 * U[sample][group][taps, places] in the workspace, and products in cuBLASLt do the work:
 *
 *   y[out, places]   = W[out, taps] U + b     b is written to y first
 *   dU[taps, places] = W^T dy                 fp32; folded back onto dx, rounded once
 *   dW[out, taps]   += dy U^T                 fp32, apart for each sample, then added in order
 *
 * A call of the library takes all samples of a run, group by group, or all groups, sample by
 * sample, whichever makes fewer calls. How many samples a run has follows from sizes alone
 * (conv2d.h), and so do the bits. Of a pointwise convolution (1 x 1, no stride, no padding) U is x
 * itself and dU is dx. Folding gathers: a thread adds up one pixel, tap by tap in order. Narrow
 * groups make narrow products: a depthwise convolution is bound by their overhead. */
#include "graph/cuda/cuda_axis.cuh"

#include <stdlib.h>

#include "graph/cuda/cuda_gemm.cuh"
#include "graph/ops/convolution/conv2d.h"
#include "graph/ops/ops.h"

/* C = op(A) op(B) of every sample and group of a run. */
typedef struct conv2d_product {
    smp__gemm *whole, *last;           /* of a run; of the last if it is shorter, or NULL */
    int64_t of_group[3], of_sample[3]; /* bytes from one to the next, of A, B and C */
} conv2d_product;

typedef struct conv2d_state {
    smp_convolution_shape shape;
    smp__conv2d_runs runs;
    int64_t pixels, taps, places; /* of a plane, of a group, of a plane of the output */
    bool pointwise;
    conv2d_product forward, input, weight;
} conv2d_state;

/* Element i of U, of all samples: [channel][ky][kx][line][column]. */
template <typename T>
__global__ void __launch_bounds__(SMP_BLOCK)
    conv2d_unfold(const T *x, T *u, smp_convolution_shape s, int64_t n) // (S C, H, W), [n]
{
    for (int64_t i = smp_thread(); i < n; i += smp_threads()) {
        int64_t rest = i;
        const int64_t column = rest % s.out[SMP_WIDTH];
        rest /= s.out[SMP_WIDTH];
        const int64_t line = rest % s.out[SMP_HEIGHT];
        rest /= s.out[SMP_HEIGHT];
        const int64_t kx = rest % s.kernel[1];
        rest /= s.kernel[1];
        const int64_t ky = rest % s.kernel[0], channel = rest / s.kernel[0];
        const int64_t py = line * s.stride[0] + ky * s.dilation[0] - s.padding[0];
        const int64_t px = column * s.stride[1] + kx * s.dilation[1] - s.padding[1];
        const bool inside = py >= 0 && py < s.in[SMP_HEIGHT] && px >= 0 && px < s.in[SMP_WIDTH];
        u[i] = inside ? x[(channel * s.in[SMP_HEIGHT] + py) * s.in[SMP_WIDTH] + px]
                      : smp_from<T>(0.0f);
    }
}

/* The place whose window has the pixel at `tap`, -1 if there is none. */
__device__ __forceinline__ int64_t conv2d_place(const smp_convolution_shape &s, int axis,
                                                int64_t pixel, int64_t tap)
{
    const int64_t first = pixel + s.padding[axis] - tap * s.dilation[axis];
    const int64_t place = first / s.stride[axis];
    return first >= 0 && first % s.stride[axis] == 0 && place < s.out[SMP_HEIGHT + axis] ? place
                                                                                         : -1;
}

template <typename T>
__global__ void __launch_bounds__(SMP_BLOCK)
    conv2d_fold(const float *u, T *dx, smp_convolution_shape s, int64_t n) // [n] of (S C, H, W)
{
    for (int64_t i = smp_thread(); i < n; i += smp_threads()) {
        const int64_t px = i % s.in[SMP_WIDTH], row = i / s.in[SMP_WIDTH];
        const int64_t py = row % s.in[SMP_HEIGHT], channel = row / s.in[SMP_HEIGHT];
        float sum = 0.0f;
        for (int64_t ky = 0; ky < s.kernel[0]; ky++) {
            const int64_t line = conv2d_place(s, 0, py, ky);
            for (int64_t kx = 0; line >= 0 && kx < s.kernel[1]; kx++) {
                const int64_t column = conv2d_place(s, 1, px, kx);
                const int64_t tap = (channel * s.kernel[0] + ky) * s.kernel[1] + kx;
                if (column >= 0)
                    sum += u[(tap * s.out[SMP_HEIGHT] + line) * s.out[SMP_WIDTH] + column];
            }
        }
        dx[i] = smp_from<T>(sum);
    }
}

template <typename T>
__global__ void __launch_bounds__(SMP_BLOCK)
    conv2d_spread(const T *bias, T *y, int64_t n, int64_t channels, int64_t places) // [n]
{
    for (int64_t i = smp_thread(); i < n; i += smp_threads())
        y[i] = bias[i / places % channels];
}

/* The most, up to 64, of which every sample and group starts at a multiple. */
static int64_t alignment_of(const conv2d_state *s, int64_t value_bytes)
{
    const smp_convolution_shape *of = &s->shape;
    const int64_t out = of->out[SMP_CHANNELS] / of->groups;
    const int64_t in = of->in[SMP_CHANNELS] / of->groups;
    const int64_t elements[] = {out * s->places, out * s->taps, s->taps * s->places,
                                in * s->pixels};
    int64_t alignment = 64;
    for (int64_t n : elements)
        while (n * value_bytes % alignment != 0)
            alignment /= 2;
    return alignment;
}

/* Does a call of the library take all samples of a group? Else all groups of a sample. */
static bool takes_samples(const conv2d_state *s, int64_t samples)
{
    return samples >= s->shape.groups;
}

/* `step`: elements from a sample to the next, of A, B and C; those of groups stand in the shape. */
static smp_status make_gemm(const smp_cuda *cuda, const conv2d_state *s, const int64_t step[3],
                            smp__gemm_shape shape, int64_t samples, smp__gemm **out)
{
    shape.count = s->shape.groups;
    if (takes_samples(s, samples)) {
        shape.count = samples;
        for (int i = 0; i < 3; i++)
            shape.step[i] = step[i];
    }
    return smp__gemm_create(cuda, &shape, out);
}

/* Runs of `samples`; `shared`: which of A, B and C is the weight, the same for every sample, or
 * -1. */
static smp_status make_product(const smp_cuda *cuda, const conv2d_state *s,
                               const smp__gemm_shape *shape, int64_t samples, int shared,
                               conv2d_product *out)
{
    int64_t step[3];
    for (int i = 0; i < 3; i++) {
        const int64_t bytes = smp_dtype_bytes(i == 2 ? shape->out : shape->in);
        step[i] = i == shared ? 0 : s->shape.groups * shape->step[i];
        out->of_group[i] = bytes * shape->step[i];
        out->of_sample[i] = bytes * step[i];
    }
    const int64_t left = s->shape.batch % samples;
    SMP_TRY(make_gemm(cuda, s, step, *shape, samples, &out->whole));
    return left > 0 ? make_gemm(cuda, s, step, *shape, left, &out->last) : SMP_OK;
}

static void release_product(const conv2d_product *p)
{
    smp__gemm_destroy(p->whole);
    smp__gemm_destroy(p->last);
}

/* Multiplies `samples` samples from these addresses on; `last`: they are fewer than others have. */
static smp_status multiply(const smp_cuda *cuda, const conv2d_state *s, const conv2d_product *p,
                           int64_t samples, bool last, const void *a, const void *b, float beta,
                           void *c)
{
    const bool by_group = takes_samples(s, samples);
    const int64_t *step = by_group ? p->of_group : p->of_sample;
    const int64_t n = by_group ? s->shape.groups : samples;
    for (int64_t i = 0; i < n; i++)
        SMP_TRY(smp__gemm_run(cuda, last ? p->last : p->whole, 1,
                              static_cast<const char *>(a) + i * step[0],
                              static_cast<const char *>(b) + i * step[1], beta,
                              static_cast<char *>(c) + i * step[2], NULL, NULL));
    return SMP_OK;
}

static smp_status make_products(const smp_graph *graph, const smp_cuda *cuda, conv2d_state *s)
{
    const smp_dtype type = smp_precision_dtype(graph->target.precision);
    const int64_t out = s->shape.out[SMP_CHANNELS] / s->shape.groups;
    const int64_t of_w = out * s->taps, of_u = s->taps * s->places, of_y = out * s->places;
    smp__gemm_shape shape = {};
    shape.in = shape.out = type;
    shape.alignment = alignment_of(s, smp_dtype_bytes(type));

    smp__gemm_shape forward = shape;
    forward.m = out, forward.n = s->places, forward.k = s->taps;
    forward.lda = s->taps, forward.ldb = s->places, forward.ldc = s->places;
    forward.step[0] = of_w, forward.step[1] = of_u, forward.step[2] = of_y;
    SMP_TRY(make_product(cuda, s, &forward, s->runs.samples, 0, &s->forward));
    if (!graph->training)
        return SMP_OK;

    smp__gemm_shape input = shape;
    input.trans_a = true;
    input.out = s->pointwise ? shape.out : SMP_F32;
    input.m = s->taps, input.n = s->places, input.k = out;
    input.lda = s->taps, input.ldb = s->places, input.ldc = s->places;
    input.step[0] = of_w, input.step[1] = of_y, input.step[2] = of_u;
    SMP_TRY(make_product(cuda, s, &input, s->runs.samples, 0, &s->input));

    smp__gemm_shape weight = shape;
    weight.trans_b = true;
    weight.out = SMP_F32;
    weight.m = out, weight.n = s->taps, weight.k = s->places;
    weight.lda = s->places, weight.ldb = s->places, weight.ldc = s->taps;
    weight.step[0] = of_y, weight.step[1] = of_u, weight.step[2] = of_w;
    return make_product(cuda, s, &weight, s->runs.weight_samples, -1, &s->weight);
}

static void release(void *state)
{
    conv2d_state *s = static_cast<conv2d_state *>(state);
    if (!s)
        return;
    release_product(&s->forward);
    release_product(&s->input);
    release_product(&s->weight);
    free(s);
}

static smp_status prepare(const smp_graph *graph, const smp_op *op, int64_t batch, void *device,
                          void **state)
{
    conv2d_state *s = static_cast<conv2d_state *>(calloc(1, sizeof *s));
    *state = NULL;
    if (!s)
        return smp_fail_memory(sizeof *s);
    s->shape = smp__conv2d_shape(graph, op, batch);
    s->runs = smp__conv2d_runs_of(graph, op, batch);
    s->pixels = s->shape.in[SMP_HEIGHT] * s->shape.in[SMP_WIDTH];
    s->taps = smp_convolution_taps(&s->shape);
    s->places = smp_convolution_places(&s->shape);
    s->pointwise = smp_convolution_is_pointwise(&s->shape);
    smp_status status = make_products(graph, static_cast<const smp_cuda *>(device), s);
    if (status == SMP_OK)
        *state = s;
    else
        release(s);
    return smp_fail_context(status, "op '%s' (conv2d)", op->name);
}

/* *u: U of samples from `first` on, in `to` unless it is x itself. */
template <typename T>
static smp_status unfold(const smp_op_call *call, const conv2d_state *s, int64_t first,
                         int64_t samples, void *to, const T **u)
{
    const smp_cuda *cuda = smp_cuda_of(call);
    const T *x =
        static_cast<const T *>(call->in[0]) + first * s->shape.in[SMP_CHANNELS] * s->pixels;
    const int64_t n = samples * s->shape.groups * s->taps * s->places;
    *u = x;
    if (s->pointwise)
        return SMP_OK;
    T *windows = static_cast<T *>(to);
    *u = windows;
    SMP_LAUNCH(conv2d_unfold<T>, smp_grid(cuda, n), SMP_BLOCK, 0, cuda->stream, x, windows,
               s->shape, n);
    return smp__cuda_launched("conv2d");
}

/* Samples in the run that begins with sample `first`. */
static int64_t samples_from(int64_t first, int64_t batch, int64_t each)
{
    return batch - first < each ? batch - first : each;
}

template <typename T> static smp_status forward(const smp_op_call *call)
{
    const conv2d_state *s = static_cast<const conv2d_state *>(call->state);
    const smp_cuda *cuda = smp_cuda_of(call);
    const bool bias = call->op->n_param > 1;
    const int64_t channels = s->shape.out[SMP_CHANNELS], n = channels * s->places;
    const int64_t each = s->runs.samples;
    T *y = static_cast<T *>(call->out[0]);
    if (bias) {
        SMP_LAUNCH(conv2d_spread<T>, smp_grid(cuda, call->batch * n), SMP_BLOCK, 0, cuda->stream,
                   static_cast<const T *>(smp_factor(call, 1)), y, call->batch * n, channels,
                   s->places);
        SMP_TRY(smp__cuda_launched("conv2d bias"));
    }
    for (int64_t b = 0; b < call->batch; b += each) {
        const int64_t samples = samples_from(b, call->batch, each);
        const T *u;
        SMP_TRY(unfold(call, s, b, samples, call->workspace, &u));
        SMP_TRY(multiply(cuda, s, &s->forward, samples, samples != each, smp_factor(call, 0), u,
                         bias ? 1 : 0, y + b * n));
    }
    return SMP_OK;
}

template <typename T> static smp_status backward_input(const smp_op_call *call)
{
    const conv2d_state *s = static_cast<const conv2d_state *>(call->state);
    const smp_cuda *cuda = smp_cuda_of(call);
    const int64_t image = s->shape.in[SMP_CHANNELS] * s->pixels;
    const int64_t n = s->shape.out[SMP_CHANNELS] * s->places, each = s->runs.samples;
    const T *dy = reinterpret_cast<const T *>(call->dout[0]);
    T *dx = reinterpret_cast<T *>(call->din[0]);
    float *u = static_cast<float *>(call->workspace);
    for (int64_t b = 0; dx && b < call->batch; b += each) {
        const int64_t samples = samples_from(b, call->batch, each);
        void *to = s->pointwise ? static_cast<void *>(dx + b * image) : u;
        SMP_TRY(multiply(cuda, s, &s->input, samples, samples != each, smp_factor(call, 0),
                         dy + b * n, 0, to));
        if (s->pointwise)
            continue;
        SMP_LAUNCH(conv2d_fold<T>, smp_grid(cuda, samples * image), SMP_BLOCK, 0, cuda->stream, u,
                   dx + b * image, s->shape, samples * image);
        SMP_TRY(smp__cuda_launched("conv2d input gradient"));
    }
    return SMP_OK;
}

/* Where a run is one sample the product adds to the gradient itself. The parts lie first in the
 * workspace, U after them. */
template <typename T> static smp_status backward_weight(const smp_op_call *call)
{
    const conv2d_state *s = static_cast<const conv2d_state *>(call->state);
    const smp_cuda *cuda = smp_cuda_of(call);
    const int64_t channels = s->shape.out[SMP_CHANNELS], each = s->runs.weight_samples;
    const int64_t weights = channels * s->taps;
    const bool in_parts = each > 1;
    constexpr int N = smp_pack<float>::N;
    const T *dy = reinterpret_cast<const T *>(call->dout[0]);
    float *part = static_cast<float *>(call->workspace);
    float *windows = in_parts ? part + each * weights : part;
    if (call->op->n_param > 1)
        SMP_TRY(smp_add_plane_sums<T>(call, call->dparam[1], call->batch, channels, s->places));
    for (int64_t b = 0; b < call->batch; b += each) {
        const int64_t samples = samples_from(b, call->batch, each);
        const T *u;
        SMP_TRY(unfold(call, s, b, samples, windows, &u));
        SMP_TRY(multiply(cuda, s, &s->weight, samples, samples != each,
                         dy + b * channels * s->places, u, in_parts ? 0 : 1,
                         in_parts ? part : call->dparam[0]));
        if (!in_parts)
            continue;
        SMP_TRY(weights % N == 0 ? (smp_launch_column_sums<float, N, true>(
                                       cuda, part, call->dparam[0], samples, weights, 1))
                                 : (smp_launch_column_sums<float, 1, true>(
                                       cuda, part, call->dparam[0], samples, weights, 1)));
    }
    return SMP_OK;
}

SMP_CUDA_KERNELS(conv2d) = {
    .prepare = prepare,
    .release = release,
    .forward = SMP_TYPED(forward),
    .backward_input = SMP_TYPED(backward_input),
    .backward_weight = SMP_TYPED(backward_weight),
};

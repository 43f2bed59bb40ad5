/* batchnorm on a GPU, as in batchnorm.c. A channel's values are shared out to as many blocks as
 * cuda_needs makes room for; each leaves two sums in the workspace, which a warp per channel adds
 * in order. The parts depend on the sizes alone, so the result does too; what is added up is float
 * within a part and double over parts. Then one pass over all values. Where channels lie last,
 * passes are those of channels.cuh. Bound by memory: O(elements). */
#include "graph/ops/norm/channels.cuh"
#include "graph/ops/elementwise/unary.h"

namespace
{
/* (samples, channels, space), or (samples, space, channels): one slab. */
struct layout {
    smp_channels sums;       // of what is counted, without the padding
    int64_t space, all_rows; // with it
    bool last;
};

/* A channel's y = (x - mean) * scale + bias. */
struct normalize {
    const float *mean, *variance, *weight, *bias;
    float eps;
    struct channel {
        float mean, scale, bias;
    };
    __device__ __forceinline__ channel of(int64_t, int64_t c) const
    {
        return channel{mean[c], weight[c] / sqrtf(variance[c] + eps), bias[c]};
    }
    __device__ __forceinline__ void operator()(const channel &c, const float *x, float *y) const
    {
        y[0] = fmaf(x[0] - c.mean, c.scale, c.bias);
    }
};

/* That, rounded, and the relu of it. */
template <typename T> struct normalize_relu {
    normalize own;
    typedef normalize::channel channel;
    __device__ __forceinline__ channel of(int64_t slab, int64_t c) const
    {
        return own.of(slab, c);
    }
    __device__ __forceinline__ void operator()(const channel &c, const float *x, float *y) const
    {
        own(c, x, y);
        y[0] = smp_float(smp_from<T>(y[0]));
        y[1] = smp__relu(y[0]);
    }
};

/* The gradient of y: dy, or (relu_gradient) made of that of the relu of y, or of its own. */
struct own_gradient {
    normalize own;
    struct channel {
        float mean, scale;
    };
    __device__ __forceinline__ channel of(int64_t slab, int64_t c) const
    {
        const normalize::channel all = own.of(slab, c);
        return channel{all.mean, all.scale};
    }
    __device__ __forceinline__ float gradient(const channel &, float, float dy) const
    {
        return dy;
    }
};

template <typename T> struct relu_gradient {
    normalize own;
    typedef normalize::channel channel;
    __device__ __forceinline__ channel of(int64_t slab, int64_t c) const
    {
        return own.of(slab, c);
    }
    __device__ __forceinline__ float gradient(const channel &c, float x, float dy) const
    {
        float y;
        own(c, &x, &y);
        return smp_float(smp_from<T>(smp__relu_gradient(smp_float(smp_from<T>(y)), dy)));
    }
};

/* x, dy to dx, from the sums over a channel's n values, which its first part has. */
template <typename G> struct input_gradient {
    G of_y;
    const smp_channel_sums *part;
    int64_t parts;
    float n;
    struct channel {
        typename G::channel y;
        float mean_dy, slope;
    };
    __device__ __forceinline__ channel of(int64_t slab, int64_t c) const
    {
        const smp_channel_sums s = part[c * parts];
        const float squared = of_y.own.variance[c] + of_y.own.eps;
        return channel{of_y.of(slab, c), s.first / n, s.second / n / squared};
    }
    __device__ __forceinline__ void operator()(const channel &c, const float *in, float *dx) const
    {
        const float dy = of_y.gradient(c.y, in[0], in[1]);
        dx[0] = c.y.scale * (dy - c.mean_dy - (in[0] - c.y.mean) * c.slope);
    }
};

struct statistics {
    float *mean, *variance; // [channels]
    __device__ void operator()(int64_t c, float m, float v) const
    {
        mean[c] = m;
        variance[c] = v;
    }
};

struct weight_gradients {
    float *weight, *bias, *mean, *variance; // [channels] each, added to
    const float *own_mean, *own_variance, *running_mean, *running_variance;
    double share, unbiased; // of this micro-batch in the running statistics
    float eps;
    __device__ double factor(int64_t, int64_t) const
    {
        return 1;
    }
    __device__ void operator()(int64_t c, double sum, double dot) const
    {
        weight[c] += (float)(dot / sqrt((double)own_variance[c] + (double)eps));
        bias[c] += (float)sum;
        mean[c] += (float)(share * ((double)own_mean[c] - (double)running_mean[c]));
        variance[c] +=
            (float)(share * ((double)own_variance[c] * unbiased - (double)running_variance[c]));
    }
};
} // namespace

/* The values of this block's part of its channel that are this thread's, one after the other. */
struct channel_walk {
    int64_t left, at; // at: of the value, in (samples, channels, space)
    int64_t place, place_step, row_step, space, stride;

    __device__ explicit channel_walk(const layout &l)
        : space(l.space), stride(l.sums.channels * l.space)
    {
        const int64_t first = smp_part_begin(l.sums, blockIdx.y) + threadIdx.x;
        left = smp_part_begin(l.sums, blockIdx.y + 1) - first;
        place = first % space;
        place_step = blockDim.x % space;
        row_step = blockDim.x / space * stride + place_step;
        at = first / space * stride + blockIdx.x * space + place;
    }
    __device__ __forceinline__ bool more() const
    {
        return left > 0;
    }
    __device__ __forceinline__ void next()
    {
        left -= blockDim.x;
        at += row_step;
        place += place_step;
        if (place >= space) {
            place -= space;
            at += stride - space;
        }
    }
};

template <typename T>
__global__ void __launch_bounds__(SMP_BLOCK)
    batchnorm_moments(const T *x, smp_channel_sums *part, layout l) // grid (channels, parts)
{
    __shared__ float scratch[32];
    const int64_t n = smp_part_size(l.sums, blockIdx.y);
    float sum = 0, squares = 0;
    for (channel_walk w(l); w.more(); w.next())
        sum += smp_float(x[w.at]);
    const float mean = n > 0 ? smp_block_sum(sum, scratch) / (float)n : 0.0f;
    for (channel_walk w(l); w.more(); w.next()) {
        const float d = smp_float(x[w.at]) - mean;
        squares += d * d;
    }
    squares = smp_block_sum(squares, scratch);
    if (threadIdx.x == 0)
        part[blockIdx.x * l.sums.parts + blockIdx.y] = smp_channel_sums{mean, squares};
}

template <typename T, typename F>
__global__ void __launch_bounds__(SMP_BLOCK)
    batchnorm_dots(const T *x, const T *dy, smp_channel_sums *part, layout l, F f)
{
    __shared__ float scratch[32];
    const typename F::channel of = f.of(0, blockIdx.x);
    float sum = 0, dot = 0;
    for (channel_walk w(l); w.more(); w.next()) {
        const float value = smp_float(x[w.at]), g = f.gradient(of, value, smp_float(dy[w.at]));
        sum += g;
        dot += g * (value - of.mean);
    }
    sum = smp_block_sum(sum, scratch);
    dot = smp_block_sum(dot, scratch);
    if (threadIdx.x == 0)
        part[blockIdx.x * l.sums.parts + blockIdx.y] = smp_channel_sums{sum, dot};
}

/* f(what belongs to the channel, in values, out values); zeroes from value `counted` on. W divides
 * space. */
template <int W, typename T, int IN, int OUT, typename F>
__global__ void __launch_bounds__(SMP_BLOCK)
    batchnorm_map(smp_streams<T, IN, OUT> s, layout l, int64_t n, int64_t counted, F f)
{
    for (int64_t i = smp_thread() * W; i < n; i += smp_threads() * W) {
        const typename F::channel of = f.of(0, i / l.space % l.sums.channels);
        float x[IN][W], y[OUT][W] = {};
        for (int k = 0; k < IN && i < counted; k++)
            smp_read<W>(x[k], s.in[k] + i);
        for (int e = 0; e < W && i < counted; e++) {
            float in[IN], out[OUT];
            for (int k = 0; k < IN; k++)
                in[k] = x[k][e];
            f(of, in, out);
            for (int k = 0; k < OUT; k++)
                y[k][e] = out[k];
        }
        for (int k = 0; k < OUT; k++)
            smp_write<W>(s.out[k] + i, y[k]);
    }
}

static layout layout_of(const smp_op_call *call)
{
    const smp_tensor *in = smp__in(call->graph, call->op, 0);
    const int64_t channels = in->shape.dim[0], space = in->elements / channels;
    smp_op_needs needs; // made room for as many parts as there shall be
    smp_op_needs_get(call->graph, call->op, call->batch, &needs);
    const int64_t parts = needs.workspace_bytes / (channels * (int64_t)sizeof(smp_channel_sums));
    return layout{{1, (call->batch - call->padding) * space, channels, parts},
                  space,
                  call->batch * space,
                  in->channels_last};
}

static float eps_of(const smp_op_call *call)
{
    return (float)call->op->attr[SMP__BATCHNORM_EPS].f;
}

static dim3 part_grid(const layout &l)
{
    return dim3((unsigned)l.sums.channels, (unsigned)l.sums.parts);
}

/* Of all rows; zeroes after `counted` of them. */
template <typename T, int IN, int OUT, typename F>
static void map_channels(const smp_op_call *call, const smp_streams<T, IN, OUT> &s, const layout &l,
                         int64_t counted, const F &f)
{
    const smp_cuda *cuda = smp_cuda_of(call);
    smp_channels all = l.sums;
    all.rows = l.all_rows;
    if (l.last) {
        smp_launch_channel_map(call, s, all, counted, f);
        return;
    }
    const int width = smp_width<T>(l.space);
    const int64_t n = all.rows * all.channels;
    const auto kernel =
        width > 1 ? batchnorm_map<smp_pack<T>::N, T, IN, OUT, F> : batchnorm_map<1, T, IN, OUT, F>;
    SMP_LAUNCH(kernel, smp_grid(cuda, n / width), SMP_BLOCK, 0, cuda->stream, s, l, n,
               counted * all.channels, f);
}

template <typename T> static normalize normalize_of(const smp_op_call *call, const layout &l)
{
    const smp_cuda *cuda = smp_cuda_of(call);
    const T *x = static_cast<const T *>(call->in[0]);
    normalize f = {call->param[SMP__BATCHNORM_MEAN], call->param[SMP__BATCHNORM_VARIANCE],
                   call->param[SMP__BATCHNORM_WEIGHT], call->param[SMP__BATCHNORM_BIAS],
                   eps_of(call)};
    if (!call->step.training)
        return f;
    float *aux = static_cast<float *>(call->aux);
    smp_channel_sums *part = static_cast<smp_channel_sums *>(call->workspace);
    if (l.last)
        smp_launch_moments<T>(call, x, l.sums);
    else
        SMP_LAUNCH(batchnorm_moments<T>, part_grid(l), SMP_BLOCK, 0, cuda->stream, x, part, l);
    const statistics to = {aux, aux + l.sums.channels};
    SMP_LAUNCH(smp_channel_statistics<statistics>, smp_warp_grid(l.sums.channels), SMP_BLOCK, 0,
               cuda->stream, static_cast<const smp_channel_sums *>(part), l.sums, (int64_t)1, to);
    f.mean = to.mean;
    f.variance = to.variance;
    return f;
}

template <typename T> static smp_status forward(const smp_op_call *call)
{
    const layout l = layout_of(call);
    const normalize f = normalize_of<T>(call, l);
    map_channels(call, smp_streams<T, 1, 1>{{(const T *)call->in[0]}, {(T *)call->out[0]}}, l,
                 l.all_rows, f);
    return smp__cuda_launched("batchnorm");
}

template <typename T>
static smp_status forward_fused(const smp_op_call *call, const smp_op_call *next)
{
    const layout l = layout_of(call);
    const normalize_relu<T> f = {normalize_of<T>(call, l)};
    map_channels(
        call,
        smp_streams<T, 1, 2>{{(const T *)call->in[0]}, {(T *)call->out[0], (T *)next->out[0]}}, l,
        l.all_rows, f);
    return smp__cuda_launched("batchnorm");
}

/* Into the workspace: the sums of parts. */
template <typename T, typename F>
static void add_dots(const smp_op_call *call, const layout &l, const F &f)
{
    if (l.last)
        smp_launch_dots<T>(call, call->in[0], call->dout[0], l.sums, f);
    else
        SMP_LAUNCH((batchnorm_dots<T, F>), part_grid(l), SMP_BLOCK, 0, smp_cuda_of(call)->stream,
                   static_cast<const T *>(call->in[0]), (const T *)call->dout[0],
                   static_cast<smp_channel_sums *>(call->workspace), l, f);
}

/* From the parts, which are left as they are. */
static void add_weight_gradients(const smp_op_call *call, const layout &l)
{
    const double n = (double)l.sums.rows;
    const float *aux = static_cast<const float *>(call->aux);
    weight_gradients to = {call->dparam[SMP__BATCHNORM_WEIGHT],
                           call->dparam[SMP__BATCHNORM_BIAS],
                           call->dparam[SMP__BATCHNORM_MEAN],
                           call->dparam[SMP__BATCHNORM_VARIANCE],
                           aux,
                           aux + l.sums.channels,
                           call->param[SMP__BATCHNORM_MEAN],
                           call->param[SMP__BATCHNORM_VARIANCE],
                           0,
                           n > 1 ? n / (n - 1) : 1,
                           eps_of(call)};
    to.share = smp__running_share(call, call->op->attr[SMP__BATCHNORM_MOMENTUM].f);
    SMP_LAUNCH(smp_channel_gradients<weight_gradients>, smp_warp_grid(l.sums.channels), SMP_BLOCK,
               0, smp_cuda_of(call)->stream, static_cast<const smp_channel_sums *>(call->workspace),
               l.sums, to);
}

/* From the parts, of which the first then has the sums of all. */
template <typename T, typename G>
static void write_input_gradient(const smp_op_call *call, const layout &l, const G &of_y)
{
    smp_channel_sums *part = static_cast<smp_channel_sums *>(call->workspace);
    const input_gradient<G> f = {of_y, part, l.sums.parts, (float)l.sums.rows};
    SMP_LAUNCH(smp_channel_group_sums, smp_warp_grid(l.sums.channels), SMP_BLOCK, 0,
               smp_cuda_of(call)->stream, part, l.sums, (int64_t)1,
               static_cast<const float *>(NULL));
    map_channels(call,
                 smp_streams<T, 2, 1>{{(const T *)call->in[0], (const T *)call->dout[0]},
                                      {(T *)call->din[0]}},
                 l, l.sums.rows, f);
}

/* Either gradient or both, from one pass of sums. */
template <typename T, typename G>
static smp_status gradients(const smp_op_call *call, const layout &l, bool weights, bool input,
                            const G &of_y)
{
    if (weights || input)
        add_dots<T>(call, l, of_y);
    if (weights && l.sums.rows > 0)
        add_weight_gradients(call, l);
    if (input)
        write_input_gradient<T>(call, l, of_y);
    return smp__cuda_launched("batchnorm backward");
}

template <typename T>
static smp_status backward_of(const smp_op_call *call, bool weights, bool input)
{
    const layout l = layout_of(call);
    const float *mean = static_cast<const float *>(call->aux);
    const normalize own = {mean, mean + l.sums.channels, call->param[SMP__BATCHNORM_WEIGHT],
                           call->param[SMP__BATCHNORM_BIAS], eps_of(call)};
    return smp_op_absorbs(call->graph, call->op)
               ? gradients<T>(call, l, weights, input, relu_gradient<T>{own})
               : gradients<T>(call, l, weights, input, own_gradient{own});
}

template <typename T> static smp_status backward_input(const smp_op_call *call)
{
    return backward_of<T>(call, false, call->din[0] != NULL);
}

template <typename T> static smp_status backward_weight(const smp_op_call *call)
{
    return backward_of<T>(call, true, false);
}

template <typename T> static smp_status backward(const smp_op_call *call)
{
    return backward_of<T>(call, true, call->din[0] != NULL);
}

SMP_CUDA_KERNELS(batchnorm) = {
    .forward = SMP_TYPED(forward),
    .backward_input = SMP_TYPED(backward_input),
    .backward_weight = SMP_TYPED(backward_weight),
    .forward_fused = SMP_TYPED_PAIR(forward_fused),
    .backward = SMP_TYPED(backward),
};

/* groupnorm on a GPU, the formulas of groupnorm.c: a warp or a block for each group of a sample,
 * which reads it again from the caches, 16 bytes at a time where channels are multiples of that.
 * The weights' gradients: a block for each channel, which goes through the batch. Where channels
 * lie last: sums of channels and maps of channels.cuh, every sample a slab. Bound by memory. */
#include "graph/cuda/cuda_row.cuh"
#include "graph/ops/norm/channels.cuh"

namespace
{

struct alignas(8) group_stats {
    float mean, rstd;
};

/* The tensors of a call: in, out, dout, din (B, groups, channels, places), weight, bias and their
 * gradients (groups, channels), stats (B, groups). */
template <typename T> struct group_norm {
    const T *in, *dout;
    T *out, *din;
    const float *weight, *bias;
    float *dweight, *dbias;
    group_stats *stats;
    int64_t batch, groups, channels, places;
    float eps;
};

/* What belongs to a channel of a sample where channels lie last. */
struct group_channels {
    const float *weight, *bias;
    group_stats *stats;
    int64_t groups, channels;
    __device__ __forceinline__ int64_t group_of(int64_t sample, int64_t c) const
    {
        return sample * groups + c / channels;
    }
};

struct last_normalize {
    group_channels at;
    struct channel {
        float mean, rstd, weight, bias;
    };
    __device__ __forceinline__ channel of(int64_t sample, int64_t c) const
    {
        const group_stats s = at.stats[at.group_of(sample, c)];
        return channel{s.mean, s.rstd, at.weight[c], at.bias[c]};
    }
    __device__ __forceinline__ void operator()(const channel &c, const float *x, float *y) const
    {
        y[0] = (x[0] - c.mean) * c.rstd * c.weight + c.bias;
    }
};

struct last_gradient {
    group_channels at;
    struct channel {
        float mean;
    };
    __device__ __forceinline__ channel of(int64_t sample, int64_t c) const
    {
        return channel{at.stats[at.group_of(sample, c)].mean};
    }
    __device__ __forceinline__ float gradient(const channel &, float, float dy) const
    {
        return dy;
    }
};

/* x, dy to dx, from the sums of g and g * (x - mean) over a group, in its first part. */
struct last_input_gradient {
    group_channels at;
    const smp_channel_sums *part;
    int64_t group_parts;
    float n;
    struct channel {
        float mean, rstd, weight, mean_g, mean_gx;
    };
    __device__ __forceinline__ channel of(int64_t sample, int64_t c) const
    {
        const int64_t g = at.group_of(sample, c);
        const group_stats s = at.stats[g];
        const smp_channel_sums sums = part[g * group_parts];
        return channel{s.mean, s.rstd, at.weight[c], sums.first / n, sums.second * s.rstd / n};
    }
    __device__ __forceinline__ void operator()(const channel &c, const float *in, float *dx) const
    {
        dx[0] = c.rstd * (in[1] * c.weight - c.mean_g - (in[0] - c.mean) * c.rstd * c.mean_gx);
    }
};

struct last_statistics {
    group_stats *stats;
    float eps;
    __device__ void operator()(int64_t g, float mean, float variance) const
    {
        stats[g] = group_stats{mean, 1.0f / sqrtf(variance + eps)};
    }
};

struct last_weight_gradients {
    group_channels at;
    float *dweight, *dbias;
    __device__ double factor(int64_t sample, int64_t c) const
    {
        return (double)at.stats[at.group_of(sample, c)].rstd;
    }
    __device__ void operator()(int64_t c, double sum, double dot) const
    {
        dweight[c] += (float)dot;
        dbias[c] += (float)sum;
    }
};
} // namespace

/* W values of a channel to a thread, places a multiple of W. */
template <int W, typename T, bool ONE_WARP>
__global__ void __launch_bounds__(SMP_ROW_MAX_LANES) groupnorm_forward(group_norm<T> a)
{
    __shared__ float scratch[32];
    const int64_t n = a.channels * a.places, stride = (int64_t)blockDim.x * W;
    for (int64_t r = smp_first_row(); r < a.batch * a.groups; r += smp_row_stride()) {
        const int64_t channel = r % a.groups * a.channels; // the group's first
        const T *in = a.in + r * n;
        float x[W], sum = 0, squares = 0;
        for (int64_t i = (int64_t)threadIdx.x * W; i < n; i += stride) {
            smp_read<W>(x, in + i);
            for (int k = 0; k < W; k++)
                sum += x[k];
        }
        const float mean = smp_row_sum<ONE_WARP>(sum, scratch) / (float)n;
        for (int64_t i = (int64_t)threadIdx.x * W; i < n; i += stride) {
            smp_read<W>(x, in + i);
            for (int k = 0; k < W; k++)
                squares += (x[k] - mean) * (x[k] - mean);
        }
        const float variance = smp_row_sum<ONE_WARP>(squares, scratch) / (float)n;
        const float rstd = 1.0f / sqrtf(variance + a.eps);
        if (threadIdx.x == 0)
            a.stats[r] = group_stats{mean, rstd};
        for (int64_t i = (int64_t)threadIdx.x * W; i < n; i += stride) {
            const int64_t c = channel + i / a.places;
            smp_read<W>(x, in + i);
            for (int k = 0; k < W; k++)
                x[k] = (x[k] - mean) * rstd * a.weight[c] + a.bias[c];
            smp_write<W>(a.out + r * n + i, x);
        }
    }
}

template <int W, typename T, bool ONE_WARP>
__global__ void __launch_bounds__(SMP_ROW_MAX_LANES) groupnorm_backward(group_norm<T> a)
{
    __shared__ float scratch[32];
    const int64_t n = a.channels * a.places, stride = (int64_t)blockDim.x * W;
    for (int64_t r = smp_first_row(); r < a.batch * a.groups; r += smp_row_stride()) {
        const float *weight = a.weight + r % a.groups * a.channels;
        const group_stats s = a.stats[r];
        float x[W], dy[W], sum = 0, dot = 0; // of g = dy * weight, of g * (x - mean)
        for (int64_t i = (int64_t)threadIdx.x * W; i < n; i += stride) {
            const float w = weight[i / a.places];
            smp_read<W>(x, a.in + r * n + i);
            smp_read<W>(dy, a.dout + r * n + i);
            for (int k = 0; k < W; k++) {
                sum += dy[k] * w;
                dot += dy[k] * w * (x[k] - s.mean);
            }
        }
        const float mean_g = smp_row_sum<ONE_WARP>(sum, scratch) / (float)n;
        const float mean_gx = smp_row_sum<ONE_WARP>(dot, scratch) * s.rstd / (float)n;
        for (int64_t i = (int64_t)threadIdx.x * W; i < n; i += stride) {
            const float w = weight[i / a.places];
            smp_read<W>(x, a.in + r * n + i);
            smp_read<W>(dy, a.dout + r * n + i);
            for (int k = 0; k < W; k++)
                x[k] = s.rstd * (dy[k] * w - mean_g - (x[k] - s.mean) * s.rstd * mean_gx);
            smp_write<W>(a.din + r * n + i, x);
        }
    }
}

template <int W, typename T>
__global__ void __launch_bounds__(SMP_BLOCK) groupnorm_weights(group_norm<T> a)
{
    __shared__ float scratch[32];
    const int64_t all = a.groups * a.channels, steps = a.places / W;
    for (int64_t c = blockIdx.x; c < all; c += gridDim.x) {
        float x[W], dy[W], weight_sum = 0, bias_sum = 0;
        for (int64_t i = threadIdx.x; i < a.batch * steps; i += blockDim.x) {
            const int64_t b = i / steps, at = (b * all + c) * a.places + (i - b * steps) * W;
            const group_stats s = a.stats[b * a.groups + c / a.channels];
            smp_read<W>(x, a.in + at);
            smp_read<W>(dy, a.dout + at);
            for (int k = 0; k < W; k++) {
                weight_sum += dy[k] * ((x[k] - s.mean) * s.rstd);
                bias_sum += dy[k];
            }
        }
        weight_sum = smp_block_sum(weight_sum, scratch);
        bias_sum = smp_block_sum(bias_sum, scratch);
        if (threadIdx.x == 0) {
            a.dweight[c] += weight_sum;
            a.dbias[c] += bias_sum;
        }
    }
}

template <typename T> static group_norm<T> arguments(const smp_op_call *call)
{
    const smp_tensor *in = smp__in(call->graph, call->op, 0);
    group_norm<T> a = {};
    a.in = static_cast<const T *>(call->in[0]);
    a.dout = call->dout ? reinterpret_cast<const T *>(call->dout[0]) : NULL;
    a.out = static_cast<T *>(call->out[0]);
    a.din = call->din ? reinterpret_cast<T *>(call->din[0]) : NULL;
    a.weight = call->param[0];
    a.bias = call->param[1];
    a.dweight = call->dparam ? call->dparam[0] : NULL;
    a.dbias = call->dparam ? call->dparam[1] : NULL;
    a.stats = static_cast<group_stats *>(call->aux);
    a.batch = call->batch;
    a.groups = call->op->attr[SMP__GROUPNORM_GROUPS].i;
    a.channels = in->shape.dim[0] / a.groups;
    a.places = in->elements / in->shape.dim[0];
    a.eps = (float)call->op->attr[SMP__GROUPNORM_EPS].f;
    return a;
}

/* Where channels lie last. */
static bool lies_last(const smp_op_call *call)
{
    return smp__in(call->graph, call->op, 0)->channels_last;
}

template <typename T> static smp_channels sizes_of(const group_norm<T> &a)
{
    const int64_t channels = a.groups * a.channels;
    return {a.batch, a.places, channels,
            smp__channel_parts(a.batch, a.places, channels, (int)sizeof(T))};
}

template <typename T> static group_channels channels_of(const group_norm<T> &a)
{
    return {a.weight, a.bias, a.stats, a.groups, a.channels};
}

template <typename T>
static smp_status forward_last(const smp_op_call *call, const group_norm<T> &a)
{
    const smp_channels l = sizes_of(a);
    smp_launch_moments<T>(call, a.in, l);
    SMP_LAUNCH(smp_channel_statistics<last_statistics>, smp_warp_grid(a.batch * a.groups),
               SMP_BLOCK, 0, smp_cuda_of(call)->stream,
               static_cast<const smp_channel_sums *>(call->workspace), l, a.channels,
               last_statistics{a.stats, a.eps});
    smp_launch_channel_map(call, smp_streams<T, 1, 1>{{a.in}, {a.out}}, l, l.rows,
                           last_normalize{channels_of(a)});
    return smp__cuda_launched("groupnorm");
}

/* Either gradient or both, from one pass of sums. */
template <typename T>
static smp_status backward_last(const smp_op_call *call, const group_norm<T> &a, bool weights,
                                bool input)
{
    const smp_cuda *cuda = smp_cuda_of(call);
    const smp_channels l = sizes_of(a);
    const group_channels at = channels_of(a);
    smp_channel_sums *part = static_cast<smp_channel_sums *>(call->workspace);
    smp_launch_dots<T>(call, a.in, a.dout, l, last_gradient{at});
    if (weights)
        SMP_LAUNCH(smp_channel_gradients<last_weight_gradients>, smp_warp_grid(l.channels),
                   SMP_BLOCK, 0, cuda->stream, static_cast<const smp_channel_sums *>(part), l,
                   last_weight_gradients{at, a.dweight, a.dbias});
    if (input) {
        SMP_LAUNCH(smp_channel_group_sums, smp_warp_grid(a.batch * a.groups), SMP_BLOCK, 0,
                   cuda->stream, part, l, a.channels, a.weight);
        smp_launch_channel_map(
            call, smp_streams<T, 2, 1>{{a.in, a.dout}, {a.din}}, l, l.rows,
            last_input_gradient{at, part, a.channels * l.parts, (float)(a.channels * a.places)});
    }
    return smp__cuda_launched("groupnorm backward");
}

/* One of the kernels over groups; a group's lanes follow from its size. */
template <typename T>
static smp_status launch_groups(const smp_op_call *call, const group_norm<T> &a, int lanes,
                                void (*kernel)(group_norm<T>))
{
    SMP_LAUNCH(kernel, smp_row_grid(a.batch * a.groups, lanes), smp_row_block(lanes), 0,
               smp_cuda_of(call)->stream, a);
    return smp__cuda_launched("groupnorm");
}

template <typename T> static smp_status forward(const smp_op_call *call)
{
    constexpr int N = smp_pack<T>::N;
    const group_norm<T> a = arguments<T>(call);
    const int lanes = smp_row_lanes<T>(a.channels * a.places);
    const bool packed = smp_width<T>(a.places) == N, short_row = lanes == SMP_WARP;
    if (lies_last(call))
        return forward_last(call, a);
    return launch_groups(call, a, lanes,
                         packed      ? short_row ? groupnorm_forward<N, T, true>
                                                 : groupnorm_forward<N, T, false>
                              : short_row ? groupnorm_forward<1, T, true>
                                     : groupnorm_forward<1, T, false>);
}

template <typename T> static smp_status backward_input(const smp_op_call *call)
{
    constexpr int N = smp_pack<T>::N;
    const group_norm<T> a = arguments<T>(call);
    const int lanes = smp_row_lanes<T>(a.channels * a.places);
    const bool packed = smp_width<T>(a.places) == N, short_row = lanes == SMP_WARP;
    if (!a.din)
        return SMP_OK;
    if (lies_last(call))
        return backward_last(call, a, false, true);
    return launch_groups(call, a, lanes,
                         packed      ? short_row ? groupnorm_backward<N, T, true>
                                                 : groupnorm_backward<N, T, false>
                              : short_row ? groupnorm_backward<1, T, true>
                                     : groupnorm_backward<1, T, false>);
}

template <typename T> static smp_status backward_weight(const smp_op_call *call)
{
    constexpr int N = smp_pack<T>::N;
    const group_norm<T> a = arguments<T>(call);
    if (lies_last(call))
        return backward_last(call, a, true, false);
    const auto kernel =
        smp_width<T>(a.places) == N ? groupnorm_weights<N, T> : groupnorm_weights<1, T>;
    SMP_LAUNCH(kernel, smp_blocks(a.groups * a.channels, 1, 1 << 30), SMP_BLOCK, 0,
               smp_cuda_of(call)->stream, a);
    return smp__cuda_launched("groupnorm weight");
}

/* Both. */
template <typename T> static smp_status backward(const smp_op_call *call)
{
    if (lies_last(call) && call->din[0])
        return backward_last(call, arguments<T>(call), true, true);
    SMP_TRY(backward_weight<T>(call));
    return backward_input<T>(call);
}

SMP_CUDA_KERNELS(groupnorm) = {
    .forward = SMP_TYPED(forward),
    .backward_input = SMP_TYPED(backward_input),
    .backward_weight = SMP_TYPED(backward_weight),
    .backward = SMP_TYPED(backward),
};

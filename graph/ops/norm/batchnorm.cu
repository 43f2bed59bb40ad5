/* batchnorm on a GPU, as in batchnorm.c. A channel's values are shared out to as many blocks as
 * cuda_needs makes room for; each leaves two sums in the workspace, which one thread per channel
 * adds in order. The parts depend on the sizes alone, so the result does too; what is added up is
 * float within a part and double over parts. Then one pass over all values. Bound by memory:
 * O(elements). */
#include "graph/cuda/cuda_elementwise.cuh"

extern "C" {
#include "graph/ops/norm/norm.h"
}

namespace
{
/* (samples, channels, space), of `batch` samples those without the padding. */
struct layout {
    int64_t batch, samples, channels, space;
    int parts; // of a channel
    float eps;
};

/* What a part of a channel adds: mean and sum of (x - mean)^2, or sums of dy and of dy * (x -
 * mean); parts[channel * layout.parts] has both over the whole channel, once they are added. */
struct sums {
    float first, second;
};
} // namespace

/* The values of this block's part of its channel that are this thread's, one after the other. */
struct channel_walk {
    int64_t left, at; // at: of the value, in (samples, channels, space)
    int64_t place, place_step, row_step, space, stride;

    __device__ explicit channel_walk(const layout &l) : space(l.space), stride(l.channels * l.space)
    {
        const int64_t n = l.samples * space;
        const int64_t first = n * blockIdx.y / gridDim.y + threadIdx.x;
        left = n * (blockIdx.y + 1) / gridDim.y - first;
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

static __device__ __forceinline__ int64_t part_size(const layout &l, int part)
{
    const int64_t n = l.samples * l.space;
    return n * (part + 1) / l.parts - n * part / l.parts;
}

template <typename T>
__global__ void __launch_bounds__(SMP_BLOCK)
    batchnorm_moments(const T *x, sums *part, layout l) // grid (channels, parts)
{
    __shared__ float scratch[32];
    const int64_t n = part_size(l, blockIdx.y);
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
        part[(int64_t)blockIdx.x * l.parts + blockIdx.y] = sums{mean, squares};
}

/* Padding alone has mean 0 and variance 1. */
static __global__ void __launch_bounds__(SMP_BLOCK)
    batchnorm_statistics(const sums *part, float *mean, float *variance, layout l) // [channels]
{
    const double n = (double)(l.samples * l.space);
    for (int64_t c = smp_thread(); c < l.channels; c += smp_threads()) {
        const sums *own = part + c * l.parts;
        double sum = 0, squares = 0;
        for (int p = 0; p < l.parts; p++)
            sum += (double)part_size(l, p) * own[p].first;
        const double m = n > 0 ? sum / n : 0;
        for (int p = 0; p < l.parts; p++) {
            const double d = (double)own[p].first - m;
            squares += (double)own[p].second + (double)part_size(l, p) * d * d;
        }
        mean[c] = (float)m;
        variance[c] = n > 0 ? (float)(squares / n) : 1.0f;
    }
}

template <typename T, int N>
__global__ void __launch_bounds__(SMP_BLOCK)
    batchnorm_normalize(const T *x, const float *mean, const float *variance, const float *weight,
                        const float *bias, T *y, layout l)
{
    const int64_t packs = l.batch * l.channels * l.space / N;
    for (int64_t i = smp_thread(); i < packs; i += smp_threads()) {
        const int64_t c = i * N / l.space % l.channels;
        const float scale = weight[c] / sqrtf(variance[c] + l.eps);
        smp_pack<T, N> v = smp_load<N>(x + i * N);
        for (int k = 0; k < N; k++)
            v.v[k] = smp_from<T>((smp_float(v.v[k]) - mean[c]) * scale + bias[c]);
        smp_store(y + i * N, v);
    }
}

template <typename T>
__global__ void __launch_bounds__(SMP_BLOCK)
    batchnorm_dots(const T *x, const T *dy, const float *mean, sums *part, layout l)
{
    __shared__ float scratch[32];
    const float m = mean[blockIdx.x];
    float sum = 0, dot = 0;
    for (channel_walk w(l); w.more(); w.next()) {
        const float g = smp_float(dy[w.at]);
        sum += g;
        dot += g * (smp_float(x[w.at]) - m);
    }
    sum = smp_block_sum(sum, scratch);
    dot = smp_block_sum(dot, scratch);
    if (threadIdx.x == 0)
        part[(int64_t)blockIdx.x * l.parts + blockIdx.y] = sums{sum, dot};
}

static __device__ __forceinline__ void add_parts(const sums *own, int parts, double *sum,
                                                 double *dot)
{
    *sum = *dot = 0;
    for (int p = 0; p < parts; p++) {
        *sum += (double)own[p].first;
        *dot += (double)own[p].second;
    }
}

static __global__ void __launch_bounds__(SMP_BLOCK)
    batchnorm_add_parts(sums *part, layout l) // [channels, parts]
{
    for (int64_t c = smp_thread(); c < l.channels; c += smp_threads()) {
        double sum, dot;
        add_parts(part + c * l.parts, l.parts, &sum, &dot);
        part[c * l.parts] = sums{(float)sum, (float)dot};
    }
}

/* No gradient for the padding. */
template <typename T, int N>
__global__ void __launch_bounds__(SMP_BLOCK)
    batchnorm_backward(const T *x, const T *dy, const float *mean, const float *variance,
                       const float *weight, const sums *part, T *dx, layout l)
{
    const float n = (float)(l.samples * l.space);
    const int64_t packs = l.batch * l.channels * l.space / N;
    const int64_t counted = l.samples * l.channels * l.space / N;
    for (int64_t i = smp_thread(); i < packs; i += smp_threads()) {
        smp_pack<T, N> out = {};
        if (i < counted) {
            const int64_t c = i * N / l.space % l.channels;
            const sums s = part[c * l.parts];
            const float rstd = 1.0f / sqrtf(variance[c] + l.eps), scale = rstd * weight[c];
            const float mean_dy = s.first / n, slope = s.second / n * rstd * rstd;
            const smp_pack<T, N> v = smp_load<N>(x + i * N), g = smp_load<N>(dy + i * N);
            for (int k = 0; k < N; k++)
                out.v[k] = smp_from<T>(
                    scale * (smp_float(g.v[k]) - mean_dy - (smp_float(v.v[k]) - mean[c]) * slope));
        }
        smp_store(dx + i * N, out);
    }
}

struct weight_gradients {
    float *weight, *bias, *mean, *variance; // [channels] each, added to
    const float *running_mean, *running_variance;
    double share; // of this micro-batch in the running statistics
};

static __global__ void __launch_bounds__(SMP_BLOCK)
    batchnorm_add_gradients(const sums *part, const float *mean, const float *variance,
                            weight_gradients to, layout l)
{
    const double n = (double)(l.samples * l.space), unbiased = n > 1 ? n / (n - 1) : 1;
    for (int64_t c = smp_thread(); c < l.channels; c += smp_threads()) {
        double sum, dot;
        add_parts(part + c * l.parts, l.parts, &sum, &dot);
        to.weight[c] += (float)(dot / sqrt((double)variance[c] + l.eps));
        to.bias[c] += (float)sum;
        to.mean[c] += (float)(to.share * ((double)mean[c] - to.running_mean[c]));
        to.variance[c] +=
            (float)(to.share * ((double)variance[c] * unbiased - to.running_variance[c]));
    }
}

static layout layout_of(const smp_op_call *call)
{
    const smp_tensor *in = smp__in(call->graph, call->op, 0);
    smp_op_needs needs; // made room for as many parts as there shall be
    layout l;
    l.batch = call->batch;
    l.samples = call->batch - call->padding;
    l.channels = in->shape.dim[0];
    l.space = in->elements / l.channels;
    smp_op_needs_get(call->graph, call->op, call->batch, &needs);
    l.parts = (int)(needs.workspace_bytes / (l.channels * (int64_t)sizeof(sums)));
    l.eps = (float)call->op->attr[SMP__BATCHNORM_EPS].f;
    return l;
}

static dim3 part_grid(const layout &l)
{
    return dim3((unsigned)l.channels, (unsigned)l.parts);
}

template <typename T> static smp_status forward(const smp_op_call *call)
{
    const smp_cuda *cuda = smp_cuda_of(call);
    const layout l = layout_of(call);
    const float *mean = call->param[SMP__BATCHNORM_MEAN],
                *variance = call->param[SMP__BATCHNORM_VARIANCE];
    if (call->step.training) {
        float *aux = static_cast<float *>(call->aux);
        sums *part = static_cast<sums *>(call->workspace);
        SMP_LAUNCH(batchnorm_moments<T>, part_grid(l), SMP_BLOCK, 0, cuda->stream,
                   static_cast<const T *>(call->in[0]), part, l);
        SMP_LAUNCH(batchnorm_statistics, smp_grid(cuda, l.channels), SMP_BLOCK, 0, cuda->stream,
                   static_cast<const sums *>(part), aux, aux + l.channels, l);
        mean = aux;
        variance = aux + l.channels;
    }
    const int width = smp_width<T>(l.space);
    const auto kernel =
        width > 1 ? batchnorm_normalize<T, smp_pack<T>::N> : batchnorm_normalize<T, 1>;
    SMP_LAUNCH(kernel, smp_grid(cuda, l.batch * l.channels * l.space / width), SMP_BLOCK, 0,
               cuda->stream, static_cast<const T *>(call->in[0]), mean, variance,
               call->param[SMP__BATCHNORM_WEIGHT], call->param[SMP__BATCHNORM_BIAS],
               static_cast<T *>(call->out[0]), l);
    return smp__cuda_launched("batchnorm");
}

/* Into the workspace; the sums of parts. */
template <typename T> static sums *dots(const smp_op_call *call, const layout &l)
{
    sums *part = static_cast<sums *>(call->workspace);
    SMP_LAUNCH(batchnorm_dots<T>, part_grid(l), SMP_BLOCK, 0, smp_cuda_of(call)->stream,
               static_cast<const T *>(call->in[0]), reinterpret_cast<const T *>(call->dout[0]),
               static_cast<const float *>(call->aux), part, l);
    return part;
}

template <typename T> static smp_status backward_input(const smp_op_call *call)
{
    if (!call->din[0])
        return SMP_OK;
    const smp_cuda *cuda = smp_cuda_of(call);
    const layout l = layout_of(call);
    sums *part = dots<T>(call, l);
    SMP_LAUNCH(batchnorm_add_parts, smp_grid(cuda, l.channels), SMP_BLOCK, 0, cuda->stream, part,
               l);
    const float *mean = static_cast<const float *>(call->aux);
    const int width = smp_width<T>(l.space);
    const auto kernel =
        width > 1 ? batchnorm_backward<T, smp_pack<T>::N> : batchnorm_backward<T, 1>;
    SMP_LAUNCH(kernel, smp_grid(cuda, l.batch * l.channels * l.space / width), SMP_BLOCK, 0,
               cuda->stream, static_cast<const T *>(call->in[0]),
               reinterpret_cast<const T *>(call->dout[0]), mean, mean + l.channels,
               call->param[SMP__BATCHNORM_WEIGHT], static_cast<const sums *>(part),
               reinterpret_cast<T *>(call->din[0]), l);
    return smp__cuda_launched("batchnorm backward");
}

template <typename T> static smp_status backward_weight(const smp_op_call *call)
{
    const smp_cuda *cuda = smp_cuda_of(call);
    const layout l = layout_of(call);
    const float *mean = static_cast<const float *>(call->aux);
    weight_gradients to = {call->dparam[SMP__BATCHNORM_WEIGHT],
                           call->dparam[SMP__BATCHNORM_BIAS],
                           call->dparam[SMP__BATCHNORM_MEAN],
                           call->dparam[SMP__BATCHNORM_VARIANCE],
                           call->param[SMP__BATCHNORM_MEAN],
                           call->param[SMP__BATCHNORM_VARIANCE],
                           0};
    to.share = smp__running_share(call, call->op->attr[SMP__BATCHNORM_MOMENTUM].f);
    if (l.samples == 0)
        return SMP_OK;
    const sums *part = dots<T>(call, l);
    SMP_LAUNCH(batchnorm_add_gradients, smp_grid(cuda, l.channels), SMP_BLOCK, 0, cuda->stream,
               part, mean, mean + l.channels, to, l);
    return smp__cuda_launched("batchnorm weight");
}

SMP_CUDA_KERNELS(batchnorm) = {
    .forward = SMP_TYPED(forward),
    .backward_input = SMP_TYPED(backward_input),
    .backward_weight = SMP_TYPED(backward_weight),
};

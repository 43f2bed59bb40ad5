/* upsample on a GPU: a thread for each pixel that is written, for W channels of it where they lie
 * last; the gradient in the CPU's order. */
#include "graph/cuda/cuda_elementwise.cuh"
#include "graph/ops/convolution/upsample.h"

/* Small images (lines, width, values), large ones (lines * factor, width * factor, values). */
struct upsample_sizes {
    int64_t lines, width, values, factor;
};

template <int W, typename T>
__global__ void __launch_bounds__(SMP_BLOCK)
    upsample_forward(const T *in, T *out, upsample_sizes s) // W divides values
{
    const int64_t steps = s.values / W, row = s.width * s.factor;
    for (int64_t i = smp_thread(); i < s.lines * s.factor * row * steps; i += smp_threads()) {
        const int64_t pixel = i / steps, line = pixel / row, x = pixel - line * row;
        const int64_t from = line / s.factor * s.width + x / s.factor;
        smp_store(out + i * W, smp_load<W>(in + from * s.values + (i - pixel * steps) * W));
    }
}

template <int W, typename T>
__global__ void __launch_bounds__(SMP_BLOCK)
    upsample_backward(const T *dout, T *dx, upsample_sizes s)
{
    const int64_t steps = s.values / W, row = s.width * s.factor;
    for (int64_t i = smp_thread(); i < s.lines * s.width * steps; i += smp_threads()) {
        const int64_t pixel = i / steps, line = pixel / s.width, x = pixel - line * s.width;
        const T *square = dout + (line * row + x) * s.factor * s.values + (i - pixel * steps) * W;
        float sum[W] = {}, own[W];
        for (int64_t y = 0; y < s.factor; y++)
            for (int64_t k = 0; k < s.factor; k++) {
                smp_read<W>(own, square + (y * row + k) * s.values);
                for (int e = 0; e < W; e++)
                    sum[e] += own[e];
            }
        smp_write<W>(dx + i * W, sum);
    }
}

static upsample_sizes sizes_of(const smp_op_call *call)
{
    const smp_tensor *in = smp__in(call->graph, call->op, 0);
    const int64_t *dim = in->shape.dim, values = in->channels_last ? dim[0] : 1;
    return {call->batch * dim[0] / values * dim[1], dim[2], values,
            call->op->attr[SMP__UPSAMPLE_FACTOR].i};
}

template <typename T> static smp_status forward(const smp_op_call *call)
{
    const smp_cuda *cuda = smp_cuda_of(call);
    const int64_t n = smp__count(smp__out(call->graph, call->op), call->batch);
    const upsample_sizes s = sizes_of(call);
    const int width = smp_width<T>(s.values);
    const auto kernel = width > 1 ? upsample_forward<smp_pack<T>::N, T> : upsample_forward<1, T>;
    SMP_LAUNCH(kernel, smp_grid(cuda, n / width), SMP_BLOCK, 0, cuda->stream,
               static_cast<const T *>(call->in[0]), static_cast<T *>(call->out[0]), s);
    return smp__cuda_launched("upsample");
}

template <typename T> static smp_status backward_input(const smp_op_call *call)
{
    const smp_cuda *cuda = smp_cuda_of(call);
    const int64_t n = smp__count(smp__in(call->graph, call->op, 0), call->batch);
    const upsample_sizes s = sizes_of(call);
    const int width = smp_width<T>(s.values);
    const auto kernel = width > 1 ? upsample_backward<smp_pack<T>::N, T> : upsample_backward<1, T>;
    if (!call->din[0])
        return SMP_OK;
    SMP_LAUNCH(kernel, smp_grid(cuda, n / width), SMP_BLOCK, 0, cuda->stream,
               (const T *)call->dout[0], (T *)call->din[0], s);
    return smp__cuda_launched("upsample");
}

SMP_CUDA_KERNELS(upsample) = {.forward = SMP_TYPED(forward),
                              .backward_input = SMP_TYPED(backward_input)};

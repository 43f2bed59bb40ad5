/* upsample on a GPU: a thread for each pixel that is written; the gradient in the CPU's order. */
#include "graph/cuda/cuda_elementwise.cuh"
#include "graph/ops/convolution/upsample.h"

template <typename T>
__global__ void __launch_bounds__(SMP_BLOCK)
    upsample_forward(const T *in, T *out, int64_t n, int64_t width, int64_t factor)
// in (lines, width), out (lines * factor, width * factor) of n pixels
{
    for (int64_t i = smp_thread(); i < n; i += smp_threads()) {
        const int64_t line = i / (width * factor), x = i - line * (width * factor);
        out[i] = in[line / factor * width + x / factor];
    }
}

template <typename T>
__global__ void __launch_bounds__(SMP_BLOCK)
    upsample_backward(const T *dout, T *dx, int64_t n, int64_t width, int64_t factor)
// dout (lines * factor, width * factor), dx (lines, width) of n pixels
{
    for (int64_t i = smp_thread(); i < n; i += smp_threads()) {
        const int64_t line = i / width, x = i - line * width;
        const T *square = dout + (line * width * factor + x) * factor;
        float sum = 0;
        for (int64_t y = 0; y < factor; y++)
            for (int64_t k = 0; k < factor; k++)
                sum += smp_float(square[y * width * factor + k]);
        dx[i] = smp_from<T>(sum);
    }
}

template <typename T> static smp_status forward(const smp_op_call *call)
{
    const smp_cuda *cuda = smp_cuda_of(call);
    const int64_t n = smp__count(smp__out(call->graph, call->op), call->batch);
    SMP_LAUNCH(upsample_forward<T>, smp_grid(cuda, n), SMP_BLOCK, 0, cuda->stream,
               static_cast<const T *>(call->in[0]), static_cast<T *>(call->out[0]), n,
               smp__columns(smp__in(call->graph, call->op, 0)),
               call->op->attr[SMP__UPSAMPLE_FACTOR].i);
    return smp__cuda_launched("upsample");
}

template <typename T> static smp_status backward_input(const smp_op_call *call)
{
    const smp_cuda *cuda = smp_cuda_of(call);
    const smp_tensor *in = smp__in(call->graph, call->op, 0);
    const int64_t n = smp__count(in, call->batch);
    if (!call->din[0])
        return SMP_OK;
    SMP_LAUNCH(upsample_backward<T>, smp_grid(cuda, n), SMP_BLOCK, 0, cuda->stream,
               (const T *)call->dout[0], (T *)call->din[0], n, smp__columns(in),
               call->op->attr[SMP__UPSAMPLE_FACTOR].i);
    return smp__cuda_launched("upsample");
}

SMP_CUDA_KERNELS(upsample) = {.forward = SMP_TYPED(forward),
                              .backward_input = SMP_TYPED(backward_input)};

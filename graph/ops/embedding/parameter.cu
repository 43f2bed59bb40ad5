/* parameter on a GPU: a thread takes some elements of the weight and goes through the batch,
 * writing them or adding up the gradient in order. */
#include "graph/cuda/cuda_elementwise.cuh"
#include "graph/ops/ops.h"

template <int W, typename T>
__global__ void __launch_bounds__(SMP_BLOCK)
    parameter_forward(const float *weight, T *out, int64_t batch, int64_t n)
// weight (n), out (B, n), n a multiple of W
{
    for (int64_t i = smp_thread() * W; i < n; i += smp_threads() * W) {
        float w[W];
        smp_read<W>(w, weight + i);
        for (int64_t at = i; at < batch * n; at += n)
            smp_write<W>(out + at, w);
    }
}

template <typename T> static smp_status forward(const smp_op_call *call)
{
    const smp_cuda *cuda = smp_cuda_of(call);
    const int64_t n = smp__out(call->graph, call->op)->elements;
    const int width = smp_width<T>(n);
    const auto kernel = width > 1 ? parameter_forward<smp_pack<T>::N, T> : parameter_forward<1, T>;
    SMP_LAUNCH(kernel, smp_grid(cuda, n / width), SMP_BLOCK, 0, cuda->stream, call->param[0],
               static_cast<T *>(call->out[0]), call->batch, n);
    return smp__cuda_launched("parameter");
}

SMP_CUDA_KERNELS(parameter) = {.forward = SMP_TYPED(forward),
                               .backward_weight = SMP_TYPED(smp_batch_sums)};

/* position_embedding on a GPU: a thread takes some elements of a sample, 16 bytes of them where
 * samples are multiples of that, and goes through the batch: the weight is read once. */
#include "graph/cuda/cuda_elementwise.cuh"
#include "graph/ops/ops.h"

template <int W, typename T>
__global__ void __launch_bounds__(SMP_BLOCK)
    position_embedding_forward(const T *x, const float *weight, T *out, int64_t batch, int64_t n)
// x, out (B, n), weight (n), n a multiple of W
{
    for (int64_t i = smp_thread() * W; i < n; i += smp_threads() * W) {
        float w[W], value[W];
        smp_read<W>(w, weight + i);
        for (int64_t at = i; at < batch * n; at += n) {
            smp_read<W>(value, x + at);
            for (int k = 0; k < W; k++)
                value[k] += w[k];
            smp_write<W>(out + at, value);
        }
    }
}

template <typename T> static smp_status forward(const smp_op_call *call)
{
    const smp_cuda *cuda = smp_cuda_of(call);
    const int64_t n = smp__in(call->graph, call->op, 0)->elements;
    const int width = smp_width<T>(n);
    const auto kernel = width > 1 ? position_embedding_forward<smp_pack<T>::N, T>
                                  : position_embedding_forward<1, T>;
    SMP_LAUNCH(kernel, smp_grid(cuda, n / width), SMP_BLOCK, 0, cuda->stream,
               static_cast<const T *>(call->in[0]), call->param[0], static_cast<T *>(call->out[0]),
               call->batch, n);
    return smp__cuda_launched("position_embedding");
}

SMP_CUDA_KERNELS(position_embedding) = {.forward = SMP_TYPED(forward),
                                        .backward_weight = SMP_TYPED(smp_batch_sums)};

/* bias on a GPU: one pass, 16 bytes at a time where the dimension, or what lies after it, allows
 * it. The gradient is a sum of columns where the dimension is the last, else of planes. */
#include "graph/cuda/cuda_axis.cuh"
#include "graph/ops/elementwise/elementwise.h"

template <int W, typename T>
__global__ void __launch_bounds__(SMP_BLOCK)
    bias_forward(const T *x, const float *bias, T *y, int64_t n, int64_t size, int64_t inner)
// x, y (n), bias (size); W values have one bias, or W neighbouring ones if inner is 1
{
    for (int64_t i = smp_thread() * W; i < n; i += smp_threads() * W) {
        float value[W], b[W];
        smp_read<W>(value, x + i);
        if (inner == 1)
            smp_read<W>(b, bias + i % size);
        else
            b[0] = bias[i / inner % size];
        for (int k = 0; k < W; k++)
            value[k] += inner == 1 ? b[k] : b[0];
        smp_write<W>(y + i, value);
    }
}

static smp__axis along_of(const smp_op_call *call)
{
    return smp__axis_of(smp__in(call->graph, call->op, 0), call->op->attr[SMP__BIAS_AXIS].i,
                        call->batch);
}

template <typename T> static smp_status forward(const smp_op_call *call)
{
    const smp_cuda *cuda = smp_cuda_of(call);
    const smp__axis along = along_of(call);
    const int64_t n = along.outer * along.size * along.inner;
    const int width = smp_width<T>(along.inner == 1 ? along.size : along.inner);
    const auto kernel = width > 1 ? bias_forward<smp_pack<T>::N, T> : bias_forward<1, T>;
    SMP_LAUNCH(kernel, smp_grid(cuda, n / width), SMP_BLOCK, 0, cuda->stream,
               static_cast<const T *>(call->in[0]), call->param[0], static_cast<T *>(call->out[0]),
               n, along.size, along.inner);
    return smp__cuda_launched("bias");
}

template <typename T> static smp_status backward_weight(const smp_op_call *call)
{
    const smp__axis along = along_of(call);
    smp_op_needs needs;
    smp_op_needs_get(call->graph, call->op, call->batch, &needs);
    if (along.inner == 1)
        return smp_add_column_sums<T>(call, call->dparam[0], along.outer, along.size,
                                      needs.workspace_bytes /
                                          ((int64_t)sizeof(float) * along.size));
    return smp_add_plane_sums<T>(call, call->dparam[0], along.outer, along.size, along.inner);
}

SMP_CUDA_KERNELS(bias) = {.forward = SMP_TYPED(forward),
                          .backward_weight = SMP_TYPED(backward_weight)};

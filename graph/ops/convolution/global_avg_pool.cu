/* global_avg_pool on a GPU: graph/cuda/cuda_axis.cuh. */
#include "graph/cuda/cuda_axis.cuh"
#include "graph/ops/ops.h"

template <typename T> static smp_status forward(const smp_op_call *call)
{
    const smp_shape *shape = &smp__in(call->graph, call->op, 0)->shape;
    const int64_t pixels = shape->dim[1] * shape->dim[2];
    return smp_axis_sum<T>(call, call->batch * shape->dim[0], pixels, 1, 1.0f / (float)pixels);
}

template <typename T> static smp_status backward_input(const smp_op_call *call)
{
    const smp_shape *shape = &smp__in(call->graph, call->op, 0)->shape;
    const int64_t pixels = shape->dim[1] * shape->dim[2];
    return smp_axis_spread<T>(call, call->batch * shape->dim[0], pixels, 1, 1.0f / (float)pixels);
}

SMP_CUDA_KERNELS(global_avg_pool) = {.forward = SMP_TYPED(forward),
                                     .backward_input = SMP_TYPED(backward_input)};

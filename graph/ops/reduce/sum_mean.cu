/* The operators of sum_mean.c on a GPU: graph/cuda/cuda_axis.cuh. */
#include "graph/cuda/cuda_axis.cuh"
#include "graph/ops/reduce/sum_mean.h"

template <typename T> static smp_status forward(const smp_op_call *call)
{
    const smp__axis along = smp__sum_axis(call->graph, call->op, call->batch);
    return smp_axis_sum<T>(call, along.outer, along.size, along.inner,
                           smp__sum_factor(call, along));
}

template <typename T> static smp_status backward_input(const smp_op_call *call)
{
    const smp__axis along = smp__sum_axis(call->graph, call->op, call->batch);
    return smp_axis_spread<T>(call, along.outer, along.size, along.inner,
                              smp__sum_factor(call, along));
}

#define OPERATOR(name)                                                                             \
    SMP_CUDA_KERNELS(name) = {.forward = SMP_TYPED(forward),                                       \
                              .backward_input = SMP_TYPED(backward_input)};

OPERATOR(sum)
OPERATOR(mean)
OPERATOR(mean_pool)
OPERATOR(global_avg_pool)

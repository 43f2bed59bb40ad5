/* sum and mean on a GPU: graph/cuda/cuda_axis.cuh. */
#include "graph/cuda/cuda_axis.cuh"
#include "graph/ops/reduce/sum_mean.h"

template <typename T> static smp_status forward(const smp_op_call *call)
{
    const smp__axis along = smp__sum_axis(call);
    return smp_axis_sum<T>(call, along.outer, along.size, along.inner,
                           smp__sum_factor(call, along));
}

template <typename T> static smp_status backward_input(const smp_op_call *call)
{
    const smp__axis along = smp__sum_axis(call);
    return smp_axis_spread<T>(call, along.outer, along.size, along.inner,
                              smp__sum_factor(call, along));
}

SMP_CUDA_KERNELS(sum) = {.forward = SMP_TYPED(forward),
                         .backward_input = SMP_TYPED(backward_input)};
SMP_CUDA_KERNELS(mean) = {.forward = SMP_TYPED(forward),
                          .backward_input = SMP_TYPED(backward_input)};

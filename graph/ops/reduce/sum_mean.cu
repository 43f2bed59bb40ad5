/* sum and mean on a GPU: graph/cuda/cuda_axis.cuh. */
#include "graph/cuda/cuda_axis.cuh"
#include "graph/ops/ops.h"

enum { AXIS }; /* attribute, as in sum_mean.c */

static smp__axis axis_of(const smp_op_call *call)
{
    return smp__axis_of(smp__in(call->graph, call->op, 0), call->op->attr[AXIS].i, call->batch);
}

/* What sums and gradients are multiplied by. */
static float factor_of(const smp_op_call *call, smp__axis along)
{
    return call->op->kind == &smp__op_mean ? 1.0f / (float)along.size : 1.0f;
}

template <typename T> static smp_status forward(const smp_op_call *call)
{
    const smp__axis along = axis_of(call);
    return smp_axis_sum<T>(call, along.outer, along.size, along.inner, factor_of(call, along));
}

template <typename T> static smp_status backward_input(const smp_op_call *call)
{
    const smp__axis along = axis_of(call);
    return smp_axis_spread<T>(call, along.outer, along.size, along.inner, factor_of(call, along));
}

SMP_CUDA_KERNELS(sum) = {NULL, NULL, SMP_TYPED(forward), SMP_TYPED(backward_input), NULL, NULL};
SMP_CUDA_KERNELS(mean) = {NULL, NULL, SMP_TYPED(forward), SMP_TYPED(backward_input), NULL, NULL};

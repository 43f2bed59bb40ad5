/* rmsnorm on a GPU: rows normalised (cuda_norm.cuh) without mean and bias. */
#include "graph/cuda/cuda_norm.cuh"

template <typename T> static smp_status forward(const smp_op_call *call)
{
    return smp_norm_forward<T, false>(call);
}

template <typename T> static smp_status backward_input(const smp_op_call *call)
{
    return smp_norm_backward_input<T, false>(call);
}

template <typename T> static smp_status backward_weight(const smp_op_call *call)
{
    return smp_norm_backward_weight<T, false>(call);
}

template <typename T> static smp_status backward(const smp_op_call *call)
{
    return smp_norm_backward<T, false>(call);
}

SMP_CUDA_KERNELS(rmsnorm) = {NULL,
                             NULL,
                             SMP_TYPED(forward),
                             SMP_TYPED(backward_input),
                             SMP_TYPED(backward_weight),
                             NULL,
                             NULL,
                             NULL,
                             true,
                             SMP_TYPED(backward)};

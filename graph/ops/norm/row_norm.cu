/* layernorm and rmsnorm on a GPU: rows normalised (cuda_norm.cuh), the one with mean and bias; also
 * of a sum that is made in the same pass. */
#include "graph/cuda/cuda_norm.cuh"
#include "graph/ops/ops.h"

#define OPERATOR(name, centered)                                                                   \
    template <typename T> static smp_status name##_forward(const smp_op_call *call)                \
    {                                                                                              \
        return smp_norm_forward<T, centered>(call, NULL);                                          \
    }                                                                                              \
                                                                                                   \
    template <typename T> static smp_status name##_backward_input(const smp_op_call *call)         \
    {                                                                                              \
        return smp_norm_backward_input<T, centered>(call);                                         \
    }                                                                                              \
                                                                                                   \
    template <typename T> static smp_status name##_backward_weight(const smp_op_call *call)        \
    {                                                                                              \
        return smp_norm_backward_weight<T, centered>(call);                                        \
    }                                                                                              \
                                                                                                   \
    template <typename T> static smp_status name##_backward(const smp_op_call *call)               \
    {                                                                                              \
        return smp_norm_backward<T, centered>(call);                                               \
    }                                                                                              \
                                                                                                   \
    SMP_CUDA_KERNELS(name) = {                                                                     \
        .forward = SMP_TYPED(name##_forward),                                                      \
        .backward_input = SMP_TYPED(name##_backward_input),                                        \
        .backward_weight = SMP_TYPED(name##_backward_weight),                                      \
        .writes_fresh = true,                                                                      \
        .backward = SMP_TYPED(name##_backward),                                                    \
    };

OPERATOR(layernorm, true)
OPERATOR(rmsnorm, false)

template <typename T>
static smp_status forward_of_sum(const smp_op_call *sum, const smp_op_call *next)
{
    if (next->op->kind == &smp__op_layernorm)
        return smp_norm_forward<T, true>(next, sum);
    return smp_norm_forward<T, false>(next, sum);
}

smp_status smp__cuda_forward_of_sum(const smp_op_call *sum, const smp_op_call *next)
{
    return SMP_AS(smp_dtype_of_call(next), forward_of_sum, sum, next);
}

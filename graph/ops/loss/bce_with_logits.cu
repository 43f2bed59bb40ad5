/* bce_with_logits on a GPU: exponential and logarithm in float, the rest of a value in double,
 * where x and x t do not cancel. The division is the fast one, as in gelu.cu. */
#include "graph/cuda/cuda_pair_loss.cuh"
#include "graph/ops/loss/loss.h"

struct bce_loss {
    static __device__ __forceinline__ double value(float x, float t)
    {
        return (double)(x > 0.0f ? x : 0.0f) - (double)x * (double)t +
               (double)log1pf(expf(-fabsf(x)));
    }
    static __device__ __forceinline__ void gradients(float x, float t, float scale, float *dx,
                                                     float *dt)
    {
        *dx = scale * (__fdividef(1.0f, 1.0f + expf(-x)) - t);
        *dt = -scale * x;
    }
};

template <typename T> static smp_status forward(const smp_op_call *call)
{
    return smp_pair_loss_forward<bce_loss, T>(call, smp__pair_loss_counted(call));
}

template <typename T> static smp_status backward_input(const smp_op_call *call)
{
    return smp_pair_loss_backward<bce_loss, T>(
        call, smp__count(smp__in(call->graph, call->op, 0), call->batch),
        smp__pair_loss_counted(call));
}

SMP_CUDA_KERNELS(bce_with_logits) = {.forward = SMP_TYPED(forward),
                                     .backward_input = SMP_TYPED(backward_input)};

/* mse on a GPU: the difference in float, its square in double. */
#include "graph/cuda/cuda_pair_loss.cuh"
#include "graph/ops/loss/loss.h"

struct mse_loss {
    static __device__ __forceinline__ double value(float a, float b)
    {
        const double d = (double)(a - b);
        return d * d;
    }
    static __device__ __forceinline__ void gradients(float a, float b, float scale, float *da,
                                                     float *db)
    {
        const float d = 2.0f * scale * (a - b);
        *da = d;
        *db = -d;
    }
};

template <typename T> static smp_status forward(const smp_op_call *call)
{
    return smp_pair_loss_forward<mse_loss, T>(call, smp__pair_loss_counted(call));
}

template <typename T> static smp_status backward_input(const smp_op_call *call)
{
    return smp_pair_loss_backward<mse_loss, T>(
        call, smp__count(smp__in(call->graph, call->op, 0), call->batch),
        smp__pair_loss_counted(call));
}

SMP_CUDA_KERNELS(mse) = {.forward = SMP_TYPED(forward),
                         .backward_input = SMP_TYPED(backward_input)};

/* tanh on a GPU: one pass, 16 bytes at a time; the gradient from the output, dy * (1 - y^2). */
#include "graph/cuda/cuda_elementwise.cuh"
#include "graph/ops/ops.h"

struct tanh_value {
    __device__ void operator()(const float *x, float *y) const
    {
        y[0] = tanhf(x[0]);
    }
};

struct tanh_gradient { /* out, dout to din */
    __device__ void operator()(const float *x, float *y) const
    {
        y[0] = x[1] * (1.0f - x[0] * x[0]);
    }
};

static smp_status forward(const smp_op_call *call)
{
    const int64_t n = smp__count(smp__out(call->graph, call->op), call->batch);
    return smp_map1(call, call->in[0], call->out, n, tanh_value());
}

static smp_status backward_input(const smp_op_call *call)
{
    const int64_t n = smp__count(smp__out(call->graph, call->op), call->batch);
    if (!call->din[0])
        return SMP_OK;
    return smp_map2(call, call->out, call->dout, call->din[0], n, tanh_gradient());
}

SMP_CUDA_KERNELS(tanh) = {NULL, NULL, forward, backward_input, NULL, NULL};

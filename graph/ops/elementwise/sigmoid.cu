/* sigmoid on a GPU: one pass, 16 bytes at a time; the gradient from the output, dy * y * (1 - y).
 * The division is the fast one, as in gelu.cu. */
#include "graph/cuda/cuda_elementwise.cuh"
#include "graph/ops/ops.h"

struct sigmoid_value {
    __device__ void operator()(const float *x, float *y) const
    {
        y[0] = __fdividef(1.0f, 1.0f + expf(-x[0]));
    }
};

struct sigmoid_gradient { /* out, dout to din */
    __device__ void operator()(const float *x, float *y) const
    {
        y[0] = x[1] * (x[0] * (1.0f - x[0]));
    }
};

static smp_status forward(const smp_op_call *call)
{
    const int64_t n = smp__count(smp__out(call->graph, call->op), call->batch);
    return smp_map1(call, call->in[0], call->out, n, sigmoid_value());
}

static smp_status backward_input(const smp_op_call *call)
{
    const int64_t n = smp__count(smp__out(call->graph, call->op), call->batch);
    if (!call->din[0])
        return SMP_OK;
    return smp_map2(call, call->out, call->dout, call->din[0], n, sigmoid_gradient());
}

SMP_CUDA_KERNELS(sigmoid) = {NULL, NULL, forward, backward_input, NULL, NULL};

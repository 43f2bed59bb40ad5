/* scale on a GPU: one pass, 16 bytes at a time, forward and backward. */
#include "graph/cuda/cuda_elementwise.cuh"
#include "graph/ops/elementwise/elementwise.h"

struct scale_value {
    float factor;
    __device__ void operator()(const float *x, float *y) const
    {
        y[0] = factor * x[0];
    }
};

static smp_status apply(const smp_op_call *call, void *y, const void *x)
{
    const scale_value value = {(float)call->op->attr[SMP__SCALE_FACTOR].f};
    return smp_map1(call, x, y, smp__count(smp__out(call->graph, call->op), call->batch), value);
}

static smp_status forward(const smp_op_call *call)
{
    return apply(call, call->out[0], call->in[0]);
}

static smp_status backward_input(const smp_op_call *call)
{
    return call->din[0] ? apply(call, call->din[0], call->dout[0]) : SMP_OK;
}

SMP_CUDA_KERNELS(scale) = {.forward = forward, .backward_input = backward_input};

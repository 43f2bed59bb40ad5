/* mul on a GPU: one pass, 16 bytes at a time; both gradients in one pass where both are wanted. */
#include "graph/cuda/cuda_elementwise.cuh"
#include "graph/ops/ops.h"

struct mul_values {
    __device__ void operator()(const float *x, float *y) const
    {
        y[0] = x[0] * x[1];
    }
};

struct mul_gradients { /* a, b, dout to da, db */
    __device__ void operator()(const float *x, float *y) const
    {
        y[0] = x[2] * x[1];
        y[1] = x[2] * x[0];
    }
};

static smp_status forward(const smp_op_call *call)
{
    const int64_t n = smp__count(smp__out(call->graph, call->op), call->batch);
    return smp_map2(call, call->in[0], call->in[1], call->out, n, mul_values());
}

template <typename T> static smp_status both_gradients(const smp_op_call *call, int64_t n)
{
    const smp_streams<T, 3, 2> streams = {
        {(const T *)call->in[0], (const T *)call->in[1], (const T *)call->dout},
        {(T *)call->din[0], (T *)call->din[1]}};
    return smp_map(call, streams, n, mul_gradients());
}

static smp_status backward_input(const smp_op_call *call)
{
    const int64_t n = smp__count(smp__out(call->graph, call->op), call->batch);
    if (call->din[0] && call->din[1])
        return SMP_AS(smp_dtype_of_call(call), both_gradients, call, n);
    for (int k = 0; k < 2; k++)
        if (call->din[k])
            SMP_TRY(smp_map2(call, call->dout, call->in[1 - k], call->din[k], n, mul_values()));
    return SMP_OK;
}

SMP_CUDA_KERNELS(mul) = {NULL, NULL, forward, backward_input, NULL, NULL};

/* slice on a GPU: a strided copy, and in the backward pass zeros around it. */
#include "graph/cuda/cuda_elementwise.cuh"
#include "graph/ops/shape/shape.h"

static smp_status forward(const smp_op_call *call)
{
    const smp__slice s = smp__slice_of(call->graph, call->op, call->batch);
    const int64_t size = smp_dtype_bytes(smp__in(call->graph, call->op, 0)->dtype);
    const char *from = (const char *)call->in[0] + s.offset * size;
    return smp_copy_strided(call, {(char *)call->out[0], from, s.width * size, s.stride * size,
                                   s.width * size, s.rows});
}

static smp_status backward_input(const smp_op_call *call)
{
    const smp__slice s = smp__slice_of(call->graph, call->op, call->batch);
    const int64_t size = smp_dtype_bytes(smp__in(call->graph, call->op, 0)->dtype);
    char *din = (char *)call->din[0];
    if (!din)
        return SMP_OK;
    SMP_TRY(SMP_CUDA(cudaMemsetAsync, din, 0, (size_t)(s.rows * s.stride * size),
                     smp_cuda_of(call)->stream));
    return smp_copy_strided(call, {din + s.offset * size, (const char *)call->dout[0],
                                   s.stride * size, s.width * size, s.width * size, s.rows});
}

SMP_CUDA_KERNELS(slice) = {.forward = forward, .backward_input = backward_input};

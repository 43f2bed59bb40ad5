/* The operators of unary.h on a GPU: one pass each, 16 bytes at a time. */
#include "graph/cuda/cuda_elementwise.cuh"
#include "graph/ops/elementwise/unary.h"

#define READ_x call->in[0]
#define READ_y call->out[0]

#define OPERATOR(name, reads, values, forward_flops, backward_flops, summary, value, gradient)     \
    struct name##_value {                                                                          \
        __device__ void operator()(const float *in, float *out) const                              \
        {                                                                                          \
            const float x = in[0];                                                                 \
            out[0] = value;                                                                        \
        }                                                                                          \
    };                                                                                             \
                                                                                                   \
    struct name##_gradient { /* what it reads, dout to din */                                      \
        __device__ void operator()(const float *in, float *out) const                              \
        {                                                                                          \
            const float reads = in[0], dy = in[1];                                                 \
            out[0] = gradient;                                                                     \
        }                                                                                          \
    };                                                                                             \
                                                                                                   \
    static smp_status name##_forward(const smp_op_call *call)                                      \
    {                                                                                              \
        const int64_t n = smp__count(smp__out(call->graph, call->op), call->batch);                \
        return smp_map1(call, call->in[0], call->out[0], n, name##_value());                       \
    }                                                                                              \
                                                                                                   \
    static smp_status name##_backward_input(const smp_op_call *call)                               \
    {                                                                                              \
        const int64_t n = smp__count(smp__out(call->graph, call->op), call->batch);                \
        if (!call->din[0])                                                                         \
            return SMP_OK;                                                                         \
        return smp_map2(call, READ_##reads, call->dout[0], call->din[0], n, name##_gradient());    \
    }                                                                                              \
                                                                                                   \
    SMP_CUDA_KERNELS(name) = {.forward = name##_forward, .backward_input = name##_backward_input};

SMP__UNARY(OPERATOR)

/* The operators of unary.h on a GPU: one pass each, 16 bytes at a time; silu and the mul after it
 * in one, too. */
#include "graph/cuda/cuda_elementwise.cuh"
#include "graph/ops/elementwise/unary.h"

#define READ_x call->in[0]
#define READ_y call->out[0]
#define FUSED_alone NULL
#define FUSED_product SMP_TYPED_PAIR(silu_forward_fused)

template <typename T>
static smp_status silu_forward_fused(const smp_op_call *call, const smp_op_call *next);

#define OPERATOR(name, reads, values, pairs, forward_flops, backward_flops, summary, value,        \
                 gradient)                                                                         \
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
    SMP_CUDA_KERNELS(name) = {                                                                     \
        .forward = name##_forward,                                                                 \
        .backward_input = name##_backward_input,                                                   \
        .forward_fused = FUSED_##pairs,                                                            \
    };

SMP__UNARY(OPERATOR)

/* x, b to silu(x), rounded, and that times b. */
template <typename T> struct silu_product {
    __device__ void operator()(const float *in, float *out) const
    {
        out[0] = smp_float(smp_from<T>(smp__logistic(in[0], in[0])));
        out[1] = out[0] * in[1];
    }
};

template <typename T>
static smp_status silu_forward_fused(const smp_op_call *call, const smp_op_call *next)
{
    const smp_streams<T, 2, 2> streams = {
        {(const T *)call->in[0], (const T *)next->in[1]},
        {(T *)call->out[0], (T *)next->out[0]},
    };
    return smp_map(call, streams, smp__count(smp__out(call->graph, call->op), call->batch),
                   silu_product<T>());
}

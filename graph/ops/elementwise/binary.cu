/* The operators of binary.h on a GPU: one pass each, 16 bytes at a time; both gradients in one pass
 * where both are wanted, and in it the gradient of the silu before a mul. */
#include "graph/cuda/cuda_elementwise.cuh"
#include "graph/ops/elementwise/binary.h"
#include "graph/ops/elementwise/unary.h"

/* What a backward pass reads, in the order of the elements that READ_<reads> names. */
#define READ_nothing const float dy = in[0]
#define READ_inputs                                                                                \
    const float a = in[0], b = in[1], dy = in[2];                                                  \
    (void)a, (void)b

struct arrays_nothing {
    static constexpr int COUNT = 1;
    static const void *at(const smp_op_call *call, int)
    {
        return call->dout[0];
    }
};

struct arrays_inputs {
    static constexpr int COUNT = 3;
    static const void *at(const smp_op_call *call, int k)
    {
        return k < 2 ? call->in[k] : call->dout[0];
    }
};

template <typename T, typename ARRAYS, int OUT, typename F>
static smp_status map_gradients(const smp_op_call *call, const int (&slot)[OUT], const F &f)
{
    smp_streams<T, ARRAYS::COUNT, OUT> streams;
    for (int k = 0; k < ARRAYS::COUNT; k++)
        streams.in[k] = (const T *)ARRAYS::at(call, k);
    for (int k = 0; k < OUT; k++)
        streams.out[k] = (T *)call->din[slot[k]];
    return smp_map(call, streams, smp__count(smp__out(call->graph, call->op), call->batch), f);
}

#define FUSED_alone NULL
#define FUSED_gate SMP_TYPED_PAIR(mul_backward_input_fused)

template <typename T>
static smp_status mul_backward_input_fused(const smp_op_call *call, const smp_op_call *before);

#define OPERATOR(name, reads, pairs, forward_flops, backward_flops, summary, value, da, db)        \
    struct name##_values {                                                                         \
        __device__ void operator()(const float *in, float *out) const                              \
        {                                                                                          \
            const float a = in[0], b = in[1];                                                      \
            out[0] = value;                                                                        \
        }                                                                                          \
    };                                                                                             \
                                                                                                   \
    struct name##_gradients {                                                                      \
        __device__ void operator()(const float *in, float *out) const                              \
        {                                                                                          \
            READ_##reads;                                                                          \
            out[0] = da;                                                                           \
            out[1] = db;                                                                           \
        }                                                                                          \
    };                                                                                             \
                                                                                                   \
    template <int SLOT> struct name##_gradient {                                                   \
        __device__ void operator()(const float *in, float *out) const                              \
        {                                                                                          \
            READ_##reads;                                                                          \
            out[0] = SLOT == 0 ? da : db;                                                          \
        }                                                                                          \
    };                                                                                             \
                                                                                                   \
    static smp_status name##_forward(const smp_op_call *call)                                      \
    {                                                                                              \
        const int64_t n = smp__count(smp__out(call->graph, call->op), call->batch);                \
        return smp_map2(call, call->in[0], call->in[1], call->out[0], n, name##_values());         \
    }                                                                                              \
                                                                                                   \
    template <typename T> static smp_status name##_backward_input(const smp_op_call *call)         \
    {                                                                                              \
        if (call->din[0] && call->din[1])                                                          \
            return map_gradients<T, arrays_##reads>(call, {0, 1}, name##_gradients());             \
        if (call->din[0])                                                                          \
            return map_gradients<T, arrays_##reads>(call, {0}, name##_gradient<0>());              \
        if (call->din[1])                                                                          \
            return map_gradients<T, arrays_##reads>(call, {1}, name##_gradient<1>());              \
        return SMP_OK;                                                                             \
    }                                                                                              \
                                                                                                   \
    SMP_CUDA_KERNELS(name) = {                                                                     \
        .forward = name##_forward,                                                                 \
        .backward_input = SMP_TYPED(name##_backward_input),                                        \
        .backward_input_fused = FUSED_##pairs,                                                     \
    };

SMP__BINARY(OPERATOR)

/* Of silu(x) * b: x, b, dy to dx, and to db if it is wanted. What two calls round is rounded. */
template <typename T, bool BOTH> struct gate_gradients {
    __device__ void operator()(const float *in, float *out) const
    {
        const float x = in[0], b = in[1], dy = in[2];
        out[0] = smp_float(smp_from<T>(dy * b)) * smp__silu_slope(x);
        if (BOTH)
            out[BOTH] = dy * smp_float(smp_from<T>(smp__logistic(x, x)));
    }
};

template <typename T>
static smp_status mul_backward_input_fused(const smp_op_call *call, const smp_op_call *before)
{
    const int64_t n = smp__count(smp__out(call->graph, call->op), call->batch);
    const T *const x = (const T *)before->in[0], *const b = (const T *)call->in[1];
    const T *const dy = (const T *)call->dout[0];
    T *const dx = (T *)before->din[0], *const db = (T *)call->din[1];
    if (db)
        return smp_map(call, smp_streams<T, 3, 2>{{x, b, dy}, {dx, db}}, n,
                       gate_gradients<T, true>());
    return smp_map(call, smp_streams<T, 3, 1>{{x, b, dy}, {dx}}, n, gate_gradients<T, false>());
}

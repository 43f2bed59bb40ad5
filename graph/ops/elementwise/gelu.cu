/* gelu on a GPU: one pass, 16 bytes at a time.
 *
 * 0.5 (1 + tanh u) is the logistic function of 2 u, which takes one exponential and one division
 * and does not cancel where u is very negative. The division is the fast one: 2 units in the last
 * place at worst, and 0 for a divisor beyond 2^126, where the quotient is that small. The exact one
 * is several times as many instructions. */
#include "graph/cuda/cuda_elementwise.cuh"
#include "graph/ops/elementwise/elementwise.h"

/* Argument of tanh: sqrt(2 / pi) (x + 0.044715 x^3). */
__device__ __forceinline__ float gelu_argument(float x)
{
    return 0.7978845608f * (x + 0.044715f * x * x * x);
}

struct gelu_tanh_value {
    __device__ void operator()(const float *x, float *y) const
    {
        y[0] = __fdividef(x[0], 1.0f + expf(-2.0f * gelu_argument(x[0])));
    }
};

/* Beyond 16 the derivative is 0 or 1 to the last bit, and powers of x would overflow; a NaN passes
 * both comparisons. */
struct gelu_tanh_gradient { /* x, dout to din */
    __device__ void operator()(const float *in, float *out) const
    {
        const float x = in[0] > 16.0f ? 16.0f : in[0] < -16.0f ? -16.0f : in[0];
        const float s = __fdividef(1.0f, 1.0f + expf(-2.0f * gelu_argument(x)));
        const float slope = 0.7978845608f * (1.0f + 3.0f * 0.044715f * x * x);
        out[0] = in[1] * (s + x * (2.0f * slope) * (s * (1.0f - s)));
    }
};

struct gelu_erf_value {
    __device__ void operator()(const float *x, float *y) const
    {
        y[0] = 0.5f * x[0] * (1.0f + erff(0.7071067812f * x[0]));
    }
};

struct gelu_erf_gradient { /* x, dout to din */
    __device__ void operator()(const float *in, float *out) const
    {
        const float x = in[0];
        const float below = 0.5f * (1.0f + erff(0.7071067812f * x));
        const float density = 0.3989422804f * expf(-0.5f * x * x);
        out[0] = in[1] * (below + x * density);
    }
};

static smp_status forward(const smp_op_call *call)
{
    const int64_t n = smp__count(smp__out(call->graph, call->op), call->batch);
    if (call->op->attr[SMP__GELU_APPROXIMATE].i == SMP__GELU_TANH)
        return smp_map1(call, call->in[0], call->out[0], n, gelu_tanh_value());
    return smp_map1(call, call->in[0], call->out[0], n, gelu_erf_value());
}

static smp_status backward_input(const smp_op_call *call)
{
    const int64_t n = smp__count(smp__out(call->graph, call->op), call->batch);
    if (!call->din[0])
        return SMP_OK;
    if (call->op->attr[SMP__GELU_APPROXIMATE].i == SMP__GELU_TANH)
        return smp_map2(call, call->in[0], call->dout[0], call->din[0], n, gelu_tanh_gradient());
    return smp_map2(call, call->in[0], call->dout[0], call->din[0], n, gelu_erf_gradient());
}

SMP_CUDA_KERNELS(gelu) = {.forward = forward, .backward_input = backward_input};

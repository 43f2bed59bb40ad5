/* The operators of one input and an output like it, a row each, and what their formulas share.
 * unary.c makes loops for the CPU of them, unary.cu kernels for a GPU.
 *
 *   ROW(name, reads, values, pairs, flops of an element forward, backward, summary,
 *       value, gradient)
 *
 * value is an expression of x, an element of the input; gradient one of dy and of x or y, whichever
 * backward reads. y costs no memory where the next operator keeps its input. values: who computes
 * them on the CPU: LOOP over the formula, or a primitive of oneDNN. pairs: on a GPU it shares
 * kernels with a `product`, a mul that reads y, or is `alone`. */
#ifndef SMP_GRAPH_OPS_ELEMENTWISE_UNARY_H
#define SMP_GRAPH_OPS_ELEMENTWISE_UNARY_H

#include "graph/ops/ops.h"

// clang-format off
#define SMP__UNARY(ROW)                                                                            \
    ROW(relu, y, LOOP, alone, 1, 1, "rectified linear unit", /* NaN stays NaN */                   \
        smp__relu(x), smp__relu_gradient(y, dy))                                                   \
    ROW(sigmoid, y, LOOP, alone, 22, 3, "logistic function, 1 / (1 + exp(-x))",                    \
        smp__logistic(1.0f, x), dy * (y * (1.0f - y)))                                             \
    ROW(silu, x, LOOP, product, 23, 27,                                                            \
        "sigmoid linear unit, x * sigmoid(x)", /* Elfwing et al. 2017 */                           \
        smp__logistic(x, x), dy * smp__silu_slope(x))                                              \
    ROW(tanh, y, SMP_ELTWISE_TANH, alone, 20, 3, "hyperbolic tangent",                             \
        tanhf(x), dy * (1.0f - y * y))
// clang-format on

/* a / (1 + exp(-x)). On the CPU by a loop whose bits are the same on every machine: oneDNN's are
 * not. On a GPU the division is the fast one: 2 units in the last place at worst, and 0 for a
 * divisor beyond 2^126, where the quotient is that small; and what a compiler might fuse is written
 * down, for the same bits in every kernel. */
#ifdef __cplusplus
#define SMP__FORMULA static __device__ __forceinline__
SMP__FORMULA float smp__logistic(float a, float x)
{
    return __fdividef(a, __fadd_rn(1.0f, expf(-x)));
}
#define SMP__TIMES_PLUS(a, b, c) fmaf(a, b, c)
#else
#include "graph/math/exponential.h"
#define SMP__FORMULA static inline
SMP__FORMULA float smp__logistic(float a, float x)
{
    return a * smp__sigmoid_of(x);
}
#define SMP__TIMES_PLUS(a, b, c) ((a) * (b) + (c))
#endif

SMP__FORMULA float smp__relu(float x)
{
    return x <= 0 ? 0 : x;
}

/* y: the relu, or what it is of. */
SMP__FORMULA float smp__relu_gradient(float y, float dy)
{
    return dy * (y > 0 ? 1.0f : 0.0f);
}

SMP__FORMULA float smp__silu_slope(float x)
{
    const float s = smp__logistic(1.0f, x);
    return s * SMP__TIMES_PLUS(x, 1.0f - s, 1.0f);
}

#endif

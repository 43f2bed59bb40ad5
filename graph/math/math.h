/* CPU mathematics by oneDNN; convolutions are in graph/math/convolution.h. One thread, whatever
 * OpenMP allows the caller. GEMM is stateless; primitives are made once per operator. All matrices
 * row-major, all pointers 64-byte aligned unless strides say otherwise. */
#ifndef SMP_GRAPH_MATH_MATH_H
#define SMP_GRAPH_MATH_MATH_H

#include <stdbool.h>

#include "graph/base/status.h"

/* "oneDNN 2.6.0". */
const char *smp_math_name(void);

/* C[m,n] = alpha * op(A)[m,k] * op(B)[k,n] + beta * C; lda, ldb, ldc: row strides in elements. */
smp_status smp_math_gemm(bool trans_a, bool trans_b, int64_t m, int64_t n, int64_t k, float alpha,
                         const float *a, int64_t lda, const float *b, int64_t ldb, float beta,
                         float *c, int64_t ldc);

typedef enum smp_eltwise {
    SMP_ELTWISE_GELU_TANH,
    SMP_ELTWISE_GELU_ERF,
    SMP_ELTWISE_TANH
} smp_eltwise;

/* A cached pair of forward/backward primitives; the shape is fixed when it is made. */
typedef struct smp_math_primitive smp_math_primitive;
void smp_math_primitive_destroy(smp_math_primitive *primitive);

/* y = f(x); dx = dy * f'(x), both from x. `count` elements, bf16 if half, else float. In place
 * allowed: y == x, dx == dy. */
smp_status smp_math_eltwise_create(smp_eltwise kind, int64_t count, bool half, bool training,
                                   smp_math_primitive **out);
smp_status smp_math_eltwise_forward(smp_math_primitive *p, const void *x, void *y);
smp_status smp_math_eltwise_backward(smp_math_primitive *p, const void *x, const void *dy,
                                     void *dx);

/* Softmax over rows of x[rows, columns]; backward from y. In place allowed. */
smp_status smp_math_softmax_create(int64_t rows, int64_t columns, bool training,
                                   smp_math_primitive **out);
smp_status smp_math_softmax_forward(smp_math_primitive *p, const float *x, float *y);
smp_status smp_math_softmax_backward(smp_math_primitive *p, const float *y, const float *dy,
                                     float *dx);

#endif

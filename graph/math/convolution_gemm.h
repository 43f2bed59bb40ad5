/* Convolution as matrix products, for convolution.c: where oneDNN has no direct one. */
#ifndef SMP_GRAPH_MATH_CONVOLUTION_GEMM_H
#define SMP_GRAPH_MATH_CONVOLUTION_GEMM_H

#include "graph/math/convolution.h"

int64_t smp__convolution_gemm_workspace(const smp_convolution_shape *shape);

/* As the calls of graph/math/convolution.h. */
smp_status smp__convolution_gemm_forward(const smp_convolution_shape *s, const float *x,
                                         const float *w, const float *bias, float *y,
                                         float *workspace);
smp_status smp__convolution_gemm_backward_input(const smp_convolution_shape *s, const float *dy,
                                                const float *w, float *dx, float *workspace);
smp_status smp__convolution_gemm_backward_weight(const smp_convolution_shape *s, const float *x,
                                                 const float *dy, float *dw, float *workspace);

#endif

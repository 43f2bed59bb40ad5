/* Convolution of groups of a few channels by shifted planes, for convolution.c. */
#ifndef SMP_GRAPH_MATH_CONVOLUTION_PLANES_H
#define SMP_GRAPH_MATH_CONVOLUTION_PLANES_H

#include "graph/math/convolution.h"

/* Is it made for the shape? A function of the sizes alone. */
bool smp__planes_fit(const smp_convolution_shape *shape);

int64_t smp__planes_workspace(const smp_convolution_shape *shape); /* of a shape that fits */

/* As the calls of graph/math/convolution.h. */
void smp__planes_forward(const smp_convolution_shape *s, const float *x, const float *w,
                         const float *bias, float *y, float *workspace);
void smp__planes_backward_input(const smp_convolution_shape *s, const float *dy, const float *w,
                                float *dx, float *workspace);
void smp__planes_backward_weight(const smp_convolution_shape *s, const float *x, const float *dy,
                                 float *dw, float *workspace);

#endif

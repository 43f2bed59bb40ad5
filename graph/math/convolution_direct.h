/* oneDNN's direct convolutions, for convolution.c. They work on layouts of their own (blocks of 8
 * or 16 channels), which the machine's instruction set decides. */
#ifndef SMP_GRAPH_MATH_CONVOLUTION_DIRECT_H
#define SMP_GRAPH_MATH_CONVOLUTION_DIRECT_H

#include "graph/math/convolution.h"

typedef enum smp__direction {
    SMP__FORWARD,
    SMP__BACKWARD_INPUT,
    SMP__BACKWARD_WEIGHT
} smp__direction;

enum { SMP__DIRECTIONS = 3 };

typedef struct smp__direct smp__direct;

/* What one direction takes of workspace, at most; it is not used where it would take more. */
int64_t smp__direct_workspace(const smp_convolution_shape *shape);

/* *out is NULL if oneDNN has no direct convolution for the shape on this machine. */
smp_status smp__direct_create(const smp_convolution_shape *shape, smp__direction direction,
                              bool bias, smp__direct **out);
void smp__direct_destroy(smp__direct *direct); /* accepts NULL */

/* Forward: x, w, y. Backward: dy, w, dx; and x, dy, dw, which is added to and always fp32. */
smp_status smp__direct_run(smp__direct *d, const void *first, const void *second, const float *bias,
                           void *result, char *workspace);

#endif

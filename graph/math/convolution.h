/* Convolution of images on the CPU, forward and both backward passes. Arrays are row-major: images
 * (batch, channels, height, width), weights (out channels, in channels / groups, kernel height,
 * kernel width); gradients are those of a cross-correlation, as everywhere in this field. */
#ifndef SMP_GRAPH_MATH_CONVOLUTION_H
#define SMP_GRAPH_MATH_CONVOLUTION_H

#include <stdbool.h>

#include "graph/base/status.h"

enum { SMP_CHANNELS, SMP_HEIGHT, SMP_WIDTH }; /* of an image's sizes */

/* Sizes. Pairs are (height, width); channels are multiples of groups. */
typedef struct smp_convolution_shape {
    int64_t batch;
    int64_t in[3], out[3];
    int64_t groups;
    int64_t kernel[2], stride[2], padding[2], dilation[2];
    bool half; /* x, y and their gradients are bf16; sums, biases and gradients of weights fp32 */
} smp_convolution_shape;

/* Rows of the matrix that a group's windows make: in channels / groups * kernel height * width. */
static inline int64_t smp_convolution_taps(const smp_convolution_shape *s)
{
    return s->in[SMP_CHANNELS] / s->groups * s->kernel[0] * s->kernel[1];
}

/* Its columns: places in the output. */
static inline int64_t smp_convolution_places(const smp_convolution_shape *s)
{
    return s->out[SMP_HEIGHT] * s->out[SMP_WIDTH];
}

/* One of each output place, one for one: the windows are the input itself. */
static inline bool smp_convolution_is_pointwise(const smp_convolution_shape *s)
{
    return s->kernel[0] == 1 && s->kernel[1] == 1 && s->stride[0] == 1 && s->stride[1] == 1 &&
           s->padding[0] == 0 && s->padding[1] == 0;
}

/* Scratch of any one call: a function of the sizes alone, the same on every machine, so that a plan
 * made on one can be carried out on another. */
int64_t smp_convolution_workspace(const smp_convolution_shape *shape);

typedef struct smp_convolution smp_convolution;

/* Makes what the calls need, for training or not; freed with smp_convolution_destroy. */
smp_status smp_convolution_create(const smp_convolution_shape *shape, bool bias, bool training,
                                  smp_convolution **out);
void smp_convolution_destroy(smp_convolution *convolution); /* accepts NULL */

/* Weights in fp32, and rounded to bf16 as well where x and y are. */
typedef struct smp_convolution_weights {
    const float *fp32;
    const uint16_t *bf16;
} smp_convolution_weights;

/* y = x * w + bias; bias: NULL unless it was asked for. */
smp_status smp_convolution_forward(smp_convolution *c, const void *x, smp_convolution_weights w,
                                   const float *bias, void *y, void *workspace);
/* dx, overwritten */
smp_status smp_convolution_backward_input(smp_convolution *c, const void *dy,
                                          smp_convolution_weights w, void *dx, void *workspace);
/* dw, added to */
smp_status smp_convolution_backward_weight(smp_convolution *c, const void *x, const void *dy,
                                           float *dw, void *workspace);

#endif

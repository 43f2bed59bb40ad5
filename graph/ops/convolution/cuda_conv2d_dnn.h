/* Convolutions by cuDNN in 16 bits with sums in fp32: forward, and the gradients of the input and
 * of the filters. Images are channels last, filters [out][ky][kx][channels of a group]. */
#ifndef SMP_GRAPH_OPS_CUDA_CONV2D_DNN_H
#define SMP_GRAPH_OPS_CUDA_CONV2D_DNN_H

#include "graph/math/convolution.h"
#include "graph/cuda/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif
#include "graph/model/op.h"

typedef struct smp__dnn_convolution smp__dnn_convolution;

/* x, y, filters and bias, or the gradients in their places; what a call makes is written: y
 * forward, x (dx) of the input's gradient, filters, in fp32, of the weight's. bias: forward, if the
 * plan has one. 16-byte aligned. */
typedef struct smp__dnn_convolution_data {
    void *x, *y, *filters;
    const void *bias;
} smp__dnn_convolution_data;

/* NULL if cuDNN is not here, or has no deterministic plan that fits the libraries' workspace. Some
 * milliseconds, or up to a second where it compiles. */
smp__dnn_convolution *smp__dnn_convolution_create(const smp_cuda *cuda,
                                                  const smp_convolution_shape *shape,
                                                  smp_op_part part, bool bias);
void smp__dnn_convolution_destroy(smp__dnn_convolution *plan);            /* accepts NULL */
int64_t smp__dnn_convolution_workspace(const smp__dnn_convolution *plan); /* bytes that it needs */
smp_status smp__dnn_convolution_run(const smp__dnn_convolution *plan, const smp_cuda *cuda,
                                    const smp__dnn_convolution_data *data);

#ifdef __cplusplus
}
#endif

#endif

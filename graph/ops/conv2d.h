/* The sizes of a conv2d, for its kernels on the CPU and on a GPU. */
#ifndef SMP_GRAPH_OPS_CONV2D_H
#define SMP_GRAPH_OPS_CONV2D_H

#ifdef __cplusplus
extern "C" {
#endif

#include "graph/math/convolution.h"
#include "graph/model/op.h"

smp_convolution_shape smp__conv2d_shape(const smp_graph *graph, const smp_op *op, int64_t batch);

#ifdef __cplusplus
}
#endif

#endif

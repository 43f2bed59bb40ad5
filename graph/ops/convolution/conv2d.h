/* The sizes of a conv2d, for its kernels on the CPU and on a GPU, and what a GPU takes at once. */
#ifndef SMP_GRAPH_OPS_CONV2D_H
#define SMP_GRAPH_OPS_CONV2D_H

#ifdef __cplusplus
extern "C" {
#endif

#include "graph/math/convolution.h"
#include "graph/model/op.h"

smp_convolution_shape smp__conv2d_shape(const smp_graph *graph, const smp_op *op, int64_t batch);

/* How many samples a GPU takes at once, and what for: a function of the sizes alone, because it
 * decides in which parts weights' gradients are added, and so bits. */
typedef struct smp__conv2d_runs {
    int64_t samples;        /* forward and of the input's gradient */
    int64_t weight_samples; /* of the weight's gradient; 1: without parts */
    int64_t workspace_bytes;
} smp__conv2d_runs;

/* Bytes that the workspace may have where one sample does not need more: only tests change it. */
extern int64_t smp__conv2d_bound;

smp__conv2d_runs smp__conv2d_runs_of(const smp_graph *graph, const smp_op *op, int64_t batch);

#ifdef __cplusplus
}
#endif

#endif
